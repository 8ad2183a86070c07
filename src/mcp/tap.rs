//! The place where every message of a connection passes between us, rmcp and the wire.
//!
//! rmcp decodes results by guessing among typed variants and loses what fits none, and its loop costs
//! a call more than all the rest. So our own requests do not pass it: each is a [`Slot`], rendered here and
//! given its answer here, in the server's bytes. rmcp has the handshake, and the renewal of a lost
//! HTTP session, for which it sends a slot's request once more ([`RawCall`]).

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures::task::AtomicWaker;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, GetExtensions, GetMeta, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ask::{Ask, ListKind};
use super::noise::Noise;
use super::wire::{Answer, CallId, Frame, call_id, frames};
use crate::model::caller::UserId;
use crate::model::event::{Event, EventKind, EventSink, LogLevel};
use crate::model::json::RawJson;
use crate::model::trace::Trace;

/// The member of `_meta` that asks a modern server for log messages.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A slot whose request rmcp is to send. Travels in the request's extensions, so it is cloned with it.
#[derive(Clone)]
pub(super) struct RawCall(pub Arc<Slot>);

/// What we ask a server for.
pub(super) enum Request {
    CallTool {
        name: Arc<str>,
        /// A JSON object, passed on untouched.
        arguments: RawJson,
        trace: Trace,
    },
    List {
        kind: ListKind,
        cursor: Option<String>,
    },
    /// Boxed, for a call's slot stays small.
    Ask(Box<Ask>),
    /// What the client's own work needs.
    Own(Box<Own>),
}

/// A request that no command asks for in so many words.
pub(super) struct Own {
    pub method: &'static str,
    /// The members of `params`, each after a comma.
    pub members: Vec<u8>,
}

impl Request {
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::CallTool { .. } => "tools/call",
            Self::List { kind, .. } => kind.method(),
            Self::Ask(ask) => ask.method(),
            Self::Own(own) => own.method,
        }
    }

    /// What `Mcp-Name` mirrors.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::CallTool { name, .. } => Some(name),
            Self::List { .. } | Self::Own(_) => None,
            Self::Ask(ask) => ask.name(),
        }
    }

    /// How much the rendered request is longer than its envelope, about.
    fn length(&self) -> usize {
        match self {
            Self::CallTool {
                name, arguments, ..
            } => name.len() + arguments.bytes().len(),
            Self::List { cursor, .. } => cursor.as_ref().map_or(0, String::len),
            Self::Ask(ask) => ask.length(),
            Self::Own(own) => own.members.len(),
        }
    }
}

/// One request of ours under way.
pub(super) struct Slot {
    pub id: CallId,
    pub request: Request,
    /// Where what happens on the way to the answer goes, if anybody wants to hear of it.
    pub events: Option<EventSink>,
    answer: OnceLock<Answer>,
    waiting: AtomicWaker,
    sent: AtomicBool,
    /// The HTTP session that the server no longer knew when it refused the request.
    refused_in: OnceLock<Arc<str>>,
    last_progress: Mutex<Option<Instant>>,
}

impl Slot {
    /// From now on the server may have seen the request.
    pub(super) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    pub(super) fn may_be_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// The server has refused it, for it no longer knows this session. Whether it is the first time.
    pub(super) fn refuse_in(&self, session: Arc<str>) -> bool {
        self.refused_in.set(session).is_ok()
    }

    pub(super) fn was_refused_in(&self, session: &str) -> bool {
        self.refused_in.get().is_some_and(|gone| **gone == *session)
    }

    /// The first answer wins.
    pub(super) fn settle(&self, answer: Answer) {
        let _ = self.answer.set(answer);
        self.waiting.wake();
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        self.answer.get()
    }

    /// Waits for the answer; one task at a time may.
    pub(super) async fn answered(&self) -> &Answer {
        poll_fn(|context| {
            self.waiting.register(context.waker());
            self.answer.get().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    pub(super) fn last_progress(&self) -> Option<Instant> {
        *lock(&self.last_progress)
    }

    fn progress(&self, server_name: &Arc<str>, params: RawJson) {
        *lock(&self.last_progress) = Some(Instant::now());
        if let Some(events) = &self.events {
            events.take(Event::new(EventKind::Progress, server_name.clone(), params));
        }
    }
}

/// What waits for an answer.
#[derive(Default)]
struct Calls {
    open: HashMap<CallId, Open>,
    /// The connection has ended: nothing is answered any more.
    ended: bool,
}

struct Open {
    slot: Arc<Slot>,
    /// rmcp has sent it, under this id of its own.
    rmcp: Option<RequestId>,
}

/// What the server said of itself, and how far the handshake came.
#[derive(Default)]
struct Handshake {
    /// On the wire, and rmcp's own.
    id: Option<(CallId, RequestId)>,
    answers: u64,
    last: Option<Answer>,
}

pub(super) struct Tap {
    server_name: Arc<str>,
    /// Whose connection it is alone; none: a shared one.
    owner: Option<UserId>,
    /// On the wire requests count from 1: sloppy servers take 0 for "no id".
    last_id: AtomicU64,
    calls: Mutex<Calls>,
    handshake: Mutex<Handshake>,
    /// What rmcp put into `_meta` of its first request, as members with a leading comma each: a modern
    /// server wants it in every request.
    standing_meta: OnceLock<Vec<u8>>,
    tools_changed: watch::Sender<u64>,
    noise: Noise,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tap {
    pub(super) fn new(server_name: Arc<str>, owner: Option<UserId>) -> Arc<Self> {
        Arc::new(Self {
            noise: Noise::new(server_name.clone()),
            server_name,
            owner,
            last_id: AtomicU64::new(0),
            calls: Mutex::default(),
            handshake: Mutex::default(),
            standing_meta: OnceLock::new(),
            tools_changed: watch::Sender::new(0),
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

    /// How many sessions have been opened behind this connection.
    pub(super) fn sessions(&self) -> u64 {
        lock(&self.handshake).answers
    }

    fn next_id(&self) -> CallId {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins to wait for the answer of a request; [`Tap::render`] is what to send.
    pub(super) fn open(&self, request: Request, events: Option<EventSink>) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            id: self.next_id(),
            request,
            events,
            answer: OnceLock::new(),
            waiting: AtomicWaker::new(),
            sent: AtomicBool::new(false),
            refused_in: OnceLock::new(),
            last_progress: Mutex::new(None),
        });
        let open = Open {
            slot: slot.clone(),
            rmcp: None,
        };
        let mut calls = lock(&self.calls);
        if calls.ended {
            slot.settle(Answer::Lost);
        } else {
            calls.open.insert(slot.id, open);
        }
        slot
    }

    /// Stops waiting for an answer; one that comes later is counted and dropped. Returns whether
    /// anybody waited.
    pub(super) fn forget(&self, id: CallId) -> bool {
        let waited = lock(&self.calls).open.remove(&id).is_some();
        if waited {
            self.noise.give_up(id);
        }
        waited
    }

    /// The connection has ended: nothing that waits, now or later, will be answered.
    pub(super) fn end(&self) {
        let open = {
            let mut calls = lock(&self.calls);
            calls.ended = true;
            std::mem::take(&mut calls.open)
        };
        open.values()
            .for_each(|open| open.slot.settle(Answer::Lost));
    }

    /// The only request under way, if it is the only one: whom a failure without an id must mean.
    fn only_call(&self) -> Option<CallId> {
        let calls = lock(&self.calls);
        let handshake = lock(&self.handshake).id.as_ref().map(|(id, _)| *id);
        let mut ids = calls.open.keys().copied().chain(handshake);
        ids.next().filter(|_| ids.next().is_none())
    }

    /// Renders a message of rmcp for the wire, and notes what its answer is for. Also the id of a
    /// request.
    pub(super) fn outgoing(
        &self,
        message: &ClientJsonRpcMessage,
    ) -> Result<(Bytes, Option<CallId>), serde_json::Error> {
        let JsonRpcMessage::Request(request) = message else {
            return Ok((serde_json::to_vec(message)?.into(), None));
        };
        if let Some(RawCall(slot)) = request.request.extensions().get() {
            let open = Open {
                slot: slot.clone(),
                rmcp: Some(request.id.clone()),
            };
            lock(&self.calls).open.insert(slot.id, open);
            return Ok((self.render(slot), Some(slot.id)));
        }
        let id = self.next_id();
        if matches!(
            request.request,
            ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
        ) {
            let _ = self.standing_meta.set(standing(&request.request));
            lock(&self.handshake).id = Some((id, request.id.clone()));
        }
        let mut request = request.clone();
        request.id = RequestId::Number(i64::try_from(id).unwrap_or(i64::MAX));
        let line = serde_json::to_vec(&JsonRpcMessage::<_, (), ()>::Request(request))?;
        Ok((line.into(), Some(id)))
    }

    /// The request as a line for the wire, its line break included. Its progress token is its id.
    pub(super) fn render(&self, slot: &Slot) -> Bytes {
        let meta = self.standing_meta.get().map_or(&[][..], Vec::as_slice);
        let mut line = Vec::with_capacity(slot.request.length() + meta.len() + 160);
        let id = slot.id.to_string();
        line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        line.extend_from_slice(id.as_bytes());
        line.extend_from_slice(br#","method":""#);
        line.extend_from_slice(slot.request.method().as_bytes());
        line.extend_from_slice(br#"","params":{"_meta":{"progressToken":"#);
        line.extend_from_slice(id.as_bytes());
        line.extend_from_slice(meta);
        // A modern server sends log messages only for a request that asks for them.
        let logs = slot.events.as_ref().filter(|_| !meta.is_empty());
        if let Some(level) = logs.and_then(|events| events.interest().logs()) {
            push_member(&mut line, LOG_LEVEL, level.as_str());
        }
        match &slot.request {
            Request::CallTool {
                name,
                arguments,
                trace,
                ..
            } => {
                for (name, value) in trace.members() {
                    push_member(&mut line, name, value);
                }
                line.push(b'}');
                push_member(&mut line, "name", &**name);
                line.extend_from_slice(br#","arguments":"#);
                line.extend_from_slice(arguments.bytes());
            }
            Request::List { cursor, .. } => {
                line.push(b'}');
                if let Some(cursor) = cursor {
                    push_member(&mut line, "cursor", cursor);
                }
            }
            Request::Ask(ask) => {
                line.push(b'}');
                ask.render(&mut line);
            }
            Request::Own(own) => {
                line.push(b'}');
                line.extend_from_slice(&own.members);
            }
        }
        line.extend_from_slice(b"}}\n");
        line.into()
    }

    /// What tells the server that nobody waits for this request any more.
    pub(super) fn render_cancelled(id: CallId) -> Bytes {
        let params = json!({"requestId": id, "reason": "the caller no longer waits"});
        let message = json!({
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": params,
        });
        format!("{message}\n").into()
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
                out.extend(self.settle_some(id.or(reply_to), answer).told());
            }
            Frame::Call {
                method,
                is_request,
                params,
                text,
            } => {
                self.noise.greeted();
                let call = (&*method, is_request, params);
                self.server_call(call, &text, reply_to, out);
            }
            Frame::Noise => match reply_to {
                Some(id) => {
                    let answer = Answer::Broken("the message is not JSON-RPC".into());
                    out.extend(self.settle(id, answer).told());
                }
                None => self.noise.junk(),
            },
        });
    }

    /// As [`Tap::settle`], for an answer that may name no id: then the only call under way is meant.
    pub(super) fn settle_some(&self, id: Option<CallId>, answer: Answer) -> Settled {
        let id = id.or_else(|| self.only_call());
        let settled = id.map_or(Settled::Nobody, |id| self.settle(id, answer));
        if matches!(settled, Settled::Nobody) {
            self.noise.stray(id);
        }
        settled
    }

    /// Gives a call or the handshake its answer.
    pub(super) fn settle(&self, id: CallId, answer: Answer) -> Settled {
        let open = lock(&self.calls).open.remove(&id);
        if let Some(Open { slot, rmcp }) = open {
            slot.settle(answer);
            return Settled::Call(rmcp);
        }
        let mut handshake = lock(&self.handshake);
        let Some((_, rmcp)) = handshake.id.take_if(|(awaited, _)| *awaited == id) else {
            return Settled::Nobody;
        };
        handshake.answers += 1;
        handshake.last = Some(answer.clone());
        if handshake.answers > 1 {
            // A new session behind the same connection: what was listed before may not hold.
            self.tools_changed.send_modify(|count| *count += 1);
        }
        Settled::Handshake(Box::new(told_to_rmcp(rmcp, &answer)))
    }

    fn server_call(
        &self,
        (method, is_request, params): (&str, bool, Option<RawJson>),
        text: &Bytes,
        reply_to: Option<CallId>,
        out: &mut VecDeque<ServerJsonRpcMessage>,
    ) {
        match (is_request, method) {
            (true, _) => out.extend(serde_json::from_slice(text).ok()),
            (false, "notifications/progress") => self.progress(params),
            (false, "notifications/message") => self.log(params, reply_to),
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
        let slot = token.and_then(|token| {
            let calls = lock(&self.calls);
            calls.open.get(&token).map(|open| open.slot.clone())
        });
        match slot {
            Some(slot) => slot.progress(&self.server_name, params),
            // Progress may cross with the end of its call.
            None => {
                self.noise.count();
            }
        }
    }
}

impl Tap {
    /// A log message goes to the command it belongs to: the one whose response it came on, or whose
    /// progress token it names. One that says neither goes to every command of the connection's only
    /// user, and on a shared connection to nobody: it could be about anybody.
    fn log(&self, params: Option<RawJson>, reply_to: Option<CallId>) {
        #[derive(Deserialize)]
        struct Message<'a> {
            level: Option<Value>,
            #[serde(borrow, rename = "_meta")]
            meta: Option<Meta<'a>>,
        }
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(borrow, rename = "progressToken")]
            token: Option<&'a RawValue>,
        }
        let Some(params) = params else { return };
        let Ok(message) = params.read::<Message>() else {
            return;
        };
        let level = message.level.as_ref().and_then(Value::as_str);
        let level = level.and_then(LogLevel::named).unwrap_or(LogLevel::Info);
        let token = message.meta.and_then(|meta| meta.token);
        let meant = token.and_then(|token| call_id(token.get())).or(reply_to);
        for events in self.listeners(meant) {
            if events.interest().logs().is_some_and(|least| level >= least) {
                let event = Event::new(EventKind::Log, self.server_name.clone(), params.clone());
                events.take(event);
            }
        }
    }

    /// The commands that a message is for: about one request, or about none.
    fn listeners(&self, meant: Option<CallId>) -> Vec<EventSink> {
        let calls = lock(&self.calls);
        let events = |open: &Open| open.slot.events.clone();
        match meant {
            Some(id) => calls.open.get(&id).and_then(events).into_iter().collect(),
            None if self.owner.is_some() => calls.open.values().filter_map(events).collect(),
            None => Vec::new(),
        }
    }
}

/// Whom an answer was for.
pub(super) enum Settled {
    /// One of our requests; where rmcp has sent it, under this id.
    Call(Option<RequestId>),
    /// The handshake; what rmcp is told of its answer.
    Handshake(Box<ServerJsonRpcMessage>),
    Nobody,
}

impl Settled {
    /// What rmcp must hear.
    pub(super) fn told(self) -> Option<ServerJsonRpcMessage> {
        match self {
            Self::Call(rmcp) => {
                rmcp.map(|id| JsonRpcMessage::response(ServerResult::empty(()), id))
            }
            Self::Handshake(message) => Some(*message),
            Self::Nobody => None,
        }
    }
}

fn standing(request: &ClientRequest) -> Vec<u8> {
    let mut members = Vec::new();
    for (name, value) in &request.get_meta().0.0 {
        if name != "progressToken" {
            push_member(&mut members, name, value);
        }
    }
    members
}

pub(super) fn push_member(line: &mut Vec<u8>, name: &str, value: &(impl Serialize + ?Sized)) {
    line.push(b',');
    // Text and JSON values into memory: nothing here can fail.
    let _ = serde_json::to_writer(&mut *line, name);
    line.push(b':');
    let _ = serde_json::to_writer(line, value);
}

/// The handshake's answer in the strict form that rmcp can read. What the server really said is
/// kept beside it: rmcp refuses a connection for one unknown shape among the capabilities.
fn told_to_rmcp(id: RequestId, answer: &Answer) -> ServerJsonRpcMessage {
    let reply = match answer {
        Answer::Result(raw) => strict_result(&raw.read().unwrap_or(Value::Null)),
        Answer::Error(raw) => Err(strict_error(&raw.read().unwrap_or(Value::Null))),
        Answer::Broken(reason) => Err(json!({ "code": -32700, "message": reason })),
        Answer::TooLarge => Err(json!({ "code": -32700, "message": "the answer is too large" })),
        Answer::Failed(failure) => Err(json!({ "code": -32000, "message": failure.message })),
        Answer::Lost => Err(json!({ "code": -32000, "message": "the connection has ended" })),
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
