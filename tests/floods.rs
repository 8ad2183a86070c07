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
    assert_eq!(refused, 200 - 64, "four run and sixty wait");
    daemon.finish();
}

/// So many lines that answer a call which never was.
fn strays(count: usize) -> Vec<Value> {
    let line =
        json!({"do": "line", "text": r#"{"jsonrpc":"2.0","id":999999,"result":{"content":[]}}"#});
    vec![line; count]
}

#[test]
fn answers_that_nobody_asked_for_end_the_connection_and_the_next_call_has_another() {
    let ground = Ground::new();
    let on = json!({"tools/call:mad": strays(101), "tools/call:hang": [{"do": "hang"}], "tools/call:odd": strays(40)});
    let fake = ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    let echo = call("books", "echo", json!({}));
    daemon.ask("alice", echo.clone()).ok();
    // Some are only counted.
    let odd = daemon.send("alice", call("books", "odd", json!({})));
    fake.wait_for_requests("tools/call:odd", 1);
    daemon.ask("alice", echo.clone()).ok();
    assert_eq!(fake.served().len(), 1);

    let hanging = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    let mad = daemon.send("alice", call("books", "mad", json!({})));
    for task in [odd, hanging, mad] {
        let answer = daemon.answer(&task);
        let details = answer.failure("protocol_error");
        assert_eq!(details["outcome"], "unknown", "{}", answer.text);
        assert_eq!(details["server_name"], "books", "{}", answer.text);
    }
    daemon.ask("alice", echo).ok();
    assert_eq!(fake.served().len(), 2);
    daemon.finish();
}

/// Each answer comes twice, and is followed by one for the calls before and after it.
#[test]
fn no_task_sees_the_answer_of_another_or_a_second_one() {
    let ground = Ground::new();
    let forged = |id: &str| {
        let text =
            r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"of":"ID"}}}"#;
        json!({"do": "line", "text": text.replace("ID", id)})
    };
    let steps = json!([forged("$ID"), forged("$ID"), forged("1")]);
    ground.stdio("books", json!({"on": {"tools/call:twice": steps}}), |_| {});
    let mut daemon = ground.daemon();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..40 {
        let answer = daemon.ask("alice", call("books", "twice", json!({})));
        let of = answer.ok()["structured_content"]["of"].to_string();
        assert!(
            seen.insert(of),
            "an answer that was given before: {}",
            answer.text
        );
    }
    let listed = daemon.ask("alice", json!({"action": "list_servers"}));
    let noise = &listed.ok()["servers"][0]["noise_lines"];
    assert!(noise.as_u64() >= Some(78), "{noise}");
    daemon.finish();
}

#[test]
fn endless_junk_before_the_handshake_is_a_bounded_failure() {
    let ground = Ground::new();
    let junk = vec!["npm notice"; 5_000];
    let fake = ground.stdio("books", json!({"banner": junk}), |_| {});
    ground.stdio("films", json!({"banner": vec!["loading"; 99]}), |_| {});
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "echo", json!({})));
    let details = answer.failure("protocol_error");
    assert_eq!(details["phase"], "initialize", "{}", answer.text);
    assert_eq!(details["outcome"], "not_sent", "{}", answer.text);
    assert_eq!(fake.starts(), 1);
    daemon.ask("alice", call("films", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn junk_between_messages_is_counted_and_seldom_logged() {
    let ground = Ground::new();
    ground.set("log_level", "info");
    let noise = vec!["a line of the log"; 50];
    ground.stdio("books", json!({"noise": noise}), |_| {});
    let mut daemon = ground.daemon();
    let started = std::time::Instant::now();
    for _ in 0..30 {
        daemon.ask("alice", call("books", "echo", json!({}))).ok();
    }
    let listed = daemon.ask("alice", json!({"action": "list_servers"}));
    let noise = &listed.ok()["servers"][0]["noise_lines"];
    assert!(noise.as_u64() >= Some(1_500), "{noise}");
    let logged = daemon.stderr().matches("no message for anybody").count() as u64;
    // The probe is a connection of its own.
    let most = 2 * (started.elapsed().as_secs() + 1);
    assert!((1..=most).contains(&logged), "{logged} lines");
    daemon.finish();
}

/// Asks other servers for as long as the flood runs; each answer comes soon.
fn others_are_served_during(daemon: &mut ground::Daemon, flood: &str) -> ground::Answer {
    for _ in 0..20 {
        let asked = std::time::Instant::now();
        daemon.ask("bob", call("books", "echo", json!({}))).ok();
        let ping = daemon.command(json!({"command": "ping"}));
        daemon.answer(&ping).ok();
        let took = asked.elapsed();
        assert!(took.as_secs() < 5, "an answer took {took:?}");
    }
    daemon.answer(flood)
}

#[test]
fn a_flood_of_progress_becomes_few_lines_and_holds_up_nobody() {
    let ground = Ground::new();
    let steps = json!([{"do": "progress", "times": 50_000}, {"do": "execute"}]);
    ground.stdio("flood", json!({"on": {"tools/call:echo": steps}}), |_| {});
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("bob", call("books", "echo", json!({}))).ok();
    let started = std::time::Instant::now();
    let mut params = call("flood", "echo", json!({}));
    params["progress"] = true.into();
    let flood = daemon.send("alice", params);
    others_are_served_during(&mut daemon, &flood).ok();
    let most = started.elapsed().as_millis() as usize / 50 + 2;
    let lines = daemon.events();
    assert!((1..=most).contains(&lines.len()), "{} lines", lines.len());
    let last = lines.last().expect("a line");
    assert_eq!(
        last["params"]["progress"], 50_000,
        "the newest wins: {last}"
    );
    daemon.finish();
}

#[test]
fn a_flood_of_changes_causes_few_lists_and_holds_up_nobody() {
    let ground = Ground::new();
    let notify = |method: &str| json!({"do": "notify", "method": method, "times": 10_000});
    let steps = json!([
        notify("notifications/tools/list_changed"),
        notify("notifications/message"),
        notify("notifications/resources/updated"),
        {"do": "execute"},
    ]);
    let fake = ground.stdio("flood", json!({"on": {"tools/call:echo": steps}}), |_| {});
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(listed.ok()["errors"], json!([]));
    let before = fake.requests("tools/list");
    let flood = daemon.send("alice", call("flood", "echo", json!({})));
    others_are_served_during(&mut daemon, &flood).ok();
    for _ in 0..10 {
        daemon.ask("alice", json!({"action": "list_tools"})).ok();
    }
    let lists = fake.requests("tools/list") - before;
    assert!(lists <= 3, "{lists} lists");
    daemon.finish();
}
