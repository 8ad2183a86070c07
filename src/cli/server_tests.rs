use clap::Parser;

use super::*;
use crate::config_api::Store;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn settings(directory: &tempfile::TempDir) -> Settings {
    let mut settings = Settings::default();
    settings.store.data_dir = directory.path().to_owned();
    settings
}

async fn perform(settings: &Settings, words: &[&str]) -> Result<ExitCode, Failure> {
    let line = Line::try_parse_from([&["server"], words].concat()).unwrap();
    run(line.args, settings).await
}

async fn stored(settings: &Settings, name: &str) -> Value {
    let store = Store::open(settings).await.unwrap();
    shown(&store.server(name).await.unwrap())
}

#[tokio::test]
async fn adds_what_the_flags_say() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&directory);
    let words = [
        "add",
        "books",
        "--env",
        "KEY=${user.KEY}",
        "--env",
        "MODE=a=b",
        "--public",
        "--requires-credentials",
        "--field",
        "KEY:The key",
        "--field",
        "B",
        "--isolation",
        "session",
        "--no-sandbox",
        "--",
        "npx",
        "-y",
        "books",
    ];
    perform(&settings, &words).await.unwrap();
    let row = stored(&settings, "books").await;
    assert_eq!(row["command"], "npx");
    assert_eq!(row["args"], json!(["-y", "books"]));
    assert_eq!(
        row["env_template"],
        json!({"KEY": "${user.KEY}", "MODE": "a=b"})
    );
    let form = json!([{"name": "KEY", "label": "The key"}, {"name": "B", "label": "B"}]);
    assert_eq!(row["credential_fields"], form);
    assert_eq!(
        (&row["is_public"], &row["requires_credentials"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        (&row["isolation"], &row["sandbox"]),
        (&json!("session"), &json!(false))
    );

    let words = [
        "add",
        "wiki",
        "--url",
        "https://w/mcp",
        "--header",
        "X-Key: ${user.KEY}",
        "--disabled",
    ];
    perform(&settings, &words).await.unwrap();
    let row = stored(&settings, "wiki").await;
    assert_eq!(row["sandbox"], true);
    assert_eq!(
        (&row["transport_type"], &row["is_enabled"]),
        (&json!("http"), &json!(false))
    );
    assert_eq!(row["headers"], json!({"X-Key": "${user.KEY}"}));
}

#[tokio::test]
async fn enables_disables_and_removes() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&directory);
    perform(&settings, &["add", "My Books", "--", "x"])
        .await
        .unwrap();
    perform(&settings, &["disable", "my_books"]).await.unwrap();
    assert_eq!(stored(&settings, "My Books").await["is_enabled"], false);
    perform(&settings, &["enable", "My Books"]).await.unwrap();
    assert_eq!(stored(&settings, "My Books").await["is_enabled"], true);
    perform(&settings, &["remove", "My Books"]).await.unwrap();
    let gone = perform(&settings, &["show", "My Books"]).await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::ServerNotFound);
}

#[tokio::test]
async fn reads_definitions_from_files_and_keeps_the_good_ones() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&directory);
    let file = directory.path().join("servers.json");
    let servers = json!({"mcpServers": {
        "a": {"command": "x", "args": ["-y"], "env": {"K": "v"}},
        "b": {"type": "http"},
        "c": {"url": "https://c/mcp", "headers": {"X-A": "${K}"}, "env": {"K": "v"}, "disabled": true},
    }});
    std::fs::write(&file, servers.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let failure = perform(&settings, &["add", "--json", file])
        .await
        .unwrap_err();
    assert_eq!(
        (failure.code, &failure.details["field"]),
        (ErrorCode::ConfigInvalid, &json!("url"))
    );
    assert_eq!(
        stored(&settings, "a").await["env_template"],
        json!({"K": "v"})
    );
    let c = stored(&settings, "c").await;
    assert_eq!(
        (&c["transport_type"], &c["is_enabled"]),
        (&json!("http"), &json!(false))
    );

    std::fs::write(
        file,
        json!({"name": "n", "command": "x", "is_public": "1"}).to_string(),
    )
    .unwrap();
    perform(&settings, &["add", "m", "--json", file])
        .await
        .unwrap();
    assert_eq!(stored(&settings, "m").await["is_public"], true);
}

#[tokio::test]
async fn refuses_what_does_not_fit_together() {
    for words in [
        &["add"][..],
        &["add", "n", "--url", "http://h/", "--", "x"],
        &["add", "n", "--header", "A: b"],
        &["add", "n", "--header", "A: b", "--", "x"],
    ] {
        assert!(
            Line::try_parse_from([&["server"], words].concat()).is_err(),
            "{words:?}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&directory);
    for words in [
        &["add", "n", "--env", "K", "--", "x"][..],
        &["add", "n", "--env", "K=1", "--env", "K=2", "--", "x"],
        &["add", "n", "--json", "/nowhere/at/all.json"],
    ] {
        let failure = perform(&settings, words).await.unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidParams, "{words:?}");
    }
    let failure = perform(&settings, &["add", "n"]).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ConfigInvalid);
}

#[test]
fn literal_secrets_are_masked() {
    let row = ServerRow {
        env_template: Some(
            json!({"API_TOKEN": "hush", "MODE": "fast", "KEY": "${user.KEY}"}).to_string(),
        ),
        headers: Some(json!({"authorization": "Bearer hush", "X-Plain": "p"}).to_string()),
        url: Some("https://user:hush@h/mcp?x=@".to_owned()),
        ..ServerRow::default()
    };
    let shown = shown(&row);
    assert_eq!(
        shown["env_template"],
        json!({"API_TOKEN": "***", "MODE": "fast", "KEY": "${user.KEY}"})
    );
    assert_eq!(
        shown["headers"],
        json!({"authorization": "***", "X-Plain": "p"})
    );
    assert_eq!(shown["url"], "https://***@h/mcp?x=@");
}
