//! Every setting: its name, default and unit, and where its value comes from (docs/settings.md).
//!
//! One table makes the structs, their defaults, the names in the file and the environment, and the
//! documentation in `config/default.toml`. Only this module reads the environment and the settings file.

mod load;
mod read;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::secret::Secret;
pub use load::{Examined, Faults, Flag, Sources};
pub use read::Given;

/// One row of the table.
pub struct Setting {
    pub section: &'static str,
    pub key: &'static str,
    /// The default as it would be written in the environment; empty: none.
    pub default: &'static str,
    /// The name of its reader: `duration`, `size`, `count`, `switch`, `list`, ...
    pub kind: &'static str,
    pub doc: &'static [&'static str],
    read: fn(&mut Settings, Given) -> Result<(), String>,
}

impl Setting {
    /// `MCP_CLIENT_SECTION_KEY`.
    pub fn variable(&self) -> String {
        format!("MCP_CLIENT_{}_{}", self.section, self.key).to_uppercase()
    }

    /// `section.key`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }

    /// The row called `section.key`.
    pub fn find(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|setting| setting.name() == name)
    }

    /// Whether the value may not be shown, nor given on a command line.
    pub fn is_secret(&self) -> bool {
        self.kind == "secret"
    }
}

macro_rules! settings {
    ($($(#[doc = $about:literal])* $section:ident: $name:ident {
        $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $reader:ident($default:literal)),+ $(,)?
        $(; $(#[$plain_doc:meta])* $plain:ident: $plain_type:ty)?
    })+) => {
        /// Every setting of the process, read and checked.
        #[derive(Clone, Debug, Default)]
        pub struct Settings { $($(#[doc = $about])* pub $section: $name,)+ }

        $($(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $type,)+
            $($(#[$plain_doc])* pub $plain: $plain_type,)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($key: read::default_of(read::$reader, $default),)+
                    $($plain: Default::default(),)?
                }
            }
        })+

        /// Every setting, in the order of the documentation.
        pub static TABLE: &[Setting] = &[$($(Setting {
            section: stringify!($section),
            key: stringify!($key),
            default: $default,
            kind: stringify!($reader),
            doc: &[$($doc),+],
            read: |settings, given| {
                settings.$section.$key = read::$reader(given)?;
                Ok(())
            },
        },)+)+];
    };
}

settings! {
    /// The resident process.
    daemon: DaemonSettings {
        /// How tools are named for the model: `single` (mcp_server_tool) or `double` (mcp__server__tool).
        naming: Naming = naming("single"),
        /// How long running commands may go on after end of input or a first signal.
        drain_timeout: Duration = duration("30s"),
        /// The same after `exit`, closing included: hosts kill soon after.
        exit_timeout: Duration = duration("4s"),
        /// How long a changing command may hold back later lines.
        barrier_timeout: Duration = duration("10s"),
        /// Commands at once in all; no more lines are read meanwhile. A quarter of them may be at one server.
        max_running: usize = count("4096"),
        /// Commands at once of one user; fifteen times as many may wait. Commands without a user are not counted.
        max_per_user: usize = count("64"),
        /// Longest command line.
        max_line: usize = size("16MiB"),
        /// Escape everything beyond ASCII in answers.
        ascii: bool = switch("false"),
        /// Write a first line `{"type":"ready",...}`.
        ready_line: bool = switch("false"),
        /// Run one line at a time, in order.
        sequential: bool = switch("false"),
    }
    /// Where definitions and credentials come from.
    config: ConfigSettings {
        /// Base URL of a config API; none: the embedded one. `API_BASE` is taken as well.
        api_base: Option<String> = text(""),
        /// Bearer for commands without an accessToken. `INTERNAL_TOKEN` is taken as well.
        internal_token: Option<Secret> = secret(""),
        /// How long a snapshot is used before it is asked for again; 0s: never.
        ttl: Duration = duration("2s"),
        /// How old a snapshot may be that is used while the config API cannot be reached.
        max_stale: Duration = duration("10m"),
        /// For one answer of the config API, retries included.
        timeout: Duration = duration("5s"),
    }
    /// The database of the embedded config API.
    store: StoreSettings {
        /// `sqlite://`, `mysql://` or `postgres://`; none: `mcp-client.db` in the data directory.
        url: Option<Secret> = secret(""),
        /// What encrypts credentials: 32 bytes in base64 or hex; more keys after commas are only read. None: the key file `store.key` in the data directory, made when it is first needed.
        key: Option<Secret> = secret(""),
        /// A key file elsewhere than in the data directory; it must be there, with mode 0600.
        key_file: Option<String> = text(""),
        /// A command line for `sh` that prints the keys, as `store.key` has them: for a manager of secrets.
        key_command: Option<String> = text("");
        /// Not a setting of the file: `$MCP_CLIENT_DATA_DIR`, else `mcp-client` in the user's data directory.
        data_dir: PathBuf
    }
    /// The config API for many daemons: `mcp-client config-server`.
    server: ServerSettings {
        /// Where it listens.
        listen: SocketAddr = address("127.0.0.1:8760"),
        /// Certificate and key in PEM, for TLS; none: plain HTTP, for a proxy before it or this machine alone.
        tls_cert: Option<String> = text(""),
        /// Both are read again at SIGHUP.
        tls_key: Option<String> = text(""),
        /// Verifies users' tokens (JWT): a file with a public key in PEM (RS256, ES256, EdDSA), or with the secret of HS256.
        jwt_key: Option<String> = text(""),
        /// The same by a JWKS: a file, or an https URL that is asked again when keys change.
        jwt_jwks: Option<String> = text(""),
        /// The `aud` that a token must have; none: it is not looked at.
        jwt_audience: Option<String> = text(""),
        /// The `iss` that a token must have; none: it is not looked at.
        jwt_issuer: Option<String> = text(""),
        /// CLAIM=VALUE of administrators, as in `role=admin`; none: no user is one.
        jwt_admin: Option<String> = text(""),
        /// Connections at once; more wait.
        max_connections: usize = count("1024"),
        /// For a handshake, for a request to arrive and for its answer to be made; also how long an idle connection is kept.
        request_timeout: Duration = duration("15s"),
        /// How long requests may go on after SIGTERM.
        drain_timeout: Duration = duration("10s"),
    }
    /// Connections to MCP servers, and the deadlines of commands.
    pool: PoolSettings {
        /// A connection without calls is closed after this.
        idle_timeout: Duration = duration("10m"),
        /// For a start as a whole: a cold npx or uvx installs first.
        start_timeout: Duration = duration("60s"),
        /// For the MCP handshake, from the server's first sign of life.
        initialize_timeout: Duration = duration("30s"),
        /// For a command whose host set no deadline; a server's progress extends it.
        call_timeout: Duration = duration("100s"),
        /// What progress may extend a call to.
        call_hard_cap: Duration = duration("600s"),
        /// For a whole `list_tools`.
        list_timeout: Duration = duration("20s"),
        /// How long calls may go on when their connection is taken away.
        close_grace: Duration = duration("5s"),
        /// Connections in all.
        max_connections: usize = count("256"),
        /// Connections of one user.
        max_per_user: usize = count("16"),
        /// Connections to one server.
        max_per_server: usize = count("64"),
        /// Calls at once on one connection.
        max_in_flight: usize = count("64"),
    }
    /// Servers started as child processes.
    stdio: StdioSettings {
        /// Names of further variables a child inherits (CA and proxy settings, say).
        inherit_env: Vec<String> = list("");
        /// Not a setting: what every child inherits of our own environment.
        environment: Vec<(String, String)>
    }
    /// Logs on stderr.
    log: LogSettings {
        /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a tracing filter.
        level: String = filter("warn"),
        /// `text` or `json`.
        format: LogFormat = format("text"),
    }
    /// Figures for a monitor.
    metrics: MetricsSettings {
        /// A loopback address and port, such as `127.0.0.1:9464`, where `GET /metrics` gives the figures of `stats` as Prometheus text; none: no port is opened.
        listen: Option<SocketAddr> = loopback(""),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// `mcp_{server}_{tool}`
    #[default]
    Single,
    /// `mcp__{server}__{tool}`
    Double,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Where variables and files are looked up: the process's own, or a test's.
pub trait Lookup {
    fn variable(&self, name: &str) -> Option<OsString>;

    /// The text of a file.
    ///
    /// # Errors
    /// What reading it failed with.
    fn file(&self, path: &Path) -> std::io::Result<String>;
}

/// The environment and the files of this process.
pub struct OwnEnvironment;

impl Lookup for OwnEnvironment {
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn file(&self, path: &Path) -> std::io::Result<String> {
        std::fs::read_to_string(path)
    }
}

/// Reads a duration as settings have it: `500ms`, `30s`, `10m`.
///
/// # Errors
/// Reads after what the duration is for.
pub fn duration(text: &str) -> Result<Duration, String> {
    read::duration(Given::Text(text.to_owned()))
}

/// A settings file with every setting at its default, documented: `config/default.toml`.
pub fn documentation() -> String {
    let mut text = "# Every setting of mcp-client with its default. Copy what you change to\n\
         # ~/.config/mcp-client/config.toml, or name a file with --config or $MCP_CLIENT_CONFIG.\n\
         # Each can be set in the environment too, under the name that stands beside it.\n"
        .to_owned();
    let mut section = "";
    for setting in TABLE {
        if setting.section != section {
            section = setting.section;
            text += &format!("\n[{section}]\n");
        }
        for line in setting.doc {
            text += &format!("#{line}\n");
        }
        let value = match setting.kind {
            "count" | "switch" => setting.default.to_owned(),
            "list" => "[]".to_owned(),
            _ => format!("{:?}", setting.default),
        };
        let none = if matches!(setting.kind, "text" | "secret" | "loopback") {
            "# "
        } else {
            ""
        };
        let line = format!("{none}{} = {value}", setting.key);
        text += &format!("{line:<40} # {}\n", setting.variable());
    }
    text
}
