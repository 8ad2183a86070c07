//! `mcp-client server add|list|show|enable|disable|remove`: the definitions in the store, or in that of a
//! config server.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::place::{Opened, Place};
use super::{formats, oneshot};
use crate::config_api::{Admin, ServerRow};
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::Settings;

/// Define, show and remove servers in the store, or in that of a config server
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Add(Box<Add>),
    /// List all servers
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one definition; literal secrets in it are masked
    Show {
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let commands reach the server again
    Enable {
        name: String,
    },
    /// Keep the definition and the credentials, but let no command reach the server
    Disable {
        name: String,
    },
    /// Remove the server with everybody's credentials for it
    Remove {
        name: String,
    },
}

/// Add a server
///
/// Values that are secret do not belong here: write ${user.FIELD} where one goes, and set it with
/// `mcp-client credential set`.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = "Examples:
  mcp-client server add books --public -- npx -y books-server
  mcp-client server add wiki --url https://wiki.example/mcp --header 'X-Key: ${user.KEY}' --field KEY:'Wiki key' --requires-credentials
  mcp-client server add --json servers.json")]
struct Add {
    /// The server's name; with --json FILE: which of several, or another name for the only one
    #[arg(required_unless_present = "json")]
    name: Option<String>,
    /// The program to start, and its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "url")]
    command: Vec<String>,
    /// A variable of the program's environment, or of the headers' ${NAME}
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Where the server answers, for one that is reached over HTTP
    #[arg(long)]
    url: Option<String>,
    /// A header to send
    #[arg(
        long,
        value_name = "NAME: VALUE",
        requires = "url",
        conflicts_with = "command"
    )]
    header: Vec<String>,
    /// stdio, http, sse or statelessHttp; else by COMMAND or --url
    #[arg(long, value_name = "TYPE")]
    transport: Option<String>,
    /// Let all users share one connection
    #[arg(long)]
    public: bool,
    /// Refuse to start it for a user for whom there are no credentials
    #[arg(long)]
    requires_credentials: bool,
    /// A credential field, for the form that is shown to users
    #[arg(long, value_name = "NAME[:LABEL]")]
    field: Vec<String>,
    /// Share less: user (never one connection for all) or session (one for each conversation)
    #[arg(long, value_name = "WITH WHOM")]
    isolation: Option<String>,
    /// Start it without its sandbox, for one that needs sudo or looks at other processes: it can then
    /// read the credentials of all other servers
    #[arg(long, conflicts_with = "url")]
    no_sandbox: bool,
    /// The name that people see
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,
    /// What the server is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Store it switched off
    #[arg(long)]
    disabled: bool,
    /// Read the definition from a file, or from stdin with `-`, in any form that `mcp-client import`
    /// reads; literal secrets in it stay where they are
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "url", "env", "field"])]
    json: Option<PathBuf>,
}

/// # Errors
/// Those of the store, and `invalid_params` for arguments that do not fit together.
pub async fn run(args: Args, settings: &Settings) -> Result<ExitCode, Failure> {
    match args.place.open(settings).await? {
        Opened::Here(store) => perform(args.command, &store).await,
        Opened::Remote(api) => perform(args.command, &api).await,
    }
}

async fn perform(command: Command, store: &impl Admin) -> Result<ExitCode, Failure> {
    match command {
        Command::Add(add) => add_all(store, *add).await,
        Command::List { json } => list(store, json).await,
        Command::Show { name, json } => show(store, &name, json).await,
        Command::Enable { name } => enable(store, &name, true).await,
        Command::Disable { name } => enable(store, &name, false).await,
        Command::Remove { name } => {
            let server = store.server(&name).await?;
            store.remove_server(&server.id).await?;
            Ok(oneshot::print(&format!("removed server {:?}", server.name)))
        }
    }
}

async fn add_all(store: &impl Admin, add: Add) -> Result<ExitCode, Failure> {
    let rows = match &add.json {
        Some(file) => rows_in(file, add.name.as_deref())?,
        None => vec![Ok(Map::new())],
    };
    let mut failures = Vec::new();
    for row in rows {
        let added = match row {
            Ok(row) => store.add_server(with_flags(row, &add)?).await,
            Err(failure) => Err(failure),
        };
        match added {
            Ok(row) => {
                oneshot::print(&format!("added server {:?}", row.name));
            }
            Err(failure) => failures.push(failure),
        }
    }
    let Some(last) = failures.pop() else {
        return Ok(ExitCode::SUCCESS);
    };
    for failure in failures {
        eprintln!("error: {failure}");
    }
    Err(last)
}

/// The row that the flags describe, over the one from the file.
fn with_flags(mut row: Map<String, Value>, add: &Add) -> Result<Map<String, Value>, Failure> {
    let mut set = |column: &str, value: Option<Value>| {
        if let Some(value) = value {
            row.insert(column.to_owned(), value);
        }
    };
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let http = add.url.as_ref().map(|_| json!("http"));
    set("name", text(&add.name));
    set("transport_type", text(&add.transport).or(http));
    set("command", add.command.first().map(|word| json!(word)));
    set(
        "args",
        add.command.split_first().map(|(_, words)| json!(words)),
    );
    set("url", text(&add.url));
    set("env_template", pairs(&add.env, '=', "--env NAME=VALUE")?);
    set(
        "headers",
        pairs(&add.header, ':', "--header 'NAME: VALUE'")?,
    );
    set("is_public", add.public.then_some(json!(true)));
    set(
        "requires_credentials",
        add.requires_credentials.then_some(json!(true)),
    );
    set("credential_fields", form(&add.field));
    set("isolation", text(&add.isolation));
    set("sandbox", add.no_sandbox.then_some(json!(false)));
    set("display_name", text(&add.display_name));
    set("description", text(&add.description));
    set("is_enabled", add.disabled.then_some(json!(false)));
    Ok(row)
}

fn pairs(given: &[String], by: char, form: &str) -> Result<Option<Value>, Failure> {
    let mut map = Map::new();
    for pair in given {
        let Some((name, value)) = pair.split_once(by) else {
            return Err(invalid(format!("write {form}; one of them has no {by:?}")));
        };
        let value = if by == ':' { value.trim() } else { value };
        if map.insert(name.trim().to_owned(), value.into()).is_some() {
            return Err(invalid(format!(
                "{:?} is given twice; write {form} once",
                name.trim()
            )));
        }
    }
    Ok((!map.is_empty()).then_some(Value::Object(map)))
}

fn form(fields: &[String]) -> Option<Value> {
    let fields = fields.iter().map(|field| match field.split_once(':') {
        Some((name, label)) => json!({"name": name, "label": label}),
        None => json!({"name": field, "label": field}),
    });
    let fields: Vec<_> = fields.collect();
    (!fields.is_empty()).then_some(Value::Array(fields))
}

type Rows = Vec<Result<Map<String, Value>, Failure>>;

fn rows_in(file: &Path, name: Option<&str>) -> Result<Rows, Failure> {
    let shown = file.display();
    let text = read(file).map_err(|error| invalid(format!("{shown} cannot be read: {error}")))?;
    let entries = formats::read(&text).map_err(|reason| invalid(format!("{shown} {reason}")))?;
    let alone = entries.len() == 1;
    let wanted = entries
        .into_iter()
        .filter(|entry| alone || name.is_none_or(|name| name == entry.name));
    let rows = wanted.map(|entry| {
        let refused = |reason| invalid(format!("{shown}: server {:?} {reason}", entry.name));
        entry.row.map_err(refused)
    });
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => Err(invalid(format!("{shown} defines no server of that name"))),
        false => Ok(rows),
    }
}

pub(super) fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}

async fn enable(store: &impl Admin, name: &str, enabled: bool) -> Result<ExitCode, Failure> {
    let server = store.server(name).await?;
    store.enable_server(&server.id, enabled).await?;
    let word = if enabled { "enabled" } else { "disabled" };
    Ok(oneshot::print(&format!("{word} server {:?}", server.name)))
}

async fn list(store: &impl Admin, json: bool) -> Result<ExitCode, Failure> {
    let servers = store.servers().await?;
    if json {
        let shown: Vec<_> = servers.iter().map(shown).collect();
        return Ok(oneshot::print(&Value::from(shown).to_string()));
    }
    if servers.is_empty() {
        return Ok(oneshot::print(
            "no servers are defined; see `mcp-client server add --help`",
        ));
    }
    let rows = servers.iter().map(row).collect();
    let header = ["server", "transport", "access", "credentials", "state"];
    Ok(oneshot::print(&oneshot::table(&header, rows)))
}

fn row(server: &ServerRow) -> Vec<String> {
    let access = match (&server.isolation, server.is_public) {
        (Some(isolation), _) if isolation != "shared" => format!("per {isolation}"),
        (_, true) => "public".to_owned(),
        (_, false) => "per user".to_owned(),
    };
    let word = |yes: bool, one: &str, other: &str| if yes { one } else { other }.to_owned();
    vec![
        server.name.clone(),
        server.transport_type.clone(),
        access,
        word(server.requires_credentials, "required", "optional"),
        word(server.is_enabled, "enabled", "disabled"),
    ]
}

async fn show(store: &impl Admin, name: &str, json: bool) -> Result<ExitCode, Failure> {
    let shown = shown(&store.server(name).await?);
    if json {
        return Ok(oneshot::print(&shown.to_string()));
    }
    let members = shown.as_object().into_iter().flatten();
    let rows = members
        .map(|(column, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            vec![column.clone(), text]
        })
        .collect();
    Ok(oneshot::print(&oneshot::table(&["column", "value"], rows)))
}

/// The row with its JSON columns unpacked, what is empty left out, and literal secrets masked.
fn shown(server: &ServerRow) -> Value {
    let mut columns = server.unpacked();
    for column in ["env_template", "headers"] {
        let members = columns.get_mut(column).and_then(Value::as_object_mut);
        for (name, value) in members.into_iter().flatten() {
            mask(name, value);
        }
    }
    if let Some(Value::String(url)) = columns.get_mut("url") {
        formats::replace_user_info(url, "***@");
    }
    let empty = [Value::Null, json!([]), json!({})];
    columns.retain(|_, value| !empty.contains(value));
    columns.into()
}

/// A literal under a name that speaks of a secret; a placeholder is none.
fn mask(name: &str, value: &mut Value) {
    let is_literal = value.as_str().is_none_or(|text| !text.contains("${"));
    if is_literal && formats::is_secret_name(name) {
        *value = json!("***");
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidParams, message)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
