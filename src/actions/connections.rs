//! `connect_server`, `disconnect_server`, `init` and `shutdown`.

use futures::future::join_all;
use serde_json::{Value, json};

use super::Context;
use super::desk::{Actions, Party, Ready};
use super::seams::{CallTools, Snapshots};
use super::tools::enabled;
use super::view::View;
use crate::mcp::Connect;
use crate::model::caller::Caller;
use crate::model::definition::{Definition, Isolation};
use crate::model::error::{ErrorCode, Failure};
use crate::model::json::Rope;
use crate::model::resolve::{PoolKey, Scope};

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    pub(super) async fn connect_server(
        &self,
        name: &str,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let party = Party {
            entry: view.enabled(name)?,
            caller: &context.caller,
            deadline: context.deadline,
            trail: &context.trail,
        };
        let ready = self.connect(&view, &party).await?;
        let tools_count = match self.catalog(&party, &ready.target).await {
            Ok(catalog) => catalog.tools.len(),
            // A server without tools may not know how to list them.
            Err(failure) if failure.code == ErrorCode::ServerError => 0,
            Err(failure) => return Err(failure),
        };
        let identity = ready.session.identity();
        let answer = json!({
            "message": format!("connected to {}", party.name()),
            "server_name": party.name(),
            "protocol_version": identity.protocol_version,
            "server_info": identity.server_info,
            "capabilities": identity.capabilities,
            "tools_count": tools_count,
        });
        Ok(Rope::from(&answer))
    }

    /// Connects at once, a cooling server too.
    async fn connect(&self, view: &View, party: &Party<'_>) -> Result<Ready<C::Session>, Failure> {
        let target = self.target(view, party)?;
        self.pool.forget_failure(&target.key);
        self.acquire(party, &target).await
    }

    pub(super) async fn disconnect_server(
        &self,
        name: &str,
        force: bool,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let definition = &view.find(name)?.definition;
        let drain = self
            .pool
            .take(|key| is_own(key, definition, &context.caller));
        context.now_in_force();
        let closed = drain.len();
        drain.finish(self.grace(force)).await;
        let answer = json!({
            "message": format!("{} of {} closed", connections(closed), definition.name),
            "server_name": &*definition.name,
            "closed": closed,
        });
        Ok(Rope::from(&answer))
    }

    pub(super) async fn init(&self, context: &Context) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let public = enabled(&view)
            .into_iter()
            .filter(|entry| entry.definition.is_public);
        let connecting = public.map(|entry| {
            let party = Party {
                entry,
                caller: &context.caller,
                deadline: context.deadline,
                trail: &context.trail,
            };
            self.connect_public(&view, party, context)
        });
        let servers = join_all(connecting).await;
        let connected = servers
            .iter()
            .filter(|server| server["status"] == "connected")
            .count();
        let answer = json!({
            "message": format!("{connected} of {} public servers connected", servers.len()),
            "public_servers": servers,
        });
        Ok(Rope::from(&answer))
    }

    async fn connect_public(&self, view: &View, party: Party<'_>, context: &Context) -> Value {
        match self.connect(view, &party).await {
            Ok(_) => json!({"server": party.name(), "status": "connected"}),
            Err(failure) => {
                let failure = self.outward(failure, context);
                json!({
                    "server": party.name(),
                    "status": "failed",
                    "error": failure.message,
                    "error_code": failure.code,
                })
            }
        }
    }

    pub(super) async fn shutdown(&self, force: bool, context: &Context) -> Result<Rope, Failure> {
        let drain = self.pool.take(|_| true);
        context.now_in_force();
        let closed = drain.len();
        drain.finish(self.grace(force)).await;
        let answer = json!({
            "message": format!("{} closed", connections(closed)),
            "closed": closed,
        });
        Ok(Rope::from(&answer))
    }
}

/// Whether the connection is the caller's to close: a user's own, one conversation's where the
/// server is isolated by it, the shared one only for a command without a user.
fn is_own(key: &PoolKey, definition: &Definition, caller: &Caller) -> bool {
    if key.server != definition.id {
        return false;
    }
    let by_session = definition.isolation == Some(Isolation::Session);
    let asked = caller.session.as_ref().filter(|_| by_session);
    let caller = caller.user.as_ref();
    match &key.scope {
        Scope::Shared => caller.is_none(),
        Scope::User(user) => Some(user) == caller && asked.is_none(),
        Scope::Session(user, session) => {
            Some(user) == caller && asked.is_none_or(|asked| asked == session)
        }
    }
}

fn connections(count: usize) -> String {
    match count {
        0 => "no connection".to_owned(),
        1 => "1 connection".to_owned(),
        many => format!("{many} connections"),
    }
}
