//! Asks a legacy server for log messages (MCP 2025-11-25, "Logging"). A modern one is asked in each request.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::Session;
use crate::mcp::tap::{Own, Request, push_member};
use crate::model::deadline::Deadline;
use crate::model::error::Phase;
use crate::model::event::LogLevel;

/// How long a command waits for the server to take its level: its own work is more than its logs.
const PATIENCE: Duration = Duration::from_secs(2);

impl Session {
    /// Has the server log from this level on, unless it already does. What a call does not want of
    /// what others asked for is left out on the way to its host. A refusal is no failure.
    pub(super) async fn ask_for_logs(&self, level: LogLevel, deadline: Deadline) {
        if self.is_modern() || !self.declares("logging") || !self.lower_level(level) {
            return;
        }
        let mut members = Vec::new();
        push_member(&mut members, "level", level.as_str());
        let request = Request::Own(Box::new(Own {
            method: "logging/setLevel",
            members,
        }));
        let patience = Deadline {
            at: deadline.at.min(Instant::now() + PATIENCE),
            extension: None,
            ..deadline
        };
        if let Err(failure) = self.request(request, None, patience, Phase::Call).await {
            let server = &self.server_name;
            tracing::info!(%server, %failure, "the server takes no log level");
        }
    }

    /// Notes the level; whether the server must hear of it.
    fn lower_level(&self, level: LogLevel) -> bool {
        let session = self.tap.sessions();
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = logs.filter(|(told_in, told)| *told_in == session && *told <= level);
        if known.is_none() {
            *logs = Some((session, level));
        }
        known.is_none()
    }
}
