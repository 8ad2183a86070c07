//! Every definition: can it be started, with whose credentials, and does it speak?

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Args, Finding, Level, oneshot, versions};
use crate::directory::Directory;
use crate::mcp::{Connect, Connected, Connector, ListedTools, Session, find_program};
use crate::model::caller::{Caller, UserId};
use crate::model::definition::Template;
use crate::model::error::{ErrorCode, Failure};
use crate::model::redact::Redactor;
use crate::model::resolve::{ServerEntry, Target, resolve};
use crate::model::settings::Settings;

/// Servers being connected at once.
const AT_ONCE: usize = 4;

/// From this version on, a server is asked without a handshake.
const MODERN: &str = "2026-07-28";

fn found(server: &str, level: Level, text: impl Into<String>) -> Finding {
    Finding::new("server", server, level, text)
}

/// What is to be said of every server that this user, or nobody, has.
pub(super) async fn all(args: &Args, settings: &Settings, redactor: &Redactor) -> Vec<Finding> {
    let caller = Caller {
        user: args.user.as_deref().map(UserId::new),
        access_token: oneshot::access_token(),
        ..Caller::default()
    };
    let read = async {
        let directory = Directory::open(settings, redactor.clone()).await?;
        directory.snapshot(&caller).await
    };
    let snapshot = match read.await {
        Ok(snapshot) => snapshot,
        Err(failure) => return vec![Finding::new("servers", "", Level::Error, failure.message)],
    };
    if snapshot.servers.is_empty() {
        return vec![Finding::new("servers", "", Level::Note, "none are defined")];
    }
    let mut findings = Vec::new();
    let mut targets = Vec::new();
    for entry in &snapshot.servers {
        let (said, target) = definition(entry, &caller, settings);
        findings.extend(said);
        targets.extend(target);
    }
    if args.connect {
        findings.extend(connect_all(targets, settings, redactor).await);
    }
    findings
}

/// What can be said without starting it, and what to connect where it can be.
fn definition(
    entry: &ServerEntry,
    caller: &Caller,
    settings: &Settings,
) -> (Vec<Finding>, Option<Arc<Target>>) {
    let definition = &entry.definition;
    let name = &*definition.name;
    if !definition.is_enabled {
        return (vec![found(name, Level::Note, "disabled")], None);
    }
    let mut findings = Vec::new();
    let mut can_start = true;
    if let Ok(Template::Stdio { command, args, env }) = &definition.template {
        let program = program(name, command, env, settings);
        can_start = program.level != Level::Error;
        findings.push(program);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        findings.extend(versions::floating(command, &args).map(|package| {
            let text = format!(
                "`{command}` fetches {package} in whatever version is newest: name one, as in {}",
                pinned(command, package)
            );
            found(name, Level::Warning, text)
        }));
    }
    match resolve(entry, caller) {
        Ok(target) => {
            let source = target.credential_source.map(|source| source.as_str());
            let text = match source {
                Some(source) => format!("credentials of the {source} fit"),
                None => "needs no credentials".to_owned(),
            };
            findings.push(found(name, Level::Ok, text));
            (findings, can_start.then(|| Arc::new(target)))
        }
        Err(failure) => {
            findings.push(unresolved(name, failure, caller));
            (findings, None)
        }
    }
}

fn pinned(command: &str, package: &str) -> String {
    let bare = package.get(1..).and_then(|rest| rest.find('@'));
    let bare = bare.map_or(package, |at| &package[..=at]);
    let bare = bare.split("==").next().unwrap_or(bare);
    match command.ends_with("npx") {
        true => format!("{bare}@1.2.3"),
        false => format!("{bare}==1.2.3"),
    }
}

fn program(
    name: &str,
    command: &str,
    env: &BTreeMap<String, String>,
    settings: &Settings,
) -> Finding {
    let inherited = settings.stdio.environment.iter();
    let inherited = inherited.filter(|(name, _)| name == "PATH");
    let path = env.get("PATH").or(inherited.map(|(_, value)| value).next());
    let path = path.map_or("", String::as_str);
    match find_program(command, OsStr::new(path)) {
        Some(file) => found(name, Level::Ok, format!("starts {}", file.display())),
        None => {
            let text = format!("there is no program `{command}` to be executed in PATH ({path})");
            found(name, Level::Error, text)
        }
    }
}

/// Without a user, that a server needs one's credentials is no fault of its definition.
fn unresolved(name: &str, failure: Failure, caller: &Caller) -> Finding {
    match failure.code {
        ErrorCode::InvalidParams if caller.user.is_none() => {
            let text = "each user has a connection of their own: --user USER looks at one";
            found(name, Level::Note, text)
        }
        ErrorCode::CredentialsRequired => {
            found(name, Level::Warning, failure.message).with(failure.details)
        }
        _ => found(name, Level::Error, failure.message).with(failure.details),
    }
}

async fn connect_all(
    targets: Vec<Arc<Target>>,
    settings: &Settings,
    redactor: &Redactor,
) -> Vec<Finding> {
    let connector = Connector::new(settings, redactor.clone());
    let connecting = targets
        .into_iter()
        .map(|target| connect(&connector, target, settings.pool.list_timeout));
    futures::stream::iter(connecting)
        .buffered(AT_ONCE)
        .collect()
        .await
}

async fn connect(connector: &Connector, target: Arc<Target>, list_timeout: Duration) -> Finding {
    let name = target.server_name.clone();
    let begun = Instant::now();
    let session = match connector.connect(target).await {
        Ok(session) => session,
        Err(failure) => return failed(&name, failure),
    };
    let start = begun.elapsed();
    let listed = session.list_tools(Instant::now() + list_timeout).await;
    let finding = match listed {
        Ok(listed) => connected(&name, &session, start, &listed),
        Err(failure) => failed(&name, failure),
    };
    session.close().await;
    finding
}

fn connected(name: &str, session: &Session, start: Duration, listed: &ListedTools) -> Finding {
    let identity = session.identity();
    let version = &identity.protocol_version;
    let era = match version.as_str() >= MODERN {
        true => "modern",
        false => "legacy",
    };
    let (tools, noise) = (listed.tools.len(), session.noise());
    let mut text = format!(
        "speaks MCP {version} ({era}), started in {} ms, {tools} tools",
        start.as_millis()
    );
    if noise > 0 {
        text += &format!(", and {noise} lines on its stdout that are no messages");
    }
    for warning in &listed.warnings {
        text += &format!("; {warning}");
    }
    let level = match noise == 0 && listed.warnings.is_empty() {
        true => Level::Ok,
        false => Level::Warning,
    };
    found(name, level, text).with(members(json!({
        "era": era,
        "protocol_version": version,
        "server_info": identity.server_info,
        "start_ms": u64::try_from(start.as_millis()).unwrap_or(u64::MAX),
        "tools_count": tools,
        "noise": noise,
    })))
}

fn failed(name: &str, failure: Failure) -> Finding {
    let Failure {
        code,
        message,
        mut details,
    } = failure;
    details.insert("error_code".to_owned(), code.as_str().into());
    found(name, Level::Error, format!("{message} ({code})")).with(details)
}

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_package_in_the_form_of_its_program() {
        assert_eq!(pinned("npx", "@scope/books@latest"), "@scope/books@1.2.3");
        assert_eq!(pinned("/bin/npx", "books"), "books@1.2.3");
        assert_eq!(pinned("uvx", "books==1.*"), "books==1.2.3");
    }
}
