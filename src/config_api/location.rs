//! Where the store is: a SQLite file, or a database that several machines share.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::Connection;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::database::Database;
use crate::model::settings::StoreSettings;

/// How long a statement on a SQLite file waits for another process.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection to a database elsewhere is waited for: less than a daemon waits for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

const FORMS: &str = "sqlite:///path/to/file.db, postgres://user:password@host/database or \
                     mysql://user:password@host/database";

/// What `store.url` names.
pub(super) enum Location {
    File(PathBuf),
    MySql(Box<MySqlConnectOptions>),
    Postgres(Box<PgConnectOptions>),
}

impl Location {
    /// # Errors
    /// The setting names no database. Never shows the url, which may hold a password.
    pub(super) fn of(settings: &StoreSettings) -> Result<Self, String> {
        let Some(url) = &settings.url else {
            return Ok(Self::File(settings.data_dir.join("mcp-client.db")));
        };
        let url = url.expose();
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        // The drivers' own errors may quote the url.
        let unreadable = |_| format!("store.url cannot be read: write {FORMS}");
        match scheme {
            "sqlite" => file(rest).map(Self::File),
            "mysql" | "mariadb" => format!("mysql:{rest}")
                .parse()
                .map(|options| Self::MySql(Box::new(options)))
                .map_err(unreadable),
            "postgres" | "postgresql" => url
                .parse()
                .map(|options| Self::Postgres(Box::new(options)))
                .map_err(unreadable),
            _ => Err(format!("store.url names no database: write {FORMS}")),
        }
    }

    /// Opens it; nothing is connected before the first statement.
    pub(super) fn open(self, connections: u32) -> Database {
        match self {
            Self::File(path) => {
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .busy_timeout(BUSY_TIMEOUT)
                    // Changes are rare: each goes on to the file itself, which can then do without its log.
                    .pragma("wal_autocheckpoint", "1")
                    .foreign_keys(true);
                let pool = SqlitePoolOptions::new()
                    .max_connections(1)
                    .idle_timeout(None)
                    .max_lifetime(None)
                    .test_before_acquire(false)
                    // A full disk makes SQLite end a transaction by itself, of which sqlx knows
                    // nothing: such a connection begins no other one.
                    .before_acquire(|connection, _| {
                        let is_stuck = connection.is_in_transaction();
                        Box::pin(async move { Ok(!is_stuck) })
                    })
                    .acquire_timeout(2 * BUSY_TIMEOUT);
                Database::Sqlite {
                    reader: pool.clone().connect_lazy_with(options.clone()),
                    writer: pool.connect_lazy_with(options),
                }
            }
            Self::MySql(options) => Database::MySql(
                MySqlPoolOptions::new()
                    .max_connections(connections)
                    .acquire_timeout(CONNECT_TIMEOUT)
                    .after_connect(|connection, _| Box::pin(be_strict(connection)))
                    .connect_lazy_with(*options),
            ),
            Self::Postgres(options) => Database::Postgres(
                PgPoolOptions::new()
                    .max_connections(connections)
                    .acquire_timeout(CONNECT_TIMEOUT)
                    .connect_lazy_with(options.application_name("mcp-client")),
            ),
        }
    }
}

/// A value that does not fit is an error, whatever the server's default: never cut off.
async fn be_strict(connection: &mut sqlx::MySqlConnection) -> sqlx::Result<()> {
    sqlx::query("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
        .execute(connection)
        .await?;
    Ok(())
}

fn file(rest: &str) -> Result<PathBuf, String> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let path = path.split('?').next().unwrap_or_default();
    if path.is_empty() || path.contains(":memory:") {
        return Err("store.url names no file: write sqlite:///path/to/file.db".to_owned());
    }
    Ok(path.into())
}

/// For messages: without user and password.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::MySql(options) => write!(
                f,
                "mysql://{}:{}/{}",
                options.get_host(),
                options.get_port(),
                options.get_database().unwrap_or_default()
            ),
            Self::Postgres(options) => write!(
                f,
                "postgres://{}:{}/{}",
                options.get_host(),
                options.get_port(),
                options.get_database().unwrap_or_default()
            ),
        }
    }
}
