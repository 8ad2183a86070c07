//! Floor 1: connects a resolved definition and speaks MCP on the connection. The home of rmcp.

mod ask;
mod connector;
mod family;
#[cfg(test)]
mod fuzz;
mod http;
mod lines;
mod noise;
mod process;
mod session;
mod shim;
mod sse;
mod stdio;
mod tap;
mod wire;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::deadline::Deadline;
use crate::model::error::Failure;
use crate::model::event::EventSink;
use crate::model::json::RawJson;
use crate::model::resolve::Target;
use crate::model::trace::Trace;

pub use ask::{Ask, ListKind};
pub use connector::Connector;
pub use session::Session;
pub use shim::{SHIM, become_server, find as find_program};

/// Opens connections. The pool is generic over it, so that its tests need no process.
pub trait Connect: Send + Sync + 'static {
    type Session: Connected;

    /// Starts or reaches the server and negotiates the protocol, within the start deadlines of the
    /// settings. Whoever drops the future leaves no process behind.
    fn connect(
        &self,
        target: Arc<Target>,
    ) -> impl Future<Output = Result<Self::Session, Failure>> + Send;
}

/// What the pool and the catalog need of a session. Shared by all calls on it.
pub trait Connected: Send + Sync + 'static {
    /// Ends when the connection has died, with what is known of it (`server_crashed`,
    /// `session_lost`, ...). Never ends while the connection lives.
    fn died(&self) -> impl Future<Output = Failure> + Send;

    /// Whether [`Connected::died`] would end at once.
    fn is_dead(&self) -> bool;

    /// Ends the connection and everything that was started for it; returns when nothing is left.
    /// Calls still running fail with `cancelled`.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Distinguishes this connection from every other of the process.
    fn id(&self) -> u64;

    /// All tools, page by page, raw.
    fn list_tools(
        &self,
        deadline: Instant,
    ) -> impl Future<Output = Result<ListedTools, Failure>> + Send;

    /// Counts the server's `tools/list_changed` notifications.
    fn tools_changed(&self) -> watch::Receiver<u64>;
}

/// The outcome of a whole `tools/list` walk.
#[derive(Clone, Debug, Default)]
pub struct ListedTools {
    /// The `Tool` objects exactly as the server sent them, in order.
    pub tools: Vec<RawJson>,
    /// What was left out of the walk, for the operator (a repeated cursor, a page that is too much).
    pub warnings: Vec<String>,
}

/// The outcome of a whole walk of any list.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The objects exactly as the server sent them, in order.
    pub items: Vec<RawJson>,
    /// As [`ListedTools::warnings`].
    pub warnings: Vec<String>,
}

/// One `tools/call`.
pub struct ToolCall {
    /// The tool's original name.
    pub name: Arc<str>,
    /// A JSON object, passed on untouched.
    pub arguments: RawJson,
    pub deadline: Deadline,
    /// The trace that the host says the call belongs to.
    pub trace: Trace,
    /// Where what happens on the way to the answer goes, if the host asked for events.
    pub events: Option<EventSink>,
}

/// What a server said of itself, raw.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    pub protocol_version: String,
    pub server_info: serde_json::Value,
    pub capabilities: serde_json::Value,
}
