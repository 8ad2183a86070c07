//! `list_tools` and `refresh_tools`.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::desk::{Actions, Party};
use super::listing::Shown;
use super::revision::Difference;
use super::seams::{CallTools, Snapshots};
use super::view::View;
use super::{Context, Servers};
use crate::catalog::Catalog;
use crate::mcp::Connect;
use crate::model::caller::Caller;
use crate::model::error::Failure;
use crate::model::json::Rope;
use crate::model::resolve::{PoolKey, Scope, ServerEntry};

/// What a walk over several servers gathers.
#[derive(Default)]
pub(super) struct Gathered {
    items: Rope,
    errors: Vec<Value>,
    warnings: Vec<Value>,
}

impl Gathered {
    fn add_tools(&mut self, entries: Bytes) {
        if entries.is_empty() {
            return;
        }
        if !self.items.is_empty() {
            self.items.push(&b","[..]);
        }
        self.items.push(entries);
    }

    /// One item, in pieces.
    pub(super) fn add_item(&mut self, pieces: Vec<Bytes>) {
        if !self.items.is_empty() {
            self.items.push(&b","[..]);
        }
        pieces.into_iter().for_each(|piece| self.items.push(piece));
    }

    pub(super) fn add_error(&mut self, error: Value) {
        self.errors.push(error);
    }

    pub(super) fn add_warning(&mut self, server: &str, warning: &str) {
        let named = json!({"server_name": server, "warning": warning});
        self.warnings.push(named);
    }

    fn add_warnings(&mut self, server: &str, catalog: &Catalog) {
        let named = |warning| json!({"server_name": server, "warning": warning});
        self.warnings.extend(catalog.warnings.iter().map(named));
    }

    pub(super) fn into_rope(mut self, head: &str, member: &str) -> Rope {
        let mut answer = Rope::default();
        answer.push(format!("{{{head}\"{member}\":["));
        answer.append(std::mem::take(&mut self.items));
        answer.push(&b"]"[..]);
        self.end(answer)
    }

    /// What every list ends with.
    fn end(self, mut answer: Rope) -> Rope {
        answer.push(format!(",\"errors\":{}", Value::from(self.errors)));
        if !self.warnings.is_empty() {
            answer.push(format!(",\"warnings\":{}", Value::from(self.warnings)));
        }
        answer.push(&b"}"[..]);
        answer
    }
}

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    pub(super) async fn list_tools(
        &self,
        servers: Servers,
        refresh: bool,
        context: &Context,
    ) -> Result<Gathered, Failure> {
        let view = self.view(context).await?;
        let mut gathered = Gathered::default();
        let alone = matches!(servers, Servers::One(_));
        let entries = self.chosen(&view, servers, &mut gathered, context)?;
        let asked = entries.iter().map(|entry| {
            let party = Party {
                entry,
                caller: &context.caller,
                deadline: context.deadline,
                trail: &context.trail,
            };
            self.list_server(&view, party, refresh)
        });
        for (entry, listed) in entries.iter().zip(join_all(asked).await) {
            match listed {
                Ok((tools, catalog)) => {
                    gathered.add_tools(tools);
                    gathered.add_warnings(&entry.definition.name, &catalog);
                }
                Err(failure) if alone => return Err(failure),
                Err(failure) => {
                    let error = self.render_failure(&entry.definition.name, failure, context);
                    gathered.errors.push(error);
                }
            }
        }
        Ok(gathered)
    }

    /// The whole list, or what differs from the one that the host has.
    pub(super) fn answer_list(
        &self,
        listed: Gathered,
        known: Option<&str>,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let Some(known) = known else {
            return Ok(listed.into_rope("", "tools"));
        };
        let user = context.caller.user.as_ref();
        let (revision, difference) = self.revisions.compare(user, &listed.items, known)?;
        let head = format!("\"revision\":{},", json!(revision));
        Ok(match difference {
            Difference::Unknown => listed.into_rope(&head, "tools"),
            Difference::Unchanged => {
                let mut answer = Rope::default();
                answer.push(format!("{{{head}\"unchanged\":true"));
                listed.end(answer)
            }
            Difference::Changed {
                added,
                changed,
                removed,
            } => {
                let mut answer = Rope::default();
                answer.push(format!("{{{head}\"unchanged\":false,\"added\":["));
                answer.append(added);
                answer.push(&b"],\"changed\":["[..]);
                answer.append(changed);
                answer.push(format!("],\"removed\":{}", json!(removed)));
                listed.end(answer)
            }
        })
    }

    /// The servers that a list asks.
    pub(super) fn chosen<'a>(
        &self,
        view: &'a View,
        servers: Servers,
        gathered: &mut Gathered,
        context: &Context,
    ) -> Result<Vec<&'a Arc<ServerEntry>>, Failure> {
        Ok(match servers {
            Servers::All => enabled(view),
            Servers::One(name) => vec![view.enabled(&name)?],
            Servers::Some(names) => self.named(view, &names, gathered, context),
        })
    }

    fn named<'a>(
        &self,
        view: &'a View,
        names: &[Arc<str>],
        gathered: &mut Gathered,
        context: &Context,
    ) -> Vec<&'a Arc<ServerEntry>> {
        let mut entries: Vec<&Arc<ServerEntry>> = Vec::new();
        for name in names {
            match view.enabled(name) {
                Ok(entry) if entries.iter().any(|known| Arc::ptr_eq(known, entry)) => {}
                Ok(entry) => entries.push(entry),
                Err(failure) => gathered
                    .errors
                    .push(self.render_failure(name, failure, context)),
            }
        }
        entries
    }

    async fn list_server(
        &self,
        view: &View,
        party: Party<'_>,
        refresh: bool,
    ) -> Result<(Bytes, Arc<Catalog>), Failure> {
        let target = self.target(view, &party)?;
        let catalog = if refresh {
            self.in_time(&party, self.fresh_catalog(&party, &target))
                .await?
        } else {
            self.look_at_kept(&party, &target).await;
            self.in_time(&party, self.catalog(&party, &target)).await?
        };
        self.keep(party.caller, &target.key, &catalog);
        let shown = Shown {
            view,
            entry: party.entry,
            target: &target,
            catalog: &catalog,
        };
        let entries = self.listings.get(&shown, self.naming).entries.clone();
        Ok((entries, catalog))
    }

    /// `refresh_tools` with a name: connects where needed.
    pub(super) async fn refresh_server(
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
        let target = self.target(&view, &party)?;
        let catalog = self
            .in_time(&party, self.fresh_catalog(&party, &target))
            .await?;
        let mut gathered = Gathered::default();
        gathered.add_tools(as_sent(&catalog));
        gathered.add_warnings(party.name(), &catalog);
        Ok(gathered.into_rope(&refreshed(1), "tools"))
    }

    /// `refresh_tools` without one: the user's connected servers, shared ones included.
    pub(super) async fn refresh_connected(&self, context: &Context) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let connected = self.pool.connected(|key| is_within(key, &context.caller));
        let until = context.deadline.at;
        let listed = connected.iter().map(|(target, session)| async move {
            let listed = self.catalogs.refresh(&target.key, session, until).await;
            (target, listed)
        });
        let mut gathered = Gathered::default();
        let mut count = 0;
        for (target, listed) in join_all(listed).await {
            let current = view.entry(&target.key.server);
            let name = current.map_or(&target.server_name, |entry| &entry.definition.name);
            match listed {
                Ok(catalog) => {
                    count += 1;
                    gathered.add_tools(as_sent(&catalog));
                    gathered.add_warnings(name, &catalog);
                }
                Err(failure) => gathered
                    .errors
                    .push(self.render_failure(name, failure, context)),
            }
        }
        Ok(gathered.into_rope(&refreshed(count), "tools"))
    }

    /// A failure as a member of `errors`.
    pub(super) fn render_failure(
        &self,
        server: &str,
        failure: Failure,
        context: &Context,
    ) -> Value {
        let failure = self.outward(failure.server(server), context);
        let mut error = Map::new();
        error.insert("server_name".to_owned(), server.into());
        error.insert("error".to_owned(), failure.message.into());
        error.insert("error_code".to_owned(), failure.code.as_str().into());
        error.insert("details".to_owned(), failure.details.into());
        error.into()
    }
}

pub(super) fn enabled(view: &View) -> Vec<&Arc<ServerEntry>> {
    let servers = view.snapshot.servers.iter();
    servers
        .filter(|entry| entry.definition.is_enabled)
        .collect()
}

/// Whether the connection is one of the caller's, or shared: with a session, that session's.
fn is_within(key: &PoolKey, caller: &Caller) -> bool {
    match &key.scope {
        Scope::Shared => true,
        Scope::User(user) => Some(user) == caller.user.as_ref(),
        Scope::Session(user, session) => {
            let asked = caller.session.as_ref();
            Some(user) == caller.user.as_ref() && asked.is_none_or(|asked| asked == session)
        }
    }
}

/// The tools exactly as the server sent them, a comma between them.
fn as_sent(catalog: &Catalog) -> Bytes {
    let raws: Vec<&[u8]> = catalog
        .tools
        .iter()
        .map(|tool| &tool.raw.bytes()[..])
        .collect();
    raws.join(&b',').into()
}

fn refreshed(count: usize) -> String {
    let noun = if count == 1 { "server" } else { "servers" };
    format!("\"message\":\"{count} {noun} refreshed\",\"servers_refreshed\":{count},")
}
