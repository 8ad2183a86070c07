//! `mcp-client demo-server`: a small MCP server on stdio, to try the client with. It speaks
//! 2025-11-25 (`initialize`) and 2026-07-28 (`server/discover`, every request by itself).

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::demo_tools::{self, Progress};

const MODERN: &str = "2026-07-28";
const LEGACY: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const PARSE_ERROR: i64 = -32700;
const UNSUPPORTED_VERSION: i64 = -32022;

/// A small MCP server on stdio with a few tools, to try things with
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Tools: add, echo, time, slow (progress, can be cancelled) and whoami, \
which tells whose token is in DEMO_TOKEN (the part before the colon; never the token)."
)]
pub struct Args {}

/// Serves until stdin ends.
pub fn run(_args: Args) -> ExitCode {
    let server = Arc::new(DemoServer::default());
    for line in io::stdin().lock().lines() {
        match line {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => server.take(&line),
            Err(_) => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}

#[derive(Default)]
struct DemoServer {
    /// Running calls by request id; a sender that is dropped cancels.
    running: Mutex<HashMap<String, Sender<()>>>,
}

/// A JSON-RPC error.
struct Refusal {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl Refusal {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }
}

impl DemoServer {
    fn take(self: &Arc<Self>, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            let refusal = Refusal::new(PARSE_ERROR, "not JSON");
            return answer(&Value::Null, Err(refusal));
        };
        let method = message["method"].as_str().unwrap_or_default();
        let id = &message["id"];
        match (method, id) {
            ("notifications/cancelled", _) => self.cancel(&message["params"]["requestId"]),
            (_, Value::Null) => {}
            ("tools/call", id) => self.start_call(id.clone(), message["params"].clone()),
            (method, id) => answer(id, respond(method, &message["params"])),
        }
    }

    fn start_call(self: &Arc<Self>, id: Value, params: Value) {
        let (cancel, cancelled) = mpsc::channel();
        self.running().insert(id.to_string(), cancel);
        let server = self.clone();
        std::thread::spawn(move || {
            let outcome = call(&params, &cancelled);
            // Whoever cancelled a call has taken it out, and expects no answer.
            if server.running().remove(&id.to_string()).is_some() {
                answer(&id, outcome);
            }
        });
    }

    fn cancel(&self, id: &Value) {
        self.running().remove(&id.to_string());
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, Sender<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn respond(method: &str, params: &Value) -> Result<Value, Refusal> {
    match method {
        "initialize" => Ok(initialize(params)),
        "ping" => Ok(json!({})),
        "server/discover" => {
            let is_modern = is_modern(params)?;
            let offer = json!({"supportedVersions": [MODERN], "capabilities": {"tools": {}}});
            Ok(complete(cacheable(offer), is_modern))
        }
        "tools/list" => {
            let is_modern = is_modern(params)?;
            let tools = json!({"tools": demo_tools::list()});
            Ok(complete(cacheable(tools), is_modern))
        }
        _ => Err(Refusal::new(
            METHOD_NOT_FOUND,
            format!("there is no method {method}"),
        )),
    }
}

fn initialize(params: &Value) -> Value {
    let asked = params["protocolVersion"].as_str().unwrap_or_default();
    let version = LEGACY.into_iter().find(|known| *known == asked);
    json!({
        "protocolVersion": version.unwrap_or(LEGACY[0]),
        "capabilities": {"tools": {}},
        "serverInfo": server_info(),
    })
}

fn call(params: &Value, cancelled: &Receiver<()>) -> Result<Value, Refusal> {
    let is_modern = is_modern(params)?;
    let name = params["name"].as_str().unwrap_or_default();
    let progress = Progress {
        token: params["_meta"].get("progressToken").cloned(),
        cancelled,
        send,
    };
    let result = demo_tools::call(name, &params["arguments"], &progress);
    let refusal = || Refusal::new(INVALID_PARAMS, format!("there is no tool {name}"));
    Ok(complete(result.ok_or_else(refusal)?, is_modern))
}

/// Whether the request speaks 2026-07-28, in which each carries its version.
fn is_modern(params: &Value) -> Result<bool, Refusal> {
    match params["_meta"].get(VERSION_KEY) {
        None => Ok(false),
        Some(version) if version == MODERN => Ok(true),
        Some(version) => Err(Refusal {
            data: Some(json!({"supported": [MODERN], "requested": version})),
            ..Refusal::new(UNSUPPORTED_VERSION, "unsupported protocol version")
        }),
    }
}

fn cacheable(mut result: Value) -> Value {
    result["ttlMs"] = json!(60_000);
    result["cacheScope"] = json!("public");
    result
}

/// Adds what 2026-07-28 wants in every result.
fn complete(mut result: Value, is_modern: bool) -> Value {
    if is_modern {
        result["resultType"] = json!("complete");
        result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": server_info()});
    }
    result
}

fn server_info() -> Value {
    json!({"name": "demo-server", "version": env!("CARGO_PKG_VERSION")})
}

fn answer(id: &Value, outcome: Result<Value, Refusal>) {
    let mut message = Map::new();
    message.insert("jsonrpc".to_owned(), json!("2.0"));
    message.insert("id".to_owned(), id.clone());
    match outcome {
        Ok(result) => message.insert("result".to_owned(), result),
        Err(refusal) => {
            let mut error = json!({"code": refusal.code, "message": refusal.message});
            if let Some(data) = refusal.data {
                error["data"] = data;
            }
            message.insert("error".to_owned(), error)
        }
    };
    send(&message.into());
}

fn send(message: &Value) {
    let mut line = message.to_string();
    line.push('\n');
    let mut out = io::stdout().lock();
    // A client that is gone reads no answer; its closed stdin ends us.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_eras_are_answered_in_their_own_form() {
        let legacy = respond("tools/list", &json!({})).ok().unwrap();
        assert!(legacy.get("resultType").is_none());
        let modern = json!({"_meta": {VERSION_KEY: MODERN}});
        let modern = respond("tools/list", &modern).ok().unwrap();
        assert_eq!(modern["resultType"], "complete");
        assert_eq!(modern["tools"], legacy["tools"]);
        let discovered = respond("server/discover", &json!({"_meta": {VERSION_KEY: MODERN}}));
        assert_eq!(
            discovered.ok().unwrap()["supportedVersions"],
            json!([MODERN])
        );
    }

    #[test]
    fn an_unknown_version_is_refused_with_those_that_are_known() {
        let params = json!({"_meta": {VERSION_KEY: "2030-01-01"}});
        let refusal = respond("tools/list", &params).err().unwrap();
        assert_eq!(refusal.code, UNSUPPORTED_VERSION);
        assert_eq!(refusal.data.unwrap()["supported"], json!([MODERN]));
        let initialized = initialize(&json!({"protocolVersion": "1999-01-01"}));
        assert_eq!(initialized["protocolVersion"], "2025-11-25");
    }

    #[test]
    fn a_cancelled_call_ends_and_is_not_answered() {
        let server = Arc::new(DemoServer::default());
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "slow", "arguments": {"seconds": 600}}});
        server.take(&call.to_string());
        assert_eq!(server.running().len(), 1);
        server.take(r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#);
        assert!(server.running().is_empty());
    }
}
