//! Which server's tool a call means.

use std::sync::Arc;

use futures::future::join_all;

use super::desk::{Actions, Party};
use super::listing::Shown;
use super::seams::{CallTools, Snapshots};
use super::view::{View, disabled_server};
use super::{Context, ToolRef};
use crate::catalog::{Catalog, Tool};
use crate::directory::Snapshot;
use crate::mcp::Connect;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::resolve::{ServerEntry, Target};
use crate::model::settings::Naming;

/// A tool found, and what is needed to call it.
pub(super) struct Route {
    pub entry: Arc<ServerEntry>,
    pub target: Arc<Target>,
    /// The original name.
    pub tool: Arc<str>,
    /// Whether the server says that calling twice does no harm.
    pub may_repeat: bool,
}

/// The most tools that a failure names.
const MAX_NAMED: usize = 20;

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    /// The tool, where a catalog at hand knows it.
    pub(super) fn route_at_hand(
        &self,
        view: &View,
        tool: &ToolRef,
        context: &Context,
    ) -> Option<Route> {
        match tool {
            ToolRef::Of { server, tool } => {
                let entry = view.enabled(server).ok()?;
                let target = view.target(entry, &context.caller).ok()?;
                let catalog = self.catalogs.get(&target.key)?;
                self.found(view, entry, &target, &catalog, tool)
            }
            ToolRef::Injected(name) => {
                let enabled = |entry: &&Arc<ServerEntry>| entry.definition.is_enabled;
                let fitting = self.fitting(view, name).filter(enabled);
                let known =
                    fitting.filter_map(|entry| self.look_up_at_hand(view, entry, name, context));
                self.best(known)
            }
        }
    }

    /// The tool, which no catalog at hand knows.
    pub(super) async fn route(
        &self,
        view: &View,
        tool: &ToolRef,
        context: &Context,
    ) -> Result<Route, Failure> {
        match tool {
            ToolRef::Of { server, tool } => {
                let entry = view.enabled(server)?;
                self.route_in(view, entry, tool, context).await
            }
            ToolRef::Injected(name) => self.route_by_name(view, name, context).await,
        }
    }

    /// By server and name: one fresh list.
    async fn route_in(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        name: &str,
        context: &Context,
    ) -> Result<Route, Failure> {
        let party = party(entry, context);
        let target = self.target(view, &party)?;
        let catalog = match self.catalogs.get(&target.key) {
            Some(_) => self.fresh_catalog(&party, &target).await?,
            None => match self.catalog(&party, &target).await {
                Ok(catalog) => catalog,
                Err(failure) if failure.code == ErrorCode::ServerError => {
                    return Ok(unlisted(entry, target, name));
                }
                Err(failure) => return Err(failure),
            },
        };
        self.found(view, entry, &target, &catalog, name)
            .ok_or_else(|| party.located(no_such_tool(entry, name, &catalog), Phase::List))
    }

    /// By its original name, else by the injected one.
    fn found(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        target: &Arc<Target>,
        catalog: &Arc<Catalog>,
        name: &str,
    ) -> Option<Route> {
        match catalog.tool(name) {
            Some(tool) => Some(route(entry, target, tool)),
            None => Some(self.hit(view, entry, target, catalog, name)?.0),
        }
    }

    /// By injected name: only servers whose prefix fits are asked.
    async fn route_by_name(
        &self,
        view: &View,
        name: &str,
        context: &Context,
    ) -> Result<Route, Failure> {
        let (enabled, disabled): (Vec<_>, Vec<_>) = self
            .fitting(view, name)
            .partition(|entry| entry.definition.is_enabled);
        let asked = enabled
            .iter()
            .map(|entry| self.look_up_listed(view, entry, name, context));
        let (mut found, mut failure) = (Vec::new(), None);
        for looked_up in join_all(asked).await {
            match looked_up {
                Ok(hit) => found.extend(hit),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (self.best(found), failure, disabled.first()) {
            (Some(route), ..) => Ok(route),
            (None, Some(failure), _) => Err(failure),
            (None, None, Some(entry)) => Err(disabled_server(&entry.definition.name)),
            (None, None, None) => Err(unknown_name(name)),
        }
    }

    /// The hit in the set naming form, else the first.
    fn best(&self, hits: impl IntoIterator<Item = (Route, Naming)>) -> Option<Route> {
        let mut first = None;
        for (route, form) in hits {
            if form == self.naming {
                return Some(route);
            }
            first = first.or(Some(route));
        }
        first
    }

    /// The servers whose prefix the name has.
    fn fitting<'a>(
        &self,
        view: &'a View,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Arc<ServerEntry>> {
        let Snapshot { servers, namer, .. } = &*view.snapshot;
        servers.iter().filter(move |entry| {
            let server = &entry.definition.name;
            namer.fits(Naming::Single, server, name) || namer.fits(Naming::Double, server, name)
        })
    }

    fn look_up_at_hand(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        name: &str,
        context: &Context,
    ) -> Option<(Route, Naming)> {
        // A server that cannot be resolved fails when it is asked, if no other has the name.
        let target = view.target(entry, &context.caller).ok()?;
        let catalog = self.catalogs.get(&target.key)?;
        self.hit(view, entry, &target, &catalog, name)
    }

    async fn look_up_listed(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        name: &str,
        context: &Context,
    ) -> Result<Option<(Route, Naming)>, Failure> {
        let party = party(entry, context);
        let target = self.target(view, &party)?;
        let catalog = match self.catalogs.get(&target.key) {
            Some(_) => self.fresh_catalog(&party, &target).await?,
            None => self.catalog(&party, &target).await?,
        };
        Ok(self.hit(view, entry, &target, &catalog, name))
    }

    /// The server's tool of this injected name, and the form in which it is.
    fn hit(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        target: &Arc<Target>,
        catalog: &Arc<Catalog>,
        name: &str,
    ) -> Option<(Route, Naming)> {
        let shown = Shown {
            view,
            entry,
            target,
            catalog,
        };
        let (tool, form) = self.injected(&shown, name)?;
        Some((route(entry, target, tool), form))
    }

    fn injected<'a>(&self, shown: &Shown<'a>, name: &str) -> Option<(&'a Tool, Naming)> {
        let listing = self.listings.get(shown, self.naming);
        let mut forms = self.forms().into_iter();
        forms.find_map(|form| Some((listing.tool(shown, form, name)?, form)))
    }

    /// Both naming forms, the set one first.
    fn forms(&self) -> [Naming; 2] {
        match self.naming {
            Naming::Single => [Naming::Single, Naming::Double],
            Naming::Double => [Naming::Double, Naming::Single],
        }
    }
}

fn party<'a>(entry: &'a ServerEntry, context: &'a Context) -> Party<'a> {
    Party {
        entry,
        caller: &context.caller,
        deadline: context.deadline,
        trail: &context.trail,
    }
}

fn route(entry: &Arc<ServerEntry>, target: &Arc<Target>, tool: &Tool) -> Route {
    Route {
        entry: entry.clone(),
        target: target.clone(),
        tool: tool.name.clone(),
        may_repeat: tool.may_repeat,
    }
}

/// A tool of a server that cannot list: the call will tell.
fn unlisted(entry: &Arc<ServerEntry>, target: Arc<Target>, name: &str) -> Route {
    Route {
        entry: entry.clone(),
        target,
        tool: name.into(),
        may_repeat: false,
    }
}

fn no_such_tool(entry: &ServerEntry, name: &str, catalog: &Catalog) -> Failure {
    let server = &entry.definition.name;
    let names: Vec<&str> = catalog.tools.iter().map(|tool| &*tool.name).collect();
    let offers = match names.len() {
        0 => "it has no tools".to_owned(),
        all if all <= MAX_NAMED => format!("it has {}", names.join(", ")),
        all => format!("it has {all} others; list_tools names them"),
    };
    let message = format!("server `{server}` has no tool `{name}`: {offers}");
    Failure::new(ErrorCode::ToolNotFound, message).with("tool_name", name)
}

fn unknown_name(name: &str) -> Failure {
    let message =
        format!("no server has a tool that is injected as `{name}`; list_tools names all");
    Failure::new(ErrorCode::ToolNotFound, message)
        .with("name", name)
        .phase(Phase::Resolve)
}
