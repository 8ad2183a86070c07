//! `list_servers`: every definition, and where its connection stands for the caller.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Context;
use super::desk::Actions;
use super::seams::{CallTools, Snapshots};
use super::view::View;
use crate::mcp::Connect;
use crate::model::caller::Caller;
use crate::model::definition::Isolation;
use crate::model::error::{ErrorCode, Failure};
use crate::model::json::Rope;
use crate::model::resolve::{ServerEntry, Target};
use crate::model::secret::CredentialSource;
use crate::pool::SlotStatus;

/// Where a server stands for a caller.
struct Standing<S> {
    status: &'static str,
    session: Option<Arc<S>>,
    tools_count: usize,
    last_error: Option<String>,
}

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    pub(super) async fn list_servers(&self, context: &Context) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let servers: Vec<Value> = view
            .snapshot
            .servers
            .iter()
            .map(|entry| self.describe(&view, entry, &context.caller))
            .collect();
        Ok(Rope::from(&json!({ "servers": servers })))
    }

    fn describe(&self, view: &View, entry: &ServerEntry, caller: &Caller) -> Value {
        let definition = &entry.definition;
        let target = view.target(entry, caller);
        let source = match &target {
            Ok(target) => target.credential_source,
            Err(_) => source_at_hand(entry, caller),
        };
        let standing = self.standing(entry, target, caller);
        let mut server = definition.extra.clone();
        let described = json!({
            "id": definition.id.as_str(),
            "name": &*definition.name,
            "display_name": definition.display_name,
            "description": definition.description,
            "transport_type": definition.transport_type,
            "is_public": definition.is_public,
            "requires_credentials": definition.requires_credentials,
            "is_enabled": definition.is_enabled,
            "connected": standing.session.is_some(),
            "status": standing.status,
            "tools_count": standing.tools_count,
            "has_credential": source.is_some(),
            "credential_source": source.map(CredentialSource::as_str),
            "credential_fields": definition.credential_fields,
        });
        let Value::Object(mut described) = described else {
            return Value::Null;
        };
        self.add_last_error(&mut described, standing.last_error);
        if let Some(session) = standing.session {
            let identity = session.identity();
            described.insert(
                "protocol_version".to_owned(),
                json!(identity.protocol_version),
            );
            described.insert("server_info".to_owned(), identity.server_info.clone());
            if session.noise() > 0 {
                described.insert("noise_lines".to_owned(), json!(session.noise()));
            }
        }
        server.retain(|name, _| !described.contains_key(name));
        described.append(&mut server);
        described.into()
    }

    fn add_last_error(&self, described: &mut Map<String, Value>, error: Option<String>) {
        if let Some(error) = error {
            let scrubbed = self.redactor.scrub(&error);
            described.insert("last_error".to_owned(), json!(scrubbed));
        }
    }

    fn standing(
        &self,
        entry: &ServerEntry,
        target: Result<Arc<Target>, Failure>,
        caller: &Caller,
    ) -> Standing<C::Session> {
        let mut standing = match target {
            Ok(target) => self.standing_of(&target),
            Err(failure) => Standing {
                status: status_of(&failure),
                session: None,
                tools_count: 0,
                last_error: Some(failure.message),
            },
        };
        if !entry.definition.is_enabled {
            standing.status = "disabled";
        } else if standing.session.is_none() {
            self.join_conversations(entry, caller, &mut standing);
        }
        standing
    }

    fn standing_of(&self, target: &Target) -> Standing<C::Session> {
        let slot = self.pool.view(&target.key);
        let catalog = self.catalogs.get(&target.key);
        Standing {
            status: match slot.status {
                SlotStatus::Idle => "idle",
                SlotStatus::Connecting => "connecting",
                SlotStatus::Connected => "connected",
                SlotStatus::Cooling => "cooling",
            },
            session: slot.session,
            tools_count: catalog.map_or(0, |catalog| catalog.tools.len()),
            last_error: slot.last_failure.map(|failure| failure.message),
        }
    }

    /// Without a session id, a server isolated by conversation is connected if any of the user's is.
    fn join_conversations(
        &self,
        entry: &ServerEntry,
        caller: &Caller,
        standing: &mut Standing<C::Session>,
    ) {
        let by_session = entry.definition.isolation == Some(Isolation::Session);
        if !by_session || caller.session.is_some() {
            return;
        }
        let server = &entry.definition.id;
        let own = self.pool.connected(|key| {
            key.server == *server
                && key
                    .scope
                    .user()
                    .is_some_and(|user| Some(user) == caller.user.as_ref())
        });
        if let Some((target, _)) = own.first() {
            *standing = self.standing_of(target);
        }
    }
}

fn status_of(failure: &Failure) -> &'static str {
    match failure.code {
        ErrorCode::CredentialsRequired
        | ErrorCode::CredentialFieldMissing
        | ErrorCode::CredentialInvalid => "credentials_required",
        ErrorCode::ConfigInvalid | ErrorCode::Unsupported => "config_invalid",
        _ => "idle",
    }
}

/// Whose credentials would be used, for a server that they cannot start.
fn source_at_hand(entry: &ServerEntry, caller: &Caller) -> Option<CredentialSource> {
    if caller.user.is_some() && entry.user_credentials.is_some() {
        Some(CredentialSource::User)
    } else {
        entry
            .default_credentials
            .as_ref()
            .map(|_| CredentialSource::Default)
    }
}
