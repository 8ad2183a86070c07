//! The files in which people keep their MCP servers, read into rows of ours and written back.
//!
//! Pure: text in, rows out. Claude Desktop, Cursor and Windsurf keep `mcpServers`, VS Code `servers`
//! with `inputs`, Codex `[mcp_servers.NAME]`; `servers.json` is a list of rows, which is also what
//! `mcp-client export` and `mcp-client server list --json` print.

mod entry;
mod secrets;
mod write;

use jsonc_parser::{ParseOptions, parse_to_serde_value};
use serde_json::{Map, Value, json};

use entry::{Dialect, Inputs};
pub use secrets::{Lifted, is_secret_name, lift, replace_user_info};
pub use write::{Format, write};

/// One server of a file.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    /// In the words of the config API, as [`crate::config_api::Store::add_server`] takes it; or why
    /// the entry cannot be taken, which reads after its name.
    pub row: Result<Map<String, Value>, String>,
    /// What of the entry has no meaning here; each reads after its name.
    pub notes: Vec<String>,
}

/// All servers of a file, in its order.
///
/// # Errors
/// The file is in none of the formats; reads after its name and quotes nothing of it.
pub fn read(text: &str) -> Result<Vec<Entry>, String> {
    let text = text.trim_start_matches('\u{feff}');
    match json(text) {
        Ok(Value::Object(whole)) => in_object(whole),
        Ok(Value::Array(rows)) => Ok(in_list(rows)),
        Ok(_) => Err("holds no JSON object".to_owned()),
        Err(place) => match text.parse::<toml::Table>() {
            Ok(table) => in_toml(table),
            Err(_) if text.trim_start().starts_with('{') => Err(format!("is not JSON ({place})")),
            Err(error) => {
                let before = error.span().and_then(|span| text.get(..span.start));
                let line = before.map_or(1, |before| before.matches('\n').count() + 1);
                Err(format!(
                    "is neither JSON ({place}) nor TOML (at line {line})"
                ))
            }
        },
    }
}

/// JSON, with comments and trailing commas; or where it breaks.
fn json(text: &str) -> Result<Value, String> {
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    parse_to_serde_value(text, &options).map_err(|error| {
        let place = (error.line_display(), error.column_display());
        format!("at line {}, column {}", place.0, place.1)
    })
}

fn in_object(mut whole: Map<String, Value>) -> Result<Vec<Entry>, String> {
    for outer in ["data", "mcp"] {
        let inner = whole.get(outer).and_then(Value::as_object);
        let inner = inner.filter(|inner| inner.get("servers").is_some_and(is_collection));
        if let Some(inner) = inner.cloned() {
            whole = inner;
        }
    }
    if let Some(Value::Object(servers)) = whole.get("mcpServers") {
        return Ok(in_map(servers, Dialect::Foreign, &Inputs::default()));
    }
    match whole.get("servers") {
        Some(Value::Object(servers)) => {
            let inputs = Inputs::read(whole.get("inputs"));
            Ok(in_map(servers, Dialect::Foreign, &inputs))
        }
        Some(Value::Array(rows)) => Ok(in_list(rows.clone())),
        _ if whole.get("name").is_some_and(Value::is_string) => {
            Ok(in_list(vec![Value::Object(whole)]))
        }
        _ => {
            Err("holds neither `mcpServers` nor `servers`, and is no row with a `name`".to_owned())
        }
    }
}

fn is_collection(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

fn in_toml(table: toml::Table) -> Result<Vec<Entry>, String> {
    let servers = table.get("mcp_servers").map(serde_json::to_value);
    match servers {
        Some(Ok(Value::Object(servers))) => {
            Ok(in_map(&servers, Dialect::Codex, &Inputs::default()))
        }
        _ => Err("holds no section [mcp_servers.NAME]".to_owned()),
    }
}

fn in_map(servers: &Map<String, Value>, dialect: Dialect, inputs: &Inputs) -> Vec<Entry> {
    let entries = servers.iter();
    entries
        .map(|(name, value)| entry::read(name, value.clone(), dialect, inputs))
        .collect()
}

fn in_list(rows: Vec<Value>) -> Vec<Entry> {
    let rows = rows.into_iter().enumerate();
    rows.map(|(at, row)| {
        let name = match &row["name"] {
            Value::String(name) if !name.is_empty() => name.clone(),
            _ => {
                return Entry {
                    name: format!("number {}", at + 1),
                    row: Err("has no name".to_owned()),
                    notes: Vec::new(),
                };
            }
        };
        entry::read(&name, row, Dialect::Rows, &Inputs::default())
    })
    .collect()
}

/// A field of the form that is shown to users, for a value that must not be seen.
fn form_field(name: &str, label: &str) -> Value {
    json!({"name": name, "label": label, "type": "password"})
}

/// Adds a field to the row's form, unless it is there.
fn add_to_form(row: &mut Map<String, Value>, field: Value) {
    let form = row.entry("credential_fields").or_insert_with(|| json!([]));
    if let Value::Array(fields) = form {
        let is_there = |known: &Value| known["name"] == field["name"] || *known == field["name"];
        if !fields.iter().any(is_there) {
            fields.push(field);
        }
    }
}

#[cfg(test)]
mod tests;
