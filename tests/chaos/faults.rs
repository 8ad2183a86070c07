//! Faults a daemon lives through. Each is injected while the load goes on, and is counted when what
//! it must lead to has been seen, or is held in the ledger.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::Order;
use crate::dice::Dice;
use crate::ground::{Mode, parent_of};
use crate::ledger::{Expect, Expect::Either, Expect::Fails, Expect::Success};
use crate::servers::STEADY;
use crate::stage::{CONFIG_TIMEOUT, Stage, TTL};
use crate::tally::Wrong;

pub struct Fault {
    pub name: &'static str,
    inject: fn(&Stage, &mut Dice),
}

impl Fault {
    /// How often a scene has it: what keeps a processor busy for a second, once.
    pub fn times(&self) -> usize {
        if self.name == "line without an end" {
            1
        } else {
            4
        }
    }

    /// Injects it and sees what comes of it. While the config host fails or all is shut down, no other
    /// fault is about: those would be hit too, in ways nobody could tell beforehand.
    pub fn inject(&self, stage: &Stage, dice: &mut Dice) {
        let hits_all = ["config host", "all connections"];
        if hits_all.iter().any(|name| self.name.starts_with(name)) {
            let _alone = stage.config.write();
            (self.inject)(stage, dice);
        } else {
            let _together = stage.config.read();
            (self.inject)(stage, dice);
        }
        stage.tally.fault(self.name);
    }
}

macro_rules! faults {
    ($($name:literal: $inject:expr,)*) => {
        &[$(Fault { name: $name, inject: $inject }),*]
    };
}

pub const FAULTS: &[Fault] = faults! {
    "server killed in a call": |stage, dice| dies(stage, dice, "victim", "die", CRASHED),
    "server killed before it runs a call": |stage, dice| dies(stage, dice, "victim", "die_early", CRASHED),
    "server exits in a call": |stage, dice| dies(stage, dice, "victim", "exit", CRASHED),
    "server leaves grandchildren and dies": |stage, dice| dies(stage, dice, "victim", "abandon", CRASHED),
    "server closes stdout": |stage, dice| dies(stage, dice, "victim", "mute", CRASHED),
    "line without an end": |stage, dice| endless(stage, dice),
    "kill -9 of a server": |stage, dice| killed(stage, dice, "victim", false),
    "kill -9 of a server below a wrapper": |stage, dice| killed(stage, dice, "pack", false),
    "kill -9 of a wrapper": |stage, dice| killed(stage, dice, "pack", true),
    "server stopped": |stage, _| stopped(stage),
    "hung call runs out of time": |stage, _| times_out(stage, "victim"),
    "hung call over HTTP runs out of time": |stage, dice| times_out(stage, dice.word(&["site", "feed"])),
    "hung call cancelled": |stage, dice| cancelled(stage, dice.word(&["victim", "pack", "site", "feed"])),
    "server stops reading": |stage, _| deafened(stage),
    "answer too large": |stage, dice| odd(stage, dice.word(&["victim", "site", "feed"]), "large", Fails(&["result_too_large"])),
    "noise on stdout": |stage, _| odd(stage, "victim", "babble", Success),
    "answered twice": |stage, _| odd(stage, "victim", "twice", Success),
    "answer to nobody": |stage, _| odd(stage, "victim", "stranger", Success),
    "flood of progress": |stage, _| odd(stage, "victim", "progress", Success),
    "flood of list changes": |stage, _| odd(stage, "victim", "changed", Success),
    "secret and flood on stderr": |stage, _| odd(stage, "victim", "logs", Success),
    "question on a private connection": |stage, _| odd(stage, "victim", "question", Success),
    "JSON-RPC error": |stage, _| odd(stage, "victim", "refuse", Fails(&["server_error"])),
    "server that never starts": |stage, _| doomed(stage),
    "slow start": |stage, _| slow_start(stage),
    "session forgotten": |stage, dice| odd(stage, dice.word(&["site", "feed"]), "forget", Success),
    "connection reset": |stage, dice| odd(stage, dice.word(&["site", "feed"]), "reset", Fails(&["session_lost"])),
    "bad gateway": |stage, dice| odd(stage, dice.word(&["site", "feed"]), "bad_gateway", Fails(&["server_error"])),
    "redirect": |stage, dice| odd(stage, dice.word(&["site", "feed"]), "redirect", Fails(&["connect_failed"])),
    "stream cut inside a character": |stage, dice| odd(stage, dice.word(&["site", "feed"]), "cut_stream", Fails(&["session_lost"])),
    "garbage instead of HTTP": |stage, dice| odd(stage, dice.word(&["site", "feed"]), "garbage", Fails(&["session_lost", "protocol_error"])),
    "credential rotated": |stage, dice| rotated(stage, dice),
    "credential taken away": |stage, dice| taken_away(stage, dice),
    "definition changed": |stage, dice| redefined(stage, dice),
    "server disabled": |stage, _| disabled(stage),
    "server removed": |stage, _| removed(stage),
    "disconnected under load": |stage, dice| stage_action(stage, dice, "disconnect_server"),
    "tools refreshed under load": |stage, dice| stage_action(stage, dice, "refresh_tools"),
    "reconnected under load": |stage, dice| stage_action(stage, dice, "connect_server"),
    "all connections shut down under load": |stage, _| shut_down(stage),
    "server deaf to the end": |stage, _| deaf(stage),
    "config host fails": |stage, dice| no_config(stage, failing(dice)),
    "config host answers half": |stage, dice| no_config(stage, dice.pick(&[Mode::Half, Mode::Cut]).clone()),
    "config host silent": |stage, _| no_config(stage, Mode::Silent),
    "config host refuses": |stage, dice| refused(stage, dice),
    "host reads slowly": |stage, dice| slow_host(stage, dice),
    "host floods": |stage, dice| flood(stage, dice),
    "one id for two commands": |stage, dice| one_id(stage, dice),
    "broken lines": |stage, dice| broken_lines(stage, dice),
};

const CRASHED: &[&str] = &["server_crashed", "session_lost"];
/// Of calls that are on a connection when it dies, or come just then.
const COMPANIONS: &[&str] = &[
    "server_crashed",
    "session_lost",
    "result_too_large",
    "protocol_error",
    "call_timeout",
];
/// Of a short deadline: on a busy machine it may end before the call has left.
const OUT_OF_TIME: &[&str] = &[
    "call_timeout",
    "session_lost",
    "server_crashed",
    "cancelled",
    "starting",
];

/// A new user's connection ends in a call. Its other calls are answered too, and the next one works.
fn dies(stage: &Stage, dice: &mut Dice, server: &str, tool: &str, codes: &'static [&'static str]) {
    let user = stage.user();
    // A grandchild that holds stdout hides that the server has closed it.
    let may_nest = tool != "mute" && dice.below(2) == 0;
    stage.ask(
        &user,
        server,
        if may_nest { "nest" } else { "echo" },
        Success,
    );
    companions(stage, dice, &user, server);
    stage
        .daemon
        .ask(stage.call(&user, server, tool, Fails(codes)).unproved());
    stage.ask(&user, server, "echo", Success);
}

/// Nobody can tell what is within the line: calls on that connection fail, until it is given up.
fn endless(stage: &Stage, dice: &mut Dice) {
    let user = stage.user();
    stage.ask(&user, "victim", "echo", Success);
    for _ in 0..dice.below(4) {
        let call = stage.call(&user, "victim", "sleep", Either(COMPANIONS));
        stage
            .daemon
            .send(call.argument("ms", 100).with("timeout_ms", 2000));
    }
    // An answer of another call may stand in the middle of it.
    let codes = Fails(&["result_too_large", "protocol_error"]);
    stage.ask(&user, "victim", "endless", codes);
    let again = || {
        stage
            .call(&user, "victim", "echo", Either(COMPANIONS))
            .with("timeout_ms", 2000)
    };
    let works = |_: &usize| {
        stage
            .daemon
            .ask(again())
            .is_some_and(|answer| answer.code() == "success")
    };
    if !(0..20).any(|time| works(&time)) {
        stage.tally.blame(
            Wrong::Other,
            "no new connection after a line without an end",
        );
    }
}

fn companions(stage: &Stage, dice: &mut Dice, user: &str, server: &str) {
    for _ in 0..dice.below(6) {
        let call = stage.call(user, server, "sleep", Either(COMPANIONS));
        stage.daemon.send(call.argument("ms", dice.below(400)));
    }
}

fn killed(stage: &Stage, dice: &mut Dice, server: &str, wrapper: bool) {
    let user = stage.user();
    let hung = stage.call(&user, server, "hang", Fails(CRASHED)).watched();
    let (run, task) = (marker_only(&hung), stage.daemon.send(hung));
    stage.await_run(&run);
    // Asked while a call is running there, so that it is the process that serves that call.
    let Some(pid) = pid_of(stage, &user, server) else {
        return;
    };
    companions(stage, dice, &user, server);
    let victim = if wrapper {
        parent_of(pid).unwrap_or(pid)
    } else {
        pid
    };
    stage
        .daemon
        .signal(i32::try_from(victim).expect("a pid"), Signal::KILL);
    stage.daemon.await_answer(&task);
    stage.ask(&user, server, "echo", Success);
}

/// The part of an order that says which journal line is waited for.
fn marker_only(order: &Order) -> Order {
    Order::new("", order.params.clone(), Success)
}

fn pid_of(stage: &Stage, user: &str, server: &str) -> Option<i64> {
    let answer = stage.ask(user, server, "pid", Success)?;
    answer.content().parse().ok()
}

fn stopped(stage: &Stage) {
    let user = stage.user();
    let Some(pid) = pid_of(stage, &user, "victim") else {
        return;
    };
    let pid = i32::try_from(pid).expect("a pid");
    stage.daemon.signal(pid, Signal::STOP);
    // An idle connection may have been closed just before: then a new one serves the call.
    let call = stage.call(&user, "victim", "echo", Either(OUT_OF_TIME));
    stage.daemon.ask(call.with("timeout_ms", 250));
    // Its answer says that the death has been noticed.
    let last = stage.call(&user, "victim", "echo", Either(CRASHED));
    let task = stage.daemon.send(last.watched());
    stage.daemon.signal(pid, Signal::KILL);
    stage.daemon.await_answer(&task);
    stage.ask(&user, "victim", "echo", Success);
}

fn times_out(stage: &Stage, server: &str) {
    let user = stage.user();
    stage.ask(&user, server, "echo", Success);
    let call = stage.call(&user, server, "hang", Fails(OUT_OF_TIME));
    stage.daemon.ask(call.with("timeout_ms", 200));
    stage.ask(&user, server, "echo", Success);
}

fn cancelled(stage: &Stage, server: &str) {
    let user = stage.user();
    let hung = stage
        .call(&user, server, "hang", Fails(&["cancelled"]))
        .watched();
    let (run, task) = (marker_only(&hung), stage.daemon.send(hung));
    stage.await_run(&run);
    let target: Value = serde_json::from_str(&task).expect("JSON text");
    let cancel = Order::new(&user, json!({"target": target}), Success);
    stage.daemon.ask(Order {
        command: Some("cancel"),
        ..cancel
    });
    stage.daemon.await_answer(&task);
    stage.ask(&user, server, "echo", Success);
}

/// Calls pile up in the pipe of a server that does not read; another user's go on.
fn deafened(stage: &Stage) {
    let user = stage.user();
    stage.ask(&user, "victim", "echo", Success);
    let deafen = stage
        .call(&user, "victim", "deafen", Fails(OUT_OF_TIME))
        .watched();
    let (run, task) = (
        marker_only(&deafen),
        stage.daemon.send(deafen.with("timeout_ms", 1000)),
    );
    stage.await_run(&run);
    for _ in 0..8 {
        let call = stage.call(&user, "victim", "echo", Fails(OUT_OF_TIME));
        stage.daemon.send(
            call.argument("text", "y".repeat(40_000))
                .with("timeout_ms", 1000),
        );
    }
    stage.daemon.await_answer(&task);
    let server = json!({"action": "disconnect_server", "server_name": "victim", "force": true});
    stage.daemon.send(Order::new(&user, server, Success));
    stage.ask(&user, "victim", "echo", Success);
}

/// A call that goes its odd way and harms nobody: the next one works.
fn odd(stage: &Stage, server: &str, tool: &str, expect: Expect) {
    let user = stage.user();
    stage.ask(&user, server, "echo", Success);
    let call = stage.call(&user, server, tool, expect);
    let call = call.with("progress", tool == "progress");
    stage.daemon.ask(call);
    stage.ask(&user, server, "echo", Success);
}

fn doomed(stage: &Stage) {
    let user = stage.user();
    for _ in 0..10 {
        let codes = &["connect_failed", "server_crashed", "circuit_open"];
        stage.ask(&user, "doomed", "echo", Fails(codes));
    }
}

fn slow_start(stage: &Stage) {
    let user = stage.user();
    stage.act(&user, json!({"action": "list_servers"}), Success);
    let call = stage.call(
        &user,
        "sleepy",
        "echo",
        Fails(&["starting", "call_timeout"]),
    );
    stage.daemon.ask(call.with("timeout_ms", 200));
    stage.ask(&user, "sleepy", "echo", Success);
}

/// A regular's secret changes while it is used. Once the change is in force only the new one runs.
fn rotated(stage: &Stage, dice: &mut Dice) {
    let user = dice.pick(&stage.regulars).clone();
    let server = dice.word(&["steady", "web", "stream"]);
    let secret = stage.renew(&user, server);
    std::thread::sleep(TTL * 2);
    let answer = stage.ask(&user, server, "whoami", Success);
    if let Some(answer) =
        answer.filter(|answer| answer.code() == "success" && answer.content() != secret)
    {
        let text = format!(
            "{user} has {secret} at {server} and called with {}",
            answer.content()
        );
        stage.tally.blame(Wrong::Misrouted, text);
    }
}

fn taken_away(stage: &Stage, dice: &mut Dice) {
    let user = stage.user();
    let server = dice.word(&["steady", "web", "victim"]);
    stage.ask(&user, server, "echo", Success);
    stage.ground.host.remove_user_credentials(&user, server);
    std::thread::sleep(TTL * 2);
    stage.ask(&user, server, "echo", Fails(&["credentials_required"]));
}

/// Every connection of the load's server is superseded, and no call of the load may notice.
fn redefined(stage: &Stage, dice: &mut Dice) {
    let host = &stage.ground.host;
    let mut environment = host.server("steady")["env_template"].clone();
    environment["VERSION"] = dice.roll().to_string().into();
    host.change_server("steady", "env_template", environment);
    std::thread::sleep(TTL);
    // Not again before everybody has it: a call puts up with three changes while it connects, and no more.
    for user in &stage.regulars {
        stage.ask(user, "steady", "echo", Success);
    }
}

fn disabled(stage: &Stage) {
    let _alone = stage.toggling.lock();
    let user = stage.user();
    stage.ask(&user, "toggle", "echo", Success);
    stage
        .ground
        .host
        .change_server("toggle", "is_enabled", false);
    std::thread::sleep(TTL * 2);
    stage.ask(&user, "toggle", "echo", Fails(&["server_disabled"]));
    stage
        .ground
        .host
        .change_server("toggle", "is_enabled", true);
    std::thread::sleep(TTL * 2);
    stage.ask(&user, "toggle", "echo", Success);
}

fn removed(stage: &Stage) {
    let _alone = stage.toggling.lock();
    let user = stage.user();
    let row = stage.ground.host.server("toggle");
    stage.ask(&user, "toggle", "echo", Success);
    stage.ground.host.remove_server("toggle");
    std::thread::sleep(TTL * 2);
    stage.ask(&user, "toggle", "echo", Fails(&["server_not_found"]));
    stage.ground.host.add_server(row);
    std::thread::sleep(TTL * 2);
    stage.ask(&user, "toggle", "echo", Success);
}

fn stage_action(stage: &Stage, dice: &mut Dice, action: &str) {
    let user = dice.pick(&stage.regulars);
    let params = json!({"action": action, "server_name": dice.word(STEADY)});
    let weather = stage.daemon.ledger.foul("cancelled");
    stage.act(user, params, Success);
    stage.daemon.ledger.fair(weather, Duration::ZERO);
}

/// Who waits for a connection that is still starting is answered `cancelled`; who comes after the
/// answer finds a new one.
fn shut_down(stage: &Stage) {
    let weather = stage.daemon.ledger.foul("cancelled");
    stage.act("", json!({"action": "shutdown"}), Success);
    stage.daemon.ledger.fair(weather, Duration::ZERO);
}

/// It ignores the end of its input and SIGTERM: SIGKILL ends it.
fn deaf(stage: &Stage) {
    let user = stage.user();
    stage.ask(&user, "deaf", "echo", Success);
    let params = json!({"action": "disconnect_server", "server_name": "deaf", "force": true});
    // Not waited for: the config host may fail before it is read.
    stage
        .daemon
        .send(Order::new("", params, Either(&["config_unavailable"])));
}

fn failing(dice: &mut Dice) -> Mode {
    dice.pick(&[Mode::Status(500), Mode::Status(503), Mode::Code(500)])
        .clone()
}

/// Who is known goes on with what was known; who is not is told why.
fn no_config(stage: &Stage, mode: Mode) {
    let user = stage.user();
    let is_silent = mode == Mode::Silent;
    stage.ground.host.be(mode);
    stage.ask(&user, "victim", "echo", Fails(&["config_unavailable"]));
    stage.ground.host.be(Mode::Well);
    if is_silent {
        // Questions that it left open end with what was known before, and only then.
        std::thread::sleep(CONFIG_TIMEOUT);
    }
    stage.ask(&user, "victim", "echo", Success);
}

/// Nobody's snapshot may be used any more.
fn refused(stage: &Stage, dice: &mut Dice) {
    let user = stage.user();
    stage.ask(&user, "victim", "echo", Success);
    let weather = stage.daemon.ledger.foul("config_unauthorized");
    let refusal = [Mode::Status(401), Mode::Status(403), Mode::Code(401)];
    stage.ground.host.be(dice.pick(&refusal).clone());
    std::thread::sleep(TTL * 2);
    stage.ask(&user, "victim", "echo", Fails(&["config_unauthorized"]));
    stage.ground.host.be(Mode::Well);
    stage
        .daemon
        .ledger
        .fair(weather, Duration::from_millis(500));
    stage.ask(&user, "victim", "echo", Either(&["config_unauthorized"]));
    std::thread::sleep(TTL);
    stage.warm_up();
}

/// Answers pile up, commands wait to be read, and all of it comes out in the end.
fn slow_host(stage: &Stage, dice: &mut Dice) {
    stage.daemon.read_no_more(true);
    std::thread::sleep(Duration::from_millis(
        300 + u64::try_from(dice.below(700)).expect("64 bits"),
    ));
    stage.daemon.read_no_more(false);
}

fn flood(stage: &Stage, dice: &mut Dice) {
    let user = stage.user();
    for _ in 0..400 {
        let server = dice.word(STEADY);
        stage
            .daemon
            .send(stage.call(&user, server, "echo", Either(&["overloaded"])));
    }
}

fn one_id(stage: &Stage, dice: &mut Dice) {
    let task = json!(stage.daemon.task()).to_string();
    for _ in 0..2 {
        let user = dice.pick(&stage.regulars);
        let order = stage.call(user, dice.word(STEADY), "echo", Success);
        stage.daemon.send_as(&task, order);
    }
}

fn broken_lines(stage: &Stage, dice: &mut Dice) {
    let lines: [(&[u8], &[&str]); 7] = [
        (b"{\"task_id\":", &["invalid_json"]),
        (b"no JSON at all", &["invalid_json"]),
        (
            b"{\"command\":\"ping\",\"x\":\"\xff\xfe\"}",
            &["invalid_json"],
        ),
        (b"[1,2,3]", &["invalid_command"]),
        (b"\"ping\"", &["invalid_command"]),
        (b"{\"command\":7}", &["invalid_command"]),
        (b"{\"command\":\"fly\"}", &["unknown_action"]),
    ];
    for (line, codes) in lines {
        if dice.below(2) == 0 {
            stage.daemon.raw(line, codes);
        }
    }
    if dice.below(8) == 0 {
        stage.daemon.raw(&vec![b'z'; 17 << 20], &["line_too_long"]);
    }
}
