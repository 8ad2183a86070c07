//! Floor 2: the definitions and credentials in force for a user.

mod cache;
mod credentials;
mod foreign;
mod reader;
mod source;
mod tools;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep, timeout_at};

use crate::config_api::Store;
use crate::model::caller::{Caller, UserId};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::naming::{Namer, fold};
use crate::model::redact::Redactor;
use crate::model::resolve::ServerEntry;
use crate::model::settings::{ConfigSettings, Settings};

use cache::{Answer, Cache, Coming, Flight, Kept, Key, Slot};
pub use credentials::Held;
use foreign::Foreign;
use reader::Reader;
use source::{ConfigSource, Embedded, Fetched, Freshness, Trouble};
pub use tools::ToolsOf;

/// The pause before the second try; it doubles from there.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

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
        let exact = self
            .servers
            .iter()
            .find(|entry| &*entry.definition.name == name);
        if let Some(entry) = exact {
            return Ok(entry);
        }
        let folded = fold(name);
        let mut fitting = self
            .servers
            .iter()
            .filter(|it| fold(&it.definition.name) == folded);
        match (fitting.next(), fitting.next()) {
            (Some(entry), None) => Ok(entry),
            (Some(one), Some(other)) => Err(Failure::new(
                ErrorCode::InvalidParams,
                format!(
                    "{name:?} fits two servers, {:?} and {:?}: name one of them exactly",
                    one.definition.name, other.definition.name
                ),
            )
            .server(name)),
            (None, _) => Err(Failure::new(
                ErrorCode::ServerNotFound,
                match &self.user {
                    Some(user) => format!("there is no server named {name:?} for user {user}"),
                    None => format!("there is no server named {name:?}"),
                },
            )
            .server(name)),
        }
        .map_err(|failure| failure.phase(Phase::Resolve))
    }
}

/// What is in force, asked of the config API and kept for as long as it holds. Cloning shares it.
#[derive(Clone)]
pub struct Directory(Arc<Inner>);

struct Inner {
    source: Box<dyn ConfigSource>,
    settings: ConfigSettings,
    redactor: Redactor,
    reader: Reader,
    cache: Cache,
    sequence: AtomicU64,
    /// When the source was last asked how fresh an answer would be, and what it said.
    looked: Mutex<Option<(Instant, Freshness)>>,
    /// The config API has no routes for tools.
    keeps_no_tools: AtomicBool,
}

impl Directory {
    /// Opens the embedded store, or prepares the client of the foreign API.
    ///
    /// # Errors
    /// `config_unavailable`, and `config_invalid` for a setting that cannot be used.
    pub async fn open(settings: &Settings, redactor: Redactor) -> Result<Self, Failure> {
        let source: Box<dyn ConfigSource> = match &settings.config.api_base {
            Some(base) => Box::new(Foreign::new(base, &settings.config).map_err(|reason| {
                Failure::new(
                    ErrorCode::ConfigInvalid,
                    format!("the setting config.api_base (API_BASE) {reason}"),
                )
            })?),
            None => Box::new(Embedded::new(
                Store::open(settings).await?,
                settings.config.ttl,
            )),
        };
        Ok(Self::over(source, &settings.config, redactor))
    }

    fn over(source: Box<dyn ConfigSource>, settings: &ConfigSettings, redactor: Redactor) -> Self {
        if let Some(token) = &settings.internal_token {
            redactor.learn(token);
        }
        Self(Arc::new(Inner {
            source,
            settings: settings.clone(),
            reader: Reader::new(redactor.clone()),
            redactor,
            cache: Cache::new(settings.max_stale.max(settings.ttl)),
            sequence: AtomicU64::new(1),
            looked: Mutex::default(),
            keeps_no_tools: AtomicBool::new(false),
        }))
    }

    /// What is in force for this caller now.
    ///
    /// # Errors
    /// `config_unavailable`, `config_unauthorized`.
    pub async fn snapshot(&self, caller: &Caller) -> Result<Arc<Snapshot>, Failure> {
        self.snapshot_since(caller, Instant::now()).await
    }

    /// What is in force for this caller, at some moment after `since`.
    ///
    /// # Errors
    /// As [`Directory::snapshot`].
    pub async fn snapshot_since(
        &self,
        caller: &Caller,
        since: Instant,
    ) -> Result<Arc<Snapshot>, Failure> {
        let now = self.freshness(since);
        let key = Key::of(caller);
        let start = |slot: &mut Slot| match slot.current(now) {
            Some(current) => current,
            None => Err(self.take_off(slot, &key, caller, now)),
        };
        match self.0.cache.with(&key, start) {
            Ok(snapshot) => Ok(snapshot),
            Err(coming) => coming.await,
        }
    }

    /// What the caller's user was told so far is asked for again.
    fn forget(&self, caller: &Caller) {
        let floor = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        self.0.cache.forget(caller.user.as_ref(), floor);
        *self.0.looked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Commands that were read together look at the store once.
    fn freshness(&self, since: Instant) -> Freshness {
        let mut looked = self.0.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, freshness)) = *looked
            && at > since
        {
            return freshness;
        }
        let at = Instant::now();
        let freshness = self.0.source.freshness();
        *looked = Some((at, freshness));
        freshness
    }

    /// Asks in a task of its own: the answer does not depend on the patience of who asked first.
    fn take_off(&self, slot: &mut Slot, key: &Key, caller: &Caller, now: Freshness) -> Coming {
        if slot.token.is_none() {
            slot.token = caller.access_token.clone();
            slot.token
                .iter()
                .for_each(|token| self.0.redactor.learn(token));
        }
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        let question = Question {
            inner: self.0.clone(),
            key: key.clone(),
            caller: caller.clone(),
            at_hand: slot.kept.clone(),
            sequence,
            freshness: now,
        };
        let task = tokio::spawn(question.settle());
        let answer = task
            .map(|ended| ended.unwrap_or_else(|_| Err(broken())))
            .boxed()
            .shared();
        slot.flight = Some(Flight {
            sequence,
            freshness: now,
            answer: answer.clone(),
        });
        answer
    }
}

fn broken() -> Failure {
    Failure::new(
        ErrorCode::Internal,
        "reading the definitions and credentials broke off",
    )
}

/// One question to the config API, with all its tries.
struct Question {
    inner: Arc<Inner>,
    key: Key,
    caller: Caller,
    at_hand: Option<Kept>,
    sequence: u64,
    freshness: Freshness,
}

impl Question {
    async fn settle(self) -> Answer {
        let outcome = self.try_within_timeout().await;
        let (answer, kept) = match outcome {
            Ok(kept) => (Ok(kept.snapshot.clone()), Some(kept)),
            Err(trouble) => self.fall_back(trouble),
        };
        self.inner
            .cache
            .with(&self.key, |slot| slot.land(self.sequence, kept));
        answer
    }

    async fn try_within_timeout(&self) -> Result<Kept, Trouble> {
        let timeout = self.inner.settings.timeout;
        let end = Instant::now() + timeout;
        let known_to_fail = self.usable().is_some_and(|kept| kept.failed.is_some());
        let mut pause = FIRST_PAUSE;
        loop {
            let trouble = match timeout_at(end, self.try_once()).await {
                Ok(Ok(kept)) => return Ok(kept),
                Ok(Err(trouble)) => trouble,
                Err(_) => Trouble::Passing(format!("did not answer within {timeout:?}")),
            };
            let passing = matches!(trouble, Trouble::Passing(_));
            if !passing || known_to_fail || Instant::now() + pause >= end {
                return Err(trouble);
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    async fn try_once(&self) -> Result<Kept, Trouble> {
        let at_hand = self.at_hand.as_ref();
        let version = at_hand.and_then(|kept| kept.version.as_deref());
        let asked = Instant::now();
        let fetched = self.inner.source.fetch(&self.caller, version).await?;
        let (snapshot, version) = match (fetched, at_hand) {
            (
                Fetched::Body {
                    status,
                    body,
                    version,
                },
                _,
            ) => {
                let user = self.caller.user.clone();
                let read = self.inner.reader.read(status, &body, user, self.sequence)?;
                (Arc::new(read), version)
            }
            (Fetched::NotModified, Some(kept)) => (kept.snapshot.clone(), kept.version.clone()),
            (Fetched::NotModified, None) => {
                return Err(Trouble::Lasting("sent no data".to_owned()));
            }
        };
        Ok(Kept {
            snapshot,
            sequence: self.sequence,
            freshness: self.freshness,
            version,
            confirmed: asked,
            failed: None,
        })
    }

    /// The last good answer, while it is young enough to go on with.
    fn usable(&self) -> Option<&Kept> {
        let max_stale = self.inner.settings.max_stale;
        let kept = self.at_hand.as_ref();
        kept.filter(|kept| kept.confirmed.elapsed() <= max_stale)
    }

    /// What is answered, and what is kept, when the config API does not answer well.
    fn fall_back(&self, trouble: Trouble) -> (Answer, Option<Kept>) {
        let name = self.inner.source.name();
        let failure = |code, reason: &str, advice| {
            let message = format!("the config API {name} {reason}; {advice}");
            Err(Failure::new(code, message).phase(Phase::Resolve))
        };
        let reason = match trouble {
            Trouble::Unauthorized(reason) => {
                let advice = "the command's user.accessToken, or INTERNAL_TOKEN, must be valid";
                return (
                    failure(ErrorCode::ConfigUnauthorized, &reason, advice),
                    None,
                );
            }
            Trouble::Lasting(reason) => {
                let advice = "check API_BASE";
                let kept = self.at_hand.clone();
                return (failure(ErrorCode::ConfigUnavailable, &reason, advice), kept);
            }
            Trouble::Passing(reason) => reason,
        };
        let Some(mut kept) = self.usable().cloned() else {
            let advice = "try again when it is back";
            return (failure(ErrorCode::ConfigUnavailable, &reason, advice), None);
        };
        tracing::warn!(
            user = self.caller.user.as_ref().map(|user| user.as_str()),
            age_ms = u64::try_from(kept.confirmed.elapsed().as_millis()).unwrap_or(u64::MAX),
            "the config API {name} {reason}; going on with what it last said"
        );
        kept.failed = Some(Instant::now());
        (Ok(kept.snapshot.clone()), Some(kept))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
