//! The Streamable HTTP transport's client: every message passes the tap, every odd reply becomes an
//! answer. rmcp's worker above it keeps sessions, recovery and resumption.

mod reply;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
pub(super) use reqwest::Client;
use reqwest::{Request, Response, redirect};
use rmcp::model::{
    ClientJsonRpcMessage, GetExtensions, JsonRpcMessage, JsonRpcRequest, ServerRequest,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::json;
use sse_stream::Sse;
use tokio::time::sleep;
use url::Url;

use reply::{Reply, media_type, refused, root_cause, taken, text_header, unreachable};

use super::sse::{Event, Parser};
use super::tap::{RawCall, Settled, Slot, Tap};
use super::wire::{Answer, CallId, MAX_MESSAGE};
use crate::model::error::{ErrorCode, Failure, Outcome};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// How long to wait before a broken stream of events is continued, where the server does not say, and
/// however it says.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Streams in a row that bring nothing, after which no answer is expected any more.
const MAX_TRIES: usize = 4;
const NO_ANSWER: &str = "the response body holds no answer to the request";

type Events = BoxStream<'static, Result<Sse, SseError>>;
type Fault = StreamableHttpError<HttpFault>;

/// What rmcp is told of a failure; the call itself gets a [`Failure`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct HttpFault(String);

/// The client for all servers: connections are kept alive and shared, redirects are not followed
/// (they would carry credentials elsewhere), compressed bodies are not asked for.
pub(super) fn client() -> Result<Client, String> {
    let client = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("mcp-client/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| error.to_string())
}

/// One connection's view of the shared client: how our own requests go, and how rmcp's do.
#[derive(Clone)]
pub(super) struct Endpoint(Arc<Inner>);

struct Inner {
    client: Client,
    tap: Arc<Tap>,
    url: Url,
    /// The definition's headers, credentials included.
    headers: HeaderMap,
    standing: Mutex<Standing>,
}

/// What rmcp negotiated: it stands until rmcp negotiates anew.
#[derive(Clone, Default)]
struct Standing {
    /// All headers of a POST, those of the session and the protocol included.
    headers: HeaderMap,
    session: Option<Arc<str>>,
}

/// The server no longer knows the session; it has not looked at the request.
#[derive(Debug)]
pub(super) struct SessionGone;

impl Endpoint {
    pub(super) fn new(client: Client, tap: Arc<Tap>, url: Url, headers: HeaderMap) -> Self {
        Self(Arc::new(Inner {
            client,
            tap,
            url,
            headers,
            standing: Mutex::default(),
        }))
    }

    /// Carries a request to the server and gives it its answer, whatever that is.
    ///
    /// # Errors
    /// Nothing has happened: the session must be renewed first.
    pub(super) async fn call(&self, slot: &Slot) -> Result<(), SessionGone> {
        let Inner { tap, .. } = &*self.0;
        let Standing {
            mut headers,
            session,
        } = self.standing();
        mirror(&mut headers, slot);
        slot.mark_sent();
        let reply = self.post(headers, tap.render(slot), true, session.is_some());
        match reply.await {
            Reply::SessionGone(_) => {
                session.map(|session| slot.refuse_in(session));
                return Err(SessionGone);
            }
            Reply::Events(response) => self.follow(response, slot).await,
            Reply::Body(body, _) => self.hear(&body, slot),
            Reply::TooLarge => drop(tap.settle(slot.id, Answer::TooLarge)),
            Reply::Failed(failure) => drop(tap.settle(slot.id, Answer::Failed(failure))),
            Reply::Accepted => {
                let text = "the server took the request and gave no result";
                let failure = Failure::new(ErrorCode::ProtocolError, text);
                let failure = failure.outcome(Outcome::Unknown);
                drop(tap.settle(slot.id, Answer::Failed(failure)));
            }
        }
        Ok(())
    }

    /// Tells the server that nobody waits for the request any more. A modern one sees it by the
    /// closed response (MCP 2026-07-28, Streamable HTTP, "Cancellation").
    pub(super) fn cancel(&self, id: CallId) {
        let standing = self.standing();
        if !standing.headers.contains_key(MCP_METHOD) {
            self.tell(standing, Tap::render_cancelled(id));
        }
    }

    /// Sends what needs no answer; nobody waits for its outcome.
    fn tell(&self, standing: Standing, body: Bytes) {
        let own = self.clone();
        tokio::spawn(async move { own.post(standing.headers, body, false, false).await });
    }

    fn standing(&self) -> Standing {
        lock(&self.0.standing).clone()
    }

    /// The events of a response, and of those that continue it, until the answer has come.
    async fn follow(&self, response: Response, slot: &Slot) {
        let mut last = Sse::default();
        let mut next = Ok(response);
        let mut tries = 0;
        loop {
            match next {
                Ok(response) => {
                    let heard = self.hear_events(response, slot, &mut last).await;
                    tries = if heard { 0 } else { tries + 1 };
                }
                Err(_) => tries += 1,
            }
            if slot.answer().is_some() {
                return;
            }
            let Some(id) = last.id.clone().filter(|_| tries < MAX_TRIES) else {
                let text = "it ended the response before it had answered";
                let failure = Failure::new(ErrorCode::SessionLost, text);
                let failure = failure.outcome(Outcome::Unknown);
                drop(self.0.tap.settle(slot.id, Answer::Failed(failure)));
                return;
            };
            let pause = last.retry.map_or(RETRY, Duration::from_millis);
            sleep(pause.min(LONGEST_RETRY)).await;
            let mut headers = self.standing().headers;
            headers.remove(header::CONTENT_TYPE);
            next = self.events_after(headers, Some(&id)).await;
        }
    }

    /// Whether any event came.
    async fn hear_events(&self, response: Response, slot: &Slot, last: &mut Sse) -> bool {
        let mut parser = Parser::new(MAX_MESSAGE);
        let mut bytes = response.bytes_stream();
        let (mut events, mut heard) = (Vec::new(), false);
        while let Some(Ok(piece)) = bytes.next().await {
            parser.feed(&piece, &mut events);
            for event in events.drain(..) {
                heard = true;
                match event {
                    Event::Whole { head, data } => {
                        last.id = head.id.or(last.id.take());
                        last.retry = head.retry.or(last.retry);
                        if !data.trim_ascii().is_empty() {
                            self.hear_part(&data.into(), slot.id);
                        }
                    }
                    Event::TooLarge(id) => {
                        let id = id.unwrap_or(slot.id);
                        drop(self.0.tap.settle(id, Answer::TooLarge));
                    }
                }
            }
            if slot.answer().is_some() {
                break;
            }
        }
        heard
    }

    /// A body that must hold the answer.
    fn hear(&self, body: &Bytes, slot: &Slot) {
        self.hear_part(body, slot.id);
        drop(self.0.tap.settle(slot.id, Answer::Broken(NO_ANSWER.into())));
    }

    /// What came on the response to `id`; a request of the server is answered, for rmcp does not see it.
    fn hear_part(&self, text: &Bytes, id: CallId) {
        let mut out = VecDeque::new();
        self.0.tap.incoming(text, Some(id), &mut out);
        for message in out {
            if let JsonRpcMessage::Request(request) = message {
                self.tell(self.standing(), reply_to(&request));
            }
        }
    }

    async fn post(&self, headers: HeaderMap, body: Bytes, asks: bool, in_session: bool) -> Reply {
        let Inner { client, url, .. } = &*self.0;
        let mut request = Request::new(Method::POST, url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        match client.execute(request).await {
            Ok(response) if response.status().is_success() => taken(response, asks).await,
            Ok(response) => refused(response, in_session).await,
            Err(error) => Reply::Failed(unreachable(&error)),
        }
    }

    /// Opens a stream of events: the server's own, or what follows the event `last`.
    async fn events_after(
        &self,
        mut headers: HeaderMap,
        last: Option<&str>,
    ) -> Result<Response, Fault> {
        if let Some(Ok(id)) = last.map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT_ID, id);
        }
        let fault = |text: String| StreamableHttpError::Client(HttpFault(text));
        let request = self.0.client.get(self.0.url.clone()).headers(headers);
        let response = request.send().await;
        let response = response.map_err(|error| fault(root_cause(&error)))?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(fault(format!("HTTP {status}"))),
            _ if media_type(response.headers()) != "text/event-stream" => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            _ => Ok(response),
        }
    }

    fn headers(
        &self,
        session: Option<&str>,
        protocol_headers: HashMap<HeaderName, HeaderValue>,
    ) -> HeaderMap {
        let mut headers = self.0.headers.clone();
        headers.extend(protocol_headers);
        let accept = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, accept);
        if let Some(Ok(mut session)) = session.map(HeaderValue::from_str) {
            session.set_sensitive(true);
            headers.insert(SESSION_ID, session);
        }
        headers
    }

    /// A POST of rmcp: of the handshake, or of a request in a session that it has renewed.
    async fn post_for_rmcp(
        &self,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        protocol_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let (body, id) = self.0.tap.outgoing(message)?;
        let slot = match message {
            JsonRpcMessage::Request(request) => request.request.extensions().get::<RawCall>(),
            _ => None,
        };
        let slot = slot.map(|call| call.0.clone());
        let session: Option<Arc<str>> = session.map(Arc::from);
        if let (Some(slot), Some(session)) = (&slot, &session)
            && slot.was_refused_in(session)
        {
            return Err(StreamableHttpError::SessionExpired);
        }
        let mut headers = self.headers(session.as_deref(), protocol_headers);
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        *lock(&self.0.standing) = Standing {
            headers: headers.clone(),
            session: session.clone(),
        };
        if let Some(slot) = &slot {
            slot.mark_sent();
            mirror(&mut headers, slot);
        }
        let reply = self.post(headers, body, id.is_some(), session.is_some());
        let reply = match (reply.await, slot, session) {
            (Reply::SessionGone(failure), Some(slot), Some(session))
                if !slot.refuse_in(session.clone()) =>
            {
                Reply::Failed(failure)
            }
            (reply, ..) => reply,
        };
        self.told_to_rmcp(reply, id)
    }

    fn told_to_rmcp(
        &self,
        reply: Reply,
        id: Option<CallId>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let tap = &self.0.tap;
        let told = |settled: Settled, session| {
            Ok(match settled.told() {
                Some(message) => StreamableHttpPostResponse::Json(message, session),
                None => StreamableHttpPostResponse::Accepted,
            })
        };
        match (reply, id) {
            (Reply::SessionGone(_), _) => Err(StreamableHttpError::SessionExpired),
            (Reply::Failed(failure), id) => {
                let text = failure.message.clone();
                let answer = Answer::Failed(failure);
                match id.and_then(|id| tap.settle(id, answer).told()) {
                    Some(message) => Ok(StreamableHttpPostResponse::Json(message, None)),
                    None => Err(StreamableHttpError::Client(HttpFault(text))),
                }
            }
            (Reply::Accepted, _) | (_, None) => Ok(StreamableHttpPostResponse::Accepted),
            (Reply::Events(response), Some(id)) => {
                let session = text_header(response.headers(), &SESSION_ID);
                let events = events(response.bytes_stream(), tap.clone(), Some(id));
                Ok(StreamableHttpPostResponse::Sse(events, session))
            }
            (Reply::TooLarge, Some(id)) => told(tap.settle(id, Answer::TooLarge), None),
            (Reply::Body(body, session), Some(id)) => {
                let mut out = VecDeque::new();
                tap.incoming(&body, Some(id), &mut out);
                let broken = Answer::Broken(NO_ANSWER.into());
                match out.pop_front() {
                    Some(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                    None => told(tap.settle(id, broken), session),
                }
            }
        }
    }
}

/// The headers that mirror the body, which a modern server wants.
fn mirror(headers: &mut HeaderMap, slot: &Slot) {
    if !headers.contains_key(MCP_METHOD) {
        return;
    }
    let method = HeaderValue::from_static(slot.request.method());
    headers.insert(MCP_METHOD, method);
    if let Some(name) = slot.request.name() {
        headers.insert(MCP_NAME, mirrored(name));
    }
}

/// The answer to a request of the server: we are there, and offer nothing.
fn reply_to(request: &JsonRpcRequest<ServerRequest>) -> Bytes {
    let (member, value) = match request.request {
        ServerRequest::PingRequest(_) => ("result", json!({})),
        _ => {
            let error = json!({"code": -32601, "message": "this client offers no such method"});
            ("error", error)
        }
    };
    let message = json!({"jsonrpc": "2.0", "id": request.id, member: value});
    message.to_string().into()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamableHttpClient for Endpoint {
    type Error = HttpFault;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        self.post_for_rmcp(&message, session_id.as_deref(), custom_headers)
            .await
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Fault> {
        let headers = self.headers(Some(&session_id), custom_headers);
        let Inner { client, url, .. } = &*self.0;
        // Whatever the server says to it, the session is over for us.
        let _ = client.delete(url.clone()).headers(headers).send().await;
        Ok(())
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Fault> {
        let headers = self.headers(session_id.as_deref(), custom_headers);
        let response = self.events_after(headers, last_event_id.as_deref()).await?;
        let tap = self.0.tap.clone();
        Ok(events(response.bytes_stream(), tap, None))
    }
}

/// Whether the server turned a request away unread, for it no longer knew the session.
pub(super) fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        error.downcast_ref::<Fault>(),
        Some(StreamableHttpError::SessionExpired | StreamableHttpError::ReinitializationFailed(_))
    )
}

/// The events of a response, each seen by the tap first.
fn events<E: std::error::Error + Send + Sync + 'static>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    tap: Arc<Tap>,
    reply_to: Option<CallId>,
) -> Events {
    let mut parser = Parser::new(MAX_MESSAGE);
    let tapped = move |piece: Result<Bytes, E>| {
        let mut events = Vec::new();
        let broken = piece.map(|piece| parser.feed(&piece, &mut events)).err();
        let seen = events
            .into_iter()
            .flat_map(|event| tapped(&tap, event, reply_to));
        let broken = broken.map(|error| Err(SseError::Body(Box::new(error))));
        stream::iter(seen.map(Ok).chain(broken).collect::<Vec<_>>())
    };
    bytes.flat_map(tapped).boxed()
}

/// What rmcp sees of one event: what concerns it, under the event's id so that it can resume.
fn tapped(tap: &Tap, event: Event, reply_to: Option<CallId>) -> Vec<Sse> {
    let mut messages = VecDeque::new();
    let head = match event {
        Event::Whole { head, data } => {
            if !data.trim_ascii().is_empty() {
                tap.incoming(&data.into(), reply_to, &mut messages);
            }
            head
        }
        Event::TooLarge(id) => {
            messages.extend(tap.settle_some(reply_to.or(id), Answer::TooLarge).told());
            Sse::default()
        }
    };
    let texts = messages
        .iter()
        .filter_map(|message| serde_json::to_string(message).ok());
    let mut events: Vec<_> = texts.map(|text| head.clone().data(text)).collect();
    if events.is_empty() && (head.id.is_some() || head.retry.is_some()) {
        events.push(head);
    }
    events
}

/// A header that mirrors a value of the body (MCP 2026-07-28, Streamable HTTP, "Value Encoding").
fn mirrored(value: &str) -> HeaderValue {
    let plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && value.trim() == value
        && !(value.starts_with("=?base64?") && value.ends_with("?="));
    let text = match plain {
        true => value.to_owned(),
        false => format!(
            "=?base64?{}?=",
            base64::engine::general_purpose::STANDARD.encode(value)
        ),
    };
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests;
