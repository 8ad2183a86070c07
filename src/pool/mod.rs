//! Floor 2: keyed, shared connections.

use std::sync::Arc;

use crate::mcp::Connect;
use crate::model::deadline::Deadline;
use crate::model::error::Failure;
use crate::model::resolve::{PoolKey, Target};
use crate::model::settings::PoolSettings;

/// All connections of the process.
pub struct Pool<C: Connect> {
    connector: C,
}

/// Where a slot stands, for `list_servers`.
pub struct SlotView<S> {
    pub status: SlotStatus,
    pub session: Option<Arc<S>>,
    /// The failure of the last connect, until one succeeds.
    pub last_failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStatus {
    Idle,
    Connecting,
    Connected,
    Cooling,
}

/// The right to one call on a ready session; dropped when the call has ended.
pub struct Lease<S> {
    session: Arc<S>,
}

impl<S> std::ops::Deref for Lease<S> {
    type Target = Arc<S>;
    fn deref(&self) -> &Arc<S> {
        &self.session
    }
}

/// Connections that are out of the pool and still have calls to finish.
pub struct Drain<S> {
    sessions: Vec<Arc<S>>,
}

impl<S> Drain<S> {
    /// How many connections are being closed.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Lets running calls finish for at most `grace`, then closes; returns when all is closed.
    pub async fn finish(self, _grace: std::time::Duration) {
        todo!()
    }
}

impl<C: Connect> Pool<C> {
    pub fn new(connector: C, settings: &PoolSettings) -> Arc<Self> {
        let _ = settings;
        Arc::new(Self { connector })
    }

    /// A ready session for the target: the pooled one, else a new one, started once for all callers.
    ///
    /// # Errors
    /// What the connect failed with; `circuit_open` while cooling; `starting` when the deadline ends
    /// first (the start goes on); `overloaded` when there is no room.
    pub async fn acquire(
        self: &Arc<Self>,
        target: &Arc<Target>,
        deadline: Deadline,
    ) -> Result<Lease<C::Session>, Failure> {
        let _ = (target, deadline, &self.connector);
        todo!()
    }

    /// Forgets a failed connect, so that the next `acquire` starts at once (`connect_server`).
    pub fn forget_failure(&self, key: &PoolKey) {
        let _ = key;
        todo!()
    }

    pub fn view(&self, key: &PoolKey) -> SlotView<C::Session> {
        let _ = key;
        todo!()
    }

    /// The ready sessions whose key `wanted` accepts.
    pub fn connected(
        &self,
        wanted: impl Fn(&PoolKey) -> bool,
    ) -> Vec<(Arc<Target>, Arc<C::Session>)> {
        let _ = wanted;
        todo!()
    }

    /// Takes the connections whose key `unwanted` accepts out of the pool, at once; starting ones too.
    pub fn take(&self, unwanted: impl Fn(&PoolKey) -> bool) -> Drain<C::Session> {
        let _ = unwanted;
        todo!()
    }

    /// Live connections.
    pub fn live(&self) -> usize {
        todo!()
    }
}
