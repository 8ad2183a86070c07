//! `mcp-client servers`.

use std::process::ExitCode;

use serde_json::Value;

use super::oneshot::{self, Asking};
use crate::actions::Action;
use crate::model::settings::Settings;

/// List the servers and whose credentials would be used
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub asking: Asking,
}

/// Lists the servers; connects to none.
pub async fn run(args: Args, settings: &Settings) -> ExitCode {
    let answer = oneshot::perform(settings, &args.asking, Action::ListServers).await;
    oneshot::finish(&args.asking, answer, shown)
}

fn shown(answer: &Value) -> String {
    let servers = answer["servers"].as_array().into_iter().flatten();
    let rows: Vec<Vec<String>> = servers.map(row).collect();
    if rows.is_empty() {
        return "no servers are defined; see `mcp-client server --help`".to_owned();
    }
    let header = [
        "server",
        "transport",
        "access",
        "credentials",
        "status",
        "last error",
    ];
    oneshot::table(&header, rows)
}

fn row(server: &Value) -> Vec<String> {
    let text = |name: &str| server[name].as_str().unwrap_or_default().to_owned();
    let access = if server["is_public"] == true {
        "public"
    } else {
        "per user"
    };
    let credentials = match server["credential_source"].as_str() {
        Some(source) => source.to_owned(),
        None if server["requires_credentials"] == true => "required".to_owned(),
        None => "none".to_owned(),
    };
    vec![
        text("name"),
        text("transport_type"),
        access.to_owned(),
        credentials,
        text("status"),
        text("last_error"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_tells_whose_credentials_are_used() {
        let server = json!({
            "name": "a", "transport_type": "stdio", "is_public": false,
            "requires_credentials": true, "credential_source": null, "status": "idle",
        });
        assert_eq!(
            row(&server),
            ["a", "stdio", "per user", "required", "idle", ""]
        );
    }
}
