//! How the process stands, in numbers: what `stats` answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::lines::Lines;
use super::tasks::Tasks;
use crate::actions::Perform;
use crate::model::error::ErrorCode;
use crate::os;

/// Everything that is counted, to be read from any task at any time. Every figure is read on its own
/// or under one short lock; nothing here waits.
pub struct Sight<P> {
    pub actions: Arc<P>,
    pub tasks: Arc<Tasks>,
    pub lines: Lines,
    /// Commands read and not begun.
    pub queued: AtomicUsize,
    pub started: Instant,
}

impl<P: Perform> Sight<P> {
    /// The result of `stats` (docs/line-protocol.md).
    pub fn figures(&self) -> Value {
        let below = self.actions.figures();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "rss_bytes": os::resident_bytes(),
            "commands": {
                "queued": self.queued.load(Ordering::Relaxed),
                "running": self.tasks.count(),
                "succeeded": self.tasks.succeeded(),
                "failed": self.failures(),
            },
            "answers_waiting_bytes": self.lines.waiting(),
            "pool": below.pool,
            "catalogs": below.catalogs,
        })
    }

    fn failures(&self) -> Map<String, Value> {
        let codes = ErrorCode::ALL.iter();
        codes
            .map(|&code| (code.to_string(), self.tasks.failed(code).into()))
            .collect()
    }
}
