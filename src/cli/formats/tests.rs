use proptest::prelude::*;

use super::*;

fn rows(text: &str) -> Map<String, Value> {
    let entries = read(text).unwrap();
    let entries = entries.into_iter();
    entries
        .map(|entry| {
            let mut row = entry.row.unwrap_or_else(|reason| panic!("{reason}"));
            row.remove("name");
            (entry.name, row.into())
        })
        .collect()
}

fn refused(text: &str) -> Vec<(String, String)> {
    let entries = read(text).unwrap().into_iter();
    entries
        .filter_map(|entry| Some((entry.name, entry.row.err()?)))
        .collect()
}

#[test]
fn mcp_servers_of_desktop_programs_are_read() {
    let text = r#"{"mcpServers": {
        "files": {"command": "npx", "args": ["-y", "files", "/data"], "env": {"ROOT": "${DATA_ROOT}"}, "autoApprove": ["a"]},
        "wiki": {"serverUrl": "https://w.example/sse", "disabled": true},
        "docs": {"type": "streamable-http", "url": "https://d.example/mcp", "headers": {"X-Key": "${env:DOCS_KEY}", "X-Mode": "${MODE:-fast}"}}
    }}"#;
    let field = |name| json!([{"name": name, "label": name, "type": "password"}]);
    let expected = json!({
        "files": {"command": "npx", "args": ["-y", "files", "/data"], "env_template": {"ROOT": "${user.DATA_ROOT}"},
                  "credential_fields": field("DATA_ROOT"), "requires_credentials": true},
        "wiki": {"url": "https://w.example/sse", "is_enabled": false, "transport_type": "http"},
        "docs": {"transport_type": "streamable-http", "url": "https://d.example/mcp",
                 "headers": {"X-Key": "${user.DOCS_KEY}", "X-Mode": "fast"},
                 "credential_fields": field("DOCS_KEY"), "requires_credentials": true},
    });
    assert_eq!(Value::from(rows(text)), expected);
    let notes = &read(text).unwrap()[0].notes;
    assert_eq!(
        notes,
        &["`autoApprove` has no meaning here and is left out"]
    );
}

#[test]
fn inputs_of_vs_code_become_fields_of_the_form() {
    let text = r#"{
        // asked for once
        "inputs": [
            {"type": "promptString", "id": "gh-token", "description": "GitHub token", "password": true,},
            {"type": "pickString", "id": "region", "options": ["eu", "us"]},
            {"type": "command", "id": "run", "command": "x"},
        ],
        /* the servers */
        "servers": {
            "gh": {"type": "http", "url": "https://g.example/${input:region}/mcp",
                   "headers": {"Authorization": "Bearer ${input:gh-token}"}}, // not in a "//string"
            "run": {"command": "x", "args": ["${input:run}"]},
            "gone": {"command": "x", "env": {"A": "${input:nowhere}"}},
            "local": {"command": "x", "args": ["${workspaceFolder}/a"]},
        },
    }"#;
    let gh = read(text).unwrap().remove(0).row.unwrap();
    assert_eq!(gh["url"], "https://g.example/${user.region}/mcp");
    assert_eq!(gh["headers"]["Authorization"], "Bearer ${user.gh-token}");
    let form = json!([
        {"name": "region", "label": "region", "type": "text", "options": ["eu", "us"]},
        {"name": "gh-token", "label": "GitHub token", "type": "password"},
    ]);
    assert_eq!(gh["credential_fields"], form);
    let refused = refused(text);
    let names: Vec<_> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["run", "gone", "local"]);
    assert!(refused[0].1.contains("a command of the editor gives"));
    assert!(refused[1].1.contains("\"nowhere\""), "{}", refused[1].1);
    assert!(refused[2].1.contains("${workspaceFolder}"));
}

#[test]
fn sections_of_codex_are_read() {
    let text = r#"
        model = "x"
        [mcp_servers.files]
        command = "npx"
        args = ["-y", "files", "${HOME}"]
        env_vars = ["API_KEY"]
        startup_timeout_sec = 20
        [mcp_servers.files.env]
        MODE = "fast"
        [mcp_servers.wiki]
        url = "https://w.example/mcp"
        bearer_token_env_var = "WIKI"
        http_headers = { X-Region = "eu" }
        env_http_headers = { X-Key = "WIKI_KEY" }
        enabled = false
    "#;
    let rows = rows(text);
    let files = &rows["files"];
    assert_eq!(
        files["env_template"],
        json!({"MODE": "fast", "API_KEY": "${user.API_KEY}"})
    );
    assert_eq!(files["args"][2], "${HOME}", "Codex replaces nothing");
    let wiki = &rows["wiki"];
    let headers = json!({"X-Region": "eu", "X-Key": "${user.WIKI_KEY}", "Authorization": "Bearer ${user.WIKI}"});
    assert_eq!(wiki["headers"], headers);
    assert_eq!(wiki["is_enabled"], false);
}

#[test]
fn lists_of_rows_are_read_in_every_wrapping() {
    let row = r#"{"id": 7, "name": "a", "url": "https://a.example", "headers": "{\"X\":\"${KEY}\"}", "env_template": {"KEY": "${user.KEY}"}, "is_public": 1}"#;
    let expected = json!({"a": {"url": "https://a.example", "headers": {"X": "${KEY}"}, "env_template": {"KEY": "${user.KEY}"},
        "is_public": 1, "transport_type": "http"}});
    for text in [
        format!(r#"{{"servers": [{row}]}}"#),
        format!(r#"{{"code": 200, "data": {{"servers": [{row}]}}}}"#),
        format!("[{row}]"),
        row.to_owned(),
    ] {
        assert_eq!(Value::from(rows(&text)), expected, "{text}");
        assert!(read(&text).unwrap()[0].notes.is_empty());
    }
}

#[test]
fn an_entry_that_cannot_be_taken_is_named_and_the_others_are_read() {
    let text =
        r#"{"mcpServers": {"a": {"command": "x"}, "b": "x", "c": {}, "d": {"command": "y"}}}"#;
    let refused = refused(text);
    assert_eq!(refused, [("b".to_owned(), "is no object".to_owned())]);
    assert_eq!(read(text).unwrap().len(), 4);
    let rows = r#"{"servers": [{"command": "x"}, {"name": "a", "command": "x"}]}"#;
    let unnamed = &read(rows).unwrap()[0];
    assert_eq!(
        (unnamed.name.as_str(), &unnamed.row),
        ("number 1", &Err("has no name".to_owned()))
    );
}

#[test]
fn what_is_no_such_file_says_so_and_quotes_nothing() {
    let reason = |text| read(text).unwrap_err();
    assert_eq!(
        reason("{\"a\": \"secret\n"),
        "is not JSON (at line 1, column 7)"
    );
    assert!(reason("key = = secret").starts_with("is neither JSON"));
    assert!(reason("[other]\na = 1").contains("[mcp_servers.NAME]"));
    assert!(reason("{}").contains("mcpServers"));
    assert!(reason("7").contains("no JSON object"));
    assert!(!reason("key = = secret").contains("secret"));
}

fn lifted(row: Value) -> (Value, Vec<(String, String)>) {
    let Value::Object(mut row) = row else {
        panic!("an object")
    };
    let lifted = lift(&mut row);
    let fields = lifted.credentials.0.iter();
    let fields = fields.map(|(name, value)| (name.clone(), value.expose().to_owned()));
    let fields = fields.collect();
    row.remove("credential_fields");
    row.remove("requires_credentials");
    (row.into(), fields)
}

#[test]
fn literal_secrets_are_found_wherever_they_stand() {
    let (row, fields) = lifted(json!({
        "command": "npx",
        "args": ["remote", "--header", "Authorization: Bearer abc", "--api-key", "k-1", "--token=t-2", "-e", "GH_PAT=p-3",
                 "sk-1234567890abcdef", "--max", "7", "--auth", "--verbose"],
        "env_template": {"API_KEY": "k-1", "MODE": "fast", "DEBUG_AUTH": "true", "SSH_KEY_FILE": "/k",
                         "DB": "postgres://u:p@h/d", "OWN_KEY": "${user.OWN_KEY}"},
    }));
    let expected = json!({
        "command": "npx",
        "args": ["remote", "--header", "Authorization: Bearer ${user.Authorization}", "--api-key", "${user.API_KEY}",
                 "--token=${user.token}", "-e", "GH_PAT=${user.GH_PAT}", "${user.SECRET}", "--max", "7", "--auth", "--verbose"],
        "env_template": {"API_KEY": "${user.API_KEY}", "MODE": "fast", "DEBUG_AUTH": "true", "SSH_KEY_FILE": "/k",
                         "DB": "${user.DB}", "OWN_KEY": "${user.OWN_KEY}"},
    });
    assert_eq!(row, expected);
    let expected = [
        ("API_KEY", "k-1"),
        ("Authorization", "abc"),
        ("DB", "postgres://u:p@h/d"),
        ("GH_PAT", "p-3"),
        ("SECRET", "sk-1234567890abcdef"),
        ("token", "t-2"),
    ];
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(fields, expected);

    let (row, fields) = lifted(json!({
        "url": "https://w.example/mcp?api_key=a%20b&lang=en#top",
        "headers": {"Authorization": "Bearer xyz", "X-Api-Key": "k", "Accept-Language": "de"},
    }));
    assert_eq!(
        row["url"],
        "https://w.example/mcp?api_key=${user.api_key_2}&lang=en#top"
    );
    assert_eq!(
        row["headers"]["Authorization"],
        "Bearer ${user.Authorization}"
    );
    assert_eq!(row["headers"]["Accept-Language"], "de");
    assert!(fields.contains(&("api_key_2".to_owned(), "a b".to_owned())));
}

#[test]
fn what_is_written_holds_no_secret_and_is_read_again() {
    let row = json!({
        "id": "1", "name": "a", "transport_type": "http", "url": "https://u:hidden-1@w.example/mcp?token=hidden-2",
        "headers": {"X-Key": "hidden-3", "X-Own": "${user.OWN}"}, "env_template": {}, "is_enabled": false,
        "description": null, "created_at": "now",
    });
    let row = row.as_object().unwrap();
    let written = write(vec![row.clone()], Format::McpServers);
    let entry = json!({"type": "http", "url": "https://w.example/mcp?token=${token_2}",
        "headers": {"X-Key": "${X_Key}", "X-Own": "${OWN}"}, "disabled": true});
    assert_eq!(written, json!({"mcpServers": {"a": entry}}));
    let written = write(vec![row.clone()], Format::Servers);
    assert!(!written.to_string().contains("hidden"));
    let again = &rows(&written.to_string())["a"];
    assert_eq!(
        again["headers"],
        json!({"X-Key": "${user.X_Key}", "X-Own": "${user.OWN}"})
    );
    assert_eq!(again["is_enabled"], false);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~é\"\\\\/*]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z\"/*]{1,6}", inner), 0..4)
                .prop_map(|members| members.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

/// The same JSON as a person might have left it.
fn commented(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(commented).collect();
            let comma = if items.is_empty() { "" } else { "," };
            format!("[ // it's \"so\"\n{}{comma} ]", items.join(", /* , */ "))
        }
        Value::Object(members) => {
            let members = members.iter();
            let members: Vec<_> = members
                .map(|(name, value)| format!("{}/*:*/:{}", json!(name), commented(value)))
                .collect();
            let comma = if members.is_empty() { "" } else { "," };
            format!("{{ {}{comma}\n// }}\n}}", members.join(",\n"))
        }
        leaf => leaf.to_string(),
    }
}

fn any_row() -> impl Strategy<Value = Map<String, Value>> {
    let text = prop_oneof![
        "[a-z]{1,8}",
        "\\$\\{user\\.[A-Z]{1,4}\\}",
        "hidden-[a-z]{8}"
    ];
    let name = prop_oneof!["[A-Z]{1,6}", "[A-Z]{1,4}_KEY", "X-[a-z]{2}-Token"];
    let map = prop::collection::btree_map(name, text.clone(), 0..4);
    let args = prop::collection::vec(text, 0..3);
    (map.clone(), map, args, any::<bool>()).prop_map(|(env, headers, args, http)| {
        let mut row = json!({"name": "a", "env_template": env});
        match http {
            true => {
                row["transport_type"] = "http".into();
                row["url"] = "https://w.example/mcp".into();
                row["headers"] = json!(headers);
            }
            false => {
                row["command"] = "x".into();
                row["args"] = json!(args);
            }
        }
        row.as_object().cloned().unwrap_or_default()
    })
}

proptest! {
    #[test]
    fn comments_change_nothing(value in any_json()) {
        prop_assert_eq!(json(&commented(&value)), Ok(value.clone()));
        prop_assert_eq!(json(&value.to_string()), Ok(value));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = read(&text);
    }

    /// Whatever the file, an entry is taken or refused, in order, and none is lost.
    #[test]
    fn every_entry_of_any_file_is_accounted_for(servers in prop::collection::btree_map("[a-z]{1,4}", any_json(), 0..5)) {
        for key in ["mcpServers", "servers"] {
            let entries = read(&json!({key: servers}).to_string()).unwrap();
            let names: Vec<_> = entries.iter().map(|entry| &entry.name).collect();
            prop_assert_eq!(names, servers.keys().collect::<Vec<_>>());
        }
    }

    /// Putting the lifted values back gives the row that was there.
    #[test]
    fn lifting_loses_nothing_and_is_done_once(row in any_row()) {
        let mut lifted_row = row.clone();
        let lifted = lift(&mut lifted_row);
        let fields = lifted.credentials.0.iter();
        let put_back = fields.fold(Value::from(lifted_row.clone()).to_string(), |text, (name, value)| {
            text.replace(&format!("${{user.{name}}}"), value.expose())
        });
        let mut put_back: Value = serde_json::from_str(&put_back).unwrap();
        for column in ["credential_fields", "requires_credentials"] {
            put_back.as_object_mut().unwrap().remove(column);
        }
        prop_assert_eq!(put_back, Value::from(row));
        prop_assert!(lift(&mut lifted_row).places.is_empty());
    }

    /// What is written as rows and read again is what was there, but for the secrets.
    #[test]
    fn rows_survive_the_way_out_and_back(row in any_row()) {
        let mut expected = row.clone();
        lift(&mut expected);
        expected.retain(|_, value| *value != json!([]) && *value != json!({}));
        let written = write(vec![row], Format::Servers);
        let again = read(&written.to_string()).unwrap().remove(0).row;
        prop_assert_eq!(again, Ok(expected));
    }
}
