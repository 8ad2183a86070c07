//! How far one command has come, and with whom: what the line that closes it in the log tells. It
//! outlives the command's work, which may be stopped at any moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Action, Servers, ToolRef};
use crate::model::error::Phase;

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
    pub server: Option<Arc<str>>,
    pub tool: Option<Arc<str>>,
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

    pub(super) fn found(&self, server: &Arc<str>, tool: &Arc<str>) {
        let mut subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner);
        *subject = Subject::new(Some(server), Some(tool));
    }

    pub(super) fn tool_failed(&self) {
        self.tool_error.store(true, Ordering::Relaxed);
    }
}

impl Subject {
    fn new(server: Option<&Arc<str>>, tool: Option<&Arc<str>>) -> Self {
        Self {
            server: server.cloned(),
            tool: tool.cloned(),
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
            Action::Credentials(action) => Self::new(action.server_name(), None),
            Action::ListTools { .. }
            | Action::ListServers
            | Action::RefreshTools { server_name: None }
            | Action::Init
            | Action::Shutdown { .. }
            | Action::List { .. }
            | Action::Ask { .. } => Self::default(),
        }
    }
}
