//! Which server's tool a call means.

use std::sync::Arc;

use futures::future::join_all;

use super::desk::{Actions, Party};
use super::listing::Shown;
use super::seams::{CallTools, Snapshots};
use super::view::View;
use super::{Context, ToolRef};
use crate::catalog::{Catalog, Tool};
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

/// How far to go for a catalog.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// What is at hand, connected or not.
    AtHand,
    /// Listed where there is none yet.
    Listed,
    /// Listed now.
    Fresh,
}

/// The most tools that a failure names.
const MAX_NAMED: usize = 20;

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
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

    /// By server and name: the catalog at hand, else one fresh list.
    async fn route_in(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        name: &str,
        context: &Context,
    ) -> Result<Route, Failure> {
        let party = party(entry, context);
        let target = self.target(view, &party)?;
        let found = |catalog: &Arc<Catalog>| {
            let shown = Shown {
                view,
                entry,
                target: &target,
                catalog,
            };
            let tool = catalog.tool(name).or_else(|| self.injected(&shown, name))?;
            Some(route(entry, &target, tool))
        };
        let catalog = match self.catalogs.get(&target.key) {
            Some(catalog) => match found(&catalog) {
                Some(route) => return Ok(route),
                None => self.fresh_catalog(&party, &target).await?,
            },
            None => match self.catalog(&party, &target).await {
                Ok(catalog) => catalog,
                Err(failure) if failure.code == ErrorCode::ServerError => {
                    return Ok(unlisted(entry, target, name));
                }
                Err(failure) => return Err(failure),
            },
        };
        found(&catalog)
            .ok_or_else(|| party.located(no_such_tool(entry, name, &catalog), Phase::List))
    }

    /// By injected name: only servers whose prefix fits are asked, each the more effort the
    /// less the one before has found.
    async fn route_by_name(
        &self,
        view: &View,
        name: &str,
        context: &Context,
    ) -> Result<Route, Failure> {
        let fitting: Vec<&Arc<ServerEntry>> = view
            .snapshot
            .servers
            .iter()
            .filter(|entry| self.fits(view, entry, name))
            .collect();
        for effort in [Effort::AtHand, Effort::Listed, Effort::Fresh] {
            let asked = fitting
                .iter()
                .filter(|entry| entry.definition.is_enabled)
                .map(|entry| self.look_up(view, entry, name, effort, context));
            let mut failure = None;
            let mut other_form = None;
            for looked_up in join_all(asked).await {
                match looked_up {
                    Ok(Some((route, form))) if form == self.naming => return Ok(route),
                    Ok(Some((route, _))) => other_form = other_form.or(Some(route)),
                    Ok(None) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            match (other_form, failure) {
                (Some(route), _) => return Ok(route),
                (None, Some(failure)) => return Err(failure),
                (None, None) => {}
            }
        }
        match fitting.iter().find(|entry| !entry.definition.is_enabled) {
            Some(entry) => view
                .enabled(&entry.definition.name)
                .and(Err(unknown_name(name))),
            None => Err(unknown_name(name)),
        }
    }

    fn fits(&self, view: &View, entry: &ServerEntry, name: &str) -> bool {
        let namer = &view.snapshot.namer;
        let server = &entry.definition.name;
        namer.fits(Naming::Single, server, name) || namer.fits(Naming::Double, server, name)
    }

    /// The server's tool of this injected name, and the form in which it is.
    async fn look_up(
        &self,
        view: &View,
        entry: &Arc<ServerEntry>,
        name: &str,
        effort: Effort,
        context: &Context,
    ) -> Result<Option<(Route, Naming)>, Failure> {
        let party = party(entry, context);
        let target = match self.target(view, &party) {
            Err(_) if effort == Effort::AtHand => return Ok(None),
            target => target?,
        };
        let at_hand = self.catalogs.get(&target.key);
        let catalog = match (effort, at_hand) {
            (Effort::AtHand | Effort::Listed, Some(catalog)) => catalog,
            (Effort::AtHand, None) => return Ok(None),
            (Effort::Listed, None) => self.catalog(&party, &target).await?,
            (Effort::Fresh, _) => self.fresh_catalog(&party, &target).await?,
        };
        let shown = Shown {
            view,
            entry,
            target: &target,
            catalog: &catalog,
        };
        let listing = self.listings.get(&shown, self.naming);
        Ok(self.forms().into_iter().find_map(|form| {
            let tool = listing.tool(&shown, form, name)?;
            Some((route(entry, &target, tool), form))
        }))
    }

    fn injected<'a>(&self, shown: &Shown<'a>, name: &str) -> Option<&'a Tool> {
        let listing = self.listings.get(shown, self.naming);
        let mut forms = self.forms().into_iter();
        forms.find_map(|form| listing.tool(shown, form, name))
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
    let message = format!("the server `{server}` has no tool `{name}`: {offers}");
    Failure::new(ErrorCode::ToolNotFound, message).with("tool_name", name)
}

fn unknown_name(name: &str) -> Failure {
    let message =
        format!("no server has a tool that is injected as `{name}`; list_tools names all");
    Failure::new(ErrorCode::ToolNotFound, message)
        .with("name", name)
        .phase(Phase::Resolve)
}
