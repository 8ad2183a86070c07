//! Secrets in force show nowhere: not in logs at their most talkative, not in failures, not at rest.

mod ground;

use ground::{Daemon, Ground, Mode, call};
use serde_json::{Value, json};

/// A daemon that logs everything it can log, of every crate.
fn talkative(ground: &Ground) -> Daemon {
    ground.set("log_level", "trace");
    let mut command = ground.command();
    command.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "1");
    Daemon::start(ground, command)
}

fn token(ground: &Ground, name: &str) -> Value {
    json!({"userId": name, "accessToken": ground.canary(&format!("jwt-{name}"))})
}

/// Runs an action as a user with a secret access token.
fn ask(daemon: &mut Daemon, user: &Value, params: Value) -> ground::Answer {
    let task = daemon.command(json!({"params": params, "user": user}));
    daemon.answer(&task)
}

#[test]
fn no_action_and_no_failure_of_a_stdio_server_shows_a_secret() {
    let ground = Ground::new();
    let key = ground.canary("key");
    let in_error =
        json!({"code": -32000, "message": format!("refused: {key}"), "data": {"key": key}})
            .to_string();
    let bad_line =
        format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[],"x":NaN,"key":"{key}"}}}}"#);
    let script = json!({"on": {
        "start": [{"do": "stderr_variable", "name": "TOKEN"}],
        "tools/call:prints": [{"do": "stderr_variable", "name": "TOKEN"}, {"do": "execute"}],
        "tools/call:refuses": [{"do": "error", "text": in_error}],
        "tools/call:breaks": [{"do": "line", "text": bad_line}],
        "tools/call:hangs": [{"do": "hang"}],
        "tools/call:dies": [{"do": "stderr_variable", "name": "TOKEN"}, {"do": "exit", "code": 9}]
    }});
    let fake = ground.stdio("books", script, |row| {
        row.token("KEY");
        let mut words: Vec<Value> = row.0["args"].as_array().expect("words").clone();
        words.push("--key=${user.KEY}".into());
        row.set("args", words);
    });
    ground.credentials("alice", "books", json!({"KEY": key}));
    let alice = token(&ground, "alice");
    let mut daemon = talkative(&ground);
    for action in ["list_tools", "list_servers", "refresh_tools", "init"] {
        ask(&mut daemon, &alice, json!({"action": action})).ok();
    }
    ask(
        &mut daemon,
        &alice,
        json!({"action": "connect_server", "server_name": "books"}),
    )
    .ok();
    // A result is the user's own data: it passes.
    assert_eq!(
        ask(&mut daemon, &alice, call("books", "whoami", json!({}))).content(),
        key
    );
    ask(
        &mut daemon,
        &alice,
        call("books", "echo", json!({"key": key})),
    )
    .ok();
    ask(&mut daemon, &alice, call("books", "prints", json!({}))).ok();
    let refused = ask(&mut daemon, &alice, call("books", "refuses", json!({})));
    assert!(
        refused.failure("server_error")["data"]["key"] == "***",
        "{}",
        refused.text
    );
    ask(&mut daemon, &alice, call("books", "breaks", json!({}))).failure("protocol_error");
    let mut hangs = call("books", "hangs", json!({}));
    hangs["timeout_ms"] = 200.into();
    ask(&mut daemon, &alice, hangs).failure("call_timeout");
    let died = ask(&mut daemon, &alice, call("books", "dies", json!({})));
    assert!(
        died.failure("server_crashed")["stderr"]
            .to_string()
            .contains("***"),
        "{}",
        died.text
    );
    ask(
        &mut daemon,
        &alice,
        json!({"action": "disconnect_server", "server_name": "books"}),
    )
    .ok();
    assert!(fake.starts() >= 1);
    daemon.finish();
}

#[test]
fn no_action_and_no_failure_of_an_http_server_shows_a_secret() {
    let ground = Ground::new();
    let key = ground.canary("key");
    let refuse = |status: u16| json!([{"do": "http", "status": status, "body": format!("key {key} is not good")}]);
    let script = json!({"on": {
        "tools/call:refused": refuse(403), "tools/call:failed": refuse(500), "tools/call:unauthorized": refuse(401),
        "tools/call:garbage": [{"do": "tcp", "latin1": format!("{key}\r\n\r\n")}, {"do": "cut"}]
    }});
    ground.http("books", script, |row| {
        let url = row.0["url"].as_str().expect("a url").to_owned();
        row.header("X-Other", "${user.OTHER}")
            .set("url", format!("{url}?k=${{user.IN_URL}}"));
    });
    ground.http("away", json!({}), |row| {
        row.set("url", "http://127.0.0.1:1/${user.IN_URL}");
    });
    let fields =
        json!({"api_key": key, "OTHER": ground.canary("other"), "IN_URL": ground.canary("in-url")});
    ground.credentials("alice", "books", fields.clone());
    ground.credentials("alice", "away", fields);
    let alice = token(&ground, "alice");
    let mut daemon = talkative(&ground);
    for action in ["list_tools", "list_servers", "refresh_tools"] {
        ask(&mut daemon, &alice, json!({"action": action})).ok();
    }
    assert_eq!(
        ask(&mut daemon, &alice, call("books", "whoami", json!({}))).content(),
        key
    );
    for tool in ["refused", "failed", "unauthorized", "garbage"] {
        assert!(ask(&mut daemon, &alice, call("books", tool, json!({}))).is_failure());
    }
    ask(&mut daemon, &alice, call("away", "echo", json!({})))
        .failure_in(&["connect_failed", "circuit_open"]);
    daemon.finish();
}

/// What `encodeURIComponent` escapes.
const URI_COMPONENT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');

#[test]
fn a_secret_shows_in_none_of_its_other_forms() {
    let ground = Ground::new();
    // Quotes and slashes: JSON, percent and base64 forms all differ from the value.
    let key = format!("k\"ey/{}+?&", ground.canary("odd"));
    ground.canary("never used");
    let forms = [
        serde_json::to_string(&key)
            .expect("JSON")
            .trim_matches('"')
            .to_owned(),
        percent_encoding::utf8_percent_encode(&key, URI_COMPONENT).to_string(),
        url::form_urlencoded::byte_serialize(key.as_bytes()).collect(),
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &key),
    ];
    let on: serde_json::Map<String, Value> = forms
        .iter()
        .enumerate()
        .map(|(n, form)| {
            let error = json!({"code": -32000, "message": format!("seen: {form}")}).to_string();
            (
                format!("tools/call:form{n}"),
                json!([{"do": "stderr", "text": form}, {"do": "error", "text": error}]),
            )
        })
        .collect();
    ground.stdio("books", json!({"on": on}), |row| {
        row.token("KEY");
    });
    ground.credentials("alice", "books", json!({"KEY": key}));
    let mut daemon = talkative(&ground);
    for (n, form) in forms.iter().enumerate() {
        let answer = daemon.ask("alice", call("books", &format!("form{n}"), json!({})));
        answer.failure("server_error");
        assert!(!answer.text.contains(form), "{form}: {}", answer.text);
    }
    daemon.close_stdin();
    daemon.wait();
    for form in forms {
        assert!(!daemon.stderr().contains(&form), "{form} is in the log");
    }
}

#[test]
fn failures_of_the_config_host_show_no_token_and_no_row() {
    let ground = Ground::new();
    ground.set("config_timeout", "300ms");
    ground.set("config_ttl", "0s");
    let key = ground.canary("key");
    ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    ground.credentials("alice", "books", json!({"KEY": key}));
    let alice = token(&ground, "alice");
    for mode in [
        Mode::Cut,
        Mode::Half,
        Mode::Status(401),
        Mode::Status(500),
        Mode::Body(format!(
            "{{\"code\":200,\"data\":{{\"servers\":\"{key}\"}}}}"
        )),
    ] {
        ground.host.be(mode.clone());
        let mut daemon = talkative(&ground);
        assert!(
            ask(&mut daemon, &alice, json!({"action": "list_servers"})).is_failure(),
            "{mode:?}"
        );
        daemon.finish();
    }
}

#[test]
fn commands_that_are_refused_do_not_show_what_they_carried() {
    let ground = Ground::new();
    let mut daemon = talkative(&ground);
    let secret = ground.canary("in-a-bad-line");
    daemon.line(format!(r#"{{"user":{{"accessToken":"{secret}"}},"#).as_bytes());
    daemon.answer("null").failure("invalid_json");
    daemon.line(
        format!(r#"{{"task_id":"a","params":[],"user":{{"accessToken":"{secret}"}}}}"#).as_bytes(),
    );
    daemon.answer("\"a\"").failure("invalid_command");
    daemon.line(format!(r#"{{"task_id":"b","command":"dance","user":{{"userId":"u","accessToken":"{secret}"}}}}"#).as_bytes());
    daemon.answer("\"b\"").failure("unknown_action");
    daemon.finish();
}

#[test]
fn a_credential_with_a_control_character_is_refused_by_name_only() {
    let ground = Ground::new();
    let key = ground.canary("key");
    let fake = ground.http("books", json!({}), |row| {
        row.header("X-Key", "${user.KEY}");
    });
    ground.credentials(
        "alice",
        "books",
        json!({"KEY": format!("{key}\r\nX-Evil: 1")}),
    );
    let leading = ground.stdio("films", json!({}), |row| {
        let mut words: Vec<Value> = row.0["args"].as_array().expect("words").clone();
        words.push("${user.KEY}".into());
        row.set("args", words);
    });
    ground.credentials("alice", "films", json!({"KEY": format!("--{key}")}));
    let mut daemon = talkative(&ground);
    for server in ["books", "films"] {
        let answer = daemon.ask("alice", call(server, "echo", json!({})));
        assert!(
            answer
                .failure("credential_invalid")
                .to_string()
                .contains("KEY"),
            "{}",
            answer.text
        );
    }
    assert_eq!((fake.requests("initialize"), leading.starts()), (0, 0));
    daemon.finish();
}
