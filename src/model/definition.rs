//! How to reach a server: what a row of `mcp_servers` says, read and checked. No secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::caller::ServerId;
use super::error::words;

words! {
    /// The four transports a definition can name.
    TransportType {
        Stdio = "stdio",
        Http = "http",
        Sse = "sse",
        StatelessHttp = "statelessHttp",
    }
}

words! {
    /// With whom a connection may be shared, where a definition asks for less than the default.
    Isolation {
        Shared = "shared",
        User = "user",
        Session = "session",
    }
}

/// One server definition.
#[derive(Clone, Debug)]
pub struct Definition {
    pub id: ServerId,
    pub name: Arc<str>,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub transport_type: TransportType,
    /// How to start or reach the server; `Err` makes this server `config_invalid` and no other.
    pub template: Result<Template, ConfigFault>,
    pub is_public: bool,
    pub is_enabled: bool,
    pub requires_credentials: bool,
    /// The form to show, as stored: a JSON array (empty when absent).
    pub credential_fields: Value,
    pub isolation: Option<Isolation>,
    /// A stdio server is kept from reading and signalling other processes.
    pub sandbox: bool,
    /// Columns that are not ours to read, passed on in `list_servers` (`tool_meta`, `tool_display`).
    pub extra: Map<String, Value>,
}

/// Values still carrying placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
    },
    Http {
        url: String,
        headers: BTreeMap<String, String>,
        env: BTreeMap<String, String>,
    },
}

/// Why a definition cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The column at fault.
    pub field: String,
    /// Reads after "`field` ".
    pub reason: String,
}
