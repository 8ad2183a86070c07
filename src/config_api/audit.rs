//! Who changed what: a row for every change, written with it or not at all. Names of fields are in
//! it, never their values.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::database::{Transaction, sql};
use super::edit::failed;
use super::store::{ServerRow, Store};
use crate::model::error::{Failure, words};

/// The longest name of whoever changed something, in characters.
const LONGEST_ACTOR: usize = 255;

words! {
    /// What was done.
    Action {
        CreateServer = "server.create",
        UpdateServer = "server.update",
        EnableServer = "server.enable",
        DisableServer = "server.disable",
        DeleteServer = "server.delete",
        SetCredentials = "credentials.set",
        EnableCredentials = "credentials.enable",
        DisableCredentials = "credentials.disable",
        DeleteCredentials = "credentials.delete",
        CreateToken = "token.create",
        DeleteToken = "token.delete",
    }
}

/// One change.
pub(super) struct Event<'a> {
    action: Action,
    server: &'a str,
    server_name: &'a str,
    /// Whose credentials; "": the system's, or none at all.
    pub user: &'a str,
    /// The columns or fields that were given; of a token, its name.
    pub fields: BTreeSet<String>,
}

impl<'a> Event<'a> {
    pub(super) fn new(action: Action, server: &'a str, server_name: &'a str) -> Self {
        Self {
            action,
            server,
            server_name,
            user: "",
            fields: BTreeSet::new(),
        }
    }

    pub(super) fn of_token(action: Action, name: &str) -> Self {
        let mut event = Self::new(action, "", "");
        event.fields.insert(name.to_owned());
        event
    }

    pub(super) fn of_server(action: Action, row: &'a ServerRow) -> Self {
        Self::new(action, &row.id, &row.name)
    }
}

/// A row of `mcp_audit`.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub struct AuditRow {
    /// Larger than that of every change before.
    pub number: i64,
    /// UTC.
    pub made_at: String,
    pub actor: String,
    pub action: String,
    pub server_id: String,
    pub server_name: String,
    /// "" where the change was to no user's credentials.
    pub user_id: String,
    /// A JSON array of names.
    #[serde(serialize_with = "as_json")]
    pub fields: String,
}

fn as_json<S: serde::Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let names: Vec<String> = serde_json::from_str(text).unwrap_or_default();
    names.serialize(serializer)
}

impl Store {
    /// The same store, on which `actor` changes things.
    pub(super) fn acting(&self, actor: &str) -> Self {
        let shown = actor.chars().filter(|letter| !letter.is_control());
        let mut store = self.clone();
        store.actor = Arc::from(shown.take(LONGEST_ACTOR).collect::<String>());
        store
    }

    pub(super) async fn note(
        &self,
        change: &mut Transaction,
        event: Event<'_>,
    ) -> sqlx::Result<()> {
        let insert = sql(
            "INSERT INTO mcp_audit (actor, action, server_id, server_name, user_id, fields)
             VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(&*self.actor)
        .bind(event.action.as_str())
        .bind(event.server)
        .bind(event.server_name)
        .bind(event.user)
        .bind(json!(event.fields).to_string());
        change.execute(insert).await.map(drop)
    }

    /// Changes made before the one of this number, the last one first; at most `limit`.
    pub async fn audit(&self, before: i64, limit: i64) -> Result<Vec<AuditRow>, Failure> {
        let query = sql(
            "SELECT number, CAST(made_at AS CHAR(19)) AS made_at, actor, action, server_id,
             server_name, user_id, fields FROM mcp_audit WHERE number < ?
             ORDER BY number DESC LIMIT ?",
        );
        let query = query.bind(before).bind(limit);
        self.database.fetch(query).await.map_err(failed)
    }
}
