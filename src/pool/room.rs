//! How many connections there may be: in all, of one user, to one server.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::caller::{ServerId, UserId};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::resolve::PoolKey;
use crate::model::settings::PoolSettings;

/// What a caller that finds no room is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(2);

pub(super) struct Room {
    all: Arc<Semaphore>,
    max: usize,
    users: Keyed<UserId>,
    servers: Keyed<ServerId>,
}

/// The room that one connection takes; given back when dropped.
pub(super) struct Berth {
    pub(super) _permits: Vec<OwnedSemaphorePermit>,
}

/// A limit that a connection counts against.
pub(super) enum Bound {
    User(UserId),
    Server(ServerId),
    All,
}

impl Room {
    pub(super) fn new(settings: &PoolSettings) -> Self {
        Self {
            all: semaphore(settings.max_connections),
            max: settings.max_connections,
            users: Keyed::new(settings.max_per_user),
            servers: Keyed::new(settings.max_per_server),
        }
    }

    /// The connections there may be in all.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// How many of them there are, starting and closing ones included.
    pub(super) fn taken(&self) -> usize {
        self.max.saturating_sub(self.all.available_permits())
    }

    /// The limits for `key`, the narrowest first: making room there makes room in the wider ones.
    pub(super) fn bounds(&self, key: &PoolKey) -> Vec<(Bound, Arc<Semaphore>)> {
        let user = key
            .scope
            .user()
            .map(|user| (Bound::User(user.clone()), self.users.get(user)));
        let server = (
            Bound::Server(key.server.clone()),
            self.servers.get(&key.server),
        );
        let all = (Bound::All, Arc::clone(&self.all));
        user.into_iter().chain([server, all]).collect()
    }
}

impl Bound {
    pub(super) fn holds(&self, key: &PoolKey) -> bool {
        match self {
            Self::User(user) => key.scope.user() == Some(user),
            Self::Server(server) => key.server == *server,
            Self::All => true,
        }
    }

    pub(super) fn overloaded(&self, server_name: &str) -> Failure {
        let (whose, setting) = match self {
            Self::User(_) => ("of this user", "pool.max_per_user"),
            Self::Server(_) => ("to this server", "pool.max_per_server"),
            Self::All => ("in all", "pool.max_connections"),
        };
        let message = format!(
            "there is no room for a connection to server `{server_name}`: all connections {whose} are in use ({setting})"
        );
        Failure::new(ErrorCode::Overloaded, message)
            .server(server_name)
            .phase(Phase::Start)
            .retry_after(RETRY_AFTER)
    }
}

/// One semaphore a key, for as long as a permit of it is out.
struct Keyed<K> {
    limit: usize,
    held: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K: Clone + Eq + Hash> Keyed<K> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Mutex::default(),
        }
    }

    fn get(&self, key: &K) -> Arc<Semaphore> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = held.get(key).and_then(Weak::upgrade) {
            return found;
        }
        if held.len() == held.capacity() {
            held.retain(|_, semaphore| semaphore.strong_count() > 0);
        }
        let made = semaphore(self.limit);
        held.insert(key.clone(), Arc::downgrade(&made));
        made
    }
}

fn semaphore(limit: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)))
}
