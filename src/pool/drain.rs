//! The end of connections: out of the pool first, then their calls finish, then they are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::slot::{Life, Live, Outcome};
use crate::mcp::Connected;
use crate::model::error::words;

words! {
    /// Why a connection left the pool.
    Reason {
        Idle = "idle",
        Evicted = "evicted",
        Superseded = "superseded",
        Taken = "taken",
        Died = "died",
    }
}

/// Connections that have left the pool, by reason.
#[derive(Default)]
pub(super) struct Departures([AtomicU64; Reason::ALL.len()]);

impl Departures {
    pub(super) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}

/// Connections that are out of the pool and still have calls to finish.
///
/// Each is closed by a task of its own, whatever becomes of this value; dropping it ends the grace.
pub struct Drain<S> {
    closing: Vec<JoinHandle<()>>,
    starting: Vec<watch::Receiver<Outcome<S>>>,
    hurry: CancellationToken,
}

impl<S: Connected> Drain<S> {
    pub(super) fn new(
        closing: Vec<JoinHandle<()>>,
        starting: Vec<watch::Receiver<Outcome<S>>>,
        hurry: CancellationToken,
    ) -> Self {
        Self {
            closing,
            starting,
            hurry,
        }
    }

    /// How many connections are being closed, starting ones included.
    pub fn len(&self) -> usize {
        self.closing.len() + self.starting.len()
    }

    /// Lets running calls finish for at most `grace`, then closes; returns when all is closed.
    pub async fn finish(mut self, grace: Duration) {
        let mut closed = futures::future::join_all(std::mem::take(&mut self.closing));
        if timeout(grace, &mut closed).await.is_err() {
            self.hurry.cancel();
            closed.await;
        }
        for start in &mut self.starting {
            // Its sender goes with the task that was starting it.
            while start.changed().await.is_ok() {}
        }
    }
}

impl<S> Drop for Drain<S> {
    fn drop(&mut self) {
        self.hurry.cancel();
    }
}

/// Closes a connection when nobody uses it any more, or on `hurry`.
pub(super) async fn close<S: Connected>(live: Live<S>, hurry: CancellationToken) {
    let (life, session, berth) = live.into_parts();
    let Life {
        usage, returned, ..
    } = life;
    let users = Arc::downgrade(&usage);
    drop(usage);
    tokio::select! {
        _ = returned => {}
        () = hurry.cancelled() => {
            if let Some(usage) = users.upgrade() {
                usage.taken();
            }
        }
    }
    session.close().await;
    drop(berth);
}
