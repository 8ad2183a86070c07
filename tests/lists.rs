//! Resources, prompts and completion, end to end: the built daemon, real pipes, a fake server.

mod ground;

use ground::Ground;
use serde_json::{Value, json};

fn result(value: &Value) -> Value {
    json!([{"do": "result", "text": value.to_string()}])
}

fn initialized(capabilities: Value) -> Value {
    result(&json!({
        "protocolVersion": "2025-11-25", "capabilities": capabilities,
        "serverInfo": {"name": "fake", "version": "1"},
    }))
}

#[test]
fn lists_and_questions_reach_the_server_and_come_back_as_sent() {
    let ground = Ground::new();
    let on = json!({
        "initialize": initialized(json!({"resources": {}, "prompts": {}, "completions": {}})),
        "resources/list": result(&json!({"resources": [{"uri": "a://b", "x": 1.5}], "nextCursor": "c"})),
        "prompts/list": result(&json!({"prompts": [{"name": "greet"}]})),
        "resources/read": result(&json!({"contents": [{"uri": "a://b", "text": "t"}], "y": null})),
        "prompts/get": result(&json!({"messages": []})),
        "completion/complete": result(&json!({"completion": {"values": ["v"]}})),
    });
    let fake = ground.stdio("books", json!({"on": on}), |_| {});
    ground.stdio("plain", json!({}), |_| {});
    let mut daemon = ground.daemon();

    let resource = json!({"uri": "a://b", "x": 1.5, "server_name": "books"});
    let listed = daemon.ask("alice", json!({"action": "list_resources"}));
    let repeats = "the server repeats a cursor; the list ends there";
    assert_eq!(
        *listed.ok(),
        json!({
            "resources": [resource, resource], "errors": [],
            "warnings": [{"server_name": "books", "warning": repeats}],
        })
    );
    let listed = daemon.ask("alice", json!({"action": "list_prompts"}));
    assert_eq!(listed.ok()["prompts"][0]["name"], "greet");

    for (params, expected) in [
        (
            json!({"action": "read_resource", "uri": "a://b"}),
            json!({"contents": [{"uri": "a://b", "text": "t"}], "y": null}),
        ),
        (
            json!({"action": "get_prompt", "name": "greet"}),
            json!({"messages": []}),
        ),
        (
            json!({"action": "complete", "ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "n", "value": ""}}),
            json!({"completion": {"values": ["v"]}}),
        ),
    ] {
        let mut params = params;
        params["server_name"] = "books".into();
        assert_eq!(*daemon.ask("alice", params).ok(), expected);
    }
    daemon.finish();
    assert_eq!(fake.served().len(), 1);
}

#[test]
fn what_a_server_cannot_do_is_unsupported() {
    let ground = Ground::new();
    ground.stdio("plain", json!({}), |_| {});
    // It declares resources, but does not know the method of their templates.
    let on = json!({"initialize": initialized(json!({"resources": {}}))});
    ground.stdio("half", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    for (server, params, capability) in [
        ("plain", json!({"action": "list_prompts"}), "prompts"),
        (
            "half",
            json!({"action": "list_resource_templates"}),
            "resources",
        ),
        (
            "half",
            json!({"action": "read_resource", "uri": "a://b"}),
            "resources",
        ),
    ] {
        let mut params = params;
        params["server_name"] = server.into();
        let answer = daemon.ask("alice", params);
        let details = answer.failure("unsupported");
        assert_eq!(details["capability"], capability);
        assert_eq!(details["server_name"], server);
    }
    daemon.finish();
}
