//! Reads a command's params: both spellings of every member, and a fault that names it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::members::Members;
use crate::model::error::{ErrorCode, Failure};
use crate::model::json::RawJson;

/// The params of one command. A member that is `null` counts as absent.
pub(super) struct Params<'a> {
    whole: Option<&'a RawJson>,
    members: Members<'a>,
}

impl<'a> Params<'a> {
    pub fn read(whole: Option<&'a RawJson>) -> Result<Self, Failure> {
        let members = match whole {
            Some(json) => json
                .read()
                .map_err(|_| invalid("`params` must be an object".to_owned()))?,
            None => Members::none(),
        };
        Ok(Self { whole, members })
    }

    /// Whether the member is there, and not null.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A non-empty string.
    pub fn text(&self, name: &str) -> Result<Option<Arc<str>>, Failure> {
        let text: Option<Arc<str>> = self.typed(name, "a string")?;
        match text {
            Some(text) if text.is_empty() => {
                Err(invalid(format!("`{name}` must not be an empty string")))
            }
            text => Ok(text),
        }
    }

    pub fn required_text(&self, name: &str) -> Result<Arc<str>, Failure> {
        self.text(name)?
            .ok_or_else(|| invalid(format!("`{name}` is missing: a string is expected")))
    }

    pub fn texts(&self, name: &str) -> Result<Option<Vec<Arc<str>>>, Failure> {
        self.typed(name, "an array of strings")
    }

    /// False when absent.
    pub fn flag(&self, name: &str) -> Result<bool, Failure> {
        Ok(self.typed(name, "true or false")?.unwrap_or(false))
    }

    /// An object, its text untouched; `{}` when absent.
    pub fn object(&self, name: &str) -> Result<RawJson, Failure> {
        match (self.get(name), self.whole) {
            (Some(raw), Some(whole)) if raw.get().starts_with('{') => {
                Ok(RawJson::part_of(whole.bytes(), raw))
            }
            (Some(raw), _) => Err(mistyped(name, "an object", raw)),
            (None, _) => Ok(RawJson::from(&serde_json::json!({}))),
        }
    }

    fn typed<T: DeserializeOwned>(&self, name: &str, expected: &str) -> Result<Option<T>, Failure> {
        let Some(raw) = self.get(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|_| mistyped(name, expected, raw))
    }

    /// The snake_case spelling comes before the camelCase one.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let given = |value: &&RawValue| value.get() != "null";
        let snake = self.members.get(name).filter(given);
        snake.or_else(|| {
            self.members
                .find(|member| is_camel(member, name))
                .filter(given)
        })
    }
}

pub(super) fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidParams, message)
}

fn mistyped(name: &str, expected: &str, found: &RawValue) -> Failure {
    let found = kind(found);
    invalid(format!("`{name}` must be {expected}, not {found}")).with("param", name)
}

fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array of other values",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Whether `member` is the camelCase spelling of the snake_case `name`.
fn is_camel(member: &str, name: &str) -> bool {
    let mut raised = false;
    let camel = name.chars().filter_map(|letter| {
        if letter == '_' {
            raised = true;
            return None;
        }
        let upper = std::mem::take(&mut raised);
        Some(if upper {
            letter.to_ascii_uppercase()
        } else {
            letter
        })
    });
    camel.eq(member.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &'static str) -> RawJson {
        RawJson::parse(text.into()).unwrap()
    }

    #[test]
    fn both_spellings_are_read_and_null_is_absent() {
        let json = raw(r#"{"server_name":null,"serverName":"books","toolName":"find"}"#);
        let params = Params::read(Some(&json)).unwrap();
        assert_eq!(
            params.text("server_name").unwrap().as_deref(),
            Some("books")
        );
        assert_eq!(params.text("tool_name").unwrap().as_deref(), Some("find"));
        assert_eq!(params.text("name").unwrap(), None);
    }

    #[test]
    fn a_wrong_type_names_the_member_and_what_is_expected() {
        let json = raw(r#"{"serverName":7,"refresh":"yes"}"#);
        let params = Params::read(Some(&json)).unwrap();
        let fault = params.text("server_name").unwrap_err();
        assert_eq!(
            fault.message,
            "`server_name` must be a string, not a number"
        );
        assert_eq!(fault.code, ErrorCode::InvalidParams);
        let fault = params.flag("refresh").unwrap_err();
        assert_eq!(
            fault.message,
            "`refresh` must be true or false, not a string"
        );
    }

    #[test]
    fn arguments_keep_their_text() {
        let json = raw(r#"{"arguments":{"n":1.0e2,  "s":"\u00e9"}}"#);
        let params = Params::read(Some(&json)).unwrap();
        let arguments = params.object("arguments").unwrap();
        assert_eq!(&arguments.bytes()[..], br#"{"n":1.0e2,  "s":"\u00e9"}"#);
    }

    #[test]
    fn arguments_must_be_an_object() {
        let json = raw(r#"{"arguments":"{}"}"#);
        let fault = Params::read(Some(&json)).unwrap().object("arguments");
        assert_eq!(
            fault.unwrap_err().message,
            "`arguments` must be an object, not a string"
        );
        assert_eq!(
            &Params::read(None)
                .unwrap()
                .object("arguments")
                .unwrap()
                .bytes()[..],
            b"{}"
        );
    }
}
