//! Resources, resource templates, prompts and completion: asked of the server each time, nothing is cached.

use bytes::Bytes;
use futures::future::join_all;
use serde_json::json;

use super::desk::{Actions, Party};
use super::params::{Params, invalid};
use super::seams::{CallTools, Snapshots};
use super::tools::Gathered;
use super::view::View;
use super::{Context, Servers};
use crate::mcp::{Ask, Connect, ListKind, Listed};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::json::{RawJson, Rope};

pub(super) const NAMES: [&str; 6] = [
    "list_resources",
    "list_resource_templates",
    "list_prompts",
    "read_resource",
    "get_prompt",
    "complete",
];

/// The kind of list that an action names.
pub(super) fn kind_of(action: &str) -> Option<ListKind> {
    match action {
        "list_resources" => Some(ListKind::Resources),
        "list_resource_templates" => Some(ListKind::ResourceTemplates),
        "list_prompts" => Some(ListKind::Prompts),
        _ => None,
    }
}

/// The question that an action names.
pub(super) fn read_ask(action: &str, params: &Params) -> Result<Option<Ask>, Failure> {
    Ok(Some(match action {
        "read_resource" => Ask::ReadResource {
            uri: params.required_text("uri")?,
        },
        "get_prompt" => Ask::GetPrompt {
            name: params.required_text("name")?,
            arguments: params.object("arguments")?,
        },
        "complete" => Ask::Complete {
            reference: required(params, "ref")?,
            argument: required(params, "argument")?,
            context: match params.has("context") {
                true => Some(params.object("context")?),
                false => None,
            },
        },
        _ => return Ok(None),
    }))
}

fn required(params: &Params, name: &str) -> Result<RawJson, Failure> {
    match params.has(name) {
        true => params.object(name),
        false => Err(invalid(format!(
            "`{name}` is missing: an object is expected"
        ))),
    }
}

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    /// By server, or over all. Of all servers, those that have no such list are no failure.
    pub(super) async fn list(
        &self,
        kind: ListKind,
        servers: Servers,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let mut gathered = Gathered::default();
        let alone = matches!(servers, Servers::One(_));
        let all = matches!(servers, Servers::All);
        let entries = self.chosen(&view, servers, &mut gathered, context)?;
        let asked = entries.iter().map(|entry| {
            let party = Party {
                entry,
                caller: &context.caller,
                deadline: context.deadline,
                trail: &context.trail,
            };
            self.list_of(&view, party, kind)
        });
        for (entry, listed) in entries.iter().zip(join_all(asked).await) {
            let name = &entry.definition.name;
            match listed {
                Ok(listed) => add(&mut gathered, name, &listed, kind),
                Err(failure) if alone => return Err(failure),
                Err(failure) if all && lacks_capability(&failure) => {}
                Err(failure) => {
                    let error = self.render_failure(name, failure, context);
                    gathered.add_error(error);
                }
            }
        }
        Ok(gathered.into_rope("", member(kind)))
    }

    async fn list_of(
        &self,
        view: &View,
        party: Party<'_>,
        kind: ListKind,
    ) -> Result<Listed, Failure> {
        let target = self.target(view, &party)?;
        let ready = self.acquire(&party, &target).await?;
        party.trail.reach(Phase::List);
        let listed = ready.session.list(kind, party.deadline.at).await;
        listed.map_err(|failure| party.located(failure, Phase::List))
    }

    /// The server's result, untouched.
    pub(super) async fn ask_server(
        &self,
        server: &str,
        ask: Ask,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let party = Party {
            entry: view.enabled(server)?,
            caller: &context.caller,
            deadline: context.deadline,
            trail: &context.trail,
        };
        let target = self.target(&view, &party)?;
        let ready = self.acquire(&party, &target).await?;
        party.trail.reach(Phase::Call);
        let answered = ready
            .session
            .ask(ask, party.deadline, context.events.clone())
            .await;
        let result = answered.map_err(|failure| party.located(failure, Phase::Call))?;
        Ok(result.into())
    }
}

/// The answer's member of the items.
fn member(kind: ListKind) -> &'static str {
    match kind {
        ListKind::ResourceTemplates => "resource_templates",
        other => other.member(),
    }
}

fn lacks_capability(failure: &Failure) -> bool {
    failure.code == ErrorCode::Unsupported && failure.details.contains_key("capability")
}

/// Every item as sent, with the name of its server as its last member.
fn add(gathered: &mut Gathered, server: &str, listed: &Listed, kind: ListKind) {
    let mut odd = 0;
    for item in &listed.items {
        match signed(item, server) {
            Some(pieces) => gathered.add_item(pieces),
            None => odd += 1,
        }
    }
    for warning in &listed.warnings {
        gathered.add_warning(server, warning);
    }
    if odd > 0 {
        let noun = kind.noun();
        gathered.add_warning(
            server,
            &format!("{odd} of the {noun} are no objects; left out"),
        );
    }
}

fn signed(item: &RawJson, server: &str) -> Option<Vec<Bytes>> {
    let whole = item.bytes();
    let inside = std::str::from_utf8(whole)
        .ok()?
        .strip_prefix('{')?
        .strip_suffix('}')?;
    let comma = if inside.trim().is_empty() { "" } else { "," };
    let tail = format!("{comma}\"server_name\":{}}}", json!(server));
    Some(vec![whole.slice(..whole.len() - 1), tail.into()])
}
