//! One key's state machine. It decides, at a given time; the pool acts on what it says.
//!
//! Idle → Connecting → Ready → out of the pool (see `drain.rs`), and back to Idle. A slot whose
//! last connects failed is cooling: Idle, with a pause in its [`Health`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::health::{Health, Verdict};
use super::lease::{Returned, Usage};
use super::room::Berth;
use super::{SlotStatus, SlotView};
use crate::model::error::{ErrorCode, Failure};
use crate::model::resolve::Target;

pub(super) struct Slot<S> {
    state: State<S>,
    pub(super) health: Health,
    /// When another fingerprint of the same server and scope took this one's place.
    pub(super) superseded: Option<Instant>,
}

enum State<S> {
    Idle,
    Connecting(Start<S>),
    Ready(Live<S>),
}

/// What has become of a start; the sender is dropped without a word when it was called off.
pub(super) type Outcome<S> = Option<Result<Arc<S>, Failure>>;

/// A connect under way.
pub(super) struct Start<S> {
    life: Life,
    since: Instant,
    pub(super) outcome: watch::Receiver<Outcome<S>>,
}

/// A connection and all that belongs to it.
pub(super) struct Live<S> {
    life: Life,
    since: Instant,
    pub(super) session: Arc<S>,
    /// Held until the connection is closed.
    pub(super) berth: Berth,
}

/// What a connection keeps from the beginning of its start to its end.
pub(super) struct Life {
    id: u64,
    target: Arc<Target>,
    pub(super) usage: Arc<Usage>,
    pub(super) returned: Returned,
    /// Dropped when the connection leaves the slot, which tells its task.
    _held: oneshot::Sender<Infallible>,
}

/// A connect to be made, handed to its task.
pub(super) struct Order<S> {
    pub(super) id: u64,
    pub(super) target: Arc<Target>,
    pub(super) outcome: watch::Sender<Outcome<S>>,
    /// Ends when the slot has let go of the connection.
    pub(super) held: oneshot::Receiver<Infallible>,
}

/// A caller's share in a start under way.
pub(super) struct Waiter<S> {
    pub(super) usage: Arc<Usage>,
    pub(super) since: Instant,
    pub(super) outcome: watch::Receiver<Outcome<S>>,
}

/// What a caller that asks for a session is to do.
pub(super) enum Step<S> {
    Use(Arc<S>, Arc<Usage>),
    Wait(Waiter<S>),
    /// As `Wait`, and carry out the order.
    Begin(Waiter<S>, Order<S>),
    AskAgain(Instant),
    Refuse(Failure),
}

/// What left the slot.
pub(super) enum Left<S> {
    Start(Start<S>),
    Live(Live<S>),
}

impl<S> Default for Slot<S> {
    fn default() -> Self {
        Self {
            state: State::Idle,
            health: Health::default(),
            superseded: None,
        }
    }
}

impl<S> Slot<S> {
    /// `last_id` counts the connections begun; `limit` is the number of calls at once on one.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        target: &Arc<Target>,
        last_id: &mut u64,
        limit: usize,
    ) -> Step<S> {
        match &self.state {
            State::Ready(live) => {
                Step::Use(Arc::clone(&live.session), Arc::clone(&live.life.usage))
            }
            State::Connecting(start) => Step::Wait(start.waiter()),
            State::Idle => match self.health.verdict(now, &target.server_name) {
                Verdict::Go => {
                    *last_id += 1;
                    self.begin(now, target, *last_id, limit)
                }
                Verdict::Wait(until) => Step::AskAgain(until),
                Verdict::Refuse(failure) => Step::Refuse(failure),
            },
        }
    }

    pub(super) fn ready(&self) -> Option<(Arc<S>, Arc<Usage>)> {
        match &self.state {
            State::Ready(live) => Some((Arc::clone(&live.session), Arc::clone(&live.life.usage))),
            State::Idle | State::Connecting(_) => None,
        }
    }

    fn begin(&mut self, now: Instant, target: &Arc<Target>, id: u64, limit: usize) -> Step<S> {
        let (usage, returned) = Usage::new(now, limit);
        let (outcome, receiver) = watch::channel(None);
        let (holder, held) = oneshot::channel();
        let start = Start {
            life: Life {
                id,
                target: Arc::clone(target),
                usage,
                returned,
                _held: holder,
            },
            since: now,
            outcome: receiver,
        };
        let waiter = start.waiter();
        self.state = State::Connecting(start);
        let order = Order {
            id,
            target: Arc::clone(target),
            outcome,
            held,
        };
        Step::Begin(waiter, order)
    }

    /// The start `id` has succeeded. `Err` gives the berth back: it was called off meanwhile.
    pub(super) fn connected(
        &mut self,
        id: u64,
        now: Instant,
        session: Arc<S>,
        berth: Berth,
    ) -> Result<(), Berth> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Connecting(start) if start.life.id == id => {
                self.health.connected();
                start.life.usage.touch(now);
                self.state = State::Ready(Live {
                    life: start.life,
                    since: now,
                    session,
                    berth,
                });
                Ok(())
            }
            other => {
                self.state = other;
                Err(berth)
            }
        }
    }

    /// The start `id` has failed. A lack of room is no fault of the server.
    pub(super) fn failed(&mut self, id: u64, now: Instant, failure: &Failure, fraction: f64) {
        if matches!(&self.state, State::Connecting(start) if start.life.id == id) {
            self.state = State::Idle;
            if failure.code != ErrorCode::Overloaded {
                self.health.failed(now, failure.clone(), fraction);
            }
        }
    }

    /// The session of connection `id` has died: it leaves the slot, unless it has left already.
    pub(super) fn died(
        &mut self,
        id: u64,
        now: Instant,
        failure: &Failure,
        fraction: f64,
    ) -> Option<Live<S>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Ready(live) if live.life.id == id => {
                let age = now.saturating_duration_since(live.since);
                self.health.died(now, age, failure.clone(), fraction);
                Some(live)
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes the ready connection out, if `which` accepts it.
    pub(super) fn take_live(
        &mut self,
        now: Instant,
        which: impl FnOnce(&Live<S>) -> bool,
    ) -> Option<Live<S>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Ready(live) if which(&live) => {
                self.health.lived(now.saturating_duration_since(live.since));
                Some(live)
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes out whatever there is.
    pub(super) fn take(self) -> Option<Left<S>> {
        match self.state {
            State::Idle => None,
            State::Connecting(start) => Some(Left::Start(start)),
            State::Ready(live) => Some(Left::Live(live)),
        }
    }

    pub(super) fn live(&self) -> Option<&Live<S>> {
        match &self.state {
            State::Ready(live) => Some(live),
            _ => None,
        }
    }

    pub(super) fn was_superseded_before(&self, now: Instant, span: Duration) -> bool {
        self.superseded.is_some_and(|at| at + span <= now)
    }

    /// Whether nothing is lost when this is dropped, `late` being how long it matters that it was
    /// superseded.
    pub(super) fn is_forgettable(&self, now: Instant, late: Duration) -> bool {
        let superseded = self.superseded.is_some() && !self.was_superseded_before(now, late);
        self.is_idle() && !superseded && self.health.is_forgettable(now)
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(super) fn status(&self, now: Instant) -> SlotStatus {
        match &self.state {
            State::Ready(_) => SlotStatus::Connected,
            State::Connecting(_) => SlotStatus::Connecting,
            State::Idle if self.health.is_cooling(now) => SlotStatus::Cooling,
            State::Idle => SlotStatus::Idle,
        }
    }

    /// Calls that hold a place on the connection.
    pub(super) fn in_flight(&self) -> usize {
        self.live().map_or(0, |live| live.life.usage.in_flight())
    }

    /// Callers that wait for the start, or for a place on the connection.
    pub(super) fn waiting(&self) -> usize {
        match &self.state {
            State::Idle => 0,
            State::Connecting(start) => start.life.users(),
            State::Ready(live) => live.life.users().saturating_sub(self.in_flight()),
        }
    }

    pub(super) fn view(&self, now: Instant) -> SlotView<S> {
        SlotView {
            status: self.status(now),
            session: self.live().map(|live| Arc::clone(&live.session)),
            last_failure: self.health.last().cloned(),
        }
    }
}

impl<S> Start<S> {
    fn waiter(&self) -> Waiter<S> {
        Waiter {
            usage: Arc::clone(&self.life.usage),
            since: self.since,
            outcome: self.outcome.clone(),
        }
    }
}

impl Life {
    /// Everybody who uses the connection or waits for it; the slot holds one reference itself.
    fn users(&self) -> usize {
        Arc::strong_count(&self.usage) - 1
    }
}

impl<S> Live<S> {
    pub(super) fn target(&self) -> &Arc<Target> {
        &self.life.target
    }

    pub(super) fn usage(&self) -> &Usage {
        &self.life.usage
    }

    /// Whether nobody has a call on it or waits for one.
    pub(super) fn is_unused(&self) -> bool {
        self.life.users() == 0
    }

    pub(super) fn unused_since(&self) -> Option<Instant> {
        self.is_unused().then(|| self.life.usage.last_used())
    }

    pub(super) fn into_parts(self) -> (Life, Arc<S>, Berth) {
        (self.life, self.session, self.berth)
    }
}
