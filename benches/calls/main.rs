//! What a call through the daemon costs, against the floor measured in the same run.
//!
//! `scripts/bench` runs it in release mode. Ratios carry over to another machine, times do not.
//! The targets beside the figures are ours: "must" is better than every program of the kind that we
//! measured, "aim" is what the design should make possible.

mod echo;
mod peer;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use peer::{Http, Lines, Listening, one_by_one};
use serde_json::{Value, json};

const SHORT: Duration = Duration::from_secs(3);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(tools) = words.get(1).and_then(|word| word.parse().ok()) {
        echo::TOOLS.store(tools, std::sync::atomic::Ordering::Relaxed);
    }
    match words.first().map(String::as_str) {
        Some("--echo-stdio") => return echo::serve_stdio(),
        Some("--echo-http") => return echo::serve_http(),
        _ => {}
    }
    if cfg!(debug_assertions) {
        println!("(a debug build: only a trial, the figures mean nothing)");
    }
    let http = Listening::start(&mut this_program("--echo-http"));
    let ground = Ground::new(http.1);
    println!("{:<58} {:>12} {:>10} {:>10}", "", "measured", "must", "aim");
    unpinned(&ground);
    large(&ground);
    at_once(&ground);
    connections(&ground);
    lists();
    // Last, for it binds this process, and so all it starts from here on.
    pin();
    let http = Listening::start(&mut this_program("--echo-http"));
    let ground = Ground::new(http.1);
    pinned(&ground);
    pinned_http(&ground);
}

fn this_program(mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.arg(mode);
    command
}

/// This process and all it will start run on one core.
fn pin() {
    let mut one = rustix::thread::CpuSet::new();
    one.set(0);
    rustix::thread::sched_setaffinity(None, &one).expect("a core");
}

fn show(name: &str, value: f64, unit: &str, must: &str, aim: &str) {
    let value = if value >= 1_000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    };
    println!("{name:<58} {value:>9} {unit:<2} {must:>10} {aim:>10}");
}

/// A home for daemons, whose store knows the two echo servers.
struct Ground {
    home: tempfile::TempDir,
    http: u16,
}

impl Ground {
    fn bare(http: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self { home, http }
    }

    fn new(http: u16) -> Self {
        let ground = Self::bare(http);
        let echo = std::env::current_exe().expect("our own path");
        ground.add(
            &json!({"name": "echo", "command": echo, "args": ["--echo-stdio"], "is_public": true}),
        );
        let url = format!("http://127.0.0.1:{http}/mcp");
        for (name, is_public) in [("far", true), ("own-far", false)] {
            ground.add(&json!({"name": name, "transport_type": "http", "url": url, "is_public": is_public}));
        }
        ground.add(&json!({"name": "own", "command": echo, "args": ["--echo-stdio"]}));
        ground
    }

    fn add(&self, row: &Value) {
        let mut command = self.command();
        command.args(["server", "add", "--json", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let stdin = child.stdin.take().expect("piped");
        serde_json::to_writer(stdin, row).expect("it reads");
        assert!(child.wait().expect("it ends").success());
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-client"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("MCP_CLIENT_DATA_DIR", self.home.path().join("data"));
        command
    }

    fn daemon(&self) -> Lines {
        Lines::start(&mut self.command())
    }

    /// A daemon that has answered a call of `server`.
    fn warm(&self, server: &str) -> Lines {
        let mut daemon = self.daemon();
        daemon.send(&through(0, server, "mcp", &small()));
        let answer = String::from_utf8(daemon.read()).expect("UTF-8");
        assert!(answer.contains(r#""success":true"#), "{answer}");
        daemon
    }

    fn floor(&self) -> Lines {
        let mut echo = Lines::start(&mut this_program("--echo-stdio"));
        echo.send(&direct(0, &small()));
        echo.read();
        echo
    }
}

/// The call everybody makes: 225 bytes there and back.
fn small() -> Value {
    json!({"name": "echo", "arguments": {"text": "x".repeat(180)}})
}

fn big(bytes: usize) -> Value {
    json!({"name": "big", "arguments": {"bytes": bytes}})
}

/// The call as a server reads it.
fn direct(id: usize, call: &Value) -> Vec<u8> {
    format!(
        "{}\n",
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call})
    )
    .into_bytes()
}

/// The call as a host asks for it.
fn through(id: usize, server: &str, form: &str, call: &Value) -> Vec<u8> {
    let mut params =
        json!({"server_name": server, "tool_name": call["name"], "arguments": call["arguments"]});
    if form == "mcp" {
        params["result"] = form.into();
    }
    format!(
        "{}\n",
        json!({"command": "call_tool", "task_id": id, "params": params, "user": {"userId": "u"}})
    )
    .into_bytes()
}

fn sequential(lines: &mut Lines, budget: Duration, most: usize, line: &[u8]) -> peer::Latencies {
    one_by_one(budget, most, |_| {
        lines.send(line);
        lines.skip();
    })
}

/// Seconds of CPU of the daemon for 10,000 calls.
fn cpu_of(daemon: &mut Lines, calls: usize, run: impl FnOnce(&mut Lines)) -> f64 {
    let before = daemon.cpu();
    run(daemon);
    (daemon.cpu() - before) * 10_000.0 / calls as f64
}

fn pinned(ground: &Ground) {
    println!("\nstdio, everything on one core");
    let call = small();
    let mut floor = ground.floor();
    let direct_times = sequential(&mut floor, SHORT, 50_000, &direct(1, &call));
    let direct_rate = floor.throughput(64, 200_000, |id| direct(id, &call));
    show("direct, one by one: p50", direct_times.p50(), "µs", "", "");
    show("direct, 64 in flight", direct_rate, "/s", "", "");

    let mut daemon = ground.daemon();
    let started = Instant::now();
    daemon.send(&through(0, "echo", "mcp", &call));
    daemon.skip();
    show(
        "start to the first answer, the server included",
        started.elapsed().as_secs_f64() * 1e3,
        "ms",
        "15",
        "8",
    );
    daemon.end();

    for (form, must, aim) in [
        ("mcp", ["30", "60"], ["15", "25"]),
        ("default", ["", ""], ["", ""]),
    ] {
        let mut daemon = ground.warm("echo");
        let times = sequential(&mut daemon, SHORT, 50_000, &through(1, "echo", form, &call));
        show(
            &format!("added p50 ({form} form)"),
            times.p50() - direct_times.p50(),
            "µs",
            must[0],
            aim[0],
        );
        show(
            &format!("added p99 ({form} form)"),
            times.p99() - direct_times.p99(),
            "µs",
            must[1],
            aim[1],
        );
        let line = through(1, "echo", form, &call);
        let alone = cpu_of(&mut daemon, 20_000, |daemon| {
            for _ in 0..20_000 {
                daemon.send(&line);
                daemon.skip();
            }
        });
        show(
            &format!("CPU for 10,000 calls, one by one ({form} form)"),
            alone,
            "s",
            "0.25",
            "0.12",
        );
        let mut rate = 0.0;
        let many = cpu_of(&mut daemon, 100_000, |daemon| {
            rate = daemon.throughput(64, 100_000, |id| through(id, "echo", form, &call));
        });
        show(
            &format!("CPU for 10,000 calls, 64 in flight ({form} form)"),
            many,
            "s",
            "0.08",
            "0.03",
        );
        show(
            &format!("share of the floor, 64 in flight ({form} form)"),
            rate / direct_rate,
            "",
            "",
            "",
        );
        daemon.end();
    }
    floor.end();
}

fn pinned_http(ground: &Ground) {
    println!("\nHTTP, everything on one core");
    let call = small();
    let body = direct(1, &call);
    let mut floor = Http::connect(ground.http, 1);
    let direct_times = one_by_one(SHORT, 30_000, |_| {
        floor.send(0, &body);
        floor.read(0);
    });
    let direct_rate = Http::connect(ground.http, 64).throughput(60_000, &body);
    show("direct, one by one: p50", direct_times.p50(), "µs", "", "");
    show("direct, 64 connections", direct_rate, "/s", "", "");
    let mut daemon = ground.warm("far");
    let times = sequential(&mut daemon, SHORT, 30_000, &through(1, "far", "mcp", &call));
    show(
        "added p50",
        times.p50() - direct_times.p50(),
        "µs",
        "50",
        "30",
    );
    show("added p99", times.p99() - direct_times.p99(), "µs", "", "");
    let rate = daemon.throughput(64, 30_000, |id| through(id, "far", "mcp", &call));
    show(
        "share of the floor, 64 in flight",
        rate / direct_rate,
        "",
        "0.25",
        "0.5",
    );
    daemon.end();
}

fn unpinned(ground: &Ground) {
    println!("\nstdio, all cores");
    let call = small();
    let mut floor = ground.floor();
    let direct_times = sequential(&mut floor, SHORT, 30_000, &direct(1, &call));
    let direct_rate = floor.throughput(64, 200_000, |id| direct(id, &call));
    floor.end();
    let mut daemon = ground.daemon();
    // An answered ping means that it has started.
    daemon.send(b"{\"command\":\"ping\"}\n");
    daemon.skip();
    show("memory, idle", daemon.memory("VmRSS:"), "MB", "14", "10");
    let times = sequential(
        &mut daemon,
        SHORT,
        30_000,
        &through(1, "echo", "mcp", &call),
    );
    show("added p50", times.p50() - direct_times.p50(), "µs", "", "");
    show("added p99", times.p99() - direct_times.p99(), "µs", "", "");
    let rate = daemon.throughput(64, 150_000, |id| through(id, "echo", "mcp", &call));
    show(
        "share of the floor, 64 in flight",
        rate / direct_rate,
        "",
        "0.25",
        "0.5",
    );
    show("calls a second, 64 in flight", rate, "/s", "", "");
    show(
        "memory after load",
        daemon.memory("VmRSS:"),
        "MB",
        "18",
        "12",
    );
    daemon.end();
}

fn large(ground: &Ground) {
    println!("\nlarge results, all cores");
    for (name, bytes) in [
        ("1 KB", 1_000),
        ("100 KB", 100_000),
        ("1 MB", 1_000_000),
        ("10 MB", 10_000_000),
    ] {
        let call = big(bytes);
        let mut floor = ground.floor();
        let direct_times = sequential(&mut floor, Duration::from_secs(2), 5_000, &direct(1, &call));
        floor.end();
        show(
            &format!("direct, {name}: p50"),
            direct_times.p50(),
            "µs",
            "",
            "",
        );
        for (form, must, aim) in [("mcp", "2.5", "1.8"), ("default", "4", "2.5")] {
            let mut daemon = ground.warm("echo");
            let times = sequential(
                &mut daemon,
                Duration::from_secs(2),
                5_000,
                &through(1, "echo", form, &call),
            );
            let (must, aim) = if bytes == 10_000_000 {
                (must, aim)
            } else {
                ("", "")
            };
            show(
                &format!("× direct, {name} ({form} form)"),
                times.p50() / direct_times.p50(),
                "×",
                must,
                aim,
            );
            if bytes == 10_000_000 {
                show(
                    &format!("peak memory, {name} ({form} form)"),
                    daemon.memory("VmHWM:"),
                    "MB",
                    "50",
                    "30",
                );
            }
            daemon.end();
        }
    }
}

fn at_once(ground: &Ground) {
    println!("\n64 calls of 20 ms at once");
    let call = json!({"name": "sleep", "arguments": {"ms": 20}});
    let body = direct(1, &call);
    let mut floor = ground.floor();
    let all: Vec<u8> = (0..64).flat_map(|id| direct(id, &call)).collect();
    let over_stdio = best_of_ten(|| sixty_four(&mut floor, &all));
    floor.end();
    let mut floor = Http::connect(ground.http, 64);
    let over_http = best_of_ten(|| {
        (0..64).for_each(|connection| floor.send(connection, &body));
        (0..64).for_each(|connection| floor.read(connection));
    });
    for (server, direct) in [("echo", over_stdio), ("far", over_http)] {
        let ideal = format!("direct, share of the ideal ({server})");
        show(&ideal, 0.020 / direct, "", "", "");
        let mut daemon = ground.warm(server);
        let all: Vec<u8> = (0..64)
            .flat_map(|id| through(id, server, "mcp", &call))
            .collect();
        let best = best_of_ten(|| sixty_four(&mut daemon, &all));
        let share = format!("share of direct ({server})");
        show(&share, direct / best, "", "0.95", "0.98");
        daemon.end();
    }
}

fn sixty_four(lines: &mut Lines, all: &[u8]) {
    lines.send(all);
    for _ in 0..64 {
        lines.skip();
    }
}

/// A list of all tools, when every catalog is at hand.
fn lists() {
    println!("\nlist_tools over 200 servers with 50 tools each");
    let http = Listening::start(this_program("--echo-http").arg("50"));
    let many = Ground::bare(http.1);
    let url = format!("http://127.0.0.1:{}/mcp", http.1);
    for number in 0..200 {
        let name = format!("far-{number}");
        many.add(&json!({"name": name, "transport_type": "http", "url": url, "is_public": true}));
    }
    let mut daemon = many.daemon();
    let line = b"{\"command\":\"list_tools\",\"user\":{\"userId\":\"u\"}}\n";
    daemon.send(line);
    let first = String::from_utf8(daemon.read()).expect("UTF-8");
    assert_eq!(first.matches("\"inputSchema\"").count(), 200 * 50);
    let times = sequential(&mut daemon, SHORT, 500, line);
    show("p50", times.p50() / 1e3, "ms", "10", "3");
    daemon.end();
}

/// What a connection of one more user costs.
fn connections(ground: &Ground) {
    const USERS: usize = 300;
    println!("\nmemory of {USERS} more connections, each");
    for (server, must, aim) in [("own", "30", "20"), ("own-far", "75", "40")] {
        let mut daemon = ground.daemon();
        let mut connect = |users: std::ops::Range<usize>| {
            for user in users {
                let line = String::from_utf8(through(user, server, "mcp", &small()));
                let line = line.expect("UTF-8");
                daemon.send(
                    line.replace(r#""userId":"u""#, &format!(r#""userId":"u{user}""#))
                        .as_bytes(),
                );
                let answer = String::from_utf8(daemon.read()).expect("UTF-8");
                assert!(answer.contains(r#""success":true"#), "{answer}");
            }
            daemon.memory("VmRSS:")
        };
        let before = connect(0..20);
        let after = connect(20..20 + USERS);
        let each = (after - before) * 1024.0 / USERS as f64;
        show(server, each, "KB", must, aim);
        daemon.end();
    }
}

/// Seconds of the fastest.
fn best_of_ten(mut run: impl FnMut()) -> f64 {
    let times = (0..10).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}
