//! Users' own credentials, changed through the config API.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::Directory;
use super::source::Trouble;
use crate::config_api::{DELETE, LIST, SET};
use crate::model::caller::{Caller, ServerId};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::secret::Credentials;

/// That there are credentials for a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Held {
    pub mcp_server_id: String,
    /// `user` or `default`.
    pub source: String,
    pub is_enabled: bool,
    pub updated_at: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    code: Option<u16>,
    message: Option<String>,
    #[serde(default)]
    data: Value,
}

impl Directory {
    /// Which credentials there are for the caller; never a value.
    ///
    /// # Errors
    /// `unsupported`: the config API has no such route. `config_unavailable`, `config_unauthorized`.
    pub async fn credentials(&self, caller: &Caller) -> Result<Vec<Held>, Failure> {
        let mut data = self.ask(caller, LIST, Map::new()).await?;
        let held = serde_json::from_value(data["credentials"].take());
        held.map_err(|_| self.unsupported())
    }

    /// Sets the caller's own credentials for a server. The next snapshot has them.
    ///
    /// # Errors
    /// As [`Directory::credentials`]; `credential_invalid`, `server_not_found`.
    pub async fn set_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        let fields = credentials.0.iter();
        let fields = fields.map(|(name, value)| (name.clone(), value.expose().into()));
        let fields: Map<String, Value> = fields.collect();
        let body = json!({"mcp_server_id": server.as_str(), "credentials": fields});
        self.change(caller, SET, body).await.map(drop)
    }

    /// Deletes the caller's own credentials for a server; `false`: there were none.
    ///
    /// # Errors
    /// As [`Directory::set_credentials`].
    pub async fn delete_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
    ) -> Result<bool, Failure> {
        let body = json!({"mcp_server_id": server.as_str()});
        let data = self.change(caller, DELETE, body).await?;
        Ok(data["deleted"] == true)
    }

    /// Whatever came of it, what was read before is asked for again.
    async fn change(
        &self,
        caller: &Caller,
        route: &'static str,
        body: Value,
    ) -> Result<Value, Failure> {
        let Value::Object(body) = body else {
            return Err(self.unsupported());
        };
        let done = self.ask(caller, route, body).await;
        self.forget(caller);
        done
    }

    async fn ask(
        &self,
        caller: &Caller,
        route: &'static str,
        mut body: Map<String, Value>,
    ) -> Result<Value, Failure> {
        let user = caller.user.as_ref().map(|user| user.as_str());
        body.insert("user_id".to_owned(), user.into());
        let patience = self.0.settings.timeout;
        let asked = self.0.source.ask(caller, route, body.into());
        let answer = timeout(patience, asked).await.unwrap_or_else(|_| {
            Err(Trouble::Passing(format!(
                "did not answer within {patience:?}"
            )))
        });
        let (status, body) = answer.map_err(|trouble| self.failure(trouble))?;
        let read: Result<Answer, _> = serde_json::from_slice(&body);
        let status = match &read {
            Ok(Answer {
                code: Some(code), ..
            }) if status == 200 => *code,
            _ => status,
        };
        match (status, read) {
            (200, Ok(answer)) => Ok(answer.data),
            (401 | 403, _) => Err(self.failure(Trouble::Unauthorized(format!(
                "refuses the token (status {status})"
            )))),
            (_, Ok(answer)) if answer.data["error_code"].is_string() => Err(self.said(answer)),
            (500.., _) if status != 501 => {
                Err(self.failure(Trouble::Passing(format!("failed (status {status})"))))
            }
            _ => Err(self.unsupported()),
        }
    }

    /// A failure in the words of the config API.
    fn said(&self, answer: Answer) -> Failure {
        let word = answer.data["error_code"].as_str().unwrap_or_default();
        let code = ErrorCode::ALL.iter().find(|code| code.as_str() == word);
        let mut failure = Failure::new(
            code.copied().unwrap_or(ErrorCode::ConfigUnavailable),
            answer
                .message
                .unwrap_or_else(|| "the config API failed".to_owned()),
        );
        if let Value::Object(details) = &answer.data["details"] {
            failure.details.clone_from(details);
        }
        failure.phase(Phase::Credentials)
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        let name = self.0.source.name();
        let (code, reason, advice) = match trouble {
            Trouble::Unauthorized(reason) => (
                ErrorCode::ConfigUnauthorized,
                reason,
                "the command's user.accessToken, or INTERNAL_TOKEN, must be valid",
            ),
            Trouble::Passing(reason) | Trouble::Lasting(reason) => (
                ErrorCode::ConfigUnavailable,
                reason,
                "try again when it is back",
            ),
        };
        let message = format!("the config API {name} {reason}; {advice}");
        Failure::new(code, message).phase(Phase::Credentials)
    }

    fn unsupported(&self) -> Failure {
        let message = format!(
            "the config API {} cannot list or change credentials: do it where it has them from",
            self.0.source.name()
        );
        Failure::new(ErrorCode::Unsupported, message).phase(Phase::Credentials)
    }
}
