//! Tools that are kept by the config API, across restarts and for other daemons.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::Directory;
use crate::config_api::{GET_TOOLS, PUT_TOOLS};
use crate::model::caller::{Caller, ServerId, UserId};
use crate::model::json::RawJson;
use crate::model::resolve::{PoolKey, Scope};

/// Longer than that, asking the server itself is as good.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whose tools, of which server: made of a connection's key alone, so that nothing is read or
/// written for others than those whom that connection serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolsOf {
    server: ServerId,
    /// `None`: of the connection that all users share.
    user: Option<UserId>,
}

impl ToolsOf {
    /// `None`: of one conversation, which is not kept.
    pub fn key(key: &PoolKey) -> Option<Self> {
        let user = match &key.scope {
            Scope::Shared => None,
            Scope::User(user) => Some(user.clone()),
            Scope::Session(..) => return None,
        };
        Some(Self {
            server: key.server.clone(),
            user,
        })
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    data: Tools<'a>,
}

#[derive(Deserialize)]
struct Tools<'a> {
    #[serde(borrow, default)]
    tools: Option<Vec<&'a RawValue>>,
}

impl Directory {
    /// The tools that are kept; `None` also where the config API keeps none or cannot say.
    pub async fn kept_tools(&self, caller: &Caller, of: &ToolsOf) -> Option<Vec<RawJson>> {
        let body = json!({
            "mcp_server_id": of.server.as_str(),
            "user_id": of.user.as_ref().map(|user| user.as_str()),
        });
        let body = self.ask_for_tools(caller, GET_TOOLS, body).await?;
        let answer: Answer = serde_json::from_slice(&body).ok()?;
        let tools = answer.data.tools?.into_iter();
        Some(tools.map(|tool| RawJson::part_of(&body, tool)).collect())
    }

    /// Keeps the tools, where the config API can. That it cannot is nobody's failure.
    pub async fn keep_tools(&self, caller: &Caller, of: &ToolsOf, tools: &[RawJson]) {
        let body = json!({
            "mcp_server_id": of.server.as_str(),
            "user_id": of.user.as_ref().map(|user| user.as_str()),
            "tools": tools,
        });
        self.ask_for_tools(caller, PUT_TOOLS, body).await;
    }

    async fn ask_for_tools(
        &self,
        caller: &Caller,
        route: &'static str,
        body: serde_json::Value,
    ) -> Option<Bytes> {
        let lacking = &self.0.keeps_no_tools;
        if lacking.load(Ordering::Relaxed) {
            return None;
        }
        let asked = timeout(PATIENCE, self.0.source.ask(caller, route, body)).await;
        match asked {
            Ok(Ok((200, body))) => Some(body),
            Ok(Ok((404 | 405 | 501, _))) => {
                lacking.store(true, Ordering::Relaxed);
                None
            }
            Ok(Ok((status, _))) => {
                tracing::debug!(status, route, "the config API keeps these tools not");
                None
            }
            Ok(Err(trouble)) => {
                tracing::debug!(?trouble, route, "the config API was not asked for tools");
                None
            }
            Err(_) => None,
        }
    }
}
