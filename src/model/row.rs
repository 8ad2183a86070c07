//! Reads the rows of the config API as generously as they look in the field: numbers for text,
//! JSON inside strings, booleans in every form a database driver makes of them
//! (docs/config-api.md). What cannot be read is a fault of that one row.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::caller::ServerId;
use super::definition::{ConfigFault, Definition, Isolation, Template, TransportType};
use super::secret::{Credentials, Secret};
use super::template;

/// Columns that are not ours to read and may be shown to anybody who may see the server.
const PASSED_ON: [&str; 4] = ["tool_meta", "tool_display", "created_at", "updated_at"];

/// A row of `default_credentials` or `user_credentials`.
#[derive(Debug)]
pub struct CredentialRow {
    pub server: ServerId,
    /// `None` in a row of `default_credentials`.
    pub user: Option<String>,
    /// `Ok(None)`: the row holds no field, which is the same as no row.
    pub credentials: Result<Option<Credentials>, ConfigFault>,
}

/// Reads a row of `servers`. `None`: it has no name, so nobody can ask for it.
pub fn definition(row: Value) -> Option<Definition> {
    let Value::Object(row) = row else {
        return None;
    };
    text(row.get("name")).filter(|name| !name.is_empty())?;
    Some(examine(row).0)
}

/// Reads a row of `servers`, and all that is wrong with it; a name is not asked for.
pub fn examine(mut row: Map<String, Value>) -> (Definition, Vec<ConfigFault>) {
    let name = text(row.get("name")).unwrap_or_default();
    let mut faults = Vec::new();
    let id = text(row.get("id")).filter(|id| !id.is_empty());
    if id.is_none() {
        faults.push(fault("id", "is missing"));
    }
    let mut flag = |field: &str, absent: bool| {
        boolean(row.get(field)).map_or_else(
            || {
                faults.push(fault(field, "is neither true nor false"));
                false
            },
            |value| value.unwrap_or(absent),
        )
    };
    let is_public = flag("is_public", false);
    let is_enabled = flag("is_enabled", true);
    let requires_credentials = flag("requires_credentials", false);
    let sandbox = flag("sandbox", true);
    let (use_sse, stateless) = (flag("use_sse", false), flag("stateless", false));
    let mut keep = |result: Result<(), ConfigFault>| faults.extend(result.err());
    let transport = transport_type(&row, use_sse, stateless);
    let isolation = isolation(&row);
    let fields = json(
        row.get("credential_fields"),
        "credential_fields",
        Value::is_array,
    );
    keep(transport.as_ref().map(drop).map_err(Clone::clone));
    keep(isolation.as_ref().map(drop).map_err(Clone::clone));
    keep(fields.as_ref().map(drop).map_err(Clone::clone));
    let read = transport
        .as_ref()
        .ok()
        .and_then(|transport| read_template(&row, *transport, &mut faults));
    let unread = || fault("transport_type", "is missing");
    let template = match faults.first() {
        Some(first) => Err(first.clone()),
        None => read.ok_or_else(unread),
    };
    let definition = Definition {
        id: ServerId::new(id.as_deref().unwrap_or(&name)),
        name: name.into(),
        display_name: text(row.get("display_name")),
        description: text(row.get("description")),
        transport_type: transport.unwrap_or(TransportType::Stdio),
        template,
        is_public,
        is_enabled,
        requires_credentials,
        credential_fields: fields
            .ok()
            .flatten()
            .unwrap_or_else(|| Value::Array(Vec::new())),
        isolation: isolation.ok().flatten(),
        sandbox,
        extra: PASSED_ON
            .iter()
            .filter_map(|column| row.remove_entry(*column))
            .filter(|(_, value)| !value.is_null())
            .collect(),
    };
    (definition, faults)
}

/// Reads a row of credentials. `None`: it is switched off, or belongs to no server.
pub fn credentials(row: Value) -> Option<CredentialRow> {
    let Value::Object(mut row) = row else {
        return None;
    };
    let server = text(row.get("mcp_server_id")).filter(|id| !id.is_empty())?;
    let read = match boolean(row.get("is_enabled")) {
        Some(Some(false)) => return None,
        Some(_) => fields_of(&mut row),
        None => Err(fault("credentials.is_enabled", "is neither true nor false")),
    };
    Some(CredentialRow {
        server: ServerId::new(&server),
        user: text(row.get("user_id")).filter(|id| !id.is_empty()),
        credentials: read,
    })
}

fn fields_of(row: &mut Map<String, Value>) -> Result<Option<Credentials>, ConfigFault> {
    if let Some(reason) = row.get("fault").and_then(Value::as_str) {
        return Err(fault("credentials", reason));
    }
    let column = row.remove("credentials");
    let Some(Value::Object(fields)) = json_owned(column, "credentials", Value::is_object)? else {
        return Ok(None);
    };
    Ok(Some(flatten(fields)?).filter(|read| !read.0.is_empty()))
}

/// The fields of a credentials object; those of a member `env_overrides` win over those beside it.
///
/// # Errors
/// `env_overrides` is no object.
pub fn flatten(mut fields: Map<String, Value>) -> Result<Credentials, ConfigFault> {
    let overrides = json_owned(
        fields.remove("env_overrides"),
        "credentials.env_overrides",
        Value::is_object,
    )?;
    let mut read = BTreeMap::new();
    let members = fields.into_iter().chain(match overrides {
        Some(Value::Object(overrides)) => overrides,
        _ => Map::new(),
    });
    for (name, value) in members {
        let value = match value {
            Value::Null => continue,
            Value::String(text) => text,
            other => other.to_string(),
        };
        read.insert(name, Secret::new(value));
    }
    Ok(Credentials(read))
}

/// `None`: something of it is at fault.
fn read_template(
    row: &Map<String, Value>,
    transport: TransportType,
    faults: &mut Vec<ConfigFault>,
) -> Option<Template> {
    let mut keep = |found: ConfigFault| faults.push(found);
    let env = text_map(row, "env_template").map_err(&mut keep).ok();
    let template = if transport == TransportType::Stdio {
        let command = command(row).map_err(&mut keep).ok();
        let args = text_list(row, "args").map_err(&mut keep).ok();
        Template::Stdio {
            command: command?,
            args: args?,
            env: env?,
        }
    } else {
        let url = text(row.get("url")).filter(|url| !url.is_empty());
        if url.is_none() {
            keep(fault("url", "is missing"));
        }
        let headers = text_map(row, "headers").map_err(&mut keep).ok();
        Template::Http {
            url: url?,
            headers: headers?,
            env: env?,
        }
    };
    check(&template, faults);
    faults.is_empty().then_some(template)
}

fn command(row: &Map<String, Value>) -> Result<String, ConfigFault> {
    match text(row.get("command")) {
        Some(command) if command.contains('\0') => Err(fault("command", "holds a NUL character")),
        Some(command) if !command.trim().is_empty() => Ok(command),
        _ => Err(fault("command", "is missing")),
    }
}

/// Fills the template with harmless values, so that its own faults are known before anybody calls.
fn check(template: &Template, faults: &mut Vec<ConfigFault>) {
    let harmless = |_: &str| Some("1");
    let faulty = |field: &str, flaw| match flaw {
        template::Flaw::Template(reason) => fault(field, &reason),
        template::Flaw::Missing(_) | template::Flaw::Refused { .. } => {
            fault(field, "cannot be filled in")
        }
    };
    let plain = |field: &str, text: &str, place| match template::expand(text, place, &harmless) {
        Ok(text) if text.contains('\0') => Err(fault(field, "holds a NUL character")),
        Ok(_) => Ok(()),
        Err(flaw) => Err(faulty(field, flaw)),
    };
    let mut keep = |checked: Result<(), ConfigFault>| faults.extend(checked.err());
    match template {
        Template::Stdio { args, .. } => keep(
            args.iter()
                .try_for_each(|arg| plain("args", arg, template::Place::Arg)),
        ),
        Template::Http { url, headers, env } => {
            let url = template::expand_url(url, &harmless);
            keep(url.map(drop).map_err(|flaw| faulty("url", flaw)));
            let headers = template::expand_headers(headers, env, &harmless);
            keep(headers.map(drop).map_err(|flaw| faulty("headers", flaw)));
        }
    }
    let (Template::Stdio { env, .. } | Template::Http { env, .. }) = template;
    keep(env.iter().try_for_each(|(name, value)| {
        if name.is_empty() || name.contains(['=', '\0']) {
            let reason = format!("holds {name:?}, which is no name of a variable");
            return Err(fault("env_template", &reason));
        }
        plain("env_template", value, template::Place::Env)
    }));
}

fn transport_type(
    row: &Map<String, Value>,
    use_sse: bool,
    stateless: bool,
) -> Result<TransportType, ConfigFault> {
    if use_sse {
        return Ok(TransportType::Sse);
    }
    if stateless {
        return Ok(TransportType::StatelessHttp);
    }
    let spelled = text(row.get("transport_type")).unwrap_or_default();
    match folded(&spelled).as_str() {
        "" | "stdio" => Ok(TransportType::Stdio),
        "http" | "streamablehttp" => Ok(TransportType::Http),
        "sse" => Ok(TransportType::Sse),
        "statelesshttp" => Ok(TransportType::StatelessHttp),
        _ => Err(fault(
            "transport_type",
            &format!("is {spelled:?}; it must be stdio, http, sse or statelessHttp"),
        )),
    }
}

fn isolation(row: &Map<String, Value>) -> Result<Option<Isolation>, ConfigFault> {
    let spelled = text(row.get("isolation")).unwrap_or_default();
    let word = folded(&spelled);
    let known = Isolation::ALL.iter().find(|known| known.as_str() == word);
    match known {
        Some(known) => Ok(Some(*known)),
        None if word.is_empty() => Ok(None),
        None => Err(fault(
            "isolation",
            &format!("is {spelled:?}; it must be shared, user or session"),
        )),
    }
}

fn folded(word: &str) -> String {
    let letters = word
        .trim()
        .chars()
        .filter(|letter| !matches!(letter, '-' | '_' | ' '));
    letters.collect::<String>().to_lowercase()
}

/// A text column; numbers are taken as text.
fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A boolean column: `None` where it is no boolean, `Some(None)` where it is absent.
fn boolean(value: Option<&Value>) -> Option<Option<bool>> {
    let read = match value {
        None | Some(Value::Null) => return Some(None),
        Some(Value::Bool(value)) => *value,
        Some(Value::Number(number)) => number.as_f64()? != 0.0,
        Some(Value::String(text)) => match text.trim_matches(' ').to_ascii_lowercase().as_str() {
            "" => return Some(None),
            "1" | "true" | "\u{1}" => true,
            "0" | "false" | "\0" => false,
            _ => return None,
        },
        Some(Value::Array(bytes)) => single_byte(bytes)?,
        Some(Value::Object(buffer)) => single_byte(buffer.get("data")?.as_array()?)?,
    };
    Some(Some(read))
}

/// A one-byte buffer, as drivers hand out a BIT(1) column.
fn single_byte(bytes: &[Value]) -> Option<bool> {
    match bytes {
        [byte] => byte.as_u64().map(|byte| byte != 0),
        _ => None,
    }
}

/// A column that holds JSON, or JSON in a string; null, "" and absent are `None`.
fn json(
    value: Option<&Value>,
    field: &str,
    fits: fn(&Value) -> bool,
) -> Result<Option<Value>, ConfigFault> {
    json_owned(value.cloned(), field, fits)
}

fn json_owned(
    value: Option<Value>,
    field: &str,
    fits: fn(&Value) -> bool,
) -> Result<Option<Value>, ConfigFault> {
    let read = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => {
            serde_json::from_str(&text).map_err(|error| fault(field, &bad_json(&error)))?
        }
        Some(other) => other,
    };
    match read {
        Value::Null => Ok(None),
        read if fits(&read) => Ok(Some(read)),
        _ => Err(fault(field, "holds JSON of the wrong kind")),
    }
}

/// Where the JSON breaks, without quoting any of it: it may hold secrets.
fn bad_json(error: &serde_json::Error) -> String {
    format!(
        "is not JSON (at line {}, column {})",
        error.line(),
        error.column()
    )
}

fn text_map(
    row: &Map<String, Value>,
    field: &str,
) -> Result<BTreeMap<String, String>, ConfigFault> {
    let Some(Value::Object(members)) = json(row.get(field), field, Value::is_object)? else {
        return Ok(BTreeMap::new());
    };
    members
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| match scalar(&value) {
            Some(text) => Ok((name, text.into_owned())),
            None => Err(fault(field, &format!("holds no text for {name:?}"))),
        })
        .collect()
}

fn text_list(row: &Map<String, Value>, field: &str) -> Result<Vec<String>, ConfigFault> {
    let Some(Value::Array(items)) = json(row.get(field), field, Value::is_array)? else {
        return Ok(Vec::new());
    };
    let texts = items
        .iter()
        .enumerate()
        .map(|(at, item)| match scalar(item) {
            Some(text) => Ok(text.into_owned()),
            None => Err(fault(field, &format!("holds no text at position {at}"))),
        });
    texts.collect()
}

fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Bool(value) => Some(value.to_string().into()),
        _ => None,
    }
}

fn fault(field: &str, reason: &str) -> ConfigFault {
    ConfigFault {
        field: field.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
