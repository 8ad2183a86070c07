//! Floor 5: the command line.

mod call;
mod config_server;
mod credential;
mod demo_server;
mod demo_tools;
mod doctor;
mod export;
mod flags;
mod formats;
mod guardian;
mod import;
mod keys;
mod log;
mod oneshot;
mod place;
mod run;
mod server;
mod servers;
mod token;
mod tools;
mod transcript;

use std::future::Future;
use std::io;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, Parser, Subcommand};

use crate::model::error::Failure;
use crate::model::redact::Redactor;
use crate::model::settings::{PoolSettings, Settings, documentation};
use flags::Flags;

/// Settings or surroundings are wrong; nothing was started.
const USAGE: u8 = 64;

/// How far the limit of open files is raised at least: each server takes three and more.
const OPEN_FILES: u64 = 65_536;

/// The secrets of this process.
static REDACTOR: LazyLock<Redactor> = LazyLock::new(Redactor::default);

const EXAMPLES: &str = r#"Examples:
  Ask one question over the pipe, as an agent host does:
    printf '%s\n' '{"task_id":1,"command":"list_tools"}' | mcp-client

  Keep it running; a JSON line each way, answers as the work ends:
    {"task_id":2,"params":{"action":"call_tool","server_name":"books","tool_name":"find",
     "arguments":{"q":"rust"}},"user":{"userId":"ann"}}

  The same by hand:
    mcp-client call books find '{"q":"rust"}' --user ann
    mcp-client servers
    mcp-client tools books
    mcp-client settings
    mcp-client doctor --connect

  Define a server, and set a user's credentials for it (asked for, or from stdin):
    mcp-client server add wiki --url https://wiki.example/mcp --header 'X-Key: ${user.KEY}' --field KEY
    mcp-client credential set wiki --user ann
    mcp-client import ~/.cursor/mcp.json --dry-run

  Use a host's own config API instead of the embedded store:
    API_BASE=http://localhost:3000 INTERNAL_TOKEN=... mcp-client

docs/line-protocol.md has every command and error code, docs/settings.md every setting."#;

/// A resident MCP client for agent hosts: JSON lines in, the tools of every MCP server out.
///
/// Without a subcommand it is the daemon: commands on stdin, one answer line each on stdout, logs on
/// stderr. It ends with its input.
#[derive(Parser, Debug)]
#[command(name = "mcp-client", version, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[arg(long = guardian::GUARDED_BY, hide = true, value_name = "PID")]
    guarded_by: Option<i32>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Be the daemon (the default)
    Run,
    Call(call::Args),
    Tools(tools::Args),
    Servers(servers::Args),
    Server(server::Args),
    Credential(credential::Args),
    #[command(name = "config-server")]
    ConfigServer(config_server::Args),
    Token(token::Args),
    Import(import::Args),
    Export(export::Args),
    Keys(keys::Args),
    Doctor(doctor::Args),
    Transcript(transcript::Args),
    DemoServer(demo_server::Args),
    /// Print a settings file with every setting, its default and what it is for
    Settings,
    /// Print the completions of a shell
    Completions {
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether it starts servers, none of which may outlive it.
    fn needs_guardian(&self) -> bool {
        matches!(
            self,
            Self::Run | Self::Call(_) | Self::Tools(_) | Self::Servers(_) | Self::Doctor(_)
        )
    }
}

pub fn main() -> ExitCode {
    log::hook_panics();
    let cli = Cli::parse();
    let command = cli.command.unwrap_or(Command::Run);
    let guarding = match cli.guarded_by {
        _ if !command.needs_guardian() => Ok(None),
        None => guardian::stand_guard().map(Some),
        Some(guardian) => {
            guardian::be_guarded_by(guardian).map(|guarded| (!guarded).then_some(ExitCode::FAILURE))
        }
    };
    let code = match guarding {
        Ok(Some(ended)) => return ended,
        Ok(None) => perform(command, cli.flags, cli.guarded_by),
        Err(error) => fail(&format!("the guardian cannot be set up: {error}")),
    };
    log::flush();
    if cli.guarded_by.is_some() {
        guardian::end_descendants();
    }
    code
}

fn perform(command: Command, flags: Flags, guardian: Option<i32>) -> ExitCode {
    match command {
        Command::Transcript(args) => transcript::run(args),
        Command::DemoServer(args) => demo_server::run(args),
        Command::Doctor(args) => {
            let examined = flags.examine();
            let settings = examined.settings.clone();
            with(settings, async |settings| {
                doctor::run(args, &settings, &examined, &REDACTOR).await
            })
        }
        Command::Settings => oneshot::print(documentation().trim_end()),
        Command::Completions { shell } => completions(shell),
        Command::Run => match run::Streams::claim() {
            Ok(streams) => with_settings(flags, async |settings| {
                run::run(settings, streams, REDACTOR.clone(), guardian).await
            }),
            Err(error) => fail(&format!("stdin, stdout and stderr must be open: {error}")),
        },
        Command::Call(args) => {
            with_settings(flags, async |settings| call::run(args, &settings).await)
        }
        Command::Tools(args) => {
            with_settings(flags, async |settings| tools::run(args, &settings).await)
        }
        Command::Servers(args) => {
            with_settings(flags, async |settings| servers::run(args, &settings).await)
        }
        Command::Server(args) => edit(flags, async |settings| server::run(args, &settings).await),
        Command::Credential(args) => edit(flags, async |settings| {
            credential::run(args, &settings).await
        }),
        Command::ConfigServer(config_server::Args {}) => {
            edit(flags, async |settings| config_server::run(&settings).await)
        }
        Command::Token(args) => edit(flags, async |settings| token::run(args, &settings).await),
        Command::Import(args) => edit(flags, async |settings| import::run(args, &settings).await),
        Command::Keys(args) => edit(flags, async |settings| keys::run(args, &settings).await),
        Command::Export(args) => edit(flags, async |settings| export::run(args, &settings).await),
    }
}

/// Works on the store and reports what failed.
fn edit<F: Future<Output = Result<ExitCode, Failure>>>(
    flags: Flags,
    work: impl FnOnce(Settings) -> F,
) -> ExitCode {
    with_settings(flags, async |settings| {
        let edited = work(settings).await;
        edited.unwrap_or_else(|failure| oneshot::report(&failure))
    })
}

/// Reads the settings, prepares the process and runs `work` with them.
fn with_settings<F: Future<Output = ExitCode>>(
    flags: Flags,
    work: impl FnOnce(Settings) -> F,
) -> ExitCode {
    match flags.load() {
        Ok(settings) => with(settings, work),
        Err(faults) => fail(&format!("the settings are wrong:\n{faults}")),
    }
}

fn with<F: Future<Output = ExitCode>>(
    settings: Settings,
    work: impl FnOnce(Settings) -> F,
) -> ExitCode {
    let secrets = [
        &settings.config.internal_token,
        &settings.store.url,
        &settings.store.key,
    ];
    for secret in secrets {
        secret.iter().for_each(|secret| REDACTOR.learn(secret));
    }
    match prepare(&settings) {
        Ok(runtime) => {
            let code = runtime.block_on(work(settings));
            runtime.shutdown_background();
            code
        }
        Err(error) => fail(&error.to_string()),
    }
}

fn prepare(settings: &Settings) -> io::Result<tokio::runtime::Runtime> {
    log::start(&settings.log, REDACTOR.clone())?;
    raise_open_files(OPEN_FILES.max(descriptors_needed(&settings.pool)));
    // Only fails where a provider is installed already, which then is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // One thread: a command crosses the fewest hand-overs. `new_multi_thread().worker_threads(2)` is the other choice.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// For so many connections: three pipes and one descriptor to spare each, and what the daemon has open.
fn descriptors_needed(pool: &PoolSettings) -> u64 {
    let connections = u64::try_from(pool.max_connections).unwrap_or(u64::MAX);
    connections.saturating_mul(4).saturating_add(1024)
}

fn raise_open_files(wanted: u64) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mcp-client", &mut script);
    oneshot::print(String::from_utf8_lossy(&script).trim_end())
}

fn fail(reason: &str) -> ExitCode {
    eprintln!("mcp-client: {reason}");
    ExitCode::from(USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
