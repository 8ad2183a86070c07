//! One negotiated connection and the calls on it.

mod failing;
mod listing;
mod logging;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rmcp::model::{ClientRequest, CustomRequest};
use rmcp::service::{Peer, PeerRequestOptions, RunningService, ServiceError};
use rmcp::{RoleClient, Service};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::http::Endpoint;
use super::process::Process;
use super::stdio::Outbox;
use super::tap::{RawCall, Request, Slot, Tap};
use super::wire::Answer;
use super::{Ask, Connected, ListKind, Listed, ListedTools, ServerIdentity, ToolCall};
use crate::model::deadline::Deadline;
use crate::model::error::{ErrorCode, Failure, Outcome, Phase};
use crate::model::event::{EventSink, LogLevel};
use crate::model::json::RawJson;
use failing::{NoAnswer, ended_for, post_mortem};

const METHOD_NOT_FOUND: i64 = -32601;

/// What carries the session, and must be ended with it.
#[derive(Clone)]
pub(super) enum Link {
    Stdio {
        process: Arc<Process>,
        outbox: Arc<Outbox>,
    },
    Http(Endpoint),
}

/// A live MCP session; many calls run on it at once.
pub struct Session {
    id: u64,
    server_name: Arc<str>,
    peer: Peer<RoleClient>,
    tap: Arc<Tap>,
    link: Link,
    identity: ServerIdentity,
    /// Set once, when the connection has died or was closed.
    death: watch::Receiver<Option<Failure>>,
    /// Turns true when nothing of the connection is left.
    gone: watch::Receiver<bool>,
    stop: CancellationToken,
    closing: Arc<AtomicBool>,
    /// What the server was last asked to log, and in which session of the connection.
    logs: Mutex<Option<(u64, LogLevel)>>,
}

impl Session {
    pub(super) fn start<S: Service<RoleClient>>(
        server_name: Arc<str>,
        running: RunningService<RoleClient, S>,
        tap: Arc<Tap>,
        identity: ServerIdentity,
        link: Link,
        stop: CancellationToken,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let peer = running.peer().clone();
        let (death_sender, death) = watch::channel(None);
        let (gone_sender, gone) = watch::channel(false);
        let closing = Arc::new(AtomicBool::new(false));
        let (name, was_closed) = (server_name.clone(), closing.clone());
        let (watched, ending, carried) = (tap.clone(), stop.clone(), link.clone());
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(running.waiting());
            tokio::select! {
                _ = &mut ended => {}
                () = watched.noise().faulted() => {
                    ending.cancel();
                    let _ = ended.await;
                }
            }
            let was_closed = was_closed.load(Ordering::Acquire);
            let fault = watched.noise().fault().filter(|_| !was_closed);
            let failure = match fault {
                Some(fault) => ended_for(&name, &link, fault),
                None => post_mortem(&name, &link, was_closed).await,
            };
            death_sender.send_replace(Some(failure));
            watched.end();
            if let Link::Stdio { process, .. } = &link {
                process.end().await;
            }
            gone_sender.send_replace(true);
        });
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            id,
            server_name,
            peer,
            tap,
            link: carried,
            identity,
            death,
            gone,
            stop,
            closing,
            logs: Mutex::new(None),
        }
    }

    pub fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    /// How many lines of the server were no message: banners, answers nobody waited for.
    pub fn noise(&self) -> u64 {
        self.tap.noise().total()
    }

    /// Calls a tool and returns the `CallToolResult` exactly as the server sent it.
    /// Dropping the future tells the server that the call is cancelled.
    ///
    /// # Errors
    /// `server_error`, `protocol_error`, `result_too_large`, `call_timeout`, `server_crashed`,
    /// `session_lost`, `authorization_required`, `cancelled`; details say the outcome where the
    /// tool may or may not have run.
    pub async fn call_tool(&self, call: ToolCall) -> Result<RawJson, Failure> {
        let request = Request::CallTool {
            name: call.name,
            arguments: call.arguments,
            trace: call.trace,
        };
        let result = self
            .request(request, call.events, call.deadline, Phase::Call)
            .await?;
        self.complete(result, call.deadline)
    }

    /// A modern server may ask back instead of answering; nobody is there to reply.
    fn complete(&self, result: RawJson, deadline: Deadline) -> Result<RawJson, Failure> {
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(borrow, rename = "resultType")]
            result_type: Option<&'a str>,
        }
        if !self.is_modern() {
            return Ok(result);
        }
        match result.read::<Kind>().ok().and_then(|kind| kind.result_type) {
            None | Some("complete") => Ok(result),
            Some(other) => {
                let name = &self.server_name;
                let text = format!(
                    "server `{name}` answered with a result of type \"{other}\", which this client cannot continue"
                );
                let code = match other {
                    "input_required" | "task" => ErrorCode::Unsupported,
                    _ => ErrorCode::ProtocolError,
                };
                let failure = Failure::new(code, text).outcome(Outcome::Unknown);
                Err(self.placed(failure, deadline, Phase::Call))
            }
        }
    }

    fn is_modern(&self) -> bool {
        self.identity.protocol_version.as_str() >= "2026-07-28"
    }

    /// One request: its answer, or why there is none.
    async fn request(
        &self,
        request: Request,
        events: Option<EventSink>,
        deadline: Deadline,
        phase: Phase,
    ) -> Result<RawJson, Failure> {
        if let Some(level) = events.as_ref().and_then(|events| events.interest().logs()) {
            Box::pin(self.ask_for_logs(level, deadline)).await;
        }
        let call = OpenCall {
            session: self,
            slot: self.tap.open(request, events),
        };
        let answered = self.answered(&call.slot, deadline).await;
        let unanswered = match (call.slot.answer(), answered) {
            (Some(Answer::Lost), _) | (None, Ok(())) => NoAnswer::Lost,
            (None, Err(reason)) => reason,
            (Some(answer), _) => {
                let settled = self.settled(answer);
                return settled.map_err(|failure| self.placed(failure, deadline, phase));
            }
        };
        let failure = Box::pin(self.unanswered(unanswered, &call.slot)).await;
        Err(self.placed(failure, deadline, phase))
    }

    fn placed(&self, failure: Failure, deadline: Deadline, phase: Phase) -> Failure {
        failure
            .server(&self.server_name)
            .phase(phase)
            .elapsed(deadline.elapsed())
    }

    /// Carries the request to the server and waits for its answer, within the deadline as progress moves it.
    async fn answered(&self, slot: &Arc<Slot>, deadline: Deadline) -> Result<(), NoAnswer> {
        let mut carried = std::pin::pin!(self.carry(slot));
        let mut at = deadline.at;
        loop {
            tokio::select! {
                biased;
                outcome = &mut carried => return outcome,
                () = sleep_until(at) => match extended(deadline, slot.last_progress()) {
                    Some(later) if later > at => at = later,
                    _ => return Err(NoAnswer::Timeout),
                },
            }
        }
    }

    async fn carry(&self, slot: &Arc<Slot>) -> Result<(), NoAnswer> {
        match &self.link {
            Link::Stdio { outbox, .. } => {
                let line = self.tap.render(slot);
                let sent = outbox.send(line, Some(slot.clone()));
                sent.map_err(NoAnswer::Undelivered)?;
            }
            // Its answer may come on another stream.
            Link::Http(endpoint) => tokio::select! {
                biased;
                _ = slot.answered() => {}
                carried = Box::pin(endpoint.call(slot)) => if carried.is_err() {
                    Box::pin(self.renew(slot)).await.map_err(NoAnswer::Service)?;
                },
            },
        }
        slot.answered().await;
        Ok(())
    }

    /// Sends through rmcp what the server refused for a session that it no longer knows: rmcp
    /// opens a new one, once for all such requests.
    async fn renew(&self, slot: &Arc<Slot>) -> Result<(), ServiceError> {
        let mut request = CustomRequest::new(slot.request.method(), None);
        request.extensions.insert(RawCall(slot.clone()));
        let request = ClientRequest::CustomRequest(request);
        let options = PeerRequestOptions::no_options();
        let handle = self.peer.send_request_with_option(request, options).await?;
        match handle.rx.await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(ServiceError::TransportClosed),
        }
    }

    /// Asks for what is no list and no call; the result exactly as the server sent it.
    ///
    /// # Errors
    /// `unsupported` where the server cannot do this, and as [`Session::call_tool`].
    pub async fn ask(
        &self,
        ask: Ask,
        deadline: Deadline,
        events: Option<EventSink>,
    ) -> Result<RawJson, Failure> {
        let capability = ask.capability();
        // Before that revision there was completion, but no capability for it.
        let undeclarable =
            capability == "completions" && self.identity.protocol_version.as_str() < "2025-03-26";
        if !undeclarable && !self.declares(capability) {
            return Err(self.placed(self.lacks(capability), deadline, Phase::Call));
        }
        let request = Request::Ask(Box::new(ask));
        match self.request(request, events, deadline, Phase::Call).await {
            Err(failure) if is_unknown_method(&failure) => {
                Err(self.placed(self.lacks(capability), deadline, Phase::Call))
            }
            answered => self.complete(answered?, deadline),
        }
    }

    fn declares(&self, capability: &str) -> bool {
        let declared = self.identity.capabilities.get(capability);
        declared.is_some_and(|declared| !declared.is_null())
    }

    fn lacks(&self, capability: &str) -> Failure {
        let text = format!(
            "server `{}` does not support {capability}",
            self.server_name
        );
        Failure::new(ErrorCode::Unsupported, text).with("capability", capability)
    }
}

fn is_unknown_method(failure: &Failure) -> bool {
    failure.details.get("code").and_then(Value::as_i64) == Some(METHOD_NOT_FOUND)
}

impl Connected for Session {
    fn id(&self) -> u64 {
        self.id
    }

    async fn died(&self) -> Failure {
        let mut death = self.death.clone();
        let found = death
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|found| found.clone());
        found.unwrap_or_else(|| Failure::new(ErrorCode::SessionLost, "the connection is gone"))
    }

    fn is_dead(&self) -> bool {
        self.death.borrow().is_some()
    }

    async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.stop.cancel();
        let _ = self.gone.clone().wait_for(|gone| *gone).await;
    }

    async fn list_tools(&self, deadline: Instant) -> Result<ListedTools, Failure> {
        let Listed { items, warnings } = self.list(ListKind::Tools, deadline).await?;
        Ok(ListedTools {
            tools: items,
            warnings,
        })
    }

    fn tools_changed(&self) -> watch::Receiver<u64> {
        self.tap.tools_changed()
    }
}

/// A request the server may still be working on: dropped unanswered, it is cancelled.
struct OpenCall<'a> {
    session: &'a Session,
    slot: Arc<Slot>,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Session { tap, link, .. } = self.session;
        if !tap.forget(self.slot.id) {
            return;
        }
        match link {
            // Nobody waits for the outcome.
            Link::Stdio { outbox, .. } => {
                let _ = outbox.send(Tap::render_cancelled(self.slot.id), None);
            }
            Link::Http(endpoint) => endpoint.cancel(self.slot.id),
        }
    }
}

/// Where progress has moved the deadline to.
fn extended(deadline: Deadline, last_progress: Option<Instant>) -> Option<Instant> {
    let extension = deadline.extension?;
    Some((last_progress? + extension.by).min(extension.until))
}
