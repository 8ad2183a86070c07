//! What befalls the embedded store: a writer that holds it, a full disk, a kill amid a write.

mod ground;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use ground::{Daemon, Ground, call};
use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Executor};

/// A server in the embedded store that whispers the credential it was started with, and alice's first one.
fn ground() -> Ground {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    let mut add = ground.embedded_command();
    add.args(["server", "add", "--json", "-"]);
    let row = ground.host.server("books");
    ground.run(add, &row.to_string());
    let set = set(ground.embedded_command(), "first");
    assert!(set.status.success(), "{set:?}");
    ground
}

/// `credential set` to its end.
fn set(mut command: Command, key: &str) -> Output {
    command.args(["credential", "set", "books", "--user", "alice"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // Whoever fails before it reads closes its stdin.
    let _ = writeln!(child.stdin.take().expect("piped"), "KEY={key}");
    child.wait_with_output().expect("it ends")
}

fn key_in_force(daemon: &mut Daemon) -> String {
    let answer = daemon.ask("alice", call("books", "whoami", json!({})));
    answer.content().to_owned()
}

fn daemon(ground: &Ground) -> Daemon {
    Daemon::start(ground, ground.embedded_command())
}

async fn open(ground: &Ground) -> SqliteConnection {
    let file = ground.data_dir().join("mcp-client.db");
    let options = SqliteConnectOptions::new().filename(file);
    let connection = SqliteConnection::connect_with(&options).await;
    connection.expect("the store opens")
}

/// # Panics
/// If SQLite finds the file broken.
async fn assert_sound(ground: &Ground) {
    let mut connection = open(ground).await;
    let found: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await
        .expect("it can be checked");
    assert_eq!(found, "ok");
}

#[tokio::test]
async fn a_change_to_a_store_that_another_process_holds_fails_in_words_and_reads_go_on() {
    let ground = ground();
    let mut daemon = daemon(&ground);
    let mut holder = open(&ground).await;
    holder.execute("BEGIN IMMEDIATE").await.expect("it is held");
    let refused = set(ground.embedded_command(), "second");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("locked"), "{said}");
    assert_eq!(key_in_force(&mut daemon), "first");

    holder.execute("ROLLBACK").await.expect("it lets go");
    assert!(set(ground.embedded_command(), "second").status.success());
    assert_eq!(key_in_force(&mut daemon), "second");
    daemon.finish();
    assert_sound(&ground).await;
}

/// The program where no file may grow beyond 4 KiB: what a full disk is to SQLite.
fn on_a_full_disk(ground: &Ground) -> Command {
    let plain = ground.embedded_command();
    let mut command = Command::new("sh");
    let limited = r#"trap "" XFSZ; ulimit -f 8; exec "$0" "$@""#;
    command.arg("-c").arg(limited).arg(plain.get_program());
    command.env_clear();
    for (name, value) in plain.get_envs() {
        command.env(name, value.expect("a value"));
    }
    command
}

#[tokio::test]
async fn a_full_disk_refuses_a_change_in_words_and_reads_go_on() {
    let ground = ground();
    let mut daemon = daemon(&ground);
    assert_eq!(key_in_force(&mut daemon), "first");
    let refused = set(on_a_full_disk(&ground), "second");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("disk"), "{said}");
    assert_eq!(key_in_force(&mut daemon), "first");
    assert_sound(&ground).await;

    assert!(set(ground.embedded_command(), "second").status.success());
    assert_eq!(key_in_force(&mut daemon), "second");
    daemon.finish();
    assert_sound(&ground).await;
}

#[tokio::test]
async fn a_log_that_is_deleted_takes_no_change_along() {
    let ground = ground();
    let mut running = daemon(&ground);
    assert_eq!(key_in_force(&mut running), "first");
    assert!(set(ground.embedded_command(), "second").status.success());
    std::fs::remove_file(ground.data_dir().join("mcp-client.db-wal")).expect("there is a log");
    assert_eq!(key_in_force(&mut running), "second");
    assert!(set(ground.embedded_command(), "third").status.success());
    assert_eq!(key_in_force(&mut running), "third");
    running.finish();

    assert_sound(&ground).await;
    let mut next = daemon(&ground);
    assert_eq!(key_in_force(&mut next), "third");
    next.finish();
}

/// Of a change, from its start to its end, at which it is killed.
const MOMENTS: u32 = 60;

#[tokio::test]
async fn a_kill_amid_a_write_leaves_the_old_value_or_the_new_one() {
    let ground = ground();
    let mut daemon = daemon(&ground);
    let started = Instant::now();
    assert!(set(ground.embedded_command(), "first").status.success());
    let whole = started.elapsed();
    let mut before = "first".to_owned();
    for n in 0..MOMENTS {
        let key = format!("key-{n}");
        let mut command = ground.embedded_command();
        command.args(["credential", "set", "books", "--user", "alice"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let child = child.as_mut().expect("it starts");
        writeln!(child.stdin.take().expect("piped"), "KEY={key}").expect("it is read");
        std::thread::sleep(whole * n / MOMENTS);
        let _ = child.kill();
        child.wait().expect("it ends");
        let now = key_in_force(&mut daemon);
        assert!(now == before || now == key, "{now}, not {before} or {key}");
        before = now;
    }
    daemon.finish();
    assert_sound(&ground).await;
}
