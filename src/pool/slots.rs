//! All slots, by key: what concerns more than one of them. Decides only, as `slot.rs` does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Usage;
use super::room::Bound;
use super::slot::{Live, Slot, Step};
use crate::model::error::{ErrorCode, Failure};
use crate::model::resolve::{PoolKey, Target};

/// After a key was superseded, commands that read an older snapshot may still ask for it: for this
/// long they are served without taking the place of the newer one.
const LATE: Duration = Duration::from_secs(10);
/// Slots kept, most of them without a connection: the memory of failures is bounded too.
const MAX_SLOTS: usize = 16_384;

pub(super) struct Slots<S> {
    by_key: HashMap<PoolKey, Slot<S>>,
    last_id: u64,
    closed: bool,
}

impl<S> Default for Slots<S> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            last_id: 0,
            closed: false,
        }
    }
}

impl<S> Slots<S> {
    /// What to do, and the connections that this target takes the place of.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        target: &Arc<Target>,
        limit: usize,
    ) -> (Step<S>, Vec<Live<S>>) {
        if self.closed {
            return (Step::Refuse(shutting_down()), Vec::new());
        }
        if let Some(slot) = self.by_key.get_mut(&target.key)
            && !slot.was_superseded_before(now, LATE)
        {
            return (slot.ask(now, target, &mut self.last_id, limit), Vec::new());
        }
        if self.is_full(now) {
            return (Step::Refuse(too_many()), Vec::new());
        }
        let superseded = self.supersede(now, &target.key);
        let slot = self.by_key.entry(target.key.clone()).or_default();
        slot.superseded = None;
        (slot.ask(now, target, &mut self.last_id, limit), superseded)
    }

    /// The ready session of this key, unless another fingerprint has taken its place.
    pub(super) fn ready(&self, key: &PoolKey) -> Option<(Arc<S>, Arc<Usage>)> {
        let slot = self.by_key.get(key)?;
        (!self.closed && slot.superseded.is_none()).then(|| slot.ready())?
    }

    pub(super) fn get(&self, key: &PoolKey) -> Option<&Slot<S>> {
        self.by_key.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &PoolKey) -> Option<&mut Slot<S>> {
        self.by_key.get_mut(key)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Slot<S>> {
        self.by_key.values()
    }

    /// Connects begun, ever.
    pub(super) fn begun(&self) -> u64 {
        self.last_id
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &Live<S>> {
        self.by_key.values().filter_map(Slot::live)
    }

    /// Takes out the slots whose key `unwanted` accepts, with all they hold and remember.
    pub(super) fn take(&mut self, unwanted: impl Fn(&PoolKey) -> bool) -> Vec<Slot<S>> {
        let taken = self.by_key.extract_if(|key, _| unwanted(key));
        taken.map(|(_, slot)| slot).collect()
    }

    /// From now on, every `ask` is refused.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes out the connection within `bound` that has been unused for longest, if any is unused.
    pub(super) fn evict(&mut self, now: Instant, bound: &Bound) -> Option<Live<S>> {
        let within = self.by_key.iter_mut().filter(|(key, _)| bound.holds(key));
        let unused = within.filter_map(|(_, slot)| Some((slot.live()?.unused_since()?, slot)));
        let (_, slot) = unused.min_by_key(|(since, _)| *since)?;
        slot.take_live(now, |_| true)
    }

    /// Takes out what has been unused for `idle_timeout`, or was superseded and is unused; forgets
    /// failures of long ago.
    pub(super) fn reap(&mut self, now: Instant, idle_timeout: Duration) -> Vec<Live<S>> {
        let reaped = self.by_key.values_mut().filter_map(|slot| {
            let timeout = match slot.superseded {
                Some(_) => Duration::ZERO,
                None => idle_timeout,
            };
            slot.take_live(now, |live| {
                live.unused_since()
                    .is_some_and(|since| since + timeout <= now)
            })
        });
        let reaped = reaped.collect();
        self.by_key
            .retain(|_, slot| !slot.is_forgettable(now, LATE));
        reaped
    }

    /// Marks the other fingerprints of the key's server and scope; takes out those that are ready.
    /// Those that are starting go on for the commands that wait for them, and are reaped.
    fn supersede(&mut self, now: Instant, key: &PoolKey) -> Vec<Live<S>> {
        let others = self.by_key.iter_mut().filter(|(other, _)| {
            other.server == key.server
                && other.scope == key.scope
                && other.fingerprint != key.fingerprint
        });
        others
            .filter_map(|(_, slot)| {
                slot.superseded.get_or_insert(now);
                slot.take_live(now, |_| true)
            })
            .collect()
    }

    /// Whether no slot can be added, not even at the price of forgetting failures.
    fn is_full(&mut self, now: Instant) -> bool {
        if self.by_key.len() < MAX_SLOTS {
            return false;
        }
        self.by_key
            .retain(|_, slot| !slot.is_idle() || slot.health.is_cooling(now));
        self.by_key.len() >= MAX_SLOTS
    }
}

fn shutting_down() -> Failure {
    Failure::new(
        ErrorCode::ShuttingDown,
        "the daemon is ending and starts no more servers",
    )
}

fn too_many() -> Failure {
    let message = "too many servers are being started or have failed of late: try again later";
    Failure::new(ErrorCode::Overloaded, message).retry_after(Duration::from_secs(10))
}
