//! `scripts/node-shim/index.js`, for hosts that spawn `node index.js`.
//!
//! Without node each test says so and passes; with `CI=true` that is a failure.

mod ground;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ground::{Daemon, Ground, call, wait_for};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

const BINARY: &str = env!("CARGO_BIN_EXE_mcp-client");

fn node_is_there() -> bool {
    let version = Command::new("node").arg("--version").output();
    let is_there = version.is_ok_and(|output| output.status.success());
    assert!(is_there || std::env::var_os("CI").is_none(), "no node");
    if !is_there {
        eprintln!("skipped: there is no node");
    }
    is_there
}

fn shim() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/node-shim/index.js")
}

/// `node index.js` in the environment of a host that uses `ground`.
fn node(ground: &Ground, index: &Path) -> Command {
    let mut command = Command::new("node");
    command.env_clear().arg(index).current_dir(ground.path(""));
    let environment = ground.command();
    for (name, value) in environment.get_envs() {
        command.env(name, value.expect("a value"));
    }
    command
}

/// It leads a process group, as under a host that was started by hand.
fn daemon(ground: &Ground) -> Daemon {
    let mut command = node(ground, &shim());
    command.env("MCP_CLIENT_BIN", BINARY).process_group(0);
    Daemon::start(ground, command)
}

#[test]
fn the_pipes_are_the_hosts_own_and_answers_are_ascii() {
    if !node_is_there() {
        return;
    }
    let ground = Ground::new();
    ground.stdio("books", json!({}), |_| {});
    let mut daemon = daemon(&ground);
    let answer = daemon.ask("alice", call("books", "echo", json!({"q": "Zoë 🦀"})));
    assert!(answer.content().contains("Zoë 🦀"), "{}", answer.text);
    assert!(answer.text.is_ascii(), "{}", answer.text);
    daemon.finish();
}

#[test]
fn signals_to_the_group_reach_the_daemon_once_and_its_exit_code_comes_back() {
    if !node_is_there() {
        return;
    }
    for (second, code) in [(None, 0), (Some(Signal::TERM), 143)] {
        let ground = Ground::new();
        let gate = ground.path("gate");
        let steps = json!([{"do": "until", "file": gate}, {"do": "execute"}]);
        let fake = ground.stdio("books", json!({"on": {"tools/call:gated": steps}}), |_| {});
        let mut daemon = daemon(&ground);
        let task = daemon.send("alice", call("books", "gated", json!({})));
        fake.wait_for_requests("tools/call:gated", 1);
        let group = Pid::from_raw(daemon.pid()).expect("a pid");
        let signal = |signal| kill_process_group(group, signal).expect("it lives");
        signal(Signal::TERM);
        wait_for("the drain", || {
            let ping = daemon.command(json!({"command": "ping"}));
            daemon.answer(&ping).is_failure().then_some(())
        });
        if let Some(second) = second {
            signal(second);
            daemon.answer(&task).failure("shutting_down");
        } else {
            ground::open(&gate);
            daemon.answer(&task).ok();
        }
        assert_eq!(daemon.wait().code(), Some(code));
        daemon.assert_all_answered();
        daemon.assert_clean();
    }
}

#[test]
fn the_binary_is_found_beside_it_and_on_the_path() {
    if !node_is_there() {
        return;
    }
    let ground = Ground::new();
    let copied = ground.path("index.js");
    std::fs::copy(shim(), &copied).expect("copied");
    let path = std::env::var("PATH").expect("a PATH");
    let version = |command: &mut Command| {
        let output = command.arg("--version").stdin(Stdio::null()).output();
        let output = output.expect("node starts");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8");
        (output.status.code(), text)
    };
    let found = (
        Some(0),
        concat!("mcp-client ", env!("CARGO_PKG_VERSION"), "\n").to_owned(),
    );

    let (code, said) = version(node(&ground, &copied).env("MCP_CLIENT_BIN", "/nowhere"));
    assert!(code == Some(127) && said.contains("/nowhere"), "{said}");

    let elsewhere = Path::new(BINARY).parent().expect("a directory");
    let searched = format!("{}:{path}", elsewhere.display());
    assert_eq!(version(node(&ground, &copied).env("PATH", searched)), found);

    // An ES module, as the host's own package may make it.
    std::fs::write(ground.path("package.json"), r#"{"type":"module"}"#).expect("written");
    std::os::unix::fs::symlink(BINARY, ground.path("mcp-client")).expect("linked");
    assert_eq!(version(&mut node(&ground, &copied)), found);
}
