//! Floor 2: tool lists by connection key.

use std::sync::Arc;

use tokio::time::Instant;

use crate::mcp::Connected;
use crate::model::error::Failure;
use crate::model::json::RawJson;
use crate::model::resolve::PoolKey;

/// The tools of one key, as last listed in full.
pub struct Catalog {
    pub tools: Vec<Tool>,
    /// Tools left out, and pages not read: named, with the reason.
    pub warnings: Vec<String>,
    /// Raised by every list that differs from the one before.
    pub revision: u64,
}

/// One tool that passed the checks.
pub struct Tool {
    pub name: Arc<str>,
    /// The `Tool` object exactly as the server sent it.
    pub raw: RawJson,
    /// `annotations.readOnlyHint` or `idempotentHint` is true, and nothing contradicts it.
    pub may_repeat: bool,
}

impl Catalog {
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| &*tool.name == name)
    }
}

pub struct Catalogs {}

impl Catalogs {
    pub fn new() -> Self {
        Self {}
    }

    /// The last good catalog of the key, connected or not.
    pub fn get(&self, key: &PoolKey) -> Option<Arc<Catalog>> {
        let _ = key;
        todo!()
    }

    /// The catalog of the key, listed on `session` where there is none yet or the one at hand was
    /// made before the server said that it changed.
    pub async fn current<S: Connected>(
        &self,
        key: &PoolKey,
        session: &Arc<S>,
        deadline: Instant,
    ) -> Result<Arc<Catalog>, Failure> {
        let _ = (key, session, deadline);
        todo!()
    }

    /// Lists now, whatever is at hand. One fetch in flight per key.
    pub async fn refresh<S: Connected>(
        &self,
        key: &PoolKey,
        session: &Arc<S>,
        deadline: Instant,
    ) -> Result<Arc<Catalog>, Failure> {
        let _ = (key, session, deadline);
        todo!()
    }

    /// Catalogs held.
    pub fn count(&self) -> usize {
        todo!()
    }
}
