//! `call`, `tools` and `servers`: one action, then the end.

mod ground;

use std::process::{Command, Output};

use ground::{Ground, Mode};
use serde_json::json;

fn run(ground: &Ground, token: Option<&str>, arguments: &[&str]) -> Output {
    let mut command: Command = ground.command();
    command.args(arguments);
    if let Some(token) = token {
        command.env("MCP_CLIENT_ACCESS_TOKEN", token);
    }
    command.output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn a_timeout_ends_what_takes_longer() {
    let ground = Ground::new();
    let on = json!({"tools/call:hang": [{"do": "hang"}]});
    ground.stdio("books", json!({"on": on}), |_| {});
    let call = ["call", "books", "hang", "--user", "alice"];
    let output = run(&ground, None, &[&call[..], &["--timeout", "3s"]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("(call_timeout)"), "{said}");

    ground.host.be(Mode::Silent);
    for listing in ["tools", "servers"] {
        let output = run(&ground, None, &[listing, "--json", "--timeout", "100ms"]);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("call_timeout"), "{said}");
    }
    let output = run(&ground, None, &["servers", "--timeout", "10"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("30s"), "an example");
}

#[test]
fn a_users_token_comes_from_the_environment_and_goes_to_the_config_host_alone() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.set("is_public", false);
    });
    let token = ground.canary("token");
    for arguments in [
        &["servers"][..],
        &["tools"],
        &["call", "books", "env"],
        &["doctor"],
    ] {
        let arguments = [arguments, &["--user", "alice"]].concat();
        let before = ground.host.requests().len();
        let output = run(&ground, Some(&token), &arguments);
        let said = [text(&output.stdout), text(&output.stderr)].concat();
        assert!(!said.contains(&token), "{arguments:?}: {said}");
        // Of the names that the server finds in its environment.
        assert!(!said.contains("MCP_CLIENT_ACCESS_TOKEN"), "{said}");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        let asked = ground.host.requests();
        assert!(asked.len() > before, "{arguments:?}");
        for request in &asked[before..] {
            assert_eq!(request["authorization"], format!("Bearer {token}"));
        }
    }
    run(&ground, Some(""), &["servers", "--user", "alice"]);
    let asked = ground.host.requests();
    let last = asked.last().expect("a request");
    assert_eq!(last["authorization"], "Bearer internal-token-of-the-host");

    ground.host.be(Mode::Status(401));
    let output = run(&ground, Some(&token), &["servers", "--user", "alice"]);
    let said = text(&output.stderr);
    assert!(said.contains("(config_unauthorized)"), "{said}");
    assert!(!said.contains(&token), "{said}");
}
