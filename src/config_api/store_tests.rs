use std::os::unix::fs::PermissionsExt;

use serde_json::{Map, Value, json};

use super::*;
use crate::config_api::{InProcess, Owner, Wanted};
use crate::model::caller::UserId;
use crate::model::secret::Credentials;

/// A store in `directory`, with a key of its own there.
pub(crate) async fn open_in(directory: &Path) -> Store {
    Store::open(&settings_in(directory)).await.unwrap()
}

pub(crate) fn settings_in(directory: &Path) -> Settings {
    let mut settings = Settings::default();
    settings.store.data_dir = directory.to_owned();
    settings
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("no object: {other}"),
    }
}

pub(crate) fn fields(pairs: &[(&str, &str)]) -> Credentials {
    let pairs = pairs.iter();
    Credentials(
        pairs
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
            .collect(),
    )
}

fn books() -> Map<String, Value> {
    object(json!({
        "name": "books", "command": "books-server", "args": ["--stdio"],
        "env_template": {"KEY": "${user.KEY}"}, "is_public": true,
        "credential_fields": [{"name": "KEY", "label": "Key"}],
    }))
}

fn ann() -> Owner {
    Owner::User(UserId::new("ann"))
}

async fn answer_for(store: &Store, user: Option<&str>) -> Value {
    let (status, body) = InProcess::new(store.clone()).post(user).await.unwrap();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &answer["code"]), (200, &json!(200)));
    answer["data"].clone()
}

impl Store {
    /// The owner's credentials for a server, as they were given.
    pub(in crate::config_api) async fn credentials(
        &self,
        owner: &Owner,
        server: &str,
    ) -> Result<Option<Credentials>, String> {
        let rows = self.rows_for(Some(owner.user())).await.unwrap();
        let held = rows
            .default_credentials
            .into_iter()
            .chain(rows.user_credentials);
        let mut held =
            held.filter(|row| row.mcp_server_id == server && row.user_id == owner.user());
        held.next().map_or(Ok(None), |row| self.read(&row))
    }

    /// Whose credentials there are, by server.
    pub(in crate::config_api) async fn owners(&self) -> Vec<(String, Owner)> {
        let page = self.holdings(&Wanted::default(), "").await.unwrap();
        let owner = |user: Option<String>| match user {
            Some(user) => Owner::User(UserId::new(&user)),
            None => Owner::Default,
        };
        let held = page.credentials.into_iter();
        held.map(|held| (held.server_id, owner(held.user_id)))
            .collect()
    }
}

#[tokio::test]
async fn answers_with_the_users_rows_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let server = store.add_server(books()).await.unwrap();
    store
        .put_credentials(&Owner::Default, &server.id, &fields(&[("KEY", "dflt")]))
        .await
        .unwrap();
    store
        .put_credentials(&ann(), &server.id, &fields(&[("KEY", "anns")]))
        .await
        .unwrap();
    let bob = Owner::User(UserId::new("bob"));
    store
        .put_credentials(&bob, &server.id, &fields(&[("KEY", "bobs")]))
        .await
        .unwrap();

    let data = answer_for(&store, Some("ann")).await;
    assert_eq!(data["servers"][0]["name"], "books");
    assert_eq!(data["servers"][0]["is_public"], true);
    assert_eq!(
        data["default_credentials"][0]["credentials"],
        json!({"KEY": "dflt"})
    );
    assert_eq!(data["user_credentials"].as_array().unwrap().len(), 1);
    assert_eq!(data["user_credentials"][0]["user_id"], "ann");
    assert_eq!(
        data["user_credentials"][0]["credentials"],
        json!({"KEY": "anns"})
    );
    assert_eq!(
        answer_for(&store, None).await["user_credentials"],
        json!([])
    );
}

#[tokio::test]
async fn a_row_moved_to_another_user_does_not_decrypt_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let server = store.add_server(books()).await.unwrap();
    store
        .put_credentials(&ann(), &server.id, &fields(&[("KEY", "anns")]))
        .await
        .unwrap();
    store
        .database
        .execute(sql("UPDATE mcp_user_credentials SET user_id = 'eve'"))
        .await
        .unwrap();
    let data = answer_for(&store, Some("eve")).await;
    let row = &data["user_credentials"][0];
    assert!(row.get("credentials").is_none(), "{row}");
    assert!(
        row["fault"]
            .as_str()
            .unwrap()
            .contains("copied from another"),
        "{row}"
    );
}

#[tokio::test]
async fn plain_json_rows_are_read_and_encrypted_when_next_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let server = store.add_server(books()).await.unwrap();
    let plain = sql(
        "INSERT INTO mcp_user_credentials (id, user_id, mcp_server_id, credentials) VALUES ('1', 'ann', ?, ?)",
    );
    let plain = plain.bind(&*server.id).bind(r#"{"KEY": "plain-value"}"#);
    store.database.execute(plain).await.unwrap();
    let read = store
        .credentials(&ann(), &server.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(read, fields(&[("KEY", "plain-value")]));

    store
        .put_credentials(&ann(), &server.id, &read)
        .await
        .unwrap();
    let stored = sql("SELECT credentials FROM mcp_user_credentials");
    let stored: Vec<(String,)> = store.database.fetch(stored).await.unwrap();
    let stored = &stored[0].0;
    assert!(stored.starts_with("enc1:"), "{stored}");
    assert_eq!(
        store.credentials(&ann(), &server.id).await.unwrap(),
        Some(read)
    );
}

#[tokio::test]
async fn a_second_name_that_folds_to_the_first_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let named = |name: &str| object(json!({"name": name, "command": "x"}));
    store.add_server(named("My Service")).await.unwrap();
    for other in ["My Service", "my-service", "MY_SERVICE"] {
        let refused = store.add_server(named(other)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidParams);
        assert!(refused.message.contains("\"My Service\""), "{refused}");
    }
    assert_eq!(store.server("my_service").await.unwrap().name, "My Service");
    assert_eq!(
        store.server("your_service").await.unwrap_err().code,
        ErrorCode::ServerNotFound
    );
}

#[tokio::test]
async fn a_definition_that_could_not_be_used_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    for (row, field) in [
        (json!({"name": "a", "transport_type": "http"}), "url"),
        (json!({"name": "a"}), "command"),
        (json!({"name": "a", "command": "x", "args": "{"}), "args"),
    ] {
        let refused = store.add_server(object(row)).await.unwrap_err();
        assert_eq!(
            (refused.code, &refused.details["field"]),
            (ErrorCode::ConfigInvalid, &json!(field))
        );
    }
    for name in ["", " a", "a\nb", &"n".repeat(65)] {
        let row = object(json!({"name": name, "command": "x"}));
        assert_eq!(
            store.add_server(row).await.unwrap_err().code,
            ErrorCode::InvalidParams
        );
    }
    assert!(store.servers().await.unwrap().is_empty());
}

#[tokio::test]
async fn hostile_names_are_stored_and_found_verbatim() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let hostile = "x'; DROP TABLE mcp_servers; --\" ? $1 %";
    let server = store
        .add_server(object(json!({"name": hostile, "command": hostile})))
        .await
        .unwrap();
    let owner = Owner::User(UserId::new(hostile));
    store
        .put_credentials(&owner, &server.id, &fields(&[(hostile, hostile)]))
        .await
        .unwrap();
    assert_eq!(
        store.server(hostile).await.unwrap().command.as_deref(),
        Some(hostile)
    );
    assert_eq!(
        store.credentials(&owner, &server.id).await.unwrap(),
        Some(fields(&[(hostile, hostile)]))
    );
    assert_eq!(store.owners().await, [(server.id, owner)]);
}

#[tokio::test]
async fn removing_a_server_removes_its_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let server = store.add_server(books()).await.unwrap();
    for owner in [Owner::Default, ann()] {
        store
            .put_credentials(&owner, &server.id, &fields(&[("KEY", "v")]))
            .await
            .unwrap();
    }
    assert!(
        store
            .remove_credentials(&Owner::Default, &server.id)
            .await
            .unwrap()
    );
    assert!(
        !store
            .remove_credentials(&Owner::Default, &server.id)
            .await
            .unwrap()
    );
    store.remove_server(&server.id).await.unwrap();
    assert_eq!(store.owners().await, []);
}

#[tokio::test]
async fn every_commit_of_any_process_moves_the_mark() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let other = open_in(directory.path()).await;
    let server = other.add_server(books()).await.unwrap();
    let first = store.mark().expect("the WAL index can be read");
    let version = store.data_version().await.unwrap();
    assert_eq!(store.mark(), Some(first), "reading moves nothing");
    other.enable_server(&server.id, false).await.unwrap();
    assert_ne!(store.mark(), Some(first));
    assert_ne!(store.data_version().await.unwrap(), version);

    let own = store.mark();
    store.enable_server(&server.id, true).await.unwrap();
    assert_ne!(store.mark(), own);
    // A checkpoint that empties the log, and the first commit after it.
    let checkpoint = sql("PRAGMA wal_checkpoint(TRUNCATE)");
    other.database.execute(checkpoint).await.unwrap();
    let emptied = store.mark();
    other.enable_server(&server.id, false).await.unwrap();
    assert_ne!(store.mark(), emptied);
    assert!(!store.servers().await.unwrap()[0].is_enabled);
}

/// As a later version would leave it.
pub(crate) const NEWER_VERSION: &str =
    "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
     VALUES (9999, 'later', TRUE, '', 0)";

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let Database::Sqlite { reader, writer } = &store.database else {
        unreachable!("a SQLite file");
    };
    sqlx::query(NEWER_VERSION).execute(writer).await.unwrap();
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
        .execute(writer)
        .await
        .unwrap();
    writer.close().await;
    reader.close().await;
    let file = directory.path().join("mcp-client.db");
    let before = std::fs::read(&file).unwrap();
    let refused = Store::open(&settings_in(directory.path()))
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code, ErrorCode::ConfigUnavailable);
    assert!(refused.message.contains("newer version"), "{refused}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn an_older_database_is_brought_up_to_date_with_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mcp-client.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let migrations = sqlx::migrate!("migrations/sqlite").migrations;
    let first = sqlx::migrate::Migrator {
        migrations: migrations[..1].to_vec().into(),
        ..sqlx::migrate::Migrator::DEFAULT
    };
    first.run(&pool).await.unwrap();
    sqlx::query("INSERT INTO mcp_servers (id, name, command) VALUES ('1', 'old', 'x')")
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;

    let old = open_in(directory.path()).await.server("old").await.unwrap();
    assert!(old.sandbox, "what was there before is started as before");
}

#[tokio::test]
async fn a_full_disk_refuses_changes_and_costs_nothing_that_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_in(directory.path()).await;
    let server = store.add_server(books()).await.unwrap();
    let own = fields(&[("KEY", "anns")]);
    store
        .put_credentials(&ann(), &server.id, &own)
        .await
        .unwrap();
    let limit = async |pages: i64| {
        let Database::Sqlite { writer, .. } = &store.database else {
            unreachable!("a SQLite file");
        };
        let text = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
        sqlx::query(text).execute(writer).await.unwrap();
    };
    let large = fields(&[("KEY", &"k".repeat(100_000))]);
    for owner in [ann(), Owner::Default] {
        // Not more pages than there are, on this connection: one that failed is replaced.
        limit(1).await;
        let refused = store.put_credentials(&owner, &server.id, &large).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Internal);
        assert!(refused.message.contains("full"), "{refused}");
        let read = store.credentials(&ann(), &server.id).await.unwrap();
        assert_eq!(read.as_ref(), Some(&own));
    }
    let sound = store
        .database
        .fetch::<(String,)>(sql("PRAGMA integrity_check"))
        .await;
    assert_eq!(sound.unwrap(), [("ok".to_owned(),)]);
    limit(1_000_000).await;
    store
        .put_credentials(&ann(), &server.id, &large)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_change_waits_for_another_process_that_is_changing() {
    let directory = tempfile::tempdir().unwrap();
    let (store, other) = (
        open_in(directory.path()).await,
        open_in(directory.path()).await,
    );
    let server = store.add_server(books()).await.unwrap();
    let held = other.database.change().await.unwrap();
    let own = fields(&[("KEY", "anns")]);
    let owner = ann();
    let mut put = Box::pin(store.put_credentials(&owner, &server.id, &own));
    for _ in 0..100 {
        let early = futures::poll!(&mut put);
        assert!(early.is_pending(), "{early:?}");
        assert_eq!(store.servers().await.unwrap().len(), 1, "reads go on");
    }
    held.commit().await.unwrap();
    put.await.unwrap();
}

#[tokio::test]
async fn many_may_open_a_new_store_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let opened = (0..8).map(|_| open_in(directory.path()));
    let stores = futures::future::join_all(opened).await;
    stores[0].add_server(books()).await.unwrap();
    for store in &stores {
        assert_eq!(store.servers().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn all_files_are_private_also_when_they_were_not() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("new/data");
    let store = open_in(&home).await;
    store.add_server(books()).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home), 0o700);
    for name in [
        "mcp-client.db",
        "mcp-client.db-wal",
        "mcp-client.db-shm",
        "store.key",
    ] {
        assert_eq!(mode(&home.join(name)), 0o600, "{name}");
    }
    let file = home.join("mcp-client.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    open_in(&home).await;
    assert_eq!(mode(&file), 0o600);
}

#[tokio::test]
async fn the_store_url_must_name_a_database() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings_in(directory.path());
    settings.store.url = Some(Secret::new(format!(
        "sqlite://{}/other.db",
        directory.path().display()
    )));
    Store::open(&settings).await.unwrap();
    assert!(directory.path().join("other.db").exists());
    for url in [
        "oracle://u:secret@h/db",
        "postgres://u:secret@h:port/db",
        "sqlite::memory:",
        "sqlite://",
    ] {
        settings.store.url = Some(Secret::new(url));
        let refused = Store::open(&settings).await.err().unwrap();
        assert!(!refused.message.contains("secret"), "{refused}");
    }
}
