//! Fuzz target of what servers send over stdio (docs/fuzzing.md).

use super::lines::Line;
use super::lines::tests::check_lines;
use super::tap::tests::check_incoming;
use super::wire::tests::check_frames;
use crate::model::fuzz::Choices;

const NAMES: &[&str] = &[
    "id",
    "id",
    "result",
    "error",
    "method",
    "params",
    "jsonrpc",
    "x",
    "progressToken",
    "i\\u0064",
    "",
];
const VALUES: &[&str] = &[
    "1",
    "2",
    "\"2\"",
    "3.0",
    "-1",
    "1e999",
    "99",
    "null",
    "true",
    "{}",
    "[]",
    "\"x\"",
    "\"notifications/progress\"",
    "\"notifications/tools/list_changed\"",
    "\"ping\"",
    "{\"progressToken\":1}",
    "{\"code\":-32601,\"message\":\"no\"}",
    "\"\\\"id\\\":1,\"",
    "\"\\ud800\"",
    "7.00000000000000000000000009",
    "\"00000000000000000000000000002\"",
];
const BETWEEN: &[&str] = &[
    "\n", "\n", "\r\n", "\n\n", " ", ",", "noise\n", "\u{feff}", "",
];

fn message(choices: &mut Choices) -> Vec<u8> {
    if choices.below(8) > 0 {
        return choices.near_json(NAMES, VALUES);
    }
    let parts = choices.many(4, |choices| choices.near_json(NAMES, VALUES));
    [b"[", &parts.join(&b','.to_owned())[..], b"]"].concat()
}

/// F3: bytes to lines to frames to answers of calls.
#[test]
fn f3_frames() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut choices = Choices::new(bytes);
        let (sizes, max) = (choices.sizes(), 1 + choices.below(250));
        let mut input = Vec::new();
        while !choices.is_empty() && input.len() < 4096 {
            input.extend(message(&mut choices));
            input.extend(choices.pick(BETWEEN).as_bytes());
        }
        for line in check_lines(&input, &sizes, max) {
            if let Line::Whole(line) = line {
                check_frames(&line);
                check_incoming(&line);
            }
        }
        check_frames(bytes);
        check_incoming(bytes);
        check_lines(bytes, &sizes, max);
    });
}
