//! How far one command has come, and with whom: what the line that closes it in the log tells. It
//! outlives the command's work, which may be stopped at any moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Action, Servers, ToolRef};
use crate::model::error::Phase;

/// Characters of a name that are kept: names come from hosts and servers, and end in a log.
const MAX_NAME: usize = 128;

#[derive(Debug, Default)]
pub struct Trail {
    subject: Mutex<Subject>,
    /// The furthest phase, counted from 1.
    reached: AtomicUsize,
    tool_error: AtomicBool,
}

/// The one server and tool that a command is about, if it is about one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    pub server: Option<String>,
    pub tool: Option<String>,
}

impl Trail {
    /// The trail of a command that has not begun: its subject as the host named it.
    pub fn of(action: &Action) -> Self {
        Self {
            subject: Mutex::new(Subject::of(action)),
            ..Self::default()
        }
    }

    /// The command has come at least this far.
    pub fn reach(&self, phase: Phase) {
        self.reached
            .fetch_max(phase as usize + 1, Ordering::Relaxed);
    }

    pub fn reached(&self) -> Option<Phase> {
        let index = self.reached.load(Ordering::Relaxed).checked_sub(1)?;
        Phase::ALL.get(index).copied()
    }

    pub fn subject(&self) -> Subject {
        let subject = self.subject.lock();
        subject.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the command's success holds the tool's own error.
    pub fn is_tool_error(&self) -> bool {
        self.tool_error.load(Ordering::Relaxed)
    }

    pub(super) fn found(&self, server: &str, tool: &str) {
        let mut subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner);
        *subject = Subject::new(Some(server), Some(tool));
    }

    pub(super) fn tool_failed(&self) {
        self.tool_error.store(true, Ordering::Relaxed);
    }
}

impl Subject {
    fn new(server: Option<&str>, tool: Option<&str>) -> Self {
        let cut = |name: &str| name.chars().take(MAX_NAME).collect();
        Self {
            server: server.map(cut),
            tool: tool.map(cut),
        }
    }

    fn of(action: &Action) -> Self {
        match action {
            Action::CallTool(call) => match &call.tool {
                ToolRef::Of { server, tool } => Self::new(Some(server), Some(tool)),
                ToolRef::Injected(name) => Self::new(None, Some(name)),
            },
            Action::ListTools {
                servers: Servers::One(name),
                ..
            }
            | Action::ConnectServer { server_name: name }
            | Action::DisconnectServer {
                server_name: name, ..
            }
            | Action::RefreshTools {
                server_name: Some(name),
            } => Self::new(Some(name), None),
            Action::ListTools { .. }
            | Action::ListServers
            | Action::RefreshTools { server_name: None }
            | Action::Init
            | Action::Shutdown { .. } => Self::default(),
        }
    }
}
