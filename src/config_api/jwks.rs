//! The keys that verify users' tokens, from where the settings say, and again when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use tokio::time::Instant;

use super::jwt::{Key, key_in, keys_of_set, names_another_key};
use crate::model::settings::ServerSettings;

/// How old keys from elsewhere may become; a token that names an unknown one asks sooner.
const AGE: Duration = Duration::from_secs(600);
/// The least time between two questions that tokens cause.
const PAUSE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(3);
const LARGEST_SET: usize = 1024 * 1024;

pub(super) struct Keys {
    /// Of `server.jwt_key`.
    own: Option<PathBuf>,
    set: Option<Source>,
    known: Mutex<Known>,
}

enum Source {
    File(PathBuf),
    Url(Client, Url),
}

struct Known {
    keys: Arc<[Key]>,
    asked: Instant,
    /// From when on an unknown key is reason enough to ask.
    patient_until: Instant,
}

impl Keys {
    /// Reads all of them.
    ///
    /// # Errors
    /// A setting that cannot be used, named.
    pub(super) async fn read(settings: &ServerSettings) -> Result<Self, String> {
        let set = match &settings.jwt_jwks {
            Some(place) if place.contains("://") => Some(url(place)?),
            Some(file) => Some(Source::File(file.into())),
            None => None,
        };
        let keys = Self {
            own: settings.jwt_key.as_ref().map(PathBuf::from),
            set,
            known: Mutex::new(Known {
                keys: Arc::default(),
                asked: Instant::now(),
                patient_until: Instant::now(),
            }),
        };
        keys.read_again().await?;
        Ok(keys)
    }

    /// Whether no token can be verified at all.
    pub(super) fn are_none(&self) -> bool {
        self.own.is_none() && self.set.is_none()
    }

    /// Reads all of them again; those at hand stay where that fails.
    pub(super) async fn read_again(&self) -> Result<(), String> {
        let mut keys = Vec::new();
        if let Some(file) = &self.own {
            keys.push(key_in(file).map_err(|reason| format!("server.jwt_key {reason}"))?);
        }
        let set = match &self.set {
            Some(Source::File(file)) => set_in(file),
            Some(Source::Url(client, url)) => fetch(client, url).await,
            None => Ok(Vec::new()),
        };
        keys.extend(set.map_err(|reason| format!("server.jwt_jwks {reason}"))?);
        self.known().keys = keys.into();
        Ok(())
    }

    /// The keys with which to verify this token, asked for again where it is time to.
    pub(super) async fn for_token(&self, token: &str) -> Arc<[Key]> {
        let (keys, is_due) = {
            let mut known = self.known();
            let now = Instant::now();
            let is_due = matches!(self.set, Some(Source::Url(..)))
                && now >= known.patient_until
                && (now - known.asked > AGE || names_another_key(token, &known.keys));
            if is_due {
                known.asked = now;
                known.patient_until = now + PAUSE;
            }
            (known.keys.clone(), is_due)
        };
        if !is_due {
            return keys;
        }
        if let Err(reason) = self.read_again().await {
            tracing::warn!("{reason}; going on with the keys at hand");
        }
        self.known().keys.clone()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn url(text: &str) -> Result<Source, String> {
    let invalid = |reason: String| format!("server.jwt_jwks {reason}");
    let url = Url::parse(text).map_err(|error| invalid(format!("is no url: {error}")))?;
    let host = url.host_str().unwrap_or_default();
    let is_here = ["127.0.0.1", "[::1]", "localhost"].contains(&host);
    if url.scheme() != "https" && !is_here {
        return Err(invalid("must begin with https://".to_owned()));
    }
    let client = Client::builder()
        .redirect(Policy::none())
        .timeout(PATIENCE)
        .build()
        .map_err(|error| invalid(format!("cannot be used: {error}")))?;
    Ok(Source::Url(client, url))
}

fn set_in(file: &Path) -> Result<Vec<Key>, String> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    keys_of_set(&text, false).map_err(|reason| format!("{shown} {reason}"))
}

async fn fetch(client: &Client, url: &Url) -> Result<Vec<Key>, String> {
    let failed = |error: reqwest::Error| format!("cannot be fetched: {error}");
    let answer = client.get(url.clone()).send().await.map_err(failed)?;
    let mut answer = answer.error_for_status().map_err(failed)?;
    let mut text = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        if text.len() + chunk.len() > LARGEST_SET {
            return Err(format!("holds more than {LARGEST_SET} bytes"));
        }
        text.extend_from_slice(&chunk);
    }
    keys_of_set(&text, true)
}
