//! The server's half of MCP: what is right to answer, and when the script says otherwise.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::script::{Cursor, Era, Scene, Script, Step, Term};
use crate::{steps, tools};

/// Where the answers to one request go.
pub trait Wire: Send + Sync {
    /// One message, framed as the transport does.
    fn message(&self, text: &[u8]);
    /// Bytes within the framing of the transport (a line, an event), as they are.
    fn raw(&self, bytes: &[u8]);
    /// An HTTP response instead of an answer.
    fn response(&self, status: u16, headers: &[(String, String)], body: &str) {
        let _ = (status, headers, body);
        panic!("this step needs HTTP");
    }
    /// Bytes below the framing of the transport.
    fn tcp(&self, bytes: &[u8]) {
        self.raw(bytes);
    }
    /// Ends the connection.
    fn cut(&self) {}
    /// The credential the request came with, where the transport carries one.
    fn credential(&self) -> Option<String> {
        None
    }
    /// The headers the request came with.
    fn headers(&self) -> Value {
        Value::Null
    }
}

/// A message of the client, borrowed from its line.
#[derive(Deserialize)]
pub struct Message<'a> {
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    pub method: Option<String>,
    #[serde(borrow)]
    pub params: Option<&'a RawValue>,
}

/// A request or notification being served.
pub struct Request {
    /// JSON text; `None` for a notification.
    pub id: Option<String>,
    pub method: String,
    /// JSON text of an object.
    pub params: String,
}

impl Request {
    pub fn params(&self) -> Value {
        serde_json::from_str(&self.params).expect("the client's params are JSON")
    }

    pub fn tool(&self) -> Option<String> {
        (self.method == "tools/call").then(|| {
            self.params()["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
    }
}

pub struct Server {
    pub script: Script,
    pub journal: Journal,
    /// Replaces the tools of the script.
    pub tools: Mutex<Option<Vec<Value>>>,
    /// Scenes added on the way, before those of the script.
    pub added: Mutex<HashMap<String, Scene>>,
    pub asked: Mutex<HashMap<u64, Sender<Value>>>,
    next_ask: AtomicU64,
    pub sessions: Mutex<HashSet<String>>,
    pub stopped_reading: AtomicBool,
    probed: AtomicBool,
    /// The open `subscriptions/listen`, by its id.
    pub subscription: Mutex<Option<String>>,
}

const MODERN: &str = "2026-07-28";

impl Server {
    pub fn new(script: Script) -> Self {
        Self {
            journal: Journal::open(script.journal.as_deref()),
            script,
            tools: Mutex::default(),
            added: Mutex::default(),
            asked: Mutex::default(),
            next_ask: AtomicU64::new(1),
            sessions: Mutex::default(),
            stopped_reading: AtomicBool::new(false),
            probed: AtomicBool::new(false),
            subscription: Mutex::default(),
        }
    }

    pub fn start(self: &Arc<Self>) {
        self.journal.note(
            "start",
            json!({"parent": rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get())}),
        );
        if self.script.term != Term::Default {
            self.watch_term();
        }
        std::thread::sleep(Duration::from_millis(self.script.start_delay_ms));
    }

    fn watch_term(self: &Arc<Self>) {
        let server = Arc::clone(self);
        let (ready, installed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let kind = tokio::signal::unix::SignalKind::terminate();
                let mut term = tokio::signal::unix::signal(kind).expect("a handler");
                ready.send(()).expect("main waits");
                while term.recv().await.is_some() {
                    server.journal.note("term", json!({}));
                    if server.script.term == Term::Note {
                        std::process::exit(0);
                    }
                }
            });
        });
        installed.recv().expect("the handler is installed");
    }

    /// Takes one message of the client. What may take time runs on a thread of its own.
    pub fn take(self: &Arc<Self>, text: &[u8], wire: &Arc<dyn Wire>) {
        let Ok(message) = serde_json::from_slice::<Message>(text) else {
            return self
                .journal
                .note("unreadable", json!({"text": String::from_utf8_lossy(text)}));
        };
        let Some(method) = message.method else {
            return self.take_answer(text);
        };
        let request = Request {
            id: message.id.map(|id| id.get().to_owned()),
            method,
            params: message.params.map_or("{}", RawValue::get).to_owned(),
        };
        self.serve(request, wire);
    }

    fn take_answer(&self, text: &[u8]) {
        let answer: Value = serde_json::from_slice(text).expect("read before");
        self.journal.note("answer", json!({"answer": answer}));
        let id = answer["id"].as_u64().unwrap_or_default();
        if let Some(asked) = self.asked.lock().expect("unpoisoned").remove(&id) {
            let _ = asked.send(answer);
        }
    }

    pub fn serve(self: &Arc<Self>, request: Request, wire: &Arc<dyn Wire>) {
        let key = match request.tool() {
            Some(tool) => format!("tools/call:{tool}"),
            None => request.method.clone(),
        };
        let scene = self.scene(&key).or_else(|| self.scene(&request.method));
        self.note_request(&request, &key, wire);
        match scene {
            Some(steps) => steps::run(self, steps, request, wire),
            None => self.execute(&request, wire),
        }
    }

    fn note_request(&self, request: &Request, key: &str, wire: &Arc<dyn Wire>) {
        if self.script.journal.is_none() {
            return;
        }
        let event = if request.id.is_some() {
            "request"
        } else {
            "notification"
        };
        let params = if request.params.len() <= 4096 {
            request.params()
        } else {
            Value::Null
        };
        let id: Value = request
            .id
            .as_deref()
            .map_or(Value::Null, |id| serde_json::from_str(id).expect("an id"));
        self.journal.note(event, json!({"key": key, "method": request.method, "id": id, "params": params, "headers": wire.headers()}));
    }

    /// The steps for `key`, if any are (still) due.
    pub fn scene(&self, key: &str) -> Option<Vec<Step>> {
        let added = self.added.lock().expect("unpoisoned").get(key).cloned();
        match added.or_else(|| self.script.on.get(key).cloned())? {
            Scene::Always(steps) => Some(steps),
            Scene::Times { times, steps } => {
                let played = self.journal.count("scene", key);
                (played < times).then(|| {
                    self.journal.note("scene", json!({"key": key}));
                    steps
                })
            }
        }
    }

    /// The right thing to do.
    pub fn execute(self: &Arc<Self>, request: &Request, wire: &Arc<dyn Wire>) {
        let Some(id) = request.id.as_deref() else {
            return;
        };
        let answer = match request.method.as_str() {
            "server/discover" => match self.discover() {
                Some(answer) => answer,
                None => return,
            },
            "initialize" => self.initialize(request, wire),
            "ping" => Ok("{}".to_owned()),
            "tools/list" => self.list(&request.params()),
            "tools/call" => return tools::call(self, request, wire),
            "subscriptions/listen" if self.is_modern() => return self.listen(id, wire),
            _ => Err(json!({"code": -32601, "message": "Method not found"}).to_string()),
        };
        self.answer(id, answer, wire);
    }

    pub fn answer(&self, id: &str, answer: Result<String, String>, wire: &Arc<dyn Wire>) {
        for line in &self.script.noise {
            wire.raw(format!("{line}\n").as_bytes());
        }
        let text = match answer {
            Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            Err(error) => format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#),
        };
        wire.message(text.as_bytes());
    }

    /// A server that speaks the modern protocol marks its results.
    pub fn is_modern(&self) -> bool {
        matches!(self.script.era, Era::Modern | Era::Both) && self.probed.load(Ordering::Relaxed)
    }

    fn discover(&self) -> Option<Result<String, String>> {
        self.probed.store(true, Ordering::Relaxed);
        match self.script.era {
            Era::Legacy => Some(Err(json!({"code": -32601, "message": "Method not found"}).to_string())),
            Era::Modern | Era::Both => Some(Ok(json!({
                "resultType": "complete", "supportedVersions": [MODERN], "capabilities": capabilities(),
                "ttlMs": 0, "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": self.script.name, "version": "1"}},
            }).to_string())),
            Era::Empty => Some(Ok("{}".to_owned())),
            Era::Silent | Era::SilentThenDies => None,
            Era::Dies => self.exit(1),
        }
    }

    fn initialize(&self, request: &Request, wire: &Arc<dyn Wire>) -> Result<String, String> {
        match self.script.era {
            Era::Modern => {
                return Err(json!({"code": -32022, "message": "Unsupported protocol version", "data": {"supported": [MODERN]}}).to_string());
            }
            Era::SilentThenDies if self.probed.load(Ordering::Relaxed) => self.exit(1),
            _ => {}
        }
        let offered = request.params()["protocolVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let version = self.script.version.clone().unwrap_or(offered);
        let _ = wire;
        Ok(json!({
            "protocolVersion": version, "capabilities": capabilities(),
            "serverInfo": {"name": self.script.name, "version": "1"},
        })
        .to_string())
    }

    fn list(&self, params: &Value) -> Result<String, String> {
        let all = tools::all(self);
        let size = if self.script.page_size == 0 {
            all.len()
        } else {
            self.script.page_size
        };
        let cursor = params.get("cursor").and_then(Value::as_str);
        let page = match cursor {
            None => 0,
            Some("") => 1,
            Some(cursor) => cursor
                .parse()
                .map_err(|_| json!({"code": -32602, "message": "Invalid cursor"}).to_string())?,
        };
        let (texts, next) = match self.script.cursor {
            Cursor::Constant => (slice(&all, 0, size), Some("1".to_owned())),
            Cursor::Endless => (
                vec![format!(
                    r#"{{"name":"page_{page}","inputSchema":{{"type":"object"}}}}"#
                )],
                Some((page + 1).to_string()),
            ),
            Cursor::Empty if page == 0 && all.len() > size => {
                (slice(&all, 0, size), Some(String::new()))
            }
            Cursor::Honest | Cursor::Empty => (
                slice(&all, page, size),
                ((page + 1) * size < all.len()).then(|| (page + 1).to_string()),
            ),
        };
        let next = next.map_or(String::new(), |next| format!(r#","nextCursor":"{next}""#));
        let modern = if self.is_modern() {
            r#","resultType":"complete","ttlMs":0,"cacheScope":"private""#
        } else {
            ""
        };
        Ok(format!(
            r#"{{"tools":[{}]{next}{modern}}}"#,
            texts.join(",")
        ))
    }

    fn listen(&self, id: &str, wire: &Arc<dyn Wire>) {
        *self.subscription.lock().expect("unpoisoned") = Some(id.to_owned());
        let note = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{{"toolsListChanged":true}}}}}}"#
        );
        wire.message(note.as_bytes());
    }

    /// A number for a request of ours.
    pub fn next_ask(&self) -> u64 {
        self.next_ask.fetch_add(1, Ordering::Relaxed)
    }

    pub fn exit(&self, code: i32) -> ! {
        self.journal.note("exit", json!({"code": code}));
        std::process::exit(code);
    }
}

fn slice(all: &[String], page: usize, size: usize) -> Vec<String> {
    all.iter().skip(page * size).take(size).cloned().collect()
}

fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}})
}
