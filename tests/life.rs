//! The life of the process: how it ends, and that nothing it started outlives it.

mod ground;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use ground::{Daemon, Ground, call, left_over, open, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A tool that never answers, and one that waits for a gate.
fn waiting(ground: &Ground) -> Value {
    json!({"on": {
        "tools/call:hang": [{"do": "hang"}],
        "tools/call:gated": [{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]
    }})
}

fn ping(daemon: &mut Daemon) -> ground::Answer {
    let task = daemon.command(json!({"command": "ping"}));
    daemon.answer(&task)
}

/// Waits until the daemon has noticed that it is to end.
fn await_the_drain(daemon: &mut Daemon) {
    wait_for("the drain", || ping(daemon).is_failure().then_some(()));
    ping(daemon).failure("shutting_down");
}

#[test]
fn the_end_of_input_lets_everything_read_be_answered() {
    let ground = Ground::new();
    let fake = ground.stdio("books", waiting(&ground), |_| {});
    let mut daemon = ground.daemon();
    let task = daemon.send("alice", call("books", "gated", json!({})));
    fake.wait_for_requests("tools/call:gated", 1);
    daemon.close_stdin();
    open(&ground.path("gate"));
    daemon.answer(&task).ok();
    daemon.finish();
}

#[test]
fn a_last_line_without_a_line_end_is_a_command() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let line = json!({"task_id": 7, "params": call("books", "echo", json!({"q": 1})), "user": {"userId": "alice"}});
    let output = ground.run(ground.command(), &line.to_string());
    let answer: Value = serde_json::from_str(output.trim_end()).expect("one answer line");
    assert_eq!(
        (&answer["task_id"], &answer["success"]),
        (&json!(7), &json!(true)),
        "{answer}"
    );
}

#[test]
fn the_end_of_input_waits_no_longer_than_drain_timeout() {
    let ground = Ground::new();
    ground.set("daemon_drain_timeout", "300ms");
    let fake = ground.stdio("books", waiting(&ground), |_| {});
    let mut daemon = ground.daemon();
    let task = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    daemon.close_stdin();
    daemon.answer(&task).failure("shutting_down");
    daemon.finish();
}

#[test]
fn a_first_signal_drains_and_refuses_new_commands() {
    for signal in [Signal::TERM, Signal::INT] {
        let ground = Ground::new();
        let fake = ground.stdio("books", waiting(&ground), |_| {});
        let mut daemon = ground.daemon();
        let task = daemon.send("alice", call("books", "gated", json!({})));
        fake.wait_for_requests("tools/call:gated", 1);
        daemon.signal(signal);
        await_the_drain(&mut daemon);
        daemon
            .ask("alice", call("books", "echo", json!({})))
            .failure("shutting_down");
        open(&ground.path("gate"));
        daemon.answer(&task).ok();
        assert_eq!(daemon.wait().code(), Some(0));
        daemon.assert_all_answered();
        daemon.assert_clean();
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    for (first, second, code) in [
        (Signal::TERM, Signal::TERM, 143),
        (Signal::TERM, Signal::INT, 130),
    ] {
        let ground = Ground::new();
        let fake = ground.stdio("books", waiting(&ground), |_| {});
        let mut daemon = ground.daemon();
        let task = daemon.send("alice", call("books", "hang", json!({})));
        fake.wait_for_requests("tools/call:hang", 1);
        daemon.signal(first);
        await_the_drain(&mut daemon);
        daemon.signal(second);
        daemon.answer(&task).failure("shutting_down");
        assert_eq!(daemon.wait().code(), Some(code));
        daemon.assert_all_answered();
        daemon.assert_clean();
    }
}

#[test]
fn a_signal_during_the_drain_after_the_end_of_input_ends_at_once() {
    let ground = Ground::new();
    let fake = ground.stdio("books", waiting(&ground), |_| {});
    let mut daemon = ground.daemon();
    let task = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    daemon.close_stdin();
    // Whichever of the two it notices first: the next signal meets a drain.
    wait_for("the end", || {
        let ended = daemon.has_ended();
        if !ended {
            daemon.signal(Signal::TERM);
        }
        ended.then_some(())
    });
    daemon.answer(&task).failure("shutting_down");
    assert_eq!(daemon.wait().code(), Some(143));
    daemon.assert_all_answered();
    daemon.assert_clean();
}

#[test]
fn exit_answers_and_ends_within_exit_timeout() {
    let ground = Ground::new();
    ground.set("daemon_exit_timeout", "300ms");
    let fake = ground.stdio("books", waiting(&ground), |_| {});
    let mut daemon = ground.daemon();
    let task = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    let exit = daemon.command(json!({"command": "exit"}));
    assert!(daemon.answer(&exit).ok()["message"].is_string());
    daemon.answer(&task).failure("shutting_down");
    assert_eq!(daemon.wait().code(), Some(0));
    daemon.assert_all_answered();
    daemon.assert_clean();
}

#[test]
fn a_closed_stdout_ends_the_daemon_and_its_servers() {
    let ground = Ground::new();
    let fake = ground.stdio("books", waiting(&ground), |_| {});
    let mut child = ground
        .command()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    for tool in ["echo", "hang"] {
        let line = json!({"task_id": tool, "params": call("books", tool, json!({})), "user": {"userId": "alice"}});
        writeln!(stdin, "{line}").expect("it reads");
    }
    stdout.read_line(&mut String::new()).expect("an answer");
    fake.wait_for_requests("tools/call:hang", 1);
    drop(stdout);
    wait_for("the end of the daemon", || {
        child.try_wait().expect("it can be waited for")
    });
    wait_for("the end of its servers", || {
        left_over(&ground.tag).is_empty().then_some(())
    });
}

/// A server below a shell, with a child of its own and one in a session of its own.
fn family(ground: &Ground) -> ground::Fake {
    let script = json!({"on": {
        "tools/call:spawn": [{"do": "spawn"}, {"do": "execute"}],
        "tools/call:spawn_apart": [{"do": "spawn", "setsid": true}, {"do": "execute"}],
        "tools/call:hang": [{"do": "hang"}]
    }});
    ground.stdio("books", script, |row| {
        let words: Vec<String> = serde_json::from_value(row.0["args"].clone()).expect("words");
        let program = row.0["command"].as_str().expect("a program").to_owned();
        row.set("command", "sh");
        let shell = r#"exec 3<&0; "$0" "$@" <&3 & wait"#;
        row.set(
            "args",
            json!([vec!["-c".to_owned(), shell.to_owned(), program], words].concat()),
        );
    })
}

/// Kills one of the processes the daemon consists of, in the middle of a call.
fn kill_amid_a_call(victim: impl Fn(&Daemon) -> i64) {
    let ground = Ground::new();
    let fake = family(&ground);
    let mut daemon = ground.daemon();
    for tool in ["spawn", "spawn_apart"] {
        daemon.ask("alice", call("books", tool, json!({}))).ok();
    }
    daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    let all = left_over(&ground.tag);
    assert!(
        all.len() >= 5,
        "the daemon, a shell, a server and its two children: {all:?}"
    );
    let victim = Pid::from_raw(i32::try_from(victim(&daemon)).expect("a pid")).expect("a pid");
    kill_process(victim, Signal::KILL).expect("it lives");
    daemon.wait();
    daemon.assert_clean();
}

#[test]
fn sigkill_of_the_daemon_leaves_no_process() {
    kill_amid_a_call(|daemon| i64::from(daemon.pid()));
}

#[test]
fn sigkill_of_the_process_below_that_serves_leaves_no_process() {
    kill_amid_a_call(Daemon::serving_pid);
}

#[test]
fn disconnect_ends_the_whole_family_of_a_wrapper() {
    let ground = Ground::new();
    let fake = family(&ground);
    let mut daemon = ground.daemon();
    for tool in ["spawn", "spawn_apart"] {
        daemon.ask("alice", call("books", tool, json!({}))).ok();
    }
    let family: Vec<i64> = fake
        .events()
        .iter()
        .filter_map(|line| line["child"].as_i64().or(line["pid"].as_i64()))
        .collect();
    daemon
        .ask(
            "alice",
            json!({"action": "disconnect_server", "server_name": "books"}),
        )
        .ok();
    for pid in family {
        wait_for(&format!("the end of {pid}"), || {
            ground::state_of(pid)
                .is_none_or(|state| state == "Z")
                .then_some(())
        });
    }
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn the_end_of_the_daemon_ends_the_whole_family_of_a_wrapper() {
    let ground = Ground::new();
    family(&ground);
    let mut daemon = ground.daemon();
    for tool in ["spawn", "spawn_apart"] {
        daemon.ask("alice", call("books", tool, json!({}))).ok();
    }
    daemon.finish();
}

#[test]
fn a_server_deaf_to_eof_and_term_is_killed_and_reaped() {
    let ground = Ground::new();
    let fake = ground.stdio(
        "books",
        json!({"ignore_eof": true, "term": "ignore"}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let pid = fake.served()[0];
    daemon
        .ask(
            "alice",
            json!({"action": "disconnect_server", "server_name": "books"}),
        )
        .ok();
    assert_eq!(fake.served_and("eof"), 1, "first its input was closed");
    assert_eq!(fake.served_and("term"), 1, "then it was told to end");
    wait_for("the end of the server", || {
        ground::state_of(pid).is_none().then_some(())
    });
    daemon.finish();
}

#[test]
fn a_server_that_stops_reading_does_not_hold_up_the_end() {
    let ground = Ground::new();
    let script = json!({"on": {"tools/call:deaf": [{"do": "stop_reading"}]}});
    let fake = ground.stdio("books", script, |_| {});
    let mut daemon = ground.daemon();
    let mut params = call("books", "deaf", json!({}));
    params["timeout_ms"] = 300.into();
    daemon.ask("alice", params).failure("call_timeout");
    assert_eq!(fake.requests("tools/call:deaf"), 1);
    // More than a pipe holds: whoever awaits the write waits for ever.
    let mut params = call("books", "echo", json!({"big": "x".repeat(1_000_000)}));
    params["timeout_ms"] = 300.into();
    daemon
        .ask("alice", params)
        .failure_in(&["call_timeout", "session_lost", "server_crashed"]);
    daemon.finish();
}

#[test]
fn the_ready_line_comes_first_and_only_where_asked_for() {
    let ground = Ground::new();
    let mut daemon = ground.daemon_with(&["--ready-line"]);
    assert_eq!(daemon.event()["type"], "ready");
    ping(&mut daemon).ok();
    daemon.finish();
    let mut daemon = ground.daemon();
    ping(&mut daemon).ok();
    assert!(daemon.events.is_empty());
    daemon.finish();
}
