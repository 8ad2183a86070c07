//! The four tables. Everything that reads or writes credentials names whose.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::database::{Database, Statement, sql};
use super::files;
use super::keyring::Keyring;
use super::location::Location;
use super::schema;
use super::vault::Place;
use super::wal::{Mark, WalIndex};
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::Secret;
use crate::model::settings::Settings;

/// The most connections to a database elsewhere.
const CONNECTIONS: u32 = 10;

/// The longest id of a user, in characters.
pub(super) const LONGEST_USER: usize = 255;

/// Times are cut to text alike by every database.
pub(super) const SERVERS: &str =
    "SELECT id, name, display_name, description, transport_type, command, args,
     env_template, url, headers, is_public, is_enabled, requires_credentials, credential_fields,
     isolation, sandbox, tool_meta, tool_display, CAST(created_at AS CHAR(19)) AS created_at,
     CAST(updated_at AS CHAR(19)) AS updated_at FROM mcp_servers ORDER BY name";

/// An open store. Cloning shares it.
#[derive(Clone)]
pub struct Store {
    pub(super) database: Database,
    pub(super) keys: Arc<Keyring>,
    /// Who changes something, as the audit names them.
    pub(super) actor: Arc<str>,
    /// Of a SQLite file.
    index: Option<Arc<WalIndex>>,
}

/// A row of `mcp_servers`, in the form of the config API: JSON columns are JSON in a string.
#[derive(Clone, Debug, Default, Serialize, Deserialize, sqlx::FromRow)]
#[serde(default)]
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

/// The columns that hold JSON.
const JSON_COLUMNS: [&str; 6] = [
    "args",
    "env_template",
    "headers",
    "credential_fields",
    "tool_meta",
    "tool_display",
];

impl ServerRow {
    /// Every column by its name.
    pub(super) fn members(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(members)) => members,
            _ => Map::new(),
        }
    }

    /// Every column by its name, those that hold JSON unpacked.
    pub fn unpacked(&self) -> Map<String, Value> {
        let mut columns = self.members();
        for column in JSON_COLUMNS {
            let text = columns.get(column).and_then(Value::as_str);
            if let Some(Ok(value)) = text.map(serde_json::from_str) {
                columns.insert(column.to_owned(), value);
            }
        }
        columns
    }

    /// The row of which this is what [`ServerRow::unpacked`] gives.
    pub(super) fn packed(mut unpacked: Value) -> Option<Self> {
        for column in JSON_COLUMNS {
            let value = unpacked.get_mut(column)?;
            if !value.is_null() && !value.is_string() {
                *value = value.to_string().into();
            }
        }
        serde_json::from_value(unpacked).ok()
    }
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
#[derive(Debug)]
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
        let location = Location::of(&settings.store).map_err(unavailable)?;
        let index = match &location {
            Location::File(path) => {
                prepare(path).map_err(unavailable)?;
                Some(Arc::new(WalIndex::new(path)))
            }
            _ => None,
        };
        let keys = Keyring::open(&settings.store, index.is_some()).await;
        let keys = Arc::new(keys.map_err(unavailable)?);
        let shown = location.to_string();
        let database = location.open(CONNECTIONS);
        schema::migrate(&database)
            .await
            .map_err(|reason| unavailable(format!("the store {shown} cannot be used: {reason}")))?;
        Ok(Self {
            database,
            keys,
            actor: format!("uid {}", rustix::process::geteuid().as_raw()).into(),
            index,
        })
    }

    /// Everything the config API says of `user`, who may be nobody.
    pub async fn rows_for(&self, user: Option<&str>) -> Result<Rows, Failure> {
        let rows = self.read_rows(user).await;
        let rows =
            rows.map_err(|error| unavailable(format!("the store cannot be read: {error}")))?;
        let sealed = rows
            .default_credentials
            .iter()
            .chain(&rows.user_credentials);
        if !self
            .keys
            .knows_all(sealed.map(|row| row.credentials.as_str()))
        {
            self.keys.look_again().await;
        }
        Ok(rows)
    }

    async fn read_rows(&self, user: Option<&str>) -> sqlx::Result<Rows> {
        let mut moment = self.database.moment().await?;
        let servers = moment.fetch(sql(SERVERS)).await?;
        let default_credentials = moment.fetch(default_credentials()).await?;
        let user_credentials = match user.filter(|user| is_storable(user)) {
            Some(user) => moment.fetch(user_credentials(user)).await?,
            None => Vec::new(),
        };
        moment.commit().await?;
        Ok(Rows {
            servers,
            default_credentials,
            user_credentials,
        })
    }

    /// Whether the database answers, and is one that this version reads.
    pub(super) async fn is_reachable(&self) -> Result<(), Failure> {
        match schema::version(&self.database).await {
            Ok(version) if version == Some(schema::newest()) => Ok(()),
            Ok(_) => Err(unavailable(
                "the store is no longer of this version".to_owned(),
            )),
            Err(error) => Err(unavailable(format!("the store cannot be read: {error}"))),
        }
    }

    /// A tag that is another one whenever the answer for `user` is: made of the rows as they are
    /// stored, so it speaks of no secret and costs no decryption.
    pub(super) fn etag(&self, user: Option<&str>, rows: &Rows) -> String {
        let mut digest = Sha256::new();
        let mut add = |part: &str| {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        };
        add(env!("CARGO_PKG_VERSION"));
        add(&format!("{:?}", self.keys.vault()));
        add(&format!("{user:?} {:?}", rows));
        format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest.finalize()[..18]))
    }

    /// Decrypts the credentials of a row.
    ///
    /// # Errors
    /// Reads after "credentials ".
    pub fn unseal(&self, row: &SealedRow) -> Result<Secret, String> {
        self.keys.vault().open(row.place(), &row.credentials)
    }

    /// Whether the store is this machine's alone, so that [`Store::mark`] or
    /// [`Store::data_version`] tell of every change.
    pub fn is_local(&self) -> bool {
        self.index.is_some()
    }

    /// The state of the store now: as long as it is the same, nothing was committed by anybody.
    /// `None`: it cannot be told this way; see [`Store::data_version`].
    pub fn mark(&self) -> Option<Mark> {
        self.index.as_ref()?.mark()
    }

    /// A number that changes with every commit to a SQLite file; slower than [`Store::mark`].
    pub async fn data_version(&self) -> Result<i64, Failure> {
        let version = self
            .database
            .fetch::<(i64,)>(sql("PRAGMA data_version"))
            .await;
        version
            .ok()
            .and_then(|rows| rows.first().copied())
            .map(|(version,)| version)
            .ok_or_else(|| unavailable("the store cannot be read".to_owned()))
    }
}

/// Whether there can be rows of this user at all: the same in every database.
pub(super) fn is_storable(user: &str) -> bool {
    !user.is_empty() && !user.contains('\0') && user.chars().count() <= LONGEST_USER
}

fn default_credentials() -> Statement {
    sql(
        "SELECT id, mcp_server_id, '' AS user_id, credentials, is_enabled FROM mcp_credentials
         ORDER BY mcp_server_id",
    )
}

fn user_credentials(user: &str) -> Statement {
    sql(
        "SELECT id, mcp_server_id, user_id, credentials, is_enabled FROM mcp_user_credentials
         WHERE user_id = ? ORDER BY mcp_server_id",
    )
    .bind(user)
}

impl SealedRow {
    pub(super) fn place(&self) -> Place<'_> {
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

/// Makes the files private, before SQLite opens them.
fn prepare(path: &Path) -> Result<(), String> {
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
    Ok(())
}

fn unavailable(message: String) -> Failure {
    Failure::new(ErrorCode::ConfigUnavailable, message)
}

#[cfg(test)]
#[path = "store_tests.rs"]
pub(crate) mod tests;
