//! The task table: who may answer what. Taking an entry out of it is the right to answer, so no task
//! is answered twice; a ticket that is dropped still holding that right answers `internal`, so none is lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::lines::Lines;
use super::protocol::{self, TaskId};
use crate::actions::{Subject, Trail};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::event::Event;
use crate::model::json::Rope;
use crate::model::redact::Redactor;

/// Bytes of waiting answers above which events are dropped: they are worth less than any answer.
const EVENT_LIMIT: usize = 1 << 20;

/// Characters of a name that the log shows.
const MAX_NAME: usize = 128;

/// All running commands.
pub struct Tasks {
    table: Mutex<Table>,
    lines: Lines,
    redactor: Redactor,
    running: AtomicUsize,
    /// Told of every end of a command.
    ended: Notify,
    answers: Answers,
}

/// Answers given, by how they ended.
#[derive(Default)]
struct Answers {
    succeeded: AtomicU64,
    failed: [AtomicU64; ErrorCode::ALL.len()],
}

#[derive(Default)]
struct Table {
    last: u64,
    entries: HashMap<u64, Entry>,
}

/// What a command is about, for the line that closes it in the log.
pub struct Errand {
    pub action: String,
    pub user: Option<UserId>,
    /// When its line was read.
    pub read: Instant,
    pub trail: Arc<Trail>,
}

struct Entry {
    task: TaskId,
    errand: Errand,
    work: Option<AbortHandle>,
}

/// One running command's right to answer.
pub struct Ticket {
    tasks: Arc<Tasks>,
    key: u64,
}

impl Tasks {
    pub fn new(lines: Lines, redactor: Redactor) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            lines,
            redactor,
            running: AtomicUsize::new(0),
            ended: Notify::new(),
            answers: Answers::default(),
        })
    }

    pub fn register(self: &Arc<Self>, task: TaskId, errand: Errand) -> Ticket {
        let mut table = self.lock();
        table.last += 1;
        let key = table.last;
        let entry = Entry {
            task,
            errand,
            work: None,
        };
        table.entries.insert(key, entry);
        self.running.store(table.entries.len(), Ordering::Relaxed);
        Ticket {
            tasks: self.clone(),
            key,
        }
    }

    /// Says what to stop when the task is cancelled.
    pub fn started(&self, key: u64, work: AbortHandle) {
        if let Some(entry) = self.lock().entries.get_mut(&key) {
            entry.work = Some(work);
        }
    }

    pub fn count(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Answers that were successes.
    pub fn succeeded(&self) -> u64 {
        self.answers.succeeded.load(Ordering::Relaxed)
    }

    /// Answers that were failures of this code.
    pub fn failed(&self, code: ErrorCode) -> u64 {
        self.answers.failed[code as usize].load(Ordering::Relaxed)
    }

    /// Ends when a command has ended since the last call. For one waiter.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Answers a line that cannot become a running command.
    pub fn refuse(&self, task: &TaskId, failure: Failure) {
        tracing::info!(
            target: "mcp_client::task",
            task = %task.shown(),
            outcome = failure.code.as_str(),
            "a line was refused"
        );
        self.answer_at_once(task, Err(failure));
    }

    /// Answers a command that its taker has just taken out of the table.
    fn close(&self, entry: &Entry, outcome: Result<Rope, Failure>) {
        entry.errand.log_end(&entry.task, outcome.as_ref().err());
        self.answer_at_once(&entry.task, outcome);
    }

    /// Answers without a line in the log.
    pub fn answer_at_once(&self, task: &TaskId, outcome: Result<Rope, Failure>) {
        self.answers.count(&outcome);
        self.lines.send(match outcome {
            Ok(result) => protocol::success(task, result),
            Err(failure) => protocol::failure(task, failure, &self.redactor),
        });
    }

    /// Answers every running command with this id with `cancelled` and stops it; `user`: only that
    /// user's. Returns whether there was one.
    pub fn cancel(&self, target: &TaskId, user: Option<&UserId>) -> bool {
        let wanted = |entry: &Entry| {
            entry.task.is(target) && (user.is_none() || entry.errand.user.as_ref() == user)
        };
        let message = "The command was cancelled by its host";
        self.end_where(wanted, &Failure::new(ErrorCode::Cancelled, message)) > 0
    }

    /// Answers every running command with `failure` and stops it.
    pub fn end_all(&self, failure: &Failure) {
        self.end_where(|_| true, failure);
    }

    fn end_where(&self, wanted: impl Fn(&Entry) -> bool, failure: &Failure) -> usize {
        let keys: Vec<_> = {
            let table = self.lock();
            let entries = table.entries.iter().filter(|(_, entry)| wanted(entry));
            entries.map(|(key, _)| *key).collect()
        };
        let ended = keys
            .into_iter()
            .filter_map(|key| self.take(key))
            .map(|entry| {
                self.close(&entry, Err(failure.clone()));
                if let Some(work) = entry.work {
                    work.abort();
                }
            });
        ended.count()
    }

    fn take(&self, key: u64) -> Option<Entry> {
        let mut table = self.lock();
        let entry = table.entries.remove(&key)?;
        self.running.store(table.entries.len(), Ordering::Relaxed);
        self.ended.notify_one();
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Errand {
    /// The one line that tells what became of a command: names and numbers, nothing of its content.
    fn log_end(&self, task: &TaskId, failure: Option<&Failure>) {
        if !tracing::enabled!(target: "mcp_client::task", tracing::Level::INFO) {
            return;
        }
        let detail = |name: &str| failure?.details.get(name)?.as_str();
        let Subject { server, tool } = self.trail.subject();
        let reached = self.trail.reached().map(Phase::as_str);
        let outcome = match failure {
            Some(failure) => failure.code.as_str(),
            None if self.trail.is_tool_error() => "tool_error",
            None => "ok",
        };
        tracing::info!(
            target: "mcp_client::task",
            task = %task.shown(),
            action = self.action,
            user = self.user.as_ref().map(UserId::as_str),
            server = server.as_deref().or(detail("server_name")).map(cut),
            tool = tool.as_deref().map(cut),
            phase = detail("phase").or(reached),
            duration_ms = u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX),
            outcome,
            "a task has ended"
        );
    }
}

/// Names come from hosts and servers, and may be long.
fn cut(name: &str) -> &str {
    let end = name.char_indices().nth(MAX_NAME);
    end.map_or(name, |(end, _)| &name[..end])
}

impl Answers {
    fn count(&self, outcome: &Result<Rope, Failure>) {
        let counter = match outcome {
            Ok(_) => &self.succeeded,
            Err(failure) => &self.failed[failure.code as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Ticket {
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Answers, unless the task has been answered meanwhile.
    pub fn answer(self, outcome: Result<Rope, Failure>) {
        if let Some(entry) = self.tasks.take(self.key) {
            self.tasks.close(&entry, outcome);
        }
    }

    /// Writes an event line, if the task still runs and the host keeps up: one that asks the host for
    /// something does not wait for that. Returns whether it did.
    pub fn tell(&self, event: &Event, dropped: u64) -> bool {
        let table = self.tasks.lock();
        match table.entries.get(&self.key) {
            Some(entry) if event.kind.is_question() || self.tasks.lines.waiting() < EVENT_LIMIT => {
                let user = entry.errand.user.as_ref();
                let redactor = &self.tasks.redactor;
                let line = protocol::event(&entry.task, user, event, dropped, redactor);
                self.tasks.lines.send(line);
                true
            }
            _ => false,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(entry) = self.tasks.take(self.key) {
            let message =
                "The command ended without an answer; this is a fault of mcp-client, see its log";
            let failure = Failure::new(ErrorCode::Internal, message);
            self.tasks.close(&entry, Err(failure));
        }
    }
}
