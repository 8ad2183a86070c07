//! What the pool holds and has done, as numbers for the operator.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde::Serialize;
use tokio::time::Instant;

use super::drain::Reason;
use super::{Pool, SlotStatus};
use crate::mcp::Connect;
use crate::model::resolve::Launch;

/// The pool at one moment, and its totals since the process began.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Keys by where they stand; an idle one has no connection and is only remembered.
    pub keys: States,
    /// Live connections by transport.
    pub connections: Transports,
    /// Calls that hold a place on a connection.
    pub in_flight: usize,
    /// Callers that wait for a start, or for a place on a connection.
    pub waiting: usize,
    /// Places for connections taken, those of starting and closing ones included.
    pub room_taken: usize,
    pub room_max: usize,
    /// Connects begun, ever.
    pub starts: u64,
    /// Those of them that failed.
    pub failed_starts: u64,
    /// Connections that have left the pool, by reason.
    pub departures: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct States {
    pub idle: usize,
    pub connecting: usize,
    pub connected: usize,
    pub cooling: usize,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Transports {
    pub stdio: usize,
    pub http: usize,
}

impl<C: Connect> Pool<C> {
    /// Counts under one short lock.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures {
            room_taken: self.room.taken(),
            room_max: self.room.max(),
            failed_starts: self.failed_starts.load(Ordering::Relaxed),
            departures: self.departures_by_reason(),
            ..Figures::default()
        };
        let now = Instant::now();
        let slots = self.lock();
        figures.starts = slots.begun();
        for slot in slots.all() {
            figures.keys.count(slot.status(now));
            figures.in_flight += slot.in_flight();
            figures.waiting += slot.waiting();
            match slot.live().map(|live| &live.target().launch) {
                Some(Launch::Stdio { .. }) => figures.connections.stdio += 1,
                Some(Launch::Http { .. }) => figures.connections.http += 1,
                None => {}
            }
        }
        figures
    }

    fn departures_by_reason(&self) -> BTreeMap<&'static str, u64> {
        let reasons = Reason::ALL.iter();
        reasons
            .map(|&reason| (reason.as_str(), self.departures.of(reason)))
            .collect()
    }
}

impl States {
    fn count(&mut self, status: SlotStatus) {
        *match status {
            SlotStatus::Idle => &mut self.idle,
            SlotStatus::Connecting => &mut self.connecting,
            SlotStatus::Connected => &mut self.connected,
            SlotStatus::Cooling => &mut self.cooling,
        } += 1;
    }
}
