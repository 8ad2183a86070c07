//! Whose connection a command uses, and with which values it is started (docs/config-api.md).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::caller::{Caller, ServerId, SessionId, UserId};
use super::definition::Definition;
use super::error::Failure;
use super::secret::{CredentialSource, Credentials, Secret};

/// A definition with the credentials that its user has for it.
#[derive(Debug)]
pub struct ServerEntry {
    pub definition: Definition,
    pub user_credentials: Option<Credentials>,
    pub default_credentials: Option<Credentials>,
}

/// Who may use a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Shared,
    User(UserId),
    Session(UserId, SessionId),
}

impl Scope {
    pub fn user(&self) -> Option<&UserId> {
        match self {
            Self::Shared => None,
            Self::User(user) | Self::Session(user, _) => Some(user),
        }
    }
}

/// A keyed hash of everything a connection is started with; the key is random per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

/// The identity of a pooled connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    pub server: ServerId,
    pub scope: Scope,
    pub fingerprint: Fingerprint,
}

/// A definition resolved for one caller: all that is needed to connect.
#[derive(Debug)]
pub struct Target {
    pub server_name: Arc<str>,
    pub key: PoolKey,
    pub launch: Launch,
    pub credential_source: Option<CredentialSource>,
    /// Identifies the definition whoever uses it: era verdicts are remembered by it.
    pub definition_fingerprint: Fingerprint,
}

/// Values ready for use, placeholders replaced.
#[derive(Debug)]
pub enum Launch {
    Stdio {
        command: String,
        args: Vec<Secret>,
        env: BTreeMap<String, Secret>,
    },
    Http {
        url: Secret,
        headers: Vec<(http::HeaderName, http::HeaderValue)>,
    },
}

/// Decides whose connection `caller` gets to the server, and fills in its placeholders.
///
/// # Errors
/// `config_invalid`, `credentials_required`, `credential_field_missing`, `credential_invalid`,
/// `invalid_params` (a user-isolated server without a user), `unsupported`, with `server_name` and `phase`.
/// Whether the server is enabled is not asked here.
pub fn resolve(entry: &ServerEntry, caller: &Caller) -> Result<Target, Failure> {
    let _ = (entry, caller);
    todo!()
}
