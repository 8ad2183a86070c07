//! `mcp-client token add|list|remove`: the service tokens of a config server's store.

use std::process::ExitCode;

use super::oneshot;
use crate::config_api::Store;
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::Settings;

/// Make, list and take back service tokens, with which programs ask a config server
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make a token that speaks for any user, and print it: it cannot be shown again
    Add {
        name: String,
        /// It may change definitions and credentials too
        #[arg(long)]
        admin: bool,
    },
    /// List the tokens by name, never what they are
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a token back: the next question asked with it is refused
    Remove { name: String },
}

/// # Errors
/// Those of the store.
pub async fn run(args: Args, settings: &Settings) -> Result<ExitCode, Failure> {
    let store = Store::open(settings).await?;
    match args.command {
        Command::Add { name, admin } => {
            let token = store.add_token(&name, admin).await?;
            Ok(oneshot::print(token.expose()))
        }
        Command::List { json } => list(&store, json).await,
        Command::Remove { name } => match store.remove_token(&name).await? {
            true => Ok(oneshot::print(&format!("removed token {name:?}"))),
            false => Err(Failure::new(
                ErrorCode::InvalidParams,
                format!("there is no token named {name:?}"),
            )),
        },
    }
}

async fn list(store: &Store, json: bool) -> Result<ExitCode, Failure> {
    let tokens = store.tokens().await?;
    if json {
        return Ok(oneshot::print(&serde_json::json!(tokens).to_string()));
    }
    if tokens.is_empty() {
        return Ok(oneshot::print("there are no service tokens"));
    }
    let rows = tokens.into_iter().map(|token| {
        let role = if token.is_admin { "admin" } else { "read" };
        vec![token.name, role.to_owned(), token.created_at]
    });
    Ok(oneshot::print(&oneshot::table(
        &["token", "role", "made (UTC)"],
        rows.collect(),
    )))
}
