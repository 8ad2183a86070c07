//! What goes wrong with MCP clients in the field, each with the behaviour we hold to be right.

mod ground;

use ground::{Ground, call, open, wait_for};
use serde_json::{Value, json};

#[test]
fn a_hundred_callers_at_once_start_one_server() {
    let ground = Ground::new();
    let script = json!({"on": {"start": [{"do": "until", "file": ground.path("gate")}]}});
    let fake = ground.stdio("books", script, |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    let users = ["alice", "bob", "carol"];
    let tasks: Vec<String> = (0..100)
        .map(|n| daemon.send(users[n % 3], call("books", "echo", json!({"n": n}))))
        .collect();
    wait_for("the start", || (fake.starts() > 0).then_some(()));
    open(&ground.path("gate"));
    for (n, task) in tasks.iter().enumerate() {
        assert_eq!(daemon.answer(task).ok()["structured_content"]["n"], n);
    }
    assert_eq!(fake.served().len(), 1);
    daemon.finish();
}

#[test]
fn a_crash_loop_is_bounded_and_new_credentials_start_at_once() {
    let ground = Ground::new();
    ground.set("config_ttl", "0s");
    // Works only with the right key.
    let shell = r#"if [ "$TOKEN" = good ]; then exec "$0" "$@"; else echo started >> "$STARTS"; exit 1; fi"#;
    let starts = ground.path("starts");
    let fake = ground.stdio("books", json!({}), |row| {
        let mut words = vec![json!("-c"), json!(shell), row.0["command"].clone()];
        words.extend(row.0["args"].as_array().expect("words").clone());
        row.set("command", "sh")
            .set("args", words)
            .token("KEY")
            .env("STARTS", &starts.display().to_string());
    });
    ground.credentials("alice", "books", json!({"KEY": "bad"}));
    let mut daemon = ground.daemon();
    let mut refused = 0;
    for _ in 0..20 {
        let answer = daemon.ask("alice", call("books", "echo", json!({})));
        let details = answer.failure_in(&["connect_failed", "server_crashed", "circuit_open"]);
        if answer.value["error_code"] == "circuit_open" {
            assert!(details["retry_after_ms"].is_u64(), "{}", answer.text);
            refused += 1;
        }
    }
    assert!(refused > 0, "it is not tried for ever");
    let started = std::fs::read_to_string(&starts)
        .expect("starts")
        .lines()
        .count();
    assert!(started <= 12, "{started} starts");
    let servers = daemon.ask("alice", json!({"action": "list_servers"}));
    assert_eq!(
        servers.ok()["servers"][0]["status"],
        "cooling",
        "{}",
        servers.text
    );
    ground.credentials("alice", "books", json!({"KEY": "good"}));
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 1);
    daemon.finish();
}

#[test]
fn connect_server_does_not_wait_for_the_cooling() {
    let ground = Ground::new();
    let on = json!({"start": {"times": 2, "steps": [{"do": "exit", "code": 1}]}});
    ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    assert!(
        daemon
            .ask("alice", call("books", "echo", json!({})))
            .is_failure()
    );
    daemon
        .ask(
            "alice",
            json!({"action": "connect_server", "server_name": "books"}),
        )
        .ok();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    daemon.finish();
}

#[test]
fn a_missing_placeholder_is_named_and_nothing_is_started() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |row| {
        row.env("KEY", "${user.MISSING}")
            .env("KEPT", "${HOME}")
            .env("TWICE", "${user.NESTED}");
    });
    ground.credentials("alice", "books", json!({"NESTED": "${user.OTHER}"}));
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "echo", json!({})));
    assert!(
        answer
            .failure("credential_field_missing")
            .to_string()
            .contains("MISSING"),
        "{}",
        answer.text
    );
    assert_eq!(fake.starts(), 0);
    ground.credentials(
        "alice",
        "books",
        json!({"NESTED": "${user.OTHER}", "MISSING": "here"}),
    );
    daemon.finish();
    let mut daemon = ground.daemon();
    for (name, value) in [
        ("KEY", "here"),
        ("KEPT", "${HOME}"),
        ("TWICE", "${user.OTHER}"),
    ] {
        assert_eq!(
            daemon
                .ask("alice", call("books", "env", json!({"name": name})))
                .content(),
            value
        );
    }
    daemon.finish();
}

#[test]
fn a_reply_lost_after_the_tool_ran_is_not_run_again() {
    let ground = Ground::new();
    let die = json!([{"do": "executed"}, {"do": "exit", "code": 1}]);
    let fake = ground.stdio("books", json!({"on": {"tools/call:pay": die}}), |_| {});
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "pay", json!({})));
    assert_eq!(answer.failure("server_crashed")["outcome"], "unknown");
    assert_eq!(fake.executed("pay"), 1);
    daemon.finish();
}

#[test]
fn a_reply_lost_by_a_tool_that_may_repeat_is_asked_for_once_more() {
    for hint in ["readOnlyHint", "idempotentHint"] {
        let ground = Ground::new();
        let tool =
            json!({"name": "look", "inputSchema": {"type": "object"}, "annotations": {hint: true}});
        let die_once =
            json!({"times": 1, "steps": [{"do": "executed"}, {"do": "exit", "code": 1}]});
        let fake = ground.stdio(
            "books",
            json!({"tools": [tool], "on": {"tools/call:look": die_once}}),
            |_| {},
        );
        let mut daemon = ground.daemon();
        // Its hint is known from the list.
        daemon.ask("alice", json!({"action": "list_tools"})).ok();
        daemon.ask("alice", call("books", "look", json!({}))).ok();
        assert_eq!(
            (fake.executed("look"), fake.served().len()),
            (2, 2),
            "{hint}"
        );
        daemon.finish();
    }
}

#[test]
fn an_http_reply_lost_after_the_tool_ran_is_not_run_again() {
    let ground = Ground::new();
    let cut = json!([{"do": "executed"}, {"do": "cut"}]);
    let fake = ground.http("books", json!({"on": {"tools/call:pay": cut}}), |_| {});
    let mut daemon = ground.daemon();
    // The first call opens the connection, the second may find it kept alive: neither repeats.
    for ran in [1, 2] {
        let answer = daemon.ask("alice", call("books", "pay", json!({})));
        assert!(answer.is_failure());
        assert_eq!(
            answer.value["details"]["outcome"], "unknown",
            "{}",
            answer.text
        );
        assert_eq!(fake.executed("pay"), ran);
    }
    daemon.finish();
}

#[test]
fn a_server_that_died_between_calls_is_started_again_for_the_next() {
    let ground = Ground::new();
    let last = json!([{"do": "execute"}, {"do": "exit", "code": 0}]);
    let fake = ground.stdio("books", json!({"on": {"tools/call:last": last}}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "last", json!({}))).ok();
    // Known to be gone: what is written to a pipe that is about to close may have been read.
    wait_for("the end to be noticed", || {
        let servers = daemon.ask("alice", json!({"action": "list_servers"}));
        (servers.ok()["servers"][0]["connected"] == false).then_some(())
    });
    daemon.ask("alice", call("books", "count", json!({}))).ok();
    assert_eq!(fake.executed("count"), 1);
    assert_eq!(
        std::fs::read_to_string(&fake.counter).expect("a count"),
        "1"
    );
    daemon.finish();
}

#[test]
fn every_page_of_tools_is_read_and_no_cursor_is_followed_for_ever() {
    let ground = Ground::new();
    let many: Vec<Value> = (0..101)
        .map(|n| json!({"name": format!("tool_{n}"), "inputSchema": {"type": "object"}}))
        .collect();
    let paged = |cursor: &str| json!({"only_these_tools": true, "tools": many, "page_size": 50, "cursor": cursor});
    ground.stdio("honest", paged("honest"), |_| {});
    ground.stdio("empty", paged("empty"), |_| {});
    ground.stdio("constant", paged("constant"), |_| {});
    let endless = ground.stdio("endless", paged("endless"), |_| {});
    let mut daemon = ground.daemon();
    let listed = daemon.ask(
        "alice",
        json!({"action": "list_tools", "timeout_ms": 30_000}),
    );
    let count = |server: &str| {
        let tools = listed.ok()["tools"].as_array().expect("tools");
        tools
            .iter()
            .filter(|tool| tool["server_name"] == server)
            .count()
    };
    assert_eq!(count("honest"), 101);
    assert_eq!(count("empty"), 101, "an empty cursor is a cursor");
    // A page twice is no reason to show a tool twice.
    assert!(
        [0, 50].contains(&count("constant")),
        "{} tools",
        count("constant")
    );
    assert!(
        endless.requests("tools/list") <= 2_000,
        "{} pages",
        endless.requests("tools/list")
    );
    daemon.finish();
}

#[test]
fn a_burst_of_list_changed_means_few_lists_and_the_new_tools() {
    let ground = Ground::new();
    let new = json!([{"name": "new", "inputSchema": {"type": "object"}}]);
    let on = json!({
        "tools/call:old": [
            {"do": "tools", "tools": new},
            {"do": "notify", "method": "notifications/tools/list_changed", "times": 20},
            {"do": "execute"}
        ]
    });
    let fake = ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    assert!(
        daemon
            .ask("alice", json!({"action": "list_tools"}))
            .text
            .contains("\"old\"")
    );
    daemon.ask("alice", call("books", "old", json!({}))).ok();
    let listed = wait_for("the new tool", || {
        let listed = daemon.ask("alice", json!({"action": "list_tools"}));
        listed.text.contains("\"new\"").then_some(listed)
    });
    assert!(!listed.text.contains("\"old\""), "{}", listed.text);
    assert!(
        fake.requests("tools/list") <= 4,
        "{} lists",
        fake.requests("tools/list")
    );
    daemon.finish();
}

#[test]
fn the_last_good_list_stays_when_a_later_one_fails() {
    let ground = Ground::new();
    let on = json!({
        "tools/call:spoil": [
            {"do": "on", "key": "tools/list", "steps": [{"do": "error", "text": r#"{"code":-32603,"message":"spoilt"}"#}]},
            {"do": "notify", "method": "notifications/tools/list_changed"},
            {"do": "execute"}
        ]
    });
    let fake = ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", json!({"action": "list_tools"})).ok();
    daemon.ask("alice", call("books", "spoil", json!({}))).ok();
    fake.wait_for_requests("tools/list", 2);
    let injected = json!({"action": "call_tool", "name": "mcp_books_echo", "arguments": {}});
    daemon.ask("alice", injected).ok();
    assert_eq!(fake.served().len(), 1);
    daemon.finish();
}

#[test]
fn names_that_could_be_split_two_ways_reach_their_own_server() {
    let ground = Ground::new();
    let tool = |name: &str| json!({"tools": [{"name": name, "inputSchema": {"type": "object"}}]});
    let first = ground.stdio("a_b", tool("c"), |_| {});
    let second = ground.stdio("a", tool("b_c"), |_| {});
    let long = "t".repeat(80);
    let third = ground.stdio("odd name!", json!({"tools": [{"name": long, "inputSchema": {"type": "object"}}, {"name": "T/x", "inputSchema": {}}, {"name": "T.x", "inputSchema": {}}]}), |_| {});
    let mut runs = vec![];
    for _ in 0..2 {
        let mut daemon = ground.daemon();
        let listed = daemon.ask("alice", json!({"action": "list_tools"}));
        let tools = listed.ok()["tools"].as_array().expect("tools").clone();
        let injected: Vec<(String, String, String)> = tools
            .iter()
            .map(|tool| {
                ["name", "server_name", "original_name"]
                    .map(|member| tool[member].as_str().expect("text").to_owned())
            })
            .map(|[name, server, original]| (name, server, original))
            .collect();
        for (name, ..) in &injected {
            let fits = name.len() <= 64
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            assert!(fits, "{name}");
        }
        let mut unique: Vec<&String> = injected.iter().map(|(name, ..)| name).collect();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), injected.len(), "no two tools of one name");
        for (name, _, original) in injected.iter().filter(|(_, _, original)| {
            ["c", "b_c", "T/x", "T.x", long.as_str()].contains(&original.as_str())
        }) {
            daemon
                .ask(
                    "alice",
                    json!({"action": "call_tool", "name": name, "arguments": {"via": original}}),
                )
                .ok();
        }
        daemon.finish();
        runs.push(injected);
    }
    assert_eq!(runs[0], runs[1], "the same names after a restart");
    assert_eq!((first.executed("c"), second.executed("b_c")), (2, 2));
    assert_eq!(
        (
            third.executed(&long),
            third.executed("T/x"),
            third.executed("T.x")
        ),
        (2, 2, 2)
    );
}

#[test]
fn one_server_that_hangs_costs_the_list_of_the_others_nothing() {
    let ground = Ground::new();
    ground.stdio("good", json!({}), |_| {});
    ground.stdio(
        "stuck",
        json!({"on": {"tools/list": [{"do": "hang"}]}}),
        |_| {},
    );
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("good", "echo", json!({}))).ok();
    let listed = daemon.ask("alice", json!({"action": "list_tools", "timeout_ms": 1500}));
    assert!(
        listed.ok()["tools"]
            .as_array()
            .is_some_and(
                |tools| tools.iter().all(|tool| tool["server_name"] == "good") && !tools.is_empty()
            ),
        "{}",
        listed.text
    );
    assert_eq!(listed.ok()["errors"][0]["server_name"], "stuck");
    let alone = daemon.ask(
        "alice",
        json!({"action": "list_tools", "server_name": "stuck", "timeout_ms": 500}),
    );
    assert_eq!(alone.failure("call_timeout")["phase"], "list");
    daemon.finish();
}

#[test]
fn a_flood_of_progress_and_stderr_does_no_harm() {
    let ground = Ground::new();
    let on = json!({"tools/call:loud": [{"do": "stderr_flood", "bytes": 5_000_000}, {"do": "progress", "times": 20_000}, {"do": "execute"}]});
    ground.stdio("books", json!({"on": on}), |_| {});
    let mut daemon = ground.daemon();
    let mut params = call("books", "loud", json!({}));
    params["progress"] = true.into();
    daemon.ask("alice", params).ok();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    let peak = daemon.peak_memory();
    assert!(peak < 100_000_000, "{peak} bytes at the peak");
    daemon.finish();
}

#[test]
fn a_start_waits_for_a_slow_server_and_for_its_first_sign_of_life() {
    let ground = Ground::new();
    ground.set("pool_initialize_timeout", "500ms");
    // Silent for longer than a handshake may take: the clock of the handshake starts with the first byte.
    ground.stdio("slow", json!({"start_delay_ms": 1_500}), |_| {});
    // A sign of life, and then nothing.
    let stuck = json!({"on": {"start": [{"do": "stderr", "text": "starting"}], "initialize": [{"do": "hang"}], "server/discover": [{"do": "hang"}]}});
    ground.stdio("stuck", stuck, |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("slow", "echo", json!({}))).ok();
    daemon
        .ask("alice", call("stuck", "echo", json!({})))
        .failure("connect_timeout");
    daemon.finish();
}

#[test]
fn an_idle_connection_is_closed_and_opened_again_on_demand() {
    let ground = Ground::new();
    ground.set("pool_idle_timeout", "200ms");
    let fake = ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    wait_for("its end", || (fake.served_and("exit") == 1).then_some(()));
    daemon.ask("alice", call("books", "echo", json!({}))).ok();
    assert_eq!(fake.served().len(), 2);
    daemon.finish();
}
