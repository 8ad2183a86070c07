//! Replaces the key of the store, a step at a time. Each step leaves a store that every process can
//! read and write, so it can be killed anywhere and run again:
//!
//! 1. the new key stands before the old in the key file, and writes from now on;
//! 2. rows are encrypted again, some at a time;
//! 3. every row opens with the new key alone, under the store's lock; then the old one is dropped.
//!
//! Whoever writes credentials reads the key file under that lock, so nothing is written with an old
//! key after step 3. Keys that are not in a file, or of a database that machines share, are put in place by hand (docs/operations.md): then
//! step 2 and the check are all there is.

use std::collections::BTreeMap;
use std::path::Path;

use super::database::{Transaction, sql};
use super::edit::failed;
use super::files;
use super::keyring::KeySource;
use super::store::{SealedRow, Store};
use super::vault::{Vault, key_id};
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::Secret;

/// Both tables of credentials: a query for rows behind an id, a hundred at a time so that others may
/// write in between, and the change of one.
const TABLES: [(&str, &str, &str); 2] = [
    (
        "mcp_credentials",
        "SELECT id, mcp_server_id, '' AS user_id, credentials, is_enabled FROM mcp_credentials
         WHERE id > ? ORDER BY id LIMIT 100",
        "UPDATE mcp_credentials SET credentials = ? WHERE id = ?",
    ),
    (
        "mcp_user_credentials",
        "SELECT id, mcp_server_id, user_id, credentials, is_enabled FROM mcp_user_credentials
         WHERE id > ? ORDER BY id LIMIT 100",
        "UPDATE mcp_user_credentials SET credentials = ? WHERE id = ?",
    ),
];

/// What a rotation did.
#[derive(Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The id of the key that writes now.
    pub key: String,
    /// Rows that were encrypted again.
    pub rewritten: usize,
    /// The ids of keys that no row needs any more.
    pub dropped: Vec<String>,
    /// Whether they are out of their source; if not, that is for a person to do.
    pub is_done: bool,
}

/// A key, and the rows that need it.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// `None`: rows that are not encrypted.
    pub id: Option<String>,
    /// `write`, `read`, `missing` for one that is not at hand, or `plain` for none.
    pub role: &'static str,
    pub rows: i64,
}

impl Store {
    /// For people: where the keys are.
    pub fn key_source(&self) -> String {
        self.keys.source.to_string()
    }

    /// Every key, the one that writes first, then those that rows need and nobody has.
    pub async fn key_uses(&self) -> Result<Vec<KeyUse>, Failure> {
        let mut rows = BTreeMap::new();
        for (_, page, _) in TABLES {
            let mut after = String::new();
            loop {
                let query = sql(page).bind(after.as_str());
                let found: Vec<SealedRow> = self.database.fetch(query).await.map_err(failed)?;
                let Some(last) = found.last() else { break };
                after.clone_from(&last.id);
                for row in found {
                    let id = key_id(&row.credentials).map(str::to_owned);
                    *rows.entry(id).or_insert(0) += 1;
                }
            }
        }
        let vault = self.keys.vault();
        let mut uses = Vec::new();
        for (at, id) in vault.ids().into_iter().enumerate() {
            let id = Some(id.to_owned());
            uses.push(KeyUse {
                rows: rows.remove(&id).unwrap_or(0),
                role: if at == 0 { "write" } else { "read" },
                id,
            });
        }
        uses.extend(rows.into_iter().map(|(id, rows)| KeyUse {
            role: if id.is_some() { "missing" } else { "plain" },
            id,
            rows,
        }));
        Ok(uses)
    }

    /// Makes a new key and encrypts everything with it; a rotation that was broken off is finished
    /// instead, and so is one that stands in the key file by hand (several keys there).
    ///
    /// # Errors
    /// `credential_invalid`: rows that do not decrypt, which keep the old keys from being dropped.
    /// `invalid_params`: only one key, and it is in no file, so that nothing can be done.
    pub async fn rotate_keys(&self) -> Result<Rotation, Failure> {
        self.put_new_key().await?;
        let rewritten = self.encrypt_again().await?;
        self.drop_old_keys(rewritten).await
    }

    pub(super) async fn put_new_key(&self) -> Result<(), Failure> {
        let turn = self.database.change().await.map_err(failed)?;
        let keys = self.keys.source.keys().await.map_err(unavailable)?;
        let vault = Vault::new(&keys).map_err(unavailable)?;
        let is_begun = vault.ids().len() > 1;
        match &self.keys.source {
            _ if is_begun => {}
            KeySource::File { path, .. } if self.is_local() => {
                let new = Vault::generate_key();
                files::replace_key_file(path, &[&new, &keys]).map_err(unavailable)?;
            }
            _ => {
                let (source, id) = (&self.keys.source, vault.ids()[0]);
                return Err(Failure::new(
                    ErrorCode::InvalidParams,
                    format!(
                        "{source} holds one key ({id}): put a new one in front of it (`mcp-client keys new` prints one), \
                         for every process on this store, and run this again"
                    ),
                ));
            }
        }
        turn.commit().await.map_err(failed)
    }

    /// Encrypts with the key that writes whatever is not. Rows that cannot be read are left.
    pub(super) async fn encrypt_again(&self) -> Result<usize, Failure> {
        let mut rewritten = 0;
        for (_, page, update) in TABLES {
            let mut after = String::new();
            loop {
                let mut change = self.database.change().await.map_err(failed)?;
                let vault = self.keys.to_write().await?;
                let query = sql(page).bind(after.as_str());
                let rows: Vec<SealedRow> = change.fetch(query).await.map_err(failed)?;
                let Some(last) = rows.last() else { break };
                after.clone_from(&last.id);
                for row in &rows {
                    if key_id(&row.credentials) == vault.ids().first().copied() {
                        continue;
                    }
                    let Ok(sealed) = sealed_again(&vault, row) else {
                        continue;
                    };
                    let query = sql(update).bind(sealed).bind(row.id.as_str());
                    change.execute(query).await.map_err(failed)?;
                    rewritten += 1;
                }
                change.commit().await.map_err(failed)?;
            }
        }
        Ok(rewritten)
    }

    pub(super) async fn drop_old_keys(&self, rewritten: usize) -> Result<Rotation, Failure> {
        let mut turn = self.database.change().await.map_err(failed)?;
        let keys = self.keys.source.keys().await.map_err(unavailable)?;
        let vault = Vault::new(&keys).map_err(unavailable)?;
        let broken = unreadable(&mut turn, &vault.writer_only()).await?;
        if !broken.is_empty() {
            let message = format!(
                "{} rows of credentials cannot be read with the new key, so the old keys stay: {}. Set or remove these, and run this again",
                broken.len(),
                broken.join("; ")
            );
            return Err(Failure::new(ErrorCode::CredentialInvalid, message));
        }
        let ids: Vec<String> = vault.ids().into_iter().map(str::to_owned).collect();
        let is_done = match &self.keys.source {
            KeySource::File { path, .. } if self.is_local() => {
                drop_all_but_first(path, &keys)?;
                true
            }
            _ => false,
        };
        turn.commit().await.map_err(failed)?;
        Ok(Rotation {
            key: ids.first().cloned().unwrap_or_default(),
            rewritten,
            dropped: ids.into_iter().skip(1).collect(),
            is_done,
        })
    }
}

/// A new key, as the settings and the key file have it.
pub fn new_key() -> Secret {
    Vault::generate_key()
}

fn sealed_again(vault: &Vault, row: &SealedRow) -> Result<String, String> {
    let plain = vault.open(row.place(), &row.credentials)?;
    vault.seal(row.place(), &plain)
}

/// Which rows the vault does not open, and why.
async fn unreadable(turn: &mut Transaction, vault: &Vault) -> Result<Vec<String>, Failure> {
    let mut broken = Vec::new();
    for (table, page, _) in TABLES {
        let mut after = String::new();
        loop {
            let query = sql(page).bind(after.as_str());
            let rows: Vec<SealedRow> = turn.fetch(query).await.map_err(failed)?;
            let Some(last) = rows.last() else { break };
            after.clone_from(&last.id);
            for row in rows {
                let opened = match key_id(&row.credentials) {
                    Some(_) => vault.open(row.place(), &row.credentials).map(drop),
                    None => Err("are not encrypted".to_owned()),
                };
                if let Err(reason) = opened {
                    broken.push(format!("{table} {} {reason}", row.id));
                }
            }
        }
    }
    Ok(broken)
}

fn drop_all_but_first(path: &Path, keys: &Secret) -> Result<(), Failure> {
    let first = Vault::words(keys).next();
    let first = first.map(Secret::new);
    let first = first.ok_or_else(|| unavailable(format!("{} is empty", path.display())))?;
    files::replace_key_file(path, &[&first]).map_err(unavailable)
}

fn unavailable(reason: String) -> Failure {
    Failure::new(ErrorCode::ConfigUnavailable, reason)
}

#[cfg(test)]
#[path = "rotate_tests.rs"]
mod tests;
