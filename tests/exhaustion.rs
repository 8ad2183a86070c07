//! Too few descriptors: some servers cannot be started, all that runs goes on, and it passes.

mod ground;

use std::process::Command;

use ground::{Daemon, Ground, call, open};
use serde_json::json;

/// The program with so few descriptors that it can have only some servers at once.
fn with_few_descriptors(ground: &Ground) -> Command {
    let plain = ground.command();
    let mut command = Command::new("sh");
    let limited = r#"ulimit -n 56; exec "$0" "$@""#;
    command.arg("-c").arg(limited).arg(plain.get_program());
    command.env_clear();
    for (name, value) in plain.get_envs() {
        command.env(name, value.expect("a value"));
    }
    command
}

#[test]
fn without_descriptors_servers_fail_in_words_and_what_runs_goes_on() {
    let ground = Ground::new();
    ground.set("config_ttl", "10m");
    let steps = json!([{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]);
    ground.stdio("books", json!({"on": {"tools/call:gated": steps}}), |_| {});
    let mut daemon = Daemon::start(&ground, with_few_descriptors(&ground));
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let users: Vec<String> = (0..30).map(|n| format!("user-{n}")).collect();
    for user in &users {
        daemon.ask(user, json!({"action": "list_servers"})).ok();
    }
    let gated = |user: &String| daemon.send(user, call("books", "gated", json!({})));
    let tasks: Vec<String> = users.iter().map(gated).collect();
    // None succeeds before the gate is open.
    let mut refused = vec![daemon.answer_to_any()];
    let ping = daemon.command(json!({"command": "ping"}));
    daemon.answer(&ping).ok();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();

    open(&ground.path("gate"));
    let first = refused[0].value["task_id"].to_string();
    for task in tasks.iter().filter(|task| **task != first) {
        let answer = daemon.answer(task);
        if answer.is_failure() {
            refused.push(answer);
        } else {
            answer.ok();
        }
    }
    assert!(refused.len() < users.len(), "some could be started");
    for answer in &refused {
        let details = answer.failure("connect_failed");
        assert_eq!(details["outcome"], "not_sent", "{}", answer.text);
        assert!(
            answer.text.contains("Too many open files"),
            "{}",
            answer.text
        );
    }

    daemon.ask("", json!({"action": "shutdown"})).ok();
    let last = users.last().expect("a user");
    daemon.ask(last, call("books", "echo", json!({}))).ok();
    daemon.finish();
}
