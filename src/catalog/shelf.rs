//! All catalogs held, and what is known of their age. Decides only; `mod.rs` acts.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Catalog, Figures, Tool};
use crate::mcp::Connected;
use crate::model::error::Failure;
use crate::model::resolve::PoolKey;

const MAX_CATALOGS: usize = 4096;
const MAX_BYTES: usize = 128 * 1024 * 1024;
/// Between two lists of one connection that the server's notifications cause.
const MIN_GAP: Duration = Duration::from_secs(5);
/// Lists within `MIN_GAP` that callers may cause, however often the server says that it changed.
const BURST: usize = 3;

/// Which list a server would give: another connection or another change, another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) session: u64,
    changes: u64,
}

impl Generation {
    /// Of a list that no connection of this process gave.
    pub(super) fn of_no_session() -> Self {
        Self {
            session: u64::MAX,
            changes: 0,
        }
    }

    pub(super) fn of<S: Connected>(session: &S) -> Self {
        Self {
            session: session.id(),
            changes: *session.tools_changed().borrow(),
        }
    }
}

/// The end of a fetch, once it has come.
pub(super) type Outcome = Option<Result<Arc<Catalog>, Failure>>;

#[derive(Default)]
pub(super) struct Shelf {
    entries: HashMap<PoolKey, Entry>,
    bytes: usize,
    /// Counts uses, to find the catalog used least recently.
    clock: u64,
}

#[derive(Default)]
struct Entry {
    held: Option<Held>,
    fetch: Option<Fetch>,
    /// The connection whose notifications are watched: the newest one.
    watched: Option<u64>,
    /// When the last lists began, at most `BURST`.
    listed: VecDeque<Instant>,
    used: u64,
}

struct Held {
    catalog: Arc<Catalog>,
    bytes: usize,
    made: Generation,
    /// When the server last gave this list.
    listed: Instant,
}

struct Fetch {
    session: u64,
    outcome: watch::Receiver<Outcome>,
}

/// How the catalog at hand stands to the generation in force.
pub(super) enum Look {
    Good(Arc<Catalog>),
    /// Made on an earlier connection: served, and to be listed again in the background.
    Reconnected(Arc<Catalog>),
    /// Served: it is being listed again, or has been too often of late.
    Old(Arc<Catalog>),
    /// The server has said that it changed.
    Changed(Arc<Catalog>),
    Missing,
}

/// When a change is to be listed in the background.
pub(super) enum Due {
    Now,
    At(Instant),
    Nothing,
    /// Another connection has taken over, or the catalog is no longer wanted.
    Never,
}

/// A fetch, joined or to be carried out.
pub(super) struct Joined {
    pub(super) outcome: watch::Receiver<Outcome>,
    /// Where this caller is to carry it out.
    pub(super) begin: Option<watch::Sender<Outcome>>,
    /// Whether nobody watches the connection's notifications yet.
    pub(super) unwatched: bool,
}

impl Shelf {
    pub(super) fn get(&mut self, key: &PoolKey) -> Option<Arc<Catalog>> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        entry.used = self.clock;
        entry.held.as_ref().map(|held| Arc::clone(&held.catalog))
    }

    pub(super) fn look(&mut self, key: &PoolKey, now: Instant, generation: Generation) -> Look {
        let Some(catalog) = self.get(key) else {
            return Look::Missing;
        };
        let Some(entry) = self.entries.get(key) else {
            return Look::Missing;
        };
        match entry.held.as_ref().map(|held| held.made) {
            Some(made) if made == generation => Look::Good(catalog),
            Some(made) if made.session != generation.session => {
                if entry.watched != Some(generation.session) || entry.is_quiet(now) {
                    Look::Reconnected(catalog)
                } else {
                    Look::Old(catalog)
                }
            }
            _ if entry.is_busy(now) => Look::Old(catalog),
            _ => Look::Changed(catalog),
        }
    }

    /// The fetch on this connection that has not ended yet.
    pub(super) fn in_flight(
        &self,
        key: &PoolKey,
        session: u64,
    ) -> Option<watch::Receiver<Outcome>> {
        let fetch = self.entries.get(key)?.fetch.as_ref()?;
        let runs = fetch.outcome.has_changed().is_ok() && fetch.outcome.borrow().is_none();
        (fetch.session == session && runs).then(|| fetch.outcome.clone())
    }

    pub(super) fn join(&mut self, key: &PoolKey, now: Instant, session: u64) -> Joined {
        let running = self.in_flight(key, session);
        let entry = self.entries.entry(key.clone()).or_default();
        let unwatched = entry.watched.replace(session) != Some(session);
        if let Some(outcome) = running {
            return Joined {
                outcome,
                begin: None,
                unwatched,
            };
        }
        let (sender, outcome) = watch::channel(None);
        entry.fetch = Some(Fetch {
            session,
            outcome: outcome.clone(),
        });
        if entry.listed.len() == BURST {
            entry.listed.pop_front();
        }
        entry.listed.push_back(now);
        self.clock += 1;
        entry.used = self.clock;
        self.shrink(key);
        Joined {
            outcome,
            begin: Some(sender),
            unwatched,
        }
    }

    pub(super) fn due(&self, key: &PoolKey, now: Instant, generation: Generation) -> Due {
        let entry = match self.entries.get(key) {
            Some(entry) if entry.watched == Some(generation.session) => entry,
            _ => return Due::Never,
        };
        let made = entry.held.as_ref().map(|held| held.made);
        match entry.listed.back() {
            _ if made == Some(generation) => Due::Nothing,
            Some(&last) if last + MIN_GAP > now => Due::At(last + MIN_GAP),
            _ => Due::Now,
        }
    }

    /// Keeps what was listed in generation `made`, and gives the catalog to use. A list that may be
    /// out of date already (`moved`, or another connection has taken over) replaces nothing.
    pub(super) fn store(
        &mut self,
        key: &PoolKey,
        now: Instant,
        made: Generation,
        moved: bool,
        (tools, warnings): (Vec<Tool>, Vec<String>),
    ) -> Arc<Catalog> {
        self.clock += 1;
        let entry = self.entries.entry(key.clone()).or_default();
        entry.used = self.clock;
        let overtaken = entry.watched.is_some_and(|session| session != made.session);
        let revision = match &mut entry.held {
            Some(held) if moved || overtaken => return Arc::clone(&held.catalog),
            Some(held) if held.catalog.is_same(&tools, &warnings) => {
                held.made = made;
                held.listed = now;
                return Arc::clone(&held.catalog);
            }
            Some(held) => held.catalog.revision + 1,
            None => 1,
        };
        let catalog = Arc::new(Catalog {
            tools,
            warnings,
            revision,
        });
        let bytes = catalog.size();
        let held = Held {
            catalog: Arc::clone(&catalog),
            bytes,
            made,
            listed: now,
        };
        let replaced = entry.held.replace(held);
        self.bytes += bytes;
        self.bytes -= replaced.map_or(0, |held| held.bytes);
        self.shrink(key);
        catalog
    }

    pub(super) fn figures(&self, now: Instant) -> Figures {
        let held = self
            .entries
            .values()
            .filter_map(|entry| entry.held.as_ref());
        let ages = held.map(|held| now.saturating_duration_since(held.listed));
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Figures {
            count: self.count(),
            bytes: self.bytes,
            newest_age_ms: ages.clone().min().map(millis),
            oldest_age_ms: ages.max().map(millis),
        }
    }

    pub(super) fn count(&self) -> usize {
        let held = self.entries.values().filter(|entry| entry.held.is_some());
        held.count()
    }

    /// Lets go of what was used least recently until the rest is within bounds; never of `keep`.
    fn shrink(&mut self, keep: &PoolKey) {
        while self.entries.len() > MAX_CATALOGS || self.bytes > MAX_BYTES {
            let others = self.entries.iter().filter(|(key, _)| *key != keep);
            let Some((oldest, _)) = others.min_by_key(|(_, entry)| entry.used) else {
                return;
            };
            let gone = self.entries.remove(&oldest.clone());
            self.bytes -= gone
                .and_then(|entry| entry.held)
                .map_or(0, |held| held.bytes);
        }
    }
}

impl Entry {
    fn is_quiet(&self, now: Instant) -> bool {
        self.listed.back().is_none_or(|&last| last + MIN_GAP <= now)
    }

    fn is_busy(&self, now: Instant) -> bool {
        let first = self.listed.front();
        self.listed.len() == BURST && first.is_some_and(|&first| first + MIN_GAP > now)
    }
}
