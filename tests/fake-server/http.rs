//! Streamable HTTP, and HTTP+SSE, by hand: broken answers need a hand on every byte.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::mcp::{Message, Request, Server, Wire};
use crate::steps;

/// The open GET streams, by session.
type Streams = Arc<Mutex<HashMap<String, Arc<Exchange>>>>;

pub fn serve(server: &Arc<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!(
        "{}",
        json!({"port": listener.local_addr().expect("an address").port()})
    );
    let streams = Streams::default();
    for stream in listener.incoming() {
        let (server, streams) = (Arc::clone(server), Arc::clone(&streams));
        let stream = stream.expect("a connection");
        std::thread::spawn(move || {
            steps::this_thread_may_wait();
            let _ = converse(&server, &streams, &stream);
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}

struct Head {
    verb: String,
    path: String,
    headers: HashMap<String, String>,
}

/// Serves the requests of one connection, one after the other.
fn converse(server: &Arc<Server>, streams: &Streams, stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = read_head(&mut reader)? {
        let mut body = Vec::new();
        if let Some(length) = head.headers.get("content-length") {
            body.resize(length.parse().expect("a length"), 0);
            reader.read_exact(&mut body)?;
        }
        let exchange = Arc::new(Exchange::new(server, stream.try_clone()?, &head));
        answer(server, streams, &head, &body, &exchange);
        exchange.end();
        if exchange.state.lock().expect("unpoisoned").broken {
            break;
        }
    }
    Ok(())
}

fn read_head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Head>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (verb, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Ok(Some(Head {
        verb,
        path,
        headers,
    }))
}

fn answer(
    server: &Arc<Server>,
    streams: &Streams,
    head: &Head,
    body: &[u8],
    exchange: &Arc<Exchange>,
) {
    server.journal.note("http", json!({"verb": head.verb, "path": head.path, "session": head.headers.get("mcp-session-id")}));
    match head.verb.as_str() {
        "POST" if server.script.http.legacy_sse => {
            post_legacy(server, streams, head, body, exchange)
        }
        "POST" => post(server, head, body, exchange),
        "GET" if head.headers.contains_key("last-event-id") => resume(server, head, exchange),
        "GET" if server.script.http.legacy_sse || server.script.http.get_stream => {
            get(server, streams, head, exchange)
        }
        "DELETE" if server.script.http.sessions => delete(server, head, exchange),
        _ => exchange.response(405, &[], ""),
    }
}

fn post(server: &Arc<Server>, head: &Head, body: &[u8], exchange: &Arc<Exchange>) {
    let Ok(message) = serde_json::from_slice::<Message>(body) else {
        return exchange.response(400, &[], "not JSON");
    };
    let method = message.method.as_deref();
    if server.script.http.sessions && method == Some("initialize") {
        exchange.begin_session();
    } else if server.script.http.sessions
        && method != Some("server/discover")
        && !exchange.is_modern
        && !knows(server, head)
    {
        let http = &server.script.http;
        return exchange.response(http.lost_status, &[], &http.lost_body);
    }
    let is_request = message.id.is_some() && method.is_some();
    let wire: Arc<dyn Wire> = Arc::clone(exchange) as Arc<dyn Wire>;
    server.take(body, &wire);
    if !is_request && !exchange.state.lock().expect("unpoisoned").done {
        exchange.response(202, &[], "");
    }
}

fn knows(server: &Server, head: &Head) -> bool {
    let sessions = server.sessions.lock().expect("unpoisoned");
    head.headers
        .get("mcp-session-id")
        .is_some_and(|session| sessions.contains(session))
}

/// A POST of HTTP+SSE: accepted here, answered on the stream of its session.
fn post_legacy(
    server: &Arc<Server>,
    streams: &Streams,
    head: &Head,
    body: &[u8],
    exchange: &Arc<Exchange>,
) {
    let session = head
        .path
        .split_once("session=")
        .map_or("", |(_, session)| session);
    let stream = streams.lock().expect("unpoisoned").get(session).cloned();
    let Some(stream) = stream else {
        return exchange.response(404, &[], "no such session");
    };
    exchange.response(202, &[], "");
    exchange.end();
    let (server, body) = (Arc::clone(server), body.to_owned());
    std::thread::spawn(move || {
        steps::this_thread_may_wait();
        let wire: Arc<dyn Wire> = stream;
        server.take(&body, &wire);
    });
}

fn get(server: &Arc<Server>, streams: &Streams, head: &Head, exchange: &Arc<Exchange>) {
    let session = head
        .headers
        .get("mcp-session-id")
        .cloned()
        .unwrap_or_else(|| server.next_ask().to_string());
    streams
        .lock()
        .expect("unpoisoned")
        .insert(session.clone(), Arc::clone(exchange));
    if server.script.http.legacy_sse {
        exchange.raw(format!("event: endpoint\ndata: /messages?session={session}\n\n").as_bytes());
    } else {
        exchange.raw(b": open\n\n");
    }
    exchange.wait_for_the_end();
}

/// Continues a stream after an event, whose id is that of the request it replies to: plays `resume`.
fn resume(server: &Arc<Server>, head: &Head, exchange: &Arc<Exchange>) {
    let request = Request {
        id: head.headers.get("last-event-id").cloned(),
        method: "resume".to_owned(),
        params: "{}".to_owned(),
    };
    let wire: Arc<dyn Wire> = Arc::clone(exchange) as Arc<dyn Wire>;
    exchange.stream();
    server.serve(request, &wire);
}

fn delete(server: &Arc<Server>, head: &Head, exchange: &Arc<Exchange>) {
    if server.script.http.hang_on_delete {
        steps::hang();
    }
    if let Some(session) = head.headers.get("mcp-session-id") {
        server.sessions.lock().expect("unpoisoned").remove(session);
    }
    exchange.response(200, &[], "");
}

#[derive(Default)]
struct State {
    /// The head of an SSE response is out.
    streaming: bool,
    /// A whole response is out.
    done: bool,
    /// Something was sent that leaves no room for a next request.
    broken: bool,
    session: Option<String>,
}

/// One request and what is answered to it.
struct Exchange {
    server: Arc<Server>,
    stream: Mutex<TcpStream>,
    headers: HashMap<String, String>,
    is_get: bool,
    is_modern: bool,
    state: Mutex<State>,
}

impl Exchange {
    fn new(server: &Arc<Server>, stream: TcpStream, head: &Head) -> Self {
        Self {
            server: Arc::clone(server),
            stream: Mutex::new(stream),
            headers: head.headers.clone(),
            is_get: head.verb == "GET",
            is_modern: head
                .headers
                .get("mcp-protocol-version")
                .is_some_and(|version| version == "2026-07-28"),
            state: Mutex::default(),
        }
    }

    fn begin_session(&self) {
        let session = format!("session-{}-{}", std::process::id(), self.server.next_ask());
        self.server
            .sessions
            .lock()
            .expect("unpoisoned")
            .insert(session.clone());
        self.state.lock().expect("unpoisoned").session = Some(session);
    }

    fn write(&self, bytes: &[u8]) {
        let mut stream = self.stream.lock().expect("unpoisoned");
        // The client may be gone: what cannot be written is nobody's loss.
        let _ = stream.write_all(bytes);
    }

    fn session_header(&self) -> String {
        let state = self.state.lock().expect("unpoisoned");
        state.session.as_ref().map_or(String::new(), |session| {
            format!("Mcp-Session-Id: {session}\r\n")
        })
    }

    /// Begins an SSE response, if it has not begun.
    fn stream(&self) {
        let session = self.session_header();
        if !std::mem::replace(&mut self.state.lock().expect("unpoisoned").streaming, true) {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{session}\r\n"
            );
            self.write(head.as_bytes());
        }
    }

    fn chunk(&self, bytes: &[u8]) {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.write(&chunk);
    }

    fn end(&self) {
        let mut state = self.state.lock().expect("unpoisoned");
        if state.streaming && !state.broken && !std::mem::replace(&mut state.done, true) {
            drop(state);
            self.write(b"0\r\n\r\n");
        }
    }

    /// Returns when the client has closed the connection.
    fn wait_for_the_end(&self) {
        let stream = self.stream.lock().expect("unpoisoned").try_clone();
        let mut rest = [0; 1024];
        while stream
            .as_ref()
            .is_ok_and(|mut stream| stream.read(&mut rest).is_ok_and(|read| read > 0))
        {}
        self.state.lock().expect("unpoisoned").broken = true;
    }
}

impl Wire for Exchange {
    fn message(&self, text: &[u8]) {
        let is_answer =
            serde_json::from_slice::<Message>(text).is_ok_and(|message| message.method.is_none());
        let streaming = self.state.lock().expect("unpoisoned").streaming;
        if is_answer && !streaming && !self.server.script.http.sse && !self.is_get {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n",
                self.session_header(),
                text.len()
            );
            let mut response = head.into_bytes();
            response.extend_from_slice(text);
            self.state.lock().expect("unpoisoned").done = true;
            return self.write(&response);
        }
        let mut event = b"event: message\ndata: ".to_vec();
        event.extend_from_slice(text);
        event.extend_from_slice(b"\n\n");
        self.raw(&event);
    }

    fn raw(&self, bytes: &[u8]) {
        self.stream();
        self.chunk(bytes);
    }

    fn response(&self, status: u16, headers: &[(String, String)], body: &str) {
        let mut head = format!(
            "HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n{}",
            body.len(),
            self.session_header()
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.state.lock().expect("unpoisoned").done = true;
        self.write(format!("{head}\r\n{body}").as_bytes());
    }

    fn tcp(&self, bytes: &[u8]) {
        self.state.lock().expect("unpoisoned").broken = true;
        self.write(bytes);
    }

    fn cut(&self) {
        self.state.lock().expect("unpoisoned").broken = true;
        let _ = self
            .stream
            .lock()
            .expect("unpoisoned")
            .shutdown(Shutdown::Both);
    }

    fn credential(&self) -> Option<String> {
        let header = |name: &str| self.headers.get(name).cloned();
        let bearer =
            header("authorization").map(|value| value.trim_start_matches("Bearer ").to_owned());
        bearer
            .or_else(|| header("x-api-key"))
            .or_else(|| Some(String::new()))
    }

    fn headers(&self) -> Value {
        json!(self.headers)
    }
}
