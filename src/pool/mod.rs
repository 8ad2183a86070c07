//! Floor 2: keyed, shared connections.
//!
//! A session carries many calls at once, so callers share it: the pool hands out leases, it does not
//! lend connections. What is to be done is decided under one short lock (`slot.rs`, `health.rs`);
//! what takes time is done by tasks that nobody's deadline can end (`start.rs`, `drain.rs`).

mod bulkhead;
mod drain;
mod figures;
mod health;
mod lease;
mod room;
mod slot;
mod slots;
mod start;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::mcp::{Connect, Connected};
use crate::model::caller::ServerId;
use crate::model::deadline::Deadline;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::resolve::{PoolKey, Target};
use crate::model::settings::PoolSettings;

pub use bulkhead::{Bulkheads, Entry, Place};
pub use drain::Drain;
use drain::Reason;
pub use figures::Figures;
pub use lease::Lease;
use lease::Usage;
use room::{Berth, Bound, Room};
use slot::{Left, Live, Slot, Step, Waiter};
use slots::Slots;

/// What a caller of a server that is kept busy is told to wait.
const BUSY: Duration = Duration::from_secs(1);

/// All connections of the process.
pub struct Pool<C: Connect> {
    connector: C,
    idle_timeout: Duration,
    max_in_flight: usize,
    slots: Mutex<Slots<C::Session>>,
    room: Room,
    /// Callers by server, from asking for a connection to the end of the call.
    callers: Bulkheads<ServerId>,
    /// Processes that may be starting at once.
    starts: Semaphore,
    /// Every connection's task, and every closing.
    tasks: TaskTracker,
    /// Ends every grace, and the reaper.
    hurry: CancellationToken,
    reaper: Once,
    departures: drain::Departures,
    failed_starts: AtomicU64,
    /// The random part of a pause, 0 to 1.
    jitter: fn() -> f64,
}

/// Where a slot stands, for `list_servers`.
pub struct SlotView<S> {
    pub status: SlotStatus,
    pub session: Option<Arc<S>>,
    /// The failure of the last connect, or the death of the last session, until a connect succeeds.
    pub last_failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStatus {
    Idle,
    Connecting,
    Connected,
    Cooling,
}

impl<C: Connect> Pool<C> {
    /// `calls_per_server`: callers that one server may have at once, over all its connections.
    pub fn new(connector: C, settings: &PoolSettings, calls_per_server: usize) -> Arc<Self> {
        Self::with_jitter(connector, settings, calls_per_server, random_fraction)
    }

    fn with_jitter(
        connector: C,
        settings: &PoolSettings,
        calls_per_server: usize,
        jitter: fn() -> f64,
    ) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            connector,
            idle_timeout: settings.idle_timeout,
            max_in_flight: settings.max_in_flight.clamp(1, Semaphore::MAX_PERMITS),
            slots: Mutex::default(),
            room: Room::new(settings),
            callers: Bulkheads::new(calls_per_server, 2),
            starts: Semaphore::new(2 * cores),
            tasks: TaskTracker::new(),
            hurry: CancellationToken::new(),
            reaper: Once::new(),
            departures: drain::Departures::default(),
            failed_starts: AtomicU64::new(0),
            jitter,
        })
    }

    /// A ready session for the target: the pooled one, else a new one, started once for all callers.
    ///
    /// # Errors
    /// What the connect failed with; `circuit_open` while cooling; `starting` when the deadline ends
    /// first (the start goes on); `overloaded` when there is no room, no place on the connection, or
    /// too many callers of this server; `cancelled` when the connection is taken out meanwhile; `shutting_down` once closed.
    pub async fn acquire(
        self: &Arc<Self>,
        target: &Arc<Target>,
        deadline: Deadline,
    ) -> Result<Lease<C::Session>, Failure> {
        let named = |failure: Failure| failure.server(&target.server_name).phase(Phase::Start);
        let place = self.place(target, deadline).await.map_err(named)?;
        loop {
            let (session, usage) = match self.ask(target) {
                Step::Use(session, usage) => (session, usage),
                Step::Wait(waiter) => started(waiter, target, deadline).await?,
                Step::Begin(waiter, order) => {
                    self.launch(order);
                    started(waiter, target, deadline).await?
                }
                Step::AskAgain(at) if at < deadline.at => {
                    sleep_until(at).await;
                    continue;
                }
                Step::AskAgain(at) => return Err(pausing(target, at)),
                Step::Refuse(failure) => return Err(failure),
            };
            if session.is_dead() {
                // Its task has been woken to take it out, and may not have run yet.
                tokio::task::yield_now().await;
                continue;
            }
            // `None`: it died between the two steps.
            if let Some(lease) = usage.lease(session, deadline.at).await.map_err(named)? {
                return Ok(lease.within(place));
            }
        }
    }

    /// A ready session and a place on it, where both are there at once: what most calls need, and the
    /// cheapest way to it.
    pub fn acquire_at_hand(&self, target: &Target) -> Option<Lease<C::Session>> {
        let place = self.callers.enter(&target.key.server)?.place_at_hand()?;
        let (session, usage) = self.lock().ready(&target.key)?;
        if session.is_dead() {
            return None;
        }
        let lease = usage.lease_at_hand(session)?;
        Some(lease.within(place))
    }

    /// A place among the callers of the server, whatever their connections.
    async fn place(&self, target: &Target, deadline: Deadline) -> Result<Place, Failure> {
        let refused = |why| {
            let name = &target.server_name;
            let most = self.callers.at_once();
            let message = format!("server `{name}` is kept busy by {most} commands, and {why}");
            Failure::new(ErrorCode::Overloaded, message).retry_after(BUSY)
        };
        let Some(entry) = self.callers.enter(&target.key.server) else {
            return Err(refused("as many are waiting as may"));
        };
        timeout_at(deadline.at, entry.place())
            .await
            .map_err(|_| refused("none ended within the deadline"))
    }

    /// Forgets failed connects, so that the next `acquire` starts at once (`connect_server`).
    pub fn forget_failure(&self, key: &PoolKey) {
        if let Some(slot) = self.lock().get_mut(key) {
            slot.health = health::Health::default();
        }
    }

    pub fn view(&self, key: &PoolKey) -> SlotView<C::Session> {
        let now = Instant::now();
        match self.lock().get(key) {
            Some(slot) => slot.view(now),
            None => Slot::default().view(now),
        }
    }

    /// The ready sessions whose key `wanted` accepts.
    pub fn connected(
        &self,
        wanted: impl Fn(&PoolKey) -> bool,
    ) -> Vec<(Arc<Target>, Arc<C::Session>)> {
        let slots = self.lock();
        let ready = slots.live().filter(|live| wanted(&live.target().key));
        ready
            .map(|live| (Arc::clone(live.target()), Arc::clone(&live.session)))
            .collect()
    }

    /// Takes the connections whose key `unwanted` accepts out of the pool, at once; starting ones
    /// too. Failures of those keys are forgotten.
    pub fn take(&self, unwanted: impl Fn(&PoolKey) -> bool) -> Drain<C::Session> {
        let slots = self.lock().take(unwanted);
        let hurry = self.hurry.child_token();
        let (mut closing, mut starting) = (Vec::new(), Vec::new());
        for left in slots.into_iter().filter_map(Slot::take) {
            self.departures.count(Reason::Taken);
            match left {
                Left::Live(live) => {
                    closing.push(self.tasks.spawn(drain::close(live, hurry.clone())));
                }
                Left::Start(start) => starting.push(start.outcome),
            }
        }
        Drain::new(closing, starting, hurry)
    }

    /// Closes every connection, those already draining too, and starts no other from now on: the
    /// end of the process. Running calls may finish for at most `grace`.
    pub async fn close(&self, grace: Duration) {
        self.lock().close();
        let drain = self.take(|_| true);
        self.tasks.close();
        if timeout(grace, self.tasks.wait()).await.is_err() {
            self.hurry.cancel();
            self.tasks.wait().await;
        }
        drop(drain);
        self.hurry.cancel();
        for &reason in Reason::ALL {
            tracing::debug!(%reason, count = self.departures.of(reason), "connections closed");
        }
    }

    /// Live connections.
    pub fn live(&self) -> usize {
        self.lock().live().count()
    }

    fn lock(&self) -> MutexGuard<'_, Slots<C::Session>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(self: &Arc<Self>, target: &Arc<Target>) -> Step<C::Session> {
        let now = Instant::now();
        let (step, superseded) = self.lock().ask(now, target, self.max_in_flight);
        for live in superseded {
            self.close_later(live, Reason::Superseded);
        }
        if matches!(step, Step::Begin(..)) {
            let pool = Arc::downgrade(self);
            let (period, ended) = (reap_period(self.idle_timeout), self.hurry.clone());
            self.reaper.call_once(|| {
                tokio::spawn(reap(pool, period, ended));
            });
        }
        step
    }

    fn connected_as(
        &self,
        key: &PoolKey,
        id: u64,
        session: &Arc<C::Session>,
        berth: Berth,
    ) -> Result<(), Berth> {
        let now = Instant::now();
        match self.lock().get_mut(key) {
            Some(slot) => slot.connected(id, now, Arc::clone(session), berth),
            None => Err(berth),
        }
    }

    fn start_failed(&self, key: &PoolKey, id: u64, failure: &Failure) {
        self.failed_starts.fetch_add(1, Ordering::Relaxed);
        let (now, fraction) = (Instant::now(), (self.jitter)());
        if let Some(slot) = self.lock().get_mut(key) {
            slot.failed(id, now, failure, fraction);
        }
    }

    fn bury(&self, key: &PoolKey, id: u64, failure: &Failure) -> Option<Live<C::Session>> {
        let (now, fraction) = (Instant::now(), (self.jitter)());
        let live = self.lock().get_mut(key)?.died(id, now, failure, fraction)?;
        self.departures.count(Reason::Died);
        Some(live)
    }

    fn evict(&self, bound: &Bound) -> Option<Live<C::Session>> {
        self.lock().evict(Instant::now(), bound)
    }

    fn reap(&self) {
        let now = Instant::now();
        let reaped = self.lock().reap(now, self.idle_timeout);
        for live in reaped {
            self.close_later(live, Reason::Idle);
        }
    }
}

impl<C: Connect> Drop for Pool<C> {
    fn drop(&mut self) {
        self.hurry.cancel();
    }
}

/// Closes what has been idle for too long, until the pool ends.
async fn reap<C: Connect>(pool: Weak<Pool<C>>, period: Duration, ended: CancellationToken) {
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = sleep(period) => {}
        }
        match pool.upgrade() {
            Some(pool) => pool.reap(),
            None => return,
        }
    }
}

fn reap_period(idle_timeout: Duration) -> Duration {
    (idle_timeout / 4).clamp(Duration::from_millis(100), Duration::from_secs(5))
}

/// Waits for a start under way, no longer than the caller may.
async fn started<S>(
    mut waiter: Waiter<S>,
    target: &Target,
    deadline: Deadline,
) -> Result<(Arc<S>, Arc<Usage>), Failure> {
    let outcome = waiter.outcome.wait_for(Option::is_some);
    let outcome = match timeout_at(deadline.at, outcome).await {
        Ok(Ok(outcome)) => outcome.clone(),
        Ok(Err(_)) => None,
        Err(_) => return Err(still_starting(target, waiter.since.elapsed())),
    };
    match outcome {
        Some(Ok(session)) => Ok((session, waiter.usage)),
        Some(Err(failure)) => Err(failure),
        None => Err(called_off(target)),
    }
}

fn still_starting(target: &Target, elapsed: Duration) -> Failure {
    let message = format!(
        "server `{}` is still starting, {:.1} s so far; the start goes on: try again",
        target.server_name,
        elapsed.as_secs_f64(),
    );
    Failure::new(ErrorCode::Starting, message)
        .server(&target.server_name)
        .phase(Phase::Start)
        .elapsed(elapsed)
}

fn called_off(target: &Target) -> Failure {
    let message = format!(
        "server `{}` was disconnected while it was starting",
        target.server_name
    );
    Failure::new(ErrorCode::Cancelled, message)
        .server(&target.server_name)
        .phase(Phase::Start)
}

/// The deadline ends before a server that keeps dying may be started again.
fn pausing(target: &Target, until: Instant) -> Failure {
    let message = format!(
        "server `{}` died several times soon after its start and is not started again yet",
        target.server_name
    );
    Failure::new(ErrorCode::CircuitOpen, message)
        .server(&target.server_name)
        .phase(Phase::Start)
        .retry_after(until.saturating_duration_since(Instant::now()))
}

/// From the random keys of the standard hasher: good enough to spread retries.
fn random_fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1_u64 << 53) as f64
}
