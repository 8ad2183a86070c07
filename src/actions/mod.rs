//! Floor 3: the use cases. They know nothing of stdin, HTTP or SQL.

mod answer;
mod budget;
mod call;
mod connections;
mod credentials;
mod desk;
mod kept;
mod listing;
mod lists;
mod members;
mod params;
mod revision;
mod route;
mod seams;
mod servers;
mod tools;
mod trail;
mod view;

#[cfg(test)]
mod fakes;
#[cfg(test)]
mod lists_tests;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::mcp::{Ask, ListKind};
use crate::model::caller::Caller;
use crate::model::deadline::{Deadline, Extension};
use crate::model::error::{ErrorCode, Failure};
use crate::model::event::EventSink;
use crate::model::json::{RawJson, Rope};
use crate::model::settings::Settings;
use crate::model::trace::Trace;
use crate::{catalog, pool};
use params::{Params, invalid};

pub use credentials::CredentialAction;
pub use desk::Actions;
pub use trail::{Subject, Trail};

/// A command's action, its params read and checked.
#[derive(Debug, PartialEq)]
pub enum Action {
    ListTools {
        servers: Servers,
        refresh: bool,
        /// The list that the host has: only what differs is answered.
        if_revision: Option<Arc<str>>,
    },
    CallTool(CallTool),
    /// Another list than that of tools.
    List {
        kind: ListKind,
        servers: Servers,
    },
    Ask {
        server_name: Arc<str>,
        ask: Box<Ask>,
    },
    ListServers,
    ConnectServer {
        server_name: Arc<str>,
    },
    DisconnectServer {
        server_name: Arc<str>,
        force: bool,
    },
    RefreshTools {
        server_name: Option<Arc<str>>,
    },
    Init,
    Shutdown {
        force: bool,
    },
    Credentials(CredentialAction),
}

/// Which servers a `list_tools` asks.
#[derive(Debug, PartialEq)]
pub enum Servers {
    All,
    /// Its failure is the command's.
    One(Arc<str>),
    /// Their failures stand in `errors`.
    Some(Vec<Arc<str>>),
}

/// The params of `call_tool`.
#[derive(Debug, PartialEq)]
pub struct CallTool {
    pub tool: ToolRef,
    /// A JSON object, passed on untouched.
    pub arguments: RawJson,
    /// The trace that the call belongs to, if the host says so.
    pub trace: Trace,
    pub form: ResultForm,
}

/// How a command names a tool.
#[derive(Debug, PartialEq)]
pub enum ToolRef {
    /// By its server and its original (else injected) name.
    Of { server: Arc<str>, tool: Arc<str> },
    /// By its injected name, in either naming form.
    Injected(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultForm {
    /// The text joined, and the blocks beside it.
    Joined,
    /// The server's result object untouched.
    Mcp,
}

impl Action {
    /// # Errors
    /// `unknown_action`; `invalid_params`, naming the member and what is expected.
    pub fn parse(name: &str, params: Option<&RawJson>) -> Result<Self, Failure> {
        let params = Params::read(params)?;
        Ok(match name {
            "list_tools" => Self::ListTools {
                servers: Servers::read(&params)?,
                refresh: params.flag("refresh")?,
                if_revision: params.text("if_revision")?,
            },
            "call_tool" => Self::CallTool(CallTool::read(&params)?),
            "list_servers" => Self::ListServers,
            "connect_server" => Self::ConnectServer {
                server_name: params.required_text("server_name")?,
            },
            "disconnect_server" => Self::DisconnectServer {
                server_name: params.required_text("server_name")?,
                force: params.flag("force")?,
            },
            "refresh_tools" => Self::RefreshTools {
                server_name: params.text("server_name")?,
            },
            "init" => Self::Init,
            "shutdown" => Self::Shutdown {
                force: params.flag("force")?,
            },
            other => Self::read_rare(other, &params)?,
        })
    }

    fn read_rare(name: &str, params: &Params) -> Result<Self, Failure> {
        if let Some(kind) = lists::kind_of(name) {
            let servers = Servers::read(params)?;
            return Ok(Self::List { kind, servers });
        }
        if let Some(ask) = lists::read_ask(name, params)? {
            return Ok(Self::Ask {
                server_name: params.required_text("server_name")?,
                ask: Box::new(ask),
            });
        }
        match CredentialAction::read(name, params)? {
            Some(action) => Ok(Self::Credentials(action)),
            None => Err(unknown(name)),
        }
    }

    /// The action as part of this trace, the command's `trace`; one in `params._meta` is nearer.
    ///
    /// # Errors
    /// `invalid_params`, for a call with values that are not valid.
    pub fn traced(mut self, trace: Option<&RawJson>) -> Result<Self, Failure> {
        if let (Self::CallTool(call), Some(trace)) = (&mut self, trace) {
            let trace = read_trace("trace", trace)?;
            if call.trace.is_empty() {
                call.trace = trace;
            }
        }
        Ok(self)
    }

    /// Whether later commands of the same user wait until its change is in force.
    pub fn is_changing(&self) -> bool {
        match self {
            Self::ListTools { .. }
            | Self::CallTool(_)
            | Self::List { .. }
            | Self::Ask { .. }
            | Self::ListServers => false,
            Self::ConnectServer { .. }
            | Self::DisconnectServer { .. }
            | Self::RefreshTools { .. }
            | Self::Init
            | Self::Shutdown { .. } => true,
            Self::Credentials(action) => action.is_changing(),
        }
    }

    /// The deadline of this action where the host gave none, counted from now.
    pub fn deadline(&self, settings: &Settings, timeout: Option<Duration>) -> Deadline {
        if let Some(timeout) = timeout {
            return Deadline::after(timeout);
        }
        let pool = &settings.pool;
        match self {
            Self::CallTool(_) | Self::Ask { .. } => Deadline {
                extension: Some(Extension {
                    by: pool.call_timeout,
                    until: Instant::now() + pool.call_hard_cap,
                }),
                ..Deadline::after(pool.call_timeout)
            },
            Self::ListTools { .. }
            | Self::List { .. }
            | Self::ListServers
            | Self::Credentials(_) => Deadline::after(pool.list_timeout),
            Self::ConnectServer { .. } | Self::RefreshTools { .. } | Self::Init => {
                Deadline::after(pool.start_timeout + pool.list_timeout)
            }
            Self::DisconnectServer { .. } | Self::Shutdown { .. } => {
                Deadline::after(pool.close_grace + pool.list_timeout)
            }
        }
    }
}

fn unknown(name: &str) -> Failure {
    let message = format!("there is no action `{name}`; see `actions` in the details");
    let known = [&ACTIONS[..], &lists::NAMES, &credentials::NAMES, &[STATS]].concat();
    Failure::new(ErrorCode::UnknownAction, message).with("actions", known)
}

/// An action in form only: a question to the process itself, which it answers at once, as `ping`.
pub const STATS: &str = "stats";

const ACTIONS: [&str; 8] = [
    "list_tools",
    "call_tool",
    "list_servers",
    "connect_server",
    "disconnect_server",
    "refresh_tools",
    "init",
    "shutdown",
];

impl Servers {
    fn read(params: &Params) -> Result<Self, Failure> {
        Ok(
            match (params.text("server_name")?, params.texts("server_names")?) {
                (Some(name), None) => Self::One(name),
                (None, None) => Self::All,
                (one, Some(mut names)) => {
                    names.extend(one);
                    Self::Some(names)
                }
            },
        )
    }
}

impl CallTool {
    fn read(params: &Params) -> Result<Self, Failure> {
        Ok(Self {
            tool: ToolRef::read(params)?,
            arguments: params.object("arguments")?,
            trace: read_trace("_meta", &params.object("_meta")?)?,
            form: match params.text("result")?.as_deref() {
                None => ResultForm::Joined,
                Some("mcp") => ResultForm::Mcp,
                Some(other) => {
                    let message = format!("`result` must be \"mcp\" or left out, not \"{other}\"");
                    return Err(invalid(message));
                }
            },
        })
    }
}

fn read_trace(member: &str, object: &RawJson) -> Result<Trace, Failure> {
    Trace::read(object).map_err(|reason| invalid(format!("`{member}`: {reason}")))
}

impl ToolRef {
    fn read(params: &Params) -> Result<Self, Failure> {
        let tool = params.text("tool_name")?;
        let name = params.text("name")?;
        match (params.text("server_name")?, tool, name) {
            (Some(server), Some(tool), _) | (Some(server), None, Some(tool)) => {
                Ok(Self::Of { server, tool })
            }
            (None, None, Some(name)) => Ok(Self::Injected(name)),
            (Some(_), None, None) => Err(invalid(
                "`tool_name` is missing: a string is expected".to_owned(),
            )),
            (None, _, _) => Err(invalid(
                "`server_name` is missing: give `server_name` and `tool_name`, or `name` alone"
                    .to_owned(),
            )),
        }
    }
}

/// What a running command is given besides its action.
pub struct Context {
    pub caller: Caller,
    pub deadline: Deadline,
    /// Where events go, for a command that asked for them.
    pub events: Option<EventSink>,
    /// When its turn had come: it sees every change that was in force by then.
    pub begun: Instant,
    /// Called once the change is in force, for actions that are in force before their answer.
    pub in_force: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Kept by whoever tells of the command's end.
    pub trail: Arc<Trail>,
}

impl Context {
    /// The change of this command is in force.
    fn now_in_force(&self) {
        if let Some(tell) = &self.in_force {
            tell();
        }
    }
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

    /// For `stats`. Cheap, and waits for nobody.
    fn figures(&self) -> Figures;

    /// Closes every connection, at the end of the process. `force`: without grace.
    fn close(&self, force: bool) -> impl Future<Output = ()> + Send;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Census {
    pub connections: usize,
    pub catalogs: usize,
}

/// The floors below as numbers, for the operator.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    pub pool: pool::Figures,
    pub catalogs: catalog::Figures,
}

#[cfg(test)]
mod parse_tests {
    use super::*;

    fn parse(name: &str, params: &'static str) -> Result<Action, Failure> {
        let params = RawJson::parse(params.into()).unwrap();
        Action::parse(name, Some(&params))
    }

    #[test]
    fn every_named_action_is_parsed() {
        for name in [&ACTIONS[..], &credentials::NAMES].concat() {
            let params = r#"{"serverName":"books","toolName":"find","credentials":{}}"#;
            assert!(parse(name, params).is_ok(), "{name}");
        }
        let failure = parse("list_tolls", "{}").unwrap_err();
        assert_eq!(failure.code, ErrorCode::UnknownAction);
    }

    #[test]
    fn list_tools_tells_one_server_from_several() {
        let servers = |params| match parse("list_tools", params).unwrap() {
            Action::ListTools { servers, .. } => servers,
            other => panic!("{other:?}"),
        };
        assert_eq!(servers("{}"), Servers::All);
        assert_eq!(servers(r#"{"serverName":"a"}"#), Servers::One("a".into()));
        let both = servers(r#"{"serverName":"a","serverNames":["b"]}"#);
        assert_eq!(both, Servers::Some(vec!["b".into(), "a".into()]));
    }

    #[test]
    fn a_tool_is_named_with_its_server_or_by_its_injected_name() {
        let tool = |params| match parse("call_tool", params) {
            Ok(Action::CallTool(call)) => Ok(call.tool),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err(failure.message),
        };
        let of = |server: &str, tool: &str| ToolRef::Of {
            server: server.into(),
            tool: tool.into(),
        };
        assert_eq!(
            tool(r#"{"server_name":"a","toolName":"t"}"#),
            Ok(of("a", "t"))
        );
        assert_eq!(tool(r#"{"server_name":"a","name":"t"}"#), Ok(of("a", "t")));
        assert_eq!(
            tool(r#"{"name":"mcp_a_t"}"#),
            Ok(ToolRef::Injected("mcp_a_t".into()))
        );
        assert!(tool("{}").unwrap_err().contains("`server_name` is missing"));
        assert!(
            tool(r#"{"server_name":"a"}"#)
                .unwrap_err()
                .contains("`tool_name` is missing")
        );
    }

    #[test]
    fn the_result_form_is_checked() {
        let params = r#"{"name":"x","result":"xml"}"#;
        let failure = parse("call_tool", params).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidParams);
        assert!(failure.message.contains("`result`"));
    }

    #[test]
    fn only_a_call_without_a_timeout_of_its_own_can_be_extended() {
        let mut settings = Settings::default();
        settings.pool.call_timeout = Duration::from_secs(100);
        settings.pool.call_hard_cap = Duration::from_secs(600);
        let call = parse("call_tool", r#"{"name":"x"}"#).unwrap();
        let own = call.deadline(&settings, Some(Duration::from_secs(5)));
        assert!(own.extension.is_none());
        let default = call.deadline(&settings, None);
        assert_eq!(default.at - default.started, Duration::from_secs(100));
        assert_eq!(default.extension.unwrap().by, Duration::from_secs(100));
        assert!(Action::Init.deadline(&settings, None).extension.is_none());
    }
}
