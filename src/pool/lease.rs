//! Who uses a connection: leases, and callers waiting for one.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::time::{Instant, timeout_at};

use super::bulkhead;
use crate::model::error::{ErrorCode, Failure};

/// Callers that may wait for each call that runs: a burst is no flood.
const WAITING: usize = 15;
/// What a caller that finds no place is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The use of one connection. The slot holds one reference, and so does everybody who uses the
/// connection or waits for it: no other reference, no use. References are taken only under the
/// pool's lock, so a connection seen unused there stays unused.
pub(super) struct Usage {
    /// Calls at once.
    places: Arc<Semaphore>,
    /// Callers that may wait for a place.
    queue: Semaphore,
    limit: usize,
    since: Instant,
    /// When it was last used, in microseconds after `since`.
    last_used: AtomicU64,
    /// Ended by us, not by a death: those who wait are not to start another one.
    taken: AtomicBool,
    /// Dropped with the last reference, which tells the receiver.
    _returned: oneshot::Sender<Infallible>,
}

/// Ends when a connection is no longer used by anybody.
pub(super) type Returned = oneshot::Receiver<Infallible>;

impl Usage {
    pub(super) fn new(now: Instant, limit: usize) -> (Arc<Self>, Returned) {
        let (returned, receiver) = oneshot::channel();
        let usage = Self {
            places: Arc::new(Semaphore::new(limit)),
            queue: Semaphore::new(limit.saturating_mul(WAITING).min(Semaphore::MAX_PERMITS)),
            limit,
            since: now,
            last_used: AtomicU64::new(0),
            taken: AtomicBool::new(false),
            _returned: returned,
        };
        (Arc::new(usage), receiver)
    }

    /// Places that are taken.
    pub(super) fn in_flight(&self) -> usize {
        self.limit.saturating_sub(self.places.available_permits())
    }

    pub(super) fn last_used(&self) -> Instant {
        self.since + Duration::from_micros(self.last_used.load(Ordering::Relaxed))
    }

    pub(super) fn touch(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.since).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        self.last_used.fetch_max(micros, Ordering::Relaxed);
    }

    /// The connection has died: whoever waits for a place asks the pool again.
    pub(super) fn died(&self) {
        self.places.close();
    }

    /// The connection is being closed: whoever waits for a place is answered `cancelled`.
    pub(super) fn taken(&self) {
        self.taken.store(true, Ordering::Release);
        self.places.close();
    }

    /// A place on `session`, at once or when another call has ended. `None`: it has died.
    pub(super) async fn lease<S>(
        self: Arc<Self>,
        session: Arc<S>,
        deadline: Instant,
    ) -> Result<Option<Lease<S>>, Failure> {
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => place,
            Err(TryAcquireError::NoPermits) => match self.wait(deadline).await? {
                Some(place) => place,
                None => return self.ended(),
            },
            Err(TryAcquireError::Closed) => return self.ended(),
        };
        Ok(Some(self.leased(session, place)))
    }

    /// A place on `session`, if one is free.
    pub(super) fn lease_at_hand<S>(self: Arc<Self>, session: Arc<S>) -> Option<Lease<S>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(self.leased(session, place))
    }

    fn leased<S>(self: Arc<Self>, session: Arc<S>, place: OwnedSemaphorePermit) -> Lease<S> {
        Lease {
            session,
            usage: self,
            _place: place,
            among_callers: None,
        }
    }

    async fn wait(&self, deadline: Instant) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let Ok(_turn) = self.queue.try_acquire() else {
            return Err(self.overloaded("as many are waiting as may"));
        };
        let place = Arc::clone(&self.places).acquire_owned();
        match timeout_at(deadline, place).await {
            Ok(place) => Ok(place.ok()),
            Err(_) => Err(self.overloaded("none ended within the deadline")),
        }
    }

    fn ended<T>(&self) -> Result<Option<T>, Failure> {
        if self.taken.load(Ordering::Acquire) {
            return Err(Failure::new(
                ErrorCode::Cancelled,
                "the connection was closed while the command waited for a place on it",
            ));
        }
        Ok(None)
    }

    fn overloaded(&self, why: &str) -> Failure {
        let limit = self.limit;
        let message = format!("all {limit} calls at once on this connection are taken, and {why}");
        Failure::new(ErrorCode::Overloaded, message).retry_after(RETRY_AFTER)
    }
}

/// The right to one call on a ready session; dropped when the call has ended.
pub struct Lease<S> {
    session: Arc<S>,
    usage: Arc<Usage>,
    _place: OwnedSemaphorePermit,
    /// The place among all callers of the server.
    among_callers: Option<bulkhead::Place>,
}

impl<S> Lease<S> {
    /// Holds the place among the server's callers for as long as the call takes.
    pub(super) fn within(mut self, place: bulkhead::Place) -> Self {
        self.among_callers = Some(place);
        self
    }
}

impl<S> Deref for Lease<S> {
    type Target = Arc<S>;
    fn deref(&self) -> &Arc<S> {
        &self.session
    }
}

impl<S> Drop for Lease<S> {
    fn drop(&mut self) {
        self.usage.touch(Instant::now());
    }
}
