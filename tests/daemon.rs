//! The built daemon and its guardian, as far as they need no MCP server or only one to leave behind.

mod ground;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use ground::{Daemon, Ground, call, open, parent_of, state_of, wait_for};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

/// Runs it with `input` to its end: its exit code, its answers by task id, its stderr.
fn run(mut command: Command, input: &[u8]) -> (Option<i32>, Vec<Value>, String) {
    let mut child = piped(&mut command);
    let mut stdin = child.stdin.take().expect("piped");
    // Whatever ends before it has read everything closes its stdin.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), lines.collect(), stderr)
}

fn piped(command: &mut Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

fn codes(answers: &[Value]) -> Vec<(String, String)> {
    let code = |answer: &Value| {
        let code = answer["error_code"].as_str().unwrap_or("success");
        (answer["task_id"].to_string(), code.to_owned())
    };
    let mut codes: Vec<_> = answers.iter().map(code).collect();
    codes.sort();
    codes
}

#[test]
fn every_line_has_its_answer_and_the_end_of_input_ends_the_process() {
    let ground = Ground::new();
    let mut command = ground.command();
    command.args(["--set", "daemon.max_line=1KiB"]);
    let long = format!(r#"{{"task_id":"long","x":"{}"}}"#, "x".repeat(2_000));
    let lines: [&[u8]; 9] = [
        br#"{"task_id":1.50,"command":"ping"}"#,
        b"",
        b"  \r",
        br#"{"task_id":"broken","params":"#,
        b"[]",
        b"{\"task_id\":\"bytes\",\"x\":\"\xff\"}",
        long.as_bytes(),
        br#"{"task_id":"odd","params":{"action":"dance"}}"#,
        br#"{"task_id":"last","command":"ping"}"#,
    ];
    let (code, answers, _) = run(command, &lines.join(&b"\n"[..]));
    assert_eq!(code, Some(0));
    let expected = [
        ("\"broken\"", "invalid_json"),
        ("\"bytes\"", "invalid_json"),
        ("\"last\"", "success"),
        ("\"long\"", "line_too_long"),
        ("\"odd\"", "unknown_action"),
        ("1.5", "success"),
        ("null", "invalid_command"),
    ];
    let expected = expected.map(|(task, code)| (task.to_owned(), code.to_owned()));
    assert_eq!(codes(&answers), expected);
}

#[test]
fn exit_is_answered_and_what_follows_it_is_refused() {
    let ground = Ground::new();
    let input = b"{\"command\":\"exit\",\"task_id\":1}\n{\"command\":\"ping\",\"task_id\":2}\n";
    let (code, answers, _) = run(ground.command(), input);
    assert_eq!(code, Some(0));
    assert!(answers[0]["result"]["message"].is_string());
    assert_eq!(answers[1]["error_code"], "shutting_down");
}

#[test]
fn everything_that_is_wrong_with_the_settings_is_told_at_once() {
    let ground = Ground::new();
    let mut command = ground.command();
    command
        .args(["--naming", "triple", "--set", "pool.max_conections=7"])
        .args(["--set", "store.url=postgres://u:hunter22@db/x"])
        .env("MCP_CLIENT_DAEMON_DRAIN_TIMEOUT", "30");
    let (code, answers, stderr) = run(command, b"{\"command\":\"ping\"}\n");
    assert_eq!((code, answers.len()), (Some(64), 0));
    for part in [
        "--naming must be single or double",
        "no setting \"pool.max_conections\"",
        "MCP_CLIENT_STORE_URL",
        "MCP_CLIENT_DAEMON_DRAIN_TIMEOUT must be a whole number with a unit",
    ] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    assert!(!stderr.contains("hunter22"), "{stderr}");
}

#[test]
fn ascii_and_the_ready_line_are_options() {
    let ground = Ground::new();
    let mut command = ground.command();
    command.args(["--ascii", "--ready-line"]);
    let mut child = piped(&mut command);
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all("{\"task_id\":\"\u{1f600}\u{e4}\"}".as_bytes())
        .expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends").stdout;
    assert!(output.is_ascii());
    let text = String::from_utf8(output).expect("UTF-8");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (&lines[0]["type"], &lines[1]["task_id"]),
        (&json!("ready"), &json!("\u{1f600}\u{e4}"))
    );
}

#[test]
fn a_host_that_does_not_read_stderr_waits_for_no_answer() {
    let ground = Ground::new();
    let mut command = ground.command();
    command.args(["--log-level", "trace"]);
    let mut child = piped(&mut command);
    let mut stdin = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || {
        for task in 0..3_000 {
            writeln!(
                stdin,
                r#"{{"task_id":{task},"params":{{"action":"list_servers"}}}}"#
            )
            .expect("it reads");
        }
    });
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    assert_eq!(stdout.lines().map_while(Result::ok).count(), 3_000);
    writer.join().expect("everything is written");
    assert!(child.wait().expect("it ends").success());
    // Until here nobody has read it, and it was full.
    let mut stderr = Vec::new();
    let mut pipe = child.stderr.take().expect("piped");
    pipe.read_to_end(&mut stderr).expect("it reads");
    assert!(stderr.len() > 60_000, "{} bytes", stderr.len());
}

#[test]
fn a_closed_stdout_ends_an_idle_daemon() {
    let ground = Ground::new();
    let mut command = ground.command();
    let mut child = piped(command.arg("--ready-line"));
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout
        .read_line(&mut String::new())
        .expect("the ready line");
    drop(stdout);
    let ended = wait_for("the end", || {
        child.try_wait().expect("it can be waited for")
    });
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn an_idle_daemon_ends_at_the_first_signal() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let ground = Ground::new();
        let mut daemon = ground.daemon_with(&["--ready-line"]);
        daemon.event();
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0));
        daemon.assert_clean();
    }
}

/// A server below a shell, with a child of its own and one in a session of its own; a call hangs on it.
fn with_family(ground: &Ground) -> Daemon {
    let script = json!({"on": {
        "tools/call:spawn": [{"do": "spawn"}, {"do": "spawn", "setsid": true}, {"do": "execute"}],
        "tools/call:hang": [{"do": "hang"}]
    }});
    let fake = ground.stdio("books", script, |row| {
        let words: Vec<String> = serde_json::from_value(row.0["args"].clone()).expect("words");
        let program = row.0["command"].as_str().expect("a program").to_owned();
        row.set("command", "sh");
        let shell = r#"exec 3<&0; "$0" "$@" <&3 & wait"#;
        row.set(
            "args",
            json!([vec!["-c".to_owned(), shell.to_owned(), program], words].concat()),
        );
    });
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "spawn", json!({}))).ok();
    daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    daemon
}

/// The process below the guardian that is the daemon itself.
fn guarded(guardian: u32) -> Pid {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut pids = names.filter_map(|name| name.parse::<i32>().ok());
    let child = pids.find(|pid| parent_of(i64::from(*pid)) == Some(i64::from(guardian)));
    Pid::from_raw(child.expect("a guarded process")).expect("a pid")
}

fn is_gone(pid: Pid) -> Option<()> {
    state_of(i64::from(pid.as_raw_pid()))
        .is_none()
        .then_some(())
}

#[test]
fn sigkill_of_the_guarded_daemon_leaves_no_process_and_is_told() {
    let ground = Ground::new();
    let mut daemon = with_family(&ground);
    let pid = guarded(daemon.pid().unsigned_abs());
    kill_process(pid, Signal::KILL).expect("it lives");
    assert_eq!(daemon.wait().signal(), Some(Signal::KILL.as_raw()));
    daemon.assert_clean();
}

#[test]
fn sigkill_of_the_guardian_leaves_no_process() {
    let ground = Ground::new();
    let mut daemon = with_family(&ground);
    daemon.signal(Signal::KILL);
    assert_eq!(daemon.wait().signal(), Some(Signal::KILL.as_raw()));
    daemon.assert_clean();
}

#[test]
fn sigkill_of_the_guardians_group_leaves_no_process() {
    let ground = Ground::new();
    let mut command = ground.command();
    let mut child = piped(command.process_group(0).arg("--ready-line"));
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout
        .read_line(&mut String::new())
        .expect("the ready line");
    let group = Pid::from_child(&child);
    let below = guarded(child.id());
    kill_process_group(group, Signal::KILL).expect("it lives");
    child.wait().expect("it ends");
    wait_for("the end of the guarded one", || is_gone(below));
}

#[test]
fn a_signal_to_the_whole_group_counts_once() {
    let ground = Ground::new();
    let gate = ground.path("gate");
    let script =
        json!({"on": {"tools/call:gated": [{"do": "until", "file": gate}, {"do": "execute"}]}});
    let fake = ground.stdio("books", script, |_| {});
    let mut command = ground.command();
    command.process_group(0);
    let mut daemon = Daemon::start(&ground, command);
    let task = daemon.send("alice", call("books", "gated", json!({})));
    fake.wait_for_requests("tools/call:gated", 1);
    let group = Pid::from_raw(daemon.pid()).expect("a pid");
    kill_process_group(group, Signal::TERM).expect("it lives");
    wait_for("the drain", || {
        let ping = daemon.command(json!({"command": "ping"}));
        daemon.answer(&ping).is_failure().then_some(())
    });
    open(&gate);
    daemon.answer(&task).ok();
    assert_eq!(daemon.wait().code(), Some(0));
    daemon.assert_all_answered();
    daemon.assert_clean();
}

#[test]
fn the_guardian_holds_no_pipe_of_the_host() {
    let ground = Ground::new();
    let mut command = ground.command();
    let mut child = piped(command.arg("--ready-line"));
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout
        .read_line(&mut String::new())
        .expect("the ready line");
    let guardian = Pid::from_child(&child);
    let below = guarded(child.id());
    kill_process(guardian, Signal::STOP).expect("it lives");
    drop(child.stdin.take());
    // Ends only when nobody holds stdout any more, while the guardian cannot move.
    stdout.read_to_end(&mut Vec::new()).expect("it reads");
    assert_eq!(
        state_of(i64::from(below.as_raw_pid())).as_deref(),
        Some("Z")
    );
    kill_process(guardian, Signal::CONT).expect("it lives");
    assert!(child.wait().expect("it ends").success());
}
