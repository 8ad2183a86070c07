//! Definitions and credentials from a host's own config API, as its rows look in the field.

mod ground;

use ground::{Ground, Mode, call, wait_for};
use serde_json::{Value, json};

const LIST: &str = "list_servers";

#[test]
fn rows_as_databases_give_them_are_read() {
    let ground = Ground::new();
    ground
        .host
        .raw_rows
        .store(true, std::sync::atomic::Ordering::Relaxed);
    ground.stdio("books", json!({}), |row| {
        row.token("KEY").set("id", 17);
    });
    ground.stdio("off", json!({}), |row| {
        row.set("is_enabled", false);
    });
    ground.stdio("sparse", json!({}), |row| {
        row.set("transport_type", Value::Null)
            .set("is_enabled", Value::Null)
            .set("headers", "");
        row.set("credential_fields", "")
            .set("display_name", Value::Null);
    });
    ground.http("far", json!({}), |row| {
        row.set("transport_type", "streamableHttp")
            .set("args", "")
            .set("env_template", "");
    });
    ground.credentials("alice", "books", json!({"KEY": "one"}));
    let mut daemon = ground.daemon();
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "one"
    );
    daemon
        .ask("alice", call("off", "echo", json!({})))
        .failure("server_disabled");
    daemon.ask("alice", call("sparse", "echo", json!({}))).ok();
    daemon.ask("alice", call("far", "echo", json!({}))).ok();
    let listed = daemon.ask("alice", json!({"action": LIST}));
    let books = &listed.ok()["servers"][0];
    assert_eq!(books["requires_credentials"], true);
    assert_eq!(books["has_credential"], true);
    assert_eq!(books["credential_source"], "user");
    daemon.finish();
}

#[test]
fn env_overrides_win_and_rows_of_other_users_are_dropped() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    ground.credentials(
        "alice",
        "books",
        json!({"KEY": "beside", "env_overrides": {"KEY": "within"}}),
    );
    let mut daemon = ground.daemon();
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "within"
    );
    let foreign = json!({
        "servers": [{"id": "1", "name": "books", "command": "true", "args": [], "requires_credentials": true, "is_public": false}],
        "default_credentials": [],
        "user_credentials": [{"id": "u", "user_id": "alice", "mcp_server_id": "1", "credentials": {"KEY": "x"}, "is_enabled": true}]
    });
    ground.host.be(Mode::Body(foreign.to_string()));
    daemon
        .ask("bob", call("books", "whoami", json!({})))
        .failure("credentials_required");
    daemon.finish();
}

#[test]
fn a_bare_data_object_is_read() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    ground.host.be(Mode::Bare);
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn the_hosts_token_speaks_for_a_user_and_the_internal_one_where_there_is_none() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    daemon.ask("alice", json!({"action": LIST})).ok();
    let task = daemon.command(json!({"command": LIST, "user": {"userId": "bob"}}));
    daemon.answer(&task).ok();
    daemon.ask("", json!({"action": LIST})).ok();
    let asked = ground.host.requests();
    assert!(
        asked.contains(
            &json!({"authorization": "Bearer token-of-alice", "body": {"user_id": "alice"}})
        ),
        "{asked:?}"
    );
    let internal = format!("Bearer {}", "internal-token-of-the-host");
    assert!(
        asked.contains(&json!({"authorization": internal, "body": {"user_id": "bob"}})),
        "{asked:?}"
    );
    assert!(
        asked.contains(&json!({"authorization": internal, "body": {"user_id": null}})),
        "{asked:?}"
    );
    daemon.finish();
}

#[test]
fn one_bad_row_is_an_error_of_its_server_alone() {
    let ground = Ground::new();
    let good = ground.stdio("good", json!({}), |_| {});
    ground.stdio("no_command", json!({}), |row| {
        row.set("command", Value::Null);
    });
    ground.stdio("bad_args", json!({}), |row| {
        row.set("args", "[\"unclosed");
    });
    ground.http("no_url", json!({}), |row| {
        row.set("url", "");
    });
    ground.http("bad_url", json!({}), |row| {
        row.set("url", "ftp://example.org/");
    });
    ground.http("bad_headers", json!({}), |row| {
        row.set("headers", json!({"Host": "evil"}));
    });
    ground.http("bad_name", json!({}), |row| {
        row.set("headers", json!({"X-Key": "${NOWHERE}"}));
    });
    ground.stdio("bad_transport", json!({}), |row| {
        row.set("transport_type", "pigeon");
    });
    let mut daemon = ground.daemon();
    let bad = [
        "no_command",
        "bad_args",
        "no_url",
        "bad_url",
        "bad_headers",
        "bad_name",
        "bad_transport",
    ];
    for name in bad {
        daemon
            .ask("alice", call(name, "echo", json!({})))
            .failure("config_invalid");
    }
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(
        listed.ok()["errors"].as_array().map(Vec::len),
        Some(bad.len()),
        "{}",
        listed.text
    );
    assert!(
        listed.ok()["tools"]
            .as_array()
            .is_some_and(|tools| !tools.is_empty())
    );
    let servers = daemon.ask("alice", json!({"action": LIST}));
    for server in servers.ok()["servers"].as_array().expect("servers") {
        let expected = if server["name"] == "good" {
            "connected"
        } else {
            "config_invalid"
        };
        assert_eq!(server["status"], expected, "{server}");
    }
    assert_eq!(good.served().len(), 1);
    daemon.finish();
}

#[test]
fn a_refused_token_is_config_unauthorized_and_nothing_stale_is_used() {
    for mode in [Mode::Status(401), Mode::Status(403), Mode::Code(401)] {
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        ground.stdio("books", json!({}), |_| {});
        let mut daemon = ground.daemon();
        daemon.ask("alice", call("books", "echo", json!({}))).ok();
        ground.host.be(mode.clone());
        daemon
            .ask("alice", call("books", "echo", json!({})))
            .failure("config_unauthorized");
        // Not even when the host is gone afterwards: the snapshot of that token is dropped.
        ground.host.be(Mode::Status(500));
        let mut params = call("books", "echo", json!({}));
        params["timeout_ms"] = 20_000.into();
        daemon.ask("alice", params).failure("config_unavailable");
        daemon.finish();
    }
}

#[test]
fn a_host_that_fails_is_config_unavailable_when_cold_and_the_last_good_answer_when_warm() {
    let half = [
        Mode::Status(500),
        Mode::Code(500),
        Mode::Half,
        Mode::Cut,
        Mode::Silent,
        Mode::Body("[]".to_owned()),
    ];
    for mode in half {
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        ground.set("config_timeout", "500ms");
        ground.stdio("books", json!({}), |_| {});
        let mut daemon = ground.daemon();
        daemon.ask("alice", call("books", "echo", json!({}))).ok();
        ground.host.be(mode.clone());
        daemon
            .ask("alice", call("books", "echo", json!({"warm": true})))
            .ok();
        let cold = daemon.ask("bob", call("books", "echo", json!({})));
        assert_eq!(
            cold.failure("config_unavailable")["phase"],
            "resolve",
            "{mode:?}: {}",
            cold.text
        );
        ground.host.be(Mode::Well);
        daemon.ask("bob", call("books", "echo", json!({}))).ok();
        daemon.finish();
    }
}

#[test]
fn a_deadline_that_ends_before_the_host_has_had_its_time_is_the_commands_own() {
    let ground = Ground::new();
    ground.set("config_timeout", "2s");
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    ground.host.be(Mode::Silent);
    for mut params in [call("books", "echo", json!({})), json!({"action": LIST})] {
        params["timeout_ms"] = 100.into();
        let answer = daemon.ask("alice", params);
        let details = answer.failure("call_timeout");
        assert_eq!(details["phase"], "resolve", "{}", answer.text);
        assert_eq!(details["outcome"], "not_sent", "{}", answer.text);
    }
    // Both had one question, which goes on until the host has had its time.
    daemon
        .ask("alice", call("books", "echo", json!({})))
        .failure("config_unavailable");
    assert_eq!(ground.host.requests().len(), 1);
    ground.host.be(Mode::Well);
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn an_unreachable_host_is_config_unavailable() {
    let ground = Ground::new();
    let mut command = ground.command();
    command
        .env("API_BASE", "http://127.0.0.1:1")
        .env("MCP_CLIENT_CONFIG_TIMEOUT", "500ms");
    let mut daemon = ground::Daemon::start(&ground, command);
    daemon
        .ask("alice", json!({"action": LIST}))
        .failure("config_unavailable");
    let ping = daemon.command(json!({"command": "ping"}));
    daemon.answer(&ping).ok();
    daemon.finish();
}

#[test]
fn a_snapshot_is_cached_for_ttl_and_asked_for_once_by_many() {
    let ground = Ground::new();
    ground.set("config_ttl", "1h");
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let tasks: Vec<String> = (0..30)
        .map(|_| daemon.send("alice", json!({"action": LIST})))
        .collect();
    for task in tasks {
        daemon.answer(&task).ok();
    }
    daemon.ask("bob", json!({"action": LIST})).ok();
    let asked = ground.host.requests();
    assert_eq!(asked.len(), 2, "one a user: {asked:?}");
    // Another token of the same user is another snapshot.
    let other = json!({"userId": "alice", "accessToken": "another"});
    let task = daemon.command(json!({"command": LIST, "user": other}));
    daemon.answer(&task).ok();
    assert_eq!(ground.host.requests().len(), 3);
    daemon.finish();
}

#[test]
fn a_change_at_the_host_is_seen_after_ttl() {
    let ground = Ground::new();
    ground.set("config_ttl", "100ms");
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", json!({"action": LIST})).ok();
    ground.stdio("films", json!({}), |_| {});
    wait_for("the new server", || {
        daemon
            .ask("alice", json!({"action": LIST}))
            .text
            .contains("films")
            .then_some(())
    });
    daemon.finish();
}

#[test]
fn folded_names_find_their_server_where_that_is_unique() {
    let ground = Ground::new();
    ground.stdio("My Service", json!({}), |_| {});
    ground.stdio("twin-a", json!({}), |_| {});
    ground.stdio("twin_a", json!({}), |_| {});
    let mut daemon = ground.daemon();
    for name in ["My Service", "my-service", "MY_SERVICE"] {
        daemon.ask("alice", call(name, "echo", json!({}))).ok();
    }
    daemon.ask("alice", call("twin-a", "echo", json!({}))).ok();
    let answer = daemon.ask("alice", call("Twin A", "echo", json!({})));
    answer.failure("invalid_params");
    assert!(
        answer.text.contains("twin-a") && answer.text.contains("twin_a"),
        "{}",
        answer.text
    );
    daemon.finish();
}
