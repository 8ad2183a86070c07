//! What the actions need of the floors below, as traits, so that their tests need no store and no server.

use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use crate::directory::{Directory, Held, Snapshot, ToolsOf};
use crate::mcp::{Ask, Connected, ListKind, Listed, ServerIdentity, Session, ToolCall};
use crate::model::caller::{Caller, ServerId};
use crate::model::deadline::Deadline;
use crate::model::error::Failure;
use crate::model::event::EventSink;
use crate::model::json::RawJson;
use crate::model::secret::Credentials;

/// Where snapshots come from.
pub trait Snapshots: Clone + Send + Sync + 'static {
    /// What is in force for this caller, at some moment after `since`.
    fn snapshot(
        &self,
        caller: &Caller,
        since: Instant,
    ) -> impl Future<Output = Result<Arc<Snapshot>, Failure>> + Send;

    /// Which credentials there are for the caller.
    fn credentials(
        &self,
        caller: &Caller,
    ) -> impl Future<Output = Result<Vec<Held>, Failure>> + Send;

    /// Sets the caller's own credentials for a server; every later snapshot has them.
    fn set_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Deletes the caller's own credentials for a server; `false`: there were none.
    fn delete_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Tools that are kept across restarts; `None` where there are none.
    fn kept_tools(
        &self,
        caller: &Caller,
        of: &ToolsOf,
    ) -> impl Future<Output = Option<Vec<RawJson>>> + Send;

    /// Keeps tools, as far as that can be done.
    fn keep_tools(
        &self,
        caller: &Caller,
        of: &ToolsOf,
        tools: &[RawJson],
    ) -> impl Future<Output = ()> + Send;
}

impl Snapshots for Directory {
    async fn snapshot(&self, caller: &Caller, since: Instant) -> Result<Arc<Snapshot>, Failure> {
        self.snapshot_since(caller, since).await
    }

    async fn credentials(&self, caller: &Caller) -> Result<Vec<Held>, Failure> {
        Directory::credentials(self, caller).await
    }

    async fn set_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        Directory::set_credentials(self, caller, server, credentials).await
    }

    async fn delete_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
    ) -> Result<bool, Failure> {
        Directory::delete_credentials(self, caller, server).await
    }

    async fn kept_tools(&self, caller: &Caller, of: &ToolsOf) -> Option<Vec<RawJson>> {
        Directory::kept_tools(self, caller, of).await
    }

    async fn keep_tools(&self, caller: &Caller, of: &ToolsOf, tools: &[RawJson]) {
        Directory::keep_tools(self, caller, of, tools).await;
    }
}

/// A session on which tools can be called.
pub trait CallTools: Connected {
    fn identity(&self) -> &ServerIdentity;

    /// Lines on the server's stdout that were no messages.
    fn noise(&self) -> u64;

    /// The `CallToolResult` exactly as the server sent it. Dropping the future cancels the call.
    fn call_tool(&self, call: ToolCall) -> impl Future<Output = Result<RawJson, Failure>> + Send;

    /// A whole list, raw; `unsupported` (details: `capability`) where the server has none.
    fn list(
        &self,
        kind: ListKind,
        deadline: Instant,
    ) -> impl Future<Output = Result<Listed, Failure>> + Send;

    /// The result exactly as the server sent it; `unsupported` as for a list.
    fn ask(
        &self,
        ask: Ask,
        deadline: Deadline,
        events: Option<EventSink>,
    ) -> impl Future<Output = Result<RawJson, Failure>> + Send;
}

impl CallTools for Session {
    async fn list(&self, kind: ListKind, deadline: Instant) -> Result<Listed, Failure> {
        Session::list(self, kind, deadline).await
    }

    async fn ask(
        &self,
        ask: Ask,
        deadline: Deadline,
        events: Option<EventSink>,
    ) -> Result<RawJson, Failure> {
        Session::ask(self, ask, deadline, events).await
    }

    fn identity(&self) -> &ServerIdentity {
        Session::identity(self)
    }

    fn noise(&self) -> u64 {
        Session::noise(self)
    }

    async fn call_tool(&self, call: ToolCall) -> Result<RawJson, Failure> {
        Session::call_tool(self, call).await
    }
}
