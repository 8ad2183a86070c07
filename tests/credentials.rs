//! A user's own credentials, set and deleted through the daemon.

mod databases;
mod ground;
#[path = "keys/sign.rs"]
mod sign;

use std::process::Command;

use databases::TestDatabase;
use ground::fleet::{ConfigServer, http, on_store};
use ground::{Answer, Daemon, Ground, call};
use serde_json::{Value, json};
use sign::{SECRET, Signer, in_seconds};

/// Defines a server that whispers the credential it was started with.
fn define(ground: &Ground, on: impl FnOnce(Command) -> Command) {
    ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    let row = ground.host.server("books");
    let mut command = on(ground.embedded_command());
    command.args(["server", "add", "--json", "-"]);
    ground.run(command, &row.to_string());
}

fn set(fields: Value) -> Value {
    json!({"action": "set_credentials", "server_name": "books", "credentials": fields})
}

fn about(action: &str) -> Value {
    json!({"action": action, "server_name": "books"})
}

fn whoami() -> Value {
    call("books", "whoami", json!({}))
}

/// As a host without tokens of its users asks.
fn ask(daemon: &mut Daemon, user: &str, params: Value) -> Answer {
    let user = json!({"userId": user});
    let task = daemon.command(json!({"command": "invoke", "params": params, "user": user}));
    daemon.answer(&task)
}

/// What every config API of ours gives.
fn set_use_list_and_delete(ground: &Ground, daemon: &mut Daemon) {
    let (first, second) = (ground.canary("first"), ground.canary("second"));
    let form = ask(daemon, "ann", about("credential_form"));
    assert_eq!(form.ok()["fields"][0]["name"], "KEY");
    assert_eq!(form.ok()["has_credential"], false);
    ask(daemon, "ann", whoami()).failure("credentials_required");
    for secret in [&first, &second] {
        let answer = ask(daemon, "ann", set(json!({"KEY": secret})));
        assert_eq!(answer.ok()["fields"], json!(["KEY"]));
        assert!(!answer.text.contains(secret), "{}", answer.text);
        assert_eq!(ask(daemon, "ann", whoami()).content(), secret);
    }
    ask(daemon, "bob", whoami()).failure("credentials_required");
    let listed = ask(daemon, "ann", json!({"action": "list_credentials"}));
    let own = &listed.ok()["credentials"][0];
    assert_eq!(
        (&own["server_name"], &own["source"]),
        (&json!("books"), &json!("user"))
    );
    assert!(own["updated_at"].is_string(), "{}", listed.text);
    assert!(!listed.text.contains(&second), "{}", listed.text);
    let others = ask(daemon, "bob", json!({"action": "list_credentials"}));
    assert_eq!(others.ok()["credentials"], json!([]));
    let refused = ask(
        daemon,
        "ann",
        set(json!({"WRONG": second, "KEY": 7, "OTHER": [second]})),
    );
    let details = refused.failure("credential_invalid");
    let named: Vec<_> = details["fields"]
        .as_array()
        .expect("faults")
        .iter()
        .map(|fault| &fault["field"])
        .collect();
    assert_eq!(named, ["OTHER", "WRONG"]);
    assert!(!refused.text.contains(&second), "{}", refused.text);
    assert_eq!(
        ask(daemon, "ann", whoami()).content(),
        second,
        "nothing was changed"
    );
    assert_eq!(
        ask(daemon, "ann", about("delete_credentials")).ok()["deleted"],
        true
    );
    ask(daemon, "ann", whoami()).failure("credentials_required");
    assert_eq!(
        ask(daemon, "ann", about("delete_credentials")).ok()["deleted"],
        false
    );
}

#[test]
fn the_embedded_store_takes_them_and_the_next_command_uses_them() {
    let ground = Ground::new();
    ground.set("log_level", "trace");
    define(&ground, |command| command);
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    set_use_list_and_delete(&ground, &mut daemon);
    daemon.finish();
}

/// Written in one go: the later line is held back until the change is in force.
#[test]
fn lines_behind_a_change_see_it() {
    let ground = Ground::new();
    define(&ground, |command| command);
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    for turn in 0..5 {
        let key = format!("key-{turn}");
        let changed = daemon.send("ann", set(json!({"KEY": key})));
        let task = daemon.send("ann", whoami());
        assert_eq!(daemon.answer(&task).content(), key);
        daemon.answer(&changed).ok();
    }
    daemon.finish();
}

#[test]
fn a_config_server_takes_them_over_http_on_every_database() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        define(&ground, |command| on_store(command, &database.url));
        let mut command = on_store(ground.embedded_command(), &database.url);
        command.args(["token", "add", "daemons"]);
        let token = ground.run(command, "");
        let server = ConfigServer::start(&ground, &database.url, &[]);
        let home = Ground::new();
        // So that nothing but the change itself makes it seen.
        home.set("config_ttl", "10m");
        let mut command = home.embedded_command();
        command
            .env("API_BASE", &server.base)
            .env("INTERNAL_TOKEN", token.trim());
        let mut daemon = Daemon::start(&home, command);
        set_use_list_and_delete(&home, &mut daemon);
        daemon.finish();
        for secret in home.canaries() {
            assert!(!server.stderr().contains(&secret), "{}", server.stderr());
        }
    }
}

/// One user's token neither sees nor changes what is another's.
#[test]
fn a_users_token_changes_that_users_credentials_only() {
    let ground = Ground::new();
    let url = format!("sqlite://{}", ground.path("shared.db").display());
    define(&ground, |command| on_store(command, &url));
    let key = ground.path("jwt.key");
    std::fs::write(&key, SECRET).expect("a key");
    let key = key.display().to_string();
    let server = ConfigServer::start(&ground, &url, &[("server_jwt_key", &key)]);
    let ann = Signer::hs256().token(&json!({"sub": "ann", "exp": in_seconds(600)}));
    let asked = |route: &str, bearer: &str, user: &str| {
        let head = format!(
            "POST /internal/mcp/credentials/{route} HTTP/1.1\r\nAuthorization: Bearer {bearer}"
        );
        let body = json!({"user_id": user, "mcp_server_id": "1", "credentials": {"KEY": "k"}});
        http(server.address(), &head, &body.to_string()).0
    };
    for route in ["list", "set", "delete"] {
        assert_eq!(asked(route, &ann, "bob"), 403, "{route}");
        assert_eq!(asked(route, "nonsense", "ann"), 401, "{route}");
    }
    assert_eq!(asked("list", &ann, "ann"), 200);
    assert_eq!(asked("set", &ann, "ann"), 404, "no server of that id");
}

#[test]
fn a_host_without_such_an_api_is_said_to_have_none() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    let mut daemon = ground.daemon();
    let secret = ground.canary("refused");
    for params in [
        set(json!({"KEY": secret})),
        about("delete_credentials"),
        json!({"action": "list_credentials"}),
    ] {
        let answer = daemon.ask("ann", params);
        answer.failure("unsupported");
        assert!(
            answer.text.contains("cannot list or change credentials"),
            "{}",
            answer.text
        );
    }
    let form = daemon.ask("ann", about("credential_form"));
    assert_eq!(form.ok()["fields"][0]["name"], "KEY");
    daemon.finish();
}
