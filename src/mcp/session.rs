//! One negotiated connection and the calls on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{ClientRequest, CustomRequest};
use rmcp::service::{Peer, PeerRequestOptions, RunningService, ServiceError};
use rmcp::{RoleClient, Service};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::http::{Endpoint, was_refused};
use super::process::Process;
use super::stdio::Outbox;
use super::tap::{RawCall, Request, Slot, Tap};
use super::wire::{Answer, MAX_MESSAGE};
use super::{Ask, Connected, ListKind, Listed, ListedTools, ServerIdentity, ToolCall};
use crate::model::deadline::Deadline;
use crate::model::error::{ErrorCode, Failure, Outcome, Phase};
use crate::model::json::RawJson;

/// Bounds of one walk of a list.
const MAX_PAGES: usize = 100;
const MAX_ITEMS: usize = 5_000;
const METHOD_NOT_FOUND: i64 = -32601;
/// How long a call waits to learn why its connection is gone, or how its process ended.
const POST_MORTEM: Duration = Duration::from_millis(200);

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
            events: call.events,
        };
        let result = self.request(request, call.deadline, Phase::Call).await?;
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
        deadline: Deadline,
        phase: Phase,
    ) -> Result<RawJson, Failure> {
        let call = OpenCall {
            session: self,
            slot: self.tap.open(request),
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

    fn settled(&self, answer: &Answer) -> Result<RawJson, Failure> {
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

    async fn unanswered(&self, reason: NoAnswer, slot: &Slot) -> Failure {
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

    async fn page(
        &self,
        kind: ListKind,
        cursor: Option<&str>,
        deadline: Deadline,
    ) -> Result<RawJson, Failure> {
        let cursor = cursor.map(str::to_owned);
        self.request(Request::List { kind, cursor }, deadline, Phase::List)
            .await
    }

    /// Asks for what is no list and no call; the result exactly as the server sent it.
    ///
    /// # Errors
    /// `unsupported` where the server cannot do this, and as [`Session::call_tool`].
    pub async fn ask(&self, ask: Ask, deadline: Deadline) -> Result<RawJson, Failure> {
        let capability = ask.capability();
        // Before that revision there was completion, but no capability for it.
        let undeclarable =
            capability == "completions" && self.identity.protocol_version.as_str() < "2025-03-26";
        if !undeclarable && !self.declares(capability) {
            return Err(self.placed(self.lacks(capability), deadline, Phase::Call));
        }
        let request = Request::Ask(Box::new(ask));
        match self.request(request, deadline, Phase::Call).await {
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

    /// A whole list, page by page, raw and bounded.
    ///
    /// # Errors
    /// `unsupported` where the server has no such list (no tools: an empty one), and as
    /// [`Session::call_tool`].
    pub async fn list(&self, kind: ListKind, deadline: Instant) -> Result<Listed, Failure> {
        let deadline = Deadline {
            started: Instant::now(),
            at: deadline,
            extension: None,
        };
        if kind != ListKind::Tools && !self.declares(kind.capability()) {
            return Err(self.placed(self.lacks(kind.capability()), deadline, Phase::List));
        }
        let mut listed = Listed::default();
        let mut cursors: Vec<String> = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = match self
                .page(kind, cursors.last().map(String::as_str), deadline)
                .await
            {
                Err(failure) if cursors.is_empty() && is_unknown_method(&failure) => match kind {
                    ListKind::Tools if !self.declares("tools") => break,
                    ListKind::Tools => return Err(failure),
                    _ => {
                        let lacking = self.lacks(kind.capability());
                        return Err(self.placed(lacking, deadline, Phase::List));
                    }
                },
                page => page?,
            };
            let next = take_page(&page, kind, &mut listed).map_err(|reason| {
                let name = &self.server_name;
                let text = format!(
                    "server `{name}` sent a list of {} that cannot be read: {reason}",
                    kind.noun()
                );
                self.placed(
                    Failure::new(ErrorCode::ProtocolError, text),
                    deadline,
                    Phase::List,
                )
            })?;
            match next {
                None => return Ok(listed),
                Some(_) if listed.items.len() >= MAX_ITEMS => {
                    listed.warnings.push(format!(
                        "only the first {MAX_ITEMS} {} were read",
                        kind.noun()
                    ));
                    return Ok(listed);
                }
                Some(cursor) if cursors.contains(&cursor) => {
                    listed
                        .warnings
                        .push("the server repeats a cursor; the list ends there".into());
                    return Ok(listed);
                }
                Some(cursor) => cursors.push(cursor),
            }
        }
        if cursors.len() == MAX_PAGES {
            listed
                .warnings
                .push(format!("only the first {MAX_PAGES} pages were read"));
        }
        Ok(listed)
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

enum NoAnswer {
    Timeout,
    /// The connection has ended, or its way to the child has.
    Lost,
    /// The child takes no more.
    Undelivered(io::Error),
    Service(ServiceError),
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

/// Says what may have become of a request without an answer.
fn outcome_of(slot: &Slot, failure: Failure) -> Failure {
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

/// Where progress has moved the deadline to.
fn extended(deadline: Deadline, last_progress: Option<Instant>) -> Option<Instant> {
    let extension = deadline.extension?;
    Some((last_progress? + extension.by).min(extension.until))
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

/// Reads one page; returns the next cursor. A cursor that is no string ends the list.
fn take_page(
    page: &RawJson,
    kind: ListKind,
    listed: &mut Listed,
) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        tools: Option<Vec<&'a RawValue>>,
        #[serde(borrow)]
        resources: Option<Vec<&'a RawValue>>,
        #[serde(borrow, rename = "resourceTemplates")]
        templates: Option<Vec<&'a RawValue>>,
        #[serde(borrow)]
        prompts: Option<Vec<&'a RawValue>>,
        #[serde(rename = "nextCursor")]
        next_cursor: Option<Value>,
    }
    let read: Page = page.read().map_err(|error| error.to_string())?;
    let items = match kind {
        ListKind::Tools => read.tools,
        ListKind::Resources => read.resources,
        ListKind::ResourceTemplates => read.templates,
        ListKind::Prompts => read.prompts,
    };
    let items = items.ok_or_else(|| format!("it has no `{}`", kind.member()))?;
    let items = items.into_iter();
    listed
        .items
        .extend(items.map(|item| RawJson::part_of(page.bytes(), item)));
    match read.next_cursor {
        None => Ok(None),
        Some(Value::String(cursor)) => Ok(Some(cursor)),
        Some(_) => {
            listed
                .warnings
                .push("the server sent a cursor that is no string; the list ends there".into());
            Ok(None)
        }
    }
}

/// The connection was ended by us, for what the server sent.
fn ended_for(name: &str, link: &Link, fault: Failure) -> Failure {
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
async fn post_mortem(name: &str, link: &Link, was_closed: bool) -> Failure {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The tools as text, the next cursor, and how many warnings there were.
    fn taken(page: &str) -> Result<(Vec<String>, Option<String>, usize), String> {
        let page = RawJson::parse(page.to_owned().into()).expect(page);
        let mut listed = Listed::default();
        let next = take_page(&page, ListKind::Tools, &mut listed)?;
        let tools = listed.items.iter().map(|tool| format!("{tool:?}"));
        Ok((tools.collect(), next, listed.warnings.len()))
    }

    #[test]
    fn tools_of_a_page_are_kept_as_they_came() {
        let odd = r#"{"x":1e2,"name":"a","x":"\ud800"}"#;
        let page = format!(r#"{{"ttlMs":0,"tools":[{odd},null,7],"nextCursor":"c"}}"#);
        let tools = vec![odd.to_owned(), "null".into(), "7".into()];
        assert_eq!(taken(&page), Ok((tools, Some("c".into()), 0)));
    }

    #[test]
    fn only_an_absent_cursor_ends_a_list_quietly() {
        for (cursor, next, warnings) in [
            ("", None, 0),
            (r#","nextCursor":null"#, None, 0),
            (r#","nextCursor":"""#, Some(""), 0),
            (r#","nextCursor":"\u0000 /é""#, Some("\0 /é"), 0),
            (r#","nextCursor":7"#, None, 1),
            (r#","nextCursor":{}"#, None, 1),
            (r#","nextCursor":false"#, None, 1),
        ] {
            let read = taken(&format!(r#"{{"tools":[]{cursor}}}"#));
            let expected = (Vec::new(), next.map(str::to_owned), warnings);
            assert_eq!(read, Ok(expected), "{cursor}");
        }
    }

    #[test]
    fn a_page_without_a_list_of_tools_is_refused() {
        for page in [
            "{}",
            "[]",
            "null",
            r#"{"tools":null}"#,
            r#"{"tools":{}}"#,
            r#"{"tools":"x"}"#,
        ] {
            assert!(taken(page).is_err(), "{page}");
        }
    }
}
