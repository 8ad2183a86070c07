//! The loop over fake actions: lines and notices come through channels and the clock is held, so that
//! nothing here waits for real.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::lines::{Input, Level, Line, Lines};
use super::protocol::TaskId;
use super::{Daemon, Notice};
use crate::actions::{Action, Census, Context, Figures, Perform, ToolRef};
use crate::model::error::{ErrorCode, Failure};
use crate::model::event::{Event, EventKind};
use crate::model::json::{RawJson, Rope};
use crate::model::redact::Redactor;
use crate::model::settings::Settings;

/// What the fake actions did, and what they wait for.
#[derive(Default)]
struct Scene {
    gates: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// `begin X`, `end X`, `close force`.
    log: Mutex<Vec<String>>,
}

impl Scene {
    fn gate(&self, name: &str) -> Arc<Semaphore> {
        let mut gates = self.gates.lock().expect("no panic");
        let closed = || Arc::new(Semaphore::new(0));
        gates.entry(name.to_owned()).or_insert_with(closed).clone()
    }

    fn open(&self, name: &str) {
        self.gate(name).add_permits(1);
    }

    async fn pass(&self, name: &str) {
        self.note(format!("begin {name}"));
        let gate = self.gate(name);
        gate.acquire().await.expect("an open semaphore").forget();
        self.note(format!("end {name}"));
    }

    fn note(&self, what: String) {
        self.log.lock().expect("no panic").push(what);
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().expect("no panic").clone()
    }
}

struct Fake(Arc<Scene>);

impl Perform for Fake {
    async fn perform(&self, action: Action, context: Context) -> Result<Rope, Failure> {
        match action {
            Action::CallTool(call) => {
                let ToolRef::Of { server, tool } = call.tool else {
                    return Err(Failure::new(ErrorCode::ToolNotFound, "no such tool"));
                };
                match &*tool {
                    "wait" => self.0.pass(&server).await,
                    "panic" => panic!("a secret of the panic"),
                    "tell" => {
                        for n in 0..1_000 {
                            let event = Event::new(
                                EventKind::Progress,
                                server.clone(),
                                RawJson::from(&json!({ "progress": n })),
                            );
                            context.events.as_ref().expect("a sink").take(event);
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    _ => {}
                }
                Ok(call.arguments.into())
            }
            Action::ConnectServer { server_name } => {
                self.0.pass(&server_name).await;
                Ok(Rope::from(&json!({ "server_name": server_name })))
            }
            Action::Shutdown { .. } => {
                if let Some(tell) = &context.in_force {
                    tell();
                }
                self.0.pass("shutdown").await;
                Ok(Rope::from(&json!({})))
            }
            _ => Ok(Rope::from(&json!({}))),
        }
    }

    fn census(&self) -> Census {
        Census {
            connections: 2,
            catalogs: 3,
        }
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }

    async fn close(&self, force: bool) {
        self.0.note(format!("close {force}"));
        if self.0.gates.lock().expect("no panic").contains_key("close") {
            self.0.pass("close").await;
        }
    }
}

/// A daemon with its host's ends of the streams.
struct Rig {
    scene: Arc<Scene>,
    input: Option<mpsc::Sender<Vec<Line>>>,
    notices: mpsc::Sender<Notice>,
    lines: Lines,
    output: mpsc::UnboundedReceiver<Rope>,
    end: JoinHandle<u8>,
    sent: usize,
    received: usize,
}

impl Rig {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let scene = Arc::new(Scene::default());
        let (input, read) = mpsc::channel(4);
        let (notices, told) = mpsc::channel(4);
        let (lines, output) = Lines::tapped();
        let actions = Fake(scene.clone());
        let redactor = Redactor::default();
        let daemon = Daemon::new(
            actions,
            settings,
            redactor,
            lines.clone(),
            Input::Lines(read),
            told,
        );
        Self {
            scene,
            input: Some(input),
            notices,
            lines,
            output,
            end: tokio::spawn(daemon.run()),
            sent: 0,
            received: 0,
        }
    }

    async fn send_all(&mut self, commands: impl IntoIterator<Item = Value>) {
        let whole = |command: Value| Line::Whole(Bytes::from(command.to_string()));
        self.send_lines(commands.into_iter().map(whole).collect())
            .await;
    }

    async fn send_lines(&mut self, lines: Vec<Line>) {
        self.sent += lines.len();
        let input = self.input.as_ref().expect("open input");
        input.send(lines).await.expect("a daemon that reads");
    }

    async fn send(&mut self, command: Value) {
        self.send_all([command]).await;
    }

    async fn notify(&self, notice: Notice) {
        self.notices
            .send(notice)
            .await
            .expect("a daemon that listens");
    }

    /// The next line, event or answer.
    async fn line(&mut self) -> Value {
        let line = self.output.recv().await.expect("a line");
        let line: Value = serde_json::from_slice(&line.concat()).expect("JSON");
        self.received += usize::from(line.get("task_id").is_some());
        line
    }

    async fn answers(&mut self, count: usize) -> HashMap<String, Value> {
        let mut answers = HashMap::new();
        for _ in 0..count {
            let line = self.line().await;
            answers.insert(line["task_id"].to_string(), line);
        }
        assert_eq!(answers.len(), count, "{answers:?}");
        answers
    }

    /// Lets everything run that does not wait for a gate or the clock.
    async fn settle(&self) {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }

    /// The exit code; every line sent has had exactly one answer.
    async fn end(mut self) -> u8 {
        drop(self.input.take());
        let code = (&mut self.end).await.expect("no panic");
        while let Ok(line) = self.output.try_recv() {
            let line: Value = serde_json::from_slice(&line.concat()).expect("JSON");
            assert!(line.get("task_id").is_some(), "{line}");
            self.received += 1;
        }
        assert_eq!(self.received, self.sent, "one answer per line");
        code
    }
}

fn call(task: u64, server: &str, tool: &str) -> Value {
    json!({"task_id": task, "params": {"action": "call_tool", "server_name": server, "tool_name": tool, "arguments": {"n": task}}})
}

fn connect(task: u64, server: &str) -> Value {
    json!({"task_id": task, "params": {"action": "connect_server", "server_name": server}})
}

fn by(user: &str, mut command: Value) -> Value {
    command["user"] = json!({ "userId": user });
    command
}

fn word(task: u64, word: &str) -> Value {
    json!({"task_id": task, "command": word})
}

fn code(answer: &Value) -> &str {
    answer["error_code"].as_str().unwrap_or("success")
}

const TERM: Notice = Notice::Signal(15);

#[tokio::test(start_paused = true)]
async fn a_slow_command_holds_up_no_other() {
    let mut rig = Rig::new();
    rig.send_all([call(1, "slow", "wait"), call(2, "s", "echo")])
        .await;
    let fast = rig.line().await;
    assert_eq!(
        fast,
        json!({"task_id": 2, "result": {"n": 2}, "success": true})
    );
    rig.scene.open("slow");
    assert_eq!(rig.line().await["task_id"], 1);
    assert_eq!(rig.end().await, 0);
}

/// Invariant 1: one answer per command line, whatever becomes of its work.
#[tokio::test(start_paused = true)]
async fn every_line_is_answered_once() {
    let mut rig = Rig::new();
    rig.send_all([
        call(1, "s", "panic"),
        call(2, "s", "echo"),
        json!({"task_id": 3, "params": {"action": "dance"}}),
        json!({"task_id": 4, "params": []}),
        word(5, "respond"),
    ])
    .await;
    rig.send_lines(vec![
        Line::Whole(Bytes::from_static(b"nonsense")),
        Line::TooLong(TaskId::read(Bytes::from_static(b"6")).expect("an id")),
    ])
    .await;
    let answers = rig.answers(7).await;
    let codes = ["1", "2", "3", "4", "5", "6", "null"].map(|task| code(&answers[task]));
    assert_eq!(
        codes,
        [
            "internal",
            "success",
            "unknown_action",
            "invalid_command",
            "unsupported",
            "line_too_long",
            "invalid_json"
        ]
    );
    assert!(!answers["1"].to_string().contains("secret of the panic"));
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn two_running_commands_may_share_an_id() {
    let mut rig = Rig::new();
    rig.send_all([call(1, "a", "wait"), call(1, "b", "wait")])
        .await;
    rig.scene.open("b");
    assert_eq!(rig.line().await["success"], true);
    rig.scene.open("a");
    assert_eq!(rig.line().await["success"], true);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn ping_tells_how_the_daemon_stands() {
    let mut rig = Rig::new();
    rig.send_all([call(1, "a", "wait"), word(2, "ping")]).await;
    let pong = rig.line().await;
    let result = &pong["result"];
    let told = [
        &result["pong"],
        &result["connections"],
        &result["tools_cached"],
        &result["in_flight"],
    ];
    assert_eq!(told, [&json!(true), &json!(2), &json!(3), &json!(1)]);
    assert!(
        result["timestamp"].is_u64()
            && result["uptime_ms"].is_u64()
            && result["version"].is_string()
    );
    rig.scene.open("a");
    rig.line().await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn stats_counts_commands_and_answers_and_waits_for_no_change() {
    let mut rig = Rig::new();
    rig.send_all([
        connect(1, "a"),
        call(2, "b", "wait"),
        json!({"task_id": 3, "command": "no_such_action"}),
        json!({"task_id": 4, "params": {"action": "stats"}}),
    ])
    .await;
    rig.line().await;
    let stats = rig.line().await;
    assert_eq!(stats["task_id"], 4, "{stats}");
    let result = &stats["result"];
    let commands = &result["commands"];
    assert_eq!(commands["running"], 2);
    assert_eq!(
        (&commands["queued"], &commands["succeeded"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(commands["failed"]["unknown_action"], 1);
    assert_eq!(commands["failed"]["internal"], 0);
    assert!(result["rss_bytes"].as_u64() > Some(1 << 20), "{result}");
    assert!(result["pool"]["keys"]["cooling"].is_u64() && result["catalogs"]["count"].is_u64());
    rig.scene.open("a");
    rig.scene.open("b");
    rig.answers(2).await;
    rig.send(word(5, "stats")).await;
    // Three: two that ran, and the `stats` before.
    assert_eq!(rig.line().await["result"]["commands"]["succeeded"], 3);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn stats_tells_how_many_lines_wait_for_room() {
    let mut rig = Rig::with(|settings| settings.daemon.sequential = true);
    rig.send_all([
        call(1, "a", "wait"),
        word(2, "stats"),
        word(3, "ping"),
        word(4, "ping"),
    ])
    .await;
    rig.settle().await;
    rig.scene.open("a");
    rig.line().await;
    assert_eq!(rig.line().await["result"]["commands"]["queued"], 2);
    rig.answers(2).await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn cancel_ends_the_commands_of_its_own_user() {
    let mut rig = Rig::new();
    let cancel = |task: u64, target: u64| json!({"task_id": task, "command": "cancel", "params": {"target": target}});
    rig.send_all([
        by("ann", call(1, "a", "wait")),
        by("ann", call(1, "b", "wait")),
        by("bob", call(2, "c", "wait")),
    ])
    .await;
    rig.send(by("bob", cancel(3, 1))).await;
    assert_eq!(rig.line().await["result"], json!({"cancelled": false}));
    rig.send(by("ann", cancel(4, 1))).await;
    let codes = [rig.line().await, rig.line().await]
        .map(|answer| (answer["task_id"].clone(), code(&answer).to_owned()));
    assert_eq!(
        codes,
        [
            (json!(1), "cancelled".to_owned()),
            (json!(1), "cancelled".to_owned())
        ]
    );
    assert_eq!(rig.line().await["result"], json!({"cancelled": true}));
    rig.send(cancel(5, 2)).await;
    assert_eq!(code(&rig.line().await), "cancelled");
    assert_eq!(rig.line().await["result"], json!({"cancelled": true}));
    rig.settle().await;
    ["a", "b", "c"].iter().for_each(|gate| rig.scene.open(gate));
    rig.settle().await;
    assert!(
        !rig.scene.log().iter().any(|line| line.starts_with("end")),
        "the work was stopped"
    );
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_changing_command_holds_back_its_own_user_alone() {
    let mut rig = Rig::new();
    rig.send_all([
        by("ann", connect(1, "change")),
        by("ann", call(2, "s", "echo")),
        by("bob", call(3, "s", "echo")),
        call(4, "s", "echo"),
        by("ann", word(5, "ping")),
    ])
    .await;
    let others = rig.answers(3).await;
    assert!(
        ["3", "4", "5"]
            .iter()
            .all(|task| others.contains_key(*task)),
        "{others:?}"
    );
    rig.settle().await;
    assert!(rig.output.is_empty());
    rig.scene.open("change");
    let tasks = [rig.line().await, rig.line().await].map(|answer| answer["task_id"].clone());
    assert_eq!(tasks, [1, 2]);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_changing_command_of_nobody_holds_back_everybody() {
    let mut rig = Rig::new();
    rig.send_all([
        connect(1, "change"),
        by("bob", call(2, "s", "echo")),
        call(3, "s", "echo"),
    ])
    .await;
    rig.settle().await;
    assert!(rig.output.is_empty());
    rig.scene.open("change");
    assert_eq!(rig.line().await["task_id"], 1);
    rig.answers(2).await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_waits_for_changes_before_it_and_for_nothing_else() {
    let mut rig = Rig::new();
    rig.send_all([
        by("ann", call(1, "call", "wait")),
        by("ann", connect(2, "first")),
        by("ann", connect(3, "second")),
        by("ann", call(4, "s", "echo")),
    ])
    .await;
    rig.settle().await;
    assert_eq!(rig.scene.log(), ["begin call", "begin first"]);
    rig.scene.open("first");
    assert_eq!(rig.line().await["task_id"], 2);
    rig.settle().await;
    assert_eq!(rig.scene.log()[3..], ["begin second"]);
    rig.scene.open("second");
    rig.answers(2).await;
    rig.scene.open("call");
    assert_eq!(rig.line().await["task_id"], 1);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_in_force_holds_back_no_longer() {
    let mut rig = Rig::new();
    rig.send_all([
        json!({"task_id": 1, "params": {"action": "shutdown"}}),
        call(2, "s", "echo"),
    ])
    .await;
    assert_eq!(rig.line().await["task_id"], 2);
    rig.scene.open("shutdown");
    assert_eq!(rig.line().await["task_id"], 1);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_bounded_and_ends_with_its_command() {
    let mut rig = Rig::new();
    let started = Instant::now();
    rig.send_all([connect(1, "hangs"), call(2, "s", "echo")])
        .await;
    assert_eq!(rig.line().await["task_id"], 2);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    rig.send_all([connect(3, "hangs too"), call(4, "s", "echo")])
        .await;
    rig.send(json!({"task_id": 5, "command": "cancel", "params": {"target": 3}}))
        .await;
    let tasks = [rig.line().await, rig.line().await, rig.line().await]
        .map(|answer| answer["task_id"].clone());
    assert_eq!(tasks, [3, 5, 4]);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    rig.scene.open("hangs");
    rig.line().await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_waiting_and_an_action_that_overruns_it() {
    let mut rig = Rig::new();
    let mut waiting = call(2, "s", "echo");
    waiting["params"]["timeout_ms"] = json!(500);
    let started = Instant::now();
    rig.send_all([connect(1, "change"), waiting]).await;
    let answer = rig.line().await;
    assert_eq!(
        (code(&answer), &answer["details"]["outcome"]),
        ("call_timeout", &json!("not_sent"))
    );
    assert_eq!(started.elapsed(), Duration::from_millis(500));
    rig.scene.open("change");
    rig.line().await;
    let mut deaf = call(3, "deaf", "wait");
    deaf["params"]["timeoutMs"] = json!(500);
    rig.send(deaf).await;
    let answer = rig.line().await;
    assert_eq!(
        (code(&answer), &answer["details"]["outcome"]),
        ("call_timeout", &json!("unknown"))
    );
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn sequential_runs_one_line_at_a_time() {
    let mut rig = Rig::with(|settings| settings.daemon.sequential = true);
    rig.send_all([
        call(1, "slow", "wait"),
        call(2, "s", "echo"),
        word(3, "ping"),
    ])
    .await;
    rig.settle().await;
    assert!(rig.output.is_empty());
    rig.scene.open("slow");
    let tasks = [rig.line().await, rig.line().await, rig.line().await]
        .map(|answer| answer["task_id"].clone());
    assert_eq!(tasks, [1, 2, 3]);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_input_lets_running_commands_finish() {
    let mut rig = Rig::new();
    rig.send(call(1, "slow", "wait")).await;
    drop(rig.input.take());
    rig.settle().await;
    assert!(!rig.end.is_finished());
    rig.scene.open("slow");
    assert_eq!(rig.line().await["success"], true);
    let scene = rig.scene.clone();
    assert_eq!(rig.end().await, 0);
    assert_eq!(scene.log().last().map(String::as_str), Some("close false"));
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_at_its_timeout_and_then_closes_by_force() {
    let mut rig = Rig::new();
    let started = Instant::now();
    rig.send(call(1, "hangs", "wait")).await;
    drop(rig.input.take());
    assert_eq!(code(&rig.line().await), "shutting_down");
    assert_eq!(started.elapsed(), Duration::from_secs(30));
    let scene = rig.scene.clone();
    assert_eq!(rig.end().await, 0);
    assert_eq!(scene.log().last().map(String::as_str), Some("close true"));
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_a_signal_is_finished_and_later_lines_are_refused() {
    let mut rig = Rig::with(|settings| settings.daemon.sequential = true);
    rig.send_all([call(1, "slow", "wait"), call(2, "s", "echo")])
        .await;
    rig.settle().await;
    rig.send(call(3, "s", "echo")).await;
    rig.notify(TERM).await;
    rig.settle().await;
    rig.send_all([call(4, "s", "echo"), word(5, "ping"), json!(6)])
        .await;
    let refused = rig.answers(3).await;
    assert!(
        refused
            .values()
            .all(|answer| code(answer) == "shutting_down"),
        "{refused:?}"
    );
    rig.scene.open("slow");
    let tasks = [rig.line().await, rig.line().await, rig.line().await]
        .map(|answer| answer["task_id"].clone());
    assert_eq!(tasks, [1, 2, 3]);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_ends_at_once() {
    let mut rig = Rig::new();
    rig.send(call(1, "hangs", "wait")).await;
    rig.settle().await;
    let started = Instant::now();
    rig.notify(TERM).await;
    rig.settle().await;
    rig.notify(Notice::Signal(2)).await;
    assert_eq!(code(&rig.line().await), "shutting_down");
    let scene = rig.scene.clone();
    assert_eq!(rig.end().await, 130);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(scene.log().last().map(String::as_str), Some("close true"));
}

#[tokio::test(start_paused = true)]
async fn a_signal_while_closing_ends_at_once() {
    let mut rig = Rig::new();
    rig.scene.gate("close");
    drop(rig.input.take());
    rig.settle().await;
    assert_eq!(rig.scene.log(), ["close false", "begin close"]);
    rig.notify(TERM).await;
    assert_eq!(rig.end().await, 143);
}

#[tokio::test(start_paused = true)]
async fn closing_is_bounded() {
    let rig = Rig::new();
    rig.scene.gate("close");
    let started = Instant::now();
    assert_eq!(rig.end().await, 0);
    assert!(
        started.elapsed() <= Duration::from_secs(41),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn exit_answers_refuses_what_follows_and_keeps_its_time() {
    let mut rig = Rig::new();
    rig.scene.gate("close");
    let started = Instant::now();
    rig.send_all([
        call(1, "hangs", "wait"),
        word(2, "exit"),
        call(3, "s", "echo"),
    ])
    .await;
    assert!(rig.line().await["result"]["message"].is_string());
    let refused = rig.line().await;
    assert_eq!(
        (&refused["task_id"], code(&refused)),
        (&json!(3), "shutting_down")
    );
    rig.send(call(4, "s", "echo")).await;
    assert_eq!(rig.line().await["task_id"], 4);
    let hung = rig.line().await;
    assert_eq!(
        (&hung["task_id"], code(&hung)),
        (&json!(1), "shutting_down")
    );
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    assert_eq!(rig.end().await, 0);
    assert_eq!(started.elapsed(), Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_closed_stdout_or_a_lost_guardian_ends_everything() {
    for orphaned in [false, true] {
        let mut rig = Rig::new();
        rig.send(call(1, "hangs", "wait")).await;
        rig.settle().await;
        if orphaned {
            rig.notify(Notice::Orphaned).await;
        } else {
            rig.lines.set_level(Level::Gone);
        }
        let scene = rig.scene.clone();
        assert_eq!(rig.end().await, 0);
        assert_eq!(scene.log().last().map(String::as_str), Some("close true"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_answer_queue_stops_the_reading() {
    let mut rig = Rig::new();
    rig.lines.set_level(Level::Full);
    rig.send(word(1, "ping")).await;
    rig.settle().await;
    assert!(rig.output.is_empty());
    rig.lines.set_level(Level::Open);
    assert_eq!(rig.line().await["task_id"], 1);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn running_commands_are_bounded() {
    let mut rig = Rig::new();
    rig.send_all((0..5_000).map(|task| call(task, "gate", "wait")))
        .await;
    rig.settle().await;
    assert_eq!(rig.scene.log().len(), 4_096);
    rig.scene.gate("gate").add_permits(5_000);
    rig.answers(5_000).await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_user_who_floods_is_refused_and_costs_the_others_nothing() {
    let mut rig = Rig::with(|settings| settings.daemon.max_per_user = 2);
    rig.send_all((0..33).map(|task| by("ann", call(task, "gate", "wait"))))
        .await;
    let refused = rig.line().await;
    assert_eq!(
        (&refused["task_id"], code(&refused)),
        (&json!(32), "overloaded")
    );
    let details = &refused["details"];
    assert_eq!(
        (&details["retry_after_ms"], &details["outcome"]),
        (&json!(1_000), &json!("not_sent"))
    );
    rig.settle().await;
    assert_eq!(rig.scene.log(), ["begin gate", "begin gate"]);

    rig.send_all([by("bob", call(70, "s", "echo")), call(80, "s", "echo")])
        .await;
    rig.answers(2).await;
    rig.scene.open("gate");
    rig.line().await;
    rig.settle().await;
    assert_eq!(rig.scene.log().len(), 4, "one has ended, the next begun");
    rig.scene.gate("gate").add_permits(31);
    rig.answers(31).await;
    rig.send(by("ann", call(90, "s", "echo"))).await;
    assert_eq!(rig.line().await["success"], true);
    assert_eq!(rig.end().await, 0);
}

/// Those behind a change do not take the place that the change needs.
#[tokio::test(start_paused = true)]
async fn a_change_gets_its_place_before_those_that_wait_for_it() {
    let mut rig = Rig::with(|settings| settings.daemon.max_per_user = 1);
    let commands = [
        connect(1, "change"),
        call(2, "s", "echo"),
        call(3, "s", "echo"),
    ];
    rig.send_all(commands.map(|command| by("ann", command)))
        .await;
    rig.scene.open("change");
    assert_eq!(rig.line().await["task_id"], 1);
    rig.answers(2).await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_place_ends_with_its_deadline_or_its_cancel() {
    let mut rig = Rig::with(|settings| settings.daemon.max_per_user = 1);
    let mut late = call(2, "s", "echo");
    late["params"]["timeout_ms"] = json!(500);
    let commands = [call(1, "gate", "wait"), late, call(3, "s", "echo")];
    rig.send_all(commands.map(|command| by("ann", command)))
        .await;
    let answer = rig.line().await;
    assert_eq!(
        (
            &answer["task_id"],
            code(&answer),
            &answer["details"]["outcome"]
        ),
        (&json!(2), "call_timeout", &json!("not_sent"))
    );
    let cancel = json!({"task_id": 4, "command": "cancel", "params": {"target": 3}});
    rig.send(cancel).await;
    let answers = rig.answers(2).await;
    assert_eq!(code(&answers["3"]), "cancelled");
    rig.scene.open("gate");
    rig.line().await;
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn events_are_few_the_newest_wins_and_none_follows_the_answer() {
    let mut rig = Rig::new();
    let mut telling = call(1, "s", "tell");
    telling["params"]["progress"] = json!(true);
    rig.send(telling).await;
    let mut told = Vec::new();
    let mut dropped = 0;
    loop {
        let line = rig.line().await;
        if line.get("task_id").is_some() {
            break;
        }
        assert_eq!((&line["type"], &line["task"]), (&json!("event"), &json!(1)));
        told.push(line["params"]["progress"].as_u64().expect("a number"));
        dropped += line["dropped"].as_u64().unwrap_or(0);
    }
    assert!(told.len() <= 22, "{told:?}");
    assert!(told.is_sorted());
    assert_eq!((told.first(), told.last()), (Some(&0), Some(&999)));
    assert_eq!(told.len() as u64 + dropped, 1_000);
    assert_eq!(rig.end().await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_ready_line_is_the_first() {
    let mut rig = Rig::with(|settings| settings.daemon.ready_line = true);
    let ready = rig.line().await;
    assert_eq!(ready["type"], "ready");
    assert!(ready.get("task_id").is_none());
    assert_eq!(rig.end().await, 0);
}
