//! `list_tools` with `if_revision`: what has changed since a list that the host has.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::view::lock;
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::json::Rope;

/// Lists that are remembered, of all users; the oldest is forgotten first.
const REMEMBERED: usize = 1024;

/// The entries of one list, by injected name, with a digest each.
type Entries = HashMap<String, [u8; 16]>;

/// The lists that hosts may ask about.
#[derive(Default)]
pub(super) struct Revisions(Mutex<VecDeque<Remembered>>);

struct Remembered {
    user: Option<UserId>,
    revision: String,
    entries: Arc<Entries>,
}

impl Remembered {
    fn is(&self, user: Option<&UserId>, revision: &str) -> bool {
        self.user.as_ref() == user && self.revision == revision
    }
}

/// A list against the one that the host has.
pub(super) enum Difference {
    Unchanged,
    Changed {
        /// The entries as the list has them, a comma between them.
        added: Rope,
        changed: Rope,
        /// Injected names, sorted.
        removed: Vec<String>,
    },
    /// The host's list is not remembered.
    Unknown,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl Revisions {
    /// The revision of the entries, as `user` sees them, and how they differ from the list `known`.
    pub fn compare(
        &self,
        user: Option<&UserId>,
        entries: &Rope,
        known: &str,
    ) -> Result<(String, Difference), Failure> {
        let revision = revision(entries);
        if revision == known {
            return Ok((revision, Difference::Unchanged));
        }
        let text = [b"[", &entries.concat()[..], b"]"].concat();
        let raws: Vec<&RawValue> = serde_json::from_slice(&text).map_err(|error| broken(&error))?;
        let mut now = Entries::with_capacity(raws.len());
        let mut named = Vec::with_capacity(raws.len());
        for raw in raws {
            let entry: Named = serde_json::from_str(raw.get()).map_err(|error| broken(&error))?;
            let digest = short(Sha256::digest(raw.get()).as_slice());
            now.insert(entry.name.clone(), digest);
            named.push((entry.name, digest, raw));
        }
        let Some(before) = self.known(user, known) else {
            self.remember(user, &revision, now);
            return Ok((revision, Difference::Unknown));
        };
        let (mut added, mut changed) = (Vec::new(), Vec::new());
        for (name, digest, raw) in named {
            match before.get(&name) {
                None => added.push(raw.get()),
                Some(known) if *known != digest => changed.push(raw.get()),
                Some(_) => {}
            }
        }
        let gone = before.keys().filter(|name| !now.contains_key(*name));
        let mut removed: Vec<_> = gone.cloned().collect();
        removed.sort_unstable();
        let difference = Difference::Changed {
            added: joined(&added),
            changed: joined(&changed),
            removed,
        };
        self.remember(user, &revision, now);
        Ok((revision, difference))
    }

    /// A revision is of no use to another user.
    fn known(&self, user: Option<&UserId>, revision: &str) -> Option<Arc<Entries>> {
        let all = lock(&self.0);
        let found = all.iter().find(|list| list.is(user, revision));
        found.map(|list| list.entries.clone())
    }

    fn remember(&self, user: Option<&UserId>, revision: &str, entries: Entries) {
        let mut all = lock(&self.0);
        all.retain(|list| !list.is(user, revision));
        all.truncate(REMEMBERED - 1);
        all.push_front(Remembered {
            user: user.cloned(),
            revision: revision.to_owned(),
            entries: Arc::new(entries),
        });
    }
}

fn revision(entries: &Rope) -> String {
    let mut digest = Sha256::new();
    for piece in entries.pieces() {
        digest.update(piece);
    }
    URL_SAFE_NO_PAD.encode(short(digest.finalize().as_slice()))
}

fn short(digest: &[u8]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

fn joined(entries: &[&str]) -> Rope {
    let mut rope = Rope::default();
    rope.push(entries.join(","));
    rope
}

fn broken(error: &serde_json::Error) -> Failure {
    let message = format!("the list of tools cannot be compared: {error}");
    Failure::new(ErrorCode::Internal, message)
}
