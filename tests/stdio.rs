//! MCP servers over stdio, end to end: the built daemon, real pipes, a fake server.

mod ground;

use ground::{Ground, call, call_raw};
use serde_json::{Value, json};

fn names(listed: &Value) -> Vec<&str> {
    let tools = listed["tools"].as_array().expect("tools");
    tools
        .iter()
        .map(|tool| tool["original_name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn a_tool_is_listed_called_and_its_server_ended() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();

    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    let tools = listed.ok()["tools"].as_array().expect("tools");
    let echo = tools
        .iter()
        .find(|tool| tool["original_name"] == "echo")
        .expect("echo");
    assert_eq!(echo["name"], "mcp_books_echo");
    assert_eq!(echo["server_name"], "books");
    assert_eq!(echo["serverName"], "books");
    assert_eq!(echo["inputSchema"], json!({"type": "object"}));
    assert_eq!(listed.ok()["errors"], json!([]));

    let answer = daemon.ask("alice", call("books", "echo", json!({"z": 1, "a": [2]})));
    assert_eq!(answer.content(), r#"{"z":1,"a":[2]}"#);
    assert_eq!(answer.ok()["is_error"], false);
    assert_eq!(answer.ok()["structured_content"], json!({"z": 1, "a": [2]}));

    daemon.finish();
    assert_eq!(fake.served().len(), 1);
    assert_eq!(fake.served_and("eof"), 1, "it was asked to end, not killed");
}

#[test]
fn the_injected_name_alone_finds_the_tool_in_both_forms() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    for name in ["mcp_books_echo", "mcp__books__echo"] {
        let answer = daemon.ask(
            "alice",
            json!({"action": "call_tool", "name": name, "arguments": {"q": name}}),
        );
        assert_eq!(answer.ok()["structured_content"]["q"], name);
    }
    daemon.finish();
}

#[test]
fn absent_and_null_arguments_reach_the_server_as_an_empty_object() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let absent = json!({"action": "call_tool", "server_name": "books", "tool_name": "echo"});
    assert_eq!(daemon.ask("alice", absent).content(), "{}");
    assert_eq!(
        daemon
            .ask("alice", call("books", "echo", Value::Null))
            .content(),
        "{}"
    );
    daemon.finish();
}

#[test]
fn arguments_reach_the_server_untouched() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let arguments = json!({"zeta": 1, "alpha": {"é": "\u{2028}", "deep": [[[]]], "big": 12_345_678_901_234_567_890_u64}});
    daemon
        .ask("alice", call("books", "echo", arguments.clone()))
        .ok();
    let request = fake.wait("the call", |line| line["key"] == "tools/call:echo");
    assert_eq!(
        request["params"]["arguments"].to_string(),
        arguments.to_string(),
        "order and numbers too"
    );
    daemon.finish();
}

#[test]
fn a_tool_error_is_a_success_line() {
    let ground = Ground::new();
    let result = r#"{"content":[{"type":"text","text":"no such book"}],"isError":true}"#;
    ground.stdio(
        "books",
        json!({"on": {"tools/call:find": [{"do": "result", "text": result}]}}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "find", json!({})));
    assert_eq!(answer.ok()["is_error"], true);
    assert_eq!(answer.content(), "no such book");
    daemon.finish();
}

#[test]
fn a_json_rpc_error_is_a_server_error_with_its_parts() {
    let ground = Ground::new();
    let error = r#"{"code":-32602,"message":"bad title","data":{"field":"title"}}"#;
    let fake = ground.stdio(
        "books",
        json!({"on": {"tools/call:find": [{"do": "error", "text": error}]}}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "find", json!({})));
    let details = answer.failure("server_error");
    assert_eq!(details["code"], -32602);
    assert_eq!(details["message"], "bad title");
    assert_eq!(details["data"], json!({"field": "title"}));
    assert_eq!(details["server_name"], "books");
    assert_eq!(details["phase"], "call");
    assert_eq!(fake.requests("tools/call:find"), 1, "a refusal is final");
    daemon.finish();
}

#[test]
fn an_unknown_server_and_an_unknown_tool_are_told_apart() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon
        .ask("alice", call("films", "echo", json!({})))
        .failure("server_not_found");
    daemon
        .ask("alice", call("books", "burn", json!({})))
        .failure("tool_not_found");
    daemon
        .ask(
            "alice",
            json!({"action": "call_tool", "name": "mcp_books_burn"}),
        )
        .failure("tool_not_found");
    daemon.finish();
}

#[test]
fn a_disabled_server_is_not_reached() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |row| {
        row.set("is_enabled", false);
    });
    let mut daemon = ground.daemon();
    daemon
        .ask("alice", call("books", "echo", json!({})))
        .failure("server_disabled");
    assert_eq!(
        daemon.ask("alice", json!({"action": "list_tools"})).ok(),
        &json!({"tools": [], "errors": []})
    );
    assert_eq!(fake.starts(), 0);
    daemon.finish();
}

/// Each of these servers does something a line reader must cope with, and answers well otherwise.
#[test]
fn noise_and_odd_framing_harm_nothing() {
    let ground = Ground::new();
    let scripts = [
        (
            "banner",
            json!({"banner": ["Loading configuration...", "", "{\"level\":\"info\"}", "42", "[]"]}),
        ),
        (
            "noise",
            json!({"noise": ["listening", "{\"jsonrpc\":\"2.0\",\"id\":987654,\"result\":{}}"]}),
        ),
        ("crlf", json!({"crlf": true})),
        ("bom", json!({"bom": true})),
        ("dribble", json!({"dribble": true})),
        (
            "chatty",
            json!({"on": {"start": [{"do": "stderr_flood", "bytes": 1_000_000}]}}),
        ),
        ("slow", json!({"start_delay_ms": 500})),
    ];
    for (name, script) in &scripts {
        ground.stdio(name, script.clone(), |_| {});
    }
    let mut daemon = ground.daemon();
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(listed.ok()["errors"], json!([]));
    for (name, _) in &scripts {
        let answer = daemon.ask("alice", call("echoes", "echo", json!({})));
        answer.failure("server_not_found");
        let answer = daemon.ask("alice", call(name, "echo", json!({"to": name})));
        assert_eq!(answer.ok()["structured_content"]["to"], *name);
    }
    daemon.finish();
}

/// Whatever a server makes of the probe, it is reached, and served in its own era.
#[test]
fn every_era_is_reached() {
    let ground = Ground::new();
    // A silent server costs half of it before it is tried the other way.
    ground.set("pool_initialize_timeout", "4s");
    ground.set("pool_start_timeout", "20s");
    let eras = [
        "legacy",
        "modern",
        "both",
        "silent",
        "dies",
        "silent_then_dies",
        "empty",
    ];
    for era in eras {
        ground.stdio(era, json!({"era": era}), |_| {});
    }
    let mut daemon = ground.daemon();
    let tasks = eras.map(|era| daemon.send("alice", call(era, "echo", json!({"era": era}))));
    for (era, task) in eras.iter().zip(tasks) {
        assert_eq!(daemon.answer(&task).ok()["structured_content"]["era"], *era);
    }
    let connected = daemon.ask(
        "alice",
        json!({"action": "connect_server", "server_name": "modern"}),
    );
    assert_eq!(connected.ok()["protocol_version"], "2026-07-28");
    let connected = daemon.ask(
        "alice",
        json!({"action": "connect_server", "server_name": "legacy"}),
    );
    assert_eq!(connected.ok()["protocol_version"], "2025-11-25");
    daemon.finish();
}

#[test]
fn a_tool_reaches_the_host_with_every_member_it_was_sent_with() {
    let ground = Ground::new();
    let tool = r#"{"name":"find","title":"Find","x-vendor":{"b":1,"a":2},"inputSchema":{"type":"object","properties":{"z":{},"a":{}},"$defs":{"n":{"type":["null","integer"]}}},"outputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"x":1e2},"icons":[{"src":"a.png","theme":"neon"}],"execution":{"taskSupport":"optional"},"_meta":{"k":12345678901234567890123}}"#;
    let tool: Box<serde_json::value::RawValue> = serde_json::from_str(tool).expect("a tool");
    let script = format!(r#"{{"tools":[{tool}]}}"#);
    let fake = ground::Fake::new(&ground, "books");
    let path = ground.path("books.script");
    let journal = json!(fake.journal);
    std::fs::write(
        &path,
        script.replacen('{', &format!(r#"{{"journal":{journal},"#), 1),
    )
    .expect("the script is written");
    ground.stdio("books", json!({}), |row| {
        row.set("args", json!(["--script-file", path]));
    });
    let mut daemon = ground.daemon();
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    for member in [
        r#""title":"Find""#,
        r#""x-vendor":{"b":1,"a":2}"#,
        r#""properties":{"z":{},"a":{}},"$defs":{"n":{"type":["null","integer"]}}"#,
        r#""annotations":{"readOnlyHint":true,"x":1e2}"#,
        r#""icons":[{"src":"a.png","theme":"neon"}]"#,
        r#""execution":{"taskSupport":"optional"}"#,
        r#""_meta":{"k":12345678901234567890123}"#,
    ] {
        assert!(
            listed.text.contains(member),
            "{member} is missing: {}",
            listed.text
        );
    }
    let refreshed = daemon.ask(
        "alice",
        json!({"action": "refresh_tools", "server_name": "books"}),
    );
    assert!(
        refreshed.text.contains(&tool.to_string()),
        "as the server sent it: {}",
        refreshed.text
    );
    daemon.finish();
}

#[test]
fn requests_of_the_server_in_the_middle_of_a_call_are_answered() {
    let ground = Ground::new();
    let on = json!({
        "tools/call:curious": [
            {"do": "ask", "method": "ping"},
            {"do": "ask", "method": "roots/list"},
            {"do": "ask", "method": "vendor/unheard-of", "params": {"a": 1}},
            {"do": "execute"}
        ]
    });
    let fake = ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon
        .ask("alice", call("books", "curious", json!({})))
        .ok();
    let answers = fake.events_of("asked");
    assert_eq!(
        answers[0]["answer"]["result"],
        json!({}),
        "a ping is answered"
    );
    assert!(
        answers[1]["answer"].get("result").is_some()
            || answers[1]["answer"]["error"]["code"] == -32601,
        "{}",
        answers[1]
    );
    assert_eq!(answers[2]["answer"]["error"]["code"], -32601);
    daemon.finish();
}

#[test]
fn progress_reaches_the_host_in_the_servers_order_and_only_where_asked_for() {
    let ground = Ground::new();
    let on = json!({"tools/call:work": [{"do": "progress", "times": 3}, {"do": "execute"}]});
    ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "work", json!({}))).ok();
    assert!(daemon.events.is_empty(), "{:?}", daemon.events);

    let mut params = call("books", "work", json!({}));
    params["progress"] = true.into();
    let task = daemon.send("alice", params);
    daemon.answer(&task).ok();
    // Under pressure the newest wins, and what was left out is counted.
    let told = &daemon.events;
    let left_out: u64 = told
        .iter()
        .filter_map(|event| event["dropped"].as_u64())
        .sum();
    assert_eq!(told.len() as u64 + left_out, 3, "{told:?}");
    let steps: Vec<u64> = told
        .iter()
        .filter_map(|event| event["params"]["progress"].as_u64())
        .collect();
    assert!(steps.is_sorted() && steps.last() == Some(&3), "{told:?}");
    for event in told {
        assert_eq!(
            (&event["type"], &event["event"]),
            (&json!("event"), &json!("progress"))
        );
        assert_eq!(event["task"].to_string(), task);
        assert_eq!(event["server_name"], "books");
    }
    daemon.finish();
}

#[test]
fn a_child_gets_a_small_environment_and_its_template_only() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.env("GREETING", "hello ${user.NAME}");
    });
    ground.credentials(
        "alice",
        "books",
        json!({"NAME": "Alice", "LD_PRELOAD": "/evil.so"}),
    );
    let mut command = ground.command();
    for (name, value) in [
        ("DB_PASSWORD", "x"),
        ("HTTPS_PROXY", "http://proxy"),
        ("LANG", "C.UTF-8"),
        ("LD_LIBRARY_PATH", "/x"),
    ] {
        command.env(name, value);
    }
    let mut daemon = ground::Daemon::start(&ground, command);
    let names = daemon.ask("alice", call("books", "env", json!({})));
    let names: Vec<String> = serde_json::from_str(names.content()).expect("names");
    let allowed = [
        "MCP_CLIENT_CONNECTION",
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TZ",
        "TMPDIR",
        "TERM",
        "GREETING",
        ground::TAG,
        // The mark by which what it leaves behind is found and ended.
        "MCP_CLIENT_CONNECTION",
    ];
    for name in &names {
        assert!(
            allowed.contains(&name.as_str()) || name.starts_with("LC_"),
            "{name} is in {names:?}"
        );
    }
    for name in ["PATH", "HOME", "LANG", "GREETING"] {
        assert!(
            names.iter().any(|other| other == name),
            "{name} is not in {names:?}"
        );
    }
    let greeting = daemon.ask("alice", call("books", "env", json!({"name": "GREETING"})));
    assert_eq!(greeting.content(), "hello Alice");
    daemon.finish();
}

#[test]
fn inherit_env_lets_named_variables_through() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    ground.set("stdio_inherit_env", "HTTPS_PROXY,SSL_CERT_FILE");
    let mut command = ground.command();
    command
        .env("HTTPS_PROXY", "http://proxy")
        .env("HTTP_PROXY", "http://other")
        .env("NO_PROXY", "127.0.0.1");
    let mut daemon = ground::Daemon::start(&ground, command);
    let names = daemon.ask("alice", call("books", "env", json!({})));
    assert!(
        names.content().contains("\"HTTPS_PROXY\"") && !names.content().contains("\"HTTP_PROXY\""),
        "{}",
        names.text
    );
    daemon.finish();
}

#[test]
fn the_raw_form_is_the_servers_result_byte_for_byte() {
    let ground = Ground::new();
    let result = r#"{ "content" : [ {"type":"text","text":"\u00e9\/"} ], "x": 1.0, "x2":1e2,"_meta":{"b":null,"a":[]} }"#;
    ground.stdio(
        "books",
        json!({"on": {"tools/call:odd": [{"do": "result", "text": result}]}}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    assert_eq!(
        daemon
            .ask("alice", call_raw("books", "odd", json!({})))
            .result_text(),
        result
    );
    let default = daemon.ask("alice", call("books", "odd", json!({})));
    assert_eq!(default.content(), "é/");
    assert_eq!(default.ok()["_meta"], json!({"b": null, "a": []}));
    daemon.finish();
}

#[test]
fn disconnect_closes_and_the_next_call_connects_again() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let disconnect = json!({"action": "disconnect_server", "server_name": "books"});
    assert_eq!(daemon.ask("alice", disconnect.clone()).ok()["closed"], 0);
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(daemon.ask("alice", disconnect).ok()["closed"], 1);
    assert_eq!(fake.served_and("eof"), 1, "closed when the answer came");
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 2);
    assert_eq!(
        daemon.ask("", json!({"action": "shutdown"})).ok()["closed"],
        1
    );
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert!(names(listed.ok()).contains(&"echo"));
    daemon.finish();
}
