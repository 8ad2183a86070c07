//! Runs one action in this process and shows what came of it: what `call`, `tools` and `servers` share.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Value, json};

use crate::actions::{Action, Actions, Context, Perform};
use crate::model::caller::{Caller, SessionId, UserId};
use crate::model::error::{ErrorCode, Failure};
use crate::model::json::Rope;
use crate::model::secret::Secret;
use crate::model::settings::{Lookup, OwnEnvironment, Settings, duration};

/// The command failed; see the error.
const FAILED: u8 = 1;
/// The tool ran and reported an error of its own.
pub(super) const TOOL_ERROR: u8 = 3;

/// Where a user's token for a config API elsewhere is looked for. Never on the command line, which others can see.
const ACCESS_TOKEN: &str = "MCP_CLIENT_ACCESS_TOKEN";

/// For whom, for how long at most, and in which form.
#[derive(clap::Args, Debug)]
pub struct Asking {
    /// The user it is for; without one, public servers only. A token of theirs for the config API is
    /// taken from $MCP_CLIENT_ACCESS_TOKEN
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// One conversation of the user, where a server is isolated by it
    #[arg(long, value_name = "SESSION", requires = "user")]
    pub session: Option<String>,
    /// How long it may take, as in 500ms, 30s or 10m [default: pool.call_timeout or pool.list_timeout]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Print JSON, as the daemon would answer
    #[arg(long)]
    pub json: bool,
}

/// Performs one action and closes every connection it made.
pub(super) async fn perform(
    settings: &Settings,
    asking: &Asking,
    action: Action,
) -> Result<Rope, Failure> {
    let actions = Actions::open(settings, super::REDACTOR.clone()).await?;
    let context = Context {
        caller: Caller {
            user: asking.user.as_deref().map(UserId::new),
            access_token: access_token(),
            session: asking.session.as_deref().map(SessionId::new),
        },
        deadline: action.deadline(settings, asking.timeout),
        events: None,
        begun: tokio::time::Instant::now(),
        in_force: None,
        trail: Arc::default(),
    };
    let answer = actions.perform(action, context).await;
    actions.close(false).await;
    answer
}

/// The token of the user it is for, where one is given.
pub(super) fn access_token() -> Option<Secret> {
    let token = OwnEnvironment.variable(ACCESS_TOKEN)?;
    // What is not UTF-8 is refused where it is used, as no token.
    let token = token.to_string_lossy().into_owned();
    Some(token)
        .filter(|token| !token.is_empty())
        .map(Secret::new)
}

/// Prints the answer as JSON or by `show`, or the failure for a person; gives the exit code.
pub(super) fn finish(
    asking: &Asking,
    answer: Result<Rope, Failure>,
    show: impl FnOnce(&Value) -> String,
) -> ExitCode {
    match answer.and_then(|rope| read(&rope)) {
        Ok(answer) if asking.json => print(&answer.to_string()),
        Ok(answer) => print(&show(&answer)),
        Err(failure) => fail(asking, &failure),
    }
}

pub(super) fn read(answer: &Rope) -> Result<Value, Failure> {
    serde_json::from_slice(&answer.concat()).map_err(|error| {
        Failure::new(
            ErrorCode::Internal,
            format!("the answer is broken: {error}"),
        )
    })
}

pub(super) fn fail(asking: &Asking, failure: &Failure) -> ExitCode {
    if !asking.json {
        return report(failure);
    }
    print(&rendered(failure).to_string());
    ExitCode::from(FAILED)
}

/// Tells a person what failed; gives the exit code.
pub(super) fn report(failure: &Failure) -> ExitCode {
    eprintln!("{}", explain(&rendered(failure)));
    ExitCode::from(FAILED)
}

fn rendered(failure: &Failure) -> Value {
    json!({
        "error": failure.message,
        "error_code": failure.code,
        "details": failure.details,
    })
}

/// An error for a person: the sentence, how far things had come, what the server said last.
pub(super) fn explain(error: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = vec![format!(
        "error: {} ({})",
        text(&error["error"]),
        text(&error["error_code"])
    )];
    let details = &error["details"];
    if let Some(phase) = details["phase"].as_str() {
        let after = details["elapsed_ms"]
            .as_u64()
            .map(|ms| format!(", after {ms} ms"));
        lines.push(format!("  phase: {phase}{}", after.unwrap_or_default()));
    }
    for (name, unit) in [
        ("exit_status", ""),
        ("signal", ""),
        ("retry_after_ms", " ms"),
        ("outcome", ""),
    ] {
        match &details[name] {
            Value::Null => {}
            Value::String(word) => lines.push(format!("  {name}: {word}{unit}")),
            value => lines.push(format!("  {name}: {value}{unit}")),
        }
    }
    if let Some(stderr) = details["stderr"].as_str().filter(|tail| !tail.is_empty()) {
        lines.push("  the server's last lines on stderr:".to_owned());
        lines.extend(stderr.lines().map(|line| format!("    | {line}")));
    }
    if let (Some("credentials_required"), Some(server)) = (
        error["error_code"].as_str(),
        details["server_name"].as_str(),
    ) {
        lines.push(format!(
            "  to set them: mcp-client credential set {server} --user USER"
        ));
    }
    lines.join("\n")
}

/// A table for a terminal; columns apart by two spaces where the output goes elsewhere.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.set_header(header);
    if io::stdout().is_terminal() {
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(ContentArrangement::Dynamic);
    } else {
        table.load_style(presets::NOTHING);
    }
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}

/// Prints a line; an output that is closed is nobody's error.
pub(super) fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_where_it_happened_and_what_the_server_said() {
        let error = json!({
            "error": "the server `x` ended", "error_code": "server_crashed",
            "details": {"phase": "start", "elapsed_ms": 12, "exit_status": 2, "stderr": "one\ntwo"},
        });
        assert_eq!(
            explain(&error),
            "error: the server `x` ended (server_crashed)\n  phase: start, after 12 ms\n  \
             exit_status: 2\n  the server's last lines on stderr:\n    | one\n    | two"
        );
    }
}
