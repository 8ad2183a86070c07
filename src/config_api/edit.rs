//! Changes to the store: servers, and credentials by owner.

use chacha20poly1305::aead::Generate;
use serde_json::{Map, Value, json};

use super::database::{Statement, sql};
use super::store::{LONGEST_USER, SealedRow, ServerRow, Store, is_storable};
use super::vault::Place;
use crate::model::caller::UserId;
use crate::model::definition::{Definition, Template};
use crate::model::error::{ErrorCode, Failure};
use crate::model::naming::fold;
use crate::model::row;
use crate::model::secret::{Credentials, Secret};

/// The longest name of a server, in characters.
const LONGEST_NAME: usize = 64;

/// The longest text in a column, in characters; also of credentials before they are encrypted, in bytes.
const LONGEST_TEXT: usize = 1024 * 1024;

/// Whose credentials: nothing is read or written without saying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The system's defaults.
    Default,
    User(UserId),
}

impl Owner {
    fn user(&self) -> &str {
        match self {
            Self::Default => "",
            Self::User(user) => user.as_str(),
        }
    }
}

impl Store {
    /// Adds a server from a row in any form that the config API may have.
    ///
    /// # Errors
    /// `config_invalid`, and `invalid_params` for a name that is taken, also by folding.
    pub async fn add_server(&self, row: Map<String, Value>) -> Result<ServerRow, Failure> {
        let mut change = self.database.change().await.map_err(failed)?;
        let names: Vec<(String,)> = change
            .fetch(sql("SELECT name FROM mcp_servers"))
            .await
            .map_err(failed)?;
        let names: Vec<_> = names.into_iter().map(|(name,)| name).collect();
        let row = check_server(row, &names)?;
        change.execute(insertion(&row)).await.map_err(failed)?;
        change.commit().await.map_err(failed)?;
        Ok(row)
    }

    /// All servers, by name.
    pub async fn servers(&self) -> Result<Vec<ServerRow>, Failure> {
        Ok(self.rows_for(None).await?.servers)
    }

    /// The server of this name: exactly, else folded.
    ///
    /// # Errors
    /// `server_not_found`.
    pub async fn server(&self, name: &str) -> Result<ServerRow, Failure> {
        let mut servers = self.servers().await?;
        let exact = servers.iter().position(|server| server.name == name);
        let folded = || {
            servers
                .iter()
                .position(|server| fold(&server.name) == fold(name))
        };
        match exact.or_else(folded) {
            Some(at) => Ok(servers.swap_remove(at)),
            None => Err(Failure::new(
                ErrorCode::ServerNotFound,
                format!("there is no server named {name:?}"),
            )
            .server(name)),
        }
    }

    /// Switches a server on or off.
    pub async fn enable_server(&self, id: &str, enabled: bool) -> Result<(), Failure> {
        let change = sql(
            "UPDATE mcp_servers SET is_enabled = ?, updated_at = CURRENT_TIMESTAMP WHERE id = ?",
        );
        let change = change.bind(enabled).bind(id);
        self.database.execute(change).await.map_err(failed)?;
        Ok(())
    }

    /// Removes a server with everybody's credentials for it.
    pub async fn remove_server(&self, id: &str) -> Result<(), Failure> {
        let change = sql("DELETE FROM mcp_servers WHERE id = ?").bind(id);
        self.database.execute(change).await.map_err(failed)?;
        Ok(())
    }

    /// The owner's credentials for a server, in force or not.
    ///
    /// # Errors
    /// `credential_invalid`, if they cannot be decrypted.
    pub async fn credentials(
        &self,
        owner: &Owner,
        server: &str,
    ) -> Result<Option<Credentials>, Failure> {
        let row = self.sealed(owner, server).await.map_err(failed)?;
        let Some(row) = row else {
            return Ok(None);
        };
        let unreadable = |reason| {
            Failure::new(
                ErrorCode::CredentialInvalid,
                format!("the stored credentials {reason}; set them again"),
            )
        };
        if !self.keys.knows_all([row.credentials.as_str()]) {
            self.keys.look_again().await;
        }
        let plain = self.unseal(&row).map_err(unreadable)?;
        let column = json!({"mcp_server_id": server, "credentials": plain.expose()});
        match row::credentials(column).map(|row| row.credentials) {
            Some(Ok(credentials)) => Ok(credentials),
            Some(Err(fault)) => Err(unreadable(fault.reason)),
            None => Ok(None),
        }
    }

    async fn sealed(&self, owner: &Owner, server: &str) -> sqlx::Result<Option<SealedRow>> {
        let query = match owner {
            Owner::Default => sql(
                "SELECT id, mcp_server_id, '' AS user_id, credentials, is_enabled
                 FROM mcp_credentials WHERE mcp_server_id = ?",
            )
            .bind(server),
            Owner::User(user) => sql("SELECT id, mcp_server_id, user_id, credentials, is_enabled
                 FROM mcp_user_credentials WHERE mcp_server_id = ? AND user_id = ?")
            .bind(server)
            .bind(user.as_str()),
        };
        Ok(self.database.fetch(query).await?.pop())
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
        let turn = match self.is_local() {
            true => Some(self.database.change().await.map_err(failed)?),
            false => None,
        };
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
        let done = match turn {
            Some(mut turn) => match turn.execute(change).await {
                Ok(_) => turn.commit().await,
                Err(error) => Err(error),
            },
            None => self.database.execute(change).await.map(drop),
        };
        match done {
            Err(error) if is_orphaned(&error) => Err(Failure::new(
                ErrorCode::ServerNotFound,
                "the server was removed meanwhile",
            )),
            done => done.map_err(failed),
        }
    }

    /// Removes the owner's credentials for a server; `false`: there were none.
    pub async fn remove_credentials(&self, owner: &Owner, server: &str) -> Result<bool, Failure> {
        let change = match owner {
            Owner::Default => {
                sql("DELETE FROM mcp_credentials WHERE mcp_server_id = ?").bind(server)
            }
            Owner::User(user) => {
                sql("DELETE FROM mcp_user_credentials WHERE mcp_server_id = ? AND user_id = ?")
                    .bind(server)
                    .bind(user.as_str())
            }
        };
        self.forget_tools(server, owner.user()).await?;
        let removed = self.database.execute(change).await.map_err(failed)?;
        Ok(removed > 0)
    }

    /// Whose credentials there are for which server, by server id: never the credentials.
    pub async fn owners(&self) -> Result<Vec<(String, Owner)>, Failure> {
        let query = sql("SELECT mcp_server_id, '' AS user_id FROM mcp_credentials
             UNION ALL SELECT mcp_server_id, user_id FROM mcp_user_credentials ORDER BY 1, 2");
        let rows: Vec<(String, String)> = self.database.fetch(query).await.map_err(failed)?;
        let owner = |user: String| match user.as_str() {
            "" => Owner::Default,
            user => Owner::User(UserId::new(user)),
        };
        Ok(rows
            .into_iter()
            .map(|(server, user)| (server, owner(user)))
            .collect())
    }
}

/// The row that [`Store::add_server`] would add beside servers with these names.
///
/// # Errors
/// Those of [`Store::add_server`].
pub fn check_server(row: Map<String, Value>, names: &[String]) -> Result<ServerRow, Failure> {
    let row = new_row(row)?;
    match names.iter().find(|name| fold(name) == fold(&row.name)) {
        Some(taken) => Err(invalid(format!(
            "there is a server named {taken:?} already; names that differ only in case, '-', '_' and spaces are the same"
        ))),
        None => Ok(row),
    }
}

/// The row as it is stored: read generously, written in one form.
fn new_row(row: Map<String, Value>) -> Result<ServerRow, Failure> {
    let mut row = row;
    row.insert("id".to_owned(), new_id().into());
    let definition = row::definition(Value::Object(row.clone()))
        .ok_or_else(|| invalid("a server must have a name".to_owned()))?;
    let name = &definition.name;
    if name.chars().count() > LONGEST_NAME
        || name.chars().any(char::is_control)
        || name.trim() != &**name
    {
        return Err(invalid(format!(
            "{name:?} is no name for a server: 1 to {LONGEST_NAME} characters, none of them control characters, no spaces around"
        )));
    }
    let template = definition.template.as_ref().map_err(|fault| {
        Failure::new(
            ErrorCode::ConfigInvalid,
            format!(
                "server {name:?} cannot be stored: {} {}",
                fault.field, fault.reason
            ),
        )
        .with("field", fault.field.as_str())
    })?;
    let row = stored_form(&definition, template).map_err(|error| invalid(error.to_string()))?;
    check_texts(&row)?;
    Ok(row)
}

/// What one database would take and another would not.
fn check_texts(row: &ServerRow) -> Result<(), Failure> {
    let limits = [
        ("display_name", &row.display_name, 255),
        ("description", &row.description, LONGEST_TEXT),
        ("command", &row.command, LONGEST_TEXT),
        ("args", &row.args, LONGEST_TEXT),
        ("env_template", &row.env_template, LONGEST_TEXT),
        ("url", &row.url, LONGEST_TEXT),
        ("headers", &row.headers, LONGEST_TEXT),
        ("credential_fields", &row.credential_fields, LONGEST_TEXT),
        ("tool_meta", &row.tool_meta, LONGEST_TEXT),
        ("tool_display", &row.tool_display, LONGEST_TEXT),
    ];
    for (field, text, limit) in limits {
        let text = text.as_deref().unwrap_or_default();
        let reason = if text.contains('\0') {
            "holds a NUL character".to_owned()
        } else if text.chars().count() > limit {
            format!("is longer than {limit} characters")
        } else {
            continue;
        };
        let message = format!("server {:?} cannot be stored: {field} {reason}", row.name);
        return Err(Failure::new(ErrorCode::ConfigInvalid, message).with("field", field));
    }
    Ok(())
}

fn stored_form(definition: &Definition, template: &Template) -> serde_json::Result<ServerRow> {
    let extra = |column: &str| match definition.extra.get(column) {
        Some(Value::String(text)) => Some(text.clone()),
        other => other.map(Value::to_string),
    };
    let mut row = ServerRow {
        id: definition.id.as_str().to_owned(),
        name: definition.name.to_string(),
        display_name: definition.display_name.clone(),
        description: definition.description.clone(),
        transport_type: definition.transport_type.as_str().to_owned(),
        is_public: definition.is_public,
        is_enabled: definition.is_enabled,
        requires_credentials: definition.requires_credentials,
        credential_fields: Some(definition.credential_fields.to_string()),
        isolation: definition
            .isolation
            .map(|isolation| isolation.as_str().to_owned()),
        sandbox: definition.sandbox,
        tool_meta: extra("tool_meta"),
        tool_display: extra("tool_display"),
        ..ServerRow::default()
    };
    let (Template::Stdio { env, .. } | Template::Http { env, .. }) = template;
    row.env_template = Some(serde_json::to_string(env)?);
    match template {
        Template::Stdio { command, args, .. } => {
            row.command = Some(command.clone());
            row.args = Some(serde_json::to_string(args)?);
        }
        Template::Http { url, headers, .. } => {
            row.url = Some(url.clone());
            row.headers = Some(serde_json::to_string(headers)?);
        }
    }
    Ok(row)
}

fn insertion(row: &ServerRow) -> Statement {
    sql(
        "INSERT INTO mcp_servers (id, name, display_name, description, transport_type, command, args,
         env_template, url, headers, is_public, is_enabled, requires_credentials, credential_fields,
         isolation, sandbox, tool_meta, tool_display)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(row.id.as_str())
    .bind(row.name.as_str())
    .bind(&row.display_name)
    .bind(&row.description)
    .bind(row.transport_type.as_str())
    .bind(&row.command)
    .bind(&row.args)
    .bind(&row.env_template)
    .bind(&row.url)
    .bind(&row.headers)
    .bind(row.is_public)
    .bind(row.is_enabled)
    .bind(row.requires_credentials)
    .bind(&row.credential_fields)
    .bind(&row.isolation)
    .bind(row.sandbox)
    .bind(&row.tool_meta)
    .bind(&row.tool_display)
}

/// Whether a row was refused because its server is not there.
fn is_orphaned(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(sqlx::error::DatabaseError::is_foreign_key_violation)
}

fn json_text(credentials: &Credentials) -> Result<Secret, Failure> {
    let fields = credentials.0.iter();
    let fields: std::collections::BTreeMap<_, _> =
        fields.map(|(name, value)| (name, value.expose())).collect();
    serde_json::to_string(&fields)
        .map(Secret::new)
        .map_err(|error| invalid(error.to_string()))
}

/// 32 hexadecimal digits, random.
pub(super) fn new_id() -> String {
    let bytes = <[u8; 16]>::generate();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidParams, message)
}

pub(super) fn failed(error: sqlx::Error) -> Failure {
    Failure::new(
        ErrorCode::Internal,
        format!("the store could not carry this out: {error}"),
    )
}
