//! Lines a command asked for beside its answer.

use std::sync::Arc;

use super::json::RawJson;

/// Something that happened on the way to an answer.
#[derive(Clone, Debug)]
pub struct Event {
    /// `progress`.
    pub kind: &'static str,
    pub server_name: Arc<str>,
    /// What the server sent, untouched.
    pub params: RawJson,
}

/// Takes a command's events to the host. May drop them under pressure, never blocks.
pub trait TakeEvent: Send + Sync {
    fn take(&self, event: Event);
}

/// A sink shared by all that may have something to tell.
pub type EventSink = Arc<dyn TakeEvent>;

impl<F: Fn(Event) + Send + Sync> TakeEvent for F {
    fn take(&self, event: Event) {
        self(event);
    }
}
