//! The task table: who may answer what. Taking an entry out of it is the right to answer, so no task
//! is answered twice; a ticket that is dropped still holding that right answers `internal`, so none is lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::lines::Lines;
use super::protocol::{self, TaskId};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::event::Event;
use crate::model::json::Rope;
use crate::model::redact::Redactor;

/// Bytes of waiting answers above which events are dropped: they are worth less than any answer.
const EVENT_LIMIT: usize = 1 << 20;

/// All running commands.
pub struct Tasks {
    table: Mutex<Table>,
    lines: Lines,
    redactor: Redactor,
    running: watch::Sender<usize>,
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

struct Entry {
    task: TaskId,
    user: Option<UserId>,
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
            running: watch::Sender::new(0),
            answers: Answers::default(),
        })
    }

    pub fn register(self: &Arc<Self>, task: TaskId, user: Option<UserId>) -> Ticket {
        let mut table = self.lock();
        table.last += 1;
        let key = table.last;
        let entry = Entry {
            task,
            user,
            work: None,
        };
        table.entries.insert(key, entry);
        self.running.send_replace(table.entries.len());
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
        *self.running.borrow()
    }

    /// Answers that were successes.
    pub fn succeeded(&self) -> u64 {
        self.answers.succeeded.load(Ordering::Relaxed)
    }

    /// Answers that were failures of this code.
    pub fn failed(&self, code: ErrorCode) -> u64 {
        self.answers.failed[code as usize].load(Ordering::Relaxed)
    }

    /// Tells of every change of the number of running commands.
    pub fn running(&self) -> watch::Receiver<usize> {
        self.running.subscribe()
    }

    /// Answers a line that never became a running command.
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
            entry.task.is(target) && (user.is_none() || entry.user.as_ref() == user)
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
                self.answer_at_once(&entry.task, Err(failure.clone()));
                if let Some(work) = entry.work {
                    work.abort();
                }
            });
        ended.count()
    }

    fn take(&self, key: u64) -> Option<Entry> {
        let mut table = self.lock();
        let entry = table.entries.remove(&key)?;
        self.running.send_replace(table.entries.len());
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            self.tasks.answer_at_once(&entry.task, outcome);
        }
    }

    /// Writes an event line, if the task still runs and the host keeps up. Returns whether it did.
    pub fn tell(&self, event: &Event, dropped: u64) -> bool {
        let table = self.tasks.lock();
        match table.entries.get(&self.key) {
            Some(entry) if self.tasks.lines.waiting() < EVENT_LIMIT => {
                let user = entry.user.as_ref();
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
            self.tasks.answer_at_once(&entry.task, Err(failure));
        }
    }
}
