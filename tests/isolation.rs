//! Whose connection a call runs on: each user's own, with their credentials and nobody else's.

mod ground;

use ground::{Ground, call, open};
use serde_json::{Value, json};

/// A fixed shuffle: the same calls in the same disorder every time.
fn shuffled<T>(mut items: Vec<T>) -> Vec<T> {
    let mut state = 0x9e37_79b9_u32;
    for last in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        items.swap(last, state as usize % (last + 1));
    }
    items
}

#[test]
fn every_call_runs_with_the_credentials_of_its_own_user() {
    let ground = Ground::new();
    let servers = ["books", "films", "far"];
    let mut fakes = vec![];
    for server in servers {
        fakes.push(if server == "far" {
            ground.http(server, json!({}), |row| {
                row.header("Authorization", "Bearer ${user.KEY}");
            })
        } else {
            ground.stdio(server, json!({}), |row| {
                row.token("KEY");
            })
        });
    }
    let users: Vec<String> = (0..8).map(|n| format!("user-{n}")).collect();
    for user in &users {
        for server in servers {
            ground.credentials(
                user,
                server,
                json!({"KEY": format!("key-of-{user}-for-{server}")}),
            );
        }
    }
    let mut daemon = ground.daemon();
    let mut calls = vec![];
    for round in 0..15 {
        for user in &users {
            for server in servers {
                calls.push((round, user, server));
            }
        }
    }
    let calls = shuffled(calls);
    let tasks: Vec<String> = calls
        .iter()
        .map(|(_, user, server)| daemon.send(user, call(server, "whoami", json!({}))))
        .collect();
    for ((_, user, server), task) in calls.iter().zip(&tasks) {
        assert_eq!(
            daemon.answer(task).content(),
            format!("key-of-{user}-for-{server}")
        );
    }
    daemon.finish();
    assert_eq!(fakes[0].served().len(), users.len(), "one process a user");
    assert_eq!(
        fakes[2].requests("initialize"),
        users.len(),
        "one session a user"
    );
}

#[test]
fn a_public_server_is_one_connection_for_all_but_those_with_their_own_credentials() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |row| {
        row.public().token("KEY");
    });
    ground.default_credentials("books", json!({"KEY": "the default"}));
    ground.credentials("carol", "books", json!({"KEY": "carol's own"}));
    let mut daemon = ground.daemon();
    let users = ["alice", "bob", "carol", "alice", "", "bob"];
    let tasks = users.map(|user| daemon.send(user, call("books", "whoami", json!({}))));
    for (user, task) in users.iter().zip(tasks) {
        let expected = if *user == "carol" {
            "carol's own"
        } else {
            "the default"
        };
        assert_eq!(daemon.answer(&task).content(), expected, "{user}");
    }
    assert_eq!(fake.served().len(), 2);
    daemon.finish();
}

#[test]
fn the_defaults_of_an_isolated_server_still_mean_a_connection_a_user() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    ground.default_credentials("books", json!({"KEY": "the default"}));
    let mut daemon = ground.daemon();
    let pids: Vec<String> = ["alice", "bob"]
        .map(|user| {
            daemon
                .ask(user, call("books", "pid", json!({})))
                .content()
                .to_owned()
        })
        .to_vec();
    assert_ne!(pids[0], pids[1]);
    assert_eq!(
        daemon
            .ask("bob", call("books", "whoami", json!({})))
            .content(),
        "the default"
    );
    assert_eq!(fake.served().len(), 2);
    daemon.finish();
}

#[test]
fn without_a_user_an_isolated_server_is_never_started() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |_| {});
    let mut daemon = ground.daemon();
    daemon
        .ask("", call("books", "echo", json!({})))
        .failure("invalid_params");
    daemon
        .ask(
            "",
            json!({"action": "connect_server", "server_name": "books"}),
        )
        .failure("invalid_params");
    daemon.ask("", json!({"action": "list_tools"}));
    daemon.ask("", json!({"action": "refresh_tools"}));
    daemon.ask("", json!({"action": "init"})).ok();
    let empty =
        daemon.command(json!({"params": call("books", "echo", json!({})), "user": {"userId": ""}}));
    daemon.answer(&empty).failure("invalid_params");
    assert_eq!(fake.starts(), 0);
    daemon.finish();
}

#[test]
fn missing_credentials_show_the_form_and_start_nothing() {
    let ground = Ground::new();
    let fake = ground.stdio("books", json!({}), |row| {
        row.token("KEY");
    });
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "echo", json!({})));
    let details = answer.failure("credentials_required");
    assert!(
        details["credential_fields"].to_string().contains("\"KEY\""),
        "{}",
        answer.text
    );
    let listed = daemon.ask("alice", json!({"action": "list_tools"}));
    assert_eq!(
        listed.ok()["errors"][0]["error_code"],
        "credentials_required"
    );

    ground.credentials("alice", "books", json!({"OTHER": "x"}));
    ground.set("config_ttl", "0s");
    daemon.finish();
    let mut daemon = ground.daemon();
    let answer = daemon.ask("alice", call("books", "echo", json!({})));
    assert!(
        answer
            .failure("credential_field_missing")
            .to_string()
            .contains("KEY"),
        "{}",
        answer.text
    );
    assert_eq!(fake.starts(), 0);
    daemon.finish();
}

#[test]
fn a_rotated_credential_is_used_by_the_next_call_and_the_old_connection_finishes_its_own() {
    let ground = Ground::new();
    ground.set("config_ttl", "0s");
    let script = json!({"on": {"tools/call:gated": [{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]}});
    let fake = ground.stdio("books", script, |row| {
        row.token("KEY");
    });
    ground.credentials("alice", "books", json!({"KEY": "old"}));
    let mut daemon = ground.daemon();
    let gated = daemon.send("alice", call("books", "gated", json!({"q": 1})));
    fake.wait_for_requests("tools/call:gated", 1);
    ground.credentials("alice", "books", json!({"KEY": "new"}));
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "new"
    );
    open(&ground.path("gate"));
    daemon.answer(&gated).ok();
    let ran = fake.wait("the old call", |line| {
        line["event"] == "executed" && line["tool"] == "gated"
    });
    assert_eq!(ran["credential"], "old");
    ground.host.remove_user_credentials("alice", "books");
    daemon
        .ask("alice", call("books", "whoami", json!({})))
        .failure("credentials_required");
    daemon.finish();
}

#[test]
fn a_changed_definition_means_a_new_connection() {
    let ground = Ground::new();
    ground.set("config_ttl", "0s");
    let fake = ground.stdio("books", json!({}), |row| {
        row.env("TOKEN", "one");
    });
    let mut daemon = ground.daemon();
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "one"
    );
    ground.host.change_server(
        "books",
        "env_template",
        json!({"TOKEN": "two", ground::TAG: ground.tag}),
    );
    assert_eq!(
        daemon
            .ask("alice", call("books", "whoami", json!({})))
            .content(),
        "two"
    );
    ground.host.change_server("books", "is_enabled", false);
    daemon
        .ask("alice", call("books", "whoami", json!({})))
        .failure("server_disabled");
    ground.host.remove_server("books");
    daemon
        .ask("alice", call("books", "whoami", json!({})))
        .failure("server_not_found");
    assert_eq!(fake.served().len(), 2);
    daemon.finish();
}

#[test]
fn a_late_answer_after_a_cancel_reaches_nobody_on_a_shared_connection() {
    let ground = Ground::new();
    let gated = json!([{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]);
    let fake = ground.stdio("books", json!({"on": {"tools/call:gated": gated}}), |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    let task = daemon.send("alice", call("books", "gated", json!({"of": "alice"})));
    fake.wait_for_requests("tools/call:gated", 1);
    let cancel = daemon.command(
        json!({"command": "cancel", "params": {"target": "task-1"}, "user": {"userId": "alice"}}),
    );
    assert_eq!(daemon.answer(&cancel).ok()["cancelled"], true);
    daemon.answer(&task).failure("cancelled");
    let next = daemon.send("bob", call("books", "gated", json!({"of": "bob"})));
    fake.wait_for_requests("tools/call:gated", 2);
    open(&ground.path("gate"));
    assert_eq!(daemon.answer(&next).ok()["structured_content"]["of"], "bob");
    assert_eq!(fake.served().len(), 1);
    daemon.finish();
}

#[test]
fn two_conversations_of_a_user_are_apart_where_a_definition_asks_for_it() {
    let ground = Ground::new();
    ground.stdio("apart", json!({}), |row| {
        row.set("isolation", "session");
    });
    ground.stdio("together", json!({}), |_| {});
    let mut daemon = ground.daemon();
    let mut pid = |server: &str, session: Value| {
        let user = json!({"userId": "alice", "sessionId": session});
        let task = daemon.command(json!({"params": call(server, "pid", json!({})), "user": user}));
        daemon.answer(&task).content().to_owned()
    };
    assert_ne!(pid("apart", json!("one")), pid("apart", json!("two")));
    assert_eq!(pid("apart", json!("one")), pid("apart", json!("one")));
    assert_eq!(pid("together", json!("one")), pid("together", json!("two")));
    assert_eq!(pid("apart", Value::Null), pid("apart", Value::Null));
    daemon.finish();
}

#[test]
fn a_question_on_a_shared_connection_is_declined() {
    let ground = Ground::new();
    let question = json!({"mode": "form", "message": "Your key?", "requestedSchema": {"type": "object", "properties": {}}});
    let on = json!({"tools/call:ask": [{"do": "ask", "method": "elicitation/create", "params": question}, {"do": "execute"}]});
    let fake = ground.stdio("books", json!({"on": on}), |row| {
        row.public();
    });
    let mut daemon = ground.daemon();
    daemon.ask("alice", call("books", "ask", json!({}))).ok();
    let answer = &fake.events_of("asked")[0]["answer"];
    assert!(
        answer["result"]["action"] == "decline" || answer.get("error").is_some(),
        "{answer}"
    );
    daemon.finish();
}

#[test]
fn progress_with_the_token_of_another_call_reaches_nobody_else() {
    let ground = Ground::new();
    let stray = json!([
        {"do": "notify", "method": "notifications/progress", "params": {"progressToken": 987_654, "progress": 1, "message": "stray"}},
        {"do": "progress", "times": 1},
        {"do": "execute"}
    ]);
    let gated = json!([{"do": "until", "file": ground.path("gate")}, {"do": "execute"}]);
    let fake = ground.stdio(
        "books",
        json!({"on": {"tools/call:stray": stray, "tools/call:gated": gated}}),
        |row| {
            row.public();
        },
    );
    let mut daemon = ground.daemon();
    let mut params = call("books", "gated", json!({}));
    params["progress"] = true.into();
    let bob = daemon.send("bob", params.clone());
    fake.wait_for_requests("tools/call:gated", 1);
    params["tool_name"] = "stray".into();
    let alice = daemon.send("alice", params);
    daemon.answer(&alice).ok();
    open(&ground.path("gate"));
    daemon.answer(&bob).ok();
    for event in &daemon.events {
        assert_eq!(event["task"].to_string(), alice, "{event}");
        assert!(!event.to_string().contains("stray"), "{event}");
    }
    assert_eq!(daemon.events.len(), 1);
    daemon.finish();
}

#[test]
fn tools_of_one_user_are_not_shown_to_another() {
    let ground = Ground::new();
    let fakes = ["secret_of_alice", "secret_of_bob"];
    // The same server lists what its user may see.
    let shell = r#"exec "$0" --script "$SCRIPT""#;
    ground.stdio("books", json!({}), |row| {
        let program = row.0["command"].clone();
        row.set("command", "sh")
            .set("args", json!(["-c", shell, program]))
            .env("SCRIPT", "${user.SCRIPT}");
    });
    for (user, tool) in ["alice", "bob"].iter().zip(fakes) {
        let script = json!({"tools": [{"name": tool, "inputSchema": {"type": "object"}}]});
        ground.credentials(user, "books", json!({"SCRIPT": script.to_string()}));
    }
    let mut daemon = ground.daemon();
    for (user, own, other) in [("alice", fakes[0], fakes[1]), ("bob", fakes[1], fakes[0])] {
        let listed = daemon.ask(user, json!({"action": "list_tools"}));
        assert!(
            listed.text.contains(own) && !listed.text.contains(other),
            "{}",
            listed.text
        );
        daemon.ask(user, call("books", own, json!({}))).ok();
        daemon
            .ask(user, call("books", other, json!({})))
            .failure("tool_not_found");
    }
    daemon.finish();
}

/// Whether the kernel is new enough (6.12) to keep signals within a Landlock domain.
fn keeps_signals_in() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn a_server_can_neither_read_nor_signal_another_unless_it_does_without_its_sandbox() {
    let ground = Ground::new();
    let pry = json!({"tools": [{"name": "pry", "inputSchema": {"type": "object"}}]});
    ground.stdio("victim", json!({}), |_| {});
    ground.stdio("boxed", pry.clone(), |_| {});
    ground.stdio("open", pry, |row| {
        row.set("sandbox", false);
    });
    let mut daemon = ground.daemon();
    let pid = daemon.ask("alice", call("victim", "pid", json!({})));
    let pid: i64 = pid.content().parse().expect("a pid");
    let mut pries = |server: &str, pid: i64| {
        let answer = daemon.ask("bob", call(server, "pry", json!({"pid": pid})));
        answer.content().to_owned()
    };
    if keeps_signals_in() {
        assert_eq!(pries("boxed", pid), "reads false, signals false");
    }
    assert_eq!(pries("open", pid), "reads true, signals true");
    daemon.finish();
}
