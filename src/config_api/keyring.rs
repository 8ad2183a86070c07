//! Where the keys of the store come from, and which are in force now.
//!
//! Keys may change while a daemon runs: it reads them again when it meets a row of a key that it does
//! not know, and, where they are in a file, before it writes. A key it once knew it still reads with.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::files;
use super::vault::Vault;
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::Secret;
use crate::model::settings::StoreSettings;

/// For a command that prints the keys.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows of a key that nobody has do not make every command ask for the keys again.
const LEARN_PAUSE: Duration = Duration::from_secs(5);

/// Where keys are.
#[derive(Clone)]
pub enum KeySource {
    /// `store.key`, from the environment or the settings file.
    Setting(Secret),
    /// `store.key_command`.
    Command(String),
    /// A file: `store.key_file`, else `store.key` in the data directory, which is made when it is
    /// first needed.
    File { path: PathBuf, may_be_made: bool },
}

impl KeySource {
    /// # Errors
    /// The settings name more than one source.
    pub fn of(settings: &StoreSettings) -> Result<Self, String> {
        match (&settings.key, &settings.key_command, &settings.key_file) {
            (None, None, None) => Ok(Self::File {
                path: settings.data_dir.join("store.key"),
                may_be_made: true,
            }),
            (Some(keys), None, None) => Ok(Self::Setting(keys.clone())),
            (None, Some(command), None) => Ok(Self::Command(command.clone())),
            (None, None, Some(path)) => Ok(Self::File {
                path: path.into(),
                may_be_made: false,
            }),
            _ => Err(
                "set one of store.key, store.key_file and store.key_command, not several"
                    .to_owned(),
            ),
        }
    }

    /// The keys as they are now. Makes nothing.
    pub async fn keys(&self) -> Result<Secret, String> {
        match self {
            Self::Setting(keys) => Ok(keys.clone()),
            Self::Command(command) => printed_by(command).await,
            Self::File { path, .. } => files::read_key_file(path),
        }
    }

    /// The same, read.
    pub async fn vault(&self) -> Result<Vault, String> {
        self.read(&self.keys().await?)
    }

    fn read(&self, keys: &Secret) -> Result<Vault, String> {
        Vault::new(keys).map_err(|reason| format!("the key in {self} {reason}"))
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(_) => f.write_str("store.key of the settings (MCP_CLIENT_STORE_KEY)"),
            Self::Command(_) => f.write_str("the output of store.key_command"),
            Self::File { path, .. } => path.display().fmt(f),
        }
    }
}

/// What the command says on stderr is for the operator; what it prints is never shown.
async fn printed_by(command: &str) -> Result<Secret, String> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    let failed = |reason: String| format!("store.key_command {reason}");
    let output = timeout(COMMAND_TIMEOUT, shell.output())
        .await
        .map_err(|_| failed(format!("did not end within {COMMAND_TIMEOUT:?}")))?
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed: {}", output.status)));
    }
    let text = String::from_utf8(output.stdout);
    text.map(Secret::new)
        .map_err(|_| failed("printed no text".to_owned()))
}

/// The keys in force.
pub struct Keyring {
    pub(super) source: KeySource,
    vault: Mutex<Arc<Vault>>,
    /// When keys were last looked for, and in vain.
    missed: Mutex<Option<Instant>>,
}

impl Keyring {
    /// Reads the keys. `may_make`: makes the file of the data directory where there is none; of a
    /// store that several machines share, none of them may make a key of its own.
    pub async fn open(settings: &StoreSettings, may_make: bool) -> Result<Self, String> {
        let source = KeySource::of(settings)?;
        let keys = match &source {
            KeySource::File {
                path,
                may_be_made: true,
            } if !may_make && !path.exists() => {
                return Err(format!(
                    "there is no key: set MCP_CLIENT_STORE_KEY (or store.key, or copy the file store.key to {}), the same wherever this database is used; `mcp-client keys new` makes a new one",
                    settings.data_dir.display()
                ));
            }
            KeySource::File {
                path,
                may_be_made: true,
            } => {
                files::private_dir(&settings.data_dir)?;
                files::key_file(path)?
            }
            source => source.keys().await?,
        };
        Ok(Self {
            vault: Mutex::new(Arc::new(source.read(&keys)?)),
            source,
            missed: Mutex::default(),
        })
    }

    pub fn vault(&self) -> Arc<Vault> {
        let vault = self.vault.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&vault)
    }

    /// Whether the keys for all these stored values are at hand.
    pub fn knows_all<'a>(&self, stored: impl IntoIterator<Item = &'a str>) -> bool {
        let vault = self.vault();
        stored.into_iter().all(|value| vault.knows(value))
    }

    /// Reads the keys again, for a value that needs one which is not at hand. What still cannot be
    /// read is a fault of its row.
    pub async fn look_again(&self) {
        if matches!(self.source, KeySource::Setting(_)) {
            return;
        }
        let lately = |at: Instant| at.elapsed() < LEARN_PAUSE;
        let missed = *self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        if missed.is_some_and(lately) {
            return;
        }
        let before = self.vault().ids().len();
        let gained = match self.reload().await {
            Ok(vault) => vault.ids().len() > before,
            Err(reason) => {
                tracing::warn!("the keys of the store cannot be read again: {reason}");
                false
            }
        };
        let missed = (!gained).then(Instant::now);
        *self.missed.lock().unwrap_or_else(PoisonError::into_inner) = missed;
    }

    /// The keys to write with, asked for under the lock of the store that the write holds.
    ///
    /// # Errors
    /// `config_unavailable`: the key file cannot be read.
    pub async fn to_write(&self) -> Result<Arc<Vault>, Failure> {
        if !matches!(self.source, KeySource::File { .. }) {
            return Ok(self.vault());
        }
        let unavailable = |reason| Failure::new(ErrorCode::ConfigUnavailable, reason);
        self.reload().await.map_err(unavailable)
    }

    async fn reload(&self) -> Result<Arc<Vault>, String> {
        let read = self.source.vault().await?;
        let mut vault = self.vault.lock().unwrap_or_else(PoisonError::into_inner);
        *vault = Arc::new(read.with_readers_of(&vault));
        Ok(Arc::clone(&vault))
    }
}

#[cfg(test)]
#[path = "keyring_tests.rs"]
mod tests;
