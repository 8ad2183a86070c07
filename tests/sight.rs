//! What the operator sees of the work: the line that closes every task, the figures, the trace.

mod ground;

use std::io::{Read, Write};
use std::net::TcpStream;

use ground::{Daemon, Ground, call, wait_for};
use serde_json::{Value, json};

/// The log records of ended tasks and refused lines, once there are so many, without their times.
fn closing_lines(daemon: &Daemon, count: usize) -> Vec<Value> {
    let read = |stderr: &str| -> Vec<Value> {
        let records = stderr.lines().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}"))
        });
        let closing = records.filter(|record| record["target"] == "mcp_client::task");
        closing.map(|record| record["fields"].clone()).collect()
    };
    let mut lines = wait_for("the closing lines", || {
        Some(read(&daemon.stderr())).filter(|lines| lines.len() >= count)
    });
    assert_eq!(lines.len(), count, "{lines:#?}");
    for line in &mut lines {
        let fields = line.as_object_mut().expect("fields");
        let duration = fields.remove("duration_ms");
        assert!(
            duration.is_none_or(|ms| ms.is_u64()),
            "a duration is a number of milliseconds"
        );
    }
    lines
}

#[test]
fn every_task_closes_with_one_line_that_tells_what_became_of_it() {
    let ground = Ground::new();
    ground.set("log_level", "warn,mcp_client::task=info");
    ground.set("log_format", "json");
    let failed = r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#;
    let script = json!({"on": {
        "tools/call:fails": [{"do": "result", "text": failed}],
        "tools/call:hang": [{"do": "hang"}],
    }});
    let fake = ground.stdio("books", script, |row| {
        row.public();
    });
    ground.stdio(
        "ghost",
        json!({"on": {"start": [{"do": "exit", "code": 3}]}}),
        |row| {
            row.public();
        },
    );
    let secret = ground.canary("argument");
    let mut daemon = ground.daemon();

    daemon
        .ask("alice", call("Books", "echo", json!({"q": secret})))
        .ok();
    daemon
        .ask(
            "",
            json!({"action": "call_tool", "name": "mcp_books_fails", "result": "mcp"}),
        )
        .ok();
    daemon
        .ask("alice", call("books", "no-such", json!({})))
        .failure("tool_not_found");
    let refused = daemon.ask("alice", call("ghost", "x", json!({})));
    let phase = refused.failure("connect_failed")["phase"].clone();
    let hanging = daemon.send("alice", call("books", "hang", json!({})));
    fake.wait_for_requests("tools/call:hang", 1);
    let cancel = json!({"command": "cancel", "params": {"target": "task-5"}});
    daemon.command(cancel);
    daemon.answer(&hanging).failure("cancelled");
    daemon.ask("alice", json!({"action": "list_servers"})).ok();
    daemon.line(b"no JSON");

    let task = |id: &str, action: &str, rest: Value| {
        let mut line = json!({"message": "a task has ended", "task": id, "action": action});
        let rest = rest.as_object().expect("an object").clone();
        line.as_object_mut().expect("an object").extend(rest);
        line
    };
    let expected = [
        task(
            "task-1",
            "call_tool",
            json!({"user": "alice", "server": "books", "tool": "echo", "phase": "call", "outcome": "ok"}),
        ),
        task(
            "task-2",
            "call_tool",
            json!({"server": "books", "tool": "fails", "phase": "call", "outcome": "tool_error"}),
        ),
        task(
            "task-3",
            "call_tool",
            json!({"user": "alice", "server": "books", "tool": "no-such", "phase": "list", "outcome": "tool_not_found"}),
        ),
        task(
            "task-4",
            "call_tool",
            json!({"user": "alice", "server": "ghost", "tool": "x", "phase": phase, "outcome": "connect_failed"}),
        ),
        task(
            "task-5",
            "call_tool",
            json!({"user": "alice", "server": "books", "tool": "hang", "phase": "call", "outcome": "cancelled"}),
        ),
        task(
            "task-7",
            "list_servers",
            json!({"user": "alice", "phase": "resolve", "outcome": "ok"}),
        ),
        json!({"message": "a line was refused", "task": "null", "outcome": "invalid_json"}),
    ];
    let lines = closing_lines(&daemon, expected.len());
    for (line, expected) in lines.iter().zip(&expected) {
        assert_eq!(line, expected);
    }
    assert!(!daemon.stderr().contains(&secret));
    daemon.finish();
}

#[test]
fn metrics_are_the_figures_of_stats_on_a_loopback_port_if_one_is_set() {
    let ground = Ground::new();
    ground.stdio("books", json!({}), |row| {
        row.public();
    });
    ground.set("metrics_listen", "127.0.0.1:0");
    ground.set("log_level", "info");
    ground.set("log_format", "json");
    let mut daemon = ground.daemon();
    daemon.ask("", call("books", "echo", json!({}))).ok();
    daemon
        .ask("", call("nowhere", "x", json!({})))
        .failure("server_not_found");
    let address = wait_for("the port", || {
        let stderr = daemon.stderr();
        let mut records = stderr
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records.find_map(|record| record["fields"]["bound"].as_str().map(str::to_owned))
    });
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    let answer = get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for sample in [
        "mcp_client_pool_connections{transport=\"stdio\"} 1\n",
        "mcp_client_commands_succeeded_total 1\n",
        "mcp_client_commands_failed_total{code=\"server_not_found\"} 1\n",
        "mcp_client_pool_departures_total{reason=\"evicted\"} 0\n",
    ] {
        assert!(answer.contains(sample), "{sample} in {answer}");
    }
    assert!(get("/").starts_with("HTTP/1.1 404"));
    daemon.finish();
}

#[test]
fn metrics_are_refused_to_the_network() {
    let ground = Ground::new();
    ground.set("metrics_listen", "0.0.0.0:9464");
    let output = ground.command().output().expect("it runs");
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("MCP_CLIENT_METRICS_LISTEN must be an address of this machine"),
        "{said}"
    );
}

#[test]
fn a_trace_reaches_the_server_as_it_came_and_none_is_made_up() {
    const NEAR: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const FAR: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00";
    let ground = Ground::new();
    let fakes = [
        ground.stdio("books", json!({}), |_| {}),
        ground.http("wiki", json!({"era": "modern"}), |_| {}),
    ];
    let mut daemon = ground.daemon();
    for fake in &fakes {
        let mut params = call(&fake.name, "echo", json!({}));
        daemon.ask("alice", params.clone()).ok();
        let far = json!({"traceparent": FAR, "baggage": "tier=gold"});
        let command = json!({"params": params, "trace": far, "user": {"userId": "alice"}});
        let task = daemon.command(command.clone());
        daemon.answer(&task).ok();
        params["_meta"] =
            json!({"traceparent": NEAR, "tracestate": "rojo=1", "progressToken": 9, "x": 1});
        let task =
            daemon.command(json!({"params": params, "trace": far, "user": {"userId": "alice"}}));
        daemon.answer(&task).ok();

        let mut invalid = command;
        invalid["trace"]["traceparent"] = "00-1-2-3".into();
        let task = daemon.command(invalid);
        daemon.answer(&task).failure("invalid_params");
        params["_meta"]["baggage"] = "no value".into();
        daemon.ask("alice", params).failure("invalid_params");

        let asked = fake.events_of("request").into_iter();
        let traces: Vec<Value> = asked
            .filter(|line| line["key"] == "tools/call:echo")
            .map(|line| {
                let meta = &line["params"]["_meta"];
                assert!(
                    meta["progressToken"] != 9 && meta.get("x").is_none(),
                    "{meta}"
                );
                json!([meta["traceparent"], meta["tracestate"], meta["baggage"]])
            })
            .collect();
        let expected = [
            json!([null, null, null]),
            json!([FAR, null, "tier=gold"]),
            json!([NEAR, "rojo=1", null]),
        ];
        assert_eq!(traces, expected, "{}", fake.name);
    }
    daemon.finish();
}
