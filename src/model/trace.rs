//! W3C trace context and baggage: checked, and passed on as the host sent them. Never made up.

use serde::Deserialize;
use serde_json::Value;

use super::json::RawJson;

/// What a tracestate may hold, and how long baggage may be (W3C Trace Context; W3C Baggage).
const MAX_STATES: usize = 32;
const MAX_BAGGAGE: usize = 8192;

/// The trace that a call belongs to, in the values of the W3C's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    parent: Option<String>,
    state: Option<String>,
    baggage: Option<String>,
}

/// Other members are not ours.
#[derive(Deserialize)]
struct Members {
    traceparent: Option<Value>,
    tracestate: Option<Value>,
    baggage: Option<Value>,
}

impl Trace {
    /// Reads the three members of a JSON object.
    ///
    /// # Errors
    /// A sentence that names the member and what is wrong with it.
    pub fn read(object: &RawJson) -> Result<Self, String> {
        let members: Members = object
            .read()
            .map_err(|_| "an object is expected, with each member once".to_owned())?;
        let trace = Self {
            parent: checked("traceparent", members.traceparent, is_parent)?,
            state: checked("tracestate", members.tracestate, is_state)?,
            baggage: checked("baggage", members.baggage, is_baggage)?,
        };
        match (&trace.parent, &trace.state) {
            (None, Some(_)) => Err("`tracestate` means nothing without `traceparent`".to_owned()),
            _ => Ok(trace),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.members().next().is_none()
    }

    /// Names and values, those that are there.
    pub fn members(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let members = [
            ("traceparent", &self.parent),
            ("tracestate", &self.state),
            ("baggage", &self.baggage),
        ];
        members
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }
}

fn checked(
    name: &str,
    value: Option<Value>,
    is_valid: fn(&str) -> bool,
) -> Result<Option<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if is_valid(&text) => Ok(Some(text)),
        Some(_) => Err(format!("`{name}` is not a valid W3C {name}")),
    }
}

/// `00-{trace}-{parent}-{flags}`; a later version may have more behind it.
fn is_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, parent, flags, rest @ ..] = parts.as_slice() else {
        return false;
    };
    let is_id = |id: &str, length| is_hex(id, length) && id.bytes().any(|digit| digit != b'0');
    is_hex(version, 2)
        && *version != "ff"
        && is_id(trace, 32)
        && is_id(parent, 16)
        && is_hex(flags, 2)
        && (rest.is_empty() || *version != "00")
        && rest
            .iter()
            .all(|rest| rest.bytes().all(|byte| byte.is_ascii_graphic()))
}

fn is_hex(text: &str, length: usize) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == length && text.bytes().all(is_digit)
}

/// `key=value,...`, each key once.
fn is_state(text: &str) -> bool {
    let members: Vec<&str> = members(text).filter(|member| !member.is_empty()).collect();
    let keys = members.iter().filter_map(|member| state_key(member));
    let mut keys: Vec<&str> = keys.collect();
    let all_valid = keys.len() == members.len();
    keys.sort_unstable();
    keys.dedup();
    all_valid && keys.len() == members.len() && (1..=MAX_STATES).contains(&keys.len())
}

fn state_key(member: &str) -> Option<&str> {
    let (key, value) = member.split_once('=')?;
    let in_key =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let in_value = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    let is_key = key
        .starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && key.len() <= 256
        && key.matches('@').count() <= 1
        && key.bytes().all(in_key);
    let is_value = (1..=256).contains(&value.len()) && value.bytes().all(in_value);
    (is_key && is_value).then_some(key)
}

/// `key=value;property,...`, values percent-encoded.
fn is_baggage(text: &str) -> bool {
    let is_member = |member: &str| {
        let mut parts = member.split(';').map(trimmed);
        let first = parts.next().unwrap_or_default();
        first.contains('=') && is_pair(first) && parts.all(is_pair)
    };
    text.len() <= MAX_BAGGAGE && members(text).all(is_member)
}

fn is_pair(text: &str) -> bool {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let (key, value) = (trimmed(key), trimmed(value));
    let in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let in_value = |byte: u8| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte);
    !key.is_empty() && key.bytes().all(in_token) && value.bytes().all(in_value)
}

fn members(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(trimmed)
}

fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn valid_values_are_kept_as_they_are_and_other_members_left() {
        let state = "rojo=00f067aa0ba902b7, tenant@sys=a b:c,";
        let baggage = "userId=alice , x=%20;prop;k = v,empty=";
        let object = json!({"traceparent": PARENT, "tracestate": state, "baggage": baggage, "progressToken": 1});
        let trace = Trace::read(&RawJson::from(&object)).expect("valid");
        let expected = [
            ("traceparent", PARENT),
            ("tracestate", state),
            ("baggage", baggage),
        ];
        assert_eq!(trace.members().collect::<Vec<_>>(), expected);
        let none = Trace::read(&RawJson::from(&json!({"traceparent": null}))).expect("valid");
        assert!(none.is_empty());
        assert!(is_parent(&PARENT.replacen("00", "01", 1)));
        assert!(is_parent(&(PARENT.replacen("00", "01", 1) + "-more")));
    }

    #[test]
    fn values_that_are_not_valid_are_refused() {
        let long_state = (0..33)
            .map(|n| format!("k{n}=v"))
            .collect::<Vec<_>>()
            .join(",");
        let long_baggage = format!("k={}", "v".repeat(MAX_BAGGAGE));
        let upper = PARENT.to_uppercase();
        let more = format!("{PARENT}-more");
        for (name, value) in [
            ("traceparent", ""),
            ("traceparent", upper.as_str()),
            ("traceparent", more.as_str()),
            (
                "traceparent",
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
            (
                "traceparent",
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            ),
            (
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            ),
            ("tracestate", ""),
            ("tracestate", "Rojo=1"),
            ("tracestate", "a=1,a=2"),
            ("tracestate", "a"),
            ("tracestate", long_state.as_str()),
            ("baggage", "no-value"),
            ("baggage", ""),
            ("baggage", "k=v\r\nX: y"),
            ("baggage", "k=\"v\""),
            ("baggage", long_baggage.as_str()),
        ] {
            let mut object = json!({ "traceparent": PARENT });
            object[name] = value.into();
            let fault = Trace::read(&RawJson::from(&object)).expect_err(value);
            assert!(fault.contains(name), "{fault}");
        }
        for object in [
            json!({"tracestate": "a=1"}),
            json!({"traceparent": 1}),
            json!([]),
        ] {
            assert!(Trace::read(&RawJson::from(&object)).is_err(), "{object}");
        }
    }
}
