//! Finds secrets that stand literally in a definition, and puts placeholders in their place.

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::entry::field_name;
use super::{add_to_form, form_field};
use crate::model::secret::{Credentials, Secret};
use crate::model::template::fields_named;

/// The secrets of one row.
#[derive(Debug, Default)]
pub struct Lifted {
    /// By the field whose placeholder stands in the row now.
    pub credentials: Credentials,
    /// Where they stood: `env API_KEY`, `header Authorization`, ...
    pub places: Vec<String>,
}

/// Words in names that speak of a secret.
const WORDS: [&str; 8] = [
    "key",
    "token",
    "secret",
    "passw",
    "auth",
    "cookie",
    "credential",
    "pat",
];
/// How the tokens of well-known services begin.
const PREFIXES: [&str; 22] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "AIza",
    "eyJ",
    "hf_",
    "ntn_",
    "npm_",
    "lin_api_",
    "dop_v1_",
    "shpat_",
];
/// Schemes of the Authorization header, which are no secret.
const SCHEMES: [&str; 4] = ["Bearer ", "Basic ", "Token ", "ApiKey "];
/// Fields that become headers by themselves where a definition has a url.
const AUTOMATIC: [&str; 3] = ["api_key", "token", "API_KEY"];

/// Whether what has this name is likely a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    WORDS.iter().any(|word| match *word {
        "pat" => parts.clone().any(|part| part == "pat"),
        word => name.contains(word),
    })
}

/// Replaces every literal secret in env, headers, arguments and the url's query by a placeholder.
pub fn lift(row: &mut Map<String, Value>) -> Lifted {
    let mut lifting = Lifting {
        taken: taken(row),
        lifted: Lifted::default(),
        fields: BTreeMap::new(),
    };
    for (column, word) in [("env_template", "env"), ("headers", "header")] {
        let members = row.get_mut(column).and_then(Value::as_object_mut);
        for (name, value) in members.into_iter().flatten() {
            lifting.member(word, name, value);
        }
    }
    if let Some(Value::Array(args)) = row.get_mut("args") {
        lifting.args(args);
    }
    if let Some(Value::String(url)) = row.get_mut("url") {
        lifting.query(url);
    }
    let Lifting { lifted, .. } = lifting;
    for name in lifted.credentials.0.keys() {
        add_to_form(row, form_field(name, name));
    }
    if !lifted.places.is_empty() {
        row.entry("requires_credentials").or_insert(json!(true));
    }
    lifted
}

/// Names of fields that a new one may not have.
fn taken(row: &Map<String, Value>) -> BTreeSet<String> {
    let columns = ["args", "env_template", "url", "headers"].map(|column| row.get(column));
    let texts: Vec<String> = columns
        .into_iter()
        .flatten()
        .map(Value::to_string)
        .collect();
    let named = texts.iter().flat_map(|text| fields_named(text));
    let mut taken: BTreeSet<String> = named.map(str::to_owned).collect();
    if row.contains_key("url") {
        taken.extend(AUTOMATIC.map(str::to_owned));
    }
    taken
}

struct Lifting {
    taken: BTreeSet<String>,
    lifted: Lifted,
    /// The field of each value: a secret that stands in two places is one field.
    fields: BTreeMap<String, String>,
}

impl Lifting {
    fn member(&mut self, word: &str, name: &str, value: &mut Value) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return,
        };
        let (scheme, secret) = without_scheme(&text);
        let is_named = is_secret_name(name) && !is_path(name, secret);
        if is_literal(secret) && (is_named || is_token(secret)) {
            let placeholder = self.replace(&format!("{word} {name}"), name, secret);
            *value = json!(format!("{scheme}{placeholder}"));
        }
    }

    fn args(&mut self, args: &mut [Value]) {
        let mut flag = None;
        for value in args {
            let Value::String(text) = value else {
                flag = None;
                continue;
            };
            let before = flag.take();
            if let Some(name) = text.strip_prefix('-').filter(|_| !text.contains('=')) {
                flag = Some(name.trim_start_matches('-').to_owned());
                continue;
            }
            if let Some(done) = self.arg(before.as_deref(), text) {
                *text = done;
            }
        }
    }

    fn arg(&mut self, flag: Option<&str>, text: &str) -> Option<String> {
        for separator in [": ", ":", "="] {
            let Some((name, value)) = text.split_once(separator) else {
                continue;
            };
            let (scheme, secret) = without_scheme(value);
            let bare = name.trim_start_matches('-');
            if is_word(bare) && is_secret_name(bare) && is_value_of_flag(secret) {
                let placeholder = self.replace(&format!("argument {bare}"), bare, secret);
                return Some(format!("{name}{separator}{scheme}{placeholder}"));
            }
        }
        let flag = flag.filter(|flag| is_secret_name(flag) && is_value_of_flag(text));
        if flag.is_none() && !(is_literal(text) && is_token(text)) {
            return None;
        }
        let name = flag.unwrap_or("SECRET");
        Some(self.replace(&format!("argument {name}"), name, text))
    }

    fn query(&mut self, url: &mut String) {
        let Some((before, query)) = url.split_once('?') else {
            return;
        };
        let (query, fragment) = match query.split_once('#') {
            Some((query, fragment)) => (query, Some(fragment)),
            None => (query, None),
        };
        let mut pairs = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = percent_decode_str(value).decode_utf8_lossy().into_owned();
            let is_secret = is_secret_name(name) || is_token(&plain);
            pairs.push(match is_literal(&plain) && is_secret {
                true => format!(
                    "{name}={}",
                    self.replace(&format!("url {name}"), name, &plain)
                ),
                false => pair.to_owned(),
            });
        }
        let fragment = fragment.map_or_else(String::new, |fragment| format!("#{fragment}"));
        *url = format!("{before}?{}{fragment}", pairs.join("&"));
    }

    /// The placeholder for a secret.
    fn replace(&mut self, place: &str, name: &str, secret: &str) -> String {
        self.lifted.places.push(place.to_owned());
        if let Some(field) = self.fields.get(secret) {
            return format!("${{user.{field}}}");
        }
        let name = field_name(&name.replace('-', "_"));
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        let field = names
            .find(|name| !self.taken.contains(name))
            .unwrap_or(name);
        self.taken.insert(field.clone());
        self.fields.insert(secret.to_owned(), field.clone());
        let credentials = &mut self.lifted.credentials.0;
        credentials.insert(field.clone(), Secret::new(secret));
        format!("${{user.{field}}}")
    }
}

/// Puts `with` in the place of a url's `user:password@`.
pub fn replace_user_info(url: &mut String, with: &str) {
    let Some(start) = url.find("://").map(|at| at + 3) else {
        return;
    };
    let end = url[start..].find(['/', '?', '#']);
    let end = end.map_or(url.len(), |at| start + at);
    if let Some(at) = url[start..end].rfind('@') {
        url.replace_range(start..=start + at, with);
    }
}

fn without_scheme(text: &str) -> (&str, &str) {
    let length = SCHEMES.iter().find_map(|scheme| {
        let head = text.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(scheme.len())
    });
    text.split_at(length.unwrap_or(0))
}

/// A placeholder, a switch or nothing is no secret, whatever its name.
fn is_literal(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty() && !text.contains("${") && !["true", "false"].contains(&text)
}

/// What follows a flag may as well be another flag, a number or a file.
fn is_value_of_flag(text: &str) -> bool {
    is_literal(text)
        && !text.starts_with(['-', '/', '.', '~'])
        && !text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `GOOGLE_APPLICATION_CREDENTIALS=/etc/key.json` says where the secret is.
fn is_path(name: &str, text: &str) -> bool {
    let name = name.to_lowercase();
    let ends = ["file", "path", "dir", "credentials"];
    ends.iter().any(|end| name.ends_with(end)) && text.starts_with(['/', '~', '.'])
}

fn is_token(text: &str) -> bool {
    let is_prefixed = PREFIXES
        .iter()
        .any(|prefix| text.len() >= prefix.len() + 12 && text.starts_with(prefix));
    let user_info = text.split_once("://").and_then(|(_, rest)| {
        let authority = rest.split(['/', '?', '#']).next()?;
        authority.rsplit_once('@')?.0.split_once(':')
    });
    is_prefixed || user_info.is_some_and(|(_, password)| !password.is_empty())
}

fn is_word(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    !text.is_empty() && text.chars().all(fits)
}
