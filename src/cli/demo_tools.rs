//! The tools of the demo server.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// How a running call reports, and hears that it is cancelled.
pub(super) struct Progress<'a> {
    pub token: Option<Value>,
    pub cancelled: &'a Receiver<()>,
    pub send: fn(&Value),
}

impl Progress<'_> {
    fn report(&self, done: u64, total: u64) {
        if let Some(token) = &self.token {
            (self.send)(&json!({
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": done, "total": total},
            }));
        }
    }

    /// False when the call was cancelled meanwhile.
    fn wait(&self, duration: Duration) -> bool {
        self.cancelled.recv_timeout(duration) == Err(RecvTimeoutError::Timeout)
    }
}

pub(super) fn list() -> Value {
    let number = json!({"type": "number"});
    json!([
        {
            "name": "add",
            "description": "Adds two numbers.",
            "inputSchema": {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]},
            "outputSchema": {"type": "object", "properties": {"sum": number}, "required": ["sum"]},
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "echo",
            "description": "Gives back a text.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "time",
            "description": "Tells the time in UTC.",
            "inputSchema": {"type": "object"},
            "outputSchema": {
                "type": "object",
                "properties": {"utc": {"type": "string"}, "unix_ms": {"type": "integer"}},
                "required": ["utc", "unix_ms"],
            },
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "slow",
            "description": "Takes its time, reports progress, and can be cancelled.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "seconds": {"type": "number", "minimum": 0, "maximum": 600, "default": 1},
                    "steps": {"type": "integer", "minimum": 1, "maximum": 100, "default": 4},
                },
            },
        },
        {
            "name": "whoami",
            "description": "Tells whose token this server was started with.",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true},
        },
    ])
}

/// The tool's result; `None` if there is no such tool.
pub(super) fn call(name: &str, arguments: &Value, progress: &Progress) -> Option<Value> {
    let outcome = match name {
        "add" => add(arguments),
        "echo" => echo(arguments),
        "time" => Ok(time()),
        "slow" => Ok(slow(arguments, progress)),
        "whoami" => whoami(),
        _ => return None,
    };
    Some(outcome.unwrap_or_else(
        |error| json!({"content": [{"type": "text", "text": error}], "isError": true}),
    ))
}

fn add(arguments: &Value) -> Result<Value, String> {
    let number = |name: &str| {
        let value = arguments[name].as_f64();
        value.ok_or_else(|| format!("`{name}` must be a number"))
    };
    let sum = number("a")? + number("b")?;
    // Whole numbers read better without a fraction.
    let sum = if sum.fract() == 0.0 && sum.abs() < 1e15 {
        json!(sum as i64)
    } else {
        json!(sum)
    };
    Ok(structured(&sum.to_string(), json!({ "sum": sum })))
}

fn echo(arguments: &Value) -> Result<Value, String> {
    let given = arguments["text"].as_str();
    given
        .map(text)
        .ok_or_else(|| "`text` must be a string".to_owned())
}

fn time() -> Value {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let utc = utc(since.as_secs());
    structured(
        &utc,
        json!({"utc": utc, "unix_ms": since.as_millis() as u64}),
    )
}

fn slow(arguments: &Value, progress: &Progress) -> Value {
    let seconds = arguments["seconds"]
        .as_f64()
        .unwrap_or(1.0)
        .clamp(0.0, 600.0);
    let steps = arguments["steps"].as_u64().unwrap_or(4).clamp(1, 100);
    let pause = Duration::from_secs_f64(seconds / steps as f64);
    for step in 1..=steps {
        if !progress.wait(pause) {
            return text("cancelled");
        }
        progress.report(step, steps);
    }
    text(&format!("done after {seconds} s"))
}

fn whoami() -> Result<Value, String> {
    let token = std::env::var("DEMO_TOKEN").map_err(|_| "DEMO_TOKEN is not set".to_owned())?;
    match token.split_once(':') {
        Some((owner, _)) => Ok(text(&format!("you are {owner}"))),
        None => Err("DEMO_TOKEN has no owner: `owner:secret` is expected".to_owned()),
    }
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn structured(shown: &str, content: Value) -> Value {
    let mut result = text(shown);
    result["structuredContent"] = content;
    result
}

/// `2026-07-28T12:34:56Z` of seconds since 1970 (days to a date after Howard Hinnant).
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn called(name: &str, arguments: Value) -> Option<Value> {
        let (_running, cancelled) = mpsc::channel();
        let progress = Progress {
            token: None,
            cancelled: &cancelled,
            send: |_| {},
        };
        call(name, &arguments, &progress)
    }

    #[test]
    fn every_listed_tool_can_be_called_and_no_other() {
        for tool in list().as_array().unwrap() {
            let name = tool["name"].as_str().unwrap();
            assert!(called(name, json!({"seconds": 0})).is_some(), "{name}");
        }
        assert!(called("none", json!({})).is_none());
    }

    #[test]
    fn sums_are_structured_and_bad_arguments_are_tool_errors() {
        let sum = called("add", json!({"a": 2, "b": 3})).unwrap();
        assert_eq!(sum["structuredContent"], json!({"sum": 5}));
        assert_eq!(sum["content"][0]["text"], "5");
        assert_eq!(called("add", json!({"a": "2"})).unwrap()["isError"], true);
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_785_241_296), "2026-07-28T12:21:36Z");
        assert_eq!(utc(4_107_542_399), "2100-02-28T23:59:59Z");
    }

    #[test]
    fn a_cancelled_wait_ends_at_once() {
        let (running, cancelled) = mpsc::channel::<()>();
        drop(running);
        let progress = Progress {
            token: None,
            cancelled: &cancelled,
            send: |_| {},
        };
        let result = slow(&json!({"seconds": 600}), &progress);
        assert_eq!(result["content"][0]["text"], "cancelled");
    }
}
