//! Credentials in the store, by owner.

use std::collections::BTreeMap;

use chacha20poly1305::aead::Generate;
use serde_json::json;

use super::audit::{Action, Event};
use super::database::{Statement, sql};
use super::servers::{LONGEST_TEXT, name_of};
use super::store::{LONGEST_USER, SealedRow, Store, is_storable};
use super::vault::Place;
use crate::model::caller::UserId;
use crate::model::definition::ConfigFault;
use crate::model::error::{ErrorCode, Failure};
use crate::model::row;
use crate::model::secret::{Credentials, Secret};

/// Whose credentials: nothing is read or written without saying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The system's defaults.
    Default,
    User(UserId),
}

impl Owner {
    /// "" for the system's defaults.
    pub fn user(&self) -> &str {
        match self {
            Self::Default => "",
            Self::User(user) => user.as_str(),
        }
    }
}

impl Store {
    /// The credentials of a row, in force or not.
    ///
    /// # Errors
    /// Reads after "the stored credentials ".
    pub(super) fn read(&self, row: &SealedRow) -> Result<Option<Credentials>, String> {
        let plain = self.unseal(row)?;
        let column = json!({"mcp_server_id": row.mcp_server_id, "credentials": plain.expose()});
        match row::credentials(column).map(|row| row.credentials) {
            Some(read) => read.map_err(|fault| fault.reason),
            None => Ok(None),
        }
    }

    /// Encrypts and stores the owner's credentials for a server, in place of those before, and
    /// switches them on.
    pub async fn put_credentials(
        &self,
        owner: &Owner,
        server: &str,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        if let Owner::User(user) = owner
            && !is_storable(user.as_str())
        {
            return Err(invalid(format!(
                "{:?} is no id of a user: 1 to {LONGEST_USER} characters, none of them NUL",
                user.as_str()
            )));
        }
        let place = Place {
            table: match owner {
                Owner::Default => "mcp_credentials",
                Owner::User(_) => "mcp_user_credentials",
            },
            server,
            user: owner.user(),
        };
        let plain = json_text(credentials)?;
        if plain.expose().len() > LONGEST_TEXT {
            return Err(invalid(format!(
                "the credentials take more than {LONGEST_TEXT} bytes"
            )));
        }
        self.forget_tools(server, owner.user()).await?;
        // A key that is being replaced must write nothing any more: it is asked for in the turn.
        let mut turn = self.database.change().await.map_err(failed)?;
        let vault = self.keys.to_write().await?;
        let sealed = vault.seal(place, &plain).map_err(|reason| {
            Failure::new(
                ErrorCode::InvalidParams,
                format!("the credentials {reason}"),
            )
        })?;
        let change = match owner {
            Owner::Default => sql(
                "INSERT INTO mcp_credentials (id, mcp_server_id, credentials) VALUES (?, ?, ?)
                 ON CONFLICT (mcp_server_id) DO UPDATE SET credentials = excluded.credentials,
                 is_enabled = TRUE, updated_at = CURRENT_TIMESTAMP",
            ),
            Owner::User(_) => sql(
                "INSERT INTO mcp_user_credentials (id, mcp_server_id, credentials, user_id)
                 VALUES (?, ?, ?, ?)
                 ON CONFLICT (user_id, mcp_server_id) DO UPDATE SET credentials = excluded.credentials,
                 is_enabled = TRUE, updated_at = CURRENT_TIMESTAMP",
            ),
        };
        let change = change.bind(new_id()).bind(server).bind(sealed);
        let change = match owner {
            Owner::Default => change,
            Owner::User(user) => change.bind(user.as_str()),
        };
        let name = name_of(&mut turn, server).await?;
        turn.execute(change).await.map_err(failed)?;
        let mut event = Event::new(Action::SetCredentials, server, &name);
        event.user = owner.user();
        event.fields = credentials.0.keys().cloned().collect();
        self.note(&mut turn, event).await.map_err(failed)?;
        turn.commit().await.map_err(failed)
    }

    /// Removes the owner's credentials for a server; `false`: there were none.
    pub async fn remove_credentials(&self, owner: &Owner, server: &str) -> Result<bool, Failure> {
        let removal = match owner {
            Owner::Default => {
                sql("DELETE FROM mcp_credentials WHERE mcp_server_id = ?").bind(server)
            }
            Owner::User(user) => {
                sql("DELETE FROM mcp_user_credentials WHERE mcp_server_id = ? AND user_id = ?")
                    .bind(server)
                    .bind(user.as_str())
            }
        };
        self.change_held(Action::DeleteCredentials, owner, server, removal)
            .await
    }

    /// Switches the owner's credentials for a server on or off; `false`: there are none.
    pub async fn enable_credentials(
        &self,
        owner: &Owner,
        server: &str,
        enabled: bool,
    ) -> Result<bool, Failure> {
        let update = match owner {
            Owner::Default => sql(
                "UPDATE mcp_credentials SET is_enabled = ?, updated_at = CURRENT_TIMESTAMP
                 WHERE mcp_server_id = ?",
            )
            .bind(enabled)
            .bind(server),
            Owner::User(user) => sql(
                "UPDATE mcp_user_credentials SET is_enabled = ?, updated_at = CURRENT_TIMESTAMP
                 WHERE mcp_server_id = ? AND user_id = ?",
            )
            .bind(enabled)
            .bind(server)
            .bind(user.as_str()),
        };
        let action = match enabled {
            true => Action::EnableCredentials,
            false => Action::DisableCredentials,
        };
        self.change_held(action, owner, server, update).await
    }

    /// Changes credentials that are there; `false`: there are none.
    async fn change_held(
        &self,
        action: Action,
        owner: &Owner,
        server: &str,
        statement: Statement,
    ) -> Result<bool, Failure> {
        if !owner.user().is_empty() && !is_storable(owner.user()) {
            return Ok(false);
        }
        self.forget_tools(server, owner.user()).await?;
        let mut change = self.database.change().await.map_err(failed)?;
        let name = name_of(&mut change, server).await?;
        if change.execute(statement).await.map_err(failed)? == 0 {
            return Ok(false);
        }
        let mut event = Event::new(action, server, &name);
        event.user = owner.user();
        self.note(&mut change, event).await.map_err(failed)?;
        change.commit().await.map_err(failed)?;
        Ok(true)
    }
}

fn json_text(credentials: &Credentials) -> Result<Secret, Failure> {
    serde_json::to_string(&plain(credentials))
        .map(Secret::new)
        .map_err(|error| invalid(error.to_string()))
}

/// The fields with their values, to be sent or encrypted.
pub(super) fn plain(credentials: &Credentials) -> BTreeMap<&str, &str> {
    let fields = credentials.0.iter();
    fields
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect()
}

/// 32 hexadecimal digits, random.
pub(super) fn new_id() -> String {
    let bytes = <[u8; 16]>::generate();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidParams, message)
}

/// A failure that names everything at fault, in `details.fields`; `about` begins the message.
pub(super) fn at_fault(code: ErrorCode, about: &str, faults: &[ConfigFault]) -> Failure {
    let told = faults
        .iter()
        .map(|fault| format!("{} {}", fault.field, fault.reason));
    let told: Vec<_> = told.collect();
    let fields = faults
        .iter()
        .map(|fault| json!({"field": fault.field, "reason": fault.reason}));
    let fields: Vec<_> = fields.collect();
    let first = faults.first().map(|fault| fault.field.as_str());
    Failure::new(code, format!("{about}{}", told.join("; ")))
        .with("field", first)
        .with("fields", fields)
}

pub(super) fn failed(error: sqlx::Error) -> Failure {
    Failure::new(
        ErrorCode::Internal,
        format!("the store could not carry this out: {error}"),
    )
}
