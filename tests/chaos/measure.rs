//! `scripts/chaos --measure`: what the promises of docs/reliability.md come to on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::daemon::{Order, PATIENCE};
use crate::ledger::Expect::{Either, Fails, Success};
use crate::processes::{descendants, holdings, processor_time};
use crate::stage::{Stage, wait_until};
use crate::tally::{Tally, Wrong};

/// Room for everything that is measured.
const SETTINGS: &[(&str, &str)] = &[
    ("pool_max_connections", "4000"),
    ("pool_max_per_server", "4000"),
    ("pool_max_in_flight", "64"),
];

type Measure = fn(&Arc<Tally>);

pub fn all(tally: &Arc<Tally>) {
    let measures: [(&str, Measure); 7] = [
        ("kill -9 of a server in a call", server_killed),
        ("kill -9 of the daemon with 50 trees", daemon_killed),
        ("end of input", input_ends),
        ("slow reader", slow_reader),
        ("dead server", dead_server),
        ("bad neighbours", bad_neighbours),
        ("many children", many_children),
    ];
    for (name, measure) in measures {
        tally.scene(format!("measuring: {name}"));
        println!("{name}:");
        measure(tally);
    }
}

struct Sample(Vec<Duration>);

impl Sample {
    fn percentile(&mut self, percent: usize) -> Duration {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        self.0
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }

    fn print(&mut self, what: &str) {
        let [half, most, all] = [50, 99, 100].map(|percent| self.percentile(percent));
        println!(
            "    {what}: p50 {half:.1?}, p99 {most:.1?}, max {all:.1?} ({} times)",
            self.0.len()
        );
    }
}

fn end(stage: &Stage) {
    stage.daemon.close_stdin();
    if stage.daemon.end(PATIENCE).is_none() {
        stage.tally.blame(Wrong::Other, "the daemon does not end");
        stage.daemon.kill();
    }
    stage.daemon.ledger.lost();
    stage.check_nothing_left(Duration::from_secs(2));
}

fn server_killed(tally: &Arc<Tally>) {
    let stage = Stage::new(tally, SETTINGS);
    let (mut answered, mut again) = (Sample(vec![]), Sample(vec![]));
    for _ in 0..60 {
        let user = stage.user();
        let pid = stage.ask(&user, "victim", "pid", Success);
        let Some(pid) = pid.and_then(|answer| answer.content().parse().ok()) else {
            continue;
        };
        let hung = || {
            stage
                .call(&user, "victim", "hang", Fails(&["server_crashed"]))
                .watched()
        };
        let calls: Vec<Order> = (0..4).map(|_| hung()).collect();
        let runs: Vec<Order> = calls
            .iter()
            .map(|call| Order::new("", call.params.clone(), Success))
            .collect();
        let tasks: Vec<String> = calls
            .into_iter()
            .map(|call| stage.daemon.send(call))
            .collect();
        runs.iter().for_each(|run| stage.await_run(run));
        let killed = Instant::now();
        stage.daemon.signal(pid, Signal::KILL);
        for task in tasks {
            stage.daemon.await_answer(&task);
            answered.0.push(killed.elapsed());
        }
        if let Some(answer) = stage.ask(&user, "victim", "echo", Success) {
            again.0.push(answer.after);
        }
    }
    answered.print("from the kill to `server_crashed`");
    again.print("the next call, a start included");
    end(&stage);
}

fn daemon_killed(tally: &Arc<Tally>) {
    let mut gone = Sample(vec![]);
    for round in 0..10_u64 {
        let stage = Stage::new(tally, SETTINGS);
        let users: Vec<String> = (0..50).map(|_| stage.user()).collect();
        let tasks = users.iter().map(|user| {
            stage
                .daemon
                .send(stage.call(user, "pack", "nest", Success).watched())
        });
        let tasks: Vec<String> = tasks.collect();
        for task in tasks {
            stage.daemon.await_answer(&task);
        }
        for user in &users {
            stage
                .daemon
                .send(stage.call(user, "pack", "echo", Either(&["shutting_down"])));
        }
        let serving = stage.daemon.serving().expect("it lives");
        let below = descendants(stage.daemon.guardian);
        std::thread::sleep(Duration::from_millis(round * 3));
        let killed = Instant::now();
        stage.daemon.signal(serving, Signal::KILL);
        let lives = |pid: &i32| std::fs::exists(format!("/proc/{pid}")).unwrap_or(true);
        wait_until(PATIENCE, || {
            let _ = stage.daemon.end(Duration::ZERO);
            !below.iter().any(lives)
        });
        gone.0.push(killed.elapsed());
        let _ = stage.daemon.end(PATIENCE);
        stage.daemon.ledger.let_go();
        stage.check_nothing_left(Duration::from_secs(2));
    }
    gone.print("until the last of some 200 processes is gone");
}

fn input_ends(tally: &Arc<Tally>) {
    for (tool, expect, what) in [
        (
            "sleep",
            Success,
            "500 calls of 1 s running: all answered, and exit, after",
        ),
        (
            "hang",
            Fails(&["shutting_down"]),
            "500 calls hung: all answered, and exit, after",
        ),
    ] {
        let stage = Stage::new(tally, SETTINGS);
        let users: Vec<String> = (0..10).map(|_| stage.user()).collect();
        for user in &users {
            stage.ask(user, "victim", "echo", Success);
        }
        for number in 0..500 {
            let call = stage.call(&users[number % users.len()], "victim", tool, expect);
            stage.daemon.send(call.argument("ms", 1000));
        }
        let closed = Instant::now();
        end(&stage);
        println!("    {what} {:.1?}", closed.elapsed());
    }
}

fn slow_reader(tally: &Arc<Tally>) {
    const STALL: Duration = Duration::from_secs(30);
    let stage = Stage::new(tally, SETTINGS);
    for user in &stage.regulars {
        stage.ask(user, "steady", "echo", Success);
    }
    let serving = stage.daemon.serving().expect("it lives");
    let resident = || holdings(serving).map_or(0, |now| now.resident);
    let (before, mut most) = (resident(), 0);
    let over = AtomicBool::new(false);
    let mut sent = 0;
    std::thread::scope(|scope| {
        stage.daemon.read_no_more(true);
        let writing = scope.spawn(|| {
            let mut sent = 0;
            while !over.load(Ordering::SeqCst) {
                let user = &stage.regulars[sent % stage.regulars.len()];
                let call = stage.call(user, "steady", "echo", Either(&["overloaded"]));
                stage.daemon.send(call.argument("text", "z".repeat(10_000)));
                sent += 1;
            }
            sent
        });
        let until = Instant::now() + STALL;
        while Instant::now() < until {
            most = most.max(resident());
            std::thread::sleep(Duration::from_millis(100));
        }
        over.store(true, Ordering::SeqCst);
        stage.daemon.read_no_more(false);
        sent = writing.join().expect("it writes");
    });
    let grown = most.saturating_sub(before) / 1024 / 1024;
    println!(
        "    {STALL:?} without reading: {sent} commands written before stdin was full, memory grew by {grown} MiB"
    );
    stage.daemon.ledger.wait_below(1, PATIENCE);
    end(&stage);
}

fn dead_server(tally: &Arc<Tally>) {
    const CALLS: u32 = 1000;
    let stage = Stage::new(tally, SETTINGS);
    let user = stage.user();
    let codes = Fails(&["connect_failed", "server_crashed", "circuit_open"]);
    stage.ask(&user, "doomed", "echo", codes);
    let serving = stage.daemon.serving().expect("it lives");
    let used = || processor_time(serving).unwrap_or_default();
    let (start, before) = (Instant::now(), used());
    let mut took = Sample(vec![]);
    for _ in 0..CALLS {
        if let Some(answer) = stage.ask(&user, "doomed", "echo", codes) {
            took.0.push(answer.after);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let journal = std::fs::read_to_string(stage.ground.path("doomed.journal")).unwrap_or_default();
    let starts = journal.matches(r#""event":"start""#).count();
    println!(
        "    {CALLS} calls in {:.0?}: {starts} starts, {:.1?} of processor time a call",
        start.elapsed(),
        (used() - before) / CALLS
    );
    took.print("an answer");
    end(&stage);
}

/// What 17 users see of a server while others misbehave.
fn bad_neighbours(tally: &Arc<Tally>) {
    let stage = Stage::new(tally, SETTINGS);
    let users: Vec<String> = (0..17).map(|_| stage.user()).collect();
    for user in &users {
        stage.ask(user, "steady", "echo", Success);
    }
    let mut alone = honest(&stage, &users);
    alone.print("17 users alone");
    let over = AtomicBool::new(false);
    let mut among = Sample(vec![]);
    std::thread::scope(|scope| {
        for tool in ["hang", "progress", "large"] {
            let (stage, over) = (&stage, &over);
            scope.spawn(move || {
                let user = stage.user();
                while !over.load(Ordering::SeqCst) {
                    let call = stage.call(
                        &user,
                        "victim",
                        tool,
                        Either(&["call_timeout", "result_too_large"]),
                    );
                    stage.daemon.ask(call.with("timeout_ms", 1000));
                }
            });
        }
        among = honest(&stage, &users);
        over.store(true, Ordering::SeqCst);
    });
    among.print("beside a tarpit, a flooder and a giant");
    end(&stage);
}

fn honest(stage: &Stage, users: &[String]) -> Sample {
    let mut all = Sample(vec![]);
    std::thread::scope(|scope| {
        let threads: Vec<_> = users
            .iter()
            .map(|user| {
                scope.spawn(move || {
                    let mut took = vec![];
                    for _ in 0..150 {
                        if let Some(answer) = stage.ask(user, "steady", "echo", Success) {
                            took.push(answer.after);
                        }
                        std::thread::sleep(Duration::from_millis(30));
                    }
                    took
                })
            })
            .collect();
        for thread in threads {
            all.0.extend(thread.join().expect("it asks"));
        }
    });
    all
}

fn many_children(tally: &Arc<Tally>) {
    const STARTING: Duration = Duration::from_secs(30);
    const MOST: usize = 2000;
    let stage = Stage::new(tally, SETTINGS);
    stage.ask(&stage.user(), "steady", "echo", Success);
    let serving = stage.daemon.serving().expect("it lives");
    let before = holdings(serving).map_or(0, |now| now.resident);
    let start = Instant::now();
    let mut children = 1;
    while start.elapsed() < STARTING
        && children < MOST
        && stage.daemon.ledger.wait_below(16, PATIENCE)
    {
        stage
            .daemon
            .send(stage.call(&stage.user(), "steady", "echo", Success));
        children += 1;
    }
    stage.daemon.ledger.wait_below(1, PATIENCE);
    let took = start.elapsed();
    let resident = holdings(serving).map_or(0, |now| now.resident);
    let used = || processor_time(serving).unwrap_or_default();
    let busy = used();
    std::thread::sleep(Duration::from_secs(5));
    let idle = (used() - busy).as_secs_f64() / 5.0 * 100.0;
    let each = resident.saturating_sub(before) / 1024 / u64::try_from(children).expect("64 bits");
    println!(
        "    {children} children started in {took:.0?}: the daemon takes {} MiB, {each} KiB a child; idle it uses {idle:.1} % of a core",
        resident / 1024 / 1024
    );
    let closed = Instant::now();
    end(&stage);
    println!(
        "    all ended {:.1?} after the end of input",
        closed.elapsed()
    );
}
