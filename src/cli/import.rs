//! `mcp-client import`: takes the servers of other programs' files into the embedded store.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::formats::{self, Entry, Lifted, lift};
use super::oneshot;
use super::place::note_foreign;
use super::server::read;
use crate::config_api::{Owner, Store, check_server, inspect};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::Settings;

/// Nothing could be taken.
const NOTHING: u8 = 1;
/// Some could be taken, and some could not.
const IN_PART: u8 = 3;

/// Take servers from the files of other programs into the embedded store
///
/// Reads servers.json, the `mcpServers` of Claude Desktop, Cursor and Windsurf, VS Code's mcp.json,
/// Codex's config.toml, and what `export` prints. What a program takes from its environment or asks
/// for becomes a credential field. Secrets that stand literally in env, headers, arguments or urls
/// become the system's default credentials, encrypted; on a terminal you are asked first.
///
/// The exit code is 0 when all was taken, 3 when only some was, 1 when nothing was.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  mcp-client import ~/.cursor/mcp.json --dry-run
  mcp-client import ~/.codex/config.toml .vscode/mcp.json --public
  mcp-client import claude_desktop_config.json --user ann")]
pub struct Args {
    /// The files; `-` is stdin
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Leave literal secrets in the definitions, in clear
    #[arg(long, conflicts_with = "user")]
    keep_literals: bool,
    /// Make literal secrets this user's own credentials instead of the system's defaults
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Let all users share one connection to each, where the file does not say
    #[arg(long)]
    public: bool,
}

/// # Errors
/// Those of the store. What cannot be taken is reported, and the exit code says so.
pub async fn run(args: Args, settings: &Settings) -> Result<ExitCode, Failure> {
    if args.user.as_deref() == Some("") {
        let message = "--user must not be empty".to_owned();
        return Err(Failure::new(ErrorCode::InvalidParams, message));
    }
    note_foreign(settings);
    let mut tally = Tally::default();
    let mut finds = Vec::new();
    for file in &args.files {
        let text = read(file).map_err(|error| format!("cannot be read: {error}"));
        match text.and_then(|text| formats::read(&text)) {
            Ok(entries) => finds.extend(
                entries
                    .into_iter()
                    .filter_map(|entry| tally.find(entry, &args)),
            ),
            Err(reason) => tally.refuse(&file.display().to_string(), &reason),
        }
    }
    if !args.keep_literals && !args.dry_run {
        agree_on_secrets(&mut finds, &args)?;
    }
    let mut target = Target::open(&args, settings).await?;
    for find in finds {
        match target.take(&find).await {
            Ok(()) => {
                tally.taken += 1;
                oneshot::print(&find.shown(&args));
            }
            Err(failure) => tally.refuse(&find.name, &failure.message),
        }
    }
    Ok(tally.exit_code())
}

/// A server that may be taken.
struct Find {
    name: String,
    row: Map<String, Value>,
    /// As it stood in the file, where secrets were taken out of `row`.
    literal: Map<String, Value>,
    lifted: Lifted,
}

impl Find {
    /// The command line or the url, without the secrets that were left in them.
    fn reached(&self) -> String {
        let mut row = self.row.clone();
        lift(&mut row);
        if let Some(Value::String(url)) = row.get_mut("url") {
            formats::replace_user_info(url, "***@");
            return url.clone();
        }
        let words = row.get("args").and_then(Value::as_array);
        let words = row
            .get("command")
            .into_iter()
            .chain(words.into_iter().flatten());
        let words: Vec<_> = words.filter_map(Value::as_str).collect();
        words.join(" ")
    }

    fn shown(&self, args: &Args) -> String {
        let done = if args.dry_run { "would add" } else { "added" };
        let mut lines = vec![format!("{done} server {:?}: {}", self.name, self.reached())];
        let form = self.row.get("credential_fields").and_then(Value::as_array);
        let fields = form
            .into_iter()
            .flatten()
            .filter_map(|field| field["name"].as_str());
        let known = &self.lifted.credentials.0;
        let asked: Vec<_> = fields.filter(|field| !known.contains_key(*field)).collect();
        if !asked.is_empty() {
            lines.push(format!("  to be set by each user: {}", asked.join(", ")));
        }
        if !known.is_empty() {
            let names: Vec<_> = known.keys().map(String::as_str).collect();
            let whose = match &args.user {
                Some(user) => format!("credentials of user {user}"),
                None => "the system's default credentials".to_owned(),
            };
            lines.push(format!(
                "  {} {whose}: {} (from {})",
                if args.dry_run {
                    "would become"
                } else {
                    "became"
                },
                names.join(", "),
                self.lifted.places.join(", ")
            ));
            if !asked.is_empty() {
                lines.push(
                    "  note: a user who sets their own credentials sets all of these".to_owned(),
                );
            }
        }
        lines.join("\n")
    }
}

/// What came of it all.
#[derive(Default)]
struct Tally {
    taken: usize,
    refused: usize,
}

impl Tally {
    fn find(&mut self, entry: Entry, args: &Args) -> Option<Find> {
        for note in &entry.notes {
            eprintln!("note: server {:?}: {note}", entry.name);
        }
        let mut row = match entry.row {
            Ok(row) => row,
            Err(reason) => {
                self.refuse(&format!("server {:?}", entry.name), &reason);
                return None;
            }
        };
        if args.public {
            row.entry("is_public").or_insert(json!(true));
        }
        let literal = row.clone();
        let lifted = match args.keep_literals {
            true => Lifted::default(),
            false => lift(&mut row),
        };
        for secret in lifted.credentials.0.values() {
            super::REDACTOR.learn(secret);
        }
        Some(Find {
            name: entry.name,
            row,
            literal,
            lifted,
        })
    }

    fn refuse(&mut self, what: &str, reason: &str) {
        self.refused += 1;
        eprintln!("not taken: {what}: {reason}");
    }

    fn exit_code(&self) -> ExitCode {
        match (self.refused, self.taken) {
            (0, _) => ExitCode::SUCCESS,
            (_, 0) => ExitCode::from(NOTHING),
            _ => ExitCode::from(IN_PART),
        }
    }
}

/// Without a terminal to ask on, literal secrets become credentials: in a definition they would lie
/// in clear, and be shown to whoever may see it.
fn agree_on_secrets(finds: &mut [Find], args: &Args) -> Result<(), Failure> {
    let holders = finds.iter().filter(|find| !find.lifted.places.is_empty());
    let places: Vec<_> = holders
        .map(|find| format!("{} ({})", find.name, find.lifted.places.join(", ")))
        .collect();
    let reads_stdin = args.files.iter().any(|file| file == Path::new("-"));
    let may_ask = !reads_stdin && io::stdin().is_terminal() && io::stderr().is_terminal();
    if places.is_empty() || !may_ask {
        return Ok(());
    }
    eprintln!("secrets stand literally in: {}", places.join("; "));
    eprint!("make them credentials, encrypted in the store? [Y/n] ");
    let mut answer = String::new();
    let read = io::stderr()
        .flush()
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    read.map_err(|error| {
        let message = format!("the terminal cannot be read: {error}");
        Failure::new(ErrorCode::InvalidParams, message)
    })?;
    if answer.trim().to_lowercase().starts_with('n') {
        for find in finds {
            find.row = std::mem::take(&mut find.literal);
            find.lifted = Lifted::default();
        }
    }
    Ok(())
}

/// Where servers are put.
enum Target {
    Store(Store, Owner),
    /// The names that would be taken.
    DryRun(Vec<String>),
}

impl Target {
    /// A dry run makes no store where there is none.
    async fn open(args: &Args, settings: &Settings) -> Result<Self, Failure> {
        if !args.dry_run {
            let owner = match &args.user {
                Some(user) => Owner::User(UserId::new(user)),
                None => Owner::Default,
            };
            return Ok(Self::Store(Store::open(settings).await?, owner));
        }
        let is_there = matches!(inspect(&settings.store).await.schema, Ok(Some(_)) | Err(_));
        let servers = match is_there {
            true => Store::open(settings).await?.servers().await?,
            false => Vec::new(),
        };
        Ok(Self::DryRun(
            servers.into_iter().map(|row| row.name).collect(),
        ))
    }

    async fn take(&mut self, find: &Find) -> Result<(), Failure> {
        match self {
            Self::Store(store, owner) => {
                let server = store.add_server(find.row.clone()).await?;
                let credentials = &find.lifted.credentials;
                if !credentials.0.is_empty() {
                    store
                        .put_credentials(owner, &server.id, credentials)
                        .await?;
                }
            }
            Self::DryRun(names) => {
                let row = check_server(find.row.clone(), names)?;
                names.push(row.name);
            }
        }
        Ok(())
    }
}
