//! Tools that are kept across restarts: shown at once, and to nobody else.

mod ground;
#[path = "keys/sign.rs"]
mod sign;

use ground::fleet::{ConfigServer, http, on_store};
use ground::{Daemon, Ground, call, open, wait_for};
use serde_json::{Value, json};
use sign::{SECRET, Signer, in_seconds};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

/// Starts a fake server with the script in `SCRIPT`; never, once the gate is there.
const SHELL: &str = r#"if [ -e "$GATE" ]; then exec sleep 600; fi; exec "$0" --script "$SCRIPT""#;

fn define(ground: &Ground, change: impl FnOnce(&mut ground::Row)) {
    ground.stdio("books", json!({}), |row| {
        let program = row.0["command"].clone();
        row.set("command", "sh")
            .set("args", json!(["-c", SHELL, program]))
            .env("GATE", &ground.path("gate").display().to_string());
        change(row);
    });
    let row = ground.host.server("books");
    let mut command = ground.embedded_command();
    command.args(["server", "add", "--json", "-"]);
    ground.run(command, &row.to_string());
}

fn script(tool: &str) -> String {
    json!({"tools": [{"name": tool, "inputSchema": {"type": "object"}}]}).to_string()
}

fn list() -> Value {
    json!({"action": "list_tools", "timeout_ms": 20_000})
}

/// Waits until the store keeps tools for exactly these users; "" is everybody.
fn wait_for_scopes(ground: &Ground, expected: &[&str]) {
    let file = ground.data_dir().join("mcp-client.db");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    wait_for("the tools to be kept", || {
        let scopes: Vec<String> = runtime.block_on(async {
            let options = SqliteConnectOptions::new().filename(&file);
            let mut connection = SqliteConnection::connect_with(&options).await.ok()?;
            let query = "SELECT DISTINCT user_scope FROM mcp_tools_cache ORDER BY user_scope";
            sqlx::query_scalar(query)
                .fetch_all(&mut connection)
                .await
                .ok()
        })?;
        (scopes == expected).then_some(())
    });
}

#[test]
fn a_restarted_daemon_lists_at_once_what_a_server_that_hangs_once_had() {
    let ground = Ground::new();
    define(&ground, |row| {
        row.env("SCRIPT", &script("find")).set("is_public", true);
    });
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert!(daemon.ask("ann", list()).text.contains("mcp_books_find"));
    wait_for_scopes(&ground, &[""]);
    daemon.finish();
    open(&ground.path("gate"));
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    for user in ["ann", "bob"] {
        let listed = daemon.ask(user, list());
        assert_eq!(listed.ok()["errors"], json!([]));
        assert!(listed.text.contains("mcp_books_find"), "{}", listed.text);
    }
    daemon.finish();
}

/// T06.
#[test]
fn kept_tools_of_one_user_are_not_shown_to_another_after_a_restart() {
    let ground = Ground::new();
    define(&ground, |row| {
        row.env("SCRIPT", "${user.SCRIPT}");
    });
    let users = [("alice", "secret_of_alice"), ("bob", "secret_of_bob")];
    for (user, tool) in users {
        let mut command = ground.embedded_command();
        command.args(["credential", "set", "books", "--user", user]);
        ground.run(command, &json!({"SCRIPT": script(tool)}).to_string());
    }
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert!(daemon.ask("alice", list()).text.contains("secret_of_alice"));
    wait_for_scopes(&ground, &["alice"]);
    daemon.finish();
    // One process after the other, so that each is restarted once.
    for _ in 0..2 {
        let mut daemon = Daemon::start(&ground, ground.embedded_command());
        for (user, own, other) in [
            ("bob", users[1].1, users[0].1),
            ("alice", users[0].1, users[1].1),
        ] {
            let listed = daemon.ask(user, list()).text;
            assert!(listed.contains(own) && !listed.contains(other), "{listed}");
            let refused = daemon.ask(user, call("books", other, json!({})));
            refused.failure("tool_not_found");
            daemon.ask(user, call("books", own, json!({}))).ok();
        }
        daemon.ask("carol", list());
        wait_for_scopes(&ground, &["alice", "bob"]);
        daemon.finish();
    }
    // With other credentials, what was kept is not in force.
    let mut command = ground.embedded_command();
    command.args(["credential", "remove", "books", "--user", "alice"]);
    ground.run(command, "");
    wait_for_scopes(&ground, &["bob"]);
}

#[test]
fn only_programs_of_the_operator_write_what_all_users_are_shown() {
    let ground = Ground::new();
    let url = format!("sqlite://{}", ground.path("shared.db").display());
    let key = ground.path("jwt.key");
    std::fs::write(&key, SECRET).expect("a key");
    let key = key.display().to_string();
    let run = |words: &[&str], input: &str| {
        let mut command = on_store(ground.embedded_command(), &url);
        command.args(words);
        ground.run(command, input)
    };
    run(&["server", "add", "books", "--public", "--", "x"], "");
    let shown: Value =
        serde_json::from_str(&run(&["server", "show", "books", "--json"], "")).expect("JSON");
    let service = run(&["token", "add", "daemons"], "");
    let server = ConfigServer::start(&ground, &url, &[("server_jwt_key", &key)]);
    let ann = Signer::hs256().token(&json!({"sub": "ann", "exp": in_seconds(600)}));
    let asked = |route: &str, bearer: &str, user: Option<&str>| {
        let head =
            format!("POST /internal/mcp/tools/{route} HTTP/1.1\r\nAuthorization: Bearer {bearer}");
        let tool = json!({"name": format!("of_{}", user.unwrap_or("all")), "inputSchema": {}});
        let body = json!({"user_id": user, "mcp_server_id": shown["id"], "tools": [tool]});
        let (status, _, body) = http(server.address(), &head, &body.to_string());
        (status, body)
    };
    assert_eq!(asked("put", &ann, None).0, 403);
    assert_eq!(asked("put", &ann, Some("bob")).0, 403);
    assert_eq!(asked("get", &ann, Some("bob")).0, 403);
    assert_eq!(asked("put", "nonsense", Some("ann")).0, 401);
    assert_eq!(asked("put", &ann, Some("ann")).0, 200);
    assert_eq!(asked("put", service.trim(), None).0, 200);
    let (status, body) = asked("get", &ann, None);
    assert!(
        status == 200 && body.contains("of_all") && !body.contains("of_ann"),
        "{body}"
    );
    let (_, body) = asked("get", &ann, Some("ann"));
    assert!(
        body.contains("of_ann") && !body.contains("of_all"),
        "{body}"
    );
}
