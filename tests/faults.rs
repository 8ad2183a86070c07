//! Odd and broken answers of servers: each comes out byte for byte, or as a clear failure at once.
//! Never as a wait for a deadline, where the answer could be told to be one.

mod ground;

use ground::{Answer, Daemon, Ground, call, call_raw};
use serde_json::{Value, json};

/// What must become of a row.
enum Expected {
    /// The result, byte for byte.
    Same(String),
    /// A failure that is no wait for a deadline.
    Failed,
    /// Either of these two: where one can argue about who is right.
    SameOrFailed(String),
    /// Nobody can tell what the line belongs to: the deadline may have to end it.
    FailedInTime,
    /// The same, unless somebody can.
    SameOrFailedInTime(String),
}

struct Row {
    name: &'static str,
    /// What the server writes instead of an answer, as Latin-1; `$ID` is the id of the call.
    written: String,
    expected: Expected,
}

/// A result that is odd, in an envelope that is in order.
fn odd(name: &'static str, result: &str) -> Row {
    let written = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
    Row {
        name,
        written,
        expected: Expected::Same(result.to_owned()),
    }
}

fn row(name: &'static str, written: &str, expected: Expected) -> Row {
    Row {
        name,
        written: written.to_owned(),
        expected,
    }
}

fn odd_results() -> Vec<Row> {
    let nested = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    vec![
        odd("structured_only", r#"{"structuredContent":{"a":1}}"#),
        odd("empty", "{}"),
        odd("content_null", r#"{"content":null}"#),
        odd(
            "unknown_type",
            r#"{"content":[{"type":"hologram","z":1,"a":2}]}"#,
        ),
        odd("text_missing", r#"{"content":[{"type":"text"}]}"#),
        odd("text_null", r#"{"content":[{"type":"text","text":null}]}"#),
        odd("text_number", r#"{"content":[{"type":"text","text":7}]}"#),
        odd(
            "image_without_type",
            r#"{"content":[{"type":"image","data":"AA=="}]}"#,
        ),
        odd(
            "link_without_name",
            r#"{"content":[{"type":"resource_link","uri":"a:b"}]}"#,
        ),
        odd(
            "link_of_float_size",
            r#"{"content":[{"type":"resource_link","uri":"a:b","name":"n","size":1.5}]}"#,
        ),
        odd(
            "odd_audience",
            r#"{"content":[{"type":"text","text":"t","annotations":{"audience":["tool"]}}]}"#,
        ),
        odd("is_error_text", r#"{"content":[],"isError":"true"}"#),
        odd(
            "content_object",
            r#"{"content":{"type":"text","text":"t"}}"#,
        ),
        odd("content_string", r#"{"content":"just text"}"#),
        odd(
            "duplicate_key",
            r#"{"content":[],"content":[{"type":"text","text":"t"}]}"#,
        ),
        odd("tool_result", r#"{"toolResult":{"a":1}}"#),
        odd("unknown_members", r#"{"x":1,"y":{"z":null}}"#),
        odd("task", r#"{"task":{"taskId":"t","status":"working"}}"#),
        odd("extra_tools", r#"{"content":[],"tools":[]}"#),
        odd("extra_contents", r#"{"content":[],"contents":[]}"#),
        odd("extra_prompts", r#"{"content":[],"prompts":[]}"#),
        odd("extra_action", r#"{"content":[],"action":"accept"}"#),
        odd(
            "structured_null",
            r#"{"content":[],"structuredContent":null}"#,
        ),
        odd(
            "numbers",
            r#"{"content":[],"n":[1e2,1.0,12345678901234567890123,-0,1e400]}"#,
        ),
        odd("order", r#"{"z":1,"content":[],"a":{"y":1,"b":2}}"#),
        odd("spaces", r#"{ "content" : [ ] , "x" : "\u00e9\/\u2028" }"#),
        odd(
            "lone_surrogate",
            r#"{"content":[{"type":"text","text":"\ud800"}]}"#,
        ),
        Row {
            expected: Expected::SameOrFailed(format!(r#"{{"content":[],"x":{nested}}}"#)),
            ..odd("nested", &format!(r#"{{"content":[],"x":{nested}}}"#))
        },
        Row {
            expected: Expected::SameOrFailed(r#"{"content":[],"resultType":"odd"}"#.to_owned()),
            ..odd(
                "unknown_result_type",
                r#"{"content":[],"resultType":"odd"}"#,
            )
        },
        Row {
            expected: Expected::SameOrFailed("[]".to_owned()),
            ..odd("array", "[]")
        },
        Row {
            expected: Expected::SameOrFailed("null".to_owned()),
            ..odd("null", "null")
        },
        Row {
            expected: Expected::SameOrFailed("7".to_owned()),
            ..odd("number", "7")
        },
    ]
}

fn odd_envelopes() -> Vec<Row> {
    use Expected::{Failed, FailedInTime, Same, SameOrFailed, SameOrFailedInTime};
    let same = || Same(r#"{"content":[]}"#.to_owned());
    let either = || SameOrFailed(r#"{"content":[]}"#.to_owned());
    vec![
        row(
            "error_null",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]},"error":null}"#,
            same(),
        ),
        row(
            "both",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]},"error":{"code":1,"message":"m"}}"#,
            Failed,
        ),
        row("neither", r#"{"jsonrpc":"2.0","id":$ID}"#, Failed),
        row(
            "no_version",
            r#"{"id":$ID,"result":{"content":[]}}"#,
            either(),
        ),
        row(
            "old_version",
            r#"{"jsonrpc":"1.0","id":$ID,"result":{"content":[]}}"#,
            either(),
        ),
        row(
            "extra_member",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]},"took":3}"#,
            same(),
        ),
        row(
            "id_null",
            r#"{"jsonrpc":"2.0","id":null,"result":{"content":[]}}"#,
            FailedInTime,
        ),
        row(
            "id_null_error",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}"#,
            FailedInTime,
        ),
        row(
            "id_as_text",
            r#"{"jsonrpc":"2.0","id":"$ID","result":{"content":[]}}"#,
            either(),
        ),
        row(
            "id_as_float",
            r#"{"jsonrpc":"2.0","id":$ID.0,"result":{"content":[]}}"#,
            either(),
        ),
        row(
            "duplicate_result",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{},"result":{"content":[]}}"#,
            either(),
        ),
        row(
            "duplicate_id",
            r#"{"jsonrpc":"2.0","id":$ID,"id":$ID,"result":{"content":[]}}"#,
            either(),
        ),
        row(
            "batch",
            r#"[{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}]"#,
            either(),
        ),
        row(
            "code_text",
            r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":"E1","message":"m"}}"#,
            Failed,
        ),
        row(
            "code_float",
            r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":1.5,"message":"m"}}"#,
            Failed,
        ),
        row(
            "code_big",
            r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":99999999999,"message":"m"}}"#,
            Failed,
        ),
        row(
            "no_message",
            r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":1}}"#,
            Failed,
        ),
        row(
            "error_text",
            r#"{"jsonrpc":"2.0","id":$ID,"error":"it failed"}"#,
            Failed,
        ),
        row(
            "error_number",
            r#"{"jsonrpc":"2.0","id":$ID,"error":5}"#,
            Failed,
        ),
        row(
            "not_utf8",
            "{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\u{ff}\u{fe}\"}]}}",
            Failed,
        ),
        row(
            "control_character",
            "{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\u{1}\"}]}}",
            Failed,
        ),
        row(
            "nan",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],"x":NaN}}"#,
            Failed,
        ),
        row(
            "cut_short",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"te"#,
            Failed,
        ),
        row(
            "text_before",
            r#"INFO {"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#,
            FailedInTime,
        ),
        row(
            "many_lines",
            "{\n  \"jsonrpc\": \"2.0\",\n  \"id\": $ID,\n  \"result\": {}\n}",
            SameOrFailedInTime("{}".to_owned()),
        ),
    ]
}

fn scenes(rows: &[Row], line_end: &str) -> Value {
    let scene =
        |row: &Row| json!([{"do": "bytes", "latin1": format!("{}{line_end}", row.written)}]);
    rows.iter()
        .map(|row| (format!("tools/call:{}", row.name), scene(row)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn params_of(row: &Row, params: Value) -> Value {
    let mut params = params;
    // Long enough for a busy machine, where the answer must not need it.
    params["timeout_ms"] = if matches!(
        row.expected,
        Expected::FailedInTime | Expected::SameOrFailedInTime(_)
    ) {
        1_000
    } else {
        30_000
    }
    .into();
    params
}

fn check(row: &Row, answer: &Answer) {
    let failed_at_once = answer.is_failure() && answer.value["error_code"] != "call_timeout";
    let is = |wanted: &str| !answer.is_failure() && answer.result_text() == wanted;
    let right = match &row.expected {
        Expected::Same(wanted) => is(wanted),
        Expected::SameOrFailed(wanted) => is(wanted) || failed_at_once,
        Expected::Failed => failed_at_once,
        Expected::FailedInTime => answer.is_failure(),
        Expected::SameOrFailedInTime(wanted) => is(wanted) || answer.is_failure(),
    };
    assert!(
        right,
        "{}: {} became {}",
        row.name, row.written, answer.text
    );
    if answer.is_failure() {
        assert_eq!(
            answer.value["details"]["server_name"], "odd",
            "{}",
            answer.text
        );
        assert!(
            answer.value["error"]
                .as_str()
                .is_some_and(|error| !error.is_empty())
        );
    }
}

/// All rows side by side on one connection; afterwards it serves a plain call.
fn play(daemon: &mut Daemon, rows: &[Row]) {
    let tasks: Vec<String> = rows
        .iter()
        .map(|row| {
            daemon.send(
                "alice",
                params_of(row, call_raw("odd", row.name, json!({}))),
            )
        })
        .collect();
    for (row, task) in rows.iter().zip(tasks) {
        check(row, &daemon.answer(&task));
    }
    daemon.ask("alice", call("odd", "echo", json!({}))).ok();
}

#[test]
fn odd_results_pass_unchanged_over_stdio() {
    let ground = Ground::new();
    let rows = odd_results();
    let fake = ground.stdio("odd", json!({"on": scenes(&rows, "\n")}), |_| {});
    let mut daemon = ground.daemon();
    play(&mut daemon, &rows);
    daemon.finish();
    assert_eq!(fake.served().len(), 1, "none of them costs the connection");
}

#[test]
fn odd_envelopes_pass_or_fail_at_once_over_stdio() {
    let ground = Ground::new();
    let rows = odd_envelopes();
    let fake = ground.stdio("odd", json!({"on": scenes(&rows, "\n")}), |_| {});
    let mut daemon = ground.daemon();
    play(&mut daemon, &rows);
    daemon.finish();
    for row in &rows {
        assert_eq!(
            fake.requests(&format!("tools/call:{}", row.name)),
            1,
            "{} was called once",
            row.name
        );
    }
}

/// The default form reads the blocks: whatever they are, it answers, and is not the end of anything.
#[test]
fn odd_results_are_answered_in_the_default_form() {
    let ground = Ground::new();
    let rows = odd_results();
    ground.stdio("odd", json!({"on": scenes(&rows, "\n")}), |_| {});
    let mut daemon = ground.daemon();
    for row in &rows {
        let answer = daemon.ask("alice", params_of(row, call("odd", row.name, json!({}))));
        if !answer.is_failure() {
            assert!(answer.text.contains(r#""content":"#), "{}", answer.text);
            assert!(answer.text.contains(r#""raw":"#), "{}", answer.text);
            assert!(answer.text.contains(r#""is_error":"#), "{}", answer.text);
        }
        assert_ne!(
            answer.value["error_code"], "call_timeout",
            "{}: {}",
            row.name, answer.text
        );
        assert_ne!(
            answer.value["error_code"], "internal",
            "{}: {}",
            row.name, answer.text
        );
    }
    daemon.finish();
}

#[test]
fn odd_results_pass_unchanged_over_http_as_json_and_as_sse() {
    for sse in [false, true] {
        let ground = Ground::new();
        let rows = odd_results();
        let on: serde_json::Map<String, Value> = rows
            .iter()
            .map(|row| {
                (
                    format!("tools/call:{}", row.name),
                    json!([{"do": "line", "text": row.written}]),
                )
            })
            .collect();
        ground.http("odd", json!({"http": {"sse": sse}, "on": on}), |_| {});
        let mut daemon = ground.daemon();
        play(&mut daemon, &rows);
        daemon.finish();
    }
}

/// Over HTTP the exchange says what an answer belongs to: nothing needs a deadline.
#[test]
fn odd_envelopes_pass_or_fail_at_once_over_http_as_json() {
    let ground = Ground::new();
    let mut rows = odd_envelopes();
    for row in &mut rows {
        let decided = std::mem::replace(&mut row.expected, Expected::Failed);
        row.expected = match (row.name, decided) {
            // One JSON value, whatever its lines.
            ("many_lines", _) => Expected::SameOrFailed("{}".to_owned()),
            ("id_null", _) => Expected::SameOrFailed(r#"{"content":[]}"#.to_owned()),
            (_, Expected::FailedInTime) => Expected::Failed,
            (_, decided) => decided,
        };
    }
    let response = |row: &Row| {
        // The length of the id is not known here: the connection's end is the body's.
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        json!([{"do": "tcp", "latin1": format!("{head}{}", row.written)}, {"do": "cut"}])
    };
    let on: serde_json::Map<String, Value> = rows
        .iter()
        .map(|row| (format!("tools/call:{}", row.name), response(row)))
        .collect();
    ground.http("odd", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    play(&mut daemon, &rows);
    daemon.finish();
}

#[test]
fn broken_http_answers_fail_at_once() {
    use Expected::{Failed, FailedInTime};
    let ground = Ground::new();
    let json = |status: u16, body: &str| json!([{"do": "http", "status": status, "headers": {"Content-Type": "application/json"}, "body": body}]);
    let text = |status: u16, kind: &str, body: &str| json!([{"do": "http", "status": status, "headers": {"Content-Type": kind}, "body": body}]);
    let error = |id: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"no"}}}}"#)
    };
    let cases: Vec<(&'static str, Value, Expected)> = vec![
        ("not_json", json(200, "oops"), Failed),
        ("empty_body", json(200, ""), Failed),
        ("html", text(200, "text/html", "<p>hello"), Failed),
        (
            "no_type",
            json!([{"do": "http", "status": 200, "body": "hello"}]),
            Failed,
        ),
        ("error_400_null_id", json(400, &error("null")), Failed),
        ("error_500_null_id", json(500, &error("null")), Failed),
        ("error_500_own_id", json(500, &error("$ID")), Failed),
        ("error_200_null_id", json(200, &error("null")), Failed),
        ("plain_500", text(500, "text/plain", "down"), Failed),
        (
            "plain_429",
            json!([{"do": "http", "status": 429, "headers": {"Retry-After": "7"}}]),
            Failed,
        ),
        ("plain_403", text(403, "text/plain", "no"), Failed),
        (
            "redirect",
            json!([{"do": "http", "status": 307, "headers": {"Location": "http://127.0.0.1:1/"}}]),
            Failed,
        ),
        ("accepted", json!([{"do": "http", "status": 202}]), Failed),
        ("no_content", json!([{"do": "http", "status": 204}]), Failed),
        ("cut_before", json!([{"do": "cut"}]), Failed),
        (
            "cut_within",
            json!([{"do": "tcp", "latin1": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"json"}, {"do": "cut"}]),
            Failed,
        ),
        (
            "garbage",
            json!([{"do": "tcp", "latin1": "\u{ff}\u{ff}\u{ff}\r\n\r\n"}, {"do": "cut"}]),
            Failed,
        ),
        (
            "sse_ends",
            json!([{"do": "bytes", "latin1": ": nothing\n\n"}]),
            Failed,
        ),
        (
            "sse_cut",
            json!([{"do": "bytes", "latin1": "data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"res"}, {"do": "cut"}]),
            Failed,
        ),
        (
            "sse_bad_event",
            json!([{"do": "bytes", "latin1": "data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\n\n"}]),
            Failed,
        ),
        (
            "sse_open",
            json!([{"do": "bytes", "latin1": ": nothing\n\n"}, {"do": "hang"}]),
            FailedInTime,
        ),
        ("silence", json!([{"do": "hang"}]), FailedInTime),
    ];
    let on: serde_json::Map<String, Value> = cases
        .iter()
        .map(|(name, steps, _)| (format!("tools/call:{name}"), steps.clone()))
        .collect();
    let fake = ground.http("odd", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("odd", "echo", json!({}))).ok();
    for (name, _, expected) in cases {
        let row = Row {
            name,
            written: name.to_owned(),
            expected,
        };
        let answer = daemon.ask("alice", params_of(&row, call_raw("odd", name, json!({}))));
        check(&row, &answer);
        daemon.ask("alice", call("odd", "echo", json!({}))).ok();
        assert_eq!(
            fake.requests(&format!("tools/call:{name}")),
            1,
            "{name} was sent once"
        );
    }
    daemon.finish();
}

#[test]
fn an_answer_that_is_too_large_fails_alone() {
    let ground = Ground::new();
    let on = json!({
        "tools/call:large": [{"do": "giant", "bytes": 10_000_000}],
        "tools/call:too_large": [{"do": "giant", "bytes": 17_000_000}],
        "tools/call:gated": [{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]
    });
    let fake = ground.stdio("odd", json!({"on": on}), |_| {});
    ground.http("far", json!({"on": on}), |_| {});
    ground.http("stream", json!({"on": on, "http": {"sse": true}}), |_| {});
    let mut daemon = ground.daemon();
    for server in ["odd", "far", "stream"] {
        let gated = daemon.send("alice", call(server, "gated", json!({"id": server})));
        let large = daemon.ask("alice", call_raw(server, "large", json!({})));
        assert!(large.text.len() > 10_000_000);
        daemon
            .ask("alice", call_raw(server, "too_large", json!({})))
            .failure("result_too_large");
        ground::open(&ground.path("gate"));
        daemon.answer(&gated).ok();
        daemon.ask("alice", call(server, "echo", json!({}))).ok();
    }
    assert_eq!(fake.served().len(), 1);
    daemon.finish();
}

#[test]
fn a_line_without_an_end_takes_bounded_memory() {
    let ground = Ground::new();
    let script = json!({"on": {"tools/call:endless": [{"do": "giant", "bytes": 200_000_000, "endless": true}, {"do": "hang"}]}});
    ground.stdio("odd", script, |_| {});
    ground.stdio("good", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("good", "echo", json!({}))).ok();
    let endless = daemon.send("alice", call("odd", "endless", json!({})));
    daemon.ask("alice", call("good", "echo", json!({}))).ok();
    daemon
        .answer(&endless)
        .failure_in(&["result_too_large", "session_lost", "protocol_error"]);
    let peak = daemon.peak_memory();
    assert!(peak < 100_000_000, "{peak} bytes at the peak");
    daemon.finish();
}

#[test]
fn late_doubled_and_foreign_answers_reach_nobody() {
    let ground = Ground::new();
    let double =
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"mine"}]}}"#;
    let foreign =
        r#"{"jsonrpc":"2.0","id":$ID77,"result":{"content":[{"type":"text","text":"foreign"}]}}"#;
    let on = json!({
        "tools/call:double": [{"do": "line", "text": double}, {"do": "line", "text": double}],
        "tools/call:foreign": [{"do": "line", "text": foreign}, {"do": "line", "text": double}]
    });
    ground.stdio("odd", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    for tool in ["double", "foreign", "double"] {
        assert_eq!(
            daemon.ask("alice", call("odd", tool, json!({}))).content(),
            "mine"
        );
        assert_eq!(
            daemon
                .ask("alice", call("odd", "echo", json!({"n": 1})))
                .content(),
            r#"{"n":1}"#
        );
    }
    daemon.finish();
}

/// One bad tool must not cost the others.
#[test]
fn a_bad_tool_costs_the_list_nothing_but_itself() {
    let bad = [
        r#"{"name":"no_schema"}"#,
        r#"{"name":"null_schema","inputSchema":null}"#,
        r#"{"name":"true_schema","inputSchema":true}"#,
        r#"{"inputSchema":{"type":"object"}}"#,
        r#"{"name":7,"inputSchema":{"type":"object"}}"#,
        r#"{"name":"hint","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"yes"}}"#,
        r#"{"name":"icon","inputSchema":{"type":"object"},"icons":[{"src":"a","sizes":"48x48","theme":"odd"}]}"#,
        "7",
        "null",
    ];
    let good = r#"{"name":"good","inputSchema":{},"title":null}"#;
    let list = |extra: &str| format!(r#"{{"tools":[{},{good}]{extra}}}"#, bad.join(","));
    let ground = Ground::new();
    let variants = [
        ("plain", ""),
        ("cursor", r#","nextCursor":7"#),
        ("null_cursor", r#","nextCursor":null"#),
        ("ttl", r#","ttlMs":1.5,"cacheScope":"odd""#),
    ];
    for (name, extra) in variants {
        ground.stdio(
            name,
            json!({"on": {"tools/list": [{"do": "result", "text": list(extra)}]}}),
            |_| {},
        );
    }
    let mut daemon = ground.daemon();
    let listed = daemon.ask(
        "alice",
        json!({"action": "list_tools", "timeout_ms": 30_000}),
    );
    for (name, _) in variants {
        let tools = listed.ok()["tools"].as_array().expect("tools");
        let found = tools
            .iter()
            .find(|tool| tool["server_name"] == name && tool["original_name"] == "good");
        assert!(
            found.is_some(),
            "the good tool of {name} is missing: {}",
            listed.text
        );
        daemon.ask("alice", call(name, "good", json!({}))).ok();
    }
    daemon.finish();
}

#[test]
fn a_death_in_mid_call_answers_every_call_at_once_with_what_is_known() {
    let ground = Ground::new();
    let on = json!({
        "tools/call:hang": [{"do": "hang"}],
        "tools/call:exit": [{"do": "executed"}, {"do": "stderr", "text": "out of paper"}, {"do": "exit", "code": 3}],
        "tools/call:kill": [{"do": "executed"}, {"do": "kill"}]
    });
    let fake = ground.stdio("odd", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    for (tool, member, value) in [
        ("exit", "exit_status", json!(3)),
        ("kill", "signal", json!(9)),
    ] {
        let hung: Vec<String> = (0..5)
            .map(|_| daemon.send("alice", call("odd", "hang", json!({}))))
            .collect();
        fake.wait_for_requests("tools/call:hang", 5);
        let own = daemon.send("alice", call("odd", tool, json!({})));
        for task in hung.iter().chain([&own]) {
            let answer = daemon.answer(task);
            let details = answer.failure("server_crashed");
            assert_eq!(details["outcome"], "unknown");
            assert_eq!(details["phase"], "call");
            assert_eq!(details[member], value, "{}", answer.text);
            if tool == "exit" {
                assert!(
                    details["stderr"].to_string().contains("out of paper"),
                    "{}",
                    answer.text
                );
            }
        }
        assert_eq!(fake.executed(tool), 1, "not run twice");
        daemon.ask("alice", call("odd", "echo", json!({}))).ok();
    }
    daemon.finish();
}

#[test]
fn a_closed_stdout_of_a_living_server_is_noticed() {
    let ground = Ground::new();
    let fake = ground.stdio(
        "odd",
        json!({"on": {"tools/call:mute": [{"do": "close_stdout"}, {"do": "hang"}]}}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    daemon
        .ask("alice", call("odd", "mute", json!({})))
        .failure_in(&["session_lost", "server_crashed"]);
    daemon.ask("alice", call("odd", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 2);
    daemon.finish();
}

#[test]
fn a_server_that_fails_to_start_says_why() {
    let ground = Ground::new();
    let on = json!({"start": [{"do": "stderr", "text": "Traceback: no module named books"}, {"do": "exit", "code": 1}]});
    ground.stdio("odd", json!({"on": on}), |_| {});
    ground.stdio("missing", json!({}), |row| {
        row.set("command", "/no/such/program");
    });
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("odd", "echo", json!({})));
    let details = answer.failure_in(&["connect_failed", "server_crashed"]);
    assert!(
        details["stderr"]
            .to_string()
            .contains("no module named books"),
        "{}",
        answer.text
    );
    assert_eq!(details["exit_status"], 1, "{}", answer.text);
    let answer = daemon.ask("alice", call("missing", "echo", json!({})));
    assert_eq!(
        answer.failure("connect_failed")["phase"],
        "start",
        "{}",
        answer.text
    );
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(
        listed.ok()["errors"].as_array().map(Vec::len),
        Some(2),
        "{}",
        listed.text
    );
    daemon.finish();
}
