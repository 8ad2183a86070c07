//! The task of one connection: makes room, connects, and watches over the session until it dies or
//! leaves the pool. Its life is not tied to any caller's.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::Pool;
use super::drain::{self, Reason};
use super::room::{Berth, Bound};
use super::slot::{Live, Order};
use crate::mcp::{Connect, Connected};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::resolve::{Launch, PoolKey, Target};

/// How long a start waits for room that is not to be made.
const ROOM_WAIT: Duration = Duration::from_secs(2);
/// A process that takes longer is waiting for something, not computing: the next may begin.
const START_TURN: Duration = Duration::from_secs(3);

impl<C: Connect> Pool<C> {
    pub(super) fn launch(self: &Arc<Self>, order: Order<C::Session>) {
        self.tasks.spawn(Arc::clone(self).run(order));
    }

    async fn run(self: Arc<Self>, order: Order<C::Session>) {
        let Order {
            id,
            target,
            outcome,
            mut held,
        } = order;
        // Boxed: the task lives as long as the connection, and is to hold nothing of its start.
        let started = AssertUnwindSafe(self.start(&target).boxed()).catch_unwind();
        let started = tokio::select! {
            biased;
            _ = &mut held => return,
            started = started => started.unwrap_or_else(|_| Err(panicked(&target))),
        };
        match started {
            Err(failure) => {
                let failure = failure.server(&target.server_name);
                self.start_failed(&target.key, id, &failure);
                outcome.send_replace(Some(Err(failure)));
            }
            Ok((session, berth)) => {
                let session = Arc::new(session);
                match self.connected_as(&target.key, id, &session, berth) {
                    Ok(()) => {
                        outcome.send_replace(Some(Ok(Arc::clone(&session))));
                        drop(outcome);
                        self.watch(&target.key, id, session, held).await;
                    }
                    Err(_berth) => session.close().await,
                }
            }
        }
    }

    /// Holds no reference to the pool while it waits.
    fn watch(
        self: Arc<Self>,
        key: &PoolKey,
        id: u64,
        session: Arc<C::Session>,
        held: oneshot::Receiver<Infallible>,
    ) -> impl Future<Output = ()> {
        let pool = Arc::downgrade(&self);
        drop(self);
        async move {
            let failure = tokio::select! {
                _ = held => return,
                failure = session.died() => failure,
            };
            let Some(pool) = pool.upgrade() else { return };
            if let Some(live) = pool.bury(key, id, &failure) {
                live.usage().died();
                session.close().await;
            }
        }
    }

    async fn start(&self, target: &Arc<Target>) -> Result<(C::Session, Berth), Failure> {
        let berth = self.make_room(target).await?;
        let mut connect = pin!(self.connector.connect(Arc::clone(target)));
        if matches!(target.launch, Launch::Stdio { .. }) {
            let turn = self.starts.acquire().await;
            if let Ok(started) = timeout(START_TURN, &mut connect).await {
                return Ok((started?, berth));
            }
            drop(turn);
        }
        Ok((connect.await?, berth))
    }

    async fn make_room(&self, target: &Target) -> Result<Berth, Failure> {
        let mut permits = Vec::with_capacity(3);
        for (bound, semaphore) in self.room.bounds(&target.key) {
            permits.push(self.enter(target, &bound, semaphore).await?);
        }
        Ok(Berth { _permits: permits })
    }

    /// Room within one limit: free, or made by closing what was used least recently.
    async fn enter(
        &self,
        target: &Target,
        bound: &Bound,
        semaphore: Arc<Semaphore>,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        loop {
            if let Ok(permit) = Arc::clone(&semaphore).try_acquire_owned() {
                return Ok(permit);
            }
            let Some(live) = self.evict(bound) else { break };
            // An error means that closing panicked: the connection is gone all the same.
            let _ = self.close_later(live, Reason::Evicted).await;
        }
        match timeout(ROOM_WAIT, semaphore.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(bound.overloaded(&target.server_name)),
        }
    }

    pub(super) fn close_later(
        &self,
        live: Live<C::Session>,
        reason: Reason,
    ) -> tokio::task::JoinHandle<()> {
        self.departures.count(reason);
        self.tasks
            .spawn(drain::close(live, self.hurry.child_token()))
    }
}

fn panicked(target: &Target) -> Failure {
    let message = format!(
        "the start of server `{}` ran into a fault of ours",
        target.server_name
    );
    Failure::new(ErrorCode::Internal, message).phase(Phase::Start)
}
