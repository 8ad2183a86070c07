//! Floor 3: the use cases. They know nothing of stdin, HTTP or SQL.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::model::caller::Caller;
use crate::model::deadline::Deadline;
use crate::model::error::Failure;
use crate::model::event::EventSink;
use crate::model::json::{RawJson, Rope};
use crate::model::settings::Settings;

/// A command's action, its params read and checked.
#[derive(Debug)]
pub enum Action {
    ListTools,
    CallTool,
    ListServers,
    ConnectServer,
    DisconnectServer,
    RefreshTools,
    Init,
    Shutdown,
}

impl Action {
    /// # Errors
    /// `unknown_action`, `invalid_params`.
    pub fn parse(name: &str, params: Option<&RawJson>) -> Result<Self, Failure> {
        let _ = (name, params);
        todo!()
    }

    /// Whether later commands of the same user wait until its change is in force.
    pub fn is_changing(&self) -> bool {
        todo!()
    }

    /// The deadline of this action where the host gave none, counted from now.
    pub fn deadline(&self, settings: &Settings, timeout: Option<Duration>) -> Deadline {
        let _ = (settings, timeout);
        todo!()
    }
}

/// What a running command is given besides its action.
pub struct Context {
    pub caller: Caller,
    pub deadline: Deadline,
    /// Where events go, for a command that may ask for them.
    pub events: EventSink,
    /// Called once the change is in force, by actions that are in force before their answer.
    pub in_force: Arc<dyn Fn() + Send + Sync>,
}

/// Performs actions. The daemon is generic over it, so that its tests need no server.
pub trait Perform: Send + Sync + 'static {
    fn perform(
        &self,
        action: Action,
        context: Context,
    ) -> impl Future<Output = Result<Rope, Failure>> + Send;

    /// For `ping`: live connections and catalogs held.
    fn census(&self) -> Census;

    /// Closes every connection, at the end of the process. `force`: without grace.
    fn close(&self, force: bool) -> impl Future<Output = ()> + Send;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Census {
    pub connections: usize,
    pub catalogs: usize,
}
