//! The one loop of the process: takes lines and signals, starts commands, and brings all to an end.
//!
//! It never waits for a command. Everything it can be woken by is an [`Occurrence`]; the phases of the
//! process's life (reading, draining, closing) differ in what they do with one.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::events::Outlet;
use super::lines::{Input, Level, Line, Lines};
use super::metrics;
use super::order::{Hold, Order, Releasing};
use super::protocol::{self, Command, TaskId, Verb};
use super::sight::Sight;
use super::tasks::{Errand, Tasks, Ticket};
use crate::actions::{Action, Context, Perform, Trail};
use crate::model::caller::{Caller, UserId};
use crate::model::deadline::Deadline;
use crate::model::error::{ErrorCode, Failure, Outcome};
use crate::model::event::{EventSink, Interest};
use crate::model::json::Rope;
use crate::model::redact::Redactor;
use crate::model::settings::Settings;
use crate::pool::{Bulkheads, Entry, Place};

/// What a user whose commands are as many as may is told to wait.
const BUSY: Duration = Duration::from_secs(1);

/// Commands of one user that may wait for each one that runs: a script piped in is no flood.
const WAITING: usize = 15;

/// Commands started before those started have a turn: the first are on their way to their servers while
/// the last are still being read.
const BURST: usize = 8;

/// How much later than its deadline a command is answered for an action that overran it.
const OVERRUN: Duration = Duration::from_secs(1);

/// Beyond `close_grace`: how long closing may take when the process ends in peace.
const CLOSING: Duration = Duration::from_secs(6);

/// How long the last answers may take to reach a host that reads, and closing when all must end now.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What the outside tells the process to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A signal of this number that asks to end.
    Signal(u8),
    /// Whoever watches over the process is gone: end at once, with everything below.
    Orphaned,
}

/// Everything the loop can be woken by.
enum Occurrence {
    Lines(Vec<Line>),
    EndOfInput,
    Notice(Notice),
    /// The host has closed stdout.
    Gone,
    /// A command has ended, or the host has read: there may be room for more.
    Room,
    Deadline,
}

/// Why reading has ended.
enum Ending {
    /// End of input, or a first signal.
    Drain,
    Exit,
    Now(Notice),
    Gone,
}

/// The resident process around the actions it serves.
pub struct Daemon<P> {
    actions: Arc<P>,
    settings: Settings,
    tasks: Arc<Tasks>,
    order: Order,
    users: Bulkheads<UserId>,
    lines: Lines,
    level: watch::Receiver<Level>,
    input: Option<Input>,
    notices: mpsc::Receiver<Notice>,
    /// Read, and not yet started.
    backlog: VecDeque<Line>,
    /// Lines that come now are refused.
    is_ending: bool,
    sight: Arc<Sight<P>>,
}

impl<P: Perform> Daemon<P> {
    pub fn new(
        actions: P,
        settings: Settings,
        redactor: Redactor,
        lines: Lines,
        input: Input,
        notices: mpsc::Receiver<Notice>,
    ) -> Self {
        let tasks = Tasks::new(lines.clone(), redactor);
        let actions = Arc::new(actions);
        let sight = Sight {
            actions: actions.clone(),
            tasks: tasks.clone(),
            lines: lines.clone(),
            queued: AtomicUsize::new(0),
            started: Instant::now(),
        };
        Self {
            actions,
            order: Order::new(settings.daemon.barrier_timeout),
            users: Bulkheads::new(settings.daemon.max_per_user, WAITING),
            settings,
            level: lines.level(),
            tasks,
            lines,
            input: Some(input),
            notices,
            backlog: VecDeque::new(),
            is_ending: false,
            sight: Arc::new(sight),
        }
    }

    /// Serves until the end; returns the exit code.
    pub async fn run(mut self) -> u8 {
        if self.settings.daemon.ready_line {
            self.lines.send(protocol::ready());
        }
        self.serve_metrics().await;
        let ending = self.read().await;
        let daemon = &self.settings.daemon;
        let close_grace = self.settings.pool.close_grace;
        let now = Instant::now();
        let ending = match ending {
            Ending::Drain => {
                tracing::info!(running = self.tasks.count(), "finishing what was read");
                let until = now + daemon.drain_timeout;
                self.finish(until, until + close_grace + CLOSING).await
            }
            Ending::Exit => {
                tracing::info!(running = self.tasks.count(), "the host asked to exit");
                let end = now + daemon.exit_timeout;
                let closing = (daemon.exit_timeout / 4).min(Duration::from_secs(1));
                self.finish(end - closing, end).await
            }
            ending => Err(ending),
        };
        match ending {
            Ok(()) => 0,
            Err(ending) => self.end_now(ending).await,
        }
    }

    /// A port that cannot be had costs the operator's view, not the host's service.
    async fn serve_metrics(&self) {
        let Some(address) = self.settings.metrics.listen else {
            return;
        };
        match metrics::serve(address, self.sight.clone()).await {
            Ok(bound) => tracing::info!(%bound, "metrics are served"),
            Err(error) => tracing::error!(%address, %error, "metrics cannot be served"),
        }
    }

    async fn read(&mut self) -> Ending {
        loop {
            if self.start_backlog().await {
                return Ending::Exit;
            }
            match self.next(None).await {
                Occurrence::Lines(lines) => self.backlog.extend(lines),
                Occurrence::EndOfInput => return Ending::Drain,
                Occurrence::Notice(Notice::Orphaned) => return Ending::Now(Notice::Orphaned),
                Occurrence::Notice(Notice::Signal(_)) => {
                    self.take_what_was_read();
                    self.is_ending = true;
                    return Ending::Drain;
                }
                Occurrence::Gone => return Ending::Gone,
                Occurrence::Room | Occurrence::Deadline => {}
            }
        }
    }

    /// Waits for what runs until `until`, then closes everything until `end`.
    async fn finish(&mut self, until: Instant, end: Instant) -> Result<(), Ending> {
        let force = !self.drain(until).await?;
        let actions = self.actions.clone();
        let closing = tokio::spawn(async move { actions.close(force).await });
        let mut closed = pin!(timeout_at(end, closing));
        loop {
            tokio::select! {
                biased;
                _ = &mut closed => break,
                occurrence = self.next(None) => self.refuse_or_end(occurrence)?,
            }
        }
        self.flush(end.max(Instant::now() + LAST_WORDS)).await
    }

    /// Whether everything was answered by its own end before `until`.
    async fn drain(&mut self, until: Instant) -> Result<bool, Ending> {
        loop {
            if self.start_backlog().await {
                self.is_ending = true;
            }
            if self.backlog.is_empty() && self.tasks.count() == 0 {
                return Ok(true);
            }
            match self.next(Some(until)).await {
                Occurrence::Deadline => {
                    self.answer_all_shutting_down();
                    return Ok(false);
                }
                occurrence => self.refuse_or_end(occurrence)?,
            }
        }
    }

    /// What an occurrence means once the end has begun.
    fn refuse_or_end(&mut self, occurrence: Occurrence) -> Result<(), Ending> {
        match occurrence {
            Occurrence::Lines(lines) => lines.iter().for_each(|line| self.refuse(line)),
            Occurrence::Notice(notice) => return Err(Ending::Now(notice)),
            Occurrence::Gone => return Err(Ending::Gone),
            Occurrence::EndOfInput | Occurrence::Room | Occurrence::Deadline => {}
        }
        Ok(())
    }

    async fn flush(&mut self, until: Instant) -> Result<(), Ending> {
        self.lines.finish();
        let mut level = self.level.clone();
        let written = level.wait_for(|level| matches!(level, Level::Done | Level::Gone));
        tokio::select! {
            _ = timeout_at(until, written) => Ok(()),
            Some(notice) = self.notices.recv() => Err(Ending::Now(notice)),
        }
    }

    async fn end_now(&mut self, ending: Ending) -> u8 {
        tracing::info!(running = self.tasks.count(), "ending at once");
        self.answer_all_shutting_down();
        let until = Instant::now() + LAST_WORDS;
        let _ = timeout_at(until, self.actions.close(true)).await;
        match ending {
            Ending::Now(Notice::Signal(number)) => {
                let _ = self.flush(until + LAST_WORDS).await;
                128u8.saturating_add(number)
            }
            _ => 0,
        }
    }

    async fn next(&mut self, until: Option<Instant>) -> Occurrence {
        self.note_queued();
        let has_room = self.is_ending || (self.backlog.is_empty() && self.has_room());
        let wants_room = !self.backlog.is_empty() || until.is_some() || !has_room;
        let never = Instant::now() + Duration::from_secs(1);
        tokio::select! {
            biased;
            Ok(()) = self.level.changed() => match *self.level.borrow_and_update() {
                Level::Gone => Occurrence::Gone,
                _ => Occurrence::Room,
            },
            Some(notice) = self.notices.recv() => Occurrence::Notice(notice),
            lines = receive(&mut self.input), if has_room && self.input.is_some() => match lines {
                Some(lines) => Occurrence::Lines(lines),
                None => {
                    self.input = None;
                    Occurrence::EndOfInput
                }
            },
            () = self.tasks.ended(), if wants_room => Occurrence::Room,
            () = sleep_until(until.unwrap_or(never)), if until.is_some() => Occurrence::Deadline,
        }
    }

    fn has_room(&self) -> bool {
        let most = if self.settings.daemon.sequential {
            1
        } else {
            self.settings.daemon.max_running
        };
        self.tasks.count() < most && *self.level.borrow() != Level::Full
    }

    fn note_queued(&self) {
        let queued = &self.sight.queued;
        queued.store(self.backlog.len(), Ordering::Relaxed);
    }

    /// Lines that had been read when the signal came count as read.
    fn take_what_was_read(&mut self) {
        if let Some(input) = &mut self.input {
            self.backlog.extend(input.at_hand());
        }
    }

    /// Starts what there is room for. Returns whether an `exit` was among it; what stands behind it is refused.
    async fn start_backlog(&mut self) -> bool {
        let mut started = 0;
        while self.has_room()
            && let Some(line) = self.backlog.pop_front()
        {
            started += 1;
            if started % BURST == 0 {
                yield_now().await;
            }
            self.note_queued();
            if self.start(line) {
                self.is_ending = true;
                for line in std::mem::take(&mut self.backlog) {
                    self.refuse(&line);
                }
                return true;
            }
        }
        false
    }

    /// Starts one line's command, or answers it. Returns whether it was an `exit`.
    fn start(&mut self, line: Line) -> bool {
        let (task, command) = match line {
            Line::Whole(line) => protocol::parse(&line),
            Line::TooLong(task) => {
                let failure = protocol::too_long(self.settings.daemon.max_line);
                (task, Err(failure))
            }
        };
        let is_exit = matches!(&command, Ok(command) if matches!(command.verb, Verb::Exit));
        match command.and_then(|command| self.perform(&task, command)) {
            Ok(None) => {}
            Ok(Some(result)) => self.tasks.answer_at_once(&task, Ok(result)),
            Err(failure) => self.tasks.refuse(&task, failure),
        }
        is_exit
    }

    /// The result, where there is one at once.
    fn perform(&mut self, task: &TaskId, command: Command) -> Result<Option<Rope>, Failure> {
        let caller = command.caller;
        let result = match command.verb {
            Verb::Ping => self.pong(),
            Verb::Stats => self.sight.figures(),
            Verb::Cancel { target } => {
                let cancelled = self.tasks.cancel(&target, caller.user.as_ref());
                json!({ "cancelled": cancelled })
            }
            Verb::Exit => json!({
                "message": "What runs is finished, connections are closed, then the process exits"
            }),
            Verb::Respond => {
                let message = "respond is not supported: no command asks its host anything";
                return Err(Failure::new(ErrorCode::Unsupported, message));
            }
            Verb::Invoke { action, params } => {
                let read = Action::parse(&action, params.as_ref())?;
                let read = read.traced(command.trace.as_ref())?;
                let deadline = read.deadline(&self.settings, command.timeout);
                let entry = self.enter(caller.user.as_ref())?;
                let errand = (action, read, command.interest);
                self.spawn(task, caller, errand, deadline, entry);
                return Ok(None);
            }
        };
        Ok(Some(Rope::from(&result)))
    }

    /// The right to wait for a place among the user's commands. A command of nobody is its host's own.
    fn enter(&self, user: Option<&UserId>) -> Result<Option<Entry>, Failure> {
        let Some(user) = user else { return Ok(None) };
        match self.users.enter(user) {
            Some(entry) => Ok(Some(entry)),
            None => Err(too_many(user, self.users.at_once())),
        }
    }

    fn spawn(
        &mut self,
        task: &TaskId,
        caller: Caller,
        (name, action, interest): (String, Action, Interest),
        deadline: Deadline,
        entry: Option<Entry>,
    ) {
        let user = caller.user.clone();
        let is_changing = action.is_changing();
        let trail = Arc::new(Trail::of(&action));
        let work = Work {
            actions: self.actions.clone(),
            entry,
            ahead: self.order.ahead_of(user.as_ref()),
            hold: is_changing.then(|| Releasing(self.order.hold(user.clone()))),
            action,
            interest,
            caller,
            deadline,
            trail: trail.clone(),
        };
        let errand = Errand {
            action: name,
            user,
            read: deadline.started,
            trail,
        };
        let ticket = self.tasks.register(task.clone(), errand);
        let key = ticket.key();
        // Boxed here, it is moved once and not at every step of becoming a task.
        let running = tokio::spawn(Box::pin(work.run(ticket)));
        self.tasks.started(key, running.abort_handle());
    }

    fn pong(&self) -> Value {
        let census = self.actions.census();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        json!({
            "pong": true,
            "timestamp": millis(now.unwrap_or_default()),
            "connections": census.connections,
            "tools_cached": census.catalogs,
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_ms": millis(self.sight.started.elapsed()),
            "in_flight": self.tasks.count(),
        })
    }

    fn refuse(&self, line: &Line) {
        let task = match line {
            Line::Whole(line) => protocol::parse(line).0,
            Line::TooLong(task) => task.clone(),
        };
        self.tasks.refuse(&task, shutting_down());
    }

    fn answer_all_shutting_down(&mut self) {
        self.tasks.end_all(&shutting_down());
        self.is_ending = true;
        for line in std::mem::take(&mut self.backlog) {
            self.refuse(&line);
        }
    }
}

/// One command's work, owned by its task.
struct Work<P> {
    actions: Arc<P>,
    action: Action,
    interest: Interest,
    caller: Caller,
    deadline: Deadline,
    entry: Option<Entry>,
    trail: Arc<Trail>,
    ahead: Vec<Hold>,
    /// Released with the work, also with work that never began.
    hold: Option<Releasing>,
}

impl<P: Perform> Work<P> {
    async fn run(self, ticket: Ticket) {
        let outcome = if self.interest.is_empty() {
            self.perform(None).await
        } else {
            Box::pin(self.perform_telling(&ticket)).await
        };
        ticket.answer(outcome);
    }

    /// Performs, and passes on what there is to tell meanwhile.
    async fn perform_telling(self, ticket: &Ticket) -> Result<Rope, Failure> {
        let outlet = Arc::new(Outlet::new(self.interest));
        let outcome = tokio::select! {
            biased;
            outcome = self.perform(Some(outlet.clone())) => outcome,
            never = outlet.pass_on(ticket) => match never {},
        };
        outlet.flush(ticket);
        outcome
    }

    /// Waits for changing commands before it, then for a place: in the other order those behind a
    /// change could take the place that the change itself needs.
    async fn turn(&mut self) -> Option<Place> {
        all_over(&self.ahead).await;
        match self.entry.take() {
            Some(entry) => Some(entry.place().await),
            None => None,
        }
    }

    async fn perform(mut self, events: Option<EventSink>) -> Result<Rope, Failure> {
        let deadline = self.deadline;
        let is_first = self.ahead.is_empty();
        let _place = match timeout_at(deadline.at, self.turn()).await {
            // Places come free at the deadlines of those who had them, which is too late for many.
            Ok(place) if Instant::now() < deadline.at => place,
            _ => return Err(too_late(deadline)),
        };
        let in_force = self
            .hold
            .as_ref()
            .map(|releasing| -> Arc<dyn Fn() + Send + Sync> {
                let hold = releasing.0.clone();
                Arc::new(move || hold.release())
            });
        let context = Context {
            caller: self.caller,
            deadline,
            events,
            begun: if is_first {
                deadline.started
            } else {
                Instant::now()
            },
            in_force,
            trail: self.trail,
        };
        let latest = deadline
            .extension
            .map_or(deadline.at, |extension| extension.until.max(deadline.at));
        let performed = pin!(self.actions.perform(self.action, context));
        match timeout_at(latest + OVERRUN, performed).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let failure = Failure::new(
                    ErrorCode::CallTimeout,
                    "The command did not end by its deadline; it may have run",
                );
                Err(failure
                    .elapsed(deadline.elapsed())
                    .outcome(Outcome::Unknown))
            }
        }
    }
}

fn too_late(deadline: Deadline) -> Failure {
    let message = "The deadline ended while the command waited for other commands of its user, or for a changing one before it";
    Failure::new(ErrorCode::CallTimeout, message)
        .elapsed(deadline.elapsed())
        .outcome(Outcome::NotSent)
}

fn too_many(user: &UserId, at_once: usize) -> Failure {
    let message = format!(
        "User {user} has {at_once} commands running, and as many are waiting as may (daemon.max_per_user)"
    );
    Failure::new(ErrorCode::Overloaded, message)
        .retry_after(BUSY)
        .outcome(Outcome::NotSent)
}

async fn all_over(holds: &[Hold]) {
    for hold in holds {
        hold.over().await;
    }
}

async fn receive(input: &mut Option<Input>) -> Option<Vec<Line>> {
    match input {
        Some(input) => input.next().await,
        None => std::future::pending().await,
    }
}

fn shutting_down() -> Failure {
    let message = "The daemon is shutting down and did not finish this command";
    Failure::new(ErrorCode::ShuttingDown, message)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
