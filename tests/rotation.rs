//! `mcp-client keys`: the key of the store is replaced while daemons run, and rotations are killed.

mod ground;

use std::path::Path;
use std::process::{Command, Stdio};

use ground::{Daemon, Ground, call, wait_for};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

/// More than are encrypted under one lock.
const USERS: usize = 350;

fn keys(ground: &Ground, word: &str) -> Command {
    let mut command = ground.embedded_command();
    command.args(["keys", word]);
    if word == "list" {
        command.arg("--json");
    }
    command
}

fn uses(ground: &Ground) -> Vec<Value> {
    serde_json::from_str(&ground.run(keys(ground, "list"), "")).expect("JSON")
}

/// How many rows each key of this role encrypts.
fn rows(ground: &Ground, role: &str) -> Vec<u64> {
    let uses = uses(ground).into_iter();
    uses.filter(|found| found["role"] == role)
        .filter_map(|found| found["rows"].as_u64())
        .collect()
}

fn key_lines(ground: &Ground) -> usize {
    let text = std::fs::read_to_string(ground.data_dir().join("store.key"));
    text.expect("a key file").lines().count()
}

/// Runs SQL on the store, as somebody with the file in hand.
fn sql(ground: &Ground, statements: Vec<String>) {
    async fn run(file: &Path, statements: Vec<String>) {
        let options = SqliteConnectOptions::new().filename(file);
        let mut connection: SqliteConnection = options.connect().await.expect("the store");
        for statement in statements {
            let statement = sqlx::AssertSqlSafe(statement);
            let done = sqlx::query(statement).execute(&mut connection).await;
            done.expect("the statement runs");
        }
        connection.close().await.expect("it closes");
    }
    let file = ground.data_dir().join("mcp-client.db");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(run(&file, statements));
}

/// A server, and credentials of so many users: in clear at first, as another host has left them.
fn many_users(ground: &Ground) {
    ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    let row = ground.host.server("books");
    let mut command = ground.embedded_command();
    command.args(["server", "add", "--json", "-"]);
    ground.run(command, &row.to_string());
    let insert = |user: usize| {
        format!(
            "INSERT INTO mcp_user_credentials (id, user_id, mcp_server_id, credentials)
             SELECT 'id-{user:05}', 'user-{user}', id, '{{\"KEY\":\"key-{user}\"}}' FROM mcp_servers"
        )
    };
    sql(ground, (0..USERS).map(insert).collect());
}

fn whoami(daemon: &mut Daemon, user: usize) -> String {
    let answer = daemon.ask(&format!("user-{user}"), call("books", "whoami", json!({})));
    answer.content().to_owned()
}

#[test]
fn a_killed_rotation_is_finished_later_and_daemons_read_and_write_all_along() {
    let ground = Ground::new();
    many_users(&ground);
    ground.run(keys(&ground, "rotate"), "");
    assert_eq!(rows(&ground, "write"), [USERS as u64]);
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(whoami(&mut daemon, 0), "key-0");

    // The update of one row in the third batch never ends.
    sql(
        &ground,
        vec![
            "CREATE TABLE hundred AS SELECT id FROM mcp_user_credentials LIMIT 300".to_owned(),
            "CREATE TRIGGER stuck BEFORE UPDATE ON mcp_user_credentials WHEN old.id = 'id-00250' BEGIN
             SELECT count(*) FROM hundred a, hundred b, hundred c, hundred d, hundred e; END"
                .to_owned(),
        ],
    );
    let mut rotation = keys(&ground, "rotate")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_for("two batches", || {
        (rows(&ground, "write") == [200]).then_some(())
    });
    assert_eq!(whoami(&mut daemon, 10), "key-10", "with the new key");
    assert_eq!(whoami(&mut daemon, 300), "key-300", "with the old key");
    rotation.kill().expect("SIGKILL");
    assert!(!rotation.wait().expect("it ends").success());
    sql(
        &ground,
        vec![
            "DROP TRIGGER stuck".to_owned(),
            "DROP TABLE hundred".to_owned(),
        ],
    );
    assert_eq!(key_lines(&ground), 2);
    assert_eq!(rows(&ground, "read"), [USERS as u64 - 200]);
    assert_eq!(whoami(&mut daemon, 349), "key-349");
    let set = |user: &str, value: &str| {
        let mut command = ground.embedded_command();
        command.args(["credential", "set", "books", "--user", user]);
        ground.run(command, &format!("KEY={value}\n"));
    };
    set("user-20", "another");

    let said = ground.run(keys(&ground, "rotate"), "");
    assert!(said.contains("dropped:"), "{said}");
    assert_eq!(key_lines(&ground), 1);
    let uses = uses(&ground);
    assert_eq!((uses.len(), &uses[0]["rows"]), (1, &json!(USERS)));
    assert_eq!(whoami(&mut daemon, 20), "another");
    assert_eq!(whoami(&mut daemon, 301), "key-301");
    daemon.finish();
    let mut fresh = Daemon::start(&ground, ground.embedded_command());
    for user in [0, 199, 250, 349] {
        assert_eq!(whoami(&mut fresh, user), format!("key-{user}"));
    }
    fresh.finish();
}

#[test]
fn a_wrong_key_reads_nothing_changes_nothing_and_says_so() {
    let ground = Ground::new();
    many_users(&ground);
    ground.run(keys(&ground, "rotate"), "");
    let right = std::fs::read(ground.data_dir().join("store.key")).expect("a key");
    let wrong = ground.run(keys(&ground, "new"), "");
    std::fs::write(ground.data_dir().join("store.key"), &wrong).expect("it is written");
    let uses = uses(&ground);
    assert_eq!(
        (&uses[1]["role"], &uses[1]["rows"]),
        (&json!("missing"), &json!(USERS))
    );
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    let answer = daemon.ask("user-1", call("books", "whoami", json!({})));
    assert!(
        answer.is_failure() && answer.text.contains("not among the keys"),
        "{}",
        answer.text
    );
    daemon.finish();
    let output = keys(&ground, "rotate").output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("the old keys stay") && !said.contains(wrong.trim()),
        "{said}"
    );
    let kept = std::fs::read_to_string(ground.data_dir().join("store.key")).expect("a key file");
    assert!(kept.contains(wrong.trim()), "no key is lost");

    std::fs::write(ground.data_dir().join("store.key"), right).expect("it is written");
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(whoami(&mut daemon, 1), "key-1");
    daemon.finish();
}

#[test]
fn keys_come_from_the_environment_or_a_command_too() {
    let ground = Ground::new();
    let key = ground.run(keys(&ground, "new"), "");
    ground.set("store_key", key.trim());
    many_users(&ground);
    let mut command = ground.embedded_command();
    command.args(["credential", "set", "books", "--user", "user-1"]);
    ground.run(command, "KEY=mine\n");
    assert!(!ground.data_dir().join("store.key").exists());
    let output = keys(&ground, "rotate").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("MCP_CLIENT_STORE_KEY") && !said.contains(key.trim()),
        "{said}"
    );

    ground.settings.lock().expect("unpoisoned").clear();
    let vault = ground.path("vault");
    let new = ground.run(keys(&ground, "new"), "");
    std::fs::write(&vault, format!("{new}{key}")).expect("it is written");
    ground.set("store_key_command", &format!("cat {}", vault.display()));
    let said = ground.run(keys(&ground, "rotate"), "");
    assert!(said.contains("no row needs"), "{said}");
    std::fs::write(&vault, new).expect("it is written");
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(whoami(&mut daemon, 1), "mine");
    assert_eq!(whoami(&mut daemon, 2), "key-2");
    daemon.finish();
}
