//! Floor 2: tool lists by connection key.
//!
//! A list is fetched once for all who ask, by a task that no caller's deadline can end. A catalog is
//! replaced only by a list of the generation still in force, and stays when a fetch fails.

mod read;
mod shelf;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::mcp::{Connected, ListedTools};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::json::RawJson;
use crate::model::resolve::PoolKey;

use shelf::{Due, Generation, Joined, Look, Outcome, Shelf};

/// The time a fetch has whatever its callers' deadlines are.
const FETCH_TIME: Duration = Duration::from_secs(20);
/// A list that is out of date when it arrives is fetched again, so often in all.
const TRIES: usize = 2;
/// Servers announce changes in bursts: a list is fetched once they have been quiet for this long,
const QUIET: Duration = Duration::from_millis(500);
/// or, if they are never quiet, after this long.
const MAX_UNREST: Duration = Duration::from_secs(5);

/// The tools of one key, as last listed in full.
pub struct Catalog {
    pub tools: Vec<Tool>,
    /// Tools left out, and pages not read: named, with the reason.
    pub warnings: Vec<String>,
    /// Raised by every list that differs from the one before.
    pub revision: u64,
}

/// One tool that passed the checks.
pub struct Tool {
    pub name: Arc<str>,
    /// The `Tool` object exactly as the server sent it.
    pub raw: RawJson,
    /// `annotations.readOnlyHint` or `idempotentHint` is true, and nothing contradicts it.
    pub may_repeat: bool,
}

impl Catalog {
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| &*tool.name == name)
    }

    /// The tools exactly as the server sent them.
    pub fn raws(&self) -> Vec<RawJson> {
        self.tools.iter().map(|tool| tool.raw.clone()).collect()
    }

    fn is_same(&self, tools: &[Tool], warnings: &[String]) -> bool {
        let held = self.tools.iter().map(|tool| &tool.raw);
        self.warnings == warnings && held.eq(tools.iter().map(|tool| &tool.raw))
    }

    fn size(&self) -> usize {
        let tools = self
            .tools
            .iter()
            .map(|tool| tool.raw.bytes().len() + size_of::<Tool>());
        let warnings = self.warnings.iter().map(String::len);
        tools.chain(warnings).sum()
    }
}

/// The catalogs held, as numbers for the operator.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    pub count: usize,
    pub bytes: usize,
    /// Since a server last gave the list that was given last; none where no catalog is held.
    pub newest_age_ms: Option<u64>,
    /// The same of the one that was given first.
    pub oldest_age_ms: Option<u64>,
}

#[derive(Default)]
pub struct Catalogs {
    shelf: Arc<Mutex<Shelf>>,
}

impl Catalogs {
    pub fn new() -> Self {
        Self::default()
    }

    /// The last good catalog of the key, connected or not.
    pub fn get(&self, key: &PoolKey) -> Option<Arc<Catalog>> {
        lock(&self.shelf).get(key)
    }

    /// The catalog of the key, listed on `session` where there is none yet or the one at hand was
    /// made before the server said that it changed. One made on an earlier connection is served, and
    /// listed again in the background; so is one whose server announces changes all the time.
    ///
    /// # Errors
    /// What the list failed with, where no catalog is at hand; `call_timeout` (phase `list`) when the
    /// deadline ends first: the fetch goes on.
    pub async fn current<S: Connected>(
        &self,
        key: &PoolKey,
        session: &Arc<S>,
        deadline: Instant,
    ) -> Result<Arc<Catalog>, Failure> {
        let generation = Generation::of(&**session);
        let look = lock(&self.shelf).look(key, Instant::now(), generation);
        match look {
            Look::Good(catalog) | Look::Old(catalog) => Ok(catalog),
            Look::Reconnected(catalog) => {
                fetch(&self.shelf, key, session, deadline);
                Ok(catalog)
            }
            Look::Changed(last_good) => {
                let outcome = fetch(&self.shelf, key, session, deadline);
                let listed = ended(outcome, deadline).await;
                Ok(listed.unwrap_or_else(|failure| {
                    tracing::warn!(%failure, "tools changed but could not be listed again");
                    last_good
                }))
            }
            Look::Missing => ended(fetch(&self.shelf, key, session, deadline), deadline).await,
        }
    }

    /// Lists now, whatever is at hand: the list begins after this call did. One fetch in flight a key.
    ///
    /// # Errors
    /// What the list failed with, or `call_timeout` (phase `list`); the catalog at hand stays.
    pub async fn refresh<S: Connected>(
        &self,
        key: &PoolKey,
        session: &Arc<S>,
        deadline: Instant,
    ) -> Result<Arc<Catalog>, Failure> {
        let earlier = lock(&self.shelf).in_flight(key, session.id());
        if let Some(earlier) = earlier
            && let Err(failure) = ended(earlier, deadline).await
            && failure.code == ErrorCode::CallTimeout
        {
            return Err(failure);
        }
        ended(fetch(&self.shelf, key, session, deadline), deadline).await
    }

    /// Puts a list from elsewhere at hand, until the server itself is listed.
    pub fn seed(&self, key: &PoolKey, tools: Vec<RawJson>) {
        let listed = ListedTools {
            tools,
            warnings: Vec::new(),
        };
        let read = read::read(listed);
        let mut shelf = lock(&self.shelf);
        if shelf.get(key).is_none() {
            shelf.store(
                key,
                Instant::now(),
                Generation::of_no_session(),
                false,
                read,
            );
        }
    }

    pub fn figures(&self) -> Figures {
        lock(&self.shelf).figures(Instant::now())
    }

    /// Catalogs held.
    pub fn count(&self) -> usize {
        lock(&self.shelf).count()
    }
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the fetch under way on this session, or begins one.
fn fetch<S: Connected>(
    shelf: &Arc<Mutex<Shelf>>,
    key: &PoolKey,
    session: &Arc<S>,
    deadline: Instant,
) -> watch::Receiver<Outcome> {
    let now = Instant::now();
    // Before the list begins, so that no change is missed.
    let changes = session.tools_changed();
    let Joined {
        outcome,
        begin,
        unwatched,
    } = lock(shelf).join(key, now, session.id());
    if unwatched {
        let (shelf, session) = (Arc::downgrade(shelf), Arc::downgrade(session));
        tokio::spawn(watch_changes(shelf, key.clone(), session, changes));
    }
    if let Some(begin) = begin {
        let shelf = Arc::downgrade(shelf);
        let deadline = deadline.max(now + FETCH_TIME);
        tokio::spawn(list(
            shelf,
            key.clone(),
            Arc::clone(session),
            deadline,
            begin,
        ));
    }
    outcome
}

async fn list<S: Connected>(
    shelf: Weak<Mutex<Shelf>>,
    key: PoolKey,
    session: Arc<S>,
    deadline: Instant,
    outcome: watch::Sender<Outcome>,
) {
    for number in 1..=TRIES {
        let made = Generation::of(&*session);
        let listed = match session.list_tools(deadline).await {
            Ok(listed) => listed,
            Err(failure) => {
                outcome.send_replace(Some(Err(failure.phase(Phase::List))));
                return;
            }
        };
        let moved = Generation::of(&*session) != made;
        if moved && number < TRIES {
            continue;
        }
        let Some(shelf) = shelf.upgrade() else { return };
        let catalog = lock(&shelf).store(&key, Instant::now(), made, moved, read::read(listed));
        outcome.send_replace(Some(Ok(catalog)));
        return;
    }
}

async fn ended(
    mut outcome: watch::Receiver<Outcome>,
    deadline: Instant,
) -> Result<Arc<Catalog>, Failure> {
    let failure = |code, message: &str| Err(Failure::new(code, message).phase(Phase::List));
    let end = match timeout_at(deadline, outcome.wait_for(Option::is_some)).await {
        Ok(Ok(end)) => end.clone(),
        Ok(Err(_)) => None,
        Err(_) => {
            let message = "the server did not list its tools in time; the list goes on: try again";
            return failure(ErrorCode::CallTimeout, message);
        }
    };
    end.unwrap_or_else(|| failure(ErrorCode::Internal, "the listing of tools broke off"))
}

/// Lists again, after a short quiet time, what the server says has changed. Keeps neither the
/// session nor the catalogs alive, and ends with the first of them that goes.
async fn watch_changes<S: Connected>(
    shelf: Weak<Mutex<Shelf>>,
    key: PoolKey,
    session: Weak<S>,
    mut changes: watch::Receiver<u64>,
) {
    while changes.changed().await.is_ok() {
        let until = Instant::now() + MAX_UNREST;
        while Instant::now() < until
            && matches!(timeout(QUIET, changes.changed()).await, Ok(Ok(())))
        {}
        loop {
            let (Some(shelf), Some(session)) = (shelf.upgrade(), session.upgrade()) else {
                return;
            };
            let now = Instant::now();
            let due = lock(&shelf).due(&key, now, Generation::of(&*session));
            match due {
                Due::Never => return,
                Due::Nothing => break,
                Due::Now => {
                    fetch(&shelf, &key, &session, now);
                    break;
                }
                Due::At(at) => {
                    drop((shelf, session));
                    sleep_until(at).await;
                }
            }
        }
    }
}
