//! `mcp-client doctor`: what it finds, what it calls wrong, and that it changes nothing.

mod ground;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use ground::{Ground, left_over};
use serde_json::{Value, json};

/// Runs it; the exit code and the report.
fn doctor(mut command: Command, arguments: &[&str]) -> (i32, Value) {
    command.args(["doctor", "--json"]).args(arguments);
    let output = command.output().expect("it runs");
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|fault| panic!("no report ({fault}): {output:?}"));
    (output.status.code().expect("an exit code"), report)
}

/// Level and text of everything said about `about` in `area`.
fn said(report: &Value, area: &str, about: &str) -> Vec<(String, String)> {
    let findings = report["findings"].as_array().expect("findings").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    findings
        .filter(|found| found["area"] == area && found["about"] == about)
        .map(|found| (text(&found["level"]), text(&found["text"])))
        .collect()
}

#[track_caller]
fn assert_said(report: &Value, (area, about): (&str, &str), level: &str, part: &str) {
    let said = said(report, area, about);
    let found = said
        .iter()
        .any(|(found, text)| found == level && text.contains(part));
    assert!(found, "no {level} with {part:?} among {said:#?}");
}

#[test]
fn every_definition_is_looked_at_and_connected_on_demand() {
    let ground = Ground::new();
    let fake = ground.stdio("good", json!({}), |row| {
        row.public();
    });
    let dies = json!({"on": {"start": [{"do": "stderr_variable", "name": "TOKEN"}, {"do": "exit", "code": 3}]}});
    ground.stdio("dies", dies, |row| {
        row.public().token("KEY");
    });
    let key = ground.canary("key");
    ground.default_credentials("dies", json!({"KEY": key}));
    ground.stdio("lost", json!({}), |row| {
        row.public().set("command", "no-such-program-anywhere");
    });
    ground.stdio("floating", json!({}), |row| {
        row.public()
            .set("command", "npx")
            .set("args", json!(["-y", "books"]))
            .env("PATH", "/nowhere");
    });
    ground.stdio("lacking", json!({}), |row| {
        row.public().token("KEY");
    });
    ground.default_credentials("lacking", json!({"OTHER": "x"}));
    ground.stdio("own", json!({}), |row| {
        row.token("KEY");
    });

    let (code, report) = doctor(ground.command(), &[]);
    assert_eq!((code, &report["ok"]), (1, &json!(false)), "{report:#}");
    assert_eq!(fake.starts(), 0);
    assert_said(&report, ("server", "good"), "ok", "starts /");
    assert_said(
        &report,
        ("server", "dies"),
        "ok",
        "credentials of the default fit",
    );
    assert_said(
        &report,
        ("server", "lost"),
        "error",
        "no-such-program-anywhere",
    );
    assert_said(&report, ("server", "floating"), "warning", "books@1.2.3");
    assert_said(&report, ("server", "floating"), "error", "/nowhere");
    assert_said(&report, ("server", "lacking"), "error", "KEY");
    assert_said(&report, ("server", "own"), "note", "--user");
    assert_said(&report, ("store", ""), "note", "not used");

    let (code, report) = doctor(ground.command(), &["--connect"]);
    assert_eq!(code, 1);
    assert_eq!(fake.starts(), 2, "probed, then started afresh");
    assert_said(&report, ("server", "good"), "ok", "(legacy), started in ");
    let findings = report["findings"].as_array().expect("findings");
    let death = findings
        .iter()
        .find(|found| found["about"] == "dies" && found["level"] == "error")
        .expect("the death");
    assert_eq!(death["details"]["stderr"], "TOKEN=***", "{death:#}");
    assert!(!report.to_string().contains(&key));
    assert!(left_over(&ground.tag).is_empty());

    ground.credentials("alice", "own", json!({"KEY": "k"}));
    let (_, report) = doctor(ground.command(), &["--user", "alice"]);
    assert_said(
        &report,
        ("server", "own"),
        "ok",
        "credentials of the user fit",
    );
}

#[test]
fn an_embedded_store_is_inspected_and_nothing_is_made() {
    let ground = Ground::new();
    let (code, report) = doctor(ground.embedded_command(), &[]);
    assert_eq!((code, &report["ok"]), (0, &json!(true)), "{report:#}");
    assert!(!ground.data_dir().exists(), "a doctor makes nothing");
    assert_said(
        &report,
        ("store", "database"),
        "note",
        "the first start makes it",
    );
    for about in [
        "Landlock",
        "child subreaper",
        "lists of children",
        "open files",
        "kernel.pid_max",
    ] {
        assert_eq!(said(&report, "kernel", about).len(), 1, "{about}");
    }

    let mut add = ground.embedded_command();
    add.args(["server", "add", "demo", "--public", "--", "true"]);
    ground.run(add, "");
    let (code, report) = doctor(ground.embedded_command(), &[]);
    assert_eq!(code, 0, "{report:#}");
    let migrations = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite");
    let schema = std::fs::read_dir(migrations).expect("a folder").count();
    assert_said(
        &report,
        ("store", "database"),
        "ok",
        &format!("schema {schema}"),
    );
    assert_said(&report, ("server", "demo"), "ok", "starts /");

    let opened = |name: &str, mode: u32| {
        let file = ground.data_dir().join(name);
        std::fs::set_permissions(file, Permissions::from_mode(mode)).expect("it is ours");
    };
    opened("mcp-client.db", 0o644);
    let (code, report) = doctor(ground.embedded_command(), &[]);
    assert_eq!(code, 0, "{report:#}");
    let file = ground
        .data_dir()
        .join("mcp-client.db")
        .display()
        .to_string();
    assert_said(&report, ("store", &file), "warning", "0644");
    opened("store.key", 0o644);
    let (code, report) = doctor(ground.embedded_command(), &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_said(&report, ("store", "key"), "error", "chmod 600");
    std::fs::remove_file(ground.data_dir().join("store.key")).expect("it is there");
    let (code, report) = doctor(ground.embedded_command(), &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_said(&report, ("store", "key"), "error", "no store.key");
    std::fs::write(ground.data_dir().join("mcp-client.db"), "no database").expect("it is ours");
    let (code, report) = doctor(ground.embedded_command(), &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_said(&report, ("store", "database"), "error", "not a database");
}

#[test]
fn faulty_settings_are_all_told_with_where_they_come_from() {
    let ground = Ground::new();
    ground.set("pool_call_timeout", "soon");
    ground.set("pool_idle_timeout", "5m");
    ground.set("pool_max_connections", "100000000");
    let arguments = ["--set", "pool.idle_timeout=6m", "--set", "pool.nothing=1"];
    let (code, report) = doctor(ground.embedded_command(), &arguments);
    assert_eq!(code, 1);
    assert_said(
        &report,
        ("settings", "fault"),
        "error",
        "MCP_CLIENT_POOL_CALL_TIMEOUT must be",
    );
    assert_said(&report, ("settings", "fault"), "error", "pool.nothing");
    assert_said(
        &report,
        ("settings", "pool.idle_timeout"),
        "ok",
        "from MCP_CLIENT_POOL_IDLE_TIMEOUT, beaten by --set pool.idle_timeout",
    );
    assert_said(
        &report,
        ("kernel", "kernel.pid_max"),
        "warning",
        "needs 400001024",
    );
}

#[test]
fn people_get_a_table_and_a_verdict() {
    let ground = Ground::new();
    let mut command = ground.embedded_command();
    command.arg("doctor");
    let shown = ground.run(command, "");
    assert!(shown.contains("child subreaper"), "{shown}");
    assert!(shown.ends_with("\nnothing is wrong\n"), "{shown}");
}
