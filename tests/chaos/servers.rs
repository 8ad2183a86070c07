//! The servers of a stage: some that are left alone, some that misbehave when a tool says so.

use serde_json::{Value, json};

use crate::ground::{Ground, Row};
use crate::journals::Journals;

/// No fault is aimed at these.
pub const STEADY: &[&str] = &["steady", "commons", "web", "stream"];

/// Every user has a secret for each of these.
pub const WITH_SECRETS: &[&str] = &[
    "steady", "web", "stream", "victim", "pack", "site", "feed", "sleepy",
];

const MIB: u64 = 1024 * 1024;

pub fn put_up(ground: &Ground, journals: &mut Journals) {
    let http = |row: &mut Row| {
        row.header("Authorization", "Bearer ${user.KEY}")
            .set("requires_credentials", true);
    };
    let stdio = |row: &mut Row| {
        row.token("KEY");
    };
    let public = |row: &mut Row| {
        row.public();
    };
    let mut watch = |fake: crate::ground::Fake| journals.watch(&fake.name, fake.journal.clone());
    watch(ground.stdio("steady", json!({}), stdio));
    watch(ground.stdio("commons", json!({}), public));
    watch(ground.http("web", json!({}), http));
    watch(ground.http("stream", json!({"http": {"sse": true}}), http));
    watch(ground.stdio("victim", json!({"on": misbehaviour()}), stdio));
    watch(ground.stdio("pack", json!({"on": misbehaviour()}), |row| {
        row.token("KEY");
        in_a_wrapper(row);
    }));
    watch(ground.http("site", json!({"on": http_misbehaviour()}), http));
    watch(ground.http(
        "feed",
        json!({"on": http_misbehaviour(), "http": {"sse": true}}),
        http,
    ));
    watch(ground.stdio(
        "doomed",
        json!({"on": {"start": [{"do": "exit", "code": 1}]}}),
        public,
    ));
    watch(ground.stdio("sleepy", json!({"start_delay_ms": 700}), stdio));
    watch(ground.stdio("toggle", json!({}), public));
    watch(ground.stdio(
        "deaf",
        json!({"term": "ignore", "ignore_eof": true}),
        public,
    ));
}

/// `sh` keeps the pipes and waits for the server, as `npx` does.
fn in_a_wrapper(row: &mut Row) {
    let program = row.0["command"].as_str().expect("a program").to_owned();
    let mut words = vec![
        json!("-c"),
        json!(r#"exec 3<&0; "$@" <&3 3<&- & wait"#),
        json!("sh"),
        json!(program),
    ];
    words.extend(row.0["args"].as_array().expect("words").iter().cloned());
    row.set("command", "/bin/sh")
        .set("args", Value::Array(words));
}

fn misbehaviour() -> Value {
    let stranger = r#"{"jsonrpc":"2.0","id":987654321,"result":{"content":[{"type":"text","text":"for a stranger"}]}}"#;
    let again = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"a second answer"}]}}"#;
    json!({
        "tools/call:die": [{"do": "executed"}, {"do": "kill"}],
        "tools/call:die_early": [{"do": "kill"}],
        "tools/call:exit": [{"do": "executed"}, {"do": "exit", "code": 3}],
        "tools/call:hang": [{"do": "executed"}, {"do": "hang"}],
        "tools/call:deafen": [{"do": "executed"}, {"do": "stop_reading"}],
        "tools/call:large": [{"do": "executed"}, {"do": "giant", "bytes": 17 * MIB}],
        "tools/call:endless": [{"do": "executed"}, {"do": "giant", "bytes": 72 * MIB, "endless": true}],
        "tools/call:mute": [{"do": "executed"}, {"do": "close_stdout"}],
        "tools/call:babble": [
            {"do": "line", "text": "npm notice new version"}, {"do": "bytes", "latin1": "\u{c3}\u{28}\u{ff}\n"},
            {"do": "line", "text": "{\"jsonrpc\":\"2.0\",\"id\":"}, {"do": "line", "text": "[]"}, {"do": "execute"}],
        "tools/call:twice": [{"do": "execute"}, {"do": "line", "text": again}],
        "tools/call:stranger": [{"do": "line", "text": stranger}, {"do": "execute"}],
        "tools/call:progress": [{"do": "progress", "times": 2000}, {"do": "execute"}],
        "tools/call:changed": [{"do": "notify", "method": "notifications/tools/list_changed", "times": 1000}, {"do": "execute"}],
        "tools/call:logs": [{"do": "stderr_variable", "name": "TOKEN"}, {"do": "stderr_flood", "bytes": MIB}, {"do": "execute"}],
        "tools/call:nest": [{"do": "spawn", "setsid": true}, {"do": "spawn", "holds_stdout": true}, {"do": "execute"}],
        "tools/call:abandon": [{"do": "spawn", "setsid": true}, {"do": "spawn"}, {"do": "executed"}, {"do": "kill"}],
        "tools/call:refuse": [{"do": "executed"}, {"do": "error", "text": "{\"code\":-32000,\"message\":\"no\"}"}],
        "tools/call:question": [{"do": "ask", "method": "elicitation/create", "params": {"message": "password?", "requestedSchema": {"type": "object", "properties": {}}}}, {"do": "execute"}],
    })
}

fn http_misbehaviour() -> Value {
    let half = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"caf\u{c3}";
    json!({
        "tools/call:forget": [{"do": "execute"}, {"do": "forget"}],
        "tools/call:reset": [{"do": "executed"}, {"do": "cut"}],
        "tools/call:bad_gateway": [{"do": "executed"}, {"do": "http", "status": 502, "body": "Bad Gateway"}],
        "tools/call:redirect": [{"do": "http", "status": 307, "headers": {"Location": "http://127.0.0.1:9/elsewhere"}}],
        "tools/call:cut_stream": [{"do": "executed"}, {"do": "bytes", "latin1": half}, {"do": "cut"}],
        "tools/call:garbage": [{"do": "executed"}, {"do": "tcp", "latin1": "HTTP/9 nonsense\u{ff}\r\n\r\n"}, {"do": "cut"}],
        "tools/call:large": [{"do": "executed"}, {"do": "giant", "bytes": 17 * MIB}],
        "tools/call:hang": [{"do": "executed"}, {"do": "hang"}],
    })
}
