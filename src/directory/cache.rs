//! The snapshots at hand, by user and token: bounded, one question in flight for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::Snapshot;
use super::source::Freshness;
use crate::model::caller::{Caller, UserId};
use crate::model::error::Failure;
use crate::model::secret::Secret;

/// The most snapshots that are kept.
const MOST: usize = 10_000;
/// How often slots that nobody asks for any more are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// Whose snapshot: another token is another snapshot, even of the same user.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    user: Option<UserId>,
    token: Option<[u8; 32]>,
}

impl Key {
    pub fn of(caller: &Caller) -> Self {
        let token = caller.access_token.as_ref();
        Self {
            user: caller.user.clone(),
            token: token.map(|token| Sha256::digest(token.expose()).into()),
        }
    }
}

pub type Answer = Result<Arc<Snapshot>, Failure>;

/// The answer to a question on its way.
pub type Coming = Shared<BoxFuture<'static, Answer>>;

/// A question on its way to the config API; whoever asks meanwhile waits for the same answer.
pub struct Flight {
    pub sequence: u64,
    pub freshness: Freshness,
    pub answer: Coming,
}

/// The last good answer.
#[derive(Clone)]
pub struct Kept {
    pub snapshot: Arc<Snapshot>,
    /// Of the flight that brought it.
    pub sequence: u64,
    pub freshness: Freshness,
    pub version: Option<String>,
    /// When the config API last stood by it.
    pub confirmed: Instant,
    /// When it last could not be asked, if that was after `confirmed`.
    pub failed: Option<Instant>,
}

impl Kept {
    /// Whether it may be used without asking, if `now` is how fresh an answer would be.
    fn holds(&self, now: Freshness) -> bool {
        match now {
            Freshness::Marked(_) => self.freshness == now,
            Freshness::For(ttl) => self.failed.unwrap_or(self.confirmed).elapsed() < ttl,
            Freshness::Asked => false,
        }
    }
}

#[derive(Default)]
pub struct Slot {
    /// What was asked for before this is not kept any more.
    floor: u64,
    pub kept: Option<Kept>,
    pub flight: Option<Flight>,
    used: Option<Instant>,
    /// Held so that it stays known to the redactor.
    pub token: Option<Secret>,
}

impl Slot {
    /// The answer at hand, or the one that is on its way and will be as fresh as `now`.
    pub fn current(&self, now: Freshness) -> Option<Result<Arc<Snapshot>, Coming>> {
        if let Some(kept) = self.kept.as_ref().filter(|kept| kept.holds(now)) {
            return Some(Ok(kept.snapshot.clone()));
        }
        let fits = |flight: &&Flight| now != Freshness::Asked && flight.freshness == now;
        let flight = self.flight.as_ref().filter(fits)?;
        Some(Err(flight.answer.clone()))
    }

    /// Lets go of what is at hand and of what is on its way.
    fn forget(&mut self, floor: u64) {
        self.floor = floor;
        self.kept = None;
        self.flight = None;
    }

    /// Ends the flight and keeps what it brought, unless a later one was faster.
    pub fn land(&mut self, sequence: u64, kept: Option<Kept>) {
        if self
            .flight
            .as_ref()
            .is_some_and(|flight| flight.sequence == sequence)
        {
            self.flight = None;
        }
        let newest = self.kept.as_ref().map_or(0, |there| there.sequence);
        if sequence >= newest.max(self.floor) {
            self.kept = kept;
        }
    }
}

pub struct Slots {
    by_key: HashMap<Key, Slot>,
    swept: Instant,
}

/// A slot that nobody used for that long is let go.
pub struct Cache {
    slots: Mutex<Slots>,
    idle: Duration,
}

impl Cache {
    pub fn new(idle: Duration) -> Self {
        Self {
            slots: Mutex::new(Slots {
                by_key: HashMap::new(),
                swept: Instant::now(),
            }),
            idle,
        }
    }

    /// Works on the slot of `key`; makes it where there is none.
    pub fn with<T>(&self, key: &Key, work: impl FnOnce(&mut Slot) -> T) -> T {
        let mut slots = self.lock();
        if let Some(slot) = slots.by_key.get_mut(key) {
            slot.used = Some(Instant::now());
            return work(slot);
        }
        slots.make_room(self.idle);
        let slot = slots.by_key.entry(key.clone()).or_default();
        slot.used = Some(Instant::now());
        work(slot)
    }

    /// Lets go of everything that was asked for `user` before the flight `floor`.
    pub fn forget(&self, user: Option<&UserId>, floor: u64) {
        let mut slots = self.lock();
        let of_user = slots.by_key.iter_mut();
        of_user
            .filter(|(key, _)| key.user.as_ref() == user)
            .for_each(|(_, slot)| slot.forget(floor));
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }
}

impl Slots {
    fn make_room(&mut self, idle: Duration) {
        if self.swept.elapsed() >= SWEEP {
            self.swept = Instant::now();
            self.keep(|used| used.elapsed() < idle);
        }
        if self.by_key.len() >= MOST {
            let mut times: Vec<_> = self.by_key.values().filter_map(|slot| slot.used).collect();
            let (_, oldest_tenth, _) = times.select_nth_unstable(MOST / 10);
            let limit = *oldest_tenth;
            self.keep(|used| used > limit);
        }
    }

    fn keep(&mut self, wanted: impl Fn(Instant) -> bool) {
        self.by_key
            .retain(|_, slot| slot.flight.is_some() || slot.used.is_some_and(&wanted));
    }
}
