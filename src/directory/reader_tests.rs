use serde_json::json;

use super::*;
use crate::model::error::ErrorCode;
use crate::model::resolve::resolve;

fn read_with(reader: &Reader, body: &Value, user: Option<&str>) -> Result<Snapshot, Trouble> {
    reader.read(200, body.to_string().as_bytes(), user.map(UserId::new), 1)
}

fn read(body: &Value, user: Option<&str>) -> Snapshot {
    read_with(&Reader::new(Redactor::default()), body, user).unwrap()
}

/// Rows as they look in the field: numbers for ids, JSON in strings, BIT columns, other people's rows.
pub(crate) fn field_rows() -> Value {
    json!({
        "servers": [
            {"id": 1, "name": "books", "transport_type": null, "command": "npx", "args": "[\"-y\", \"books\"]",
             "env_template": "{\"KEY\": \"${user.KEY}\"}", "headers": null, "url": "",
             "is_public": {"type": "Buffer", "data": [0]}, "is_enabled": 1, "requires_credentials": "1",
             "credential_fields": "[{\"name\": \"KEY\"}]"},
            {"id": "2", "name": "My Weather", "transport_type": "streamableHttp", "url": "https://w.example/mcp",
             "headers": {"X-Key": "${user.KEY}"}, "is_public": true},
            {"id": 3, "name": "broken", "command": "x", "args": "[\"-y\"", "is_public": 1},
            {"id": 4, "name": "no-command", "is_public": 1, "is_enabled": 0}
        ],
        "default_credentials": [
            {"id": 1, "mcp_server_id": 2, "credentials": "{\"KEY\": \"default-key\"}", "is_enabled": 1}
        ],
        "user_credentials": [
            {"id": 1, "user_id": 7, "mcp_server_id": 1, "is_enabled": true,
             "credentials": {"KEY": "old", "env_overrides": "{\"KEY\": \"anns-own-key\"}"}},
            {"id": 2, "user_id": 8, "mcp_server_id": 1, "credentials": {"KEY": "bobs-key"}},
            {"id": 3, "mcp_server_id": 2, "credentials": {"KEY": "nobodys-key"}}
        ]
    })
}

fn fields(credentials: Option<&Credentials>) -> Option<&str> {
    Some(credentials?.get("KEY")?.expose())
}

#[test]
fn reads_what_is_in_force_for_the_user() {
    let snapshot = read(&field_rows(), Some("7"));
    let names: Vec<_> = snapshot
        .servers
        .iter()
        .map(|it| &*it.definition.name)
        .collect();
    assert_eq!(names, ["books", "My Weather", "broken", "no-command"]);
    let books = snapshot.find("books").unwrap();
    assert_eq!(
        fields(books.user_credentials.as_ref()),
        Some("anns-own-key")
    );
    let weather = snapshot.find("my_weather").unwrap();
    assert_eq!(
        fields(weather.user_credentials.as_ref()),
        None,
        "a row of nobody is not ann's"
    );
    assert_eq!(
        fields(weather.default_credentials.as_ref()),
        Some("default-key")
    );
}

#[test]
fn one_broken_row_hurts_no_other() {
    let snapshot = read(&field_rows(), Some("7"));
    let usable: Vec<_> = snapshot
        .servers
        .iter()
        .map(|it| it.definition.template.is_ok())
        .collect();
    assert_eq!(usable, [true, true, false, false]);
}

#[test]
fn the_rows_of_another_user_are_dropped() {
    for (user, own) in [
        (Some("8"), Some("bobs-key")),
        (Some("9"), None),
        (None, None),
    ] {
        let snapshot = read(&field_rows(), user);
        let books = snapshot.find("books").unwrap();
        assert_eq!(fields(books.user_credentials.as_ref()), own, "{user:?}");
    }
}

#[test]
fn takes_an_envelope_or_bare_data() {
    let rows = field_rows();
    let envelope = json!({"code": 200, "message": "success", "data": rows, "timestamp": 1});
    let text_code = json!({"code": "200", "data": rows});
    let no_code = json!({"data": rows});
    for body in [rows.clone(), envelope, text_code, no_code] {
        assert_eq!(read(&body, None).servers.len(), 4);
    }
    let empty = json!({"servers": [], "default_credentials": null});
    assert!(read(&empty, Some("7")).servers.is_empty());
}

#[test]
fn a_code_in_the_body_counts_as_that_status() {
    let reader = Reader::new(Redactor::default());
    let trouble = |status, body: &str| {
        let read = reader.read(status, body.as_bytes(), None, 1);
        read.map(|snapshot| snapshot.servers.len()).unwrap_err()
    };
    let coded =
        |code: Value| json!({"code": code, "message": "why", "data": {"servers": []}}).to_string();
    for code in [json!(401), json!("403")] {
        assert!(
            matches!(trouble(200, &coded(code)), Trouble::Unauthorized(said) if said.contains("why"))
        );
    }
    assert!(matches!(trouble(401, "<html>"), Trouble::Unauthorized(_)));
    assert!(matches!(
        trouble(403, &coded(json!(200))),
        Trouble::Unauthorized(_)
    ));
    for status in [500, 502, 503, 429, 408] {
        assert!(matches!(trouble(status, ""), Trouble::Passing(_)));
        assert!(matches!(
            trouble(200, &coded(json!(status))),
            Trouble::Passing(_)
        ));
    }
    for status in [404, 400, 302, 204] {
        assert!(
            matches!(trouble(status, ""), Trouble::Lasting(_)),
            "{status}"
        );
    }
}

#[test]
fn a_body_that_cannot_be_read_is_trouble_that_passes_and_shows_nothing() {
    let reader = Reader::new(Redactor::default());
    let whole = field_rows().to_string();
    let cut = (0..whole.len())
        .step_by(7)
        .map(|end| whole[..end].to_owned());
    let odd = [
        "null",
        "[]",
        "{}",
        "{\"servers\": {}}",
        "{\"servers\": null}",
        "{\"data\": 3}",
        "\"hush\"",
    ];
    for body in cut.chain(odd.map(str::to_owned)) {
        let read = reader.read(200, body.as_bytes(), Some(UserId::new("7")), 1);
        match read.map(|snapshot| snapshot.servers.len()) {
            Err(Trouble::Passing(said)) => assert!(!said.contains("key") && !said.contains("hush")),
            Ok(0) if body.contains("null") => {}
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn credentials_that_cannot_be_read_make_that_server_unusable_for_whom_they_matter() {
    let mut rows = field_rows();
    rows["default_credentials"][0] = json!({"mcp_server_id": 2, "fault": "do not decrypt: copied"});
    let without = read(&rows, None);
    let failure = resolve(without.find("My Weather").unwrap(), &Default::default()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::ConfigInvalid);
    assert!(
        failure.message.contains("credentials do not decrypt"),
        "{failure}"
    );

    rows["user_credentials"] = json!([
        {"user_id": 7, "mcp_server_id": 2, "credentials": {"KEY": "anns-key"}},
        {"user_id": 7, "mcp_server_id": 1, "credentials": "{"}
    ]);
    let anns = read(&rows, Some("7"));
    assert!(anns.find("My Weather").unwrap().definition.template.is_ok());
    let fault = anns
        .find("books")
        .unwrap()
        .definition
        .template
        .clone()
        .unwrap_err();
    assert_eq!(fault.field, "credentials");
}

#[test]
fn every_credential_is_known_to_the_redactor() {
    let redactor = Redactor::default();
    let reader = Reader::new(redactor.clone());
    let snapshot = read_with(&reader, &field_rows(), Some("7")).unwrap();
    assert_eq!(redactor.scrub("default-key anns-own-key"), "*** ***");
    assert_eq!(redactor.scrub("bobs-key"), "bobs-key", "it was dropped");
    drop(snapshot);
}

#[test]
fn users_without_credentials_of_their_own_share_the_definitions() {
    let reader = Reader::new(Redactor::default());
    let body = field_rows();
    let nobody = read_with(&reader, &body, None).unwrap();
    let ann = read_with(&reader, &body, Some("7")).unwrap();
    let carl = read_with(&reader, &body, Some("9")).unwrap();
    let same = |one: &Snapshot, other: &Snapshot| {
        let pairs = one.servers.iter().zip(&other.servers);
        pairs
            .map(|(one, other)| Arc::ptr_eq(one, other))
            .collect::<Vec<_>>()
    };
    assert_eq!(same(&nobody, &carl), [true; 4]);
    assert_eq!(same(&nobody, &ann), [false, true, true, true]);
    let mut changed = body;
    changed["servers"][1]["url"] = json!("https://other.example/");
    assert_eq!(
        same(&nobody, &read_with(&reader, &changed, None).unwrap()),
        [false; 4]
    );
}

#[test]
fn names_fold_where_that_is_unique() {
    let rows = json!({"servers": [
        {"id": 1, "name": "a-b", "command": "x"}, {"id": 2, "name": "a_b", "command": "x"},
        {"id": 3, "name": "My Service", "command": "x"},
    ]});
    let snapshot = read(&rows, None);
    assert_eq!(&*snapshot.find("a_b").unwrap().definition.name, "a_b");
    assert_eq!(
        &*snapshot.find("my-service").unwrap().definition.name,
        "My Service"
    );
    let both = snapshot.find("A B").unwrap_err();
    assert_eq!(both.code, ErrorCode::InvalidParams);
    assert!(
        both.message.contains("\"a-b\"") && both.message.contains("\"a_b\""),
        "{both}"
    );
    assert_eq!(
        snapshot.find("other").unwrap_err().code,
        ErrorCode::ServerNotFound
    );
}
