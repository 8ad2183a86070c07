//! The place where every message of a connection passes between rmcp and the wire.
//!
//! rmcp decodes results by guessing among typed variants and loses what fits none. So raw calls
//! carry a [`Slot`] in their extensions: the tap renders their request itself, keeps the bytes of
//! their answer, and hands rmcp an empty result in its place. Both transports use it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, GetExtensions, GetMeta,
    JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerResult,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::noise::Noise;
use super::wire::{Answer, CallId, Frame, call_id, frames};
use crate::model::event::{Event, EventSink};
use crate::model::json::RawJson;
use crate::model::trace::Trace;

/// One raw call under way. Travels in the request's extensions, so it is cloned with it.
#[derive(Clone)]
pub(super) struct RawCall(pub Arc<Slot>);

pub(super) struct Slot {
    pub method: &'static str,
    /// What `Mcp-Name` mirrors: the tool's name.
    pub name: Option<Arc<str>>,
    /// The members of `params` but for `_meta`, as text: `"name":"x","arguments":{}`.
    pub params: Bytes,
    /// Goes into `_meta`.
    pub trace: Trace,
    pub server_name: Arc<str>,
    pub events: Option<EventSink>,
    answer: OnceLock<Answer>,
    sent: AtomicBool,
    /// Refused once, for the session was gone.
    sessionless: AtomicBool,
    last_progress: Mutex<Option<Instant>>,
}

impl Slot {
    pub(super) fn new(
        method: &'static str,
        name: Option<Arc<str>>,
        params: Bytes,
        trace: Trace,
        server_name: Arc<str>,
        events: Option<EventSink>,
    ) -> Arc<Self> {
        Arc::new(Self {
            method,
            name,
            params,
            trace,
            server_name,
            events,
            answer: OnceLock::new(),
            sent: AtomicBool::new(false),
            sessionless: AtomicBool::new(false),
            last_progress: Mutex::new(None),
        })
    }

    /// From now on the server may have seen the call.
    pub(super) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    pub(super) fn may_be_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Refused, for the session is gone; whether it is the first time.
    pub(super) fn lost_session(&self) -> bool {
        !self.sessionless.swap(true, Ordering::AcqRel)
    }

    /// The first answer wins.
    pub(super) fn settle(&self, answer: Answer) {
        let _ = self.answer.set(answer);
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        self.answer.get()
    }

    pub(super) fn last_progress(&self) -> Option<Instant> {
        *lock(&self.last_progress)
    }

    fn progress(&self, params: RawJson) {
        *lock(&self.last_progress) = Some(Instant::now());
        if let Some(events) = &self.events {
            let server_name = self.server_name.clone();
            events(Event {
                kind: "progress",
                server_name,
                params,
            });
        }
    }
}

/// What the server said of itself, and how far the handshake came.
#[derive(Default)]
struct Handshake {
    id: Option<CallId>,
    answers: u64,
    last: Option<Answer>,
}

pub(super) struct Tap {
    calls: Mutex<HashMap<CallId, Arc<Slot>>>,
    handshake: Mutex<Handshake>,
    tools_changed: watch::Sender<u64>,
    noise: Noise,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// rmcp counts its requests from 0, which sloppy servers take for "no id": the wire counts from 1.
pub(super) fn wire_id(id: &RequestId) -> Option<CallId> {
    match id {
        RequestId::Number(number) => CallId::try_from(*number).ok()?.checked_add(1),
        RequestId::String(_) => None,
    }
}

fn rmcp_id(id: CallId) -> RequestId {
    RequestId::Number(i64::try_from(id).unwrap_or(i64::MAX) - 1)
}

impl Tap {
    pub(super) fn new(server_name: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            calls: Mutex::default(),
            handshake: Mutex::default(),
            tools_changed: watch::Sender::new(0),
            noise: Noise::new(server_name),
        })
    }

    pub(super) fn tools_changed(&self) -> watch::Receiver<u64> {
        self.tools_changed.subscribe()
    }

    /// What the server sent that was no message for anybody.
    pub(super) fn noise(&self) -> &Noise {
        &self.noise
    }

    /// The server's last answer to `initialize` or `server/discover`, as sent.
    pub(super) fn handshake_answer(&self) -> Option<Answer> {
        lock(&self.handshake).last.clone()
    }

    /// Stops waiting for a call; an answer that comes later is counted and dropped.
    pub(super) fn forget(&self, id: &RequestId) {
        if let Some(id) = wire_id(id)
            && lock(&self.calls).remove(&id).is_some()
        {
            self.noise.give_up(id);
        }
    }

    /// The only request under way, if it is the only one: whom a failure without an id must mean.
    fn only_call(&self) -> Option<CallId> {
        let calls = lock(&self.calls);
        let mut ids = calls.keys().copied().chain(lock(&self.handshake).id);
        ids.next().filter(|_| ids.next().is_none())
    }

    /// Renders a message of rmcp for the wire, and notes what its answer is for.
    pub(super) fn outgoing(
        &self,
        message: &ClientJsonRpcMessage,
    ) -> Result<Bytes, serde_json::Error> {
        match message {
            JsonRpcMessage::Request(request) => {
                let Some(id) = wire_id(&request.id) else {
                    return serde_json::to_vec(message).map(Bytes::from);
                };
                if let Some(RawCall(slot)) = request.request.extensions().get() {
                    let line = render(id, slot, &request.request)?;
                    lock(&self.calls).insert(id, slot.clone());
                    return Ok(line);
                }
                if matches!(
                    request.request,
                    ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
                ) {
                    lock(&self.handshake).id = Some(id);
                }
                let mut request = request.clone();
                request.id = RequestId::Number(i64::try_from(id).unwrap_or(i64::MAX));
                serde_json::to_vec(&JsonRpcMessage::<_, (), ()>::Request(request)).map(Bytes::from)
            }
            JsonRpcMessage::Notification(notification) => {
                let mut notification = notification.clone();
                if let ClientNotification::CancelledNotification(cancelled) =
                    &mut notification.notification
                    && let Some(id) = cancelled.params.request_id.as_ref().and_then(wire_id)
                {
                    cancelled.params.request_id =
                        Some(RequestId::Number(i64::try_from(id).unwrap_or(i64::MAX)));
                }
                serde_json::to_vec(&JsonRpcMessage::<(), (), _>::Notification(notification))
                    .map(Bytes::from)
            }
            _ => serde_json::to_vec(message).map(Bytes::from),
        }
    }

    /// Reads what the server sent; what concerns rmcp comes out in `out`.
    ///
    /// `reply_to`: the request on whose HTTP response this came. An answer without an id, or text
    /// that cannot be read, then strikes that request and nobody else's.
    pub(super) fn incoming(
        &self,
        text: &Bytes,
        reply_to: Option<CallId>,
        out: &mut VecDeque<ServerJsonRpcMessage>,
    ) {
        frames(text, |frame| match frame {
            Frame::Answer { id, answer } => {
                self.noise.greeted();
                out.extend(self.settle_some(id.or(reply_to), answer));
            }
            Frame::Call {
                method,
                is_request,
                params,
                text,
            } => {
                self.noise.greeted();
                self.server_call(&method, is_request, params, &text, out);
            }
            Frame::Noise => match reply_to {
                Some(id) => {
                    let answer = Answer::Broken("the message is not JSON-RPC".into());
                    out.extend(self.settle(id, answer));
                }
                None => self.noise.junk(),
            },
        });
    }

    /// As [`Tap::settle`], for an answer that may name no id: then the only call under way is meant.
    pub(super) fn settle_some(
        &self,
        id: Option<CallId>,
        answer: Answer,
    ) -> Option<ServerJsonRpcMessage> {
        let id = id.or_else(|| self.only_call());
        let message = id.and_then(|id| self.settle(id, answer));
        if message.is_none() {
            self.noise.stray(id);
        }
        message
    }

    /// Gives a call or the handshake its answer; returns what rmcp is told of it.
    pub(super) fn settle(&self, id: CallId, answer: Answer) -> Option<ServerJsonRpcMessage> {
        let slot = lock(&self.calls).remove(&id);
        if let Some(slot) = slot {
            slot.settle(answer);
            return Some(JsonRpcMessage::response(
                ServerResult::empty(()),
                rmcp_id(id),
            ));
        }
        let mut handshake = lock(&self.handshake);
        if handshake.id != Some(id) {
            return None;
        }
        handshake.id = None;
        handshake.answers += 1;
        handshake.last = Some(answer.clone());
        if handshake.answers > 1 {
            // A new session behind the same connection: what was listed before may not hold.
            self.tools_changed.send_modify(|count| *count += 1);
        }
        Some(told_to_rmcp(id, &answer))
    }

    fn server_call(
        &self,
        method: &str,
        is_request: bool,
        params: Option<RawJson>,
        text: &Bytes,
        out: &mut VecDeque<ServerJsonRpcMessage>,
    ) {
        match (is_request, method) {
            (true, _) => out.extend(serde_json::from_slice(text).ok()),
            (false, "notifications/progress") => self.progress(params),
            (false, "notifications/tools/list_changed") => {
                self.tools_changed.send_modify(|count| *count += 1);
            }
            // rmcp needs this one to stop a request of the server; it would only log the others.
            (false, "notifications/cancelled") => out.extend(serde_json::from_slice(text).ok()),
            (false, _) => {}
        }
    }

    fn progress(&self, params: Option<RawJson>) {
        #[derive(Deserialize)]
        struct Progress<'a> {
            #[serde(borrow, rename = "progressToken")]
            token: &'a RawValue,
        }
        let Some(params) = params else { return };
        let token = params
            .read::<Progress>()
            .ok()
            .and_then(|progress| call_id(progress.token.get()));
        let slot = token.and_then(|token| lock(&self.calls).get(&token).cloned());
        match slot {
            Some(slot) => slot.progress(params),
            // Progress may cross with the end of its call.
            None => {
                self.noise.count();
            }
        }
    }
}

/// The request of a raw call. Its progress token is its id.
fn render(id: CallId, slot: &Slot, request: &ClientRequest) -> Result<Bytes, serde_json::Error> {
    let mut line = Vec::with_capacity(slot.params.len() + 96);
    line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    line.extend_from_slice(id.to_string().as_bytes());
    line.extend_from_slice(br#","method":""#);
    line.extend_from_slice(slot.method.as_bytes());
    line.extend_from_slice(br#"","params":{"_meta":{"progressToken":"#);
    line.extend_from_slice(id.to_string().as_bytes());
    for (name, value) in request
        .get_meta()
        .0
        .0
        .iter()
        .filter(|(name, _)| *name != "progressToken")
    {
        line.push(b',');
        serde_json::to_writer(&mut line, name)?;
        line.push(b':');
        serde_json::to_writer(&mut line, value)?;
    }
    for (name, value) in slot.trace.members() {
        line.push(b',');
        serde_json::to_writer(&mut line, name)?;
        line.push(b':');
        serde_json::to_writer(&mut line, value)?;
    }
    line.push(b'}');
    if !slot.params.is_empty() {
        line.push(b',');
        line.extend_from_slice(&slot.params);
    }
    line.extend_from_slice(b"}}");
    Ok(line.into())
}

/// The handshake's answer in the strict form that rmcp can read. What the server really said is
/// kept beside it: rmcp refuses a connection for one unknown shape among the capabilities.
fn told_to_rmcp(id: CallId, answer: &Answer) -> ServerJsonRpcMessage {
    let id = rmcp_id(id);
    let reply = match answer {
        Answer::Result(raw) => strict_result(&raw.read().unwrap_or(Value::Null)),
        Answer::Error(raw) => Err(strict_error(&raw.read().unwrap_or(Value::Null))),
        Answer::Broken(reason) => Err(json!({ "code": -32700, "message": reason })),
        Answer::TooLarge => Err(json!({ "code": -32700, "message": "the answer is too large" })),
        Answer::Failed(failure) => Err(json!({ "code": -32000, "message": failure.message })),
    };
    let (member, value) = match reply {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    let message = json!({ "jsonrpc": "2.0", "id": id, member: value });
    serde_json::from_value(message).unwrap_or_else(|_| {
        let error = rmcp::ErrorData::internal_error("the server's answer cannot be read", None);
        JsonRpcMessage::error(error, Some(id))
    })
}

fn strict_result(result: &Value) -> Result<Value, Value> {
    if let Some(version) = result.get("protocolVersion").and_then(Value::as_str) {
        let text = |name: &str| {
            result
                .get("serverInfo")
                .and_then(|info| info.get(name))
                .and_then(Value::as_str)
                .unwrap_or("")
        };
        return Ok(json!({
            "protocolVersion": version,
            "capabilities": {},
            "serverInfo": { "name": text("name"), "version": text("version") },
        }));
    }
    if let Some(versions) = result
        .get("supportedVersions")
        .filter(|versions| versions.is_array())
    {
        return Ok(json!({
            "resultType": "complete",
            "supportedVersions": versions,
            "capabilities": {},
            "ttlMs": 0,
            "cacheScope": "private",
        }));
    }
    Err(json!({ "code": -32600, "message": "the result names no protocol version" }))
}

/// Any error, however odd its code or message, as one that rmcp can route.
fn strict_error(error: &Value) -> Value {
    let code = error
        .get("code")
        .and_then(Value::as_i64)
        .and_then(|code| i32::try_from(code).ok());
    let message = error
        .get("message")
        .and_then(Value::as_str)
        .or(error.as_str());
    let mut strict =
        json!({ "code": code.unwrap_or(-32603), "message": message.unwrap_or("unnamed error") });
    if let Some(data) = error.get("data") {
        strict["data"] = data.clone();
    }
    strict
}

#[cfg(test)]
pub(super) mod tests;
