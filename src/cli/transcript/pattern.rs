//! What an answer is expected to look like: JSON with wildcards for what varies.

use serde_json::{Map, Value};

const ANYTHING: &str = "<any>";
const FURTHER_ELEMENTS: &str = "<...>";
const FURTHER_MEMBERS: &str = "...";
const ANY_TEXT: &str = "<*>";

/// Whether `actual` is as `pattern` says.
pub(super) fn matches(pattern: &Value, actual: &Value) -> bool {
    match (pattern, actual) {
        (Value::String(word), actual) if is_wildcard(word) => wildcard_takes(word, actual),
        (Value::String(glob), Value::String(text)) => glob_takes(glob, text),
        (Value::Array(patterns), Value::Array(actual)) => {
            let (fixed, open) = fixed_part(patterns);
            let long_enough = actual.len() == fixed.len() || open && actual.len() > fixed.len();
            long_enough
                && fixed
                    .iter()
                    .zip(actual)
                    .all(|(pattern, actual)| matches(pattern, actual))
        }
        (Value::Object(pattern), Value::Object(actual)) => {
            let named = |name: &String| name != FURTHER_MEMBERS;
            let held = |(name, pattern): (&String, &Value)| {
                actual
                    .get(name)
                    .is_some_and(|actual| matches(pattern, actual))
            };
            pattern.iter().filter(|(name, _)| named(name)).all(held)
                && (is_open(pattern) || actual.keys().all(|name| pattern.contains_key(name)))
        }
        (pattern, actual) => pattern == actual,
    }
}

/// The actual answer, with the pattern's wildcards kept where they still hold.
pub(super) fn renew(pattern: &Value, actual: &Value) -> Value {
    match (pattern, actual) {
        (pattern, actual) if matches(pattern, actual) => pattern.clone(),
        (Value::Array(patterns), Value::Array(actual)) => {
            let (fixed, open) = fixed_part(patterns);
            let kept = if open { fixed.len() } else { actual.len() };
            let pairs = actual.iter().take(kept).enumerate();
            let mut renewed: Vec<Value> = pairs
                .map(|(position, actual)| renew(fixed.get(position).unwrap_or(actual), actual))
                .collect();
            if open {
                renewed.push(FURTHER_ELEMENTS.into());
            }
            renewed.into()
        }
        (Value::Object(pattern), Value::Object(actual)) => renew_members(pattern, actual).into(),
        (_, actual) => actual.clone(),
    }
}

fn renew_members(pattern: &Map<String, Value>, actual: &Map<String, Value>) -> Map<String, Value> {
    let mut renewed = Map::new();
    for (name, actual) in actual {
        match pattern.get(name) {
            Some(pattern) => renewed.insert(name.clone(), renew(pattern, actual)),
            None if is_open(pattern) => None,
            None => renewed.insert(name.clone(), actual.clone()),
        };
    }
    if is_open(pattern) {
        renewed.insert(FURTHER_MEMBERS.to_owned(), true.into());
    }
    renewed
}

fn is_open(pattern: &Map<String, Value>) -> bool {
    pattern.get(FURTHER_MEMBERS) == Some(&Value::Bool(true))
}

fn fixed_part(patterns: &[Value]) -> (&[Value], bool) {
    match patterns.split_last() {
        Some((last, fixed)) if last == FURTHER_ELEMENTS => (fixed, true),
        _ => (patterns, false),
    }
}

fn is_wildcard(word: &str) -> bool {
    matches!(word, ANYTHING | "<string>" | "<number>" | "<boolean>")
}

fn wildcard_takes(word: &str, actual: &Value) -> bool {
    match word {
        "<string>" => actual.is_string(),
        "<number>" => actual.is_number(),
        "<boolean>" => actual.is_boolean(),
        _ => true,
    }
}

/// Equal, each `<*>` standing for any text.
fn glob_takes(glob: &str, text: &str) -> bool {
    let Some((head, rest)) = glob.split_once(ANY_TEXT) else {
        return glob == text;
    };
    let Some(mut text) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split(ANY_TEXT).collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wildcards_take_what_they_say() {
        for (pattern, actual, expected) in [
            (json!("<any>"), json!({"a": 1}), true),
            (json!("<number>"), json!("1"), false),
            (json!("<string>"), json!(""), true),
            (
                json!("after <*> ms in <*>s"),
                json!("after 12 ms in books"),
                true,
            ),
            (json!("after <*> ms"), json!("after 12 s"), false),
            (json!("a<*>a"), json!("a"), false),
            (json!([1, "<...>"]), json!([1, 2, 3]), true),
            (json!([1, "<...>"]), json!([]), false),
            (json!([1]), json!([1, 2]), false),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), false),
            (json!({"a": 1, "...": true}), json!({"a": 1, "b": 2}), true),
            (json!({"a": 1, "...": true}), json!({"b": 2}), false),
        ] {
            assert_eq!(matches(&pattern, &actual), expected, "{pattern} {actual}");
        }
    }

    #[test]
    fn wildcards_survive_where_they_still_hold() {
        let pattern =
            json!({"a": "<number>", "b": [1, "<...>"], "c": {"x": 1, "...": true}, "d": 1});
        let actual = json!({"a": 5, "b": [2, 3], "c": {"x": 2, "y": 3}, "e": 4});
        let renewed = renew(&pattern, &actual);
        assert_eq!(
            renewed,
            json!({"a": "<number>", "b": [2, "<...>"], "c": {"x": 2, "...": true}, "e": 4})
        );
        assert!(matches(&renewed, &actual));
    }
}
