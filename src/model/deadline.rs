//! The one deadline of a command, handed down the floors.

use std::time::Duration;

use tokio::time::Instant;

/// When a command must be answered.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    pub started: Instant,
    pub at: Instant,
    /// How a server's progress may move `at`; `None` for a deadline the host gave explicitly.
    pub extension: Option<Extension>,
}

/// Each progress notification moves the deadline to `by` from now, never past `until`.
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    pub by: Duration,
    pub until: Instant,
}

impl Deadline {
    pub fn after(timeout: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            at: started + timeout,
            extension: None,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}
