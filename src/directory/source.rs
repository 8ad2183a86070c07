//! Where the rows come from: the embedded config API, or a foreign host's.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::config_api::{InProcess, Mark, Store};
use crate::model::caller::Caller;

/// A config API.
pub trait ConfigSource: Send + Sync + 'static {
    /// How long an answer that was asked for now holds.
    fn freshness(&self) -> Freshness;

    /// Asks once for the rows of the caller. `version`: that of the answer at hand.
    fn fetch<'a>(
        &'a self,
        caller: &'a Caller,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Fetched, Trouble>>;

    /// Asks a route of the API beside that for rows, once; status and body of the answer.
    fn ask<'a>(
        &'a self,
        caller: &'a Caller,
        route: &'static str,
        body: Value,
    ) -> BoxFuture<'a, Result<(u16, Bytes), Trouble>>;

    /// For messages: where the API is, without secrets.
    fn name(&self) -> &str;
}

/// How to tell whether an answer still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Until the store's mark is another one.
    Marked(Mark),
    /// For that long.
    For(Duration),
    /// Only by asking again.
    Asked,
}

/// An answer of the config API.
pub enum Fetched {
    /// What is at hand still holds.
    NotModified,
    Body {
        status: u16,
        body: Bytes,
        /// To ask with the next time.
        version: Option<String>,
    },
}

/// Why there is no answer; the text reads after "the config API ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It may be gone at the next try, and does not speak against what is at hand.
    Passing(String),
    /// Asking again is of no use.
    Lasting(String),
    /// This caller may not ask.
    Unauthorized(String),
}

/// The embedded API over a store, asked without a port.
pub struct Embedded {
    store: Store,
    api: InProcess,
    /// How long an answer from a database that others change too is used.
    ttl: Duration,
}

impl Embedded {
    pub fn new(store: Store, ttl: Duration) -> Self {
        Self {
            api: InProcess::new(store.clone()),
            store,
            ttl,
        }
    }

    async fn ask(&self, caller: &Caller, version: Option<&str>) -> Result<Fetched, Trouble> {
        let now = match self.store.mark() {
            None if self.store.is_local() => Some(self.data_version().await?),
            _ => None,
        };
        if now.is_some() && now.as_deref() == version {
            return Ok(Fetched::NotModified);
        }
        let user = caller.user.as_ref().map(|user| user.as_str());
        let (status, body) = self.api.post(user).await.map_err(Trouble::Passing)?;
        Ok(Fetched::Body {
            status,
            body,
            version: now,
        })
    }

    async fn data_version(&self) -> Result<String, Trouble> {
        let version = self.store.data_version().await;
        version
            .map(|version| version.to_string())
            .map_err(|failure| Trouble::Passing(format!("failed: {}", failure.message)))
    }
}

impl ConfigSource for Embedded {
    fn freshness(&self) -> Freshness {
        match self.store.mark() {
            Some(mark) => Freshness::Marked(mark),
            None if self.store.is_local() => Freshness::Asked,
            None => Freshness::For(self.ttl),
        }
    }

    fn fetch<'a>(
        &'a self,
        caller: &'a Caller,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Fetched, Trouble>> {
        Box::pin(self.ask(caller, version))
    }

    fn ask<'a>(
        &'a self,
        _: &'a Caller,
        route: &'static str,
        body: Value,
    ) -> BoxFuture<'a, Result<(u16, Bytes), Trouble>> {
        let answer = async move { self.api.ask(route, body.to_string()).await };
        Box::pin(async move { answer.await.map_err(Trouble::Passing) })
    }

    fn name(&self) -> &'static str {
        "(embedded)"
    }
}
