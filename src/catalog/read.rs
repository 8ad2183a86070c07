//! Reads what a server lists, one tool at a time: a bad one costs the others nothing.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Tool;
use crate::mcp::ListedTools;
use crate::model::json::RawJson;

/// The largest definition in the field is 82 KB.
const MAX_TOOL: usize = 256 * 1024;
/// How much of a name a warning shows.
const SHOWN: usize = 80;

/// The tools that can be used, and what was left out with the reason.
pub(super) fn read(listed: ListedTools) -> (Vec<Tool>, Vec<String>) {
    let mut warnings = listed.warnings;
    let mut seen = HashSet::new();
    let mut tools = Vec::with_capacity(listed.tools.len());
    for (index, raw) in listed.tools.into_iter().enumerate() {
        match tool(raw) {
            Ok(tool) if seen.insert(Arc::clone(&tool.name)) => tools.push(tool),
            Ok(tool) => warnings.push(left_out(
                Some(&tool.name),
                index,
                "the name is taken already",
            )),
            Err((name, reason)) => warnings.push(left_out(name.as_deref(), index, &reason)),
        }
    }
    (tools, warnings)
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "inputSchema")]
    input_schema: Option<&'a RawValue>,
    #[serde(borrow, default)]
    annotations: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Annotations {
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
}

type Refused = (Option<String>, String);

fn tool(raw: RawJson) -> Result<Tool, Refused> {
    let bare = |reason: String| (None, reason);
    if raw.bytes().first() != Some(&b'{') {
        return Err(bare("it is not an object".into()));
    }
    let head: Head = raw.read().map_err(|error| bare(error.to_string()))?;
    let name = head
        .name
        .and_then(|name| serde_json::from_str::<Cow<str>>(name.get()).ok())
        .filter(|name| !name.is_empty())
        .ok_or_else(|| bare("its name is not a non-empty string".into()))?;
    let named = |reason: String| (Some(name.to_string()), reason);
    if raw.bytes().len() > MAX_TOOL {
        let reason = format!("its definition is larger than {MAX_TOOL} bytes");
        return Err(named(reason));
    }
    let schema = head.input_schema.map_or("", RawValue::get);
    if !schema.starts_with('{') {
        return Err(named("its inputSchema is not an object".into()));
    }
    let name = Arc::from(&*name);
    let may_repeat = head.annotations.is_some_and(may_repeat);
    Ok(Tool {
        name,
        raw,
        may_repeat,
    })
}

/// Hints that contradict each other are worth nothing; neither are those that cannot be read.
fn may_repeat(annotations: &RawValue) -> bool {
    let hints: Annotations = serde_json::from_str(annotations.get()).unwrap_or_default();
    let reads = hints.read_only_hint == Some(true);
    let contradictory = reads && hints.destructive_hint == Some(true);
    !contradictory && (reads || hints.idempotent_hint == Some(true))
}

/// Names are foreign text: shortened, and escaped by their debug form.
fn left_out(name: Option<&str>, index: usize, reason: &str) -> String {
    match name {
        Some(name) => {
            let shown: String = name.chars().take(SHOWN).collect();
            format!("tool {shown:?} is left out: {reason}")
        }
        None => format!("tool number {} is left out: {reason}", index + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(tools: &[&str]) -> ListedTools {
        let raw = |text: &&str| RawJson::parse(text.to_string().into()).unwrap();
        ListedTools {
            tools: tools.iter().map(raw).collect(),
            warnings: Vec::new(),
        }
    }

    fn repeats(annotations: &str) -> bool {
        let text = format!(r#"{{"name":"t","inputSchema":{{}},"annotations":{annotations}}}"#);
        read(listed(&[&text])).0[0].may_repeat
    }

    #[test]
    fn a_bad_tool_is_left_out_alone_and_named() {
        let large = format!(
            r#"{{"name":"large","inputSchema":{{}},"description":"{}"}}"#,
            "x".repeat(MAX_TOOL)
        );
        let (tools, warnings) = read(listed(&[
            r#"{"name":"good","inputSchema":{"type":"object"},"x":1}"#,
            r#"["name"]"#,
            r#"{"inputSchema":{}}"#,
            r#"{"name":"","inputSchema":{}}"#,
            r#"{"name":7,"inputSchema":{}}"#,
            r#"{"name":"no\nschema"}"#,
            r#"{"name":"odd","inputSchema":true}"#,
            &large,
            r#"{"name":"good","inputSchema":{},"second":true}"#,
            r#"{"name":"caf\u00e9","inputSchema":{ }}"#,
        ]));
        let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["good", "café"]);
        assert_eq!(
            tools[0].raw.bytes(),
            r#"{"name":"good","inputSchema":{"type":"object"},"x":1}"#
        );
        let expected = [
            "tool number 2 is left out: it is not an object",
            "tool number 3 is left out: its name is not a non-empty string",
            "tool number 4 is left out: its name is not a non-empty string",
            "tool number 5 is left out: its name is not a non-empty string",
            r#"tool "no\nschema" is left out: its inputSchema is not an object"#,
            r#"tool "odd" is left out: its inputSchema is not an object"#,
            r#"tool "large" is left out: its definition is larger than 262144 bytes"#,
            r#"tool "good" is left out: the name is taken already"#,
        ];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn a_tool_may_be_repeated_only_where_its_hints_say_so_without_contradiction() {
        assert!(repeats(r#"{"readOnlyHint":true}"#));
        assert!(repeats(r#"{"readOnlyHint":true,"destructiveHint":false}"#));
        assert!(repeats(r#"{"idempotentHint":true,"destructiveHint":true}"#));
        assert!(!repeats(r#"{"readOnlyHint":true,"destructiveHint":true}"#));
        assert!(!repeats(
            r#"{"readOnlyHint":true,"destructiveHint":true,"idempotentHint":true}"#
        ));
        assert!(!repeats(r#"{"readOnlyHint":false,"idempotentHint":false}"#));
        assert!(!repeats(r#"{"readOnlyHint":"yes"}"#));
        assert!(!repeats("{}"));
        assert!(!repeats("[1]"));
    }
}
