//! The four tables in a SQLite file. Everything that reads or writes credentials names whose.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions};

use super::files;
use super::vault::{Place, Vault};
use super::wal::{Mark, WalIndex};
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::Secret;
use crate::model::settings::{Settings, StoreSettings};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// An open store. Cloning shares it.
#[derive(Clone)]
pub struct Store {
    /// One connection for life: while it is open the WAL index stays, and it sees the commits of
    /// all others in `PRAGMA data_version`. It never writes.
    pub(super) reader: SqlitePool,
    /// One connection, opened by the first change.
    pub(super) writer: SqlitePool,
    pub(super) vault: Arc<Vault>,
    index: Arc<WalIndex>,
}

/// A row of `mcp_servers`, in the form of the config API: JSON columns are JSON in a string.
#[derive(Clone, Debug, Default, Serialize, sqlx::FromRow)]
pub struct ServerRow {
    pub id: String,
    pub name: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub transport_type: String,
    pub command: Option<String>,
    pub args: Option<String>,
    pub env_template: Option<String>,
    pub url: Option<String>,
    pub headers: Option<String>,
    pub is_public: bool,
    pub is_enabled: bool,
    pub requires_credentials: bool,
    pub credential_fields: Option<String>,
    pub isolation: Option<String>,
    pub sandbox: bool,
    pub tool_meta: Option<String>,
    pub tool_display: Option<String>,
    pub created_at: Option<String>,
    pub updated_at: Option<String>,
}

/// A row of `mcp_credentials` or `mcp_user_credentials`, still encrypted.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SealedRow {
    pub id: String,
    pub mcp_server_id: String,
    /// "" in a row of `mcp_credentials`.
    pub user_id: String,
    pub credentials: String,
    pub is_enabled: bool,
}

/// What the tables hold for one user, all of it from one moment.
pub struct Rows {
    pub servers: Vec<ServerRow>,
    pub default_credentials: Vec<SealedRow>,
    pub user_credentials: Vec<SealedRow>,
}

impl Store {
    /// Opens the store that the settings name, and makes it where there is none.
    ///
    /// # Errors
    /// `config_unavailable`: the files are not private and cannot be made so, no key opens it, a
    /// newer version has written it, ... The message says what to do.
    pub async fn open(settings: &Settings) -> Result<Self, Failure> {
        let path = path(&settings.store).map_err(unavailable)?;
        let vault = prepare(&path, &settings.store).map_err(unavailable)?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true);
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .acquire_timeout(2 * BUSY_TIMEOUT);
        let store = Self {
            reader: pool.clone().connect_lazy_with(options.clone()),
            writer: pool.connect_lazy_with(options),
            vault: Arc::new(vault),
            index: Arc::new(WalIndex::new(&path)),
        };
        let migrated = match store.reader.acquire().await {
            Ok(mut connection) => migrate(&mut connection).await,
            Err(error) => Err(error.to_string()),
        };
        migrated.map_err(|reason| {
            unavailable(format!(
                "the store {} cannot be used: {reason}",
                path.display()
            ))
        })?;
        Ok(store)
    }

    /// Everything the config API says of `user`, who may be nobody.
    pub async fn rows_for(&self, user: Option<&str>) -> Result<Rows, Failure> {
        self.read_rows(user)
            .await
            .map_err(|error| unavailable(format!("the store cannot be read: {error}")))
    }

    async fn read_rows(&self, user: Option<&str>) -> sqlx::Result<Rows> {
        let mut moment = self.reader.begin().await?;
        let servers = sqlx::query_as("SELECT * FROM mcp_servers ORDER BY name")
            .fetch_all(&mut *moment)
            .await?;
        let default_credentials = sqlx::query_as("SELECT *, '' AS user_id FROM mcp_credentials")
            .fetch_all(&mut *moment)
            .await?;
        let user_credentials = match user {
            Some(user) => {
                sqlx::query_as("SELECT * FROM mcp_user_credentials WHERE user_id = ?")
                    .bind(user)
                    .fetch_all(&mut *moment)
                    .await?
            }
            None => Vec::new(),
        };
        moment.commit().await?;
        Ok(Rows {
            servers,
            default_credentials,
            user_credentials,
        })
    }

    /// Decrypts the credentials of a row.
    ///
    /// # Errors
    /// Reads after "credentials ".
    pub fn unseal(&self, row: &SealedRow) -> Result<Secret, String> {
        self.vault.open(row.place(), &row.credentials)
    }

    /// The state of the store now: as long as it is the same, nothing was committed by anybody.
    /// `None`: it cannot be told this way; see [`Store::data_version`].
    pub fn mark(&self) -> Option<Mark> {
        self.index.mark()
    }

    /// A number that changes with every commit; slower than [`Store::mark`].
    pub async fn data_version(&self) -> Result<i64, Failure> {
        sqlx::query_scalar("PRAGMA data_version")
            .fetch_one(&self.reader)
            .await
            .map_err(|error| unavailable(format!("the store cannot be read: {error}")))
    }
}

impl SealedRow {
    fn place(&self) -> Place<'_> {
        Place {
            table: if self.user_id.is_empty() {
                "mcp_credentials"
            } else {
                "mcp_user_credentials"
            },
            server: &self.mcp_server_id,
            user: &self.user_id,
        }
    }
}

/// Makes the files private, before SQLite opens them, and reads the keys.
fn prepare(path: &Path, settings: &StoreSettings) -> Result<Vault, String> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    files::private_dir(directory.unwrap_or(Path::new(".")))?;
    files::private_file(path)?;
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        files::tighten_if_there(Path::new(&name))?;
    }
    if let Some(keys) = &settings.key {
        return Vault::new(keys)
            .map_err(|reason| format!("the key in MCP_CLIENT_STORE_KEY {reason}"));
    }
    files::private_dir(&settings.data_dir)?;
    let file = settings.data_dir.join("store.key");
    let keys = files::key_file(&file)?;
    Vault::new(&keys).map_err(|reason| format!("the key in {} {reason}", file.display()))
}

/// Where the SQLite file is.
pub(super) fn path(settings: &StoreSettings) -> Result<PathBuf, String> {
    let Some(url) = &settings.url else {
        return Ok(settings.data_dir.join("mcp-client.db"));
    };
    let url = url.expose();
    let Some(rest) = url.strip_prefix("sqlite:") else {
        let scheme = url.split(':').next().unwrap_or_default();
        return Err(format!(
            "store.url begins with {scheme:?}; the embedded store is a SQLite file: sqlite:///path/to/file.db"
        ));
    };
    let path = rest
        .strip_prefix("//")
        .unwrap_or(rest)
        .split('?')
        .next()
        .unwrap_or_default();
    if path.is_empty() || path.contains(":memory:") {
        return Err("store.url names no file: write sqlite:///path/to/file.db".to_owned());
    }
    Ok(path.into())
}

/// Brings the schema up to date. A database that a newer version has written is left untouched.
async fn migrate(connection: &mut SqliteConnection) -> Result<(), String> {
    let ours = MIGRATIONS.iter().map(|migration| migration.version).max();
    // Another process may be doing the same: then the second try finds the work done.
    let mut failed = String::new();
    for _ in 0..3 {
        let there = schema_version(connection)
            .await
            .map_err(|error| error.to_string())?;
        if there > ours {
            return Err(
                "a newer version of this program has written it: use that version".to_owned(),
            );
        }
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut *connection)
            .await
            .map_err(|error| error.to_string())?;
        if there == ours {
            return Ok(());
        }
        match MIGRATIONS.run(&mut *connection).await {
            Ok(()) => return Ok(()),
            Err(error) => failed = error.to_string(),
        }
    }
    Err(failed)
}

/// The newest migration that was applied; `None` for an empty database.
pub(super) async fn schema_version(connection: &mut SqliteConnection) -> sqlx::Result<Option<i64>> {
    let known: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'",
    )
    .fetch_one(&mut *connection)
    .await?;
    if known == 0 {
        return Ok(None);
    }
    sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations WHERE success")
        .fetch_one(connection)
        .await
}

fn unavailable(message: String) -> Failure {
    Failure::new(ErrorCode::ConfigUnavailable, message)
}

#[cfg(test)]
#[path = "store_tests.rs"]
pub(crate) mod tests;
