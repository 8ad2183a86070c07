//! [`Actions`]: what all actions work with, and the steps that several of them take.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::budget::Budget;
use super::kept::Kept;
use super::listing::Listings;
use super::revision::Revisions;
use super::seams::{CallTools, Snapshots};
use super::view::{News, View, Views};
use super::{Action, Census, Context, Figures, Perform, Trail};
use crate::catalog::{Catalog, Catalogs};
use crate::directory::Directory;
use crate::mcp::{Connect, Connector};
use crate::model::caller::Caller;
use crate::model::deadline::Deadline;
use crate::model::error::{ErrorCode, Failure, Outcome, Phase};
use crate::model::json::Rope;
use crate::model::redact::Redactor;
use crate::model::resolve::{ServerEntry, Target};
use crate::model::settings::{Naming, Settings};
use crate::pool::{Lease, Pool, SlotStatus};

/// How often a server's definition or credentials may change while it is connecting.
const MAX_CHANGES: usize = 3;

/// Every action, over a directory and the connections it leads to.
pub struct Actions<C: Connect = Connector, D = Directory> {
    pub(super) directory: D,
    pub(super) pool: Arc<Pool<C>>,
    pub(super) catalogs: Arc<Catalogs>,
    pub(super) redactor: Redactor,
    pub(super) listings: Listings,
    pub(super) revisions: Revisions,
    pub(super) kept: Arc<Kept>,
    pub(super) retries: Budget,
    views: Views,
    pub(super) naming: Naming,
    close_grace: Duration,
    pub(super) list_timeout: Duration,
    pub(super) start_timeout: Duration,
}

impl Actions {
    /// Opens the directory; connects nothing yet.
    ///
    /// # Errors
    /// What `Directory::open` fails with.
    pub async fn open(settings: &Settings, redactor: Redactor) -> Result<Self, Failure> {
        let directory = Directory::open(settings, redactor.clone()).await?;
        let connector = Connector::new(settings, redactor.clone());
        Ok(Self::new(directory, connector, settings, redactor))
    }
}

/// A connection ready for a command, and the target it was made for.
pub(super) struct Ready<S> {
    pub target: Arc<Target>,
    pub session: Lease<S>,
}

/// One server as one command meets it.
pub(super) struct Party<'a> {
    pub entry: &'a ServerEntry,
    pub caller: &'a Caller,
    pub deadline: Deadline,
    pub trail: &'a Trail,
}

impl Party<'_> {
    pub fn name(&self) -> &str {
        &self.entry.definition.name
    }

    /// Says whose failure it is, how far things had come, and after how long.
    pub fn located(&self, failure: Failure, phase: Phase) -> Failure {
        failure
            .server(self.name())
            .phase(phase)
            .elapsed(self.deadline.elapsed())
    }
}

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    pub(super) fn new(directory: D, connector: C, settings: &Settings, redactor: Redactor) -> Self {
        Self {
            directory,
            pool: Pool::new(connector, &settings.pool, settings.daemon.max_running / 4),
            catalogs: Arc::new(Catalogs::new()),
            redactor,
            listings: Listings::default(),
            revisions: Revisions::default(),
            kept: Arc::default(),
            retries: Budget::new(),
            views: Views::default(),
            naming: settings.daemon.naming,
            close_grace: settings.pool.close_grace,
            list_timeout: settings.pool.list_timeout,
            start_timeout: settings.pool.start_timeout,
        }
    }

    /// What is in force for the caller. Connections that no longer are begin to close.
    pub(super) async fn view(&self, context: &Context) -> Result<Arc<View>, Failure> {
        self.view_since(&context.caller, context.begun, context.deadline)
            .await
    }

    async fn view_since(
        &self,
        caller: &Caller,
        since: Instant,
        deadline: Deadline,
    ) -> Result<Arc<View>, Failure> {
        let snapshot = pin!(self.directory.snapshot(caller, since));
        let snapshot = timeout_at(deadline.at, snapshot)
            .await
            .unwrap_or_else(|_| Err(config_too_late()))
            .map_err(|failure| failure.phase(Phase::Resolve).elapsed(deadline.elapsed()))?;
        let opened = self.views.open(snapshot);
        if let Some(news) = opened.news {
            self.sweep(&opened.view, &news);
        }
        Ok(opened.view)
    }

    fn sweep(&self, view: &View, news: &News) {
        let previous = news.previous.as_deref();
        let drain = self.pool.take(|key| !view.holds(key, previous));
        if drain.len() > 0 {
            tokio::spawn(drain.finish(self.close_grace));
        }
    }

    /// A failure as it may leave: without secrets, and timed where it is a server's.
    pub(super) fn outward(&self, failure: Failure, context: &Context) -> Failure {
        let timed = match failure.details.contains_key("server_name") {
            true => failure.elapsed(context.deadline.elapsed()),
            false => failure,
        };
        self.redactor.scrub_failure(timed)
    }

    pub(super) fn grace(&self, force: bool) -> Duration {
        if force {
            Duration::ZERO
        } else {
            self.close_grace
        }
    }

    /// Resolves the server for the caller.
    pub(super) fn target(&self, view: &View, party: &Party) -> Result<Arc<Target>, Failure> {
        view.target(party.entry, party.caller)
            .map_err(|failure| party.located(failure, Phase::Resolve))
    }

    /// A ready connection. A new one serves only if its credentials and definition are still in
    /// force after the handshake; otherwise another is made with those that are.
    pub(super) async fn acquire(
        &self,
        party: &Party<'_>,
        target: &Arc<Target>,
    ) -> Result<Ready<C::Session>, Failure> {
        if let Some(session) = self.pool.acquire_at_hand(target) {
            let target = target.clone();
            return Ok(Ready { target, session });
        }
        Box::pin(self.acquire_later(party, target)).await
    }

    async fn acquire_later(
        &self,
        party: &Party<'_>,
        target: &Arc<Target>,
    ) -> Result<Ready<C::Session>, Failure> {
        if self.pool.view(&target.key).status == SlotStatus::Connected {
            let leased = self.lease(party, target.clone()).await;
            if !was_called_off(&leased) {
                return leased;
            }
        }
        party.trail.reach(Phase::Start);
        let mut target = self.target_in_force(party).await?;
        for _ in 0..MAX_CHANGES {
            let leased = self.lease(party, target.clone()).await;
            if leased.is_err() && !was_called_off(&leased) {
                return leased;
            }
            let now = self.target_in_force(party).await?;
            if now.key == target.key {
                return leased;
            }
            if leased.is_ok() {
                let outdated = self.pool.take(|key| *key == target.key);
                drop(leased);
                tokio::spawn(outdated.finish(self.close_grace));
            }
            target = now;
        }
        Err(party.located(unsettled(party), Phase::Start))
    }

    async fn lease(
        &self,
        party: &Party<'_>,
        target: Arc<Target>,
    ) -> Result<Ready<C::Session>, Failure> {
        let acquired = self.pool.acquire(&target, party.deadline).await;
        let session = acquired.map_err(|failure| party.located(failure, Phase::Start))?;
        Ok(Ready { target, session })
    }

    async fn target_in_force(&self, party: &Party<'_>) -> Result<Arc<Target>, Failure> {
        let now = Instant::now();
        let view = self.view_since(party.caller, now, party.deadline).await?;
        let entry = view.enabled(party.name())?;
        self.target(&view, &Party { entry, ..*party })
    }

    /// The tools of the server: those at hand, else listed now, connecting where needed.
    pub(super) async fn catalog(
        &self,
        party: &Party<'_>,
        target: &Arc<Target>,
    ) -> Result<Arc<Catalog>, Failure> {
        let until = self.list_deadline(party);
        let listed = match (
            self.pool.view(&target.key).session,
            self.catalogs.get(&target.key),
        ) {
            (None, Some(catalog)) => return Ok(catalog),
            (Some(session), Some(_)) => {
                party.trail.reach(Phase::List);
                self.catalogs.current(&target.key, &session, until).await
            }
            (_, None) => {
                let ready = self.acquire(party, target).await?;
                party.trail.reach(Phase::List);
                let until = self.list_deadline(party);
                let key = &ready.target.key;
                self.catalogs.current(key, &ready.session, until).await
            }
        };
        listed.map_err(|failure| party.located(failure, Phase::List))
    }

    /// The tools of the server, listed now whatever is at hand.
    pub(super) async fn fresh_catalog(
        &self,
        party: &Party<'_>,
        target: &Arc<Target>,
    ) -> Result<Arc<Catalog>, Failure> {
        let ready = self.acquire(party, target).await?;
        party.trail.reach(Phase::List);
        let until = self.list_deadline(party);
        self.catalogs
            .refresh(&ready.target.key, &ready.session, until)
            .await
            .map_err(|failure| party.located(failure, Phase::List))
    }

    fn list_deadline(&self, party: &Party) -> Instant {
        party.deadline.at.min(Instant::now() + self.list_timeout)
    }

    /// Ends `work` on one server at the command's deadline, whatever it waits for.
    pub(super) async fn in_time<T>(
        &self,
        party: &Party<'_>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout_at(party.deadline.at, work)
            .await
            .unwrap_or_else(|_| Err(party.located(list_too_late(party), Phase::List)))
    }

    async fn dispatch(&self, action: Action, context: &Context) -> Result<Rope, Failure> {
        match action {
            Action::CallTool(call) => self.call_tool(call, context).await,
            // The others are boxed, as all that is rare: what every call holds and moves about stays small.
            Action::ListTools {
                servers,
                refresh,
                if_revision,
            } => {
                let listed = Box::pin(self.list_tools(servers, refresh, context)).await?;
                self.answer_list(listed, if_revision.as_deref(), context)
            }
            Action::List { kind, servers } => Box::pin(self.list(kind, servers, context)).await,
            Action::Ask { server_name, ask } => {
                Box::pin(self.ask_server(&server_name, *ask, context)).await
            }
            Action::ListServers => Box::pin(self.list_servers(context)).await,
            Action::ConnectServer { server_name } => {
                Box::pin(self.connect_server(&server_name, context)).await
            }
            Action::DisconnectServer { server_name, force } => {
                Box::pin(self.disconnect_server(&server_name, force, context)).await
            }
            Action::RefreshTools {
                server_name: Some(name),
            } => Box::pin(self.refresh_server(&name, context)).await,
            Action::RefreshTools { server_name: None } => {
                Box::pin(self.refresh_connected(context)).await
            }
            Action::Init => Box::pin(self.init(context)).await,
            Action::Shutdown { force } => Box::pin(self.shutdown(force, context)).await,
            Action::Credentials(action) => Box::pin(self.credentials(action, context)).await,
        }
    }
}

impl<C: Connect, D: Snapshots> Perform for Actions<C, D>
where
    C::Session: CallTools,
{
    async fn perform(&self, action: Action, context: Context) -> Result<Rope, Failure> {
        context.trail.reach(Phase::Resolve);
        self.dispatch(action, &context)
            .await
            .map_err(|failure| self.outward(failure, &context))
    }

    fn census(&self) -> Census {
        Census {
            connections: self.pool.live(),
            catalogs: self.catalogs.count(),
        }
    }

    fn figures(&self) -> Figures {
        Figures {
            pool: self.pool.figures(),
            catalogs: self.catalogs.figures(),
        }
    }

    async fn close(&self, force: bool) {
        self.pool.close(self.grace(force)).await;
    }
}

/// Says nothing against the config API: `config.timeout` is longer, or the command had waited before it asked.
fn config_too_late() -> Failure {
    let message = "the command's deadline ended before its definitions and credentials were read; \
                   try again, or give the command more time";
    Failure::new(ErrorCode::CallTimeout, message).outcome(Outcome::NotSent)
}

/// Whether the start that was waited for was taken out of the pool: by a change of what is in force, or because
/// somebody disconnects.
fn was_called_off<T>(leased: &Result<T, Failure>) -> bool {
    leased
        .as_ref()
        .is_err_and(|failure| failure.code == ErrorCode::Cancelled)
}

fn unsettled(party: &Party) -> Failure {
    let message = format!(
        "the definition or the credentials of `{}` changed each time it was connected; try again",
        party.name()
    );
    Failure::new(ErrorCode::Starting, message)
}

fn list_too_late(party: &Party) -> Failure {
    let message = format!(
        "server `{}` did not list its tools within {} ms",
        party.name(),
        party.deadline.elapsed().as_millis()
    );
    Failure::new(ErrorCode::CallTimeout, message)
}
