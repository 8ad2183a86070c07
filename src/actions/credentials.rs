//! `credential_form`, `set_credentials`, `delete_credentials` and `list_credentials`: a user's own
//! credentials. Values come in and go to the config API; no answer holds one.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::time::timeout_at;

use super::Context;
use super::desk::Actions;
use super::params::{Params, invalid};
use super::seams::{CallTools, Snapshots};
use crate::mcp::Connect;
use crate::model::caller::Caller;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::form::{FieldFault, Form, Given};
use crate::model::json::Rope;
use crate::model::resolve::{ServerEntry, resolve};
use crate::model::secret::Credentials;

/// Their names, as in a command.
pub(super) const NAMES: [&str; 4] = [
    "credential_form",
    "set_credentials",
    "delete_credentials",
    "list_credentials",
];

/// One of the actions on credentials.
#[derive(Debug, PartialEq)]
pub enum CredentialAction {
    Form { server_name: Arc<str> },
    Set { server_name: Arc<str>, given: Given },
    Delete { server_name: Arc<str> },
    List,
}

impl CredentialAction {
    /// `None`: the name is another action's.
    pub(super) fn read(name: &str, params: &Params) -> Result<Option<Self>, Failure> {
        let server_name = || params.required_text("server_name");
        Ok(Some(match name {
            "credential_form" => Self::Form {
                server_name: server_name()?,
            },
            "set_credentials" => Self::Set {
                server_name: server_name()?,
                given: given(params)?,
            },
            "delete_credentials" => Self::Delete {
                server_name: server_name()?,
            },
            "list_credentials" => Self::List,
            _ => return Ok(None),
        }))
    }

    pub fn is_changing(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Delete { .. })
    }

    /// The server it is about.
    pub fn server_name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Form { server_name }
            | Self::Set { server_name, .. }
            | Self::Delete { server_name } => Some(server_name),
            Self::List => None,
        }
    }
}

fn given(params: &Params) -> Result<Given, Failure> {
    if !params.has("credentials") {
        let message = "`credentials` is missing: an object of fields and values is expected";
        return Err(invalid(message.to_owned()));
    }
    let fields: Map<String, Value> = params
        .object("credentials")?
        .read()
        .map_err(|_| invalid("`credentials` must be an object".to_owned()))?;
    Ok(Given::read(fields))
}

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    pub(super) async fn credentials(
        &self,
        action: CredentialAction,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let answer = match action {
            CredentialAction::Form { server_name } => {
                self.credential_form(&server_name, context).await
            }
            CredentialAction::List => self.list_credentials(context).await,
            CredentialAction::Set { server_name, given } => {
                // Also what is refused may be a secret.
                given.values().for_each(|value| self.redactor.learn(value));
                self.set_credentials(&server_name, &given, context).await
            }
            CredentialAction::Delete { server_name } => {
                self.delete_credentials(&server_name, context).await
            }
        };
        answer.map(|answer| Rope::from(&answer))
    }

    async fn credential_form(&self, name: &str, context: &Context) -> Result<Value, Failure> {
        let view = self.view(context).await?;
        let entry = view.find(name)?;
        let definition = &entry.definition;
        let own = context.caller.user.is_some() && entry.user_credentials.is_some();
        let default = entry.default_credentials.is_some();
        Ok(json!({
            "server_name": &*definition.name,
            "fields": Form::of(definition).0,
            "requires_credentials": definition.requires_credentials,
            "has_credential": own || default,
            "credential_source": match (own, default) {
                (true, _) => Some("user"),
                (false, true) => Some("default"),
                (false, false) => None,
            },
        }))
    }

    async fn set_credentials(
        &self,
        name: &str,
        given: &Given,
        context: &Context,
    ) -> Result<Value, Failure> {
        need_user(&context.caller)?;
        let view = self.view(context).await?;
        let entry = view.find(name)?;
        let server = &entry.definition;
        let credentials = Form::of(server).check(given);
        let credentials = credentials.map_err(|faults| unfit(&server.name, &faults))?;
        check_use(entry, &credentials, &context.caller)?;
        let set = self
            .directory
            .set_credentials(&context.caller, &server.id, &credentials);
        self.in_deadline(&server.name, context, set).await?;
        context.now_in_force();
        let names: Vec<_> = credentials.0.keys().collect();
        Ok(json!({
            "message": format!("credentials for {} are set", server.name),
            "server_name": &*server.name,
            "fields": names,
        }))
    }

    async fn delete_credentials(&self, name: &str, context: &Context) -> Result<Value, Failure> {
        need_user(&context.caller)?;
        let view = self.view(context).await?;
        let server = &view.find(name)?.definition;
        let delete = self
            .directory
            .delete_credentials(&context.caller, &server.id);
        let deleted = self.in_deadline(&server.name, context, delete).await?;
        context.now_in_force();
        let done = if deleted {
            "are deleted"
        } else {
            "there were none"
        };
        Ok(json!({
            "message": format!("credentials for {}: {done}", server.name),
            "server_name": &*server.name,
            "deleted": deleted,
        }))
    }

    async fn list_credentials(&self, context: &Context) -> Result<Value, Failure> {
        let view = self.view(context).await?;
        let listed = self.directory.credentials(&context.caller);
        let held = timeout_at(context.deadline.at, listed)
            .await
            .unwrap_or_else(|_| Err(too_late(context)))?;
        let servers = view.snapshot.servers.iter();
        let names: HashMap<_, _> = servers
            .map(|entry| (entry.definition.id.as_str(), &*entry.definition.name))
            .collect();
        let held = held.into_iter().filter_map(|held| {
            let name = names.get(held.mcp_server_id.as_str())?;
            Some(json!({
                "server_name": name,
                "server_id": held.mcp_server_id,
                "source": held.source,
                "is_enabled": held.is_enabled,
                "updated_at": held.updated_at,
            }))
        });
        Ok(json!({ "credentials": held.collect::<Vec<_>>() }))
    }

    async fn in_deadline<T>(
        &self,
        server: &str,
        context: &Context,
        change: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = timeout_at(context.deadline.at, change).await;
        done.unwrap_or_else(|_| Err(too_late(context)))
            .map_err(|failure| failure.server(server))
    }
}

fn need_user(caller: &Caller) -> Result<(), Failure> {
    match &caller.user {
        Some(_) => Ok(()),
        None => Err(invalid(
            "a command without a user.userId has no credentials of its own".to_owned(),
        )),
    }
}

/// What cannot be filled into the definition is said now, not at the first call.
fn check_use(
    entry: &ServerEntry,
    credentials: &Credentials,
    caller: &Caller,
) -> Result<(), Failure> {
    let trial = ServerEntry {
        definition: entry.definition.clone(),
        user_credentials: Some(credentials.clone()),
        default_credentials: None,
    };
    match resolve(&trial, caller) {
        Err(failure)
            if matches!(
                failure.code,
                ErrorCode::CredentialInvalid | ErrorCode::CredentialFieldMissing
            ) =>
        {
            Err(failure)
        }
        _ => Ok(()),
    }
}

fn unfit(server: &str, faults: &[FieldFault]) -> Failure {
    let reasons = faults.iter().map(|fault| match fault.field.as_str() {
        "" => fault.reason.clone(),
        field => format!("`{field}` {}", fault.reason),
    });
    let reasons: Vec<_> = reasons.collect();
    let message = format!(
        "credentials for `{server}` are refused: {}",
        reasons.join("; ")
    );
    Failure::new(ErrorCode::CredentialInvalid, message)
        .with("fields", json!(faults))
        .server(server)
        .phase(Phase::Credentials)
}

fn too_late(context: &Context) -> Failure {
    let message = "the config API did not answer within the command's deadline: look with \
                   list_credentials whether it has done its work";
    Failure::new(ErrorCode::ConfigUnavailable, message)
        .phase(Phase::Credentials)
        .elapsed(context.deadline.elapsed())
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
