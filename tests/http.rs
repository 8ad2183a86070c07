//! MCP servers over HTTP: sessions, streams, credentials in headers, and the end of a session.

mod ground;

use ground::{Ground, call, open};
use serde_json::{Value, json};

#[test]
fn a_tool_is_called_and_the_session_ended_in_every_shape_of_server() {
    let ground = Ground::new();
    let shapes = [
        ("json", json!({"http": {}})),
        ("sse", json!({"http": {"sse": true}})),
        ("stream", json!({"http": {"sse": true, "get_stream": true}})),
        ("stateless", json!({"http": {"sessions": false}})),
        (
            "modern",
            json!({"era": "modern", "http": {"sessions": false}}),
        ),
        ("both", json!({"era": "both"})),
        ("paged", json!({"page_size": 2})),
    ];
    let fakes: Vec<_> = shapes
        .iter()
        .map(|(name, script)| ground.http(name, script.clone(), |_| {}))
        .collect();
    let mut daemon = ground.daemon();
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(listed.ok()["errors"], json!([]));
    for (name, _) in &shapes {
        let answer = daemon.ask("alice", call(name, "echo", json!({"to": name})));
        assert_eq!(answer.ok()["structured_content"]["to"], *name);
    }
    daemon.finish();
    for fake in fakes
        .iter()
        .filter(|fake| !["stateless", "modern", "both"].contains(&fake.name.as_str()))
    {
        let deletes = fake
            .events_of("http")
            .iter()
            .filter(|line| line["verb"] == "DELETE")
            .count();
        assert_eq!(deletes, 1, "{} saw its session end", fake.name);
    }
}

#[test]
fn the_old_http_and_sse_transport_is_refused_in_words() {
    let ground = Ground::new();
    ground.http("old", json!({"http": {"legacy_sse": true}}), |row| {
        row.set("transport_type", "sse");
    });
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("old", "echo", json!({"q": 1})));
    assert_eq!(answer.failure("unsupported")["server_name"], "old");
    daemon.finish();
}

#[test]
fn stateless_http_keeps_no_session() {
    let ground = Ground::new();
    let fake = ground.http("books", json!({"http": {"sessions": false}}), |row| {
        row.set("transport_type", "statelessHttp");
    });
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
    assert!(
        fake.events_of("http")
            .iter()
            .all(|line| line["session"].is_null() && line["verb"] != "DELETE")
    );
}

#[test]
fn credentials_become_headers_and_the_definitions_own_win() {
    let ground = Ground::new();
    type Headers = &'static [(&'static str, &'static str)];
    let servers: [(&str, Value, Headers); 4] = [
        (
            "bearer",
            json!({"api_key": "k1", "token": "t1"}),
            &[("authorization", "Bearer k1")],
        ),
        (
            "token",
            json!({"token": "t2"}),
            &[("authorization", "Bearer t2")],
        ),
        ("key", json!({"API_KEY": "k3"}), &[("x-api-key", "k3")]),
        (
            "own",
            json!({"api_key": "k4", "who": "alice"}),
            &[("authorization", "Basic alice"), ("x-fixed", "${literal}")],
        ),
    ];
    for (name, fields, _) in &servers {
        ground.http(name, json!({}), |row| {
            if *name == "own" {
                row.header("AUTHORIZATION", "Basic ${user.who}")
                    .header("X-Fixed", "$${literal}");
            }
        });
        ground.credentials("alice", name, fields.clone());
    }
    let mut daemon = ground.daemon();
    for (name, _, expected) in &servers {
        let answer = daemon.ask("alice", call(name, "headers", json!({})));
        let headers: Value = serde_json::from_str(answer.content()).expect("headers");
        for (header, value) in *expected {
            assert_eq!(headers[header], *value, "{name}: {headers}");
        }
        assert!(
            !headers.to_string().contains("token-of-alice"),
            "the host's token is not for servers: {headers}"
        );
    }
    daemon.finish();
}

#[test]
fn a_value_in_the_url_is_encoded() {
    let ground = Ground::new();
    let fake = ground.http("books", json!({}), |row| {
        let url = row.0["url"].as_str().expect("a url").to_owned();
        row.set("url", format!("{url}/${{user.room}}?key=${{user.key}}"));
    });
    ground.credentials("alice", "books", json!({"room": "../a b", "key": "x&y=z#"}));
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
    let path = fake.events_of("http")[0]["path"]
        .as_str()
        .expect("a path")
        .to_owned();
    assert!(
        path.starts_with("/mcp/..%2F") && path.contains("key=x%26y%3Dz%23"),
        "{path}"
    );
}

/// Lost sessions look different from server to server; each is opened again, and the call sent once more.
#[test]
fn a_lost_session_is_opened_again_and_the_call_sent_once_more() {
    let ground = Ground::new();
    let lost = [
        ("bare404", 404, ""),
        ("text404", 404, "Session not found"),
        (
            "json404",
            404,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
        ),
        (
            "json400",
            400,
            r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}"#,
        ),
        ("text400", 400, "Invalid session id"),
    ];
    for (name, status, body) in lost {
        let script = json!({
            "http": {"lost_status": status, "lost_body": body},
            "on": {"tools/call:forget": [{"do": "execute"}, {"do": "forget"}]}
        });
        let fake = ground.http(name, script, |_| {});
        let mut daemon = ground.daemon();
        daemon.ask("alice", call(name, "forget", json!({}))).ok();
        let tasks: Vec<String> = (0..5)
            .map(|n| daemon.send("alice", call(name, "echo", json!({"n": n}))))
            .collect();
        for (n, task) in tasks.iter().enumerate() {
            assert_eq!(
                daemon.answer(task).ok()["structured_content"]["n"],
                n,
                "{name}"
            );
        }
        assert_eq!(fake.executed("echo"), 5, "{name}: each ran once");
        assert_eq!(fake.requests("initialize"), 2, "{name}: one new handshake");
        daemon.finish();
    }
}

#[test]
fn a_session_that_is_lost_amid_its_handshake_is_opened_once_more() {
    let ground = Ground::new();
    let gone =
        json!([{"do": "forget"}, {"do": "http", "status": 404, "body": "Session not found"}]);
    let once = json!({"times": 1, "steps": gone});
    let books = ground.http(
        "books",
        json!({"on": {"notifications/initialized": once}}),
        |_| {},
    );
    let films = ground.http(
        "films",
        json!({"on": {"notifications/initialized": gone}}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(books.requests("initialize"), 2);

    let lost = daemon.ask("alice", call("films", "echo", json!({})));
    let details = lost.failure("session_lost");
    assert_eq!(details["phase"], "initialize", "{}", lost.text);
    assert_eq!(details["outcome"], "not_sent", "{}", lost.text);
    assert_eq!(films.requests("initialize"), 2, "not for ever");
    daemon.finish();
}

#[test]
fn a_session_that_is_lost_for_ever_is_given_up() {
    let ground = Ground::new();
    let gone = json!([{"do": "http", "status": 404, "body": "Session not found"}]);
    let fake = ground.http("books", json!({"on": {"tools/call:gone": gone}}), |_| {});
    let mut daemon = ground.daemon();
    daemon
        .ask("alice", call("books", "gone", json!({})))
        .failure_in(&["session_lost", "protocol_error"]);
    assert!(
        fake.requests("tools/call:gone") <= 2,
        "sent once more, not for ever"
    );
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn an_unreachable_server_fails_alone_and_at_once() {
    let ground = Ground::new();
    ground.http("good", json!({}), |_| {});
    ground.http("bad", json!({}), |row| {
        // Nobody listens on port 1.
        row.set("url", "http://127.0.0.1:1/mcp");
    });
    let mut daemon = ground.daemon();
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(listed.ok()["errors"][0]["server_name"], "bad");
    assert_eq!(listed.ok()["errors"][0]["error_code"], "connect_failed");
    assert!(
        listed.ok()["tools"]
            .as_array()
            .is_some_and(|tools| !tools.is_empty())
    );
    let answer = daemon.ask("alice", call("bad", "echo", json!({})));
    assert_eq!(
        answer.failure_in(&["connect_failed", "circuit_open"])["outcome"],
        "not_sent"
    );
    daemon.finish();
}

#[test]
fn a_refused_credential_is_an_authorization_failure() {
    let ground = Ground::new();
    let refuse = json!([{"do": "http", "status": 401, "headers": {"WWW-Authenticate": "Bearer"}}]);
    ground.http(
        "books",
        json!({"on": {"initialize": refuse, "server/discover": refuse}}),
        |_| {},
    );
    let bare = json!([{"do": "http", "status": 401}]);
    ground.http("bare", json!({"on": {"tools/call:secret": bare}}), |_| {});
    let mut daemon = ground.daemon();
    daemon
        .ask("alice", call("books", "echo", json!({})))
        .failure("authorization_required");
    daemon
        .ask("alice", call("bare", "secret", json!({})))
        .failure("authorization_required");
    daemon.finish();
}

#[test]
fn many_calls_are_on_their_way_at_once() {
    let ground = Ground::new();
    let gated = json!([{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]);
    let fake = ground.http("books", json!({"on": {"tools/call:gated": gated}}), |_| {});
    let mut daemon = ground.daemon();
    let tasks: Vec<String> = (0..40)
        .map(|n| daemon.send("alice", call("books", "gated", json!({"n": n}))))
        .collect();
    fake.wait_for_requests("tools/call:gated", 40);
    open(&ground.path("gate"));
    for (n, task) in tasks.iter().enumerate() {
        assert_eq!(daemon.answer(task).ok()["structured_content"]["n"], n);
    }
    daemon.finish();
}

#[test]
fn a_server_that_never_answers_delete_holds_up_no_end() {
    let ground = Ground::new();
    ground.http("books", json!({"http": {"hang_on_delete": true}}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let answer = daemon.ask(
        "alice",
        json!({"action": "disconnect_server", "server_name": "books", "timeout_ms": 30_000}),
    );
    assert_eq!(answer.ok()["closed"], 1);
    daemon.finish();
}

#[test]
fn the_list_is_read_again_when_the_server_says_so_on_its_stream() {
    let ground = Ground::new();
    let on = json!({"tools/call:grow": [
        {"do": "tools", "tools": [{"name": "grown", "inputSchema": {"type": "object"}}]},
        {"do": "notify", "method": "notifications/tools/list_changed"},
        {"do": "execute"}
    ]});
    ground.http("books", json!({"http": {"sse": true}, "on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", json!({"action": "list_tools"})).ok();
    daemon.ask("alice", call("books", "grow", json!({}))).ok();
    daemon.ask("alice", call("books", "grown", json!({}))).ok();
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert!(
        listed.text.contains("\"grown\"") && !listed.text.contains("\"grow\""),
        "{}",
        listed.text
    );
    daemon.finish();
}

#[test]
fn a_redirect_is_a_failure_and_its_target_is_never_contacted() {
    let ground = Ground::new();
    let recorder = ground.http("recorder", json!({}), |row| {
        row.set("is_enabled", false);
    });
    let target = ground.host.server("recorder")["url"].clone();
    let redirect =
        |status: u16| json!([{"do": "http", "status": status, "headers": {"Location": target}}]);
    let statuses = [301, 302, 303, 307, 308];
    for status in statuses {
        let on = json!({"tools/call:away": redirect(status)});
        ground.http(&format!("late{status}"), json!({"on": on}), |row| {
            row.header("Authorization", "Bearer ${user.KEY}");
        });
        let on = json!({"server/discover": redirect(status), "initialize": redirect(status)});
        ground.http(&format!("early{status}"), json!({"on": on}), |row| {
            row.header("Authorization", "Bearer ${user.KEY}");
        });
        for server in ["late", "early"] {
            ground.credentials("alice", &format!("{server}{status}"), json!({"KEY": "k"}));
        }
    }
    let mut daemon = ground.daemon();
    for status in statuses {
        for (server, tool) in [("late", "away"), ("early", "echo")] {
            let server = format!("{server}{status}");
            let answer = daemon.ask("alice", call(&server, tool, json!({})));
            let details = answer.failure("connect_failed");
            assert_eq!(details["http_status"], status, "{}", answer.text);
            assert!(
                answer.text.contains("redirects to 127.0.0.1"),
                "{}",
                answer.text
            );
        }
    }
    assert_eq!(recorder.events_of("http").len(), 0);
    assert_eq!(recorder.events_of("request").len(), 0);
    daemon.finish();
}
