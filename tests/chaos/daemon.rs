//! The built daemon at the end of its pipes: one writer at a time, a reader that can be made slow.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::ledger::{Answer, Asked, Expect, Ledger, Proof};
use crate::processes;
use crate::secrets::{canaries, token};
use crate::tally::{Tally, Wrong};

/// How long anything may take that must come.
pub const PATIENCE: Duration = Duration::from_secs(45);

/// Whether the host reads what the daemon writes.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    /// Reads no more, and drops its end.
    gone: AtomicBool,
}

impl Gate {
    fn pass(&self) -> bool {
        let closed = self.closed.lock().expect("unpoisoned");
        let waited = self.changed.wait_while(closed, |closed| *closed);
        drop(waited.expect("unpoisoned"));
        !self.gone.load(Ordering::SeqCst)
    }
}

pub struct Daemon {
    child: Mutex<Child>,
    /// The guardian, which is what we started.
    pub guardian: i32,
    stdin: Mutex<Option<ChildStdin>>,
    pub ledger: Arc<Ledger>,
    gate: Arc<Gate>,
    stderr: Arc<Mutex<String>>,
    seen_of_stderr: AtomicUsize,
    readers: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicUsize,
}

impl Daemon {
    pub fn start(mut command: Command, tally: &Arc<Tally>) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let ledger = Arc::new(Ledger::new(Arc::clone(tally)));
        let gate = Arc::<Gate>::default();
        let stderr = Arc::<Mutex<String>>::default();
        let (stdout, errors) = (child.stdout.take(), child.stderr.take());
        let answers = {
            let (ledger, gate) = (Arc::clone(&ledger), Arc::clone(&gate));
            let stdout = BufReader::new(stdout.expect("piped"));
            std::thread::spawn(move || read_answers(stdout, &ledger, &gate))
        };
        let errors = {
            let (stderr, errors) = (Arc::clone(&stderr), BufReader::new(errors.expect("piped")));
            std::thread::spawn(move || {
                for line in errors.split(b'\n').map_while(Result::ok) {
                    let mut all = stderr.lock().expect("unpoisoned");
                    all.push_str(&String::from_utf8_lossy(&line));
                    all.push('\n');
                }
            })
        };
        Self {
            guardian: i32::try_from(child.id()).expect("a pid"),
            stdin: Mutex::new(child.stdin.take()),
            child: Mutex::new(child),
            ledger,
            gate,
            stderr,
            seen_of_stderr: AtomicUsize::new(0),
            readers: Mutex::new(vec![answers, errors]),
            next: AtomicUsize::new(0),
        }
    }

    /// The process that serves, below the guardian.
    pub fn serving(&self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(pid) = processes::children(self.guardian).first() {
                return Some(*pid);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Writes a line that will be answered under `task` (JSON text). False: nobody reads any more.
    pub fn line(&self, task: String, text: &[u8], asked: Asked) -> bool {
        let mut stdin = self.stdin.lock().expect("unpoisoned");
        self.ledger.ask(task.clone(), asked);
        let written = stdin.as_mut().is_some_and(|stdin| {
            let whole = [text, b"\n"].concat();
            stdin.write_all(&whole).is_ok()
        });
        if !written {
            self.ledger.unask(&task);
        }
        written
    }

    /// A new task id.
    pub fn task(&self) -> String {
        format!("t{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A command of a user (`""`: of nobody); returns its task id as JSON text.
    pub fn send(&self, order: Order) -> String {
        let task = json!(self.task()).to_string();
        self.send_as(&task, order);
        task
    }

    /// The same under this id, given as JSON text.
    pub fn send_as(&self, task: &str, order: Order) {
        let id: Value = serde_json::from_str(task).expect("JSON text");
        let mut line = json!({"task_id": id, "command": "invoke", "params": order.params});
        if let Some(command) = order.command {
            line["command"] = command.into();
        }
        if !order.user.is_empty() {
            line["user"] = json!({"userId": order.user, "accessToken": token(&order.user)});
        }
        self.line(task.to_owned(), line.to_string().as_bytes(), order.asked());
    }

    /// A line as it is, without an id that could be read.
    pub fn raw(&self, text: &[u8], codes: &'static [&'static str]) {
        let order = Order::new("", Value::Null, Expect::Fails(codes));
        let mut asked = order.asked();
        asked.what = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
        self.line("null".to_owned(), text, asked);
    }

    /// Sends and waits; a command without an answer is told of.
    pub fn ask(&self, order: Order) -> Option<Answer> {
        let task = self.send(Order {
            watched: true,
            ..order
        });
        self.await_answer(&task)
    }

    pub fn await_answer(&self, task: &str) -> Option<Answer> {
        let answer = self.ledger.wait_for(task, PATIENCE);
        if answer.is_none() {
            let text = format!("no answer to {task} in {PATIENCE:?}");
            self.ledger.tally.blame(Wrong::Lost, text);
        }
        answer
    }

    pub fn read_no_more(&self, closed: bool) {
        *self.gate.closed.lock().expect("unpoisoned") = closed;
        self.gate.changed.notify_all();
    }

    /// The host's end of stdout closes with the next line.
    pub fn close_stdout(&self) {
        self.gate.gone.store(true, Ordering::SeqCst);
    }

    pub fn close_stdin(&self) {
        *self.stdin.lock().expect("unpoisoned") = None;
    }

    pub fn signal(&self, pid: i32, signal: Signal) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the end; None: it did not come.
    pub fn end(&self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        let status = loop {
            let ended = self.child.lock().expect("unpoisoned").try_wait();
            if let Some(status) = ended.expect("it can be waited for") {
                break status;
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        for reader in self.readers.lock().expect("unpoisoned").drain(..) {
            let _ = reader.join();
        }
        Some(status)
    }

    pub fn kill(&self) {
        for pid in processes::descendants(self.guardian) {
            self.signal(pid, Signal::KILL);
        }
        let mut child = self.child.lock().expect("unpoisoned");
        let _ = child.kill();
        let _ = child.wait();
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("unpoisoned").clone()
    }

    /// What is new on stderr holds no secret and no panic.
    pub fn check_stderr(&self) {
        let all = self.stderr.lock().expect("unpoisoned");
        let new = &all[self.seen_of_stderr.swap(all.len(), Ordering::Relaxed)..];
        for line in new.lines() {
            for canary in canaries(line) {
                self.ledger
                    .tally
                    .blame(Wrong::Leaked, format!("{canary:?} on stderr: {line}"));
            }
            if line.contains("panicked at") {
                self.ledger
                    .tally
                    .blame(Wrong::Other, format!("a panic: {line}"));
            }
        }
    }
}

fn read_answers(stdout: impl BufRead, ledger: &Ledger, gate: &Gate) {
    for line in stdout.split(b'\n') {
        let Ok(line) = line else { return };
        match String::from_utf8(line) {
            Ok(line) => ledger.take(&line),
            Err(_) => ledger
                .tally
                .blame(Wrong::Other, "stdout is not UTF-8".to_owned()),
        }
        if !gate.pass() {
            return;
        }
    }
}

/// A command to send, and what is to come of it.
pub struct Order {
    pub user: String,
    pub command: Option<&'static str>,
    pub params: Value,
    pub expect: Expect,
    pub proof: Proof,
    pub watched: bool,
}

impl Order {
    pub fn new(user: &str, params: Value, expect: Expect) -> Self {
        Self {
            user: user.to_owned(),
            command: None,
            params,
            expect,
            proof: Proof::None,
            watched: false,
        }
    }

    /// A tool call with a marker of its own.
    pub fn call(user: &str, server: &str, tool: &str, marker: &str, expect: Expect) -> Self {
        let params = json!({"action": "call_tool", "server_name": server, "tool_name": tool, "arguments": {"marker": marker}});
        let proof = match tool {
            "sleep" | "pid" | "count" => Proof::None,
            "whoami" => Proof::Secret,
            _ => Proof::Marker,
        };
        Self {
            proof,
            ..Self::new(user, params, expect)
        }
    }

    pub fn with(mut self, param: &str, value: impl Into<Value>) -> Self {
        self.params[param] = value.into();
        self
    }

    pub fn argument(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params["arguments"][name] = value.into();
        self
    }

    pub fn unproved(self) -> Self {
        Self {
            proof: Proof::None,
            ..self
        }
    }

    pub fn watched(self) -> Self {
        Self {
            watched: true,
            ..self
        }
    }

    fn asked(&self) -> Asked {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (server, tool) = (
            text(&self.params["server_name"]),
            text(&self.params["tool_name"]),
        );
        let action = self
            .command
            .map_or_else(|| text(&self.params["action"]), str::to_owned);
        Asked {
            user: self.user.clone(),
            what: format!("{action} {server} {tool}"),
            server,
            marker: self.params["arguments"]["marker"]
                .as_str()
                .map(str::to_owned),
            expect: self.expect,
            proof: self.proof,
            watched: self.watched,
            at: Instant::now(),
        }
    }
}
