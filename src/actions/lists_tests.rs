//! Resources, templates, prompts and completion over fake servers.

use serde_json::{Value, json};

use super::Action;
use super::fakes::{FakeServer, World, public};
use crate::model::error::ErrorCode;
use crate::model::json::RawJson;

const U1: Option<&str> = Some("u1");

/// `books` lists this beside its tools; `plain` lists nothing but tools.
fn world(member: &'static str, items: Vec<Value>) -> World {
    let world = World::default();
    let books = world.server("books", FakeServer::new(&[]));
    books.lists_of.lock().unwrap().insert(member, items);
    world.server("plain", FakeServer::new(&[]));
    world.defines(U1, vec![public("books"), public("plain")]);
    world
}

#[tokio::test(start_paused = true)]
async fn every_list_gathers_items_as_sent_and_names_their_server() {
    for (action, theirs, ours) in [
        ("list_resources", "resources", "resources"),
        (
            "list_resource_templates",
            "resourceTemplates",
            "resource_templates",
        ),
        ("list_prompts", "prompts", "prompts"),
    ] {
        let items = vec![
            json!({"name": "a", "_meta": {"n": 1.0}}),
            json!({}),
            json!(7),
        ];
        let actions = world(theirs, items).actions();
        let answer = actions.ask(U1, action, json!({})).await.unwrap();
        let warning =
            "1 of the ".to_owned() + &ours.replace('_', " ") + " are no objects; left out";
        let expected = json!({
            ours: [
                {"name": "a", "_meta": {"n": 1.0}, "server_name": "books"},
                {"server_name": "books"},
            ],
            "errors": [],
            "warnings": [{"server_name": "books", "warning": warning}],
        });
        assert_eq!(answer, expected, "{action}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_server_without_such_a_list_is_unsupported() {
    let actions = world("resources", vec![]).actions();
    let alone = json!({"server_name": "plain"});
    let failure = actions.ask(U1, "list_resources", alone).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Unsupported);
    assert_eq!(failure.details["server_name"], "plain");

    let named = json!({"server_names": ["books", "plain"]});
    let answer = actions.ask(U1, "list_resources", named).await.unwrap();
    let error = &answer["errors"][0];
    assert_eq!(error["server_name"], "plain");
    assert_eq!(error["error_code"], "unsupported");
}

#[tokio::test(start_paused = true)]
async fn a_question_reaches_the_server_it_names_with_what_was_given() {
    let actions = world("prompts", vec![]).actions();
    for (action, params, told) in [
        ("read_resource", json!({"uri": "a://b"}), "a://b"),
        ("get_prompt", json!({"name": "greet"}), "greet"),
        (
            "complete",
            json!({"ref": {"type": "ref/prompt"}, "argument": {"name": "n"}}),
            "ref/prompt",
        ),
    ] {
        let mut params = params;
        params["server_name"] = "books".into();
        let answer = actions.ask(U1, action, params).await.unwrap();
        let asked = answer["asked"].as_str().unwrap();
        assert!(asked.contains(told), "{action}: {asked}");
    }
}

#[test]
fn what_is_missing_in_a_question_is_named() {
    for (action, params, missing) in [
        ("read_resource", json!({"server_name": "a"}), "`uri`"),
        ("get_prompt", json!({"server_name": "a"}), "`name`"),
        (
            "complete",
            json!({"server_name": "a", "ref": {}}),
            "`argument`",
        ),
        ("complete", json!({"server_name": "a"}), "`ref`"),
        ("read_resource", json!({"uri": "a://b"}), "`server_name`"),
    ] {
        let failure = Action::parse(action, Some(&RawJson::from(&params))).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidParams);
        assert!(failure.message.contains(missing), "{failure}");
    }
}
