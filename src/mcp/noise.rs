//! What a server sends that is no message for anybody: counted, logged in few lines, never answered,
//! and the end of the connection when it is too much.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::wire::CallId;
use crate::model::error::{ErrorCode, Failure};

/// Lines that are no message before the first that is one: a banner is shorter.
const MAX_BANNER: u64 = 100;
/// Answers that nobody asked for, in a minute.
const MAX_STRAYS: u64 = 100;
const STRAYS_WITHIN: Duration = Duration::from_secs(60);
/// Between two lines of the log.
const LOG_APART: Duration = Duration::from_secs(1);
/// Calls given up whose late answer is no fault of the server.
const MAX_GIVEN_UP: usize = 1024;

pub(super) struct Noise {
    server_name: Arc<str>,
    total: AtomicU64,
    /// Whether the server has sent a message yet.
    greeted: AtomicBool,
    counts: Mutex<Counts>,
    fault: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct Counts {
    strays: u64,
    strays_since: Option<Instant>,
    logged: Option<Instant>,
    unlogged: u64,
    given_up: VecDeque<CallId>,
}

impl Noise {
    pub(super) fn new(server_name: Arc<str>) -> Self {
        Self {
            server_name,
            total: AtomicU64::new(0),
            greeted: AtomicBool::new(false),
            counts: Mutex::default(),
            fault: watch::Sender::new(None),
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// A message has come, whatever it is.
    pub(super) fn greeted(&self) {
        if !self.greeted.load(Ordering::Relaxed) {
            self.greeted.store(true, Ordering::Relaxed);
        }
    }

    /// Nobody waits for the answer of this call any more.
    pub(super) fn give_up(&self, id: CallId) {
        let mut counts = self.lock();
        if counts.given_up.len() == MAX_GIVEN_UP {
            counts.given_up.pop_front();
        }
        counts.given_up.push_back(id);
    }

    /// A line that is no message.
    pub(super) fn junk(&self) {
        let total = self.count();
        if total >= MAX_BANNER && !self.greeted.load(Ordering::Relaxed) {
            self.fail(format!(
                "it wrote {MAX_BANNER} lines to its output and none was a message"
            ));
        }
    }

    /// An answer to nothing that waits for one: unknown, given twice, or late.
    pub(super) fn stray(&self, id: Option<CallId>) {
        self.count();
        let now = Instant::now();
        let mut counts = self.lock();
        let late = id.and_then(|id| counts.given_up.iter().position(|given_up| *given_up == id));
        if let Some(late) = late {
            counts.given_up.remove(late);
            return;
        }
        let begins = |since: Instant| now.duration_since(since) >= STRAYS_WITHIN;
        if counts.strays_since.is_none_or(begins) {
            counts.strays_since = Some(now);
            counts.strays = 0;
        }
        counts.strays += 1;
        if counts.strays > MAX_STRAYS {
            drop(counts);
            self.fail(format!(
                "it sent more than {MAX_STRAYS} answers in a minute that nobody had asked for"
            ));
        }
    }

    /// Counts what is no fault by itself; returns how much there has been in all.
    pub(super) fn count(&self) -> u64 {
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        let mut counts = self.lock();
        counts.unlogged += 1;
        if counts
            .logged
            .is_none_or(|logged| now.duration_since(logged) >= LOG_APART)
        {
            let lines = std::mem::take(&mut counts.unlogged);
            counts.logged = Some(now);
            drop(counts);
            tracing::info!(server = %self.server_name, lines, total, "the server sent what is no message for anybody");
        }
        total
    }

    /// Why the connection has to end, if it has.
    pub(super) fn fault(&self) -> Option<Failure> {
        let reason = self.fault.borrow().clone()?;
        Some(Failure::new(ErrorCode::ProtocolError, reason))
    }

    /// Ends when the connection has to.
    pub(super) async fn faulted(&self) {
        let mut fault = self.fault.subscribe();
        if fault.wait_for(Option::is_some).await.is_err() {
            std::future::pending().await
        }
    }

    fn fail(&self, reason: String) {
        self.fault.send_if_modified(|fault| {
            let first = fault.is_none();
            fault.get_or_insert(reason);
            first
        });
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn noise() -> Noise {
        Noise::new("books".into())
    }

    fn strays(noise: &Noise, count: u64) -> bool {
        (0..count).for_each(|_| noise.stray(Some(7)));
        noise.fault().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_banner_may_be_long_and_not_endless() {
        let noise = noise();
        (1..MAX_BANNER).for_each(|_| noise.junk());
        assert!(noise.fault().is_none());
        noise.junk();
        assert_eq!(
            noise.fault().map(|fault| fault.code),
            Some(ErrorCode::ProtocolError)
        );
        noise.faulted().await;
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_first_message_junk_is_only_counted() {
        let noise = noise();
        noise.greeted();
        (0..10_000).for_each(|_| noise.junk());
        assert!(noise.fault().is_none());
        assert_eq!(noise.total(), 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_asked_for_are_too_many_at_more_than_a_hundred_a_minute() {
        let noise = noise();
        assert!(!strays(&noise, MAX_STRAYS));
        advance(STRAYS_WITHIN).await;
        assert!(!strays(&noise, MAX_STRAYS));
        assert!(strays(&noise, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_late_answer_of_a_call_given_up_is_no_fault_and_the_second_is() {
        let noise = noise();
        (0..500).for_each(|id| noise.give_up(id));
        (0..500).for_each(|id| noise.stray(Some(id)));
        assert!(noise.fault().is_none());
        assert!(strays(&noise, MAX_STRAYS + 1));
    }
}
