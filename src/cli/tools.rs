//! `mcp-client tools [SERVER]`.

use std::process::ExitCode;

use serde_json::Value;

use super::oneshot::{self, Asking};
use crate::actions::{Action, Servers};
use crate::model::settings::Settings;

/// List the tools of every server, or of one
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only this server's
    pub server: Option<String>,
    #[command(flatten)]
    pub asking: Asking,
}

/// Lists the tools; fails only if the one server asked for fails.
pub async fn run(args: Args, settings: &Settings) -> ExitCode {
    let action = Action::ListTools {
        servers: args
            .server
            .map_or(Servers::All, |name| Servers::One(name.into())),
        // What is kept from before is for those who cannot wait.
        refresh: true,
        if_revision: None,
    };
    let answer = oneshot::perform(settings, &args.asking, action).await;
    oneshot::finish(&args.asking, answer, shown)
}

/// A table of the tools; below it, the servers that could not be asked.
fn shown(answer: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members = |name: &str| answer[name].as_array().into_iter().flatten();
    let rows: Vec<Vec<String>> = members("tools")
        .map(|tool| {
            let about = text(&tool["description"]);
            let about = about.lines().next().unwrap_or_default().to_owned();
            vec![
                text(&tool["server_name"]),
                text(&tool["original_name"]),
                text(&tool["name"]),
                about,
            ]
        })
        .collect();
    let mut parts = match rows.is_empty() {
        true => vec!["no tools".to_owned()],
        false => vec![oneshot::table(
            &["server", "tool", "injected as", "description"],
            rows,
        )],
    };
    for error in members("errors") {
        parts.push(format!(
            "\n{}: {}",
            text(&error["server_name"]),
            oneshot::explain(error)
        ));
    }
    for warning in members("warnings") {
        parts.push(format!(
            "\n{}: warning: {}",
            text(&warning["server_name"]),
            text(&warning["warning"])
        ));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failed_servers_stand_below_the_tools() {
        let answer = json!({
            "tools": [{"name": "mcp_a_t", "server_name": "a", "original_name": "t", "description": "One.\nTwo."}],
            "errors": [{"server_name": "b", "error": "no", "error_code": "connect_failed"}],
        });
        let text = shown(&answer);
        assert!(text.contains("mcp_a_t") && text.contains("One.") && !text.contains("Two."));
        assert!(text.ends_with("b: error: no (connect_failed)"), "{text}");
    }
}
