//! Commands run side by side, but see what every changing command read before them did: it holds back
//! later lines of its user (without a user: everybody's) until its change is in force.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::model::caller::UserId;

/// The holds that are still in force. One owner, the reader of lines.
pub struct Order {
    barrier_timeout: Duration,
    holds: Vec<(Option<UserId>, Hold)>,
}

/// Holds back later commands until released, for a bounded time.
#[derive(Clone)]
pub struct Hold {
    released: CancellationToken,
    until: Instant,
}

impl Order {
    pub fn new(barrier_timeout: Duration) -> Self {
        Self {
            barrier_timeout,
            holds: Vec::new(),
        }
    }

    /// What a command read now has to wait for.
    pub fn ahead_of(&mut self, user: Option<&UserId>) -> Vec<Hold> {
        self.holds.retain(|(_, hold)| !hold.is_over());
        let mine = |holder: &Option<UserId>| holder.is_none() || holder.as_ref() == user;
        let holds = self.holds.iter().filter(|(holder, _)| mine(holder));
        holds.map(|(_, hold)| hold.clone()).collect()
    }

    /// Holds back what is read from now on.
    pub fn hold(&mut self, user: Option<UserId>) -> Hold {
        let hold = Hold {
            released: CancellationToken::new(),
            until: Instant::now() + self.barrier_timeout,
        };
        self.holds.push((user, hold.clone()));
        hold
    }
}

impl Hold {
    pub fn release(&self) {
        self.released.cancel();
    }

    /// Ends when the change is in force, or has had its time.
    pub async fn over(&self) {
        let _ = timeout_at(self.until, self.released.cancelled()).await;
    }

    fn is_over(&self) -> bool {
        self.released.is_cancelled() || Instant::now() >= self.until
    }
}

/// Releases when dropped, so that no end of a command leaves its hold behind.
pub struct Releasing(pub Hold);

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.release();
    }
}
