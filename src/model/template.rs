//! Placeholders: `${user.FIELD}`, `${NAME}` in headers, `$${` for a literal `${`.
//!
//! One pass, left to right: what was put in is never looked at again. Which values may go where is
//! decided here too; who the values belong to is decided in `resolve`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::LazyLock;

use http::{HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use regex::{Captures, Regex};
use url::{Host, Url};

/// In order of preference at one position: an escape, a credential field, another name, a `${` that
/// opens nothing.
static PLACEHOLDER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"\$\$\{|\$\{user\.([A-Za-z_][A-Za-z0-9_.-]*)\}|\$\{([^{}$]*)\}|\$\{").ok()
});

/// Everything but the unreserved characters of RFC 3986.
const URL_VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Names a definition may not set: they belong to the HTTP layer and to the protocol.
const RESERVED_HEADERS: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];

/// Where a template stands, and so what it may name and what may be put in.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    Arg,
    Env,
    /// With the env map of the same server, which `${NAME}` looks up.
    Header(&'a BTreeMap<String, String>),
    /// A value of the env map on its way into a header: names are not looked up again.
    NamedInHeader,
    Url,
}

/// The credentials in force, by field.
pub type Fields<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

/// Why a template cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The credentials have no such field.
    Missing(String),
    /// The field's value may not stand there.
    Refused { field: String, reason: &'static str },
    /// The template itself is at fault; reads after "`field` ".
    Template(String),
}

/// Fills in `template`.
pub fn expand<'p, 'f: 'p>(
    template: &'p str,
    place: Place<'p>,
    fields: &Fields<'f>,
) -> Result<String, Flaw> {
    let Some(first) = template.find("${") else {
        return Ok(template.to_owned());
    };
    let Some(pattern) = PLACEHOLDER.as_ref() else {
        return Err(Flaw::Template("could not be read".to_owned()));
    };
    let mut pieces: Vec<Cow<'p, str>> = Vec::new();
    let mut leading = None;
    let mut end = 0;
    for found in pattern.captures_iter(template) {
        let start = found.get_match().start();
        pieces.push(template[end..start].into());
        end = found.get_match().end();
        pieces.push(piece(&found, place, fields)?);
        if start == 0 && first == 0 {
            leading = found.get(1).map(|field| field.as_str());
        }
    }
    pieces.push(template[end..].into());
    let text = pieces.concat();
    match (place, leading) {
        (Place::Arg, Some(field)) if text.starts_with('-') => Err(Flaw::Refused {
            field: field.to_owned(),
            reason: "would make an argument begin with '-', that is, an option",
        }),
        _ => Ok(text),
    }
}

/// The credential fields that `template` names.
pub fn fields_named(template: &str) -> impl Iterator<Item = &str> {
    let pattern = PLACEHOLDER.as_ref().into_iter();
    let found = pattern.flat_map(move |pattern| pattern.captures_iter(template));
    found.filter_map(|found| found.get(1).map(|field| field.as_str()))
}

/// What one match of the pattern is replaced by.
fn piece<'p, 'f: 'p>(
    found: &Captures<'p>,
    place: Place<'p>,
    fields: &Fields<'f>,
) -> Result<Cow<'p, str>, Flaw> {
    let whole = found.get_match().as_str();
    if whole == "$${" {
        return Ok("${".into());
    }
    if let Some(field) = found.get(1) {
        let value = fields(field.as_str()).ok_or_else(|| Flaw::Missing(field.as_str().into()))?;
        return admit(field.as_str(), value, place);
    }
    if whole.starts_with("${user.") {
        return Err(Flaw::Template(format!(
            "holds the placeholder {whole}, which names no field: letters, digits, '_', '.' and '-' make a field name"
        )));
    }
    match (place, found.get(2)) {
        (Place::Header(env), Some(name)) => match env.get(name.as_str()) {
            Some(value) => expand(value, Place::NamedInHeader, fields).map(Cow::Owned),
            None => Err(Flaw::Template(format!(
                "holds {whole}, but env_template has no {:?}; write $${{ for a literal ${{",
                name.as_str()
            ))),
        },
        (Place::Header(_), None) => Err(Flaw::Template(
            "holds a ${ that is never closed; write $${ for a literal ${".to_owned(),
        )),
        _ => Ok(whole.into()),
    }
}

/// A credential value, in the form in which it may stand at `place`.
fn admit<'a>(field: &str, value: &'a str, place: Place<'_>) -> Result<Cow<'a, str>, Flaw> {
    let refused = |reason| {
        Err(Flaw::Refused {
            field: field.to_owned(),
            reason,
        })
    };
    match place {
        Place::Arg | Place::Env if value.contains('\0') => refused("holds a NUL character"),
        Place::Arg | Place::Env => Ok(value.into()),
        Place::Header(_) | Place::NamedInHeader => match header_reason(value) {
            Some(reason) => refused(reason),
            None => Ok(value.into()),
        },
        Place::Url if matches!(value, "." | "..") => {
            refused("would climb to another path of the url")
        }
        Place::Url => Ok(utf8_percent_encode(value, URL_VALUE).into()),
    }
}

/// Why a credential value may not stand in a header, if so.
pub fn header_reason(value: &str) -> Option<&'static str> {
    if value.chars().any(char::is_control) {
        return Some("holds a line break or another control character");
    }
    if !value.is_ascii() {
        return Some("holds a character outside ASCII, which a header cannot carry");
    }
    None
}

/// Fills in a url. Its scheme, host and port are the definition's own: whatever the values, the
/// origin stays, and so does the number of path segments.
pub fn expand_url(template: &str, fields: &Fields<'_>) -> Result<String, Flaw> {
    let origin = neutral_url(template)?;
    let text = expand(template, Place::Url, fields)?;
    let url = parse_url(&text)?;
    if url.origin() != origin.origin() {
        return Err(moved_origin());
    }
    Ok(text)
}

/// The url with harmless values put in, which tells whether the template can be used at all.
fn neutral_url(template: &str) -> Result<Url, Flaw> {
    let one = expand(template, Place::Url, &|_| Some("1"))?;
    let url = parse_url(&one)?;
    if one == template {
        return Ok(url);
    }
    let two = expand(template, Place::Url, &|_| Some("2"))?;
    match parse_url(&two) {
        Ok(other) if other.origin() == url.origin() => Ok(url),
        _ => Err(moved_origin()),
    }
}

fn parse_url(text: &str) -> Result<Url, Flaw> {
    let url = Url::parse(text).map_err(|error| Flaw::Template(format!("is no url: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Flaw::Template(
            "must begin with http:// or https://".to_owned(),
        ));
    }
    Ok(url)
}

/// Whether requests to the url cross a network unencrypted: http to anything but localhost, a name
/// without a domain (a container's, say) and addresses of this machine or a private network.
pub fn is_plain_and_remote(template: &str) -> bool {
    let Ok(url) = neutral_url(template) else {
        return false;
    };
    let is_near = match url.host() {
        Some(Host::Ipv4(address)) => is_near(address),
        Some(Host::Ipv6(address)) => match address.to_ipv4_mapped() {
            Some(address) => is_near(address),
            None => {
                address.is_loopback()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
            }
        },
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            !name.contains('.') || name.ends_with(".localhost")
        }
        None => false,
    };
    url.scheme() == "http" && !is_near
}

fn is_near(address: Ipv4Addr) -> bool {
    address.is_loopback() || address.is_private() || address.is_link_local()
}

/// Whether a header of this name holds a credential whatever stands in it.
pub fn is_credential_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "cookie", "key", "token", "secret", "password"]
        .iter()
        .any(|word| name.contains(word))
}

fn moved_origin() -> Flaw {
    Flaw::Template("may hold placeholders only after the host and port".to_owned())
}

/// The name of a header that a definition sets.
pub fn header_name(name: &str) -> Result<HeaderName, Flaw> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Flaw::Template(format!("holds {name:?}, which is no header name")))?;
    let reserved =
        RESERVED_HEADERS.contains(&parsed.as_str()) || parsed.as_str().starts_with("mcp-");
    if reserved {
        return Err(Flaw::Template(format!(
            "sets {parsed}, which is not a definition's to set"
        )));
    }
    Ok(parsed)
}

/// A header value, marked so that it is never printed.
pub fn header_value(text: &str) -> Result<HeaderValue, Flaw> {
    let legal = !text.chars().any(char::is_control);
    match HeaderValue::from_bytes(text.as_bytes()) {
        Ok(mut value) if legal => {
            value.set_sensitive(true);
            Ok(value)
        }
        _ => Err(Flaw::Template(
            "holds a line break or another control character".to_owned(),
        )),
    }
}

/// All headers of a definition, filled in. A name is set once.
pub fn expand_headers(
    headers: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
    fields: &Fields<'_>,
) -> Result<Vec<(HeaderName, HeaderValue)>, Flaw> {
    let mut list: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(headers.len() + 2);
    for (name, template) in headers {
        let name = header_name(name)?;
        if list.iter().any(|(other, _)| *other == name) {
            return Err(Flaw::Template(format!("sets {name} twice")));
        }
        let value = expand(template, Place::Header(env), fields)?;
        list.push((name, header_value(&value)?));
    }
    Ok(list)
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
