//! `mcp-client import` and `export`, with files as other programs write them.

mod ground;

use std::path::PathBuf;
use std::process::{Command, Output};

use ground::{Daemon, Ground, call};
use serde_json::{Value, json};

fn mcp_client(ground: &Ground, words: &[&str]) -> Command {
    let mut command = ground.embedded_command();
    command.args(words);
    command
}

fn import(ground: &Ground, words: &[&str]) -> Output {
    let output = mcp_client(ground, &[&["import"], words].concat()).output();
    output.expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn file(ground: &Ground, name: &str, content: &str) -> PathBuf {
    let path = ground.path(name);
    std::fs::write(&path, content).expect("a file");
    path
}

fn servers(ground: &Ground) -> Vec<Value> {
    let list = ground.run(mcp_client(ground, &["server", "list", "--json"]), "");
    serde_json::from_str(&list).expect("JSON")
}

fn server(ground: &Ground, name: &str) -> Value {
    let mut servers = servers(ground).into_iter();
    let found = servers.find(|server| server["name"] == name);
    found.unwrap_or_else(|| panic!("no server {name}"))
}

const CLAUDE_DESKTOP: &str = r#"{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/ann/Documents"]
    },
    "github": {
      "command": "docker",
      "args": ["run", "-i", "--rm", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", "ghcr.io/github/github-mcp-server"],
      "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_SECRETSECRETSECRETSECRETSECRET0123"}
    },
    "broken": {"args": ["nothing to start"]}
  }
}"#;

const VS_CODE: &str = r#"{
  // Inputs are asked for at the first start.
  "inputs": [
    {"type": "promptString", "id": "perplexity-key", "description": "Perplexity API Key", "password": true},
  ],
  "servers": {
    "perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "server-perplexity-ask"],
      "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"},
    },
    "fetch": {"type": "stdio", "command": "uvx", "args": ["mcp-server-fetch"], "cwd": "/tmp"},
  },
}"#;

const CODEX: &str = r#"
model = "o5"

[mcp_servers.docs]
url = "https://docs.example/mcp"
bearer_token_env_var = "DOCS_TOKEN"
tool_timeout_sec = 60

[mcp_servers.memory]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-memory"]

[mcp_servers.memory.env]
MEMORY_FILE_PATH = "/home/ann/memory.json"
"#;

#[test]
fn the_files_of_other_programs_are_taken_and_what_is_broken_is_named() {
    let ground = Ground::new();
    let files = [
        file(&ground, "claude_desktop_config.json", CLAUDE_DESKTOP),
        file(&ground, "mcp.json", VS_CODE),
        file(&ground, "config.toml", CODEX),
        ground.path("missing.json"),
    ];
    let words: Vec<_> = files
        .iter()
        .map(|file| file.to_str().expect("UTF-8"))
        .collect();
    let output = import(&ground, &words);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = text(&output.stderr);
    assert!(
        errors
            .contains("not taken: broken: server \"broken\" cannot be stored: command is missing"),
        "{errors}"
    );
    assert!(errors.contains("missing.json: cannot be read"), "{errors}");
    assert!(
        errors.contains("note: server \"fetch\": `cwd` has no meaning"),
        "{errors}"
    );
    let said = text(&output.stdout) + &errors;
    assert!(!said.contains("SECRETSECRET"), "{said}");
    let list = servers(&ground);
    let names: Vec<_> = list.iter().map(|server| server["name"].as_str()).collect();
    let expected = [
        "docs",
        "fetch",
        "filesystem",
        "github",
        "memory",
        "perplexity",
    ];
    assert_eq!(names, expected.map(Some));
    assert_eq!(
        server(&ground, "docs")["headers"],
        json!({"Authorization": "Bearer ${user.DOCS_TOKEN}"})
    );
    let form =
        json!([{"name": "perplexity-key", "label": "Perplexity API Key", "type": "password"}]);
    assert_eq!(server(&ground, "perplexity")["credential_fields"], form);
    let github = server(&ground, "github");
    let env = json!({"GITHUB_PERSONAL_ACCESS_TOKEN": "${user.GITHUB_PERSONAL_ACCESS_TOKEN}"});
    assert_eq!(github["env_template"], env);
    let held = ground.run(mcp_client(&ground, &["credential", "list", "--json"]), "");
    let held: Value = serde_json::from_str(&held).expect("JSON");
    let expected = json!([{"server": "github", "user": null, "is_enabled": true, "fields": ["GITHUB_PERSONAL_ACCESS_TOKEN"]}]);
    assert_eq!(held, expected);

    let again = import(&ground, &words[..1]);
    assert_eq!(again.status.code(), Some(1), "nothing new: {again:?}");
    assert!(text(&again.stderr).contains("name is taken by the server \"github\""));
}

#[test]
fn a_dry_run_says_the_same_and_makes_nothing() {
    let ground = Ground::new();
    let path = file(&ground, "claude.json", CLAUDE_DESKTOP);
    let path = path.to_str().expect("UTF-8");
    let dry = import(&ground, &["--dry-run", path]);
    assert_eq!(dry.status.code(), Some(3), "{dry:?}");
    let said = text(&dry.stdout);
    assert!(said.contains("would add server \"github\""), "{said}");
    assert!(
        said.contains("(from env GITHUB_PERSONAL_ACCESS_TOKEN)"),
        "{said}"
    );
    assert!(
        !ground.data_dir().exists(),
        "a dry run leaves nothing behind"
    );
    let done = import(&ground, &[path]);
    assert_eq!(dry.stderr, done.stderr);
    let dry = import(&ground, &["--dry-run", path]);
    assert_eq!(dry.status.code(), Some(1), "all are there now: {dry:?}");
    assert!(text(&dry.stderr).contains("is taken by the server \"filesystem\""));
}

/// A fake server's entry as a desktop program would have it, with a literal secret.
fn with_secret(ground: &Ground, secret: &str) -> String {
    ground.stdio("books", json!({}), |row| {
        row.token("API_KEY");
    });
    let row = ground.host.server("books");
    let mut env = row["env_template"].clone();
    let variable = env.as_object().expect("an env").iter();
    let variable = variable
        .clone()
        .find(|(_, value)| **value == json!("${user.API_KEY}"));
    let variable = variable.expect("the token").0.clone();
    env[variable] = secret.into();
    let entry = json!({"command": row["command"], "args": row["args"], "env": env});
    json!({"mcpServers": {"books": entry}}).to_string()
}

#[test]
fn a_literal_secret_is_encrypted_and_the_server_still_gets_it() {
    let ground = Ground::new();
    let secret = ground.canary("literal");
    let path = file(&ground, "mcp.json", &with_secret(&ground, &secret));
    let output = import(&ground, &[path.to_str().expect("UTF-8"), "--public"]);
    assert!(output.status.success(), "{output:?}");
    let exported = ground.run(
        mcp_client(&ground, &["export", "--format", "mcpServers"]),
        "",
    );
    for said in [text(&output.stdout), text(&output.stderr), exported] {
        assert!(!said.contains(&secret), "{said}");
    }
    for entry in std::fs::read_dir(ground.data_dir())
        .expect("a data directory")
        .flatten()
    {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let shows = bytes
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        assert!(
            !shows,
            "{} holds the secret in clear",
            entry.path().display()
        );
    }
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(
        daemon
            .ask("ann", call("books", "whoami", json!({})))
            .content(),
        secret
    );
    daemon.finish();
}

#[test]
fn literals_can_be_kept_or_made_one_users_own() {
    let ground = Ground::new();
    let path = file(&ground, "mcp.json", &with_secret(&ground, "the secret"));
    let path = path.to_str().expect("UTF-8");
    assert!(import(&ground, &[path, "--keep-literals"]).status.success());
    let mut daemon = Daemon::start(&ground, ground.embedded_command());
    assert_eq!(
        daemon
            .ask("bob", call("books", "whoami", json!({})))
            .content(),
        "the secret"
    );
    assert!(
        !ground
            .run(mcp_client(&ground, &["export"]), "")
            .contains("the secret")
    );
    ground.run(mcp_client(&ground, &["server", "remove", "books"]), "");
    assert!(import(&ground, &[path, "--user", "ann"]).status.success());
    assert_eq!(
        daemon
            .ask("ann", call("books", "whoami", json!({})))
            .content(),
        "the secret"
    );
    daemon
        .ask("bob", call("books", "whoami", json!({})))
        .failure("credentials_required");
    daemon.finish();
}

#[test]
fn an_export_is_imported_elsewhere_and_says_the_same_again() {
    let ground = Ground::new();
    let paths = [
        file(&ground, "a.json", VS_CODE),
        file(&ground, "b.toml", CODEX),
    ];
    let words: Vec<_> = paths
        .iter()
        .map(|path| path.to_str().expect("UTF-8"))
        .collect();
    assert!(import(&ground, &words).status.success());
    let exported = ground.run(mcp_client(&ground, &["export"]), "");
    let elsewhere = Ground::new();
    let said = elsewhere.run(mcp_client(&elsewhere, &["import", "-"]), &exported);
    assert_eq!(said.matches("added server").count(), 4, "{said}");
    assert_eq!(
        elsewhere.run(mcp_client(&elsewhere, &["export"]), ""),
        exported
    );
    let one = ground.run(mcp_client(&ground, &["export", "memory"]), "");
    let one: Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!(one["servers"].as_array().map(Vec::len), Some(1));
}
