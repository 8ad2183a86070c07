//! Events beside answers, end to end: what a command asked for, in the order of the wire, and nothing
//! that is another user's.

mod ground;

use ground::{Daemon, Ground, call, open};
use serde_json::{Value, json};

/// A server that can log, and does `steps` when its tool `work` is called.
fn logging(steps: Value) -> Value {
    let initialized = json!({
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}},
        "serverInfo": {"name": "fake", "version": "1"},
    });
    json!({"on": {
        "initialize": [{"do": "result", "text": initialized.to_string()}],
        "logging/setLevel": [{"do": "result", "text": "{}"}],
        "tools/call:work": steps,
    }})
}

fn log(level: &str, data: &str) -> Value {
    let params = json!({"level": level, "logger": "x", "data": data});
    json!({"do": "notify", "method": "notifications/message", "params": params})
}

fn work(events: Value) -> Value {
    let mut params = call("books", "work", json!({}));
    params["events"] = events;
    params
}

/// What each event so far was about.
fn told(daemon: &mut Daemon) -> Vec<String> {
    let events = daemon.events();
    let shown = events.iter().map(|event| {
        let params = &event["params"];
        let what = params["data"].as_str().or(params["message"].as_str());
        what.unwrap_or_else(|| panic!("{event}")).to_owned()
    });
    shown.collect()
}

#[test]
fn progress_and_logs_come_in_the_order_of_the_wire() {
    let ground = Ground::new();
    let gate = ground.path("gate");
    let steps = json!([
        log("info", "one"), {"do": "progress", "times": 1}, log("error", "two"),
        {"do": "until", "file": gate}, log("debug", "too fine"), log("info", "three"), {"do": "execute"},
    ]);
    let fake = ground.stdio("books", logging(steps), |_| {});
    let mut daemon = ground.daemon();
    let task = daemon.send("alice", work(json!(["progress", "log"])));
    let first = daemon.event();
    let expected = json!({
        "type": "event", "event": "log", "task": "task-1", "server_name": "books", "user_id": "alice",
        "params": {"level": "info", "logger": "x", "data": "one"},
    });
    assert_eq!(first, expected);
    daemon.event();
    daemon.event();
    open(&gate);
    daemon.answer(&task).ok();
    assert_eq!(told(&mut daemon), ["three"]);

    // The level is asked for once; a finer one once more; who asks for nothing hears nothing.
    let mut fine = work(json!(true));
    fine["log_level"] = "debug".into();
    daemon.ask("alice", fine).ok();
    assert_eq!(
        told(&mut daemon),
        ["one", "step 1", "two", "too fine", "three"]
    );
    daemon.ask("alice", work(json!(["log"]))).ok();
    assert_eq!(told(&mut daemon), ["one", "two", "three"]);
    daemon.ask("alice", work(json!(false))).ok();
    assert_eq!(told(&mut daemon), [""; 0]);
    let levels = fake.events_of("request").into_iter().filter_map(|line| {
        let level = line["params"]["level"].as_str().map(str::to_owned);
        level.filter(|_| line["method"] == "logging/setLevel")
    });
    assert_eq!(levels.collect::<Vec<_>>(), ["info", "debug"]);
    daemon.finish();
}

#[test]
fn a_log_on_a_shared_connection_reaches_only_the_call_whose_it_is() {
    let ground = Ground::new();
    let steps = json!([log("info", "whose?"), {"do": "progress", "times": 1}, {"do": "execute"}]);
    ground.stdio("books", logging(steps.clone()), |row| {
        row.public();
    });
    let mut http = logging(steps);
    http["http"] = json!({"sse": true});
    ground.http("remote", http, |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    daemon.ask("alice", work(json!(true))).ok();
    assert_eq!(told(&mut daemon), ["step 1"]);
    // Over HTTP the response says whose it is.
    let mut remote = work(json!(true));
    remote["server_name"] = "remote".into();
    daemon.ask("alice", remote).ok();
    assert_eq!(told(&mut daemon), ["whose?", "step 1"]);
    daemon.finish();
}

#[test]
fn a_modern_server_is_asked_for_logs_in_the_call_itself() {
    let ground = Ground::new();
    let steps = json!([log("info", "one"), {"do": "execute"}]);
    let script = json!({"era": "modern", "on": {"tools/call:work": steps}});
    let fake = ground.stdio("books", script, |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", work(json!(["log"]))).ok();
    assert_eq!(told(&mut daemon), ["one"]);
    daemon.ask("alice", work(json!(["progress"]))).ok();
    let calls = fake.events_of("request").into_iter();
    let calls = calls.filter(|line| line["method"] == "tools/call");
    let asked =
        calls.map(|line| line["params"]["_meta"]["io.modelcontextprotocol/logLevel"].clone());
    assert_eq!(asked.collect::<Vec<_>>(), [json!("info"), Value::Null]);
    assert_eq!(fake.requests("logging/setLevel"), 0);
    daemon.finish();
}

#[test]
fn events_that_nobody_knows_are_refused_with_those_there_are() {
    let ground = Ground::new();
    let mut daemon = ground.daemon();
    let refused = daemon.ask("alice", work(json!(["progres"])));
    refused.failure("invalid_params");
    assert!(refused.text.contains("resource_updated"));
    daemon.finish();
}
