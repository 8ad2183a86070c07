//! The settings an operator sets by hand, as options of every subcommand.

use std::path::PathBuf;

use clap::Args;

use crate::model::settings::{Examined, Faults, Flag, OwnEnvironment, Settings, Sources};

/// Flag beats environment beats file beats default.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Settings")]
pub struct Flags {
    /// The settings file [default: $MCP_CLIENT_CONFIG, else ~/.config/mcp-client/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the database and its key are [default: $MCP_CLIENT_DATA_DIR, else ~/.local/share/mcp-client]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Base URL of a config API to use instead of the embedded one
    #[arg(long, global = true, value_name = "URL")]
    api_base: Option<String>,
    /// How tools are named: single (mcp_server_tool) or double (mcp__server__tool)
    #[arg(long, global = true, value_name = "FORM")]
    naming: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or a filter
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How it is logged: text or json
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Any other setting, as in `--set pool.idle_timeout=5m`; config/default.toml shows them all
    #[arg(long, global = true, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    #[command(flatten)]
    lines: LineFlags,
}

/// How the daemon reads and writes lines.
#[derive(Args, Debug, Default)]
struct LineFlags {
    /// Escape everything beyond ASCII in answers
    #[arg(long, global = true)]
    ascii: bool,
    /// Write a first line {"type":"ready",...}
    #[arg(long, global = true)]
    ready_line: bool,
    /// Run one line at a time, in order
    #[arg(long, global = true)]
    sequential: bool,
}

impl Flags {
    /// Reads all settings.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn load(self) -> Result<Settings, Faults> {
        self.read(Settings::load)
    }

    /// Reads all settings as far as that is possible.
    pub fn examine(self) -> Examined {
        self.read(Settings::examine)
    }

    fn read<T>(self, how: impl FnOnce(Sources<'_>) -> T) -> T {
        let texts = [
            ("--api-base", "config.api_base", self.api_base),
            ("--naming", "daemon.naming", self.naming),
            ("--log-level", "log.level", self.log_level),
            ("--log-format", "log.format", self.log_format),
        ];
        let on = |on: bool| on.then(|| "true".to_owned());
        let switches = [
            ("--ascii", "daemon.ascii", on(self.lines.ascii)),
            (
                "--ready-line",
                "daemon.ready_line",
                on(self.lines.ready_line),
            ),
            (
                "--sequential",
                "daemon.sequential",
                on(self.lines.sequential),
            ),
        ];
        let named = texts.into_iter().chain(switches);
        let named = named.filter_map(|(shown, name, value)| {
            value.map(|value| Flag {
                shown: shown.to_owned(),
                name: name.to_owned(),
                value,
            })
        });
        let set = self.set.into_iter().map(|(name, value)| Flag {
            shown: format!("--set {name}"),
            name,
            value,
        });
        how(Sources {
            lookup: &OwnEnvironment,
            file: self.config,
            data_dir: self.data_dir,
            flags: named.chain(set).collect(),
        })
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
        None => Err("NAME=VALUE is expected, as in daemon.drain_timeout=5s".to_owned()),
    }
}
