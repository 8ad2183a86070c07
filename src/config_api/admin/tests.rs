use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::routes::{DOCUMENT, OPENAPI, routes, table};
use super::{Holding, PAGE, Wanted};
use crate::config_api::audit::{Action, AuditRow};
use crate::config_api::database::sql;
use crate::config_api::databases_tests::databases::TestDatabase;
use crate::config_api::databases_tests::{named, open};
use crate::config_api::guard::Guard;
use crate::config_api::store::tests::{fields, object, open_in};
use crate::config_api::store::{ServerRow, Store};
use crate::config_api::{DELETE, InProcess, Owner, PATH, SET};
use crate::model::caller::UserId;
use crate::model::secret::Secret;
use crate::model::settings::Settings;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The admin API on a store, asked without a port.
struct Desk {
    router: Router,
    store: Store,
    token: Secret,
}

impl Desk {
    async fn on(store: Store) -> Self {
        let settings = Settings::default().server;
        let guard = Guard::new(store.clone(), &settings).await.unwrap();
        Self {
            router: routes(store.clone(), Arc::new(guard)),
            token: store.add_token("boss", true).await.unwrap(),
            store,
        }
    }

    async fn with(&self, token: &str, question: &str, body: &str) -> (u16, Value) {
        let (method, path) = question.split_once(' ').unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .body(Body::from(body.to_owned()))
            .unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
        (
            status,
            serde_json::from_slice(&body.unwrap()).unwrap_or_default(),
        )
    }

    async fn ask(&self, question: &str, body: Value) -> (u16, Value) {
        self.with(self.token.expose(), question, &body.to_string())
            .await
    }

    /// The data of an answer that must be good.
    async fn data(&self, question: &str, body: Value) -> Value {
        let (status, mut answer) = self.ask(question, body).await;
        assert!((200..300).contains(&status), "{question}: {answer}");
        assert_eq!(answer["code"], status);
        answer["data"].take()
    }

    /// The fields that a refusal names.
    async fn faults(&self, question: &str, body: Value) -> Vec<String> {
        let (status, answer) = self.ask(question, body).await;
        assert_eq!(status, 400, "{question}: {answer}");
        let faults = answer["data"]["details"]["fields"].as_array().unwrap();
        let names = faults.iter().map(|fault| {
            assert!(!fault["reason"].as_str().unwrap().is_empty());
            fault["field"].as_str().unwrap().to_owned()
        });
        names.collect()
    }

    /// What happened after this desk's token was made.
    async fn changes(&self) -> Value {
        let data = self.data("GET /admin/audit", Value::Null).await;
        let changes = data["changes"].as_array().unwrap();
        let (made, rest): (Vec<_>, Vec<_>) = changes
            .iter()
            .partition(|change| change["action"] == "token.create");
        let made: Vec<_> = made.iter().map(|change| &change["fields"]).collect();
        assert_eq!(made, [&json!(["boss"])]);
        json!(rest)
    }
}

#[tokio::test]
async fn the_document_describes_every_route_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let desk = Desk::on(open_in(directory.path()).await).await;
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let mut routes: Vec<_> = table().into_iter().map(|(path, _)| path).collect();
    routes.push(OPENAPI);
    let mut described: Vec<_> = paths.keys().map(String::as_str).collect();
    routes.sort_unstable();
    described.sort_unstable();
    assert_eq!(routes, described);
    for path in routes {
        for method in METHODS {
            let question = format!(
                "{} {}",
                method.to_uppercase(),
                path.replace("{server}", "x")
            );
            let (status, _) = desk.ask(&question, Value::Null).await;
            let operation = &paths[path][method];
            assert_eq!(operation.is_null(), status == 405, "{question}: {status}");
            let known = |status: u16| operation["responses"].get(status.to_string()).is_some();
            assert!(status == 405 || known(status), "{question}: {status}");
            // Without a bearer, only the document itself is answered.
            let (status, _) = desk.with("", &question, "").await;
            let open = path == OPENAPI;
            assert!(open || status == 401, "{question}: {status}");
        }
    }
}

#[tokio::test]
async fn the_document_is_whole_and_names_what_is_sent() {
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["openapi"], "3.1.0");
    let mut open = vec![&document];
    while let Some(value) = open.pop() {
        if let Some(pointer) = value["$ref"].as_str() {
            let target = document.pointer(pointer.trim_start_matches('#'));
            assert!(target.is_some(), "{pointer} points nowhere");
        }
        let members = value.as_object().into_iter().flat_map(|it| it.values());
        open.extend(members.chain(value.as_array().into_iter().flatten()));
    }
    let sent = |schema: &str, sample: Value| {
        let properties = &document["components"]["schemas"][schema]["properties"];
        let names = |value: &Value| {
            let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            names.sort();
            names
        };
        assert_eq!(names(properties), names(&sample), "{schema}");
    };
    sent("Server", ServerRow::default().unpacked().into());
    let held = Holding {
        server_id: String::new(),
        user_id: None,
        is_enabled: true,
        updated_at: None,
        fields: Vec::new(),
        fault: Some(String::new()),
    };
    sent("Holding", json!(held));
    let change = AuditRow {
        number: 1,
        made_at: String::new(),
        actor: String::new(),
        action: String::new(),
        server_id: String::new(),
        server_name: String::new(),
        user_id: String::new(),
        fields: "[]".to_owned(),
    };
    sent("Change", json!(change));
    let actions = &document["components"]["schemas"]["Change"]["properties"]["action"]["enum"];
    assert_eq!(*actions, json!(Action::ALL));
}

#[tokio::test]
async fn a_server_lives_from_its_creation_to_its_deletion() {
    let directory = tempfile::tempdir().unwrap();
    let desk = Desk::on(open_in(directory.path()).await).await;
    let row = json!({"name": "books", "command": "x", "args": ["-y"], "env_template": {"K": "${user.K}"}});
    let added = desk.data("POST /admin/servers", row).await;
    assert_eq!(
        (&added["args"], &added["is_enabled"]),
        (&json!(["-y"]), &json!(true))
    );
    let path = format!("/admin/servers/{}", added["id"].as_str().unwrap());
    let shown = desk.data(&format!("GET {path}"), Value::Null).await;
    assert_eq!(shown, added);

    let columns = json!({"display_name": "Books", "args": null, "is_public": true});
    let changed = desk.data(&format!("PATCH {path}"), columns).await;
    assert_eq!(changed["display_name"], "Books");
    assert_eq!(
        (&changed["args"], &changed["is_public"]),
        (&json!([]), &json!(true))
    );
    assert_eq!(
        (&changed["name"], &changed["env_template"]),
        (&added["name"], &added["env_template"])
    );
    // What was read may be sent back as it is.
    let same = desk.data(&format!("PATCH {path}"), changed.clone()).await;
    assert_eq!(same, changed);
    let off = desk
        .data(&format!("PATCH {path}"), json!({"is_enabled": false}))
        .await;
    assert_eq!(off["is_enabled"], false);
    let web = json!({"transport_type": "http", "url": "https://w.example/mcp"});
    let moved = desk.data(&format!("PATCH {path}"), web).await;
    assert_eq!(
        (&moved["command"], &moved["is_enabled"]),
        (&Value::Null, &json!(false))
    );

    let listed = desk.data("GET /admin/servers", Value::Null).await;
    assert_eq!(listed["servers"], json!([moved]));
    desk.data(&format!("DELETE {path}"), Value::Null).await;
    for question in ["GET", "PATCH", "DELETE"] {
        let (status, answer) = desk.ask(&format!("{question} {path}"), json!({})).await;
        assert_eq!(
            (status, &answer["data"]["error_code"]),
            (404, &json!("server_not_found"))
        );
    }
    let done: Vec<_> = desk
        .changes()
        .await
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|change| {
            assert_eq!(
                (&change["actor"], &change["server_name"]),
                (&json!("token boss"), &json!("books"))
            );
            json!([change["action"], change["fields"]])
        })
        .collect();
    let expected = json!([
        ["server.create", []],
        ["server.update", ["args", "display_name", "is_public"]],
        ["server.disable", []],
        [
            "server.update",
            ["args", "command", "headers", "transport_type", "url"]
        ],
        ["server.delete", []],
    ]);
    assert_eq!(json!(done), expected);
}

#[tokio::test]
async fn a_refusal_names_every_field_at_once_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let desk = Desk::on(open_in(directory.path()).await).await;
    let added = desk
        .data("POST /admin/servers", named("books").into())
        .await;
    let path = format!("/admin/servers/{}", added["id"].as_str().unwrap());
    let wrong = json!({
        "name": "BOOKS", "args": "{", "env_template": 7, "isolation": "some", "is_public": "perhaps",
        "display_name": "d".repeat(256), "comand": "x",
    });
    let every = [
        "is_public",
        "isolation",
        "env_template",
        "command",
        "args",
        "comand",
        "name",
        "display_name",
    ];
    assert_eq!(desk.faults("POST /admin/servers", wrong).await, every);
    let faults = desk
        .faults(
            "POST /admin/servers",
            json!({"transport_type": "http", "headers": []}),
        )
        .await;
    assert_eq!(faults, ["url", "headers", "name"]);
    let http = json!({"name": "w", "transport_type": "http", "url": "nowhere", "headers": {"Host": "x"}, "env_template": {"": "x"}});
    assert_eq!(
        desk.faults("POST /admin/servers", http).await,
        ["url", "headers", "env_template"]
    );

    let patch = format!("PATCH {path}");
    assert_eq!(
        desk.faults(&patch, json!({"enabled": false, "name": null}))
            .await,
        ["enabled", "name"]
    );
    assert_eq!(
        desk.faults(&patch, json!({"url": "https://w.example"}))
            .await,
        ["url"]
    );
    assert_eq!(
        desk.faults(&patch, json!({"is_enabled": "maybe"})).await,
        ["is_enabled"]
    );
    let put = format!("PUT {path}/default-credentials");
    let wrong = json!({"credentials": {"A": ["hush"], "B": "x\u{0}hush", "C": "fine", "": "hush"}, "is_enabled": true});
    let faults = desk.faults(&put, wrong).await;
    assert_eq!(
        faults,
        [
            "is_enabled",
            "credentials.A",
            "credentials.B",
            "credentials."
        ]
    );
    assert_eq!(
        desk.faults(&put, json!({"credentials": {"A": null}})).await,
        ["credentials"]
    );
    assert_eq!(desk.faults(&put, json!({})).await, ["credentials"]);
    let own = format!("{path}/user-credentials");
    for question in [
        format!("PUT {own}"),
        format!("DELETE {own}?user="),
        format!("PATCH {own}"),
    ] {
        assert_eq!(
            desk.faults(&question, json!({"credentials": {"A": "v"}}))
                .await,
            ["user"]
        );
    }
    let twice = format!("DELETE {own}?user=a&user=b&usr=c");
    assert_eq!(desk.faults(&twice, json!({})).await, ["user", "usr"]);
    assert_eq!(
        desk.faults("GET /admin/audit?limit=0&before=x", json!({}))
            .await,
        ["before", "limit"]
    );
    let unreadable = format!("PUT {path}/default-credentials");
    for body in [r#"{"credentials": "hush"#, r#""hush""#, ""] {
        let (status, answer) = desk.with(desk.token.expose(), &unreadable, body).await;
        assert_eq!(
            (status, &answer["data"]["error_code"]),
            (400, &json!("invalid_json"))
        );
        assert!(!answer.to_string().contains("hush"), "{answer}");
    }
    let listed = desk.data("GET /admin/servers", Value::Null).await;
    assert_eq!(listed["servers"], json!([added]));
    assert_eq!(desk.changes().await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn credentials_go_in_and_their_names_alone_come_out() {
    for database in TestDatabase::of_each_kind() {
        let desk = Desk::on(open(&database).await).await;
        let server = desk.store.add_server(named("books")).await.unwrap().id;
        let path = format!("/admin/servers/{server}");
        // A user is named by any text.
        let user = "ann/../é &?%";
        let own = format!("{path}/user-credentials?user=ann/..%2F%C3%A9+%26%3F%25");
        let default = format!("{path}/default-credentials");
        for place in [&own, &default] {
            let body = json!({"credentials": {"KEY": "hush-hush", "PIN": 4711}});
            let set = desk.data(&format!("PUT {place}"), body).await;
            assert_eq!(set, json!({"fields": ["KEY", "PIN"]}));
        }
        let owner = Owner::User(UserId::new(user));
        let stored = desk.store.credentials(&owner, &server).await.unwrap();
        assert_eq!(
            stored,
            Some(fields(&[("KEY", "hush-hush"), ("PIN", "4711")]))
        );
        let off = json!({"is_enabled": false});
        // The second time within the same second: it is there all the same.
        for _ in 0..2 {
            let changed = desk.data(&format!("PATCH {own}"), off.clone()).await;
            assert_eq!(changed, json!({"changed": true}));
        }
        let nobody = format!("{path}/user-credentials?user=nobody");
        let changed = desk.data(&format!("PATCH {nobody}"), off).await;
        assert_eq!(changed, json!({"changed": false}));

        let mut listed = desk.data("GET /admin/credentials", Value::Null).await;
        for held in listed["credentials"].as_array_mut().unwrap() {
            assert_eq!(held["updated_at"].take().as_str().map(str::len), Some(19));
        }
        let held = |user: Value, enabled: bool| json!({"server_id": server, "user_id": user, "is_enabled": enabled, "updated_at": null, "fields": ["KEY", "PIN"]});
        let expected = json!({"credentials": [held(Value::Null, true), held(json!(user), false)], "next": null});
        assert_eq!(listed, expected, "{:?}", database.kind);
        let of_user = desk
            .data(
                "GET /admin/credentials?user=ann/..%2F%C3%A9+%26%3F%25",
                Value::Null,
            )
            .await;
        assert_eq!(of_user["credentials"].as_array().unwrap().len(), 1);

        for (place, was) in [
            (&own, true),
            (&own, false),
            (&nobody, false),
            (&default, true),
        ] {
            let deleted = desk.data(&format!("DELETE {place}"), Value::Null).await;
            assert_eq!(deleted, json!({"deleted": was}));
        }
        assert!(desk.store.owners().await.is_empty());
        let changes = desk.changes().await;
        assert!(!changes.to_string().contains("hush"), "{changes}");
        let done: Vec<_> = changes
            .as_array()
            .unwrap()
            .iter()
            .rev()
            .skip(1)
            .map(|change| {
                assert_eq!(change["made_at"].as_str().map(str::len), Some(19));
                json!([
                    change["actor"],
                    change["action"],
                    change["user_id"],
                    change["fields"]
                ])
            })
            .collect();
        let names = json!(["KEY", "PIN"]);
        let expected = json!([
            ["token boss", "credentials.set", user, names],
            ["token boss", "credentials.set", "", names],
            ["token boss", "credentials.disable", user, []],
            ["token boss", "credentials.disable", user, []],
            ["token boss", "credentials.delete", user, []],
            ["token boss", "credentials.delete", "", []],
        ]);
        assert_eq!(json!(done), expected, "{:?}", database.kind);
        let before = changes[1]["number"].as_i64().unwrap();
        let part = desk
            .data(
                &format!("GET /admin/audit?limit=2&before={before}"),
                Value::Null,
            )
            .await;
        assert_eq!(part["changes"], json!([changes[2], changes[3]]));
    }
}

#[tokio::test]
async fn a_change_and_its_audit_row_are_written_together_or_not_at_all() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        let server = store.add_server(named("books")).await.unwrap().id;
        let own = fields(&[("KEY", "v")]);
        store
            .put_credentials(&Owner::Default, &server, &own)
            .await
            .unwrap();
        let before = store.servers().await.unwrap();
        store
            .database
            .execute(sql("DROP TABLE mcp_audit"))
            .await
            .unwrap();
        let name = |name: &str| object(json!({"display_name": name}));
        assert!(store.add_server(named("wiki")).await.is_err());
        assert!(store.update_server(&server, name("other")).await.is_err());
        assert!(store.enable_server(&server, false).await.is_err());
        assert!(store.remove_server(&server).await.is_err());
        let other = fields(&[("KEY", "w")]);
        assert!(
            store
                .put_credentials(&Owner::Default, &server, &other)
                .await
                .is_err()
        );
        assert!(
            store
                .enable_credentials(&Owner::Default, &server, false)
                .await
                .is_err()
        );
        assert!(
            store
                .remove_credentials(&Owner::Default, &server)
                .await
                .is_err()
        );
        let after = store.servers().await.unwrap();
        assert_eq!(json!(before), json!(after), "{:?}", database.kind);
        let stored = store.credentials(&Owner::Default, &server).await.unwrap();
        assert_eq!(stored, Some(own), "{:?}", database.kind);
    }
}

#[tokio::test]
async fn a_long_list_comes_in_parts_each_row_once() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        let server = store.add_server(named("books")).await.unwrap().id;
        let rows: Vec<_> = (0..PAGE + 7)
            .map(|at| format!("('{at}', 'user {at}', '{server}', '{{\"K\": \"v\"}}')"))
            .collect();
        database.execute(format!(
            "INSERT INTO mcp_user_credentials (id, user_id, mcp_server_id, credentials) VALUES {}",
            rows.join(", ")
        ));
        let (mut users, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = store.holdings(&Wanted::default(), &cursor).await.unwrap();
            users.extend(page.credentials.into_iter().filter_map(|held| held.user_id));
            let Some(next) = page.next else { break };
            cursor = next;
        }
        let mut expected: Vec<_> = (0..PAGE + 7).map(|at| format!("user {at}")).collect();
        expected.sort();
        assert_eq!(users, expected, "{:?}", database.kind);
    }
}

#[tokio::test]
async fn only_an_administrator_is_let_in() {
    let directory = tempfile::tempdir().unwrap();
    let desk = Desk::on(open_in(directory.path()).await).await;
    let service = desk.store.add_token("daemons", false).await.unwrap();
    let row = json!({"name": "books", "command": "x"}).to_string();
    for (token, refused) in [("", 401), ("mcps_x", 401), (service.expose(), 403)] {
        // Not even that the body is no JSON.
        for body in [&row, "{"] {
            let (status, answer) = desk.with(token, "POST /admin/servers", body).await;
            assert_eq!((status, &answer["data"]), (refused, &Value::Null));
        }
    }
    assert!(desk.store.servers().await.unwrap().is_empty());
    // Nor is it part of what is called in process.
    let (status, _) = desk.ask(&format!("POST {PATH}"), json!({})).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn what_users_change_by_themselves_is_audited_as_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let mut row = named("books");
    row.insert("env_template".to_owned(), json!({"K": "${user.KEY}"}));
    let server = store.add_server(row).await.unwrap().id;
    let api = InProcess::new(store.clone());
    let question =
        json!({"user_id": "ann", "mcp_server_id": server, "credentials": {"KEY": "hush"}});
    for route in [SET, DELETE] {
        let (status, _) = api.ask(route, question.to_string()).await.unwrap();
        assert_eq!(status, 200);
    }
    let changes = store.audit(i64::MAX, 2).await.unwrap();
    let told = changes
        .iter()
        .map(|change| (&*change.actor, &*change.action, &*change.fields));
    let expected = [
        ("user ann", "credentials.delete", "[]"),
        ("user ann", "credentials.set", r#"["KEY"]"#),
    ];
    assert!(told.eq(expected), "{changes:?}");
}
