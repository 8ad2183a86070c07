//! How a daemon ends: whatever the way, what was read is answered, and nothing of it is left.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::daemon::{Order, PATIENCE};
use crate::dice::Dice;
use crate::ledger::Expect::{Either, Fails, Success};
use crate::servers::STEADY;
use crate::stage::Stage;
use crate::tally::Wrong;

pub struct End {
    pub name: &'static str,
    pub meet: fn(&Stage, &mut Dice),
}

pub const ENDS: &[End] = &[
    End {
        name: "end of input under load",
        meet: input_ends,
    },
    End {
        name: "end of input with hung calls",
        meet: input_ends_with_hung_calls,
    },
    End {
        name: "SIGTERM under load",
        meet: terminated,
    },
    End {
        name: "SIGTERM twice",
        meet: terminated_twice,
    },
    End {
        name: "exit under load",
        meet: exits,
    },
    End {
        name: "host closes stdout",
        meet: stdout_closes,
    },
    End {
        name: "host dies",
        meet: host_dies,
    },
    End {
        name: "kill -9 of the daemon",
        meet: daemon_killed,
    },
    End {
        name: "kill -9 of the guardian",
        meet: guardian_killed,
    },
];

/// Settings of the rounds: hung calls are given up soon.
pub const DRAIN: Duration = Duration::from_secs(3);

/// Calls that run while the end comes; some connections hold trees.
fn crowd(stage: &Stage, dice: &mut Dice, late: bool) {
    for user in &stage.regulars {
        stage.ask(user, "victim", "nest", Success);
    }
    let allowed: &[&str] = &["shutting_down", "cancelled"];
    for _ in 0..100 {
        let expect = if late { Either(allowed) } else { Success };
        let user = dice.pick(&stage.regulars);
        let order = match dice.below(3) {
            0 => stage
                .call(user, dice.word(STEADY), "sleep", expect)
                .argument("ms", dice.below(300)),
            _ => stage.call(user, dice.word(STEADY), "echo", expect),
        };
        stage.daemon.send(order);
    }
}

/// Waits for the end, and holds against it what must be.
fn ended(stage: &Stage, codes: &[i32], all_answered: bool) {
    let Some(status) = stage.daemon.end(PATIENCE) else {
        stage.tally.blame(Wrong::Other, "the daemon does not end");
        return stage.daemon.kill();
    };
    let code = status.code();
    if !code.is_some_and(|code| codes.contains(&code)) {
        let text = format!(
            "ended with {status}, not {codes:?}; stderr: {}",
            stage.daemon.stderr()
        );
        stage.tally.blame(Wrong::Other, text);
    }
    if all_answered {
        stage.daemon.ledger.lost();
    } else {
        stage.daemon.ledger.let_go();
    }
}

fn input_ends(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, false);
    stage.daemon.close_stdin();
    ended(stage, &[0], true);
}

fn input_ends_with_hung_calls(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, false);
    hang(stage, dice);
    let closed = Instant::now();
    stage.daemon.close_stdin();
    ended(stage, &[0], true);
    if closed.elapsed() > DRAIN + Duration::from_secs(6) {
        let text = format!("the drain took {:?} of {DRAIN:?}", closed.elapsed());
        stage.tally.blame(Wrong::Other, text);
    }
}

fn hang(stage: &Stage, dice: &mut Dice) {
    for _ in 0..20 {
        let user = dice.pick(&stage.regulars);
        let server = dice.word(&["victim", "pack", "site", "feed"]);
        stage
            .daemon
            .send(stage.call(user, server, "hang", Fails(&["shutting_down"])));
    }
}

fn serving(stage: &Stage) -> i32 {
    stage.daemon.serving().expect("it lives")
}

fn terminated(stage: &Stage, dice: &mut Dice) {
    // Something to wait for, so that what is sent after the signal is read before the end.
    let user = dice.pick(&stage.regulars);
    let long = stage
        .call(user, "steady", "sleep", Success)
        .argument("ms", 1500);
    stage.ask(user, "steady", "echo", Success);
    stage.daemon.send(long);
    crowd(stage, dice, true);
    let pid = *dice.pick(&[stage.daemon.guardian, serving(stage)]);
    stage
        .daemon
        .signal(pid, *dice.pick(&[Signal::TERM, Signal::INT]));
    for _ in 0..50 {
        let user = dice.pick(&stage.regulars);
        let order = stage.call(user, dice.word(STEADY), "echo", Either(&["shutting_down"]));
        stage.daemon.send(order);
    }
    ended(stage, &[0], true);
}

fn terminated_twice(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, true);
    hang(stage, dice);
    stage.daemon.signal(stage.daemon.guardian, Signal::TERM);
    let ping = || Order {
        command: Some("ping"),
        ..Order::new("", json!({}), Either(&["shutting_down"]))
    };
    while stage
        .daemon
        .ask(ping())
        .is_some_and(|answer| answer.code() == "success")
    {}
    stage.daemon.signal(stage.daemon.guardian, Signal::TERM);
    ended(stage, &[143], true);
}

fn exits(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, true);
    stage.daemon.send(Order {
        command: Some("exit"),
        ..Order::new("", json!({}), Success)
    });
    ended(stage, &[0], true);
}

fn stdout_closes(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, true);
    stage.daemon.close_stdout();
    let user = dice.pick(&stage.regulars);
    let until = Instant::now() + PATIENCE;
    // An answer is needed to find out.
    while stage.daemon.end(Duration::from_millis(20)).is_none() && Instant::now() < until {
        stage
            .daemon
            .send(stage.call(user, "steady", "echo", Success));
    }
    ended(stage, &[0], false);
}

fn host_dies(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, true);
    hang(stage, dice);
    stage.daemon.close_stdout();
    stage.daemon.close_stdin();
    ended(stage, &[0], false);
}

fn daemon_killed(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, true);
    std::thread::sleep(Duration::from_micros(
        u64::try_from(dice.below(50_000)).expect("64 bits"),
    ));
    stage.daemon.signal(serving(stage), Signal::KILL);
    killed(stage);
}

fn guardian_killed(stage: &Stage, dice: &mut Dice) {
    crowd(stage, dice, true);
    std::thread::sleep(Duration::from_micros(
        u64::try_from(dice.below(50_000)).expect("64 bits"),
    ));
    stage.daemon.signal(stage.daemon.guardian, Signal::KILL);
    killed(stage);
}

fn killed(stage: &Stage) {
    if stage.daemon.end(PATIENCE).is_none() {
        stage.tally.blame(Wrong::Other, "the daemon does not end");
        stage.daemon.kill();
    }
    stage.daemon.ledger.let_go();
}
