//! Floor 1: connects a resolved definition and speaks MCP on the connection. The home of rmcp.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::deadline::Deadline;
use crate::model::error::Failure;
use crate::model::event::EventSink;
use crate::model::json::RawJson;
use crate::model::redact::Redactor;
use crate::model::resolve::Target;
use crate::model::settings::Settings;

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

/// One `tools/call`.
pub struct ToolCall {
    /// The tool's original name.
    pub name: Arc<str>,
    /// A JSON object, passed on untouched.
    pub arguments: RawJson,
    pub deadline: Deadline,
    /// Where progress notifications go, if the host asked for them.
    pub events: Option<EventSink>,
}

/// What a server said of itself, raw.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    pub protocol_version: String,
    pub server_info: serde_json::Value,
    pub capabilities: serde_json::Value,
}

pub struct Connector {}

impl Connector {
    pub fn new(settings: &Settings, redactor: Redactor) -> Self {
        let _ = (settings, redactor);
        Self {}
    }
}

impl Connect for Connector {
    type Session = Session;

    async fn connect(&self, target: Arc<Target>) -> Result<Session, Failure> {
        let _ = target;
        todo!()
    }
}

pub struct Session {}

impl Session {
    pub fn identity(&self) -> &ServerIdentity {
        todo!()
    }

    /// Calls a tool and returns the `CallToolResult` exactly as the server sent it.
    /// Dropping the future tells the server that the call is cancelled.
    pub async fn call_tool(&self, call: ToolCall) -> Result<RawJson, Failure> {
        let _ = call;
        todo!()
    }
}

impl Connected for Session {
    async fn died(&self) -> Failure {
        todo!()
    }
    async fn close(&self) {
        todo!()
    }
    async fn list_tools(&self, _deadline: Instant) -> Result<ListedTools, Failure> {
        todo!()
    }
    fn id(&self) -> u64 {
        todo!()
    }
    fn tools_changed(&self) -> watch::Receiver<u64> {
        todo!()
    }
}
