//! What administers servers and credentials: the store itself, or a config server's admin API over it.

mod client;
pub(super) mod routes;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::database::sql;
use super::edit::{Owner, failed, invalid};
use super::servers::find;
use super::store::{SealedRow, ServerRow, Store};
use crate::model::error::Failure;
use crate::model::secret::Credentials;

pub use client::Remote;

/// How many rows of a long list come at once.
const PAGE: i64 = 500;

/// Servers are named by their ids; [`Admin::server`] finds them by name.
pub trait Admin {
    /// All servers, by name.
    async fn servers(&self) -> Result<Vec<ServerRow>, Failure>;

    /// See [`Store::add_server`].
    async fn add_server(&self, row: Map<String, Value>) -> Result<ServerRow, Failure>;

    /// See [`Store::enable_server`].
    async fn enable_server(&self, id: &str, enabled: bool) -> Result<(), Failure>;

    /// See [`Store::remove_server`].
    async fn remove_server(&self, id: &str) -> Result<(), Failure>;

    /// The credentials there are, by server and user, from after `cursor` on ("": from the first).
    async fn holdings(&self, wanted: &Wanted, cursor: &str) -> Result<Page, Failure>;

    /// See [`Store::put_credentials`].
    async fn put_credentials(
        &self,
        owner: &Owner,
        server: &str,
        credentials: &Credentials,
    ) -> Result<(), Failure>;

    /// See [`Store::enable_credentials`].
    async fn enable_credentials(
        &self,
        owner: &Owner,
        server: &str,
        enabled: bool,
    ) -> Result<bool, Failure>;

    /// See [`Store::remove_credentials`].
    async fn remove_credentials(&self, owner: &Owner, server: &str) -> Result<bool, Failure>;

    /// The server of this name: exactly, else folded.
    ///
    /// # Errors
    /// `server_not_found`.
    async fn server(&self, name: &str) -> Result<ServerRow, Failure> {
        find(self.servers().await?, name)
    }
}

impl Admin for Store {
    async fn servers(&self) -> Result<Vec<ServerRow>, Failure> {
        Self::servers(self).await
    }

    async fn add_server(&self, row: Map<String, Value>) -> Result<ServerRow, Failure> {
        Self::add_server(self, row).await
    }

    async fn enable_server(&self, id: &str, enabled: bool) -> Result<(), Failure> {
        Self::enable_server(self, id, enabled).await
    }

    async fn remove_server(&self, id: &str) -> Result<(), Failure> {
        Self::remove_server(self, id).await
    }

    async fn holdings(&self, wanted: &Wanted, cursor: &str) -> Result<Page, Failure> {
        Self::holdings(self, wanted, cursor).await
    }

    async fn put_credentials(
        &self,
        owner: &Owner,
        server: &str,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        Self::put_credentials(self, owner, server, credentials).await
    }

    async fn enable_credentials(
        &self,
        owner: &Owner,
        server: &str,
        enabled: bool,
    ) -> Result<bool, Failure> {
        Self::enable_credentials(self, owner, server, enabled).await
    }

    async fn remove_credentials(&self, owner: &Owner, server: &str) -> Result<bool, Failure> {
        Self::remove_credentials(self, owner, server).await
    }
}

/// Of which server and of which user; empty: of all.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub server: String,
    pub user: String,
}

/// That somebody has credentials for a server; never what they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    pub server_id: String,
    /// `None`: the system's default.
    pub user_id: Option<String>,
    pub is_enabled: bool,
    /// UTC.
    pub updated_at: Option<String>,
    /// The names of the fields.
    pub fields: Vec<String>,
    /// Why the fields cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A part of a list.
#[derive(Debug, Serialize, Deserialize)]
pub struct Page {
    pub credentials: Vec<Holding>,
    /// The cursor with which the list goes on.
    pub next: Option<String>,
}

#[derive(sqlx::FromRow)]
struct HeldRow {
    #[sqlx(flatten)]
    row: SealedRow,
    updated_at: Option<String>,
}

impl Store {
    /// See [`Admin::holdings`].
    pub async fn holdings(&self, wanted: &Wanted, cursor: &str) -> Result<Page, Failure> {
        let (server, user) = match cursor {
            "" => ("", ""),
            cursor => cursor
                .split_once('/')
                .ok_or_else(|| invalid("`after` is no cursor of this list".to_owned()))?,
        };
        let query = sql(
            "SELECT id, mcp_server_id, user_id, credentials, is_enabled, updated_at FROM (
               SELECT id, mcp_server_id, '' AS user_id, credentials, is_enabled,
                 CAST(updated_at AS CHAR(19)) AS updated_at FROM mcp_credentials
               UNION ALL SELECT id, mcp_server_id, user_id, credentials, is_enabled,
                 CAST(updated_at AS CHAR(19)) AS updated_at FROM mcp_user_credentials) AS held
             WHERE (mcp_server_id > ? OR (mcp_server_id = ? AND user_id > ?))
               AND (? = '' OR mcp_server_id = ?) AND (? = '' OR user_id = ?)
             ORDER BY mcp_server_id, user_id LIMIT ?",
        );
        let values = [server, server, user, &wanted.server, &wanted.server];
        let values = values.into_iter().chain([&*wanted.user, &*wanted.user]);
        if values.clone().any(|value| value.contains('\0')) {
            return Ok(Page {
                credentials: Vec::new(),
                next: None,
            });
        }
        let query = values
            .fold(query, |query, value| query.bind(value))
            .bind(PAGE);
        let rows: Vec<HeldRow> = self.database.fetch(query).await.map_err(failed)?;
        let mut sealed = rows.iter().map(|held| held.row.credentials.as_str());
        if !self.keys.knows_all(&mut sealed) {
            self.keys.look_again().await;
        }
        let is_full = i64::try_from(rows.len()) == Ok(PAGE);
        let last = rows.last().filter(|_| is_full);
        Ok(Page {
            next: last.map(|held| format!("{}/{}", held.row.mcp_server_id, held.row.user_id)),
            credentials: rows.into_iter().map(|held| self.shown(held)).collect(),
        })
    }

    fn shown(&self, held: HeldRow) -> Holding {
        let (fields, fault) = match self.read(&held.row) {
            Ok(read) => (read.unwrap_or_default().0.into_keys().collect(), None),
            Err(reason) => (Vec::new(), Some(format!("the stored credentials {reason}"))),
        };
        let row = held.row;
        Holding {
            server_id: row.mcp_server_id,
            user_id: Some(row.user_id).filter(|user| !user.is_empty()),
            is_enabled: row.is_enabled,
            updated_at: held.updated_at,
            fields,
            fault,
        }
    }
}

#[cfg(test)]
mod tests;
