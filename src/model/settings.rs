//! Every setting: its name, default and unit, and where its value comes from.

use std::path::PathBuf;
use std::time::Duration;

use super::secret::Secret;

#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub daemon: DaemonSettings,
    pub config: ConfigSettings,
    pub store: StoreSettings,
    pub pool: PoolSettings,
    pub stdio: StdioSettings,
    pub log: LogSettings,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// `mcp_{server}_{tool}`
    #[default]
    Single,
    /// `mcp__{server}__{tool}`
    Double,
}

#[derive(Clone, Debug, Default)]
pub struct DaemonSettings {
    pub naming: Naming,
    pub drain_timeout: Duration,
    pub exit_timeout: Duration,
    pub barrier_timeout: Duration,
    /// Longest command line, in bytes.
    pub max_line: usize,
    pub ascii: bool,
    pub ready_line: bool,
    pub sequential: bool,
}

#[derive(Clone, Debug, Default)]
pub struct ConfigSettings {
    /// `None`: the embedded config API.
    pub api_base: Option<String>,
    pub internal_token: Option<Secret>,
    pub ttl: Duration,
    pub max_stale: Duration,
    pub timeout: Duration,
}

#[derive(Clone, Debug, Default)]
pub struct StoreSettings {
    /// `None`: `sqlite://{data_dir}/mcp-client.db`.
    pub url: Option<Secret>,
    /// Not a setting of the file: `$MCP_CLIENT_STORE_KEY`, the keys that encrypt credentials, each 32
    /// bytes in base64 or hex, separated by commas; the first one writes. `None`: the key file in
    /// the data directory.
    pub key: Option<Secret>,
    /// Not a setting of the file: `$MCP_CLIENT_DATA_DIR`, else XDG.
    pub data_dir: PathBuf,
}

#[derive(Clone, Debug, Default)]
pub struct PoolSettings {
    pub idle_timeout: Duration,
    pub start_timeout: Duration,
    pub initialize_timeout: Duration,
    pub call_timeout: Duration,
    pub call_hard_cap: Duration,
    pub list_timeout: Duration,
    pub close_grace: Duration,
    pub max_connections: usize,
    pub max_per_user: usize,
    pub max_per_server: usize,
    /// Calls at once on one connection.
    pub max_in_flight: usize,
}

#[derive(Clone, Debug, Default)]
pub struct StdioSettings {
    /// Names of further variables a child inherits (CA and proxy settings, say).
    pub inherit_env: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// A tracing filter: `warn`, `info`, `mcp_client=debug`, ...
    pub level: String,
    /// `text` or `json`.
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}
