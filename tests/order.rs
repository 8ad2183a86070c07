//! What happens side by side, what waits for what, and when a wait ends.

mod ground;

use ground::{Ground, call, open, wait_for};
use serde_json::{Value, json};

/// A tool that waits for a gate, and one that never answers.
fn script(ground: &Ground) -> Value {
    json!({"on": {
        "tools/call:gated": [{"do": "until", "file": ground.path("gate")}, {"do": "execute"}],
        "tools/call:hang": [{"do": "hang"}]
    }})
}

/// A server whose start waits for a gate.
fn slow_start(ground: &Ground) -> Value {
    json!({"on": {"start": [{"do": "until", "file": ground.path("gate")}]}})
}

fn connect(server: &str) -> Value {
    json!({"action": "connect_server", "server_name": server})
}

#[test]
fn a_slow_call_holds_up_nobody() {
    let ground = Ground::new();
    let fake = ground.stdio("books", script(&ground), |_| {});
    let mut daemon = ground.daemon();
    let slow = daemon.send("alice", call("books", "gated", json!({})));
    fake.wait_for_requests("tools/call:gated", 1);
    for n in 0..10 {
        daemon
            .ask("alice", call("books", "echo", json!({"n": n})))
            .ok();
        daemon
            .ask("bob", call("books", "echo", json!({"n": n})))
            .ok();
    }
    open(&ground.path("gate"));
    daemon.answer(&slow).ok();
    daemon.finish();
}

#[test]
fn a_command_sees_the_changes_its_user_asked_for_before_it_and_others_do_not_wait() {
    let ground = Ground::new();
    let fake = ground.stdio("slow", slow_start(&ground), |_| {});
    let mut daemon = ground.daemon();
    let connecting = daemon.send("alice", connect("slow"));
    let seen = daemon.send("alice", json!({"action": "list_servers"}));
    wait_for("the start", || (fake.starts() == 1).then_some(()));
    let other = daemon.ask("bob", json!({"action": "list_servers"}));
    assert_eq!(
        other.ok()["servers"][0]["connected"],
        false,
        "bob does not wait for alice"
    );
    let ping = daemon.command(json!({"command": "ping", "user": {"userId": "alice"}}));
    daemon.answer(&ping).ok();
    open(&ground.path("gate"));
    assert_eq!(
        daemon.answer(&seen).ok()["servers"][0]["connected"],
        true,
        "alice sees what she asked for"
    );
    assert!(
        daemon.answer(&connecting).ok()["tools_count"]
            .as_u64()
            .is_some_and(|count| count > 0)
    );
    daemon.finish();
}

#[test]
fn the_hold_of_a_changing_command_is_bounded() {
    let ground = Ground::new();
    ground.set("daemon_barrier_timeout", "200ms");
    ground.stdio("slow", slow_start(&ground), |_| {});
    let mut daemon = ground.daemon();
    let connecting = daemon.send("alice", connect("slow"));
    let listed = daemon.ask("alice", json!({"action": "list_servers"}));
    assert_eq!(listed.ok()["servers"][0]["status"], "connecting");
    open(&ground.path("gate"));
    daemon.answer(&connecting).ok();
    daemon.finish();
}

#[test]
fn a_changing_command_waits_for_no_call() {
    let ground = Ground::new();
    let fake = ground.stdio("books", script(&ground), |_| {});
    let mut daemon = ground.daemon();
    let gated = daemon.send("alice", call("books", "gated", json!({"q": 1})));
    fake.wait_for_requests("tools/call:gated", 1);
    let closing = daemon.send(
        "alice",
        json!({"action": "disconnect_server", "server_name": "books"}),
    );
    // In force when the connection is out of the pool: the next call has a new one.
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 2);
    open(&ground.path("gate"));
    daemon.answer(&gated).ok();
    assert_eq!(daemon.answer(&closing).ok()["closed"], 1);
    daemon.finish();
}

#[test]
fn a_forced_disconnect_cancels_what_runs() {
    let ground = Ground::new();
    let fake = ground.stdio("books", script(&ground), |_| {});
    let mut daemon = ground.daemon();
    let hung = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    let forced = daemon.ask(
        "alice",
        json!({"action": "disconnect_server", "server_name": "books", "force": true}),
    );
    assert_eq!(forced.ok()["closed"], 1);
    daemon.answer(&hung).failure("cancelled");
    daemon.finish();
}

#[test]
fn shutdown_lets_calls_finish_for_close_grace_and_connects_again_on_demand() {
    let ground = Ground::new();
    ground.set("pool_close_grace", "200ms");
    let fake = ground.stdio("books", script(&ground), |_| {});
    let mut daemon = ground.daemon();
    let hung = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    assert_eq!(
        daemon.ask("", json!({"action": "shutdown"})).ok()["closed"],
        1
    );
    daemon.answer(&hung).failure("cancelled");
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn two_commands_of_one_task_id_are_both_answered() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    for n in [1, 2] {
        daemon.command(json!({"task_id": 5, "params": call("books", "echo", json!({"n": n})), "user": {"userId": "alice"}}));
    }
    let mut seen: Vec<String> = (0..2)
        .map(|_| daemon.answer("5").content().to_owned())
        .collect();
    seen.sort();
    assert_eq!(seen, [r#"{"n":1}"#, r#"{"n":2}"#]);
    daemon.finish();
}

#[test]
fn bad_lines_are_answered_and_the_next_line_is_read() {
    let ground = Ground::new();
    let mut daemon = ground.daemon();
    let lines: [(&[u8], &str, &str); 9] = [
        (b"nonsense", "null", "invalid_json"),
        (b"\xff\xfe", "null", "invalid_json"),
        (b"[1]", "null", "invalid_command"),
        (b"7", "null", "invalid_command"),
        (
            br#"{"task_id":"a","params":[]}"#,
            "\"a\"",
            "invalid_command",
        ),
        (
            br#"{"task_id":"b","command":5}"#,
            "\"b\"",
            "invalid_command",
        ),
        (
            br#"{"task_id":{},"command":"ping"}"#,
            "null",
            "invalid_command",
        ),
        (
            br#"{"task_id":"c","command":"dance"}"#,
            "\"c\"",
            "unknown_action",
        ),
        (
            br#"{"task_id":"d","command":"call_tool","params":{"server_name":7}}"#,
            "\"d\"",
            "invalid_params",
        ),
    ];
    for (line, task, code) in lines {
        daemon.line(line);
        daemon.answer(task).failure(code);
    }
    let long = format!(
        r#"{{"task_id":"long","command":"ping","params":{{"x":"{}"}}}}"#,
        "x".repeat(17 << 20)
    );
    daemon.line(long.as_bytes());
    let ping = daemon.command(json!({"command": "ping"}));
    daemon.answer(&ping).ok();
    daemon.answer_to_any().failure("line_too_long");
    daemon.finish();
}

#[test]
fn a_cancel_is_answered_and_the_server_told() {
    let ground = Ground::new();
    let fake = ground.stdio("books", script(&ground), |_| {});
    let mut daemon = ground.daemon();
    let hung = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    let cancel =
        |user: Value| json!({"command": "cancel", "params": {"target": "task-1"}, "user": user});
    let foreign = daemon.command(cancel(json!({"userId": "bob"})));
    assert_eq!(
        daemon.answer(&foreign).ok()["cancelled"],
        false,
        "not bob's to cancel"
    );
    let own = daemon.command(cancel(json!({"userId": "alice"})));
    assert_eq!(daemon.answer(&own).ok()["cancelled"], true);
    daemon.answer(&hung).failure("cancelled");
    let asked = fake.wait("the call", |line| line["key"] == "tools/call:hang");
    assert_eq!(fake.wait_for_cancel()["params"]["requestId"], asked["id"]);
    let again = daemon.command(cancel(json!({})));
    assert_eq!(
        daemon.answer(&again).ok()["cancelled"],
        false,
        "nothing left to cancel"
    );
    daemon.finish();
}

#[test]
fn a_call_that_takes_too_long_fails_the_server_is_told_and_the_next_call_works() {
    let ground = Ground::new();
    let fake = ground.stdio("books", script(&ground), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let mut params = call("books", "gated", json!({}));
    params["timeoutMs"] = 200.into();
    let answer = daemon.ask("alice", params);
    let details = answer.failure("call_timeout");
    assert_eq!(details["outcome"], "unknown");
    assert!(
        details["elapsed_ms"]
            .as_u64()
            .is_some_and(|elapsed| (200..5_000).contains(&elapsed)),
        "{}",
        answer.text
    );
    fake.wait_for_cancel();
    open(&ground.path("gate"));
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 1);
    daemon.finish();
}

#[test]
fn progress_extends_the_default_deadline_and_no_explicit_one() {
    let ground = Ground::new();
    ground.set("pool_call_timeout", "1s");
    let on = json!({"tools/call:work": [{"do": "progress", "times": 8, "every_ms": 300}, {"do": "execute"}]});
    ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let extended = daemon.send("alice", call("books", "work", json!({})));
    let mut params = call("books", "work", json!({}));
    params["timeout_ms"] = 1_000.into();
    let explicit = daemon.send("alice", params);
    daemon.answer(&explicit).failure("call_timeout");
    daemon.answer(&extended).ok();
    daemon.finish();
}

#[test]
fn progress_extends_no_call_beyond_the_hard_cap() {
    let ground = Ground::new();
    ground.set("pool_call_timeout", "500ms");
    ground.set("pool_call_hard_cap", "1500ms");
    let on = json!({"tools/call:work": [{"do": "progress", "times": 1_000_000, "every_ms": 100}]});
    ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let answer = daemon.ask("alice", call("books", "work", json!({})));
    let elapsed = answer.failure("call_timeout")["elapsed_ms"]
        .as_u64()
        .expect("elapsed");
    assert!((1_400..10_000).contains(&elapsed), "{}", answer.text);
    daemon.finish();
}

#[test]
fn a_start_outlives_the_caller_who_could_not_wait_for_it() {
    let ground = Ground::new();
    let fake = ground.stdio("slow", slow_start(&ground), |_| {});
    let mut daemon = ground.daemon();
    let mut params = call("slow", "echo", json!({}));
    params["timeout_ms"] = 300.into();
    let answer = daemon.ask("alice", params);
    assert_eq!(answer.failure("starting")["outcome"], "not_sent");
    open(&ground.path("gate"));
    daemon.ask("alice", call("slow", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 1, "the same start served the next");
    daemon.finish();
}

#[test]
fn a_start_that_itself_takes_too_long_fails() {
    let ground = Ground::new();
    ground.set("pool_start_timeout", "400ms");
    ground.stdio("slow", slow_start(&ground), |_| {});
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("slow", "echo", json!({})));
    assert_eq!(answer.failure("connect_timeout")["server_name"], "slow");
    daemon.finish();
}

#[test]
fn sequential_runs_one_line_at_a_time() {
    let ground = Ground::new();
    let script = json!({"on": {"tools/call:slow": [{"do": "wait", "ms": 200}, {"do": "execute"}]}});
    ground.stdio("books", script, |_| {});
    let mut input = String::new();
    for (task, tool) in [("one", "slow"), ("two", "echo"), ("three", "echo")] {
        let line = json!({"task_id": task, "params": call("books", tool, json!({})), "user": {"userId": "alice"}});
        input.push_str(&format!("{line}\n"));
    }
    let mut command = ground.command();
    command.arg("--sequential");
    let output = ground.run(command, &input);
    let order: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["task_id"].clone())
        .collect();
    assert_eq!(order, ["one", "two", "three"]);
}

#[test]
fn thousands_of_commands_each_have_their_one_answer() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    let users = ["", "alice", "bob"];
    let mut running = std::collections::VecDeque::new();
    for n in 0..3_000 {
        let task = daemon.send(users[n % 3], call("books", "echo", json!({"n": n})));
        running.push_back((n, task));
        if running.len() == 60 {
            let (n, task) = running.pop_front().expect("some");
            assert_eq!(daemon.answer(&task).ok()["structured_content"]["n"], n);
        }
    }
    daemon.close_stdin();
    for (n, task) in running {
        assert_eq!(daemon.answer(&task).ok()["structured_content"]["n"], n);
    }
    daemon.finish();
}

/// More than there is room for: each is answered all the same, some with what they can do about it.
#[test]
fn too_many_commands_at_once_are_refused_and_none_is_lost() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let tasks: Vec<String> = (0..5_000)
        .map(|n| daemon.send("alice", call("books", "echo", json!({"n": n}))))
        .collect();
    daemon.close_stdin();
    for (n, task) in tasks.iter().enumerate() {
        let answer = daemon.answer(task);
        if answer.is_failure() {
            assert!(
                answer.failure("overloaded")["retry_after_ms"].is_u64(),
                "{}",
                answer.text
            );
        } else {
            assert_eq!(answer.ok()["structured_content"]["n"], n);
        }
    }
    daemon.finish();
}

#[test]
fn a_host_that_does_not_read_loses_no_answer() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let big = "x".repeat(100_000);
    let mut input = String::new();
    for n in 0..100 {
        let line = json!({"task_id": n, "params": call("books", "echo", json!({"n": n, "big": big})), "user": {"userId": "alice"}});
        input.push_str(&format!("{line}\n"));
    }
    // `run` writes all its input before it reads a byte.
    let path = ground.path("input");
    std::fs::write(&path, &input).expect("the input is written");
    let mut child = ground
        .command()
        .stdin(std::fs::File::open(&path).expect("the input"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let fake = ground::Fake::new(&ground, "books");
    wait_for("calls to run before anything is read", || {
        (fake.executed("echo") > 3).then_some(())
    });
    let output = std::io::read_to_string(child.stdout.take().expect("piped")).expect("UTF-8");
    assert!(child.wait().expect("it ends").success());
    let mut seen: Vec<u64> = output
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("JSON")["task_id"]
                .as_u64()
                .expect("ours")
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<u64>>());
}
