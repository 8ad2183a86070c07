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
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;
