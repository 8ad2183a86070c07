//! Fuzz targets of the line streams (docs/fuzzing.md).

use bytes::Bytes;
use serde_json::{Value, json};

use super::Line;
use super::tests::{check_chunks, check_written};
use crate::daemon::protocol::{TaskId, event, failure, success, tests::check_line};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::event::{Event, EventKind};
use crate::model::fuzz::Choices;
use crate::model::json::{RawJson, Rope};
use crate::model::redact::Redactor;
use crate::model::secret::Secret;

const NAMES: &[&str] = &[
    "task_id",
    "taskId",
    "command",
    "params",
    "user",
    "action",
    "target",
    "timeout_ms",
    "timeoutMs",
    "userId",
    "user_id",
    "accessToken",
    "sessionId",
    "x",
    "task\\u005fid",
    "",
];
const VALUES: &[&str] = &[
    "null",
    "true",
    "1",
    "-1.50e3",
    "1e999",
    "01",
    "12345678901234567890123",
    "\"a\"",
    "\"\"",
    "\"invoke\"",
    "\"ping\"",
    "\"cancel\"",
    "\"exit\"",
    "\"list_tools\"",
    "{}",
    "[]",
    "\"\\ud800\"",
    "\"\\u0000\\n\"",
    "\"\u{2028}\u{1f600}\"",
    "\"task_id\"",
    "\"\\\"task_id\\\":1,\"",
    "[{\"task_id\":2}]",
    "\"hunter22\"",
];
const IDS: &[&str] = &[
    "null",
    "-1.50e3",
    "\"a\"",
    "\"\\ud800\"",
    "\"\u{2028}\u{1f600}\"",
    "{}",
];
const BETWEEN: &[&str] = &[
    "\n", "\n", "\r\n", "\n\n", " \r\n", "\r", "", "\u{feff}", "noise\n",
];

/// F1: bytes to lines to commands.
#[test]
fn f1_commands() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut choices = Choices::new(bytes);
        let (sizes, max) = (choices.sizes(), 1 + choices.below(120));
        let mut input = Vec::new();
        while !choices.is_empty() && input.len() < 4096 {
            input.extend(choices.near_json(NAMES, VALUES));
            input.extend(choices.pick(BETWEEN).as_bytes());
        }
        for line in check_chunks(&input, &sizes, max) {
            if let Line::Whole(line) = line {
                check_line(&line);
            }
        }
        check_line(bytes);
        check_chunks(bytes, &sizes, max);
    });
}

fn value(choices: &mut Choices) -> RawJson {
    let text = choices.near_json(NAMES, VALUES);
    RawJson::parse(text.into()).unwrap_or_else(|_| RawJson::from(&Value::Null))
}

fn line(choices: &mut Choices, redactor: &Redactor) -> Rope {
    let text = Bytes::from_static(choices.pick(IDS).as_bytes());
    let task = TaskId::read(text).unwrap_or_default();
    let said = choices.text(
        &["hunter22", "\u{2028}", "\0", "\n", "\r", "\"", "\\", "a"],
        12,
    );
    let said = String::from_utf8_lossy(&said).into_owned();
    match choices.below(3) {
        0 => {
            let mut result = Rope::from(value(choices));
            result.push("");
            success(&task, result)
        }
        1 => {
            let failed = Failure::new(ErrorCode::ServerError, said);
            let failed = failed.with("data", json!([value(choices).read::<Value>().ok()]));
            failure(&task, failed, redactor)
        }
        _ => {
            let told = Event::new(
                EventKind::Progress,
                choices.pick(IDS).into(),
                value(choices),
            );
            let user = UserId::new(choices.pick(IDS));
            event(
                &task,
                Some(&user),
                &told,
                u64::from(choices.byte()),
                redactor,
            )
        }
    }
}

/// F2: whatever is answered is one line of JSON each, and shows no secret but in a result.
#[test]
fn f2_answers() {
    // Each starts a writer, whose thread ends with the process.
    let some = bolero::check!().with_iterations(300);
    some.for_each(|bytes: &[u8]| {
        let mut choices = Choices::new(bytes);
        let (secret, redactor) = (Secret::new("hunter22"), Redactor::default());
        redactor.learn(&secret);
        let ascii = choices.below(2) == 1;
        let lines = choices.many(12, |choices| line(choices, &redactor));
        for line in &lines {
            let line = String::from_utf8(line.concat()).expect("UTF-8");
            let is_clean = !line.contains("hunter22");
            assert!(is_clean || line.contains("\"success\":true"), "{line}");
        }
        check_written(&lines, ascii);
    });
}
