//! The servers of the store: listed, added, changed, removed; and what a definition must be to be stored.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::audit::{Action, Event};
use super::database::{Statement, Transaction, sql};
use super::edit::{at_fault, failed, new_id};
use super::store::{SERVERS, ServerRow, Store};
use crate::model::definition::{ConfigFault, Definition, Template};
use crate::model::error::{ErrorCode, Failure};
use crate::model::naming::fold;
use crate::model::row;

/// The longest name of a server, in characters.
const LONGEST_NAME: usize = 64;

/// The longest text in a column, in characters; also of credentials before they are encrypted, in bytes.
pub(super) const LONGEST_TEXT: usize = 1024 * 1024;

/// What a definition says only for one kind of transport.
const OF_A_TRANSPORT: [&str; 4] = ["command", "args", "url", "headers"];

impl Store {
    /// All servers, by name.
    pub async fn servers(&self) -> Result<Vec<ServerRow>, Failure> {
        Ok(self.rows_for(None).await?.servers)
    }

    /// The server of this name: exactly, else folded.
    ///
    /// # Errors
    /// `server_not_found`.
    pub async fn server(&self, name: &str) -> Result<ServerRow, Failure> {
        find(self.servers().await?, name)
    }

    /// Adds a server from a row in any form that the config API may have.
    ///
    /// # Errors
    /// `config_invalid`, and `invalid_params` for a name that is taken, also by folding, or can be
    /// none; `details.fields` has every fault.
    pub async fn add_server(&self, row: Map<String, Value>) -> Result<ServerRow, Failure> {
        let mut change = self.database.change().await.map_err(failed)?;
        let names = rows(&mut change).await?.into_iter().map(|row| row.name);
        let row = check_server(row, &names.collect::<Vec<_>>())?;
        change.execute(insertion(&row)).await.map_err(failed)?;
        let event = Event::of_server(Action::CreateServer, &row);
        self.finish(change, event, &row.id).await
    }

    /// Changes the columns that are given, null ones to nothing.
    ///
    /// # Errors
    /// `server_not_found`; those of [`Store::add_server`].
    pub async fn update_server(
        &self,
        id: &str,
        columns: Map<String, Value>,
    ) -> Result<ServerRow, Failure> {
        // Another definition may have other tools.
        self.forget_tools(id, "").await?;
        let mut change = self.database.change().await.map_err(failed)?;
        let (mut found, others): (Vec<_>, Vec<_>) = rows(&mut change)
            .await?
            .into_iter()
            .partition(|row| row.id == id);
        let Some(before) = found.pop() else {
            return Err(no_such_server());
        };
        let row = changed(&before, &columns, &others)?;
        let fields = differing(&before, &row);
        if fields.is_empty() {
            return Ok(before);
        }
        change.execute(update(&row)).await.map_err(failed)?;
        let mut event = Event::of_server(Action::UpdateServer, &row);
        event.fields = fields;
        self.finish(change, event, id).await
    }

    /// Notes the change, carries it out and reads what came of it.
    async fn finish(
        &self,
        mut change: Transaction,
        event: Event<'_>,
        id: &str,
    ) -> Result<ServerRow, Failure> {
        self.note(&mut change, event).await.map_err(failed)?;
        let row = rows(&mut change)
            .await?
            .into_iter()
            .find(|row| row.id == id);
        change.commit().await.map_err(failed)?;
        row.ok_or_else(no_such_server)
    }

    /// Switches a server on or off, whatever else its definition says.
    ///
    /// # Errors
    /// `server_not_found`.
    pub async fn enable_server(&self, id: &str, enabled: bool) -> Result<(), Failure> {
        let update = sql(
            "UPDATE mcp_servers SET is_enabled = ?, updated_at = CURRENT_TIMESTAMP WHERE id = ?",
        );
        let mut change = self.database.change().await.map_err(failed)?;
        let name = name_of(&mut change, id).await?;
        let update = update.bind(enabled).bind(id);
        change.execute(update).await.map_err(failed)?;
        let action = match enabled {
            true => Action::EnableServer,
            false => Action::DisableServer,
        };
        let event = Event::new(action, id, &name);
        self.note(&mut change, event).await.map_err(failed)?;
        change.commit().await.map_err(failed)
    }

    /// Removes a server with everybody's credentials for it.
    ///
    /// # Errors
    /// `server_not_found`.
    pub async fn remove_server(&self, id: &str) -> Result<(), Failure> {
        let mut change = self.database.change().await.map_err(failed)?;
        let name = name_of(&mut change, id).await?;
        let removal = sql("DELETE FROM mcp_servers WHERE id = ?").bind(id);
        change.execute(removal).await.map_err(failed)?;
        let event = Event::new(Action::DeleteServer, id, &name);
        self.note(&mut change, event).await.map_err(failed)?;
        change.commit().await.map_err(failed)
    }
}

/// The server of this name: exactly, else folded.
///
/// # Errors
/// `server_not_found`.
pub(super) fn find(mut servers: Vec<ServerRow>, name: &str) -> Result<ServerRow, Failure> {
    let exact = servers.iter().position(|server| server.name == name);
    let folded = || {
        let mut all = servers.iter();
        all.position(|server| fold(&server.name) == fold(name))
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

async fn rows(change: &mut Transaction) -> Result<Vec<ServerRow>, Failure> {
    change.fetch(sql(SERVERS)).await.map_err(failed)
}

/// The name of the server of this id.
///
/// # Errors
/// `server_not_found`.
pub(super) async fn name_of(change: &mut Transaction, id: &str) -> Result<String, Failure> {
    if id.contains('\0') {
        return Err(no_such_server());
    }
    let query = sql("SELECT name FROM mcp_servers WHERE id = ?").bind(id);
    let found: Vec<(String,)> = change.fetch(query).await.map_err(failed)?;
    let name = found.into_iter().next().map(|(name,)| name);
    name.ok_or_else(no_such_server)
}

pub(super) fn no_such_server() -> Failure {
    let message = "there is no server of this id; it may have been removed meanwhile";
    Failure::new(ErrorCode::ServerNotFound, message)
}

/// The row that [`Store::add_server`] would add beside servers with these names.
///
/// # Errors
/// Those of [`Store::add_server`].
pub fn check_server(mut row: Map<String, Value>, names: &[String]) -> Result<ServerRow, Failure> {
    row.insert("id".to_owned(), new_id().into());
    let (row, faults) = examine(row, names);
    refuse(row, faults)
}

fn changed(
    before: &ServerRow,
    columns: &Map<String, Value>,
    others: &[ServerRow],
) -> Result<ServerRow, Failure> {
    let mut merged = before.members();
    merged.extend(columns.clone());
    merged.insert("id".to_owned(), before.id.as_str().into());
    let names: Vec<_> = others.iter().map(|row| row.name.clone()).collect();
    let (row, mut faults) = examine(merged, &names);
    if faults.is_empty() {
        let stored = row.members();
        let given = OF_A_TRANSPORT
            .into_iter()
            .filter(|column| columns.get(*column).is_some_and(|value| !value.is_null()));
        let lost = given.filter(|column| stored[*column].is_null());
        faults.extend(lost.map(|column| ConfigFault {
            field: column.to_owned(),
            reason: format!("is not used with the transport {}", row.transport_type),
        }));
    }
    refuse(row, faults)
}

/// The columns that differ, but for times.
fn differing(before: &ServerRow, after: &ServerRow) -> BTreeSet<String> {
    let (before, after) = (before.members(), after.members());
    let differ = after
        .into_iter()
        .filter(|(column, value)| before.get(column) != Some(value));
    let columns = differ.map(|(column, _)| column);
    columns.filter(|column| !column.ends_with("_at")).collect()
}

fn refuse(row: ServerRow, faults: Vec<ConfigFault>) -> Result<ServerRow, Failure> {
    if faults.is_empty() {
        return Ok(row);
    }
    let code = match faults.iter().any(|fault| fault.field == "name") {
        true => ErrorCode::InvalidParams,
        false => ErrorCode::ConfigInvalid,
    };
    let about = format!("server {:?} cannot be stored: ", row.name);
    Err(at_fault(code, &about, &faults))
}

/// The row as it is stored, read generously and written in one form, and all that is wrong with it.
fn examine(row: Map<String, Value>, names: &[String]) -> (ServerRow, Vec<ConfigFault>) {
    let unknown: Vec<_> = row.keys().filter(|name| !is_known(name)).cloned().collect();
    let (definition, mut faults) = row::examine(row);
    faults.extend(unknown.into_iter().map(|field| ConfigFault {
        field,
        reason: "is no column of a server".to_owned(),
    }));
    faults.extend(name_fault(&definition.name, names));
    let row = stored_form(&definition);
    check_texts(&row, &mut faults);
    (row, faults)
}

fn is_known(column: &str) -> bool {
    ["use_sse", "stateless"].contains(&column)
        || ServerRow::default().members().contains_key(column)
}

fn name_fault(name: &str, names: &[String]) -> Option<ConfigFault> {
    let is_name = !name.is_empty()
        && name.chars().count() <= LONGEST_NAME
        && !name.chars().any(char::is_control)
        && name.trim() == name;
    let taken = || names.iter().find(|taken| fold(taken) == fold(name));
    let reason = if !is_name {
        format!(
            "must have 1 to {LONGEST_NAME} characters, none of them control characters, no spaces around"
        )
    } else {
        format!(
            "is taken by the server {:?}: names that differ only in case, '-', '_' and spaces are the same",
            taken()?
        )
    };
    Some(ConfigFault {
        field: "name".to_owned(),
        reason,
    })
}

/// What one database would take and another would not.
fn check_texts(row: &ServerRow, faults: &mut Vec<ConfigFault>) {
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
        faults.push(ConfigFault {
            field: field.to_owned(),
            reason,
        });
    }
}

/// Without what only a template that can be read says.
fn stored_form(definition: &Definition) -> ServerRow {
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
    let Ok(template) = &definition.template else {
        return row;
    };
    let (Template::Stdio { env, .. } | Template::Http { env, .. }) = template;
    row.env_template = Some(json!(env).to_string());
    match template {
        Template::Stdio { command, args, .. } => {
            row.command = Some(command.clone());
            row.args = Some(json!(args).to_string());
        }
        Template::Http { url, headers, .. } => {
            row.url = Some(url.clone());
            row.headers = Some(json!(headers).to_string());
        }
    }
    row
}

fn insertion(row: &ServerRow) -> Statement {
    let insertion = sql(
        "INSERT INTO mcp_servers (name, display_name, description, transport_type, command, args,
         env_template, url, headers, is_public, is_enabled, requires_credentials, credential_fields,
         isolation, sandbox, tool_meta, tool_display, id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    );
    bound(insertion, row)
}

fn update(row: &ServerRow) -> Statement {
    let update = sql(
        "UPDATE mcp_servers SET name = ?, display_name = ?, description = ?, transport_type = ?,
         command = ?, args = ?, env_template = ?, url = ?, headers = ?, is_public = ?,
         is_enabled = ?, requires_credentials = ?, credential_fields = ?, isolation = ?, sandbox = ?,
         tool_meta = ?, tool_display = ?, updated_at = CURRENT_TIMESTAMP WHERE id = ?",
    );
    bound(update, row)
}

fn bound(statement: Statement, row: &ServerRow) -> Statement {
    statement
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
        .bind(row.id.as_str())
}
