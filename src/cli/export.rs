//! `mcp-client export`: the definitions of the embedded store, to be read elsewhere.

use std::process::ExitCode;

use super::formats::{Format, write};
use super::oneshot;
use super::place::note_foreign;
use crate::config_api::{ServerRow, Store};
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::Settings;

/// Print the definitions as a file for `import` or for another program, never with a secret
///
/// Credentials are not part of it. A literal secret in a definition is replaced by a placeholder.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// These servers only
    names: Vec<String>,
    /// What is written
    #[arg(long, value_enum, default_value = "servers")]
    format: Format,
}

/// # Errors
/// Those of the store; `server_not_found`.
pub async fn run(args: Args, settings: &Settings) -> Result<ExitCode, Failure> {
    note_foreign(settings);
    let store = Store::open(settings).await?;
    let servers = match args.names.as_slice() {
        [] => store.servers().await?,
        names => {
            let mut servers = Vec::new();
            for name in names {
                servers.push(store.server(name).await?);
            }
            servers
        }
    };
    let document = write(
        servers.iter().map(ServerRow::unpacked).collect(),
        args.format,
    );
    let text = serde_json::to_string_pretty(&document)
        .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
    Ok(oneshot::print(&text))
}
