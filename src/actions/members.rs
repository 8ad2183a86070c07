//! The members of a JSON object as they stand in its text, for values that are passed on untouched.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Names and raw values in the order of the text; a repeated name stays repeated.
pub(super) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// The value of `name`; of several, the last, as most readers of JSON take it.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.find(|member| member == name)
    }

    /// The last value whose name `wanted` accepts.
    pub fn find(&self, wanted: impl Fn(&str) -> bool) -> Option<&'a RawValue> {
        let mut latest_first = self.0.iter().rev();
        latest_first
            .find(|(member, _)| wanted(member))
            .map(|(_, value)| *value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct Collect;

impl<'de> Visitor<'de> for Collect {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            members.push((name, value));
        }
        Ok(Members(members))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_text() {
        let members: Members =
            serde_json::from_str(r#"{"a": 1.50, "b\u0041":{ "x":[] }}"#).unwrap();
        assert_eq!(members.get("a").unwrap().get(), "1.50");
        assert_eq!(members.get("bA").unwrap().get(), r#"{ "x":[] }"#);
    }

    #[test]
    fn the_last_of_a_repeated_name_counts() {
        let members: Members = serde_json::from_str(r#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(members.get("a").unwrap().get(), "2");
    }
}
