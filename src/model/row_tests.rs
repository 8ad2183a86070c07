use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(row: Value) -> Definition {
    definition(row).expect("the row has a name")
}

fn with(column: &str, value: Value) -> Definition {
    let mut row = json!({"id": "1", "name": "books", "command": "x"});
    row[column] = value;
    read(row)
}

fn fault_of(definition: &Definition) -> &str {
    &definition.template.as_ref().unwrap_err().field
}

#[test]
fn json_and_json_in_a_string_are_the_same() {
    let plain = json!({
        "id": 7, "name": "books", "command": "x", "args": ["-y", 3, true],
        "env_template": {"A": "${user.A}", "N": 1, "GONE": null},
        "credential_fields": [{"name": "A"}],
    });
    let mut strung = plain.clone();
    for column in ["args", "env_template", "credential_fields"] {
        strung[column] = plain[column].to_string().into();
    }
    let (plain, strung) = (read(plain), read(strung));
    assert_eq!(plain.template, strung.template);
    assert_eq!(plain.credential_fields, strung.credential_fields);
    assert_eq!(plain.id.as_str(), "7");
    let env = [("A", "${user.A}"), ("N", "1")];
    assert_eq!(
        plain.template,
        Ok(Template::Stdio {
            command: "x".to_owned(),
            args: vec!["-y".to_owned(), "3".to_owned(), "true".to_owned()],
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        })
    );
}

#[test]
fn absent_null_and_empty_mean_empty() {
    for empty in [json!(null), json!(""), json!("  "), json!("null")] {
        for column in [
            "args",
            "env_template",
            "headers",
            "credential_fields",
            "isolation",
            "transport_type",
        ] {
            if empty == "null" && matches!(column, "isolation" | "transport_type") {
                continue;
            }
            let read = with(column, empty.clone());
            assert!(read.template.is_ok(), "{column}: {:?}", read.template);
        }
        assert_eq!(
            with("credential_fields", empty).credential_fields,
            json!([])
        );
    }
}

#[test]
fn booleans_come_in_every_form() {
    let yes = [
        json!(true),
        json!(1),
        json!("1"),
        json!("true"),
        json!("TRUE"),
        json!("\u{1}"),
        json!([1]),
        json!({"type": "Buffer", "data": [1]}),
    ];
    let no = [
        json!(false),
        json!(0),
        json!("0"),
        json!("false"),
        json!("\0"),
        json!([0]),
        json!({"type": "Buffer", "data": [0]}),
    ];
    for (values, wanted) in [(&yes[..], true), (&no[..], false)] {
        for value in values {
            let read = with("is_public", value.clone());
            assert_eq!(
                (read.is_public, read.template.is_ok()),
                (wanted, true),
                "{value}"
            );
        }
    }
    for absent in [json!(null), json!("")] {
        assert!(with("is_enabled", absent.clone()).is_enabled);
        assert!(!with("is_public", absent).is_public);
    }
    for odd in [
        json!("yes please"),
        json!([1, 1]),
        json!({}),
        json!({"data": "x"}),
    ] {
        let read = with("is_public", odd);
        assert!(!read.is_public);
        assert_eq!(fault_of(&read), "is_public");
    }
}

#[test]
fn transports_come_in_every_spelling() {
    for (spelling, wanted) in [
        (json!(null), TransportType::Stdio),
        (json!("STDIO"), TransportType::Stdio),
        (json!("http"), TransportType::Http),
        (json!("streamableHttp"), TransportType::Http),
        (json!("streamable_http"), TransportType::Http),
        (json!("streamable-http"), TransportType::Http),
        (json!("sse"), TransportType::Sse),
        (json!("statelessHttp"), TransportType::StatelessHttp),
    ] {
        let row = json!({"id": 1, "name": "n", "command": "x", "url": "http://h/", "transport_type": spelling});
        let read = read(row);
        assert_eq!((read.transport_type, read.template.is_ok()), (wanted, true));
    }
    let http = json!({"id": 1, "name": "n", "url": "http://h/", "transport_type": "http"});
    for (column, wanted) in [
        ("use_sse", TransportType::Sse),
        ("stateless", TransportType::StatelessHttp),
    ] {
        let mut row = http.clone();
        row[column] = json!("1");
        assert_eq!(read(row.clone()).transport_type, wanted);
        row[column] = json!(0);
        assert_eq!(read(row).transport_type, TransportType::Http);
    }
    assert_eq!(
        fault_of(&with("transport_type", json!("websocket"))),
        "transport_type"
    );
}

#[test]
fn a_definition_that_cannot_be_used_names_the_column() {
    let http = |column: &str, value: Value| {
        let mut row = json!({"id": 1, "name": "n", "transport_type": "http", "url": "http://h/"});
        row[column] = value;
        row
    };
    for (row, column) in [
        (json!({"id": 1, "name": "n"}), "command"),
        (json!({"id": 1, "name": "n", "command": " "}), "command"),
        (json!({"name": "n", "command": "x"}), "id"),
        (
            json!({"id": 1, "name": "n", "command": "x", "args": "[1"}),
            "args",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "args": {"a": 1}}),
            "args",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "args": [["a"]]}),
            "args",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "args": ["${user.}"]}),
            "args",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "args": ["a\0"]}),
            "args",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "env_template": "A=1"}),
            "env_template",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "env_template": {"A=B": "1"}}),
            "env_template",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "isolation": "none"}),
            "isolation",
        ),
        (
            json!({"id": 1, "name": "n", "command": "x", "credential_fields": "{"}),
            "credential_fields",
        ),
        (http("url", json!("")), "url"),
        (http("url", json!("not a url")), "url"),
        (http("url", json!("http://${user.H}/")), "url"),
        (http("headers", json!("{")), "headers"),
        (http("headers", json!({"Host": "x"})), "headers"),
        (http("headers", json!({"X-A": "${NAME}"})), "headers"),
        (http("headers", json!({"X-A": "a\nb"})), "headers"),
        (http("headers", json!({"X-A": {"b": 1}})), "headers"),
    ] {
        let shown = row.to_string();
        assert_eq!(fault_of(&read(row)), column, "{shown}");
    }
}

#[test]
fn a_fault_never_quotes_json_that_may_hold_secrets() {
    let read = with("env_template", json!("{\"KEY\": hush-hush}"));
    assert!(!read.template.unwrap_err().reason.contains("hush"));
    let row = json!({"mcp_server_id": 1, "credentials": "hush-hush"});
    let fault = credentials(row).unwrap().credentials.unwrap_err();
    assert!(!fault.reason.contains("hush"));
}

#[test]
fn rows_that_nobody_could_ask_for_are_left_out() {
    for row in [
        json!(null),
        json!("x"),
        json!([]),
        json!({}),
        json!({"name": ""}),
        json!({"id": 1, "command": "x"}),
    ] {
        assert!(definition(row).is_none());
    }
    for row in [json!(null), json!({}), json!({"credentials": {"A": "1"}})] {
        assert!(credentials(row).is_none());
    }
}

#[test]
fn shows_on_only_columns_meant_for_it() {
    let row = json!({"id": 1, "name": "n", "command": "x", "tool_meta": {"a": 1}, "tool_display": null, "client_secret": "s"});
    let extra = read(row).extra;
    assert_eq!(Value::Object(extra), json!({"tool_meta": {"a": 1}}));
}

fn fields(row: Value) -> Option<BTreeMap<String, String>> {
    let read = credentials(row)?.credentials.unwrap()?;
    let fields = read.0.into_iter();
    Some(
        fields
            .map(|(name, value)| (name, value.expose().to_owned()))
            .collect(),
    )
}

#[test]
fn env_overrides_are_fields_too_and_win() {
    let wanted = Some(
        [("A", "2"), ("B", "x"), ("C", "5")]
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .into(),
    );
    let flat = json!({"A": "1", "B": "x", "env_overrides": {"A": "2", "C": 5}, "D": null});
    let strung = json!({"A": "1", "B": "x", "env_overrides": "{\"A\": \"2\", \"C\": 5}"});
    for value in [flat.clone(), strung, json!(flat.to_string())] {
        assert_eq!(
            fields(json!({"mcp_server_id": 1, "credentials": value})),
            wanted
        );
    }
    let broken = json!({"mcp_server_id": 1, "credentials": {"env_overrides": 3}});
    assert!(credentials(broken).unwrap().credentials.is_err());
}

#[test]
fn a_row_that_is_off_or_empty_holds_nothing() {
    assert!(
        credentials(json!({"mcp_server_id": 1, "is_enabled": 0, "credentials": {"A": "1"}}))
            .is_none()
    );
    for empty in [
        json!(null),
        json!(""),
        json!({}),
        json!("{}"),
        json!({"env_overrides": {}}),
    ] {
        assert_eq!(
            fields(json!({"mcp_server_id": 1, "credentials": empty})),
            None
        );
    }
    let kept =
        json!({"mcp_server_id": 1, "user_id": 42, "is_enabled": "1", "credentials": {"A": ""}});
    assert_eq!(
        credentials(kept.clone()).unwrap().user.as_deref(),
        Some("42")
    );
    assert_eq!(fields(kept), Some([("A".to_owned(), String::new())].into()));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!("{\"a\": [1]}")),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{0,6}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// F11: whatever stands in a row, reading it ends, and a row with a name stays a server.
    #[test]
    fn any_row_is_read(
        columns in prop::collection::hash_map(
            prop::sample::select(vec![
                "id", "transport_type", "command", "args", "env_template", "url", "headers", "is_public",
                "is_enabled", "requires_credentials", "credential_fields", "isolation", "use_sse", "stateless",
                "credentials", "mcp_server_id", "user_id",
            ]),
            any_json(),
            0..10,
        ),
    ) {
        let mut row: Map<String, Value> =
            columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let _ = credentials(Value::Object(row.clone()));
        row.insert("name".to_owned(), "n".into());
        prop_assert_eq!(&*read(Value::Object(row)).name, "n");
    }
}
