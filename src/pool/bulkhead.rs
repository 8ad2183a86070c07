//! Bulkheads: so many at once for each key and many more that wait, so that one flood sinks nothing
//! but itself, and a mere burst is refused nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One bulkhead a key, for as long as somebody is behind it.
pub struct Bulkheads<K> {
    at_once: usize,
    waiting: usize,
    /// Kept while nobody uses them, until there are too many: a user comes again.
    held: Mutex<HashMap<K, Arc<Bulkhead>>>,
}

struct Bulkhead {
    /// Inside and waiting.
    entries: Arc<Semaphore>,
    /// Inside.
    places: Arc<Semaphore>,
}

/// The right to wait for a place.
pub struct Entry {
    bulkhead: Arc<Bulkhead>,
    _entry: OwnedSemaphorePermit,
}

/// A place inside; given back when dropped.
pub struct Place {
    _entry: Entry,
    _place: OwnedSemaphorePermit,
}

impl<K: Clone + Eq + Hash> Bulkheads<K> {
    /// `at_once`: those inside, at least one; `waiting`: those that may wait for each of these.
    pub fn new(at_once: usize, waiting: usize) -> Self {
        Self {
            at_once: at_once.clamp(1, Semaphore::MAX_PERMITS / (1 + waiting)),
            waiting,
            held: Mutex::default(),
        }
    }

    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// `None`: as many wait as may.
    pub fn enter(&self, key: &K) -> Option<Entry> {
        let bulkhead = self.get(key);
        let entry = Arc::clone(&bulkhead.entries).try_acquire_owned().ok()?;
        Some(Entry {
            bulkhead,
            _entry: entry,
        })
    }

    fn get(&self, key: &K) -> Arc<Bulkhead> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = held.get(key) {
            return found.clone();
        }
        if held.len() == held.capacity() {
            held.retain(|_, bulkhead| Arc::strong_count(bulkhead) > 1);
        }
        let made = Arc::new(Bulkhead {
            entries: Arc::new(Semaphore::new(self.at_once * (1 + self.waiting))),
            places: Arc::new(Semaphore::new(self.at_once)),
        });
        held.insert(key.clone(), made.clone());
        made
    }
}

impl Entry {
    /// A place, if one is free.
    pub fn place_at_hand(self) -> Option<Place> {
        let place = Arc::clone(&self.bulkhead.places).try_acquire_owned().ok()?;
        Some(Place {
            _entry: self,
            _place: place,
        })
    }

    /// Waits for a place, first come first served, for as long as it takes.
    pub async fn place(self) -> Place {
        let places = Arc::clone(&self.bulkhead.places);
        let place = places.acquire_owned().await;
        Place {
            _entry: self,
            _place: place.unwrap_or_else(|_| unreachable!("nobody closes a bulkhead")),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn so_many_are_inside_more_wait_and_others_are_untouched() {
        let bulkheads = Bulkheads::new(2, 2);
        let entries: Vec<_> = (0..6).map_while(|_| bulkheads.enter(&"full")).collect();
        assert_eq!(entries.len(), 6);
        assert!(bulkheads.enter(&"full").is_none());
        assert!(bulkheads.enter(&"other").is_some());

        let mut places = Vec::from_iter(entries.into_iter().map(|entry| Box::pin(entry.place())));
        let mut inside: Vec<_> = places
            .iter_mut()
            .map(|place| place.now_or_never())
            .collect();
        assert_eq!(inside.iter().flatten().count(), 2);
        inside[0] = None;
        assert!(
            places[2].as_mut().now_or_never().is_some(),
            "the next in line"
        );
        assert!(bulkheads.enter(&"full").is_some());
    }

    #[test]
    fn a_key_that_nobody_uses_is_forgotten() {
        let bulkheads = Bulkheads::new(1, 2);
        for user in 0..10_000 {
            drop(bulkheads.enter(&user));
        }
        let kept = bulkheads.held.lock().map(|held| held.capacity());
        assert!(kept.is_ok_and(|kept| kept < 100));
    }
}
