//! The limits of connections: reaching one is an answer that names it, and it passes.

mod ground;

use ground::{Answer, Daemon, Ground, call, open};
use serde_json::{Value, json};

/// A server whose tool `gated` waits for the gate.
fn gated(ground: &Ground) -> Value {
    let steps = json!([{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]);
    json!({"on": {"tools/call:gated": steps}})
}

/// `books` and `films`, with one connection within `limit`.
fn crowded(limit: &str) -> (Ground, Daemon, [ground::Fake; 2]) {
    let ground = Ground::new();
    ground.set(limit, "1");
    let fakes = ["books", "films"].map(|name| ground.stdio(name, gated(&ground), |_| {}));
    let daemon = ground.daemon();
    (ground, daemon, fakes)
}

fn assert_names(refused: &Answer, setting: &str, server: &str) {
    let details = refused.failure("overloaded");
    assert_eq!(details["server_name"], server, "{}", refused.text);
    assert_eq!(details["phase"], "start", "{}", refused.text);
    assert_eq!(details["outcome"], "not_sent", "{}", refused.text);
    assert!(details["retry_after_ms"].is_u64(), "{}", refused.text);
    let sentence = refused.value["error"].as_str().expect("a sentence");
    assert!(sentence.contains(setting), "{}", refused.text);
}

#[test]
fn no_more_connections_in_all_than_there_may_be() {
    let (ground, mut daemon, [books, films]) = crowded("pool_max_connections");
    let running = daemon.send("alice", call("books", "gated", json!({})));
    books.wait_for_requests("tools/call:gated", 1);
    for (user, server) in [("alice", "films"), ("bob", "books"), ("bob", "films")] {
        let refused = daemon.ask(user, call(server, "echo", json!({})));
        assert_names(&refused, "pool.max_connections", server);
    }
    // Whose connection it is may use it.
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(films.starts(), 0);

    open(&ground.path("gate"));
    daemon.answer(&running).ok();
    daemon.ask("bob", call("films", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn no_more_connections_of_one_user_than_there_may_be() {
    let (ground, mut daemon, [books, films]) = crowded("pool_max_per_user");
    let running = daemon.send("alice", call("books", "gated", json!({})));
    books.wait_for_requests("tools/call:gated", 1);
    let refused = daemon.ask("alice", call("films", "echo", json!({})));
    assert_names(&refused, "pool.max_per_user", "films");
    assert_eq!(films.starts(), 0);
    daemon.ask("bob", call("films", "echo", json!({}))).ok();

    open(&ground.path("gate"));
    daemon.answer(&running).ok();
    daemon.ask("alice", call("films", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn no_more_connections_to_one_server_than_there_may_be() {
    let (ground, mut daemon, [books, _]) = crowded("pool_max_per_server");
    let running = daemon.send("alice", call("books", "gated", json!({})));
    books.wait_for_requests("tools/call:gated", 1);
    let refused = daemon.ask("bob", call("books", "echo", json!({})));
    assert_names(&refused, "pool.max_per_server", "books");
    assert_eq!(books.served().len(), 1);
    daemon.ask("bob", call("films", "echo", json!({}))).ok();

    open(&ground.path("gate"));
    daemon.answer(&running).ok();
    daemon.ask("bob", call("books", "echo", json!({}))).ok();
    daemon.finish();
}
