//! The admin API of config servers, by hand and through the command line.

mod databases;
mod ground;
#[path = "keys/sign.rs"]
mod sign;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use databases::{Kind, TestDatabase};
use ground::fleet::{ConfigServer, http, on_store};
use ground::{Daemon, Ground, call};
use serde_json::{Value, json};
use sign::{SECRET, Signer, in_seconds};

/// Runs the command line on the store.
fn store(ground: &Ground, url: &str, arguments: &[&str]) -> String {
    let mut command = on_store(ground.embedded_command(), url);
    command.args(arguments);
    ground.run(command, "").trim().to_owned()
}

/// The command line that administers over the API; it has neither the store nor its key.
fn remote(ground: &Ground, base: &str, token: &str, arguments: &[&str]) -> Command {
    let mut command = ground.embedded_command();
    // Behind `--` it would be an argument of a server.
    command
        .arg(arguments[0])
        .args(["--api", base])
        .args(&arguments[1..])
        .env("MCP_CLIENT_ADMIN_TOKEN", token);
    command
}

fn run(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // It may have ended without reading it.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn admin(ground: &Ground, url: &str) -> String {
    store(ground, url, &["token", "add", "boss", "--admin"])
}

fn ask(server: &ConfigServer, token: &str, question: &str, body: &Value) -> (u16, Value) {
    let head = format!("{question} HTTP/1.1\r\nAuthorization: Bearer {token}");
    let (status, _, body) = http(server.address(), &head, &body.to_string());
    (status, serde_json::from_str(&body).unwrap_or_default())
}

/// Everything that `server` and `credential` do, with the text on stdin.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["server", "list"], ""),
    (&["credential", "list"], ""),
    (
        &[
            "server",
            "add",
            "My Books",
            "--env",
            "KEY=${user.KEY}",
            "--env",
            "API_TOKEN=literal",
            "--field",
            "KEY:The key",
            "--display-name",
            "Bücher",
            "--",
            "books",
            "-y",
            "a b",
        ],
        "",
    ),
    (
        &[
            "server",
            "add",
            "wiki",
            "--url",
            "https://u:p@w.example/mcp",
            "--public",
        ],
        "",
    ),
    (&["server", "add", "my-books", "--", "x"], ""),
    (
        &[
            "server",
            "add",
            "bad",
            "--url",
            "nowhere",
            "--isolation",
            "some",
        ],
        "",
    ),
    (
        &["server", "add", "--json", "-"],
        r#"{"mcpServers": {"c": {"command": "x"}, "wiki": {"command": "y"}}}"#,
    ),
    (&["server", "list"], ""),
    (&["server", "show", "my_books"], ""),
    (&["server", "show", "wiki"], ""),
    (&["server", "show", "nope"], ""),
    (&["server", "disable", "wiki"], ""),
    (&["server", "enable", "nope"], ""),
    (
        &["credential", "set", "my books", "--user", "ann/../é ?&"],
        "KEY=hush-hush\nOTHER=hush",
    ),
    (
        &["credential", "set", "My Books", "--default"],
        r#"{"KEY": "hush-hush"}"#,
    ),
    (
        &["credential", "set", "wiki", "--user", "bob"],
        "token=hush-hush",
    ),
    (&["credential", "set", "wiki", "--user", "bob"], ""),
    (&["credential", "set", "nope", "--default"], "K=v"),
    (&["credential", "disable", "wiki", "--user", "bob"], ""),
    (&["credential", "disable", "wiki", "--default"], ""),
    (&["credential", "list"], ""),
    (
        &["credential", "list", "--server", "my-books", "--json"],
        "",
    ),
    (&["credential", "enable", "wiki", "--user", "bob"], ""),
    (
        &["credential", "remove", "My Books", "--user", "ann/../é ?&"],
        "",
    ),
    (
        &["credential", "remove", "My Books", "--user", "ann/../é ?&"],
        "",
    ),
    (&["server", "remove", "My Books"], ""),
    (&["server", "list", "--json"], ""),
    (&["credential", "list", "--json"], ""),
];

/// What a person sees, without what is random.
fn seen(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let lines = text.lines().filter(|line| {
            let column = line.split_whitespace().next().unwrap_or_default();
            !["id", "created_at", "updated_at"].contains(&column)
        });
        lines.map(without_ids).collect::<Vec<_>>().join("\n")
    };
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn without_ids(line: &str) -> String {
    let Ok(Value::Array(mut rows)) = serde_json::from_str(line) else {
        return line.trim_end().to_owned();
    };
    for row in &mut rows {
        for column in ["id", "created_at", "updated_at"] {
            row.as_object_mut().expect("a row").remove(column);
        }
    }
    json!(rows).to_string()
}

#[test]
fn the_command_line_does_the_same_over_the_api_as_on_the_store() {
    for database in TestDatabase::of_each_kind() {
        let here = Ground::new();
        let there = Ground::new();
        let token = admin(&there, &database.url);
        let server = ConfigServer::start(&there, &database.url, &[]);
        for (arguments, input) in COMMANDS {
            let mut on_own_store = here.embedded_command();
            on_own_store.args(*arguments);
            let own = run(on_own_store, input);
            let other = run(remote(&there, &server.base, &token, arguments), input);
            assert_eq!(
                seen(&own),
                seen(&other),
                "{arguments:?} on {:?}",
                database.kind
            );
            for output in [&own, &other] {
                let said = format!("{output:?}");
                assert!(!said.contains("hush") && !said.contains(&token), "{said}");
            }
        }
        // What failed has left no trace, and who did the rest is known.
        let (status, answer) = ask(&server, &token, "GET /admin/audit?limit=500", &Value::Null);
        assert_eq!(status, 200);
        let changes = answer["data"]["changes"].as_array().expect("changes");
        assert_eq!(changes.len(), 12, "{changes:?}");
        let (made, others) = changes.split_last().expect("changes");
        assert_eq!(made["action"], "token.create");
        assert!(others.iter().all(|change| change["actor"] == "token boss"));
        let told = format!("{answer} {}", server.stderr());
        assert!(!told.contains("hush"), "{told}");
        // On the store itself it is the account of whoever had the key.
        store(&there, &database.url, &["server", "enable", "wiki"]);
        let (_, answer) = ask(&server, &token, "GET /admin/audit?limit=1", &Value::Null);
        let actor = answer["data"]["changes"][0]["actor"]
            .as_str()
            .expect("an actor");
        assert!(actor.starts_with("uid "), "{actor}");
    }
}

#[test]
fn a_change_over_the_api_is_in_force_for_the_daemons() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        let token = admin(&ground, &database.url);
        let server = ConfigServer::start(&ground, &database.url, &[]);
        ground.stdio("books", json!({}), |row| {
            row.token("KEY");
        });
        let row = ground.host.server("books").to_string();
        let administer = |arguments: &[&str], input: &str| {
            ground.run(remote(&ground, &server.base, &token, arguments), input);
        };
        administer(&["server", "add", "--json", "-"], &row);
        let mut command = ground.embedded_command();
        command
            .env("API_BASE", &server.base)
            .env("INTERNAL_TOKEN", &token);
        let mut daemon = Daemon::start(&ground, command);
        let mut whoami = || {
            let params = call("books", "whoami", json!({}));
            let user = json!({"userId": "ann"});
            let task = daemon.command(json!({"command": "invoke", "params": params, "user": user}));
            daemon.answer(&task)
        };
        whoami().failure("credentials_required");
        let of_ann = |verb| ["credential", verb, "books", "--user", "ann"];
        for key in ["key-1", "key-2"] {
            administer(&of_ann("set"), &json!({"KEY": key}).to_string());
            assert_eq!(whoami().content(), key);
        }
        administer(&of_ann("disable"), "");
        whoami().failure("credentials_required");
        administer(&of_ann("enable"), "");
        assert_eq!(whoami().content(), "key-2");
        administer(&["server", "disable", "books"], "");
        whoami().failure("server_disabled");
        administer(&["server", "remove", "books"], "");
        whoami().failure("server_not_found");
        daemon.finish();
    }
}

#[test]
fn without_the_admin_role_nothing_is_told_and_nothing_changed() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let key = ground.path("jwt.key");
    std::fs::write(&key, SECRET).expect("a key");
    let key = key.display().to_string();
    let settings = [
        ("server_jwt_key", &*key),
        ("server_jwt_admin", "role=admin"),
    ];
    let server = ConfigServer::start(&ground, &database.url, &settings);
    let service = store(&ground, &database.url, &["token", "add", "daemons"]);
    let jwt = |more: Value| {
        let mut claims = json!({"sub": "ann", "exp": in_seconds(600)});
        claims
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().cloned().expect("an object"));
        Signer::hs256().token(&claims)
    };
    let row = json!({"name": "books", "command": "x"});
    for (token, expected) in [
        (service.clone(), 403),
        (jwt(json!({})), 403),
        (jwt(json!({"role": "administrator"})), 403),
        (jwt(json!({"role": "admin", "exp": in_seconds(-60)})), 401),
        (
            Signer::Hs256(vec![7; 40])
                .token(&json!({"sub": "ann", "role": "admin", "exp": in_seconds(600)})),
            401,
        ),
        ("mcps_nonsense".to_owned(), 401),
    ] {
        let mut said = Vec::new();
        for question in [
            "GET /admin/servers",
            "POST /admin/servers",
            "DELETE /admin/servers/x",
            "PUT /admin/servers/x/default-credentials",
            "GET /admin/credentials",
            "GET /admin/audit",
        ] {
            let (status, mut answer) = ask(&server, &token, question, &row);
            assert_eq!(status, expected, "{question}");
            answer["timestamp"].take();
            said.push(answer);
        }
        assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
        let output = run(
            remote(&ground, &server.base, &token, &["server", "list"]),
            "",
        );
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains("config_unauthorized") && !told.contains(&token),
            "{told}"
        );
    }
    let (status, _) = ask(
        &server,
        &jwt(json!({"role": "admin"})),
        "POST /admin/servers",
        &row,
    );
    assert_eq!(status, 201);
    let (_, answer) = ask(
        &server,
        &jwt(json!({"role": ["admin"]})),
        "GET /admin/audit",
        &Value::Null,
    );
    let changes = answer["data"]["changes"].as_array().expect("changes");
    assert_eq!(
        (changes.len(), &changes[0]["actor"], &changes[1]["action"]),
        (2, &json!("user ann"), &json!("token.create"))
    );
    // Anybody may read what the API is like.
    let (status, _, document) = http(server.address(), "GET /openapi.json HTTP/1.1", "");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
}

#[test]
fn what_is_no_admin_api_is_told_apart() {
    let ground = Ground::new();
    let fails = |mut command: Command, code: &str| {
        command.env_remove("API_BASE");
        let output = run(command, "");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(code), "{told}");
    };
    let list = ["server", "list"];
    let host = ground.host.base();
    fails(remote(&ground, "nonsense", "t", &list), "invalid_params");
    fails(
        remote(&ground, "http://127.0.0.1:1", "t", &list),
        "config_unavailable",
    );
    fails(remote(&ground, &host, "t", &list), "unsupported");
    let mut without = remote(&ground, &host, "", &list);
    fails(remote(&ground, &host, "", &list), "MCP_CLIENT_ADMIN_TOKEN");
    without.env_remove("MCP_CLIENT_ADMIN_TOKEN");
    fails(without, "MCP_CLIENT_ADMIN_TOKEN");
    // Nor was a store made on the way.
    assert!(!ground.data_dir().join("mcp-client.db").exists());
}
