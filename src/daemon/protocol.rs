//! The wire, both ways: command lines to commands, outcomes to answer lines (docs/line-protocol.md).
//!
//! A line is read borrowed; what is passed on (`params`, the task id) are slices of it.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::events;
use super::scan::Scan;
use crate::actions::STATS;
use crate::model::caller::{Caller, SessionId, UserId};
use crate::model::error::{ErrorCode, Failure};
use crate::model::event::{Event, Interest};
use crate::model::json::{RawJson, Rope};
use crate::model::redact::Redactor;
use crate::model::secret::Secret;

/// A command's id as JSON text, echoed byte for byte: a string, a number, or `null` for none.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskId(Bytes);

impl Default for TaskId {
    fn default() -> Self {
        Self(Bytes::from_static(b"null"))
    }
}

impl TaskId {
    /// Takes `text` if it is exactly one JSON string or number.
    pub fn read(text: Bytes) -> Option<Self> {
        let raw: &RawValue = serde_json::from_slice(&text).ok()?;
        (is_text(raw) || is_number(raw)).then(|| Self(text.clone()))
    }

    pub fn raw(&self) -> &Bytes {
        &self.0
    }

    /// For the log: the text or the number, cut.
    pub fn shown(&self) -> String {
        let text = serde_json::from_slice(&self.0);
        let text = text.unwrap_or_else(|_| String::from_utf8_lossy(&self.0).into_owned());
        text.chars().take(128).collect()
    }

    /// Whether both are the same id, however its text is escaped.
    pub fn is(&self, other: &Self) -> bool {
        let text = |id: &Self| serde_json::from_slice::<String>(&id.0).ok();
        self.0 == other.0 || (text(self).is_some() && text(self) == text(other))
    }
}

/// One command line, read and checked up to the params of its action.
#[derive(Debug)]
pub struct Command {
    pub caller: Caller,
    pub timeout: Option<Duration>,
    /// Unread: what it may hold is for the action to say.
    pub trace: Option<RawJson>,
    /// The events that are wanted beside the answer.
    pub interest: Interest,
    pub verb: Verb,
}

#[derive(Debug)]
pub enum Verb {
    Ping,
    Stats,
    Respond,
    Exit,
    Cancel {
        target: TaskId,
    },
    Invoke {
        action: String,
        params: Option<RawJson>,
    },
}

/// The longest deadline a host can set; a longer one means the same.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    command: Option<&'a RawValue>,
    #[serde(borrow, alias = "taskId")]
    task_id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    user: Option<&'a RawValue>,
    #[serde(borrow)]
    trace: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct User<'a> {
    #[serde(borrow, rename = "userId", alias = "user_id")]
    id: Option<&'a RawValue>,
    #[serde(borrow, rename = "accessToken", alias = "access_token")]
    access_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "sessionId", alias = "session_id")]
    session: Option<&'a RawValue>,
}

/// What the daemon itself reads of `params`; the rest belongs to the action.
#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow)]
    action: Option<&'a RawValue>,
    #[serde(borrow, alias = "timeoutMs")]
    timeout_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    target: Option<&'a RawValue>,
    #[serde(borrow)]
    events: Option<&'a RawValue>,
    #[serde(borrow)]
    progress: Option<&'a RawValue>,
    #[serde(borrow, alias = "logLevel")]
    log_level: Option<&'a RawValue>,
}

/// Reads one line, which holds no line break. The id is given also where the rest cannot be read.
///
/// # Errors
/// `invalid_json`, `invalid_command`, `invalid_params` (`action`, `timeout_ms`, `target`, and what says
/// which events are wanted).
pub fn parse(line: &Bytes) -> (TaskId, Result<Command, Failure>) {
    match envelope(line) {
        Ok(envelope) => match task_id(line, envelope.task_id) {
            Ok(task) => (task, command(line, &envelope)),
            Err(failure) => (TaskId::default(), Err(failure)),
        },
        Err(failure) => {
            let mut scan = Scan::default();
            scan.feed(line);
            (scan.finish(), Err(failure))
        }
    }
}

/// The failure of a line longer than `max` bytes.
pub fn too_long(max: usize) -> Failure {
    let message = format!("The line is longer than {max} bytes (daemon.max_line) and was not read");
    Failure::new(ErrorCode::LineTooLong, message).with("max_line", max)
}

fn envelope(line: &Bytes) -> Result<Envelope<'_>, Failure> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let message = format!("The line is not UTF-8 (at byte {})", error.valid_up_to());
        Failure::new(ErrorCode::InvalidJson, message)
    })?;
    if is_object(text) {
        match serde_json::from_str(text) {
            Ok(envelope) => return Ok(envelope),
            Err(error) if error.is_data() => {}
            Err(error) => return Err(invalid_json(&error)),
        }
    }
    let reason = match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => return Err(invalid_json(&error)),
        Ok(_) if is_object(text) => "has one of its members twice",
        Ok(_) => "is not a JSON object",
    };
    Err(invalid_command(&format!("The line {reason}")))
}

fn task_id(line: &Bytes, raw: Option<&RawValue>) -> Result<TaskId, Failure> {
    match raw {
        None => Ok(TaskId::default()),
        Some(raw) if is_text(raw) || is_number(raw) => {
            Ok(TaskId(line.slice_ref(raw.get().as_bytes())))
        }
        Some(_) => Err(invalid_command("task_id must be a string or a number")),
    }
}

fn command(line: &Bytes, envelope: &Envelope) -> Result<Command, Failure> {
    let word = match envelope.command {
        None => "invoke".to_owned(),
        Some(raw) => text(raw).ok_or_else(|| invalid_command("command must be a string"))?,
    };
    let caller = caller(envelope.user)?;
    let params = params(envelope.params)?;
    let timeout = params.timeout_ms.map(timeout).transpose()?;
    let interest = events::interest(params.events, params.progress, params.log_level)?;
    let verb = match word.as_str() {
        "ping" => Verb::Ping,
        "respond" => Verb::Respond,
        "exit" => Verb::Exit,
        "cancel" => Verb::Cancel {
            target: target(params.target)?,
        },
        _ => match action(&word, params.action)? {
            action if action == STATS => Verb::Stats,
            action => Verb::Invoke {
                action,
                params: envelope.params.map(|raw| RawJson::part_of(line, raw)),
            },
        },
    };
    Ok(Command {
        caller,
        timeout,
        trace: envelope.trace.map(|raw| RawJson::part_of(line, raw)),
        interest,
        verb,
    })
}

fn action(word: &str, raw: Option<&RawValue>) -> Result<String, Failure> {
    match raw {
        _ if word != "invoke" => Ok(word.to_owned()),
        None => Ok("list_tools".to_owned()),
        Some(raw) => text(raw).ok_or_else(|| invalid_params("action must be a string")),
    }
}

fn params(raw: Option<&RawValue>) -> Result<Params<'_>, Failure> {
    let Some(raw) = raw else {
        return Ok(Params::default());
    };
    if !is_object(raw.get()) {
        return Err(invalid_command("params must be an object"));
    }
    // The line is JSON: all that can be wrong here is a member that stands twice.
    serde_json::from_str(raw.get())
        .map_err(|_| invalid_params("params has one of its members twice"))
}

fn caller(raw: Option<&RawValue>) -> Result<Caller, Failure> {
    let Some(raw) = raw else {
        return Ok(Caller::default());
    };
    if !is_object(raw.get()) {
        return Err(invalid_command("user must be an object"));
    }
    let user: User = serde_json::from_str(raw.get())
        .map_err(|_| invalid_command("user has one of its members twice"))?;
    let token = user
        .access_token
        .map(|raw| text(raw).ok_or_else(|| invalid_command("user.accessToken must be a string")));
    Ok(Caller {
        user: id("userId", user.id)?.map(|id| UserId::new(&id)),
        access_token: token
            .transpose()?
            .filter(|token| !token.is_empty())
            .map(Secret::new),
        session: id("sessionId", user.session)?.map(|id| SessionId::new(&id)),
    })
}

/// A name given as text or number; "" and null mean none.
fn id(name: &str, raw: Option<&RawValue>) -> Result<Option<String>, Failure> {
    match raw {
        None => Ok(None),
        Some(raw) if is_number(raw) => Ok(Some(raw.get().to_owned())),
        Some(raw) => match text(raw) {
            Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            None => Err(invalid_command(&format!("user.{name} must be a string"))),
        },
    }
}

fn timeout(raw: &RawValue) -> Result<Duration, Failure> {
    let number = serde_json::from_str::<f64>(raw.get()).ok();
    match number.filter(|number| *number >= 1.0 && number.fract() == 0.0) {
        Some(ms) => Ok(Duration::try_from_secs_f64(ms / 1000.0)
            .map_or(LONGEST_TIMEOUT, |timeout| timeout.min(LONGEST_TIMEOUT))),
        None => Err(invalid_params(
            "timeout_ms must be a whole number of milliseconds, at least 1",
        )),
    }
}

fn target(raw: Option<&RawValue>) -> Result<TaskId, Failure> {
    raw.and_then(|raw| TaskId::read(Bytes::copy_from_slice(raw.get().as_bytes())))
        .ok_or_else(|| invalid_params("cancel needs the task_id of a command as params.target"))
}

fn is_object(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\r', '\n'])
        .starts_with('{')
}

fn is_text(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

fn is_number(raw: &RawValue) -> bool {
    raw.get()
        .starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn invalid_json(error: &serde_json::Error) -> Failure {
    Failure::new(
        ErrorCode::InvalidJson,
        format!("The line is not JSON: {error}"),
    )
}

fn invalid_command(reason: &str) -> Failure {
    Failure::new(ErrorCode::InvalidCommand, reason)
}

fn invalid_params(reason: &str) -> Failure {
    Failure::new(ErrorCode::InvalidParams, reason)
}

/// `{"task_id":...,"result":...,"success":true}`; the result is not copied.
pub fn success(task: &TaskId, result: Rope) -> Rope {
    let mut head = BytesMut::with_capacity(task.raw().len() + 24);
    head.put_slice(b"{\"task_id\":");
    head.put_slice(task.raw());
    head.put_slice(b",\"result\":");
    let mut line = Rope::default();
    line.push(head);
    line.append(result);
    line.push(Bytes::from_static(b",\"success\":true}"));
    line
}

/// `{"task_id":...,"error":...,"success":false,"error_code":...,"details":{...}}`, secrets masked.
pub fn failure(task: &TaskId, failure: Failure, redactor: &Redactor) -> Rope {
    let code = failure.code;
    let Failure {
        mut message,
        details,
        ..
    } = redactor.scrub_failure(failure);
    if message.is_empty() {
        message = format!("The command failed ({code})");
    }
    let mut line = BytesMut::new();
    line.put_slice(b"{\"task_id\":");
    line.put_slice(task.raw());
    line.put_slice(b",\"error\":");
    line.put_slice(Value::from(message).to_string().as_bytes());
    line.put_slice(b",\"success\":false,\"error_code\":\"");
    line.put_slice(code.as_str().as_bytes());
    line.put_slice(b"\"");
    if !details.is_empty() {
        line.put_slice(b",\"details\":");
        line.put_slice(Value::Object(details).to_string().as_bytes());
    }
    line.put_slice(b"}");
    let mut rope = Rope::default();
    rope.push(line);
    rope
}

/// `{"type":"event","event":...,"task":...,"server_name":...,"user_id":...,"request_id"?:...,"params":...}`,
/// secrets masked; `dropped` counts the events of this task left out since the last line.
pub fn event(
    task: &TaskId,
    user: Option<&UserId>,
    event: &Event,
    dropped: u64,
    redactor: &Redactor,
) -> Rope {
    let text = |value: &str| Value::from(value).to_string();
    let mut head = format!(
        "{{\"type\":\"event\",\"event\":\"{}\",\"task\":",
        event.kind
    )
    .into_bytes();
    head.extend_from_slice(task.raw());
    let server = text(&event.server_name);
    let user = user.map_or("null".to_owned(), |user| text(user.as_str()));
    let request = event.request_id.as_deref();
    let request = request.map_or(String::new(), |id| format!(",\"request_id\":{}", text(id)));
    let rest = format!(",\"server_name\":{server},\"user_id\":{user}{request},\"params\":");
    head.extend_from_slice(rest.as_bytes());
    let mut line = Rope::default();
    line.push(head);
    line.push(scrubbed(&event.params, redactor).into_bytes());
    line.push(match dropped {
        0 => "}".to_owned(),
        _ => format!(",\"dropped\":{dropped}}}"),
    });
    line
}

fn scrubbed(json: &RawJson, redactor: &Redactor) -> RawJson {
    let found = std::str::from_utf8(json.bytes())
        .is_ok_and(|text| matches!(redactor.scrub(text), std::borrow::Cow::Owned(_)));
    match json.read::<Value>() {
        Ok(mut value) if found => {
            redactor.scrub_json(&mut value);
            RawJson::from(&value)
        }
        Err(_) if found => RawJson::from(&Value::Null),
        _ => json.clone(),
    }
}

/// The first line of `--ready-line`.
pub fn ready() -> Rope {
    Rope::from(&serde_json::json!({
        "type": "ready",
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
    }))
}

/// The line with everything beyond ASCII escaped.
pub fn ascii(line: Rope) -> Rope {
    if line.pieces().iter().all(|piece| piece.is_ascii()) {
        return line;
    }
    let text = line.concat();
    let mut escaped = String::with_capacity(text.len() * 2);
    for letter in String::from_utf8_lossy(&text).chars() {
        if letter.is_ascii() {
            escaped.push(letter);
        } else {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    let mut rope = Rope::default();
    rope.push(escaped);
    rope
}

#[cfg(test)]
pub(super) mod tests;
