//! Every action over fake servers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::fakes::{FakeServer, World, key, private, public};
use crate::model::definition::Isolation;
use crate::model::error::{ErrorCode, Failure, Outcome, Phase};

const U1: Option<&str> = Some("u1");

fn crashed() -> Failure {
    Failure::new(ErrorCode::ServerCrashed, "the server ended").phase(Phase::Call)
}

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["tools"].as_array().unwrap();
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn list_tools_shows_our_members_and_passes_the_rest_unchanged() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&[]));
    *books.tools.lock().unwrap() = Ok(vec![json!({
        "name": "find", "title": "Find", "server_id": "spoofed", "user_id": "spoofed",
        "inputSchema": {"type": "object", "$defs": {"a": {}}}, "_meta": {"x": 1.0},
    })]);
    world.defines(U1, vec![public("books")]);
    let answer = world
        .actions()
        .ask(U1, "list_tools", json!({}))
        .await
        .unwrap();
    assert_eq!(
        answer,
        json!({
            "tools": [{
                "name": "mcp_books_find", "description": "",
                "inputSchema": {"type": "object", "$defs": {"a": {}}},
                "server_name": "books", "serverName": "books", "original_name": "find",
                "is_public": true, "server_id": "id-books", "credential_source": "default",
                "title": "Find", "_meta": {"x": 1.0},
            }],
            "errors": [],
        })
    );
}

#[tokio::test(start_paused = true)]
async fn what_hides_in_a_description_is_marked_and_not_removed() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&[]));
    let description = "Finds books\u{e0049}\u{e0067}\u{202e}";
    let schema = json!({"type": "object", "properties": {"q": {"description": "\u{200b}"}}});
    *books.tools.lock().unwrap() = Ok(vec![
        json!({"name": "find", "description": description, "inputSchema": schema}),
        json!({"name": "lend", "description": "Lends", "inputSchema": {}, "suspicious": []}),
    ]);
    world.defines(U1, vec![public("books")]);
    let listed = world.actions().ask(U1, "list_tools", json!({})).await;
    let tools = listed.unwrap()["tools"].clone();
    assert_eq!(
        tools[0]["suspicious"],
        json!(["bidirectional", "tag", "hidden"])
    );
    assert_eq!(tools[0]["description"], description);
    assert_eq!(tools[0]["inputSchema"], schema);
    assert!(tools[1].get("suspicious").is_none(), "{}", tools[1]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_or_hangs_costs_the_others_nothing() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    let broken = world.server("broken", FakeServer::new(&[]));
    *broken.refuses.lock().unwrap() = Some(Failure::new(ErrorCode::ConnectFailed, "no"));
    let mut slow = FakeServer::new(&["never"]);
    slow.hangs_on_list = true;
    world.server("slow", slow);
    let mut off = public("off");
    off.definition.is_enabled = false;
    world.defines(
        U1,
        vec![public("broken"), public("slow"), public("books"), off],
    );
    let actions = world.actions();
    let limit = Duration::from_secs(3);
    let answer = actions
        .ask_within(U1, "list_tools", json!({}), limit)
        .await
        .unwrap();
    assert_eq!(names(&answer), ["mcp_books_find"]);
    let errors = answer["errors"].as_array().unwrap();
    let codes: Vec<_> = errors
        .iter()
        .map(|error| (&error["server_name"], &error["error_code"]))
        .collect();
    assert_eq!(
        codes,
        [
            (&json!("broken"), &json!("connect_failed")),
            (&json!("slow"), &json!("call_timeout"))
        ]
    );
    assert_eq!(errors[1]["details"]["phase"], "list");
}

#[tokio::test(start_paused = true)]
async fn a_server_named_alone_fails_for_the_command() {
    let world = World::default();
    let mut off = public("off");
    off.definition.is_enabled = false;
    world.defines(U1, vec![off]);
    let actions = world.actions();
    let disabled = actions
        .ask(U1, "list_tools", json!({"server_name": "off"}))
        .await;
    assert_eq!(disabled.unwrap_err().code, ErrorCode::ServerDisabled);
    let missing = actions
        .ask(U1, "list_tools", json!({"serverName": "none"}))
        .await;
    let missing = missing.unwrap_err();
    assert_eq!(missing.code, ErrorCode::ServerNotFound);
    assert_eq!(missing.details["server_name"], "none");
    let several = json!({"server_names": ["off", "none"]});
    let answer = actions.ask(U1, "list_tools", several).await.unwrap();
    assert_eq!(answer["errors"][0]["error_code"], "server_disabled");
    assert_eq!(answer["errors"][1]["error_code"], "server_not_found");
}

#[tokio::test(start_paused = true)]
async fn a_catalog_at_hand_is_used_without_connecting() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(None, vec![public("books")]);
    let actions = world.actions();
    let first = actions.ask(None, "list_tools", json!({})).await.unwrap();
    let closed = actions
        .ask(None, "disconnect_server", json!({"server_name": "books"}))
        .await;
    assert_eq!(closed.unwrap()["closed"], 1);
    let second = actions.ask(None, "list_tools", json!({})).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(FakeServer::count(&books.connects), 1);
    assert_eq!(FakeServer::count(&books.lists), 1);
    actions
        .ask(None, "list_tools", json!({"refresh": true}))
        .await
        .unwrap();
    assert_eq!(FakeServer::count(&books.lists), 2);
}

#[tokio::test(start_paused = true)]
async fn a_tool_is_called_by_original_and_injected_names() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    let other = world.server("other", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books"), public("other")]);
    let actions = world.actions();
    for params in [
        json!({"server_name": "books", "tool_name": "find", "arguments": {"q": 1}}),
        json!({"serverName": "Books", "toolName": "mcp_books_find", "arguments": {"q": 1}}),
        json!({"name": "mcp_books_find", "arguments": {"q": 1}}),
        json!({"name": "mcp__books__find", "arguments": {"q": 1}}),
    ] {
        let answer = actions.ask(U1, "call_tool", params).await.unwrap();
        assert_eq!(answer["content"], r#"{"q":1}"#);
        assert_eq!(answer["is_error"], false);
    }
    assert_eq!(*books.calls.lock().unwrap(), ["find"; 4]);
    assert_eq!(
        FakeServer::count(&other.connects),
        0,
        "its prefix does not fit"
    );
}

#[tokio::test(start_paused = true)]
async fn the_mcp_form_is_the_result_untouched() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    let result = json!({"content": [], "isError": true, "x": {"y": 1.0}});
    books.will(Ok(result.clone()));
    let params = json!({"name": "mcp_books_find", "result": "mcp"});
    let answer = world.actions().ask(U1, "call_tool", params).await.unwrap();
    assert_eq!(answer, result);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tool_is_told_after_one_fresh_list() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    let actions = world.actions();
    let of = json!({"server_name": "books", "tool_name": "lend"});
    let failure = actions.ask(U1, "call_tool", of.clone()).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ToolNotFound);
    assert!(
        failure.message.contains("it has find"),
        "{}",
        failure.message
    );
    assert_eq!(failure.details["outcome"], "not_sent");
    assert_eq!(FakeServer::count(&books.lists), 1);
    *books.tools.lock().unwrap() = FakeServer::new(&["find", "lend"])
        .tools
        .into_inner()
        .unwrap();
    actions.ask(U1, "call_tool", of).await.unwrap();
    assert_eq!(FakeServer::count(&books.lists), 2);
    let by_name = actions
        .ask(U1, "call_tool", json!({"name": "mcp_books_nope"}))
        .await;
    assert_eq!(by_name.unwrap_err().code, ErrorCode::ToolNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_name_whose_server_is_down_fails_as_that_server() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    *books.refuses.lock().unwrap() = Some(Failure::new(ErrorCode::ConnectFailed, "no"));
    world.defines(U1, vec![public("books")]);
    let failure = world
        .actions()
        .ask(U1, "call_tool", json!({"name": "mcp_books_find"}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, ErrorCode::ConnectFailed);
    assert_eq!(failure.details["server_name"], "books");
    assert_eq!(failure.details["outcome"], "not_sent");
    assert!(failure.details.contains_key("elapsed_ms"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_list_is_called_anyway() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&[]));
    *books.tools.lock().unwrap() = Err(Failure::new(ErrorCode::ServerError, "no such method"));
    world.defines(U1, vec![public("books")]);
    let params = json!({"server_name": "books", "tool_name": "find"});
    world.actions().ask(U1, "call_tool", params).await.unwrap();
    assert_eq!(*books.calls.lock().unwrap(), ["find"]);
}

async fn calls_after(failures: &[Failure], hints: Value) -> (usize, Result<Value, Failure>) {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&[]));
    let tool = json!({"name": "find", "inputSchema": {"type": "object"}, "annotations": hints});
    *books.tools.lock().unwrap() = Ok(vec![tool]);
    world.defines(U1, vec![public("books")]);
    for failure in failures {
        books.will(Err(failure.clone()));
    }
    let params = json!({"server_name": "books", "tool_name": "find"});
    let answer = world.actions().ask(U1, "call_tool", params).await;
    let calls = books.calls.lock().unwrap().len();
    (calls, answer)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_run_is_not_sent_again() {
    let (calls, answer) = calls_after(&[crashed()], json!({})).await;
    let failure = answer.unwrap_err();
    assert_eq!(calls, 1);
    assert_eq!(failure.details["outcome"], "unknown");
    assert!(
        failure.message.contains("may have run"),
        "{}",
        failure.message
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_arrived_is_sent_once_more() {
    let unsent = crashed().outcome(Outcome::NotSent);
    let (calls, answer) = calls_after(std::slice::from_ref(&unsent), json!({})).await;
    assert_eq!((calls, answer.is_ok()), (2, true));
    let (calls, answer) = calls_after(&[unsent.clone(), unsent], json!({})).await;
    assert_eq!(calls, 2);
    assert_eq!(answer.unwrap_err().details["outcome"], "not_sent");
}

#[tokio::test(start_paused = true)]
async fn retries_are_a_small_part_of_the_calls() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    let actions = world.actions();
    let unsent = Failure::new(ErrorCode::SessionLost, "not delivered")
        .phase(Phase::Call)
        .outcome(Outcome::NotSent);
    for _ in 0..20 {
        books.will(Err(unsent.clone()));
    }
    let params = json!({"server_name": "books", "tool_name": "find"});
    for _ in 0..10 {
        let failure = actions
            .ask(U1, "call_tool", params.clone())
            .await
            .unwrap_err();
        assert_eq!(failure.details["outcome"], "not_sent");
    }
    assert_eq!(books.calls.lock().unwrap().len(), 10 + 3);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_may_be_repeated_is_sent_once_more() {
    let hints = json!({"idempotentHint": true});
    let (calls, answer) = calls_after(&[crashed()], hints.clone()).await;
    assert_eq!((calls, answer.is_ok()), (2, true));
    let second = crashed().outcome(Outcome::NotSent);
    let (_, answer) = calls_after(&[crashed(), second], hints.clone()).await;
    assert_eq!(
        answer.unwrap_err().details["outcome"],
        "unknown",
        "the first may have run"
    );
    let refused = Failure::new(ErrorCode::ServerError, "invalid params");
    let (calls, answer) = calls_after(&[refused], hints).await;
    assert_eq!(calls, 1, "the server's own error is final");
    assert!(!answer.unwrap_err().details.contains_key("outcome"));
}

#[tokio::test(start_paused = true)]
async fn new_credentials_lead_to_a_new_connection_and_the_old_one_closes() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![private("books", "first-key")]);
    let actions = world.actions();
    let call = json!({"server_name": "books", "tool_name": "find"});
    actions.ask(U1, "call_tool", call.clone()).await.unwrap();
    world.defines(U1, vec![private("books", "second-key")]);
    actions.ask(U1, "call_tool", call).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(FakeServer::count(&books.connects), 2);
    assert_eq!(FakeServer::count(&books.closes), 1);
    assert_eq!(actions.pool.live(), 1);
}

#[tokio::test(start_paused = true)]
async fn credentials_that_change_during_the_handshake_serve_nobody() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![private("books", "first-key")]);
    *books.meanwhile.lock().unwrap() = Some(Box::new(|world| {
        world.defines(U1, vec![private("books", "second-key")]);
    }));
    let actions = world.actions();
    let call = json!({"server_name": "books", "tool_name": "find"});
    actions.ask(U1, "call_tool", call).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(FakeServer::count(&books.connects), 2);
    assert_eq!(FakeServer::count(&books.closes), 1);
    assert_eq!(
        FakeServer::count(&books.lists),
        1,
        "the outdated one was not even listed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_that_a_change_calls_off_is_made_again_with_what_is_in_force() {
    let world = World::default();
    let slow = FakeServer {
        start_takes: Duration::from_secs(1),
        ..FakeServer::new(&["find"])
    };
    let books = world.server("books", slow);
    world.defines(U1, vec![private("books", "first-key")]);
    *books.meanwhile.lock().unwrap() = Some(Box::new(|world| {
        world.defines(U1, vec![private("books", "second-key")]);
    }));
    let actions = world.actions();
    let call = json!({"server_name": "books", "tool_name": "find"});
    // The first that reads the new credentials takes what was started with the old ones out of the pool.
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        actions.ask(U1, "list_servers", json!({})).await
    };
    let (called, listed) = tokio::join!(actions.ask(U1, "call_tool", call), other);
    listed.unwrap();
    called.unwrap();
    assert_eq!(FakeServer::count(&books.connects), 2);
    assert_eq!(FakeServer::count(&books.lists), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_disconnected_is_cancelled() {
    let world = World::default();
    let slow = FakeServer {
        start_takes: Duration::from_secs(1),
        ..FakeServer::new(&["find"])
    };
    let books = world.server("books", slow);
    world.defines(U1, vec![private("books", "key")]);
    let actions = world.actions();
    let named = json!({"server_name": "books"});
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        actions.ask(U1, "disconnect_server", named.clone()).await
    };
    let (connected, closed) = tokio::join!(actions.ask(U1, "connect_server", named.clone()), other);
    closed.unwrap();
    assert_eq!(connected.unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(FakeServer::count(&books.connects), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_disabled_during_the_handshake_serves_nobody() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    *books.meanwhile.lock().unwrap() = Some(Box::new(|world| {
        let mut off = public("books");
        off.definition.is_enabled = false;
        world.defines(U1, vec![off]);
    }));
    let actions = world.actions();
    let call = json!({"server_name": "books", "tool_name": "find"});
    let failure = actions.ask(U1, "call_tool", call).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ServerDisabled);
    assert_eq!(*books.calls.lock().unwrap(), [""; 0]);
    assert_eq!(actions.pool.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_disabled_or_deleted_server_is_closed_by_the_next_snapshot() {
    for user in [None, U1] {
        let world = World::default();
        let books = world.server("books", FakeServer::new(&["find"]));
        world.defines(user, vec![public("books")]);
        let actions = world.actions();
        actions
            .ask(user, "connect_server", json!({"server_name": "books"}))
            .await
            .unwrap();
        world.defines(user, vec![]);
        actions.ask(user, "list_servers", json!({})).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(FakeServer::count(&books.closes), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn another_users_snapshot_closes_nothing_that_it_does_not_show() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    let mut own = public("books");
    own.user_credentials = Some(key("own-key"));
    world.defines(Some("u2"), vec![own]);
    world.defines(Some("u3"), vec![]);
    let actions = world.actions();
    actions
        .ask(U1, "connect_server", json!({"server_name": "books"}))
        .await
        .unwrap();
    for user in ["u2", "u3"] {
        actions
            .ask(Some(user), "list_servers", json!({}))
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(FakeServer::count(&books.closes), 0);
}

#[tokio::test(start_paused = true)]
async fn a_user_closes_only_their_own_connection() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    world.server("own", FakeServer::new(&["find"]));
    for user in ["u1", "u2"] {
        world.defines(
            Some(user),
            vec![public("books"), private("own", &format!("key-of-{user}"))],
        );
    }
    world.defines(None, vec![public("books")]);
    let actions = world.actions();
    for user in ["u1", "u2"] {
        for server in ["books", "own"] {
            let params = json!({"server_name": server});
            actions
                .ask(Some(user), "connect_server", params)
                .await
                .unwrap();
        }
    }
    assert_eq!(actions.pool.live(), 3);
    let closed = |user, server: &str| {
        let asked = actions.ask(user, "disconnect_server", json!({"server_name": server}));
        async { asked.await.unwrap()["closed"].clone() }
    };
    assert_eq!(closed(U1, "books").await, 0);
    assert_eq!(closed(U1, "own").await, 1);
    assert_eq!(closed(U1, "own").await, 0);
    assert_eq!(closed(None, "books").await, 1);
    let rest = actions.ask(None, "shutdown", json!({})).await.unwrap();
    assert_eq!(rest["closed"], 1);
}

#[tokio::test(start_paused = true)]
async fn conversations_are_closed_one_by_one_or_together() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    let mut books = public("books");
    books.definition.isolation = Some(Isolation::Session);
    world.defines(U1, vec![books]);
    let actions = world.actions();
    let of = json!({"server_name": "books"});
    for session in [Some("s1"), Some("s2"), Some("s3"), None] {
        let connected = actions.ask_in(session, "connect_server", of.clone()).await;
        assert!(connected.is_ok(), "{connected:?}");
    }
    let closed = |session| {
        let asked = actions.ask_in(session, "disconnect_server", of.clone());
        async { asked.await.unwrap()["closed"].clone() }
    };
    assert_eq!(closed(Some("s1")).await, 1);
    assert_eq!(closed(Some("s1")).await, 0);
    let servers = |session| {
        let asked = actions.ask_in(session, "list_servers", json!({}));
        async { asked.await.unwrap()["servers"][0]["connected"].clone() }
    };
    assert_eq!(servers(Some("s1")).await, false);
    assert_eq!(servers(Some("s2")).await, true);
    assert_eq!(servers(None).await, true);
    assert_eq!(closed(None).await, 3);
    assert_eq!(servers(None).await, false);
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_is_in_force_before_its_answer() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    world.defines(None, vec![public("books")]);
    let actions = world.actions();
    let of = json!({"server_name": "books"});
    for (name, params) in [("disconnect_server", of.clone()), ("shutdown", json!({}))] {
        actions
            .ask(None, "connect_server", of.clone())
            .await
            .unwrap();
        let live = actions.live_when_in_force(name, params).await;
        assert_eq!(live, [0], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn connect_server_tells_what_it_met_and_init_connects_the_public_ones() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    let down = world.server("down", FakeServer::new(&[]));
    *down.refuses.lock().unwrap() = Some(Failure::new(ErrorCode::ConnectFailed, "no"));
    world.defines(
        U1,
        vec![public("books"), public("down"), private("own", "own-key")],
    );
    let actions = world.actions();
    let answer = actions
        .ask(U1, "connect_server", json!({"server_name": "books"}))
        .await
        .unwrap();
    assert_eq!(
        answer,
        json!({
            "message": "connected to books", "server_name": "books",
            "protocol_version": "2025-11-25", "server_info": {"name": "fake"},
            "capabilities": {"tools": {}}, "tools_count": 1,
        })
    );
    let answer = actions.ask(U1, "init", json!({})).await.unwrap();
    let servers = answer["public_servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    assert_eq!(
        servers[0],
        json!({"server": "books", "status": "connected"})
    );
    assert_eq!(servers[1]["status"], "failed");
}

#[tokio::test(start_paused = true)]
async fn refresh_tools_reads_the_connected_servers_again() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    let idle = world.server("idle", FakeServer::new(&["rest"]));
    world.defines(U1, vec![public("books"), public("idle")]);
    let actions = world.actions();
    actions
        .ask(U1, "connect_server", json!({"server_name": "books"}))
        .await
        .unwrap();
    let answer = actions.ask(U1, "refresh_tools", json!({})).await.unwrap();
    assert_eq!(answer["servers_refreshed"], 1);
    assert_eq!(
        answer["tools"],
        json!([{"name": "find", "inputSchema": {"type": "object"}}])
    );
    assert_eq!(FakeServer::count(&books.lists), 2);
    assert_eq!(FakeServer::count(&idle.connects), 0);
    let params = json!({"server_name": "idle"});
    let answer = actions.ask(U1, "refresh_tools", params).await.unwrap();
    assert_eq!(answer["tools"][0]["name"], "rest");
}

#[tokio::test(start_paused = true)]
async fn list_servers_tells_where_each_stands() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    let mut off = public("off");
    off.definition.is_enabled = false;
    let mut lacking = private("lacking", "");
    lacking.user_credentials = None;
    lacking.definition.requires_credentials = true;
    lacking
        .definition
        .extra
        .insert("tool_meta".to_owned(), json!({"a": 1}));
    world.defines(U1, vec![public("books"), off, lacking]);
    let actions = world.actions();
    actions
        .ask(U1, "connect_server", json!({"server_name": "books"}))
        .await
        .unwrap();
    let answer = actions.ask(U1, "list_servers", json!({})).await.unwrap();
    let [books, off, lacking] = &answer["servers"].as_array().unwrap()[..] else {
        panic!("{answer}");
    };
    assert_eq!(books["status"], "connected");
    assert_eq!(books["connected"], true);
    assert_eq!(books["tools_count"], 1);
    assert_eq!(books["credential_source"], "default");
    assert_eq!(books["protocol_version"], "2025-11-25");
    assert_eq!(books["noise_lines"], 3);
    assert_eq!(off["status"], "disabled");
    assert_eq!(lacking["status"], "credentials_required");
    assert_eq!(lacking["has_credential"], false);
    assert_eq!(lacking["credential_source"], Value::Null);
    assert_eq!(lacking["tool_meta"], json!({"a": 1}));
    assert!(lacking["last_error"].is_string());
    assert!(!answer.to_string().contains("default-key"));
}

#[tokio::test]
async fn warm_lists_are_shared_not_made_again() {
    let world = World::default();
    let names: Vec<String> = (0..50).map(|number| format!("tool_{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut entries = Vec::new();
    for number in 0..200 {
        let server = format!("server{number}");
        world.server(&server, FakeServer::new(&names));
        entries.push(public(&server));
    }
    world.defines(U1, entries);
    let actions = Arc::new(world.actions());
    let first = actions.ask(U1, "list_tools", json!({})).await.unwrap();
    assert_eq!(first["tools"].as_array().unwrap().len(), 10_000);
    let rope = actions.list_all(U1).await;
    let again = actions.list_all(U1).await;
    let shared = |(one, two): (&bytes::Bytes, &bytes::Bytes)| one.as_ptr() == two.as_ptr();
    let long = |(one, _): &(&bytes::Bytes, &bytes::Bytes)| one.len() > 1000;
    let pairs = rope.pieces().iter().zip(again.pieces()).filter(long);
    assert_eq!(pairs.filter(|pair| shared(*pair)).count(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_the_host_has_is_answered_with_what_differs() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find", "lend", "sell"]));
    world.defines(U1, vec![public("books")]);
    world.defines(Some("u2"), vec![public("books")]);
    let actions = world.actions();
    let ask = async |user, revision: &str, refresh: bool| {
        let params = json!({"if_revision": revision, "refresh": refresh});
        actions.ask(user, "list_tools", params).await.unwrap()
    };
    let first = ask(U1, "none yet", false).await;
    assert_eq!(names(&first).len(), 3);
    let revision = first["revision"].as_str().unwrap();
    let same = ask(U1, revision, true).await;
    let unchanged = json!({"revision": revision, "unchanged": true, "errors": []});
    assert_eq!(same, unchanged);

    let tool = |name: &str, schema: Value| json!({"name": name, "inputSchema": schema});
    *books.tools.lock().unwrap() = Ok(vec![
        tool("find", json!({"type": "object"})),
        tool("lend", json!({"type": "object", "title": "new"})),
        tool("burn", json!({"type": "object"})),
    ]);
    let later = ask(U1, revision, true).await;
    let named = |member: &str| {
        let tools = later[member].as_array().unwrap().iter();
        tools
            .map(|tool| tool["original_name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(later["unchanged"], false);
    assert_eq!(named("added"), ["burn"]);
    assert_eq!(named("changed"), ["lend"]);
    assert_eq!(later["changed"][0]["inputSchema"]["title"], "new");
    assert_eq!(later["removed"], json!(["mcp_books_sell"]));
    assert!(later.get("tools").is_none());
    let latest = later["revision"].as_str().unwrap();
    assert_eq!(ask(U1, latest, false).await["unchanged"], true);
    let back = ask(U1, revision, false).await;
    assert_eq!(
        back["removed"],
        json!(["mcp_books_sell"]),
        "older ones are remembered too"
    );
    let other = ask(Some("u2"), revision, false).await;
    assert_eq!(names(&other).len(), 3, "a revision is one user's");
}

/// Waits until tools were kept so often in all.
async fn kept(world: &World, times: usize) {
    let mut keeps = world.keeps.subscribe();
    keeps.wait_for(|count| *count >= times).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_kept_answers_at_once_and_is_listed_again_behind() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    world
        .actions()
        .ask(U1, "list_tools", json!({}))
        .await
        .unwrap();
    kept(&world, 1).await;

    // Another process: the server has other tools by now, and takes its time.
    let after = world.actions();
    *books.tools.lock().unwrap() = Ok(vec![json!({"name": "lend", "inputSchema": {}})]);
    let at = tokio::time::Instant::now();
    let listed = after.ask(U1, "list_tools", json!({})).await.unwrap();
    assert_eq!(names(&listed), ["mcp_books_find"]);
    assert_eq!(at.elapsed(), Duration::ZERO);
    kept(&world, 2).await;
    let listed = after.ask(U1, "list_tools", json!({})).await.unwrap();
    assert_eq!(names(&listed), ["mcp_books_lend"]);
    assert_eq!(FakeServer::count(&books.connects), 2);

    // One that cannot be reached is tried again each time, and goes on being shown as it was.
    *books.refuses.lock().unwrap() = Some(crashed());
    let down = world.actions();
    for _ in 0..2 {
        let listed = down.ask(U1, "list_tools", json!({})).await.unwrap();
        assert_eq!(names(&listed), ["mcp_books_lend"]);
    }
    let refreshed = down.ask(U1, "list_tools", json!({"refresh": true})).await;
    assert_eq!(refreshed.unwrap()["errors"][0]["server_name"], "books");
}

#[tokio::test(start_paused = true)]
async fn what_was_kept_is_shown_to_nobody_else_and_not_under_other_credentials() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["secret_tool"]));
    world.defines(U1, vec![private("books", "one")]);
    world.defines(Some("u2"), vec![private("books", "two")]);
    world
        .actions()
        .ask(U1, "list_tools", json!({}))
        .await
        .unwrap();
    kept(&world, 1).await;
    *books.tools.lock().unwrap() = Ok(vec![json!({"name": "open_tool", "inputSchema": {}})]);
    let after = world.actions();
    let other = after
        .ask(Some("u2"), "list_tools", json!({}))
        .await
        .unwrap();
    assert_eq!(names(&other), ["mcp_books_open_tool"]);
    let own = after.ask(U1, "list_tools", json!({})).await.unwrap();
    assert_eq!(names(&own), ["mcp_books_secret_tool"]);
    world.defines(U1, vec![private("books", "another")]);
    let own = after.ask(U1, "list_tools", json!({})).await.unwrap();
    assert_eq!(names(&own), ["mcp_books_open_tool"]);
}

#[tokio::test(start_paused = true)]
async fn tools_of_one_conversation_are_not_kept() {
    let world = World::default();
    world.server("books", FakeServer::new(&["find"]));
    world.server("wiki", FakeServer::new(&["read"]));
    let mut own = private("books", "one");
    own.definition.isolation = Some(Isolation::Session);
    world.defines(U1, vec![own, public("wiki")]);
    let actions = world.actions();
    actions
        .ask_in(Some("s1"), "list_tools", json!({}))
        .await
        .unwrap();
    kept(&world, 1).await;
    assert_eq!(*world.keeps.borrow(), 1, "the other server's alone");
}
