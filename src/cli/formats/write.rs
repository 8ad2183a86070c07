//! Writes rows as files for others to read: never a secret, placeholders in its place.

use serde_json::{Map, Value, json};

use super::secrets::{lift, replace_user_info};

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// `{"servers": [...]}`: everything, to be imported again
    Servers,
    /// `{"mcpServers": {...}}`, as Claude Desktop, Cursor and Windsurf read it
    #[value(name = "mcpServers", alias = "mcp-servers")]
    McpServers,
}

/// The rows as one document. Each has its JSON columns unpacked.
pub fn write(rows: Vec<Map<String, Value>>, format: Format) -> Value {
    let rows = rows.into_iter().map(without_secrets);
    match format {
        Format::Servers => json!({"servers": rows.collect::<Vec<_>>()}),
        Format::McpServers => {
            let entries: Map<_, _> = rows.map(entry).collect();
            json!({"mcpServers": entries})
        }
    }
}

fn without_secrets(mut row: Map<String, Value>) -> Map<String, Value> {
    lift(&mut row);
    if let Some(Value::String(url)) = row.get_mut("url") {
        replace_user_info(url, "");
    }
    for column in ["id", "created_at", "updated_at"] {
        row.remove(column);
    }
    let empty = [Value::Null, json!([]), json!({})];
    row.retain(|_, value| !empty.contains(value));
    row
}

/// Name and members as other programs have them; a credential becomes a variable of their
/// environment.
fn entry(mut row: Map<String, Value>) -> (String, Value) {
    let name = row.get("name").and_then(Value::as_str).unwrap_or_default();
    let name = name.to_owned();
    let mut members = Map::new();
    let is_http = row.contains_key("url");
    if is_http {
        let transport = row.remove("transport_type").unwrap_or_default();
        let word = if transport == "sse" { "sse" } else { "http" };
        members.insert("type".to_owned(), word.into());
    }
    for (ours, theirs) in [
        ("command", "command"),
        ("args", "args"),
        ("url", "url"),
        ("headers", "headers"),
        ("env_template", "env"),
    ] {
        if let Some(mut value) = row.remove(ours) {
            in_their_words(&mut value);
            members.insert(theirs.to_owned(), value);
        }
    }
    if row.get("is_enabled") == Some(&json!(false)) {
        members.insert("disabled".to_owned(), true.into());
    }
    (name, members.into())
}

fn in_their_words(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace("${user.", "${"),
        Value::Array(items) => items.iter_mut().for_each(in_their_words),
        Value::Object(members) => members.values_mut().for_each(in_their_words),
        _ => {}
    }
}
