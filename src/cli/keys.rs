//! `mcp-client keys list|new|rotate`: the keys that encrypt credentials in the embedded store.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::oneshot;
use crate::config_api::{KeyUse, Store, new_key};
use crate::model::error::Failure;
use crate::model::settings::Settings;

/// List and replace the keys that encrypt credentials
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the keys by id, and how many rows need each; never a key itself
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a new key, for keys that are kept elsewhere than in the key file
    New,
    /// Encrypt all credentials with a new key, and drop the old one once that is checked
    ///
    /// Daemons may go on meanwhile. Broken off, it is finished by running it again. With several keys
    /// at hand already, everything is encrypted with the first of them, and the others are dropped.
    Rotate,
}

/// # Errors
/// Those of the store.
pub async fn run(args: Args, settings: &Settings) -> Result<ExitCode, Failure> {
    match args.command {
        Command::New => Ok(oneshot::print(new_key().expose())),
        Command::List { json } => {
            let store = Store::open(settings).await?;
            let uses = store.key_uses().await?;
            Ok(oneshot::print(&match json {
                true => Value::from(uses.iter().map(entry).collect::<Vec<_>>()).to_string(),
                false => format!("{}\n{}", store.key_source(), table(&uses)),
            }))
        }
        Command::Rotate => {
            let store = Store::open(settings).await?;
            let done = store.rotate_keys().await?;
            let mut text = format!(
                "key {} encrypts all credentials; {} rows were encrypted again",
                done.key, done.rewritten
            );
            let old = done.dropped.join(", ");
            text += &match (done.is_done, old.is_empty()) {
                (true, true) => String::new(),
                (true, false) => format!("\ndropped: {old}; a backup from before still needs it"),
                (false, true) => "\nthere is no other key to remove".to_owned(),
                (false, false) => format!(
                    "\nno row needs {old} any more: remove it from {}, for every process on this store",
                    store.key_source()
                ),
            };
            Ok(oneshot::print(&text))
        }
    }
}

fn entry(found: &KeyUse) -> Value {
    json!({"key": found.id, "role": found.role, "rows": found.rows})
}

fn table(uses: &[KeyUse]) -> String {
    let row = |found: &KeyUse| {
        vec![
            found.id.clone().unwrap_or_else(|| "(none)".to_owned()),
            found.role.to_owned(),
            found.rows.to_string(),
        ]
    };
    oneshot::table(&["key", "role", "rows"], uses.iter().map(row).collect())
}
