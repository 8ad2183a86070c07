//! `mcp-client doctor`: looks at everything a daemon would need, and changes nothing.

mod servers;
mod surroundings;
mod versions;

use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::oneshot;
use crate::model::error::words;
use crate::model::redact::Redactor;
use crate::model::settings::{Examined, Settings};

/// Check settings, store, kernel and server definitions
///
/// Makes and changes nothing. Exit code 1 when something is wrong; a warning alone is not.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Look at the servers as this user would find them
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Start or reach every server that can be, and list its tools
    #[arg(long)]
    connect: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

words! {
    /// How much a finding matters.
    Level {
        Ok = "ok",
        Note = "note",
        Warning = "warning",
        Error = "error",
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    area: &'static str,
    /// What of it: a setting, a file, a server.
    about: String,
    level: Level,
    /// A sentence for a person.
    text: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    details: Map<String, Value>,
}

impl Finding {
    fn new(area: &'static str, about: &str, level: Level, text: impl Into<String>) -> Self {
        Self {
            area,
            about: about.to_owned(),
            level,
            text: text.into(),
            details: Map::new(),
        }
    }

    fn with(mut self, details: Map<String, Value>) -> Self {
        self.details = details;
        self
    }
}

/// Looks at everything and prints what was found.
pub async fn run(
    args: Args,
    settings: &Settings,
    examined: &Examined,
    redactor: &Redactor,
) -> ExitCode {
    let mut findings = surroundings::settings(examined);
    let (store, is_readable) = surroundings::store(settings).await;
    findings.extend(store);
    findings.extend(surroundings::kernel(settings));
    if is_readable {
        findings.extend(servers::all(&args, settings, redactor).await);
    }
    let is_wrong = findings.iter().any(|found| found.level == Level::Error);
    let mut report = json!({ "ok": !is_wrong, "findings": findings });
    redactor.scrub_json(&mut report);
    let printed = match args.json {
        true => oneshot::print(&report.to_string()),
        false => oneshot::print(&shown(&report)),
    };
    if is_wrong { ExitCode::FAILURE } else { printed }
}

fn shown(report: &Value) -> String {
    let findings = report["findings"].as_array().into_iter().flatten();
    let rows = findings.map(row).collect();
    let table = oneshot::table(&["", "area", "what", "finding"], rows);
    let verdict = match report["ok"] == true {
        true => "nothing is wrong",
        false => "something is wrong: see the lines marked `error`",
    };
    format!("{table}\n\n{verdict}")
}

fn row(finding: &Value) -> Vec<String> {
    let text = |name: &str| printable(finding[name].as_str().unwrap_or_default());
    let mut found = text("text");
    if let Some(stderr) = finding["details"]["stderr"].as_str() {
        let lines = stderr
            .lines()
            .map(|line| format!("\n| {}", printable(line)));
        found.extend(lines);
    }
    vec![text("level"), text("area"), text("about"), found]
}

/// What servers say may hold anything.
fn printable(text: &str) -> String {
    let shown = text.chars().map(|letter| match letter {
        letter if letter.is_control() => letter.escape_default().to_string(),
        letter => letter.to_string(),
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_last_words_of_its_server_and_no_control_characters() {
        let finding = Finding::new("server", "books", Level::Error, "it ended").with(
            json!({"stderr": "one\n\u{1b}[2Jtwo"})
                .as_object()
                .cloned()
                .unwrap_or_default(),
        );
        let row = row(&json!(finding));
        assert_eq!(
            row,
            [
                "error",
                "server",
                "books",
                "it ended\n| one\n| \\u{1b}[2Jtwo"
            ]
        );
    }
}
