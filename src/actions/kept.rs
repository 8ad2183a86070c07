//! Tools that were kept from before this process, or by another: they answer a list at once while
//! the server is not connected, and are listed again behind it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use super::desk::{Actions, Party};
use super::seams::{CallTools, Snapshots};
use super::view::lock;
use crate::catalog::Catalog;
use crate::directory::ToolsOf;
use crate::mcp::Connect;
use crate::model::caller::Caller;
use crate::model::deadline::Deadline;
use crate::model::resolve::{PoolKey, Target};

/// The most keys of which something is remembered here.
const MOST: usize = 4096;

/// What this process knows of what is kept.
#[derive(Default)]
pub(super) struct Kept(Mutex<State>);

#[derive(Default)]
struct State {
    /// The key that was asked for first: under another one (other credentials, another definition)
    /// what was kept before is not in force.
    first: HashMap<ToolsOf, PoolKey>,
    /// Seen by nobody in this process yet: to be listed again.
    unseen: HashSet<PoolKey>,
    /// Being listed again.
    running: HashSet<PoolKey>,
    /// What was kept last.
    last: HashMap<PoolKey, Weak<Catalog>>,
}

impl Kept {
    fn may_serve(&self, of: &ToolsOf, key: &PoolKey) -> bool {
        let mut state = lock(&self.0);
        if let Some(first) = state.first.get(of) {
            return first == key;
        }
        let has_room = state.first.len() < MOST;
        if has_room {
            state.first.insert(of.clone(), key.clone());
        }
        has_room
    }

    /// Whether somebody should list these tools now.
    fn begin(&self, key: &PoolKey) -> bool {
        let mut state = lock(&self.0);
        state.unseen.contains(key) && state.running.insert(key.clone())
    }

    fn end(&self, key: &PoolKey, is_seen: bool) {
        let mut state = lock(&self.0);
        state.running.remove(key);
        if is_seen {
            state.unseen.remove(key);
        }
    }

    /// Whether this catalog is another one than was kept last.
    fn is_news(&self, key: &PoolKey, catalog: &Arc<Catalog>) -> bool {
        let mut state = lock(&self.0);
        if state.unseen.contains(key) {
            return false;
        }
        if state.last.len() >= MOST {
            state.last.retain(|_, last| last.strong_count() > 0);
        }
        let last = state.last.insert(key.clone(), Arc::downgrade(catalog));
        last.is_none_or(|last| !std::ptr::eq(last.as_ptr(), Arc::as_ptr(catalog)))
    }
}

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    /// Puts what was kept at hand, for a server that is neither connected nor listed yet. Lists what
    /// is only known from there again, behind the answer.
    pub(super) async fn look_at_kept(&self, party: &Party<'_>, target: &Arc<Target>) {
        let Some(of) = ToolsOf::key(&target.key) else {
            return;
        };
        let key = &target.key;
        let is_wanted = self.catalogs.get(key).is_none() && self.pool.view(key).session.is_none();
        if is_wanted && self.kept.may_serve(&of, key) {
            let tools = self.directory.kept_tools(party.caller, &of).await;
            if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
                lock(&self.kept.0).unseen.insert(key.clone());
                self.catalogs.seed(key, tools);
            }
        }
        if self.kept.begin(key) {
            self.list_behind(party.caller.clone(), target.clone(), of);
        }
    }

    fn list_behind(&self, caller: Caller, target: Arc<Target>, of: ToolsOf) {
        let (pool, catalogs) = (self.pool.clone(), self.catalogs.clone());
        let (kept, directory) = (self.kept.clone(), self.directory.clone());
        let deadline = Deadline::after(self.start_timeout + self.list_timeout);
        tokio::spawn(async move {
            let listed = match pool.acquire(&target, deadline).await {
                Ok(session) => catalogs.refresh(&target.key, &session, deadline.at).await,
                Err(failure) => Err(failure),
            };
            kept.end(&target.key, listed.is_ok());
            match listed {
                Ok(catalog) if kept.is_news(&target.key, &catalog) => {
                    directory.keep_tools(&caller, &of, &catalog.raws()).await;
                }
                Ok(_) => {}
                Err(failure) => tracing::debug!(%failure, "tools that were kept are not confirmed"),
            }
        });
    }

    /// Keeps what was listed, behind the answer.
    pub(super) fn keep(&self, caller: &Caller, key: &PoolKey, catalog: &Arc<Catalog>) {
        let Some(of) = ToolsOf::key(key) else {
            return;
        };
        if !self.kept.is_news(key, catalog) {
            return;
        }
        let (directory, caller) = (self.directory.clone(), caller.clone());
        let tools = catalog.raws();
        tokio::spawn(async move { directory.keep_tools(&caller, &of, &tools).await });
    }
}
