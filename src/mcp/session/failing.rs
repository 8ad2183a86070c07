//! Why a request has no answer, and what is known of a connection that has ended.

use std::io;
use std::time::Duration;

use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::time::timeout;

use super::{Link, Session};
use crate::mcp::Connected;
use crate::mcp::http::was_refused;
use crate::mcp::tap::{Request, Slot};
use crate::mcp::wire::{Answer, MAX_MESSAGE};
use crate::model::error::{ErrorCode, Failure, Outcome};
use crate::model::json::RawJson;

/// How long a call waits to learn why its connection is gone, or how its process ended.
const POST_MORTEM: Duration = Duration::from_millis(200);

pub(super) enum NoAnswer {
    Timeout,
    /// The connection has ended, or its way to the child has.
    Lost,
    /// The child takes no more.
    Undelivered(io::Error),
    Service(ServiceError),
}

impl Session {
    pub(super) fn settled(&self, answer: &Answer) -> Result<RawJson, Failure> {
        let name = &self.server_name;
        match answer {
            Answer::Result(raw) => Ok(raw.clone()),
            Answer::Error(raw) => Err(server_error(name, raw)),
            Answer::Broken(reason) => {
                let text = format!("server `{name}` sent an answer that cannot be used: {reason}");
                Err(Failure::new(ErrorCode::ProtocolError, text).outcome(Outcome::Unknown))
            }
            Answer::TooLarge => {
                let text =
                    format!("the answer of server `{name}` is longer than {MAX_MESSAGE} bytes");
                let failure =
                    Failure::new(ErrorCode::ResultTooLarge, text).with("limit", MAX_MESSAGE);
                Err(failure.outcome(Outcome::Unknown))
            }
            Answer::Failed(failure) => {
                let mut failure = failure.clone();
                failure.message = format!("server `{name}`: {}", failure.message);
                Err(failure)
            }
            Answer::Lost => Err(self.lost()),
        }
    }

    pub(super) async fn unanswered(&self, reason: NoAnswer, slot: &Slot) -> Failure {
        let name = &self.server_name;
        let failure = match reason {
            NoAnswer::Timeout => {
                let text =
                    format!("server `{name}` did not answer in time; it has been told to stop");
                Failure::new(ErrorCode::CallTimeout, text)
            }
            NoAnswer::Service(ServiceError::TransportClosed) if self.peer.is_transport_closed() => {
                self.died_soon().await
            }
            NoAnswer::Lost => self.died_soon().await,
            NoAnswer::Undelivered(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.died_soon().await
            }
            NoAnswer::Undelivered(error) => {
                let text =
                    format!("the request could not be delivered to server `{name}`: {error}");
                Failure::new(ErrorCode::SessionLost, text)
            }
            NoAnswer::Service(ServiceError::TransportClosed | ServiceError::McpError(_)) => {
                let text = format!("server `{name}` ended the response before it had answered");
                Failure::new(ErrorCode::SessionLost, text)
            }
            NoAnswer::Service(ServiceError::TransportSend(error)) => {
                self.not_renewed(&*error.error)
            }
            NoAnswer::Service(_) => {
                let text = format!("the request could not be delivered to server `{name}`");
                Failure::new(ErrorCode::SessionLost, text)
            }
        };
        outcome_of(slot, failure)
    }

    /// A lost HTTP session that could not be renewed.
    fn not_renewed(&self, error: &(dyn std::error::Error + Send + Sync + 'static)) -> Failure {
        let name = &self.server_name;
        if let Some(Answer::Failed(failure)) = self.tap.handshake_answer() {
            let text = format!(
                "server `{name}` no longer knows the session: {}",
                failure.message
            );
            return Failure {
                message: text,
                ..failure
            };
        }
        let text = match was_refused(error) {
            true => format!(
                "server `{name}` no longer knows the session, and a new one could not be made"
            ),
            false => format!("the request could not be delivered to server `{name}`: {error}"),
        };
        let failure = Failure::new(ErrorCode::SessionLost, text);
        if was_refused(error) {
            failure.outcome(Outcome::NotSent)
        } else {
            failure
        }
    }

    async fn died_soon(&self) -> Failure {
        let death = timeout(POST_MORTEM, self.died()).await;
        death.unwrap_or_else(|_| self.lost())
    }

    /// What is known of the connection's death.
    fn lost(&self) -> Failure {
        let known = self.death.borrow().clone();
        known.unwrap_or_else(|| {
            let text = format!("the connection to server `{}` was lost", self.server_name);
            Failure::new(ErrorCode::SessionLost, text)
        })
    }
}

/// Says what may have become of a request without an answer.
pub(super) fn outcome_of(slot: &Slot, failure: Failure) -> Failure {
    if !slot.may_be_sent() {
        return failure.outcome(Outcome::NotSent);
    }
    let failure = failure.outcome(Outcome::Unknown);
    if matches!(slot.request, Request::CallTool { .. }) && !failure.is_not_sent() {
        return Failure {
            message: format!("{}. The tool may or may not have run", failure.message),
            ..failure
        };
    }
    failure
}

fn server_error(name: &str, raw: &RawJson) -> Failure {
    let error: Value = raw.read().unwrap_or(Value::Null);
    let said = error
        .get("message")
        .and_then(Value::as_str)
        .or(error.as_str());
    let said = said.unwrap_or("an error without a message");
    let mut failure = Failure::new(
        ErrorCode::ServerError,
        format!("server `{name}` answered with an error: {said}"),
    );
    for member in ["code", "message", "data"] {
        if let Some(value) = error.get(member) {
            failure = failure.with(member, value.clone());
        }
    }
    failure
}

/// The connection was ended by us, for what the server sent.
pub(super) fn ended_for(name: &str, link: &Link, fault: Failure) -> Failure {
    let failure = Failure {
        message: format!(
            "the connection to server `{name}` was ended: {}",
            fault.message
        ),
        ..fault
    };
    match link {
        Link::Stdio { process, outbox } => {
            outbox.close();
            process.explain(failure)
        }
        Link::Http(_) => failure,
    }
}

/// Says why a connection ended, as soon as its process can tell.
pub(super) async fn post_mortem(name: &str, link: &Link, was_closed: bool) -> Failure {
    if let Link::Stdio { outbox, .. } = link {
        outbox.close();
    }
    if was_closed {
        let text =
            format!("the connection to server `{name}` was closed while the call was running");
        return Failure::new(ErrorCode::Cancelled, text);
    }
    let Link::Stdio { process, .. } = link else {
        return Failure::new(
            ErrorCode::SessionLost,
            format!("the session with server `{name}` was lost"),
        );
    };
    let failure = match timeout(POST_MORTEM / 2, process.exited()).await {
        Ok(status) => Failure::new(
            ErrorCode::ServerCrashed,
            format!("server `{name}` ended: {status}"),
        ),
        Err(_) => Failure::new(
            ErrorCode::SessionLost,
            format!("server `{name}` closed its output"),
        ),
    };
    process.explain(failure)
}
