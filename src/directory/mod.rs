//! Floor 2: the definitions and credentials in force for a user.

use std::sync::Arc;

use crate::model::caller::{Caller, UserId};
use crate::model::error::Failure;
use crate::model::naming::Namer;
use crate::model::redact::Redactor;
use crate::model::resolve::ServerEntry;
use crate::model::settings::Settings;

/// Everything the config API said of one user, at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Later snapshots have higher numbers.
    pub sequence: u64,
    pub user: Option<UserId>,
    /// By name, in the order of the config API.
    pub servers: Vec<Arc<ServerEntry>>,
    pub namer: Namer,
}

impl Snapshot {
    /// The server of this name: exactly, else folded where that is unique.
    ///
    /// # Errors
    /// `server_not_found`, or `invalid_params` naming both when a folded name fits two.
    pub fn find(&self, name: &str) -> Result<&Arc<ServerEntry>, Failure> {
        let _ = name;
        todo!()
    }
}

pub struct Directory {}

impl Directory {
    /// Opens the embedded store, or prepares the client of the foreign API.
    pub async fn open(settings: &Settings, redactor: Redactor) -> Result<Self, Failure> {
        let _ = (settings, redactor);
        todo!()
    }

    /// What is in force for this caller now.
    ///
    /// # Errors
    /// `config_unavailable`, `config_unauthorized`.
    pub async fn snapshot(&self, caller: &Caller) -> Result<Arc<Snapshot>, Failure> {
        let _ = caller;
        todo!()
    }
}
