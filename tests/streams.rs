//! Answers that come as streams of events over HTTP: cut, and continued after the last event.

mod ground;

use ground::{Ground, call};
use serde_json::{Value, json};

/// The answer to the call being served, `text` in Latin-1: one for each byte.
fn answer(text: &str) -> String {
    let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    format!("data: {{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{result}}}\n\n")
}

fn bytes(latin1: &str) -> Value {
    json!({"do": "bytes", "latin1": latin1})
}

/// An event that only says where the stream can be continued.
fn marker() -> Value {
    bytes("id: $ID\nretry: 10\ndata:\n\n")
}

/// `é` as it goes over the wire.
const LETTER: &str = "\u{c3}\u{a9}";

/// The halves of an answer, the second of which begins in the middle of a letter.
fn halves() -> (String, String) {
    let whole = answer(&format!("caf{LETTER}"));
    let (before, after) = whole.split_once(LETTER).expect("it holds the letter");
    (format!("{before}\u{c3}"), format!("\u{a9}{after}"))
}

#[test]
fn a_stream_that_ends_early_is_continued_after_its_last_event() {
    let ground = Ground::new();
    let finish = json!({"do": "on", "key": "resume", "steps": [bytes(&answer("at last"))]});
    let on = json!({
        "tools/call:ends": [{"do": "executed"}, marker()],
        "tools/call:cut": [{"do": "executed"}, marker(), {"do": "cut"}],
        // The first time without the answer.
        "resume": [finish, marker()],
    });
    let fake = ground.http("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    for (tool, resumed) in [("ends", 2), ("cut", 3)] {
        let got = daemon.ask("alice", call("books", tool, json!({})));
        assert_eq!(got.content(), "at last");
        assert_eq!(fake.executed(tool), 1);
        assert_eq!(fake.requests("resume"), resumed);
    }
    let asked = fake.events_of("request");
    let id = |key: &str| {
        let asked = asked.iter().rfind(|line| line["key"] == key);
        asked.map(|line| line["id"].clone())
    };
    assert_eq!(id("resume"), id("tools/call:cut"));
    daemon.finish();
}

#[test]
fn a_stream_without_an_event_to_continue_after_is_lost_at_once() {
    let ground = Ground::new();
    let (before, _) = halves();
    let steps = json!([{"do": "executed"}, bytes(&before), {"do": "cut"}]);
    let on =
        json!({"tools/call:cut": steps, "tools/call:ends": [{"do": "executed"}, bytes(&before)]});
    let fake = ground.http("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    for tool in ["cut", "ends"] {
        let lost = daemon.ask("alice", call("books", tool, json!({})));
        let details = lost.failure("session_lost");
        assert_eq!(details["outcome"], "unknown", "{}", lost.text);
        assert_eq!(fake.executed(tool), 1, "not sent again");
        daemon.ask("alice", call("books", "echo", json!({}))).ok();
    }
    assert_eq!(fake.requests("resume"), 0);
    daemon.finish();
}

#[test]
fn a_letter_may_be_cut_in_two() {
    let ground = Ground::new();
    let (before, after) = halves();
    let pause = json!({"do": "until", "file": ground.path("gate")});
    let on = json!({
        // Once in two pieces, once in a stream that breaks off between them and is continued.
        "tools/call:pieces": [bytes(&before), pause, bytes(&after)],
        "tools/call:cut": [marker(), bytes(&before), {"do": "cut"}],
        "resume": [bytes(&format!("{before}{after}"))],
    });
    let fake = ground.http("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    let pieces = daemon.send("alice", call("books", "pieces", json!({})));
    fake.wait_for_requests("tools/call:pieces", 1);
    daemon.ask("bob", call("books", "echo", json!({}))).ok();
    ground::open(&ground.path("gate"));
    assert_eq!(daemon.answer(&pieces).content(), "café");
    let cut = daemon.ask("alice", call("books", "cut", json!({})));
    assert_eq!(cut.content(), "café");
    daemon.finish();
}
