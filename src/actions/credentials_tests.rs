use std::sync::atomic::Ordering;

use serde_json::json;

use super::super::fakes::{FakeServer, World, private, public};
use crate::model::error::ErrorCode;

const U1: Option<&str> = Some("u1");

fn set(fields: serde_json::Value) -> serde_json::Value {
    json!({"server_name": "books", "credentials": fields})
}

#[tokio::test(start_paused = true)]
async fn the_next_command_uses_what_was_set_and_deleted() {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&["find"]));
    world.defines(U1, vec![public("books")]);
    let actions = world.actions();
    let call = json!({"server_name": "books", "tool_name": "find"});
    let connects = || books.connects.load(Ordering::SeqCst);
    actions.ask(U1, "call_tool", call.clone()).await.unwrap();
    let answer = actions
        .ask(U1, "set_credentials", set(json!({"key": "hush"})))
        .await;
    let answer = answer.unwrap();
    assert_eq!(answer["fields"], json!(["key"]));
    assert!(!answer.to_string().contains("hush"));
    actions.ask(U1, "call_tool", call.clone()).await.unwrap();
    assert_eq!(connects(), 2, "another credential is another connection");
    let listed = actions
        .ask(U1, "list_credentials", json!({}))
        .await
        .unwrap();
    let own = json!([{"server_name": "books", "server_id": "id-books", "source": "user", "is_enabled": true, "updated_at": null}]);
    assert_eq!(listed["credentials"], own);
    let named = json!({"server_name": "books"});
    let deleted = actions
        .ask(U1, "delete_credentials", named.clone())
        .await
        .unwrap();
    assert_eq!(deleted["deleted"], true);
    actions.ask(U1, "call_tool", call).await.unwrap();
    assert_eq!(connects(), 2, "the shared connection was still there");
    let deleted = actions.ask(U1, "delete_credentials", named).await.unwrap();
    assert_eq!(deleted["deleted"], false);
}

#[tokio::test(start_paused = true)]
async fn the_form_says_what_to_ask_for_and_whose_is_in_force() {
    let world = World::default();
    world.server("books", FakeServer::new(&[]));
    world.defines(U1, vec![private("books", "own")]);
    let form = world
        .actions()
        .ask(U1, "credential_form", json!({"serverName": "Books"}))
        .await;
    let form = form.unwrap();
    let field = json!({"name": "key", "label": "key", "type": "password", "required": true});
    assert_eq!(form["fields"], json!([field]));
    assert_eq!(form["credential_source"], "user");
    assert!(!form.to_string().contains("own"), "{form}");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused_by_name_and_never_shown() {
    let world = World::default();
    world.server("books", FakeServer::new(&[]));
    world.defines(U1, vec![public("books")]);
    world.defines(None, vec![public("books")]);
    let actions = world.actions();
    let refused = actions
        .ask(
            U1,
            "set_credentials",
            set(json!({"key": {"a": "hush-hush"}, "other": "hush-hush"})),
        )
        .await;
    let failure = refused.unwrap_err();
    assert_eq!(failure.code, ErrorCode::CredentialInvalid);
    let faults = json!([
        {"field": "key", "reason": "must be a text, not an object"},
        {"field": "other", "reason": "is no field of this server"},
    ]);
    assert_eq!(failure.details["fields"], faults);
    assert!(!format!("{failure:?}").contains("hush"), "{failure:?}");
    for (user, params, code) in [
        (None, set(json!({"key": "k"})), ErrorCode::InvalidParams),
        (
            U1,
            json!({"server_name": "books"}),
            ErrorCode::InvalidParams,
        ),
        (
            U1,
            json!({"server_name": "books", "credentials": "key"}),
            ErrorCode::InvalidParams,
        ),
        (
            U1,
            json!({"server_name": "nowhere", "credentials": {}}),
            ErrorCode::ServerNotFound,
        ),
    ] {
        let failure = actions
            .ask(user, "set_credentials", params)
            .await
            .unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
    }
    let listed = actions
        .ask(U1, "list_credentials", json!({}))
        .await
        .unwrap();
    assert_eq!(listed["credentials"], json!([]), "nothing was set");
}
