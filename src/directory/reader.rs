//! Reads the body of the config API's answer into a snapshot.
//!
//! The definitions and the system's defaults are the same for most users: they are read once and
//! shared by all snapshots that say the same of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::Snapshot;
use super::source::Trouble;
use crate::model::caller::{ServerId, UserId};
use crate::model::definition::{ConfigFault, Definition};
use crate::model::naming::Namer;
use crate::model::redact::Redactor;
use crate::model::resolve::ServerEntry;
use crate::model::row;
use crate::model::secret::Credentials;

/// How many different sets of definitions are remembered (a host may show different users different
/// servers).
const REMEMBERED: usize = 16;

/// What a row of credentials came to; `None`: there is none in force.
type Stored = Result<Option<Credentials>, ConfigFault>;

#[derive(Deserialize)]
struct Envelope<'a> {
    code: Option<Value>,
    message: Option<Value>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

/// The raw rows of one answer.
#[derive(Deserialize)]
struct Tables<'a> {
    #[serde(borrow)]
    servers: &'a RawValue,
    #[serde(borrow, default)]
    default_credentials: Option<&'a RawValue>,
    #[serde(borrow, default)]
    user_credentials: Option<&'a RawValue>,
}

/// What is the same for all users.
struct Shared {
    digest: [u8; 32],
    definitions: Vec<(Definition, Stored)>,
    /// For a user without credentials of their own, in the same order.
    entries: Vec<Arc<ServerEntry>>,
}

pub struct Reader {
    redactor: Redactor,
    shared: Mutex<VecDeque<Arc<Shared>>>,
}

impl Reader {
    pub fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            shared: Mutex::default(),
        }
    }

    /// The snapshot that the body holds for `user`. Every credential in it is known to the redactor.
    pub fn read(
        &self,
        status: u16,
        body: &[u8],
        user: Option<UserId>,
        sequence: u64,
    ) -> Result<Snapshot, Trouble> {
        let tables = tables(status, body)?;
        let shared = self.shared(&tables)?;
        let own = own_rows(&tables, user.as_ref())?;
        let servers: Vec<_> = if own.is_empty() {
            shared.entries.clone()
        } else {
            let pairs = shared.definitions.iter().zip(&shared.entries);
            pairs
                .map(|(base, entry)| self.entry(base, entry, &own))
                .collect()
        };
        let namer = Namer::new(servers.iter().map(|entry| &*entry.definition.name));
        Ok(Snapshot {
            sequence,
            user,
            servers,
            namer,
        })
    }

    fn entry(
        &self,
        (definition, default): &(Definition, Stored),
        shared: &Arc<ServerEntry>,
        own: &HashMap<ServerId, Stored>,
    ) -> Arc<ServerEntry> {
        let Some(own) = own.get(&definition.id) else {
            return shared.clone();
        };
        self.learn(own);
        let default = default.as_ref().ok().cloned().flatten();
        Arc::new(with_credentials(definition.clone(), own.clone(), default))
    }

    fn learn(&self, stored: &Stored) {
        if let Ok(Some(credentials)) = stored {
            credentials
                .0
                .values()
                .for_each(|secret| self.redactor.learn(secret));
        }
    }

    fn shared(&self, tables: &Tables<'_>) -> Result<Arc<Shared>, Trouble> {
        let digest = digest(tables);
        let remembered = |all: &VecDeque<Arc<Shared>>| {
            all.iter().find(|shared| shared.digest == digest).cloned()
        };
        if let Some(shared) = remembered(&self.lock()) {
            return Ok(shared);
        }
        let shared = Arc::new(read_shared(tables, digest)?);
        shared
            .definitions
            .iter()
            .for_each(|(_, default)| self.learn(default));
        let mut all = self.lock();
        if let Some(first) = remembered(&all) {
            return Ok(first);
        }
        all.truncate(REMEMBERED - 1);
        all.push_front(shared.clone());
        Ok(shared)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Shared>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unpacks the envelope, or takes the body as bare data.
fn tables(status: u16, body: &[u8]) -> Result<Tables<'_>, Trouble> {
    let envelope: Result<Envelope<'_>, _> = serde_json::from_slice(body);
    let (code, message) = match &envelope {
        Ok(envelope) => (envelope.code.as_ref(), envelope.message.as_ref()),
        Err(_) => (None, None),
    };
    let code = code.and_then(number).unwrap_or(u64::from(status));
    let code = if status == 200 {
        code
    } else {
        u64::from(status)
    };
    if code != 200 {
        return Err(trouble_of(code, message.and_then(Value::as_str)));
    }
    let data = match &envelope {
        Ok(envelope) => envelope.data.map_or(body, |data| data.get().as_bytes()),
        Err(error) => return Err(unreadable(error)),
    };
    serde_json::from_slice(data).map_err(|error| unreadable(&error))
}

fn number(value: &Value) -> Option<u64> {
    value
        .as_u64()
        .or_else(|| value.as_str()?.trim().parse().ok())
}

fn trouble_of(code: u64, message: Option<&str>) -> Trouble {
    let said = match message.filter(|message| !message.is_empty()) {
        Some(message) => {
            let short: String = message
                .chars()
                .filter(|it| !it.is_control())
                .take(200)
                .collect();
            format!("answered {code}: {short}")
        }
        None => format!("answered {code}"),
    };
    match code {
        401 | 403 => Trouble::Unauthorized(said),
        408 | 429 | 500..=599 => Trouble::Passing(said),
        300..=399 => Trouble::Lasting(format!("{said}: redirects are not followed")),
        _ => Trouble::Lasting(said),
    }
}

fn unreadable(error: &serde_json::Error) -> Trouble {
    let place = (error.line(), error.column());
    Trouble::Passing(format!(
        "sent a body that is not what it should be (at line {}, column {})",
        place.0, place.1
    ))
}

fn digest(tables: &Tables<'_>) -> [u8; 32] {
    let defaults = tables.default_credentials.map_or("", RawValue::get);
    let mut digest = Sha256::new();
    digest.update((tables.servers.get().len() as u64).to_le_bytes());
    digest.update(tables.servers.get());
    digest.update(defaults);
    digest.finalize().into()
}

fn read_shared(tables: &Tables<'_>, digest: [u8; 32]) -> Result<Shared, Trouble> {
    let mut defaults = HashMap::new();
    for row in rows(tables.default_credentials)?
        .into_iter()
        .filter_map(row::credentials)
    {
        if !matches!(row.credentials, Ok(None)) {
            defaults.entry(row.server).or_insert(row.credentials);
        }
    }
    let definitions: Vec<_> = rows(Some(tables.servers))?
        .into_iter()
        .filter_map(|row| {
            let read = row::definition(row);
            if read.is_none() {
                tracing::warn!("the config API sent a server without a name: left out");
            }
            read
        })
        .map(|definition| {
            let default = defaults.get(&definition.id).cloned().unwrap_or(Ok(None));
            (definition, default)
        })
        .collect();
    let entries = definitions
        .iter()
        .map(|(definition, default)| {
            Arc::new(match default {
                Ok(default) => with_credentials(definition.clone(), Ok(None), default.clone()),
                Err(fault) => with_credentials(definition.clone(), Err(fault.clone()), None),
            })
        })
        .collect();
    Ok(Shared {
        digest,
        definitions,
        entries,
    })
}

/// The rows of `user_credentials` that are this user's, by server.
fn own_rows(
    tables: &Tables<'_>,
    user: Option<&UserId>,
) -> Result<HashMap<ServerId, Stored>, Trouble> {
    let mut own = HashMap::new();
    let Some(user) = user else {
        return Ok(own);
    };
    for row in rows(tables.user_credentials)?
        .into_iter()
        .filter_map(row::credentials)
    {
        if row.user.as_deref() != Some(user.as_str()) {
            tracing::warn!(%user, "the config API sent credentials of another user: left out");
        } else if !matches!(row.credentials, Ok(None)) {
            own.entry(row.server).or_insert(row.credentials);
        }
    }
    Ok(own)
}

fn rows(table: Option<&RawValue>) -> Result<Vec<Value>, Trouble> {
    let rows: Option<Vec<Value>> = match table {
        Some(table) => serde_json::from_str(table.get()).map_err(|error| unreadable(&error))?,
        None => None,
    };
    Ok(rows.unwrap_or_default())
}

/// Credentials that cannot be read make the server unusable, rather than be passed over.
fn with_credentials(
    mut definition: Definition,
    own: Stored,
    default_credentials: Option<Credentials>,
) -> ServerEntry {
    let user_credentials = own.unwrap_or_else(|fault| {
        if definition.template.is_ok() {
            definition.template = Err(fault);
        }
        None
    });
    ServerEntry {
        definition,
        user_credentials,
        default_credentials,
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
