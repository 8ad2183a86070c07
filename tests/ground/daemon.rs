//! The daemon under test, driven over its pipes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Ground, PATIENCE, left_over, parent_of, wait_for};

/// An answer line.
#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub value: Value,
}

impl Answer {
    /// The result of a success.
    #[track_caller]
    pub fn ok(&self) -> &Value {
        assert_eq!(self.value["success"], true, "not a success: {}", self.text);
        &self.value["result"]
    }

    /// The `details` of a failure with this code. Its sentence is there, as the contract demands.
    #[track_caller]
    pub fn failure(&self, code: &str) -> &Value {
        assert_eq!(
            self.value["error_code"], code,
            "another outcome: {}",
            self.text
        );
        assert_eq!(self.value["success"], false, "{}", self.text);
        assert!(
            self.value["error"]
                .as_str()
                .is_some_and(|error| !error.is_empty()),
            "no sentence: {}",
            self.text
        );
        assert!(self.value.get("result").is_none(), "{}", self.text);
        &self.value["details"]
    }

    /// The same where more than one code is right.
    #[track_caller]
    pub fn failure_in(&self, codes: &[&str]) -> &Value {
        let code = self.value["error_code"].as_str().unwrap_or_default();
        assert!(codes.contains(&code), "none of {codes:?}: {}", self.text);
        self.failure(code)
    }

    #[track_caller]
    pub fn is_failure(&self) -> bool {
        self.value["success"] == false
    }

    /// The text of the default result form.
    #[track_caller]
    pub fn content(&self) -> &str {
        self.ok()["content"]
            .as_str()
            .unwrap_or_else(|| panic!("no content: {}", self.text))
    }

    /// The result exactly as it stands on the line.
    #[track_caller]
    pub fn result_text(&self) -> &str {
        #[derive(Deserialize)]
        struct Line<'a> {
            #[serde(borrow)]
            result: &'a RawValue,
        }
        self.ok();
        let line: Line = serde_json::from_str(&self.text).expect("an answer");
        line.result.get()
    }
}

/// Reads a line. JSON that `Value` cannot hold (deep nesting, 1e400, half a surrogate pair) is JSON
/// all the same: a result of that kind is left to its text.
fn read(line: &str) -> Result<Value, serde_json::Error> {
    if let Ok(value) = serde_json::from_str(line) {
        return Ok(value);
    }
    let members: HashMap<String, &RawValue> = serde_json::from_str(line)?;
    let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or(Value::Null);
    Ok(members
        .into_iter()
        .map(|(name, raw)| (name, value(raw)))
        .collect())
}

pub struct Daemon {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    stderr: Arc<Mutex<String>>,
    stderr_reader: Option<JoinHandle<()>>,
    /// Answers read and not yet asked for, by the JSON text of their task id.
    answers: HashMap<String, Vec<Answer>>,
    /// Lines that are no answers: `ready` and events.
    pub events: Vec<Value>,
    sent: usize,
    received: usize,
    next_task: usize,
    tag: String,
    canaries: Box<dyn Fn() -> Vec<String>>,
}

impl Daemon {
    pub fn start(ground: &Ground, mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let reader = std::thread::spawn(move || {
            for line in stdout.split(b'\n') {
                let line = String::from_utf8(line.expect("stdout reads")).expect("stdout is UTF-8");
                if sender.send(line).is_err() {
                    // The test wants stdout closed: so it is, when this thread drops it.
                    return;
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let (kept, source) = (
            Arc::clone(&stderr),
            BufReader::new(child.stderr.take().expect("piped")),
        );
        let stderr_reader = std::thread::spawn(move || {
            for line in source.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                let mut kept = kept.lock().expect("unpoisoned");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let canaries = Arc::clone(&ground.canaries);
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            reader: Some(reader),
            stderr,
            stderr_reader: Some(stderr_reader),
            answers: HashMap::new(),
            events: vec![],
            sent: 0,
            received: 0,
            next_task: 0,
            tag: ground.tag.clone(),
            canaries: Box::new(move || canaries.lock().expect("unpoisoned").clone()),
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// Writes one command line as it is. It will have to be answered.
    pub fn line(&mut self, text: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin
            .write_all(text)
            .and_then(|()| stdin.write_all(b"\n"))
            .expect("the daemon reads");
        self.sent += 1;
    }

    /// Writes a command with a task id of its own and returns that.
    pub fn command(&mut self, mut command: Value) -> String {
        if command.get("task_id").is_none() {
            self.next_task += 1;
            command["task_id"] = format!("task-{}", self.next_task).into();
        }
        self.line(command.to_string().as_bytes());
        command["task_id"].to_string()
    }

    /// Invokes an action for a user (`""`: for nobody); `params` hold the action.
    pub fn send(&mut self, user: &str, params: Value) -> String {
        let mut command = json!({"command": "invoke", "params": params});
        if !user.is_empty() {
            command["user"] = json!({"userId": user, "accessToken": format!("token-of-{user}")});
        }
        self.command(command)
    }

    /// Invokes an action and awaits its answer.
    #[track_caller]
    pub fn ask(&mut self, user: &str, params: Value) -> Answer {
        let task = self.send(user, params);
        self.answer(&task)
    }

    /// Awaits the answer of a task, given as JSON text.
    #[track_caller]
    pub fn answer(&mut self, task: &str) -> Answer {
        loop {
            if let Some(waiting) = self.answers.get_mut(task)
                && !waiting.is_empty()
            {
                return waiting.remove(0);
            }
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.sort(line),
                Err(fault) => panic!("no answer to {task} ({fault}); stderr:\n{}", self.stderr()),
            }
        }
    }

    /// The next answer nobody has asked for yet, whichever it is.
    #[track_caller]
    pub fn answer_to_any(&mut self) -> Answer {
        loop {
            if let Some(waiting) = self
                .answers
                .values_mut()
                .find(|waiting| !waiting.is_empty())
            {
                return waiting.remove(0);
            }
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.sort(line),
                Err(fault) => panic!("no answer ({fault}); stderr:\n{}", self.stderr()),
            }
        }
    }

    /// Awaits the next line that is no answer.
    #[track_caller]
    pub fn event(&mut self) -> Value {
        while self.events.is_empty() {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.sort(line),
                Err(fault) => panic!("no event ({fault}); stderr:\n{}", self.stderr()),
            }
        }
        self.events.remove(0)
    }

    /// The lines so far that were no answers and that nobody has asked for.
    pub fn events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    fn sort(&mut self, line: String) {
        let value =
            read(&line).unwrap_or_else(|fault| panic!("not JSON on stdout ({fault}): {line}"));
        if value.get("type").is_some() {
            for reserved in ["task_id", "error", "result", "success"] {
                assert!(
                    value.get(reserved).is_none(),
                    "an event that looks like an answer: {line}"
                );
            }
            return self.events.push(value);
        }
        self.received += 1;
        if value["success"] == false {
            self.assert_no_canary("a failure", &line);
        }
        self.answers
            .entry(value["task_id"].to_string())
            .or_default()
            .push(Answer { text: line, value });
    }

    /// What the daemon has logged so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("unpoisoned").clone()
    }

    #[track_caller]
    fn assert_no_canary(&self, place: &str, text: &str) {
        for canary in (self.canaries)() {
            assert!(
                !text.contains(&canary),
                "{canary} shows in {place}:\n{text}"
            );
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid()).expect("a pid");
        kill_process(pid, signal).expect("the daemon lives");
    }

    /// The process that serves: the one below the guardian that we started.
    pub fn serving_pid(&self) -> i64 {
        let own = i64::from(self.pid());
        let below = left_over(&self.tag)
            .into_iter()
            .map(|(pid, _)| i64::from(pid));
        let mut below = below.filter(|pid| parent_of(*pid) == Some(own));
        below.next().expect("a guardian has one to guard")
    }

    /// The most memory the serving process has had, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.serving_pid()));
        let status = status.expect("it lives");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("a peak");
        peak.trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number")
            * 1024
    }

    /// Whether the process has ended (and is reaped).
    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("it can be waited for")
            .is_some()
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let stderr = Arc::clone(&self.stderr);
        let child = &mut self.child;
        let status = wait_for("the daemon's end", || {
            child.try_wait().expect("it can be waited for")
        });
        for thread in [self.reader.take(), self.stderr_reader.take()]
            .into_iter()
            .flatten()
        {
            thread.join().unwrap_or_else(|_| {
                panic!(
                    "stdout was not clean; stderr:\n{}",
                    stderr.lock().expect("unpoisoned")
                )
            });
        }
        while let Ok(line) = self.lines.try_recv() {
            self.sort(line);
        }
        status
    }

    /// Waits until no process of this ground is left.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let tag = self.tag.clone();
        wait_for(&format!("{:?} to be gone", left_over(&tag)), || {
            left_over(&tag).is_empty().then_some(())
        });
    }

    /// Ends the input and asserts all that must hold at an end.
    #[track_caller]
    pub fn finish(mut self) {
        self.close_stdin();
        let status = self.wait();
        assert_eq!(
            status.code(),
            Some(0),
            "it ended with {status} (signal {:?}); stderr:\n{}",
            status.signal(),
            self.stderr()
        );
        self.assert_all_answered();
        self.assert_clean();
    }

    /// One answer for every command, and none besides.
    #[track_caller]
    pub fn assert_all_answered(&self) {
        assert_eq!(
            self.received, self.sent,
            "answers and commands; unclaimed: {:?}",
            self.answers
        );
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        self.assert_nothing_left();
        let stderr = self.stderr();
        self.assert_no_canary("stderr", &stderr);
        assert!(!stderr.contains("panicked at"), "a panic:\n{stderr}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- stderr of the daemon ---\n{}", self.stderr());
        }
    }
}
