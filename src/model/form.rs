//! The form of a server's credentials: which fields to ask for, and whether what was given fits.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

use super::definition::{Definition, Template};
use super::secret::{Credentials, Secret};
use super::template::fields_named;

/// The longest value of one field, in bytes.
const LONGEST_VALUE: usize = 64 * 1024;

/// Fields that become headers by themselves where a server has a url.
const AUTOMATIC: [&str; 3] = ["api_key", "token", "API_KEY"];

/// One field to ask for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    pub name: String,
    pub label: String,
    /// `password` unless the definition says otherwise.
    #[serde(rename = "type")]
    pub kind: String,
    /// As the definition says; else whether a placeholder of it names the field.
    pub required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The only values there are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// The fields of one server.
#[derive(Debug, PartialEq)]
pub struct Form(pub Vec<Field>);

/// What somebody gave for a form: a value, or of what kind it is where it is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given(BTreeMap<String, Result<Secret, &'static str>>);

/// Everything that is wrong with what was given; a field and a reason each, never a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldFault {
    pub field: String,
    /// Reads after the field's name.
    pub reason: String,
}

impl Given {
    /// Null counts as not given; numbers and booleans as text.
    pub fn read(fields: Map<String, Value>) -> Self {
        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        let given = fields.map(|(name, value)| {
            let value = match value {
                Value::String(text) => Ok(Secret::new(text)),
                Value::Number(number) => Ok(Secret::new(number.to_string())),
                Value::Bool(flag) => Ok(Secret::new(flag.to_string())),
                Value::Array(_) => Err("must be a text, not an array"),
                _ => Err("must be a text, not an object"),
            };
            (name, value)
        });
        Self(given.collect())
    }

    /// Every value, for the redactor.
    pub fn values(&self) -> impl Iterator<Item = &Secret> {
        self.0.values().filter_map(|value| value.as_ref().ok())
    }
}

impl Form {
    /// The fields that the definition declares, then those that only its placeholders name.
    pub fn of(definition: &Definition) -> Self {
        let named = named(definition);
        let declared = definition.credential_fields.as_array();
        let declared = declared.into_iter().flatten();
        let mut fields: Vec<Field> = declared.filter_map(|field| read(field, &named)).collect();
        for name in &named {
            if !fields.iter().any(|field| field.name == *name) {
                fields.push(bare(name, true));
            }
        }
        let is_http = matches!(definition.template, Ok(Template::Http { .. }));
        if fields.is_empty() && is_http {
            fields.extend(AUTOMATIC.map(|name| bare(name, false)));
        }
        Self(fields)
    }

    /// The credentials that were given. An empty text counts as not given.
    ///
    /// # Errors
    /// Every field that is missing, unknown, or holds what it may not hold.
    pub fn check(&self, given: &Given) -> Result<Credentials, Vec<FieldFault>> {
        let mut faults = Vec::new();
        let mut add = |field: &str, reason: &str| {
            faults.push(FieldFault {
                field: field.to_owned(),
                reason: reason.to_owned(),
            });
        };
        let mut read = BTreeMap::new();
        for (name, value) in &given.0 {
            let field = self.0.iter().find(|field| field.name == *name);
            match (field, value) {
                (None, _) => add(name, "is no field of this server"),
                (_, Err(kind)) => add(name, kind),
                (Some(_), Ok(value)) if value.expose().is_empty() => {}
                (Some(field), Ok(value)) => match flaw(field, value.expose()) {
                    Some(reason) => add(name, &reason),
                    None => {
                        read.insert(name.clone(), value.clone());
                    }
                },
            }
        }
        let is_faulty = |name: &str| given.0.get(name).is_some_and(Result::is_err);
        for field in self.0.iter().filter(|field| field.required) {
            let is_given = read.contains_key(&field.name)
                || given
                    .values_of(&field.name)
                    .is_some_and(|text| !text.is_empty());
            if !is_given && !is_faulty(&field.name) {
                add(&field.name, "is required");
            }
        }
        match (faults.is_empty(), read.is_empty()) {
            (false, _) => Err(faults),
            (true, false) => Ok(Credentials(read)),
            (true, true) if self.0.is_empty() => Err(vec![FieldFault {
                field: String::new(),
                reason: "this server takes no credentials".to_owned(),
            }]),
            (true, true) => Err(self.none_given()),
        }
    }

    fn none_given(&self) -> Vec<FieldFault> {
        let fields = self.0.iter().map(|field| FieldFault {
            field: field.name.clone(),
            reason: "or another field must be given".to_owned(),
        });
        fields.collect()
    }
}

impl Given {
    fn values_of(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_ref().ok().map(Secret::expose)
    }
}

fn flaw(field: &Field, value: &str) -> Option<String> {
    if value.len() > LONGEST_VALUE {
        return Some(format!("is longer than {LONGEST_VALUE} bytes"));
    }
    if value.contains('\0') {
        return Some("holds a NUL character".to_owned());
    }
    let fits = field.options.is_empty() || field.options.iter().any(|option| option == value);
    (!fits).then(|| format!("must be one of {}", field.options.join(", ")))
}

/// The fields that placeholders name.
fn named(definition: &Definition) -> BTreeSet<String> {
    let (texts, env): (Vec<&String>, _) = match &definition.template {
        Ok(Template::Stdio { args, env, .. }) => (args.iter().collect(), env),
        Ok(Template::Http { url, headers, env }) => {
            (std::iter::once(url).chain(headers.values()).collect(), env)
        }
        Err(_) => return BTreeSet::new(),
    };
    let texts = texts.into_iter().chain(env.values());
    texts
        .flat_map(|text| fields_named(text))
        .map(str::to_owned)
        .collect()
}

fn bare(name: &str, required: bool) -> Field {
    Field {
        name: name.to_owned(),
        label: name.to_owned(),
        kind: "password".to_owned(),
        required,
        help: None,
        options: Vec::new(),
    }
}

/// A declared field: an object, or its name alone.
fn read(field: &Value, named: &BTreeSet<String>) -> Option<Field> {
    let text = |member: &str| field[member].as_str().map(str::to_owned);
    let name = field.as_str().map(str::to_owned);
    let name = name.or_else(|| text("name")).or_else(|| text("key"))?;
    let required = match &field["required"] {
        Value::Bool(required) => *required,
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => named.contains(&name),
    };
    let options = field["options"].as_array().into_iter().flatten();
    Some(Field {
        label: text("label").unwrap_or_else(|| name.clone()),
        kind: text("type").unwrap_or_else(|| "password".to_owned()),
        help: text("help").or_else(|| text("description")),
        options: options
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        required,
        name,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::row;

    fn form(row: Value) -> Form {
        let mut row = row;
        row["name"] = "books".into();
        row["id"] = "1".into();
        Form::of(&row::definition(row).unwrap())
    }

    fn given(fields: Value) -> Given {
        Given::read(fields.as_object().cloned().unwrap())
    }

    fn faults(form: &Form, fields: Value) -> Vec<(String, String)> {
        let faults = form.check(&given(fields)).unwrap_err().into_iter();
        faults.map(|fault| (fault.field, fault.reason)).collect()
    }

    #[test]
    fn declared_fields_come_first_and_placeholders_make_the_rest() {
        let form = form(json!({
            "command": "x", "args": ["${user.REGION}"], "env_template": {"K": "${user.KEY}", "O": "${user.OTHER}"},
            "credential_fields": [
                {"name": "KEY", "label": "The key", "type": "text", "help": "From the settings page"},
                "EXTRA", {"key": "REGION", "options": ["eu", "us"], "required": false}, {"label": "nameless"},
            ],
        }));
        let shown = serde_json::to_value(&form.0).unwrap();
        let expected = json!([
            {"name": "KEY", "label": "The key", "type": "text", "required": true, "help": "From the settings page"},
            {"name": "EXTRA", "label": "EXTRA", "type": "password", "required": false},
            {"name": "REGION", "label": "REGION", "type": "password", "required": false, "options": ["eu", "us"]},
            {"name": "OTHER", "label": "OTHER", "type": "password", "required": true},
        ]);
        assert_eq!(shown, expected);
    }

    #[test]
    fn every_field_that_does_not_fit_is_named_and_no_value_shown() {
        let form = form(json!({
            "command": "x", "env_template": {"K": "${user.KEY}", "L": "${user.LIST}", "M": "${user.MISSING}"},
            "credential_fields": [{"name": "REGION", "options": ["eu", "us"]}],
        }));
        let fields = json!({"KEY": "a\0hush", "LIST": ["hush"], "REGION": "hush", "WRONG": "hush", "MISSING": ""});
        let faults = faults(&form, fields);
        let expected = [
            ("KEY", "holds a NUL character"),
            ("LIST", "must be a text, not an array"),
            ("REGION", "must be one of eu, us"),
            ("WRONG", "is no field of this server"),
            ("MISSING", "is required"),
        ];
        let faults: Vec<_> = faults
            .iter()
            .map(|(field, reason)| (&**field, &**reason))
            .collect();
        assert_eq!(faults, expected);
        let good = given(json!({"KEY": 7, "LIST": true, "MISSING": "m", "REGION": null}));
        let read = form.check(&good).unwrap();
        assert_eq!(read.get("KEY").unwrap().expose(), "7");
        assert_eq!(read.0.len(), 3);
        assert!(!format!("{good:?}").contains("\"m\""));
    }

    #[test]
    fn a_server_without_a_form_takes_what_becomes_a_header_or_nothing() {
        let http = form(json!({"url": "https://w.example", "transport_type": "http"}));
        assert!(http.check(&given(json!({"token": "t"}))).is_ok());
        assert_eq!(faults(&http, json!({})).len(), 3);
        let stdio = form(json!({"command": "x"}));
        assert_eq!(
            faults(&stdio, json!({}))[0].1,
            "this server takes no credentials"
        );
        assert_eq!(faults(&stdio, json!({"K": "v"}))[0].0, "K");
    }
}
