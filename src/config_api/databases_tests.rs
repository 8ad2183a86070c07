//! One behaviour on SQLite, MySQL or MariaDB, and PostgreSQL.

use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::database::{Database, sql};
use super::store::tests::{NEWER_VERSION, fields, object};
use super::{Owner, Store};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::{Credentials, Secret};
use crate::model::settings::Settings;
use databases::{Kind, TestDatabase};

#[path = "../../tests/databases/mod.rs"]
pub(super) mod databases;

/// Names that databases fold, trim, expand, compare or quote, each in its own way.
const NAMES: &[&str] = &[
    "books",
    "Books",
    "BOOKS",
    "bo-oks",
    "bo_oks",
    "bo oks",
    "straße",
    "STRASSE",
    "ä",
    "Ä",
    "a\u{308}",
    "i",
    "I",
    "ı",
    "İ",
    "ﬁ",
    "fi",
    "名前",
    "🦀",
    "🦞",
    "'; --",
    "50%",
    "5_0",
    "a\\b",
    "?",
    "$1",
    "ΣΑΣ",
    "σας",
    "æ",
    "ae",
    "\u{200b}x",
    "x",
];

const USERS: &[&str] = &[
    "ann",
    "Ann",
    "ANN",
    "ann ",
    "ann  ",
    " ann",
    "ann\t",
    "ann\n",
    "änn",
    "a\u{308}nn",
    "an\0n",
    "🦀",
    "🦞",
    "0",
    "00",
    "null",
    "ann'--",
    "%",
    "an_",
    "ß",
    "ss",
];

fn settings(database: &TestDatabase) -> Settings {
    let mut settings = Settings::default();
    settings.store.url = Some(Secret::new(&*database.url));
    settings.store.key = Some(Secret::new("ab".repeat(32)));
    settings
}

pub(super) async fn open(database: &TestDatabase) -> Store {
    Store::open(&settings(database)).await.unwrap()
}

pub(super) fn named(name: &str) -> Map<String, Value> {
    object(json!({"name": name, "command": "x"}))
}

/// xorshift: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn said<T>(done: Result<T, Failure>, show: impl FnOnce(T) -> Value) -> Value {
    match done {
        Ok(value) => show(value),
        Err(failure) => json!({"failed": failure.code, "message": failure.message}),
    }
}

/// One step, and what came of it; ids are random, so servers are told by their names.
async fn step(store: &Store, dice: &mut Dice) -> Value {
    let user = dice.of(USERS);
    let name = dice.of(NAMES);
    let owner = match dice.below(4) {
        0 => Owner::Default,
        _ => Owner::User(UserId::new(user)),
    };
    let verb = dice.below(12);
    let server = match verb {
        0..=3 => String::new(),
        _ => match store.server(name).await {
            Ok(server) => server.id,
            Err(failure) => return json!([name, failure.code]),
        },
    };
    let done = match verb {
        0..=2 => said(store.add_server(named(name)).await, |row| json!(row.name)),
        3 => json!(store.owners().await.len()),
        4 => said(store.remove_server(&server).await, |()| json!("removed")),
        5 => said(
            store.enable_server(&server, dice.below(2) == 0).await,
            |()| json!("set"),
        ),
        6..=9 => {
            let value = format!("{name}/{user}/{}", dice.below(1000));
            let own = fields(&[("KEY", &value)]);
            let put = store.put_credentials(&owner, &server, &own).await;
            said(put, |()| json!(value))
        }
        _ => said(store.remove_credentials(&owner, &server).await, |was| {
            json!(was)
        }),
    };
    json!([verb, name, user, done])
}

/// All that the config API says of every user.
async fn everything(store: &Store) -> Value {
    let mut all = Map::new();
    for user in USERS {
        let (status, body) = super::InProcess::new(store.clone())
            .post(Some(user))
            .await
            .unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let servers = answer["data"]["servers"].as_array().unwrap();
        let name_of = |row: &Value| {
            let server = servers.iter().find(|it| it["id"] == row["mcp_server_id"]);
            server.unwrap()["name"].to_string()
        };
        let rows = |table: &str| {
            let rows = answer["data"][table].as_array().unwrap().iter();
            let mut rows: Vec<_> = rows
                .map(|row| {
                    json!([
                        name_of(row),
                        row["user_id"],
                        row["credentials"],
                        row["fault"]
                    ])
                    .to_string()
                })
                .collect();
            rows.sort();
            rows
        };
        let (defaults, own) = (rows("default_credentials"), rows("user_credentials"));
        let servers: Vec<_> = servers
            .iter()
            .map(|server| {
                let mut server = server.clone();
                for column in ["id", "created_at", "updated_at"] {
                    assert!(server[column].is_string(), "{server}");
                    server[column].take();
                }
                server
            })
            .collect();
        all.insert((*user).to_owned(), json!([status, servers, defaults, own]));
    }
    all.into()
}

#[tokio::test]
async fn a_random_sequence_gives_equal_results_everywhere() {
    let databases = TestDatabase::of_each_kind();
    for seed in 1..=3u64 {
        let mut told: Vec<(Kind, Vec<Value>)> = Vec::new();
        for database in &databases {
            let store = open(database).await;
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut steps = Vec::new();
            for _ in 0..150 {
                steps.push(step(&store, &mut dice).await);
            }
            steps.push(everything(&store).await);
            told.push((database.kind, steps));
        }
        let ((_, first), others) = told.split_first().unwrap();
        for (kind, steps) in others {
            for (at, (here, there)) in first.iter().zip(steps).enumerate() {
                assert_eq!(here, there, "seed {seed}, step {at}, on {kind:?}");
            }
        }
    }
}

#[tokio::test]
async fn users_who_differ_in_case_or_blanks_have_rows_of_their_own() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        let server = store.add_server(named("books")).await.unwrap().id;
        for user in USERS.iter().filter(|user| !user.contains('\0')) {
            let owner = Owner::User(UserId::new(user));
            let own = fields(&[("KEY", user)]);
            store.put_credentials(&owner, &server, &own).await.unwrap();
        }
        for user in USERS.iter().filter(|user| !user.contains('\0')) {
            let owner = Owner::User(UserId::new(user));
            let read = store.credentials(&owner, &server).await.unwrap();
            assert_eq!(read, Some(fields(&[("KEY", user)])), "{:?}", database.kind);
            let rows = store.rows_for(Some(user)).await.unwrap().user_credentials;
            assert_eq!(rows.len(), 1, "{user:?} on {:?}", database.kind);
            assert_eq!(rows[0].user_id, *user);
        }
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_alike() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        let fitting = object(json!({
            "name": "n".repeat(64), "command": "x", "display_name": "é".repeat(255),
            "description": "d".repeat(100_000), "args": ["a", "\u{10ffff}"],
        }));
        let added = store.add_server(fitting.clone()).await.unwrap();
        let stored = store.server(&added.name).await.unwrap();
        assert_eq!(stored.display_name, added.display_name);
        assert_eq!(
            (stored.description, stored.args),
            (added.description, added.args)
        );
        for (column, value) in [
            ("display_name", json!("é".repeat(256))),
            ("display_name", json!("a\0b")),
            ("description", json!("a\0b")),
            ("tool_meta", json!("m".repeat(2 * 1024 * 1024))),
        ] {
            let mut row = fitting.clone();
            row.insert("name".to_owned(), json!("other"));
            row.insert(column.to_owned(), value);
            let refused = store.add_server(row).await.unwrap_err();
            assert_eq!(
                (refused.code, &refused.details["field"]),
                (ErrorCode::ConfigInvalid, &json!(column)),
                "{refused}"
            );
        }
        let own = fields(&[("K", "v")]);
        let orphan = store.put_credentials(&Owner::Default, "gone", &own).await;
        assert_eq!(orphan.unwrap_err().code, ErrorCode::ServerNotFound);
        for user in ["a\0b", &"u".repeat(256)] {
            let owner = Owner::User(UserId::new(user));
            let refused = store.put_credentials(&owner, &added.id, &own).await;
            assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
            assert!(
                store
                    .rows_for(Some(user))
                    .await
                    .unwrap()
                    .user_credentials
                    .is_empty()
            );
        }
    }
}

#[tokio::test]
async fn of_names_that_fold_alike_one_is_added_however_many_try_at_once() {
    for database in TestDatabase::of_each_kind() {
        let opened = join_all((0..4).map(|_| open(&database))).await;
        let names = ["My Books", "my-books", "MY_BOOKS", "my books"];
        let adding = opened
            .iter()
            .zip(names)
            .map(|(store, name)| store.add_server(named(name)));
        let added = join_all(adding).await;
        assert_eq!(added.iter().filter(|it| it.is_ok()).count(), 1, "{added:?}");
        for refused in added.into_iter().filter_map(Result::err) {
            assert_eq!(refused.code, ErrorCode::InvalidParams, "{refused}");
        }
    }
}

#[tokio::test]
async fn many_write_the_same_rows_at_once() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        let server = store.add_server(named("books")).await.unwrap().id;
        let owners = ["ann", "bob", "cem"].map(|user| Owner::User(UserId::new(user)));
        let write = async |at: usize| {
            let owner = &owners[at % owners.len()];
            if at.is_multiple_of(5) {
                store.remove_credentials(owner, &server).await.unwrap();
            }
            let own = fields(&[("KEY", &format!("{at}"))]);
            store.put_credentials(owner, &server, &own).await.unwrap();
        };
        join_all((0..60).map(write)).await;
        assert_eq!(store.owners().await.len(), owners.len());
    }
}

async fn tables(database: &Database) -> Vec<(String,)> {
    let text = match database {
        Database::Sqlite { .. } => "SELECT name FROM sqlite_schema ORDER BY 1",
        _ => {
            "SELECT CAST(table_name AS CHAR(64)) FROM information_schema.tables
             WHERE table_schema NOT IN ('information_schema', 'pg_catalog', 'mysql') ORDER BY 1"
        }
    };
    database.fetch(sql(text)).await.unwrap()
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_untouched_everywhere() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        store.add_server(named("books")).await.unwrap();
        // As if the newer version had other tables.
        for gone in [
            "DROP TABLE mcp_tools_cache",
            "DELETE FROM _sqlx_migrations WHERE version > 1",
            NEWER_VERSION,
        ] {
            store.database.execute(sql(gone)).await.unwrap();
        }
        let before = tables(&store.database).await;
        let refused = Store::open(&settings(&database)).await.err().unwrap();
        assert_eq!(refused.code, ErrorCode::ConfigUnavailable);
        assert!(refused.message.contains("newer version"), "{refused}");
        assert_eq!(tables(&store.database).await, before);
    }
}

#[tokio::test]
async fn many_may_open_an_empty_database_at_once() {
    for database in TestDatabase::of_each_kind() {
        let stores = join_all((0..6).map(|_| open(&database))).await;
        stores[0].add_server(named("books")).await.unwrap();
        for store in &stores {
            assert_eq!(store.servers().await.unwrap().len(), 1);
        }
    }
}

#[tokio::test]
async fn connections_that_the_database_ended_are_replaced() {
    for database in TestDatabase::of_each_kind() {
        let store = open(&database).await;
        store.add_server(named("books")).await.unwrap();
        database.end_connections();
        assert_eq!(
            store.servers().await.unwrap().len(),
            1,
            "{:?}",
            database.kind
        );
    }
}

#[tokio::test]
async fn a_shared_database_needs_a_key_that_is_shared() {
    for kind in [Kind::MySql, Kind::Postgres] {
        let Some(database) = TestDatabase::new(kind) else {
            continue;
        };
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(&database);
        settings.store.key = None;
        settings.store.data_dir = directory.path().to_owned();
        let refused = Store::open(&settings).await.err().unwrap();
        assert!(
            refused.message.contains("MCP_CLIENT_STORE_KEY"),
            "{refused}"
        );
        assert!(!directory.path().join("store.key").exists());
    }
}

/// More rows than are encrypted in one go, by a machine that has both keys.
#[tokio::test]
async fn the_key_is_replaced_on_every_database() {
    for database in TestDatabase::of_each_kind() {
        let with = async |keys: String| {
            let mut settings = settings(&database);
            settings.store.key = Some(Secret::new(keys));
            Store::open(&settings).await.unwrap()
        };
        let (old, new) = ("ab".repeat(32), "cd".repeat(32));
        let store = with(old.clone()).await;
        let server = store.add_server(named("books")).await.unwrap().id;
        let owner = |number: usize| Owner::User(UserId::new(&format!("user-{number}")));
        for number in 0..120 {
            let field = ("KEY".to_owned(), Secret::new(format!("key-{number}")));
            let own = Credentials([field].into());
            let owner = owner(number);
            let put = store.put_credentials(&owner, &server, &own);
            put.await.unwrap();
        }
        let both = with(format!("{new},{old}")).await;
        let rotation = both.rotate_keys().await.unwrap();
        assert_eq!((rotation.rewritten, rotation.is_done), (120, false));
        assert_eq!(both.rotate_keys().await.unwrap().rewritten, 0);
        let alone = with(new).await;
        for number in [0, 99, 100, 119] {
            let own = alone.credentials(&owner(number), &server).await;
            let own = own.unwrap().unwrap();
            assert_eq!(own.get("KEY").unwrap().expose(), format!("key-{number}"));
        }
    }
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_named_without_its_password() {
    for scheme in ["mysql", "mariadb", "postgres"] {
        let mut settings = Settings::default();
        settings.store.url = Some(Secret::new(format!(
            "{scheme}://ann:hush@127.0.0.1:1/fleet"
        )));
        settings.store.key = Some(Secret::new("ab".repeat(32)));
        let refused = Store::open(&settings).await.err().unwrap();
        assert_eq!(refused.code, ErrorCode::ConfigUnavailable);
        assert!(refused.message.contains("127.0.0.1:1/fleet"), "{refused}");
        assert!(!refused.message.contains("hush"), "{refused}");
    }
}
