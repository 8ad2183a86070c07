//! Events of one command on their way out: at most twenty lines a second, the newest wins, and what is
//! left out is counted. Nobody who has an event to tell ever waits.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::tasks::Ticket;
use crate::model::event::{Event, TakeEvent};

const APART: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Progress {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    newest: Option<Event>,
    dropped: u64,
}

impl Progress {
    /// Passes events on for as long as it is polled.
    pub async fn pass_on(&self, ticket: &Ticket) -> Infallible {
        loop {
            self.arrived.notified().await;
            self.flush(ticket);
            sleep(APART).await;
        }
    }

    /// Passes on what waits, at once: the last word before an answer.
    pub fn flush(&self, ticket: &Ticket) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = waiting.newest.take() {
            if ticket.tell(&event, waiting.dropped) {
                waiting.dropped = 0;
            } else {
                waiting.dropped += 1;
            }
        }
    }
}

impl TakeEvent for Progress {
    fn take(&self, event: Event) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.newest.replace(event).is_some() {
            waiting.dropped += 1;
        }
        drop(waiting);
        self.arrived.notify_one();
    }
}
