//! `mcp-client call SERVER TOOL [ARGUMENTS]`.

use std::io::{self, Read};
use std::process::ExitCode;

use serde_json::Value;

use super::oneshot::{self, Asking, TOOL_ERROR};
use crate::actions::{Action, CallTool, ResultForm, ToolRef};
use crate::model::error::{ErrorCode, Failure};
use crate::model::json::{RawJson, Rope};
use crate::model::settings::Settings;
use crate::model::trace::Trace;

/// Call one tool and print what it answers
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 the tool answered; 1 it could not be called; 2 wrong usage; \
3 the tool itself reported an error."
)]
pub struct Args {
    /// The server's name
    pub server: String,
    /// The tool's name, as the server calls it or as it is injected
    pub tool: String,
    /// The arguments: a JSON object, or `-` to read it from stdin
    #[arg(default_value = "{}", value_name = "JSON")]
    pub arguments: String,
    #[command(flatten)]
    pub asking: Asking,
}

/// Calls the tool; the exit code is as the help says.
pub async fn run(args: Args, settings: &Settings) -> ExitCode {
    let answer = match read_arguments(&args.arguments) {
        Ok(arguments) => call(&args, arguments, settings).await,
        Err(failure) => Err(failure),
    };
    let is_error = |answer: &Value| answer["is_error"] == true;
    match answer.and_then(|rope| oneshot::read(&rope)) {
        Err(failure) => oneshot::fail(&args.asking, &failure),
        Ok(answer) => {
            let printed = match args.asking.json {
                true => oneshot::print(&answer.to_string()),
                false => oneshot::print(&shown(&answer)),
            };
            if is_error(&answer) {
                eprintln!("error: the tool `{}` reports an error", args.tool);
                return ExitCode::from(TOOL_ERROR);
            }
            printed
        }
    }
}

async fn call(args: &Args, arguments: RawJson, settings: &Settings) -> Result<Rope, Failure> {
    let action = Action::CallTool(CallTool {
        tool: ToolRef::Of {
            server: args.server.as_str().into(),
            tool: args.tool.as_str().into(),
        },
        arguments,
        trace: Trace::default(),
        form: ResultForm::Joined,
    });
    oneshot::perform(settings, &args.asking, action).await
}

fn read_arguments(given: &str) -> Result<RawJson, Failure> {
    let mut text = given.to_owned();
    if given == "-" {
        text.clear();
        let read = io::stdin().lock().read_to_string(&mut text);
        read.map_err(|error| invalid(&format!("stdin cannot be read: {error}")))?;
    }
    match serde_json::from_str(&text) {
        Ok(Value::Object(_)) => {
            RawJson::parse(text.into()).map_err(|error| invalid(&error.to_string()))
        }
        Ok(_) => Err(invalid(
            "a JSON object is expected, such as '{\"q\":\"rust\"}'",
        )),
        Err(error) => Err(invalid(&format!("they are not JSON: {error}"))),
    }
}

fn invalid(why: &str) -> Failure {
    Failure::new(
        ErrorCode::InvalidParams,
        format!("the arguments cannot be used: {why}"),
    )
}

/// The text of the answer; what is not text is named; structured content where there is no text.
fn shown(answer: &Value) -> String {
    let mut parts = Vec::new();
    for block in answer["raw"].as_array().into_iter().flatten() {
        match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(text)) => parts.push(text.to_owned()),
            (kind, _) => {
                let kind = kind.unwrap_or("unknown");
                let media = block["mimeType"].as_str().map(|media| format!(", {media}"));
                parts.push(format!(
                    "[{kind} block{}; --json shows it]",
                    media.unwrap_or_default()
                ));
            }
        }
    }
    match &answer["structured_content"] {
        content if parts.is_empty() && !content.is_null() => format!("{content:#}"),
        _ => parts.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_must_be_an_object() {
        assert!(read_arguments(r#"{"a":1}"#).is_ok());
        for wrong in ["[]", "1", "{", ""] {
            assert_eq!(
                read_arguments(wrong).unwrap_err().code,
                ErrorCode::InvalidParams,
                "{wrong}"
            );
        }
    }

    #[test]
    fn what_is_not_text_is_named() {
        let answer = json!({"raw": [
            {"type": "text", "text": "a"}, {"type": "image", "mimeType": "image/png", "data": "AA=="},
        ]});
        assert_eq!(
            shown(&answer),
            "a\n[image block, image/png; --json shows it]"
        );
        let structured = json!({"raw": [], "structured_content": {"n": 1}});
        assert_eq!(shown(&structured), "{\n  \"n\": 1\n}");
    }
}
