//! The default: definitions and credentials in the daemon's own store, set up through the command line.

mod ground;

use ground::{Daemon, Ground, Row, call, wait_for};
use serde_json::json;

/// A server in the embedded store that whispers the credential it was started with.
fn add(ground: &Ground, name: &str, row: impl FnOnce(&mut Row)) -> ground::Fake {
    // Made as for the host, so that both ways have the same rows.
    let fake = ground.stdio(name, json!({}), row);
    let row = ground.host.server(name);
    let mut command = ground.embedded_command();
    command.args(["server", "add", "--json", "-"]);
    ground.run(command, &row.to_string());
    fake
}

fn credential(ground: &Ground, whose: &[&str], server: &str, fields: &str) {
    let mut command = ground.embedded_command();
    command.args(["credential", "set", server]).args(whose);
    ground.run(command, fields);
}

#[test]
fn the_command_line_sets_up_what_the_daemon_serves() {
    let ground = Ground::new();
    add(&ground, "books", |row| {
        row.token("KEY");
    });
    credential(&ground, &["--user", "alice"], "books", "KEY=alice's\n");
    credential(&ground, &["--default"], "books", r#"{"KEY":"the default"}"#);
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "alice's"
    );
    assert_eq!(
        daemon
            .ask("bob", call("books", "whoami", json!({})))
            .content(),
        "the default"
    );
    daemon.finish();
    assert_eq!(
        ground.host.requests().len(),
        0,
        "the embedded store asks nobody"
    );
}

#[test]
fn a_change_by_the_command_line_is_seen_by_the_very_next_command() {
    let ground = Ground::new();
    add(&ground, "books", |row| {
        row.token("KEY");
    });
    credential(&ground, &["--user", "alice"], "books", "KEY=one\n");
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "one"
    );
    credential(&ground, &["--user", "alice"], "books", "KEY=two\n");
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "two"
    );
    for (verb, code) in [
        ("disable", "server_disabled"),
        ("enable", ""),
        ("remove", "server_not_found"),
    ] {
        let mut command = ground.embedded_command();
        command.args(["server", verb, "books"]);
        ground.run(command, "");
        let answer = daemon.ask("alice", call("books", "whoami", json!({})));
        if code.is_empty() {
            answer.ok();
        } else {
            answer.failure(code);
        }
    }
    daemon.finish();
}

#[test]
fn secrets_are_nowhere_in_the_data_directory_in_clear() {
    let ground = Ground::new();
    let key = ground.canary("at-rest");
    add(&ground, "books", |row| {
        row.token("KEY");
    });
    credential(
        &ground,
        &["--user", "alice"],
        "books",
        &format!("KEY={key}\n"),
    );
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        key
    );
    let mut files = 0;
    for entry in std::fs::read_dir(ground.data_dir())
        .expect("a data directory")
        .flatten()
    {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let shows = bytes
            .windows(key.len())
            .any(|window| window == key.as_bytes());
        assert!(
            !shows,
            "{} holds the secret in clear",
            entry.path().display()
        );
        files += 1;
    }
    assert!(files > 0, "nothing was looked at");
    daemon.finish();
}

/// Kills the command line at ever later moments of its writing.
#[test]
fn a_writer_killed_at_any_moment_leaves_the_old_row_or_the_new_one() {
    let ground = Ground::new();
    add(&ground, "books", |row| {
        row.token("KEY");
    });
    credential(&ground, &["--user", "alice"], "books", "KEY=key-0\n");
    ground.set("config_ttl", "0s");
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    let mut last = 0;
    for at in 1..=40u64 {
        let mut command = ground.embedded_command();
        command.args(["credential", "set", "books", "--user", "alice"]);
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null());
        let mut child = command.spawn().expect("it starts");
        use std::io::Write;
        let mut stdin = child.stdin.take().expect("piped");
        let _ = writeln!(stdin, "KEY=key-{at}");
        drop(stdin);
        std::thread::sleep(std::time::Duration::from_millis(2 * at));
        let _ = child.kill();
        child.wait().expect("it ends");
        let answer = daemon.ask("alice", call("books", "whoami", json!({})));
        let key = answer.content();
        assert!(
            key == format!("key-{last}") || key == format!("key-{at}"),
            "{key} after {at}"
        );
        last = if key == format!("key-{at}") { at } else { last };
    }
    daemon.finish();
}

#[test]
fn many_processes_share_one_store() {
    let ground = Ground::new();
    add(&ground, "books", |row| {
        row.token("KEY");
    });
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    let writers: Vec<_> = (0..6)
        .map(|n| {
            let mut command = ground.embedded_command();
            command.args(["credential", "set", "books", "--user", &format!("user-{n}")]);
            command
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null());
            let mut child = command.spawn().expect("it starts");
            use std::io::Write;
            let mut stdin = child.stdin.take().expect("piped");
            writeln!(stdin, "KEY=key-{n}").expect("it reads");
            child
        })
        .collect();
    for mut writer in writers {
        let status = wait_for("a writer", || {
            writer.try_wait().expect("it can be waited for")
        });
        assert!(status.success());
    }
    for n in 0..6 {
        let own = daemon.ask(&format!("user-{n}"), call("books", "whoami", json!({})));
        assert_eq!(own.content(), format!("key-{n}"));
    }
    daemon.finish();
}
