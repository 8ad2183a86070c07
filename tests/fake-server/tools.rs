//! The tools that are always there.

use std::io::{Read, Seek, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::mcp::{Request, Server, Wire};

const ALWAYS: &[(&str, &str)] = &[
    ("echo", "Returns its arguments."),
    (
        "whoami",
        "Returns the credential this server was started or called with.",
    ),
    ("count", "Counts up, over all processes."),
    (
        "env",
        "The names in its environment, or the value of the one named.",
    ),
    ("headers", "The headers of the HTTP request."),
    ("pid", "The id of this process."),
    ("sleep", "Answers after `ms`."),
];

/// Every tool as it is listed.
pub fn all(server: &Server) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    if !server.script.only_these_tools {
        all.extend(
            ALWAYS
                .iter()
                .map(|(name, description)| plain(name, description)),
        );
    }
    if let Some(tools) = &*server.tools.lock().expect("unpoisoned") {
        all.extend(tools.iter().map(Value::to_string));
        return all;
    }
    all.extend(server.script.tools.iter().map(|tool| tool.get().to_owned()));
    let listed: Vec<String> = all.iter().filter_map(|tool| name_of(tool)).collect();
    let scripted = server
        .script
        .on
        .keys()
        .filter_map(|key| key.strip_prefix("tools/call:"));
    all.extend(
        scripted
            .filter(|name| !listed.iter().any(|listed| listed == name))
            .map(|name| plain(name, "Scripted.")),
    );
    all
}

fn name_of(tool: &str) -> Option<String> {
    let tool: Value = serde_json::from_str(tool).ok()?;
    tool["name"].as_str().map(str::to_owned)
}

fn plain(name: &str, description: &str) -> String {
    json!({"name": name, "description": description, "inputSchema": {"type": "object"}}).to_string()
}

/// Runs a tool and answers. One it does not know echoes: what is listed is the script's business.
pub fn call(server: &Arc<Server>, request: &Request, wire: &Arc<dyn Wire>) {
    let id = request.id.clone().expect("a call has an id");
    let params = request.params();
    let name = params["name"].as_str().unwrap_or_default();
    let arguments = params
        .get("arguments")
        .cloned()
        .unwrap_or_else(|| json!({}));
    executed(server, name, &arguments, wire);
    let answer = match name {
        "whoami" => text(server, &credential(server, wire).unwrap_or_default()),
        "count" => text(server, &count(server).to_string()),
        "env" => text(server, &environment(&arguments)),
        "headers" => text(server, &wire.headers().to_string()),
        "pid" => text(server, &std::process::id().to_string()),
        "pry" => text(server, &pry(&arguments)),
        "sleep" => return sleep(server, id, &arguments, wire),
        _ => echo(server, &arguments),
    };
    server.answer(&id, answer, wire);
}

/// Notes that the tool has run, and with which credential.
pub fn executed(server: &Server, name: &str, arguments: &Value, wire: &Arc<dyn Wire>) {
    if server.script.journal.is_some() {
        // Told apart from the rest, which may be too long to note.
        let marker = arguments["marker"].clone();
        let small = arguments.to_string().len() <= 4096;
        let arguments = if small {
            arguments.clone()
        } else {
            Value::Null
        };
        server.journal.note(
            "executed",
            json!({"tool": name, "arguments": arguments, "marker": marker, "credential": credential(server, wire)}),
        );
    }
}

/// What this process can do to the process of that `pid`: read its environment, and signal it.
fn pry(arguments: &Value) -> String {
    let pid = arguments["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).expect("a pid");
    let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid()));
    let signal = rustix::process::test_kill_process(pid);
    format!("reads {}, signals {}", environment.is_ok(), signal.is_ok())
}

fn credential(server: &Server, wire: &Arc<dyn Wire>) -> Option<String> {
    wire.credential()
        .or_else(|| std::env::var(&server.script.credential).ok())
}

fn text(server: &Server, text: &str) -> Result<String, String> {
    let mut result = json!({"content": [{"type": "text", "text": text}]});
    mark(server, &mut result);
    Ok(result.to_string())
}

fn echo(server: &Server, arguments: &Value) -> Result<String, String> {
    let mut result = json!({"content": [{"type": "text", "text": arguments.to_string()}], "structuredContent": arguments});
    mark(server, &mut result);
    Ok(result.to_string())
}

fn mark(server: &Server, result: &mut Value) {
    if server.is_modern() {
        result["resultType"] = "complete".into();
    }
}

fn environment(arguments: &Value) -> String {
    match arguments["name"].as_str() {
        Some(name) => std::env::var(name).unwrap_or_default(),
        None => {
            let mut names: Vec<String> = std::env::vars_os()
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect();
            names.sort();
            json!(names).to_string()
        }
    }
}

fn count(server: &Server) -> u64 {
    let path = server
        .script
        .counter
        .as_ref()
        .expect("a script whose tool `count` is called names a counter");
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("the counter opens");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("the counter locks");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("the counter reads");
    let count = text.trim().parse().unwrap_or(0) + 1;
    file.rewind().expect("the counter rewinds");
    write!(file, "{count}").expect("the counter takes a number");
    count
}

fn sleep(server: &Arc<Server>, id: String, arguments: &Value, wire: &Arc<dyn Wire>) {
    let delay = Duration::from_millis(arguments["ms"].as_u64().unwrap_or_default());
    let (server, wire) = (Arc::clone(server), Arc::clone(wire));
    let answer = move || {
        std::thread::sleep(delay);
        let answer = text(&server, "slept");
        server.answer(&id, answer, &wire);
    };
    crate::steps::on_a_thread(answer);
}
