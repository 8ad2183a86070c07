//! JSON-RPC frames read borrowed: the envelope is looked at, the payload left as it came.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::model::error::Failure;
use crate::model::json::RawJson;

/// The id of one of our requests on the wire: a positive integer.
pub(super) type CallId = u64;

/// What came for one of our requests.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// `result`, exactly as sent.
    Result(RawJson),
    /// `error`, exactly as sent.
    Error(RawJson),
    /// The line carries the id of a call but cannot be used; says why.
    Broken(String),
    /// It was longer than [`MAX_MESSAGE`] and has been discarded.
    TooLarge,
    /// The transport could not get an answer (HTTP).
    Failed(Failure),
    /// The connection ended first.
    Lost,
}

/// The longest message taken from a server, in bytes.
pub(super) const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// One message of a server.
#[derive(Debug)]
pub(super) enum Frame {
    /// An answer to our request `id`; `None` where the server gave no id.
    Answer { id: Option<CallId>, answer: Answer },
    /// A request or notification of the server.
    Call {
        method: String,
        is_request: bool,
        params: Option<RawJson>,
        text: Bytes,
    },
    /// Not a message: a banner, a log line.
    Noise,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Unlike serde's own `Option`, keeps an explicit `null` apart from an absent member.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(input: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// Reads one line (stdio), body or event (HTTP): a message, or a batch of them.
pub(super) fn frames(text: &Bytes, mut take: impl FnMut(Frame)) {
    let start = if text.starts_with(b"\xef\xbb\xbf") {
        3
    } else {
        0
    };
    let text = &text.slice(start..);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[')
        && let Ok(batch) = serde_json::from_slice::<Vec<&RawValue>>(text)
    {
        for part in batch {
            take(frame(&text.slice_ref(part.get().as_bytes())));
        }
        return;
    }
    take(frame(text));
}

fn frame(text: &Bytes) -> Frame {
    // As a whole: what nobody looks at must be UTF-8 too.
    let envelope = match std::str::from_utf8(text) {
        Ok(text) => serde_json::from_str::<Envelope>(text).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match envelope {
        Ok(envelope) => sort(&envelope, text),
        Err(error) => match IdScan::of(text) {
            Some(id) => broken(
                Some(id),
                format!("the message is not valid JSON-RPC: {error}"),
            ),
            None => Frame::Noise,
        },
    }
}

fn sort(envelope: &Envelope, text: &Bytes) -> Frame {
    if let Some(method) = &envelope.method {
        return Frame::Call {
            method: method.to_string(),
            is_request: envelope.id.is_some(),
            params: envelope.params.map(|params| RawJson::part_of(text, params)),
            text: text.clone(),
        };
    }
    let id = envelope.id.and_then(|id| call_id(id.get()));
    let error = envelope.error.filter(|error| error.get() != "null");
    match (envelope.result, error) {
        (Some(_), Some(_)) => broken(id, "the message holds both a result and an error".into()),
        (Some(result), None) => answer(id, Answer::Result(RawJson::part_of(text, result))),
        (None, Some(error)) => answer(id, Answer::Error(RawJson::part_of(text, error))),
        (None, None) if id.is_some() => {
            broken(id, "the message holds neither a result nor an error".into())
        }
        (None, None) => Frame::Noise,
    }
}

fn answer(id: Option<CallId>, answer: Answer) -> Frame {
    Frame::Answer { id, answer }
}

fn broken(id: Option<CallId>, reason: String) -> Frame {
    answer(id, Answer::Broken(reason))
}

/// No id of ours is written longer, however oddly.
const LONGEST_ID: usize = 24;

/// Our ids are integers; servers send them back as `7`, `"7"` and `7.0`.
pub(super) fn call_id(text: &str) -> Option<CallId> {
    let text = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text);
    if text.len() > LONGEST_ID {
        return None;
    }
    let text = text.split_once('.').map_or(text, |(whole, fraction)| {
        if fraction.bytes().all(|byte| byte == b'0') {
            whole
        } else {
            text
        }
    });
    text.parse().ok()
}

/// Finds the top-level `id` in text that is not valid JSON or too long to keep: byte by byte, in
/// constant memory.
#[derive(Default)]
pub(super) struct IdScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    after_id_key: bool,
    token: Vec<u8>,
    found: Option<CallId>,
}

impl IdScan {
    fn of(text: &[u8]) -> Option<CallId> {
        let mut scan = Self::default();
        scan.feed(text);
        scan.found()
    }

    pub(super) fn feed(&mut self, text: &[u8]) {
        for &byte in text {
            self.step(byte);
        }
    }

    /// The id, as far as it has been seen.
    pub(super) fn found(&self) -> Option<CallId> {
        self.found
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            if self.in_string {
                self.collect(byte);
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.end_member();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => self.end_member(),
            b':' if self.depth == 1 => {
                self.after_id_key = is_id(&self.token);
                self.token.clear();
            }
            _ if !byte.is_ascii_whitespace() => self.collect(byte),
            _ => {}
        }
    }

    fn collect(&mut self, byte: u8) {
        if self.depth == 1 && self.token.len() <= LONGEST_ID {
            self.token.push(byte);
        }
    }

    fn end_member(&mut self) {
        if self.depth != 1 {
            return;
        }
        if self.after_id_key && self.found.is_none() {
            self.found = std::str::from_utf8(&self.token).ok().and_then(call_id);
        }
        self.after_id_key = false;
        self.token.clear();
    }
}

/// Whether a key, given without its quotes, is `id`, also where it is written with escapes.
fn is_id(key: &[u8]) -> bool {
    let unescaped = || serde_json::from_slice::<String>(&[b"\"", key, b"\""].concat());
    key == b"id" || (key.contains(&b'\\') && unescaped().is_ok_and(|key| key == "id"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::fuzz::Members;

    /// F3: a message means what a reading member by member says, and one that cannot be used strikes
    /// only the call whose id it holds.
    pub(in crate::mcp) fn check_frames(text: &[u8]) {
        let bytes = Bytes::copy_from_slice(text);
        let seen = all(&bytes);
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if let Ok(batch) = serde_json::from_slice::<Vec<&RawValue>>(text) {
            let alone = batch.iter().map(|part| {
                all(&Bytes::copy_from_slice(
                    part.get().trim_start_matches('\u{feff}').as_bytes(),
                ))
            });
            let is_nested = batch.iter().any(|part| part.get().starts_with('['));
            assert!(
                is_nested
                    || format!("{seen:?}") == format!("{:?}", alone.flatten().collect::<Vec<_>>())
            );
            return;
        }
        assert_eq!(seen.len(), 1);
        let id = scanned(text);
        match serde_json::from_slice::<Members>(text) {
            Ok(members) => {
                let expected = meaning(&members, id);
                assert_eq!(shape(&seen[0]), expected);
                let mut ids = members.named(&["id"]).into_iter();
                assert_eq!(id, ids.find_map(slow_id));
            }
            Err(_) => assert_eq!(
                shape(&seen[0]),
                id.map_or(Shape::Noise, |id| Shape::Broken(Some(id)))
            ),
        }
    }

    fn all(text: &Bytes) -> Vec<Frame> {
        let mut all = Vec::new();
        frames(text, |frame| all.push(frame));
        all
    }

    fn scanned(text: &[u8]) -> Option<CallId> {
        let mut scan = IdScan::default();
        text.chunks(3).for_each(|part| scan.feed(part));
        assert_eq!(scan.found(), IdScan::of(text));
        scan.found()
    }

    #[derive(Debug, PartialEq)]
    enum Shape {
        Result(Option<CallId>, String),
        Error(Option<CallId>, String),
        Broken(Option<CallId>),
        Call(String, bool, Option<String>),
        Noise,
    }

    fn shape(frame: &Frame) -> Shape {
        let text = |raw: &RawJson| format!("{raw:?}");
        match frame {
            Frame::Answer {
                id,
                answer: Answer::Result(raw),
            } => Shape::Result(*id, text(raw)),
            Frame::Answer {
                id,
                answer: Answer::Error(raw),
            } => Shape::Error(*id, text(raw)),
            Frame::Answer { id, .. } => Shape::Broken(*id),
            Frame::Call {
                method,
                is_request,
                params,
                ..
            } => Shape::Call(method.clone(), *is_request, params.as_ref().map(text)),
            Frame::Noise => Shape::Noise,
        }
    }

    fn meaning(members: &Members, scanned: Option<CallId>) -> Shape {
        let unreadable = || scanned.map_or(Shape::Noise, |id| Shape::Broken(Some(id)));
        let known = ["id", "method", "params", "result", "error"];
        if known.iter().any(|name| members.named(&[name]).len() > 1) {
            return unreadable();
        }
        let [id, method, params, result, error] = known.map(|name| members.named(&[name]).pop());
        let flat = |text: &str| text.replace(['\n', '\r'], " ");
        let Ok(method) = serde_json::from_str::<Option<String>>(method.unwrap_or("null")) else {
            return unreadable();
        };
        if let Some(method) = method {
            return Shape::Call(method, id.is_some(), params.map(flat));
        }
        let id = id.and_then(slow_id);
        match (result, error.filter(|error| *error != "null")) {
            (Some(result), None) => Shape::Result(id, flat(result)),
            (None, Some(error)) => Shape::Error(id, flat(error)),
            (None, None) if id.is_none() => Shape::Noise,
            _ => Shape::Broken(id),
        }
    }

    /// An integer, however it is written.
    fn slow_id(text: &str) -> Option<CallId> {
        let text = text.trim_matches('"');
        let digits = text.split_once('.').map_or(text, |(whole, fraction)| {
            if fraction.trim_matches('0').is_empty() {
                whole
            } else {
                text
            }
        });
        digits.parse().ok().filter(|_| text.len() <= LONGEST_ID)
    }

    #[test]
    fn an_id_that_was_cut_is_no_id() {
        for (id, expected) in [
            ("12", Some(12)),
            ("\"0000000000000000000000012\"", None),
            ("\"000000000000000000000012\"", Some(12)),
            ("7.00000000000000000000000009", None),
            ("7.0000000000000000000000", Some(7)),
            ("18446744073709551616", None),
        ] {
            let text = format!("{{\"id\":{id},\"result\":1}}");
            assert_eq!(IdScan::of(text.as_bytes()), expected, "{id}");
            assert_eq!(result_of(&text).0, expected, "{id}");
        }
    }

    fn one(text: &str) -> Frame {
        bytes_of(text.as_bytes())
    }

    fn bytes_of(text: &[u8]) -> Frame {
        let mut all = Vec::new();
        frames(&Bytes::copy_from_slice(text), |frame| all.push(frame));
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn result_of(text: &str) -> (Option<CallId>, String) {
        match one(text) {
            Frame::Answer {
                id,
                answer: Answer::Result(raw),
            } => (id, format!("{raw:?}")),
            other => panic!("{other:?}"),
        }
    }

    fn broken_id(text: &[u8]) -> Option<CallId> {
        match bytes_of(text) {
            Frame::Answer {
                id,
                answer: Answer::Broken(_),
            } => id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_result_is_kept_byte_for_byte() {
        let odd = r#"{"b":1e2,"a":123456789012345678901234567890,"x":"\u00e9","a":null}"#;
        for line in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{odd}}}"#),
            format!(r#"{{"result":{odd},"id":"7"}}"#),
            format!("\u{feff}{{\"id\":7.0,\"error\":null,\"jsonrpc\":\"1.0\",\"result\":{odd}}}\r"),
        ] {
            assert_eq!(result_of(&line), (Some(7), odd.to_owned()), "{line}");
        }
    }

    #[test]
    fn nesting_is_no_reason_to_refuse_a_result() {
        let deep = format!("{}1{}", "[".repeat(2000), "]".repeat(2000));
        assert_eq!(
            result_of(&format!(r#"{{"id":5,"result":{deep}}}"#)),
            (Some(5), deep)
        );
    }

    #[test]
    fn a_null_result_is_a_result() {
        assert_eq!(
            result_of(r#"{"id":1,"result":null}"#),
            (Some(1), "null".into())
        );
    }

    #[test]
    fn line_breaks_inside_a_body_become_spaces() {
        assert_eq!(
            result_of("{\"id\":1,\"result\":{\n\"a\":1\r\n}}"),
            (Some(1), "{ \"a\":1  }".into())
        );
    }

    #[test]
    fn what_cannot_be_used_names_the_call_it_strikes() {
        for line in [
            &br#"{"id":5,"result":{"a":NaN}}"#[..],
            br#"{"result":{},"error":{"code":1},"id":5}"#,
            br#"{"result":{"id":9,"s":"\"id\":8,"},"id":"5""#.as_slice(),
            b"{\"id\":5,\"result\":\"\xff\"}",
            b"{\"id\":5,\"result\":1,\"x\":\"\xff\"}",
            br#"{"\nid":4,"id":"\n6","i\u0064":5,"result":NaN}"#,
            br#"note: {"id":5,"result":{}}"#,
            br#"{"id":5,"id":5,"result":{}}"#,
            br#"{"id":5}"#,
        ] {
            let cut = line.last() != Some(&b'}');
            let line = if cut {
                [line, b"}x"].concat()
            } else {
                line.to_vec()
            };
            assert_eq!(
                broken_id(&line),
                Some(5),
                "{}",
                String::from_utf8_lossy(&line)
            );
        }
    }

    #[test]
    fn banners_are_noise() {
        for line in [
            "Loading configuration",
            "42",
            r#"{"level":"info"}"#,
            "{\"id\":null}",
            "[1,2",
        ] {
            assert!(matches!(one(line), Frame::Noise), "{line}");
        }
    }

    #[test]
    fn a_batch_is_read_message_by_message() {
        let mut ids = Vec::new();
        frames(
            &Bytes::from_static(br#"[{"id":1,"result":{}},{"id":2,"result":{}}]"#),
            |frame| {
                if let Frame::Answer { id, .. } = frame {
                    ids.push(id);
                }
            },
        );
        assert_eq!(ids, [Some(1), Some(2)]);
    }

    #[test]
    fn the_scan_finds_the_id_whatever_the_chunks() {
        let text =
            br#"{"result":{"id":1,"deep":[{"id":2}],"s":"}{\"id\":3"},"jsonrpc":"2.0","id":44}"#;
        for size in 1..text.len() {
            let mut scan = IdScan::default();
            text.chunks(size).for_each(|chunk| scan.feed(chunk));
            assert_eq!(scan.found(), Some(44), "chunks of {size}");
        }
    }
}
