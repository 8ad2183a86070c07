//! One entry of a file, put into the words of the config API.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Entry, add_to_form, form_field};

/// How `${NAME}` is meant, and which members there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Rows of ours: `${user.FIELD}` is a credential field, `${NAME}` a key of the row's own env.
    Rows,
    /// `${NAME}` and `${env:NAME}` come from the environment of the program that reads the file.
    Foreign,
    /// Nothing is replaced; variables of the environment are named by members of their own.
    Codex,
}

/// The `inputs` of VS Code, by id: what is asked for when a server starts.
#[derive(Debug, Default)]
pub(super) struct Inputs(BTreeMap<String, Value>);

impl Inputs {
    pub(super) fn read(inputs: Option<&Value>) -> Self {
        let inputs = inputs.and_then(Value::as_array).into_iter().flatten();
        let by_id =
            inputs.filter_map(|input| Some((input["id"].as_str()?.to_owned(), input.clone())));
        Self(by_id.collect())
    }

    /// The field of the form for an input.
    fn field(&self, id: &str) -> Result<Value, String> {
        let input = self
            .0
            .get(id)
            .ok_or_else(|| format!("names the input {id:?}, which the file does not define"))?;
        if input["type"] == "command" {
            return Err(format!(
                "names the input {id:?}, which a command of the editor gives"
            ));
        }
        let label = input["description"].as_str().unwrap_or(id);
        let mut field = form_field(&field_name(id), label);
        if input["password"] != true {
            field["type"] = "text".into();
        }
        if let Some(options) = input["options"].as_array() {
            field["options"] = json!(options);
        }
        Ok(field)
    }
}

/// What other programs call our members.
const NAMES: [(&str, &str); 13] = [
    ("env", "env_template"),
    ("type", "transport_type"),
    ("transport", "transport_type"),
    ("transportType", "transport_type"),
    ("serverUrl", "url"),
    ("httpUrl", "url"),
    ("http_headers", "headers"),
    ("displayName", "display_name"),
    ("isPublic", "is_public"),
    ("requiresCredentials", "requires_credentials"),
    ("credentialFields", "credential_fields"),
    ("isActive", "is_enabled"),
    ("enabled", "is_enabled"),
];

/// The columns of a row that are taken over.
const COLUMNS: [&str; 17] = [
    "name",
    "display_name",
    "description",
    "transport_type",
    "command",
    "args",
    "env_template",
    "url",
    "headers",
    "is_public",
    "is_enabled",
    "requires_credentials",
    "credential_fields",
    "isolation",
    "tool_meta",
    "tool_display",
    "sandbox",
];
/// Columns of a row that another store has given it.
const GIVEN_BY_THE_STORE: [&str; 3] = ["id", "created_at", "updated_at"];
const JSON_COLUMNS: [&str; 4] = ["args", "env_template", "headers", "credential_fields"];
/// What only the program knows that the file was written for.
const OF_AN_EDITOR: [&str; 10] = [
    "workspaceFolder",
    "workspaceRoot",
    "workspaceFolderBasename",
    "userHome",
    "cwd",
    "file",
    "pathSeparator",
    "/",
    "command",
    "config",
];

pub(super) fn read(name: &str, value: Value, dialect: Dialect, inputs: &Inputs) -> Entry {
    let mut notes = Vec::new();
    let row = match value {
        Value::Object(members) => {
            let mut reading = Reading {
                row: named(members),
                dialect,
                inputs,
            };
            reading.row.insert("name".to_owned(), name.into());
            reading.read(&mut notes)
        }
        _ => Err("is no object".to_owned()),
    };
    Entry {
        name: name.to_owned(),
        row,
        notes,
    }
}

/// The members by our names; JSON in a string is unpacked.
fn named(mut members: Map<String, Value>) -> Map<String, Value> {
    for (theirs, ours) in NAMES {
        if let Some(value) = members.remove(theirs) {
            members.entry(ours).or_insert(value);
        }
    }
    if let Some(disabled) = members.remove("disabled").and_then(|it| it.as_bool()) {
        members.entry("is_enabled").or_insert(json!(!disabled));
    }
    for column in JSON_COLUMNS {
        let text = members.get(column).and_then(Value::as_str);
        if let Some(Ok(unpacked)) = text.map(serde_json::from_str) {
            members.insert(column.to_owned(), unpacked);
        }
    }
    members.retain(|_, value| !value.is_null());
    members
}

struct Reading<'a> {
    row: Map<String, Value>,
    dialect: Dialect,
    inputs: &'a Inputs,
}

impl Reading<'_> {
    fn read(mut self, notes: &mut Vec<String>) -> Result<Map<String, Value>, String> {
        if self.dialect == Dialect::Codex {
            self.take_variables_of_codex();
        }
        let has = |column: &str| self.row.get(column).is_some_and(|value| value != "");
        if has("url") && !has("command") {
            let transport = self.row.entry("transport_type");
            transport.or_insert_with(|| json!("http"));
        }
        self.replace_placeholders()?;
        let unknown: Vec<_> = self.row.keys().cloned().collect();
        for member in unknown {
            if COLUMNS.contains(&member.as_str()) {
                continue;
            }
            self.row.remove(&member);
            if !GIVEN_BY_THE_STORE.contains(&member.as_str()) {
                notes.push(format!("`{member}` has no meaning here and is left out"));
            }
        }
        Ok(self.row)
    }

    /// Members of Codex that name variables of its environment.
    fn take_variables_of_codex(&mut self) {
        if let Some(Value::Array(names)) = self.row.remove("env_vars") {
            for name in names.iter().filter_map(Value::as_str) {
                let placeholder = self.placeholder(name);
                self.put("env_template", name, placeholder);
            }
        }
        if let Some(Value::Object(headers)) = self.row.remove("env_http_headers") {
            for (header, variable) in headers {
                if let Some(variable) = variable.as_str() {
                    let placeholder = self.placeholder(variable);
                    self.put("headers", &header, placeholder);
                }
            }
        }
        if let Some(Value::String(variable)) = self.row.remove("bearer_token_env_var") {
            let bearer = format!("Bearer {}", self.placeholder(&variable));
            self.put("headers", "Authorization", bearer);
        }
    }

    fn put(&mut self, column: &str, name: &str, text: String) {
        let members = self.row.entry(column).or_insert_with(|| json!({}));
        if let Value::Object(members) = members {
            members.entry(name).or_insert_with(|| text.into());
        }
    }

    /// Makes a variable of somebody's environment a field of the credentials.
    fn placeholder(&mut self, variable: &str) -> String {
        let name = field_name(variable);
        self.ask_for(form_field(&name, variable));
        format!("${{user.{name}}}")
    }

    fn ask_for(&mut self, field: Value) {
        add_to_form(&mut self.row, field);
        self.row
            .entry("requires_credentials")
            .or_insert_with(|| json!(true));
    }

    fn replace_placeholders(&mut self) -> Result<(), String> {
        for column in ["command", "url", "args", "env_template", "headers"] {
            let Some(mut value) = self.row.get(column).cloned() else {
                continue;
            };
            let texts: Vec<&mut Value> = match &mut value {
                Value::Array(items) => items.iter_mut().collect(),
                Value::Object(members) => members.values_mut().collect(),
                text => vec![text],
            };
            for text in texts {
                if let Value::String(text) = text {
                    *text = self
                        .replaced(text, column)
                        .map_err(|reason| format!("cannot be taken: `{column}` {reason}"))?;
                }
            }
            self.row.insert(column.to_owned(), value);
        }
        Ok(())
    }

    fn replaced(&mut self, text: &str, column: &str) -> Result<String, String> {
        let mut done = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let Some(length) = rest[at..].find('}') else {
                break;
            };
            let (whole, inner) = (&rest[at..=at + length], &rest[at + 2..at + length]);
            done.push_str(&rest[..at]);
            match self.meant_by(inner, column)? {
                Some(other) if !done.ends_with('$') => done.push_str(&other),
                _ => done.push_str(whole),
            }
            rest = &rest[at + length + 1..];
        }
        done.push_str(rest);
        Ok(done)
    }

    /// What stands for `${inner}` here; `None`: it stays as it is.
    fn meant_by(&mut self, inner: &str, column: &str) -> Result<Option<String>, String> {
        if self.dialect == Dialect::Codex || inner.starts_with("user.") {
            return Ok(None);
        }
        if let Some(id) = inner.strip_prefix("input:") {
            let field = self.inputs.field(id)?;
            self.ask_for(field);
            return Ok(Some(format!("${{user.{}}}", field_name(id))));
        }
        if let Some(variable) = inner.strip_prefix("env:") {
            return Ok(Some(self.placeholder(variable)));
        }
        let head = inner.split(':').next().unwrap_or(inner);
        if self.dialect == Dialect::Foreign && OF_AN_EDITOR.contains(&head) {
            return Err(format!(
                "holds ${{{inner}}}, which only the program knows that the file was written for"
            ));
        }
        if self.dialect == Dialect::Rows || column == "command" || self.is_for_a_shell(column) {
            return Ok(None);
        }
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let own = self.row.get("env_template");
        let is_own = own.is_some_and(|env| env.get(name).is_some());
        Ok(match default {
            _ if !is_name(name) => None,
            _ if is_own => Some(format!("${{{name}}}")),
            Some(default) => Some(default.to_owned()),
            None => Some(self.placeholder(name)),
        })
    }

    fn is_for_a_shell(&self, column: &str) -> bool {
        let command = self.row.get("command").and_then(Value::as_str);
        let program = command.and_then(|command| command.rsplit('/').next());
        column == "args" && program.is_some_and(|program| program.ends_with("sh"))
    }
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// The name of a credential field that resembles `text`.
pub(super) fn field_name(text: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
    let name = text
        .chars()
        .map(|letter| if fits(letter) { letter } else { '_' });
    let name: String = name.collect();
    match name.chars().next() {
        Some(first) if first.is_ascii_alphabetic() || first == '_' => name,
        _ => format!("_{name}"),
    }
}
