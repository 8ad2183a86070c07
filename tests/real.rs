//! Real MCP servers, fetched by `scripts/test`: what a fake server would not think of.
//!
//! Without them each test says what is missing and passes; with `CI=true` a missing server is a failure.

mod ground;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use ground::{Daemon, Ground, Row, call, wait_for};
use serde_json::{Value, json};

/// Where `scripts/test` puts the servers.
fn servers() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("the target directory")
        .join("real-servers")
}

/// The words that start an npm server, or `None` where it is not there.
fn npm(name: &str) -> Option<Vec<String>> {
    let bin = servers().join("npm/node_modules/.bin");
    present(&[bin.join("node"), bin.join(name)])
}

/// The words that start a Python server, or `None` where it is not there.
fn python(name: &str) -> Option<Vec<String>> {
    present(&[servers().join("python/bin").join(name)])
}

fn present(words: &[PathBuf]) -> Option<Vec<String>> {
    if let Some(word) = words.iter().find(|word| !word.exists()) {
        let missing = format!(
            "{} is missing: run scripts/test, which fetches it",
            word.display()
        );
        assert!(std::env::var_os("CI").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
        return None;
    }
    Some(
        words
            .iter()
            .map(|word| word.display().to_string())
            .collect(),
    )
}

/// Adds a stdio server started with `words` and `arguments`.
fn add(
    ground: &Ground,
    name: &str,
    mut words: Vec<String>,
    arguments: &[&str],
    row: impl FnOnce(&mut Row),
) {
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    let mut definition = Row::stdio(name, &words);
    definition.env(ground::TAG, &ground.tag);
    row(&mut definition);
    ground.host.add_server(definition.0);
}

/// The original names of a server's tools, as `list_tools` gives them.
fn tools(daemon: &mut Daemon, user: &str, server: &str) -> Vec<String> {
    let listed = daemon.ask(
        user,
        json!({"action": "list_tools", "server_name": server, "timeout_ms": 90_000}),
    );
    let tools = listed.ok()["tools"].as_array().expect("tools");
    tools
        .iter()
        .map(|tool| tool["original_name"].as_str().expect("a name").to_owned())
        .collect()
}

/// A real server on a port of its own, ended with its owner.
struct Running(Child);

impl Running {
    fn start(
        words: &[String],
        arguments: &[&str],
        environment: &[(&str, &str)],
        port: u16,
    ) -> Self {
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(arguments)
            .envs(environment.iter().copied());
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let running = Self(child);
        wait_for("the server to listen", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A free port below the ephemeral range: who polls one in it may connect to itself.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).expect("small");
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).expect("a free port")
}

#[test]
fn everything_over_stdio() {
    let Some(words) = npm("mcp-server-everything") else {
        return;
    };
    let ground = Ground::new();
    add(&ground, "everything", words, &["stdio"], |row| {
        row.env("KEY", "${user.KEY}");
    });
    for user in ["alice", "bob"] {
        ground.credentials(user, "everything", json!({"KEY": format!("key of {user}")}));
    }
    let mut daemon = ground.daemon();
    let count = tools(&mut daemon, "alice", "everything").len();
    assert!((13..=19).contains(&count), "{count} tools");
    let sum = daemon.ask(
        "alice",
        call("everything", "get-sum", json!({"a": 2, "b": 40})),
    );
    assert!(sum.content().contains("42"), "{}", sum.text);
    for user in ["alice", "bob"] {
        let own = daemon.ask(user, call("everything", "get-env", json!({})));
        assert!(
            own.content().contains(&format!("key of {user}")),
            "{}",
            own.text
        );
    }
    let image = daemon.ask("alice", call("everything", "get-tiny-image", json!({})));
    assert!(
        image.ok()["raw"]
            .as_array()
            .expect("blocks")
            .iter()
            .any(|block| block["type"] == "image"),
        "the image is kept"
    );
    daemon.finish();
}

#[test]
fn progress_of_everything_reaches_the_host() {
    let Some(words) = npm("mcp-server-everything") else {
        return;
    };
    let ground = Ground::new();
    add(&ground, "everything", words, &["stdio"], |_| {});
    let mut daemon = ground.daemon();
    let mut params = call(
        "everything",
        "trigger-long-running-operation",
        json!({"duration": 1, "steps": 4}),
    );
    params["progress"] = true.into();
    daemon.ask("alice", params).ok();
    assert_eq!(daemon.events.len(), 4, "{:?}", daemon.events);
    daemon.finish();
}

#[test]
fn filesystem_over_stdio() {
    let Some(words) = npm("mcp-server-filesystem") else {
        return;
    };
    let ground = Ground::new();
    let root = ground.path("root");
    std::fs::create_dir(&root).expect("a root");
    let root_text = root.display().to_string();
    add(&ground, "files", words, &[&root_text], |_| {});
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "files").len(), 14);
    let path = root.join("a.txt");
    daemon
        .ask(
            "alice",
            call(
                "files",
                "write_file",
                json!({"path": path, "content": "héllo"}),
            ),
        )
        .ok();
    assert_eq!(std::fs::read_to_string(&path).expect("written"), "héllo");
    let read = daemon.ask(
        "alice",
        call("files", "read_text_file", json!({"path": path})),
    );
    assert_eq!(read.content(), "héllo");
    let outside = daemon.ask(
        "alice",
        call("files", "read_text_file", json!({"path": "/etc/hostname"})),
    );
    assert_eq!(
        outside.ok()["is_error"],
        true,
        "a tool error is a success line"
    );
    daemon.finish();
}

#[test]
fn memory_keeps_two_users_apart() {
    let Some(words) = npm("mcp-server-memory") else {
        return;
    };
    let ground = Ground::new();
    add(&ground, "memory", words, &[], |row| {
        row.env("MEMORY_FILE_PATH", "${user.file}");
    });
    let users = ["alice", "bob"];
    for user in users {
        ground.credentials(
            user,
            "memory",
            json!({"file": ground.path(&format!("{user}.jsonl"))}),
        );
    }
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "memory").len(), 9);
    for user in users {
        let entity = json!({"name": format!("secret of {user}"), "entityType": "note", "observations": ["x"]});
        daemon
            .ask(
                user,
                call("memory", "create_entities", json!({"entities": [entity]})),
            )
            .ok();
    }
    for (user, other) in [("alice", "bob"), ("bob", "alice")] {
        let graph = daemon.ask(user, call("memory", "read_graph", json!({})));
        assert!(
            graph.text.contains(&format!("secret of {user}"))
                && !graph.text.contains(&format!("secret of {other}")),
            "{}",
            graph.text
        );
    }
    daemon.finish();
}

#[test]
fn calc_answers_a_hundred_calls_at_once() {
    let Some(words) = npm("calc-mcp") else { return };
    let ground = Ground::new();
    add(&ground, "calc", words, &[], |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "calc").len(), 21);
    let users = ["alice", "bob", ""];
    let tasks: Vec<String> = (0..100)
        .map(|n| {
            daemon.send(
                users[n % 3],
                call(
                    "calc",
                    "math",
                    json!({"action": "eval", "expression": format!("{n} * 1000 + 7")}),
                ),
            )
        })
        .collect();
    for (n, task) in tasks.iter().enumerate() {
        let answer = daemon.answer(task);
        assert!(
            answer.content().contains(&(n * 1000 + 7).to_string()),
            "{n}: {}",
            answer.text
        );
    }
    daemon.finish();
}

#[test]
fn time_over_stdio_in_the_modern_era() {
    let Some(words) = python("mcp-server-time") else {
        return;
    };
    let ground = Ground::new();
    add(&ground, "time", words, &["--local-timezone", "UTC"], |_| {});
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "time").len(), 2);
    let arguments =
        json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    let converted = daemon.ask("alice", call("time", "convert_time", arguments));
    assert!(converted.content().contains("21:00"), "{}", converted.text);
    let connected = daemon.ask(
        "alice",
        json!({"action": "connect_server", "server_name": "time"}),
    );
    assert_eq!(
        connected.ok()["protocol_version"],
        "2026-07-28",
        "it speaks both, we prefer the newer"
    );
    daemon.finish();
}

#[test]
fn git_over_stdio() {
    let Some(words) = python("mcp-server-git") else {
        return;
    };
    let ground = Ground::new();
    let repository = ground.path("repository");
    std::fs::create_dir(&repository).expect("a directory");
    let made = Command::new("git")
        .args(["init", "-q", "-b", "main"])
        .current_dir(&repository)
        .status()
        .expect("git runs");
    assert!(made.success());
    std::fs::write(repository.join("new.txt"), "x").expect("written");
    let path = repository.display().to_string();
    add(&ground, "git", words, &["--repository", &path], |_| {});
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "git").len(), 12);
    let status = daemon.ask(
        "alice",
        call("git", "git_status", json!({"repo_path": path})),
    );
    assert!(status.content().contains("new.txt"), "{}", status.text);
    daemon.finish();
}

#[test]
fn word_with_its_noise_on_stdout() {
    let Some(words) = python("word_mcp_server") else {
        return;
    };
    let ground = Ground::new();
    add(&ground, "word", words, &[], |_| {});
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "word").len(), 54);
    let file = ground.path("letter.docx").display().to_string();
    let created = daemon.ask(
        "alice",
        call(
            "word",
            "create_document",
            json!({"filename": file, "title": "A letter"}),
        ),
    );
    assert_eq!(created.ok()["is_error"], false, "{}", created.text);
    assert!(Path::new(&file).exists());
    let written = daemon.ask(
        "alice",
        call(
            "word",
            "add_paragraph",
            json!({"filename": file, "text": "Dear reader"}),
        ),
    );
    assert_eq!(written.ok()["is_error"], false, "{}", written.text);
    let read = daemon.ask(
        "alice",
        call("word", "get_document_text", json!({"filename": file})),
    );
    assert!(read.content().contains("Dear reader"), "{}", read.text);
    daemon.finish();
}

#[test]
fn everything_over_http() {
    let Some(words) = npm("mcp-server-everything") else {
        return;
    };
    let ground = Ground::new();
    let port = free_port();
    let _server = Running::start(
        &words,
        &["streamableHttp"],
        &[("PORT", &port.to_string())],
        port,
    );
    ground
        .host
        .add_server(Row::http("everything", &format!("http://127.0.0.1:{port}/mcp")).0);
    let mut daemon = ground.daemon();
    let count = tools(&mut daemon, "alice", "everything").len();
    assert!((13..=19).contains(&count), "{count} tools");
    let users = ["alice", "bob"];
    let tasks: Vec<String> = (0..20)
        .map(|n| {
            daemon.send(
                users[n % 2],
                call("everything", "get-sum", json!({"a": n, "b": 1000})),
            )
        })
        .collect();
    for (n, task) in tasks.iter().enumerate() {
        let sum = daemon.answer(task);
        assert!(
            sum.content().contains(&(n + 1000).to_string()),
            "{}",
            sum.text
        );
    }
    daemon.finish();
}

#[test]
fn cyanheads_git_over_http_although_it_answers_the_probe_with_500() {
    let Some(words) = npm("git-mcp-server") else {
        return;
    };
    let ground = Ground::new();
    let repository = ground.path("repository");
    std::fs::create_dir(&repository).expect("a directory");
    let made = Command::new("git")
        .args(["init", "-q", "-b", "main"])
        .current_dir(&repository)
        .status()
        .expect("git runs");
    assert!(made.success());
    std::fs::write(repository.join("new.txt"), "x").expect("written");
    let port = free_port();
    let port_text = port.to_string();
    let environment = [
        ("MCP_TRANSPORT_TYPE", "http"),
        ("MCP_HTTP_PORT", &*port_text),
        ("MCP_HTTP_HOST", "127.0.0.1"),
    ];
    let _server = Running::start(&words, &[], &environment, port);
    ground
        .host
        .add_server(Row::http("git", &format!("http://127.0.0.1:{port}/mcp")).0);
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "git").len(), 28);
    let status = daemon.ask(
        "alice",
        call("git", "git_status", json!({"path": repository})),
    );
    assert!(status.text.contains("new.txt"), "{}", status.text);
    daemon.finish();
}

#[test]
fn excel_over_http_with_references_in_its_schemas() {
    let Some(words) = python("excel-mcp-server") else {
        return;
    };
    let ground = Ground::new();
    let files = ground.path("files");
    std::fs::create_dir(&files).expect("a directory");
    let (port, files_text) = (free_port(), files.display().to_string());
    let _server = Running::start(
        &words,
        &[
            "streamable-http",
            "--port",
            &port.to_string(),
            "--allow-dir",
            &files_text,
        ],
        &[],
        port,
    );
    ground
        .host
        .add_server(Row::http("excel", &format!("http://127.0.0.1:{port}/mcp")).0);
    let mut daemon = ground.daemon();
    assert_eq!(tools(&mut daemon, "alice", "excel").len(), 46);
    let listed = daemon.ask(
        "alice",
        json!({"action": "list_tools", "server_name": "excel"}),
    );
    assert!(
        listed.text.contains("$defs") && listed.text.contains("$ref"),
        "schemas pass whole"
    );
    let path = files.join("book.xlsx");
    let created = daemon.ask(
        "alice",
        call(
            "excel",
            "create_workbook",
            json!({"path": path, "sheets": ["One", "Two"]}),
        ),
    );
    assert_eq!(created.ok()["is_error"], false, "{}", created.text);
    assert!(path.exists());
    let described = daemon.ask(
        "alice",
        call("excel", "describe_workbook", json!({"path": path})),
    );
    assert!(described.text.contains("Two"), "{}", described.text);
    daemon.finish();
}

/// A command line of the field, `npx`-like: a shell above the server, both gone at the end.
#[test]
fn a_real_server_behind_a_shell_leaves_nothing() {
    let Some(words) = npm("mcp-server-memory") else {
        return;
    };
    let ground = Ground::new();
    let line = format!("'{}' '{}'; true", words[0], words[1]);
    add(
        &ground,
        "memory",
        vec!["sh".to_owned(), "-c".to_owned(), line],
        &[],
        |row| {
            row.env(
                "MEMORY_FILE_PATH",
                &ground.path("graph.jsonl").display().to_string(),
            );
        },
    );
    let mut daemon = ground.daemon();
    assert_eq!(
        daemon
            .ask("alice", call("memory", "read_graph", json!({})))
            .ok()["is_error"],
        Value::Bool(false)
    );
    daemon.finish();
}
