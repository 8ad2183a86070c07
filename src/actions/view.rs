//! A snapshot as its user sees it, with what is derived from it once and used by many commands.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::directory::Snapshot;
use crate::model::caller::{Caller, ServerId, SessionId, UserId};
use crate::model::definition::Isolation;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::resolve::{PoolKey, Scope, ServerEntry, Target, resolve};

/// Users whose latest snapshot is kept; beyond, all are forgotten and read again.
const MAX_VIEWS: usize = 4096;
/// Resolved targets kept of one snapshot (session-isolated servers have one a conversation).
const MAX_TARGETS: usize = 4096;

/// By server, and by conversation where the server is isolated by it.
type Targets = HashMap<(ServerId, Option<SessionId>), Arc<Target>>;

pub(super) struct View {
    pub snapshot: Arc<Snapshot>,
    /// Changes when the set of definitions' names does, and with it injected names.
    pub names: u64,
    by_id: HashMap<ServerId, usize>,
    targets: Mutex<Targets>,
}

impl View {
    fn new(snapshot: Arc<Snapshot>) -> Self {
        let mut names = DefaultHasher::new();
        let mut by_id = HashMap::with_capacity(snapshot.servers.len());
        for (position, entry) in snapshot.servers.iter().enumerate() {
            entry.definition.name.hash(&mut names);
            by_id.insert(entry.definition.id.clone(), position);
        }
        Self {
            snapshot,
            names: names.finish(),
            by_id,
            targets: Mutex::default(),
        }
    }

    pub fn entry(&self, id: &ServerId) -> Option<&Arc<ServerEntry>> {
        self.snapshot.servers.get(*self.by_id.get(id)?)
    }

    /// The server of this name, enabled or not.
    pub fn find(&self, name: &str) -> Result<&Arc<ServerEntry>, Failure> {
        self.snapshot
            .find(name)
            .map_err(|failure| failure.server(name).phase(Phase::Resolve))
    }

    /// The server of this name, if it is enabled.
    pub fn enabled(&self, name: &str) -> Result<&Arc<ServerEntry>, Failure> {
        let entry = self.find(name)?;
        if entry.definition.is_enabled {
            Ok(entry)
        } else {
            Err(disabled_server(&entry.definition.name))
        }
    }

    /// Resolves the server for `caller`, whose user is the snapshot's.
    pub fn target(&self, entry: &ServerEntry, caller: &Caller) -> Result<Arc<Target>, Failure> {
        let by_session = entry.definition.isolation == Some(Isolation::Session);
        let session = caller.session.clone().filter(|_| by_session);
        let slot = (entry.definition.id.clone(), session);
        if let Some(target) = lock(&self.targets).get(&slot) {
            return Ok(target.clone());
        }
        let target = Arc::new(resolve(entry, caller)?);
        let mut targets = lock(&self.targets);
        if targets.len() >= MAX_TARGETS {
            targets.clear();
        }
        targets.insert(slot, target.clone());
        Ok(target)
    }

    /// Whether a connection of this key may still serve, as far as this snapshot can tell:
    /// it speaks for its own user's connections and for shared ones.
    pub fn holds(&self, key: &PoolKey, previous: Option<&View>) -> bool {
        let user = key.scope.user();
        if user.is_some() && user != self.snapshot.user.as_ref() {
            return true;
        }
        match self.entry(&key.server) {
            Some(entry) => entry.definition.is_enabled && self.resolves_to(entry, key),
            // A shared server that this user never saw may well be another user's.
            None if user.is_none() => previous.is_none_or(|view| view.entry(&key.server).is_none()),
            None => false,
        }
    }

    fn resolves_to(&self, entry: &ServerEntry, key: &PoolKey) -> bool {
        let caller = Caller {
            user: key.scope.user().cloned(),
            access_token: None,
            session: match &key.scope {
                Scope::Session(_, session) => Some(session.clone()),
                Scope::Shared | Scope::User(_) => None,
            },
        };
        let target = if key.scope == Scope::Shared {
            resolve(&without_user(entry), &caller).map(Arc::new)
        } else {
            self.target(entry, &caller)
        };
        target.is_ok_and(|target| target.key == *key)
    }
}

/// The server as somebody without credentials of their own meets it.
fn without_user(entry: &ServerEntry) -> ServerEntry {
    ServerEntry {
        definition: entry.definition.clone(),
        user_credentials: None,
        default_credentials: entry.default_credentials.clone(),
    }
}

pub(super) fn disabled_server(name: &str) -> Failure {
    let message = format!("server `{name}` is disabled");
    Failure::new(ErrorCode::ServerDisabled, message)
        .server(name)
        .phase(Phase::Resolve)
}

/// The latest view of each user.
#[derive(Default)]
pub(super) struct Views(Mutex<HashMap<Option<UserId>, Arc<View>>>);

/// A view, and whether its snapshot was new.
pub(super) struct Opened {
    pub view: Arc<View>,
    /// Set when the snapshot is newer than every one seen of this user.
    pub news: Option<News>,
}

pub(super) struct News {
    pub previous: Option<Arc<View>>,
}

impl Views {
    pub fn open(&self, snapshot: Arc<Snapshot>) -> Opened {
        let known = lock(&self.0).get(&snapshot.user).cloned();
        if let Some(view) = &known {
            if view.snapshot.sequence == snapshot.sequence {
                let view = view.clone();
                return Opened { view, news: None };
            }
            if view.snapshot.sequence > snapshot.sequence {
                let view = Arc::new(View::new(snapshot));
                return Opened { view, news: None };
            }
        }
        let view = Arc::new(View::new(snapshot));
        self.keep(&view);
        Opened {
            view,
            news: Some(News { previous: known }),
        }
    }

    /// Keeps the view unless a newer one was kept meanwhile.
    fn keep(&self, view: &Arc<View>) {
        let mut views = lock(&self.0);
        if views.len() >= MAX_VIEWS && !views.contains_key(&view.snapshot.user) {
            views.clear();
        }
        let kept = views
            .entry(view.snapshot.user.clone())
            .or_insert_with(|| view.clone());
        if kept.snapshot.sequence < view.snapshot.sequence {
            *kept = view.clone();
        }
    }
}

/// A poisoned lock only means that another command died while it held plain maps.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
