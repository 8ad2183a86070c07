//! Floods: of commands, and of what servers send. None costs the others their answers.

mod ground;

use ground::{Ground, call};
use serde_json::{Value, json};

/// A server whose tool `hang` never answers.
fn tarpit() -> Value {
    json!({"on": {"tools/call:hang": [{"do": "hang"}]}})
}

fn hanging(timeout_ms: u64) -> Value {
    let mut params = call("tarpit", "hang", json!({}));
    params["timeout_ms"] = timeout_ms.into();
    params
}

#[test]
fn a_slow_server_takes_its_share_and_leaves_the_rest_to_the_others() {
    let ground = Ground::new();
    ground.set("daemon_max_running", "16");
    let slow = ground.stdio("tarpit", tarpit(), |_| {});
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();

    // Four run, eight wait, one is too many; whose they are does not matter.
    let users: Vec<String> = (0..13).map(|n| format!("user-{n}")).collect();
    let hung: Vec<String> = users
        .iter()
        .map(|user| daemon.send(user, hanging(8_000)))
        .collect();
    let refused = daemon.answer_to_any();
    let details = refused.failure("overloaded");
    assert_eq!(details["server_name"], "tarpit", "{}", refused.text);
    assert_eq!(details["outcome"], "not_sent", "{}", refused.text);
    assert!(details["retry_after_ms"].is_u64(), "{}", refused.text);
    slow.wait_for_requests("tools/call:hang", 4);

    for user in ["alice", "user-1", "user-2"] {
        daemon.ask(user, call("books", "echo", json!({}))).ok();
    }
    let ping = daemon.command(json!({"command": "ping"}));
    assert_eq!(daemon.answer(&ping).ok()["in_flight"], 12);
    assert_eq!(slow.requests("tools/call:hang"), 4);

    let refused = refused.value["task_id"].to_string();
    for task in hung.iter().filter(|task| **task != refused) {
        daemon
            .answer(task)
            .failure_in(&["call_timeout", "overloaded"]);
    }
    daemon.finish();
}

#[test]
fn a_user_who_floods_a_slow_server_starves_nobody() {
    let ground = Ground::new();
    ground.set("daemon_max_per_user", "4");
    ground.stdio("tarpit", tarpit(), |_| {});
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("bob", call("books", "echo", json!({}))).ok();
    let flood: Vec<String> = (0..200)
        .map(|_| daemon.send("alice", hanging(3_000)))
        .collect();
    for _ in 0..20 {
        daemon.ask("bob", call("books", "echo", json!({}))).ok();
    }
    let mut refused = 0;
    for task in &flood {
        let answer = daemon.answer(task);
        if answer.value["error_code"] == "overloaded" {
            refused += 1;
            assert!(answer.value["details"]["retry_after_ms"].is_u64());
        } else {
            answer.failure("call_timeout");
        }
    }
    assert_eq!(refused, 200 - 12, "four run and eight wait");
    daemon.finish();
}
