//! Plays the steps of a script.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::mcp::{Request, Server, Wire};
use crate::script::{Scene, Step};
use crate::tools;

thread_local! {
    /// Whether this thread serves one request only and may wait.
    static MAY_WAIT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on steps run on this thread, which serves nobody else meanwhile.
pub fn this_thread_may_wait() {
    MAY_WAIT.set(true);
}

/// Runs `work` where it may wait without holding up other requests.
pub fn on_a_thread(work: impl FnOnce() + Send + 'static) {
    if MAY_WAIT.get() {
        return work();
    }
    std::thread::spawn(move || {
        this_thread_may_wait();
        work();
    });
}

pub fn run(server: &Arc<Server>, steps: Vec<Step>, request: Request, wire: &Arc<dyn Wire>) {
    if steps.iter().any(|step| matches!(step, Step::StopReading)) {
        server.stopped_reading.store(true, Ordering::SeqCst);
    }
    let (server, wire) = (Arc::clone(server), Arc::clone(wire));
    on_a_thread(move || {
        for step in steps {
            play(&server, step, &request, &wire);
        }
    });
}

fn play(server: &Arc<Server>, step: Step, request: &Request, wire: &Arc<dyn Wire>) {
    let id = request.id.as_deref().unwrap_or("null");
    match step {
        Step::Execute => server.execute(request, wire),
        Step::Executed => {
            let params = request.params();
            tools::executed(
                server,
                params["name"].as_str().unwrap_or_default(),
                &params["arguments"],
                wire,
            );
        }
        Step::Result { text } => server.answer(id, Ok(text), wire),
        Step::Error { text } => server.answer(id, Err(text), wire),
        Step::Line { text } => wire.message(text.replace("$ID", id).as_bytes()),
        Step::Bytes { latin1 } => wire.raw(&latin1_bytes(&latin1.replace("$ID", id))),
        Step::Giant { bytes, endless } => giant(id, bytes, endless, wire),
        Step::Wait { ms } => std::thread::sleep(Duration::from_millis(ms)),
        Step::Until { file } => {
            while !file.exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Step::Note { text } => server.journal.note("note", json!({"text": text})),
        Step::Exit { code } => server.exit(code),
        Step::Kill => {
            server.journal.note("kill", json!({}));
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
        Step::Hang => hang(),
        // Taken note of before the first step.
        Step::StopReading => {}
        Step::CloseStdout => close_stdout(),
        Step::Stderr { text } => eprintln!("{text}"),
        Step::StderrFlood { bytes } => flood(bytes),
        Step::StderrVariable { name } => {
            eprintln!("{name}={}", std::env::var(&name).unwrap_or_default())
        }
        Step::Notify {
            method,
            params,
            times,
        } => {
            for _ in 0..times {
                wire.message(notification(server, &method, params.as_ref()).as_bytes());
            }
        }
        Step::Progress { times, every_ms } => progress(request, times, every_ms, wire),
        Step::Ask { method, params } => ask(server, &method, params, wire),
        Step::Tools { tools } => *server.tools.lock().expect("unpoisoned") = Some(tools),
        Step::On { key, steps } => {
            let mut added = server.added.lock().expect("unpoisoned");
            added.insert(key, Scene::Always(steps));
        }
        Step::Spawn {
            setsid,
            holds_stdout,
        } => spawn(server, setsid, holds_stdout),
        Step::Http {
            status,
            headers,
            body,
        } => wire.response(status, &pairs(headers), &body.replace("$ID", id)),
        Step::Forget => server.sessions.lock().expect("unpoisoned").clear(),
        Step::Cut => wire.cut(),
        Step::Tcp { latin1 } => wire.tcp(&latin1_bytes(&latin1.replace("$ID", id))),
    }
}

/// Stays, until the process ends.
pub fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn pairs(headers: BTreeMap<String, String>) -> Vec<(String, String)> {
    headers.into_iter().collect()
}

fn latin1_bytes(text: &str) -> Vec<u8> {
    text.chars()
        .map(|letter| u8::try_from(u32::from(letter)).expect("Latin-1"))
        .collect()
}

fn giant(id: &str, bytes: u64, endless: bool, wire: &Arc<dyn Wire>) {
    let block = [b'a'; 65_536];
    let head =
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#);
    if !endless {
        let mut line = head.into_bytes();
        line.resize(line.len() + usize::try_from(bytes).expect("fits"), b'a');
        line.extend_from_slice(br#""}]}}"#);
        return wire.message(&line);
    }
    wire.raw(head.as_bytes());
    let mut left = bytes;
    while left > 0 {
        wire.raw(&block);
        left = left.saturating_sub(block.len() as u64);
    }
}

fn close_stdout() {
    let null = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .expect("the null device");
    rustix::stdio::dup2_stdout(&null).expect("stdout moves");
}

fn flood(bytes: usize) {
    let line = [b'e'; 99];
    let mut stderr = std::io::stderr().lock();
    for _ in 0..bytes / 100 {
        let _ = stderr
            .write_all(&line)
            .and_then(|()| stderr.write_all(b"\n"));
    }
}

fn notification(server: &Server, method: &str, params: Option<&Value>) -> String {
    let mut params = params.cloned();
    if let Some(id) = &*server.subscription.lock().expect("unpoisoned") {
        let id: Value = serde_json::from_str(id).expect("an id");
        params.get_or_insert_with(|| json!({}))["_meta"]["io.modelcontextprotocol/subscriptionId"] =
            id;
    }
    match params {
        Some(params) => json!({"jsonrpc": "2.0", "method": method, "params": params}),
        None => json!({"jsonrpc": "2.0", "method": method}),
    }
    .to_string()
}

fn progress(request: &Request, times: usize, every_ms: u64, wire: &Arc<dyn Wire>) {
    let token = request.params()["_meta"]["progressToken"].clone();
    for step in 1..=times {
        std::thread::sleep(Duration::from_millis(every_ms));
        let params = json!({"progressToken": token, "progress": step, "total": times, "message": format!("step {step}")});
        let note = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        wire.message(note.to_string().as_bytes());
    }
}

fn ask(server: &Arc<Server>, method: &str, params: Option<Value>, wire: &Arc<dyn Wire>) {
    let id = server.next_ask();
    let (sender, answer) = mpsc::channel();
    server.asked.lock().expect("unpoisoned").insert(id, sender);
    let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
    if let Some(params) = params {
        request["params"] = params;
    }
    wire.message(request.to_string().as_bytes());
    let answer: Value = answer.recv().unwrap_or_default();
    server
        .journal
        .note("asked", json!({"method": method, "answer": answer}));
}

#[expect(
    clippy::zombie_processes,
    reason = "leaving it behind is what it is for"
)]
fn spawn(server: &Server, setsid: bool, holds_stdout: bool) {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command
        .arg("--linger")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if setsid {
        command.arg("--setsid");
    }
    if !holds_stdout {
        command.stdout(Stdio::piped());
    }
    let mut child = command.spawn().expect("a process below");
    if let Some(mut stdout) = child.stdout.take() {
        // Its first byte says that it has its own session, if it was to have one.
        let mut first = [0];
        std::io::Read::read_exact(&mut stdout, &mut first).expect("a sign of life");
    }
    server.journal.note("spawned", json!({"child": child.id()}));
}
