//! The default form of a tool's result, cut out of the server's text: no payload is decoded,
//! encoded or copied.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::members::Members;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::json::{RawJson, Rope};

/// `{"content":"the text blocks joined by newlines","raw":[...],"is_error":...}` of a `CallToolResult`.
///
/// # Errors
/// `protocol_error` when the result is no object, or its content no array of objects.
pub(super) fn render(result: &RawJson) -> Result<Rope, Failure> {
    let members: Members = result.read().map_err(|_| unusable("it is not an object"))?;
    let present = |name: &str| members.get(name).filter(|value| value.get() != "null");
    let whole = result.bytes();
    let content = present("content");

    let mut answer = Rope::default();
    answer.push(&b"{\"content\":\""[..]);
    push_text(&mut answer, whole, content)?;
    answer.push(&b"\",\"raw\":"[..]);
    answer.push(content.map_or(Bytes::from_static(b"[]"), |raw| slice(whole, raw.get())));
    answer.push(if says_error(&members) {
        &b",\"is_error\":true"[..]
    } else {
        &b",\"is_error\":false"[..]
    });
    for (ours, theirs) in [
        (&b",\"structured_content\":"[..], "structuredContent"),
        (&b",\"_meta\":"[..], "_meta"),
    ] {
        if let Some(value) = members.get(theirs) {
            answer.push(ours);
            answer.push(slice(whole, value.get()));
        }
    }
    answer.push(&b"}"[..]);
    Ok(answer)
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

/// The insides of the text blocks' JSON strings, an escaped newline between them.
fn push_text(answer: &mut Rope, whole: &Bytes, content: Option<&RawValue>) -> Result<(), Failure> {
    let Some(content) = content else {
        return Ok(());
    };
    let blocks: Vec<Block> = serde_json::from_str(content.get())
        .map_err(|_| unusable("its `content` is not an array of content blocks"))?;
    let is_text = |block: &&Block| block.kind.is_some_and(|kind| kind.get() == "\"text\"");
    let insides = blocks.iter().filter(is_text).filter_map(|block| {
        let quoted = block.text?.get();
        quoted.strip_prefix('"')?.strip_suffix('"')
    });
    for (position, inside) in insides.enumerate() {
        if position > 0 {
            answer.push(&b"\\n"[..]);
        }
        answer.push(slice(whole, inside));
    }
    Ok(())
}

static IS_ERROR: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"isError\""));

/// Whether a `CallToolResult` says that the tool failed.
pub(super) fn is_tool_error(result: &RawJson) -> bool {
    // Most results do not have the member, and may be long.
    IS_ERROR.find(result.bytes()).is_some()
        && result
            .read::<Members>()
            .is_ok_and(|members| says_error(&members))
}

fn says_error(members: &Members) -> bool {
    let flag = members.get("isError");
    flag.is_some_and(|flag| flag.get() == "true")
}

fn slice(whole: &Bytes, part: &str) -> Bytes {
    whole.slice_ref(part.as_bytes())
}

fn unusable(why: &str) -> Failure {
    let message = format!("the server's result cannot be used: {why}");
    Failure::new(ErrorCode::ProtocolError, message).phase(Phase::Call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &'static str) -> String {
        let result = RawJson::parse(text.into()).unwrap();
        String::from_utf8(render(&result).unwrap().concat()).unwrap()
    }

    #[test]
    fn texts_are_joined_without_decoding_and_the_rest_passes_unchanged() {
        let answer = rendered(
            r#"{"content":[{"type":"text","text":"a\u00e9\"\\"},{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"text","text":"b\n","x":1.0}],"structuredContent":{"n": 1.50},"isError":true,"_meta":{"k":[1]},"resultType":"complete"}"#,
        );
        assert_eq!(
            answer,
            r#"{"content":"a\u00e9\"\\\nb\n","raw":[{"type":"text","text":"a\u00e9\"\\"},{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"text","text":"b\n","x":1.0}],"is_error":true,"structured_content":{"n": 1.50},"_meta":{"k":[1]}}"#,
        );
        let value: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(value["content"], "aé\"\\\nb\n");
    }

    #[test]
    fn a_result_without_content_is_empty() {
        assert_eq!(
            rendered("{}"),
            r#"{"content":"","raw":[],"is_error":false}"#
        );
        assert_eq!(
            rendered(r#"{"content":null,"structuredContent":null}"#),
            r#"{"content":"","raw":[],"is_error":false,"structured_content":null}"#
        );
        assert_eq!(
            rendered(r#"{"content":[]}"#),
            r#"{"content":"","raw":[],"is_error":false}"#
        );
    }

    #[test]
    fn odd_blocks_are_passed_on_and_give_no_text() {
        assert_eq!(
            rendered(
                r#"{"content":[{"type":"text"},{"type":"text","text":7},{"text":"no type"},{"type":"text","text":""}]}"#
            ),
            r#"{"content":"","raw":[{"type":"text"},{"type":"text","text":7},{"text":"no type"},{"type":"text","text":""}],"is_error":false}"#
        );
    }

    #[test]
    fn the_payload_is_not_copied() {
        let result = RawJson::parse(
            format!(
                r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#,
                "x".repeat(100_000)
            )
            .into(),
        )
        .unwrap();
        let span = result.bytes().as_ptr_range();
        let answer = render(&result).unwrap();
        let long = answer.pieces().iter().filter(|piece| piece.len() > 1000);
        assert!(long.clone().count() == 2 && { long }.all(|piece| span.contains(&piece.as_ptr())));
    }

    #[test]
    fn what_is_no_result_is_a_protocol_error() {
        for text in ["[]", r#"{"content":"text"}"#, r#"{"content":[1]}"#] {
            let failure = render(&RawJson::parse(text.into()).unwrap()).unwrap_err();
            assert_eq!(failure.code, ErrorCode::ProtocolError);
        }
    }
}
