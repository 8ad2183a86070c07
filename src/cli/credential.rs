//! `mcp-client credential set|list|enable|disable|remove`: credentials in the store, or in that of a config
//! server. Values are read from stdin or asked for, never taken from the command line, and never shown.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;

use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::oneshot;
use super::place::{Opened, Place};
use crate::config_api::{Admin, Holding, Owner, ServerRow, Wanted};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::row;
use crate::model::secret::{Credentials, Secret};
use crate::model::settings::Settings;
use crate::model::template::fields_named;

/// The most that is read from stdin, in bytes.
const LARGEST_INPUT: u64 = 1024 * 1024;

/// Set, list and remove credentials in the store, or in that of a config server
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Set the credentials of a user, or the system's, for a server, in place of those before
    ///
    /// Asks for each field without showing it, or reads FIELD=VALUE lines or a JSON object from stdin.
    #[command(after_help = "Examples:
  mcp-client credential set wiki --user ann
  printf 'KEY=%s\\n' \"$KEY\" | mcp-client credential set wiki --default")]
    Set {
        server: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// List who has credentials for what, with the names of the fields
    List {
        /// For this server only
        #[arg(long)]
        server: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let the credentials be used again
    Enable {
        server: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Keep the credentials, but as if there were none
    Disable {
        server: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Remove the credentials of a user, or the system's, for a server
    Remove {
        server: String,
        #[command(flatten)]
        whose: Whose,
    },
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct Whose {
    /// This user's own
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The system's, for users without their own
    #[arg(long)]
    default: bool,
}

impl Whose {
    fn owner(&self) -> Result<Owner, Failure> {
        match &self.user {
            Some(user) if user.is_empty() => Err(invalid("--user must not be empty".to_owned())),
            Some(user) => Ok(Owner::User(UserId::new(user))),
            None => Ok(Owner::Default),
        }
    }
}

/// # Errors
/// Those of the store, and `invalid_params` for input that cannot be read.
pub async fn run(args: Args, settings: &Settings) -> Result<ExitCode, Failure> {
    match args.place.open(settings).await? {
        Opened::Here(store) => perform(args.command, &store).await,
        Opened::Remote(api) => perform(args.command, &api).await,
    }
}

async fn perform(command: Command, store: &impl Admin) -> Result<ExitCode, Failure> {
    match command {
        Command::Set { server, whose } => set(store, &server, &whose.owner()?).await,
        Command::List { server, json } => list(store, server.as_deref(), json).await,
        Command::Enable { server, whose } => enable(store, &server, &whose.owner()?, true).await,
        Command::Disable { server, whose } => enable(store, &server, &whose.owner()?, false).await,
        Command::Remove { server, whose } => remove(store, &server, &whose.owner()?).await,
    }
}

async fn set(store: &impl Admin, name: &str, owner: &Owner) -> Result<ExitCode, Failure> {
    let server = store.server(name).await?;
    let credentials = match io::stdin().is_terminal() {
        true => ask(&server)?,
        false => parse(&input()?)?,
    };
    if credentials.0.is_empty() {
        return Err(invalid("no field was given; nothing is changed".to_owned()));
    }
    let known = known_fields(&server);
    for field in credentials.0.keys().filter(|field| !known.contains(*field)) {
        eprintln!(
            "note: nothing in server {:?} uses the field {field:?}",
            server.name
        );
    }
    store
        .put_credentials(owner, &server.id, &credentials)
        .await?;
    let names: Vec<_> = credentials.0.keys().map(String::as_str).collect();
    Ok(oneshot::print(&format!(
        "set {} for {}, server {:?}",
        names.join(", "),
        shown(owner),
        server.name
    )))
}

/// Asks for each field of the form.
fn ask(server: &ServerRow) -> Result<Credentials, Failure> {
    let form = form(server);
    if form.is_empty() {
        return Err(invalid(format!(
            "server {:?} declares no credential fields to ask for: pipe FIELD=VALUE lines into this command",
            server.name
        )));
    }
    let mut fields = BTreeMap::new();
    for (name, label) in form {
        let prompt = match label {
            Some(label) if label != name => format!("{label} ({name}): "),
            _ => format!("{name}: "),
        };
        let value = rpassword::prompt_password(prompt)
            .map_err(|error| invalid(format!("the terminal cannot be read: {error}")))?;
        if !value.is_empty() {
            fields.insert(name, Secret::new(value));
        }
    }
    Ok(Credentials(fields))
}

/// Name and label of each field of the form.
fn form(server: &ServerRow) -> Vec<(String, Option<String>)> {
    let fields = server.credential_fields.as_deref().unwrap_or_default();
    let fields: Vec<Value> = serde_json::from_str(fields).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    fields
        .iter()
        .filter_map(|field| match field {
            Value::String(name) => Some((name.clone(), None)),
            field => Some((
                text(&field["name"]).or_else(|| text(&field["key"]))?,
                text(&field["label"]),
            )),
        })
        .collect()
}

/// The fields that the form, the placeholders or the automatic headers name.
fn known_fields(server: &ServerRow) -> BTreeSet<String> {
    let mut known: BTreeSet<String> = form(server).into_iter().map(|(name, _)| name).collect();
    if server.url.is_some() {
        known.extend(["api_key", "token", "API_KEY"].map(str::to_owned));
    }
    let columns = [
        &server.args,
        &server.env_template,
        &server.url,
        &server.headers,
    ];
    let texts = columns.into_iter().flatten();
    known.extend(texts.flat_map(|text| fields_named(text)).map(str::to_owned));
    known
}

fn input() -> Result<Zeroizing<String>, Failure> {
    let mut text = Zeroizing::new(String::new());
    let mut stdin = io::stdin().lock().take(LARGEST_INPUT + 1);
    stdin
        .read_to_string(&mut text)
        .map_err(|error| invalid(format!("stdin cannot be read: {error}")))?;
    if text.len() as u64 > LARGEST_INPUT {
        return Err(invalid(format!(
            "stdin holds more than {LARGEST_INPUT} bytes"
        )));
    }
    Ok(text)
}

/// FIELD=VALUE lines, or a JSON object.
fn parse(text: &str) -> Result<Credentials, Failure> {
    if text.trim_start().starts_with('{') {
        let fields = serde_json::from_str(text).map_err(|error| {
            let place = (error.line(), error.column());
            invalid(format!(
                "stdin is not JSON (at line {}, column {})",
                place.0, place.1
            ))
        })?;
        return row::flatten(fields)
            .map_err(|fault| invalid(format!("{} {}", fault.field, fault.reason)));
    }
    let mut fields = BTreeMap::new();
    for (at, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let pair = line
            .split_once('=')
            .filter(|(name, _)| !name.trim().is_empty());
        let Some((name, value)) = pair else {
            return Err(invalid(format!(
                "line {} of stdin is not FIELD=VALUE",
                at + 1
            )));
        };
        if fields
            .insert(name.trim().to_owned(), Secret::new(value))
            .is_some()
        {
            return Err(invalid(format!(
                "stdin gives the field {:?} twice",
                name.trim()
            )));
        }
    }
    Ok(Credentials(fields))
}

async fn remove(store: &impl Admin, name: &str, owner: &Owner) -> Result<ExitCode, Failure> {
    let server = store.server(name).await?;
    let removed = store.remove_credentials(owner, &server.id).await?;
    Ok(told(removed, "removed", owner, &server))
}

async fn enable(
    store: &impl Admin,
    name: &str,
    owner: &Owner,
    enabled: bool,
) -> Result<ExitCode, Failure> {
    let server = store.server(name).await?;
    let changed = store.enable_credentials(owner, &server.id, enabled).await?;
    let word = if enabled { "enabled" } else { "disabled" };
    Ok(told(changed, word, owner, &server))
}

fn told(is_done: bool, word: &str, owner: &Owner, server: &ServerRow) -> ExitCode {
    let done = match is_done {
        true => format!("{word} the credentials"),
        false => "there are no credentials".to_owned(),
    };
    oneshot::print(&format!(
        "{done} of {} for server {:?}",
        shown(owner),
        server.name
    ))
}

async fn list(store: &impl Admin, server: Option<&str>, json: bool) -> Result<ExitCode, Failure> {
    let servers = match server {
        Some(name) => vec![store.server(name).await?],
        None => store.servers().await?,
    };
    let wanted = Wanted {
        server: server.map_or_else(String::new, |_| servers[0].id.clone()),
        user: String::new(),
    };
    let mut entries = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = store.holdings(&wanted, &cursor).await?;
        entries.extend(page.credentials.into_iter().filter_map(|held| {
            let server = servers.iter().find(|server| server.id == held.server_id)?;
            Some((server.name.clone(), held))
        }));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    if json {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        return Ok(oneshot::print(&Value::from(entries).to_string()));
    }
    if entries.is_empty() {
        return Ok(oneshot::print(
            "no credentials are set; see `mcp-client credential set --help`",
        ));
    }
    let rows = entries.into_iter().map(row).collect();
    Ok(oneshot::print(&oneshot::table(
        &["server", "whose", "state", "fields"],
        rows,
    )))
}

fn row((server, held): (String, Holding)) -> Vec<String> {
    let owner = match &held.user_id {
        Some(user) => Owner::User(UserId::new(user)),
        None => Owner::Default,
    };
    let state = if held.is_enabled {
        "enabled"
    } else {
        "disabled"
    };
    vec![
        server,
        shown(&owner),
        state.to_owned(),
        held.fault.unwrap_or_else(|| held.fields.join(", ")),
    ]
}

fn entry((server, held): &(String, Holding)) -> Value {
    let (user, enabled) = (&held.user_id, held.is_enabled);
    match &held.fault {
        None => {
            json!({"server": server, "user": user, "is_enabled": enabled, "fields": held.fields})
        }
        Some(error) => {
            json!({"server": server, "user": user, "is_enabled": enabled, "error": error})
        }
    }
}

fn shown(owner: &Owner) -> String {
    match owner {
        Owner::Default => "the system's default".to_owned(),
        Owner::User(user) => format!("user {user}"),
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidParams, message)
}

#[cfg(test)]
#[path = "credential_tests.rs"]
mod tests;
