//! The Streamable HTTP transport's client: every message passes the tap, every odd reply becomes an
//! answer. rmcp's worker above it keeps sessions, recovery and resumption.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
pub(super) use reqwest::Client;
use reqwest::{Response, redirect};
use rmcp::model::{ClientJsonRpcMessage, GetExtensions, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::tap::{RawCall, Slot, Tap, wire_id};
use super::wire::{Answer, CallId, MAX_MESSAGE};
use crate::model::error::{ErrorCode, Failure, Outcome};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// How much of a body that only explains an HTTP error is read, in bytes.
const MAX_DIAGNOSTIC: usize = 64 * 1024;

type Events = BoxStream<'static, Result<Sse, SseError>>;
type Fault = StreamableHttpError<HttpFault>;

/// What rmcp is told of a failure; the call itself gets a [`Failure`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct HttpFault(String);

/// The client for all servers: connections are kept alive and shared, redirects are not followed
/// (they would carry credentials elsewhere), compressed bodies are not asked for.
pub(super) fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("mcp-client/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// One connection's view of the shared client.
#[derive(Clone)]
pub(super) struct TappedHttp {
    pub client: reqwest::Client,
    pub tap: Arc<Tap>,
    /// The definition's headers, credentials included.
    pub headers: HeaderMap,
}

/// The request a POST carries, if it carries one.
struct Asked {
    id: CallId,
    slot: Option<Arc<Slot>>,
}

impl Asked {
    fn of(message: &ClientJsonRpcMessage) -> Option<Self> {
        let JsonRpcMessage::Request(request) = message else {
            return None;
        };
        let slot = request
            .request
            .extensions()
            .get::<RawCall>()
            .map(|call| call.0.clone());
        Some(Self {
            id: wire_id(&request.id)?,
            slot,
        })
    }
}

impl TappedHttp {
    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        protocol_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let asked = Asked::of(message);
        let body = self.tap.outgoing(message)?;
        let mut headers = self.headers(session, protocol_headers);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(slot) = asked.as_ref().and_then(|asked| asked.slot.as_ref()) {
            slot.mark_sent();
            if let Some(name) = slot
                .name
                .as_deref()
                .filter(|_| headers.contains_key(MCP_METHOD))
            {
                headers.insert(MCP_NAME, mirrored(name));
            }
        }
        let response = match self
            .client
            .post(uri)
            .headers(headers)
            .body(body)
            .send()
            .await
        {
            Ok(response) => response,
            Err(error) => return self.fail(asked, unreachable(&error)),
        };
        self.sort(response, asked, session.is_some()).await
    }

    fn headers(
        &self,
        session: Option<&str>,
        protocol_headers: HashMap<HeaderName, HeaderValue>,
    ) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.extend(protocol_headers);
        let accept = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, accept);
        if let Some(Ok(mut session)) = session.map(HeaderValue::from_str) {
            session.set_sensitive(true);
            headers.insert(SESSION_ID, session);
        }
        headers
    }

    /// Gives the asked request its failure; a message that asks nothing only tells rmcp.
    fn fail(
        &self,
        asked: Option<Asked>,
        failure: Failure,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let text = failure.message.clone();
        match asked.and_then(|asked| self.tap.settle(asked.id, Answer::Failed(failure))) {
            Some(message) => Ok(StreamableHttpPostResponse::Json(message, None)),
            None => Err(StreamableHttpError::Client(HttpFault(text))),
        }
    }

    async fn sort(
        &self,
        response: Response,
        asked: Option<Asked>,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let status = response.status();
        if !status.is_success() {
            return self.refused(response, asked, in_session).await;
        }
        let session = text_header(response.headers(), &SESSION_ID);
        let Some(asked) = asked else {
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            let failure = Failure::new(
                ErrorCode::ProtocolError,
                format!("the server answered a request with HTTP {status} and no result"),
            );
            return self.fail(Some(asked), failure.outcome(Outcome::Unknown));
        }
        if media_type(response.headers()) == "text/event-stream" {
            let events = self.events(response, Some(asked.id));
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        match body(response, MAX_MESSAGE).await {
            Ok(body) => match self.read_body(&body, asked.id) {
                Some(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                None => Ok(StreamableHttpPostResponse::Accepted),
            },
            Err(BodyError::TooLarge) => match self.tap.settle(asked.id, Answer::TooLarge) {
                Some(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                None => Ok(StreamableHttpPostResponse::Accepted),
            },
            Err(BodyError::Broken(error)) => {
                let text = format!("the response broke off: {}", root_cause(&error));
                let failure = Failure::new(ErrorCode::SessionLost, text).outcome(Outcome::Unknown);
                self.fail(Some(asked), failure)
            }
        }
    }

    /// The message of a body that answers `id`; anything else that it holds is dealt with.
    fn read_body(&self, body: &Bytes, id: CallId) -> Option<ServerJsonRpcMessage> {
        let mut out = VecDeque::new();
        self.tap.incoming(body, Some(id), &mut out);
        if out.is_empty() {
            let reason = "the response body holds no answer to the request".into();
            out.extend(self.tap.settle(id, Answer::Broken(reason)));
        }
        out.pop_front()
    }

    async fn refused(
        &self,
        response: Response,
        asked: Option<Asked>,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let status = response.status();
        let headers = response.headers().clone();
        let text = body(response, MAX_DIAGNOSTIC).await.unwrap_or_default();
        let is_gone = in_session && session_is_gone(status, &headers, &text);
        let slot = asked.as_ref().and_then(|asked| asked.slot.as_ref());
        if is_gone && slot.is_none_or(|slot| slot.lost_session()) {
            return Err(StreamableHttpError::SessionExpired);
        }
        let Some(asked) = asked else {
            return Err(StreamableHttpError::Client(HttpFault(format!(
                "HTTP {status}"
            ))));
        };
        let is_auth = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_gone && !is_auth {
            let text = format!("it does not know the session it has just opened (HTTP {status})");
            let failure = Failure::new(ErrorCode::SessionLost, text).outcome(Outcome::NotSent);
            return self.fail(Some(asked), failure.with("http_status", status.as_u16()));
        }
        if !is_auth && text.trim_ascii().starts_with(b"{") && has_error(&text) {
            return match self.read_body(&text, asked.id) {
                Some(message) => Ok(StreamableHttpPostResponse::Json(message, None)),
                None => Ok(StreamableHttpPostResponse::Accepted),
            };
        }
        self.fail(Some(asked), refusal(status, &headers, &text))
    }

    /// The events of a response, each seen by the tap first.
    fn events(&self, response: Response, reply_to: Option<CallId>) -> Events {
        let pending = Arc::new(AtomicUsize::new(0));
        let seen = pending.clone();
        let bytes = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(std::io::Error::other)?;
            match seen.fetch_add(chunk.len(), Ordering::Relaxed) {
                length if length > MAX_MESSAGE => {
                    Err(std::io::Error::other("an event is too large"))
                }
                _ => Ok(chunk),
            }
        });
        let tap = self.tap.clone();
        SseStream::from_bytes_stream(bytes)
            .flat_map(move |event| {
                let is_too_large = pending.swap(0, Ordering::Relaxed) > MAX_MESSAGE;
                if let (Err(_), true, Some(id)) = (&event, is_too_large, reply_to) {
                    // What rmcp is told of it goes nowhere: the stream breaks off with the error.
                    tap.settle(id, Answer::TooLarge);
                }
                stream::iter(tapped(&tap, event, reply_to))
            })
            .boxed()
    }

    async fn get(
        &self,
        uri: &str,
        session: Option<&str>,
        last_event: Option<String>,
        protocol_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Fault> {
        let mut headers = self.headers(session, protocol_headers);
        if let Some(Ok(id)) = last_event.as_deref().map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT_ID, id);
        }
        let fault = |text: String| StreamableHttpError::Client(HttpFault(text));
        let response = self.client.get(uri).headers(headers).send().await;
        let response = response.map_err(|error| fault(root_cause(&error)))?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(fault(format!("HTTP {status}"))),
            _ if media_type(response.headers()) != "text/event-stream" => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            _ => Ok(self.events(response, None)),
        }
    }
}

impl StreamableHttpClient for TappedHttp {
    type Error = HttpFault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        self.post(&uri, &message, session_id.as_deref(), custom_headers)
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Fault> {
        let headers = self.headers(Some(&session_id), custom_headers);
        // Whatever the server says to it, the session is over for us.
        let _ = self.client.delete(&*uri).headers(headers).send().await;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Fault> {
        self.get(&uri, session_id.as_deref(), last_event_id, custom_headers)
            .await
    }
}

/// Whether the server turned a request away unread, for it no longer knew the session.
pub(super) fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        error.downcast_ref::<Fault>(),
        Some(StreamableHttpError::SessionExpired | StreamableHttpError::ReinitializationFailed(_))
    )
}

/// What rmcp sees of one event: what concerns it, under the event's id so that it can resume.
fn tapped(
    tap: &Tap,
    event: Result<Sse, SseError>,
    reply_to: Option<CallId>,
) -> Vec<Result<Sse, SseError>> {
    let mut event = match event {
        Ok(event) => event,
        Err(error) => return vec![Err(error)],
    };
    let mut messages = VecDeque::new();
    if let Some(data) = event.data.take().filter(|data| !data.trim().is_empty()) {
        tap.incoming(&Bytes::from(data), reply_to, &mut messages);
    }
    let texts = messages
        .iter()
        .filter_map(|message| serde_json::to_string(message).ok());
    let mut events: Vec<_> = texts
        .map(|text| {
            Ok(Sse {
                data: Some(text),
                ..event.clone()
            })
        })
        .collect();
    if events.is_empty() && (event.id.is_some() || event.retry.is_some()) {
        events.push(Ok(event));
    }
    events
}

/// Whether a refusal means that the server no longer knows the session: 404 by the rules; in the
/// field also 400 with a text about the session, and 401 without a challenge.
fn session_is_gone(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> bool {
    match status {
        StatusCode::NOT_FOUND => true,
        StatusCode::BAD_REQUEST => String::from_utf8_lossy(text)
            .to_ascii_lowercase()
            .contains("session"),
        StatusCode::UNAUTHORIZED => !headers.contains_key(header::WWW_AUTHENTICATE),
        _ => false,
    }
}

fn has_error(text: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(text)
        .is_ok_and(|value| value.get("error").is_some_and(|error| !error.is_null()))
}

/// A request that never reached the server, or that broke off on the way.
fn unreachable(error: &reqwest::Error) -> Failure {
    let (code, outcome) = match error.is_connect() {
        true => (ErrorCode::ConnectFailed, Outcome::NotSent),
        false => (ErrorCode::SessionLost, Outcome::Unknown),
    };
    Failure::new(
        code,
        format!("the server cannot be reached: {}", root_cause(error)),
    )
    .outcome(outcome)
}

fn refusal(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> Failure {
    let failure = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let challenge = text_header(headers, &header::WWW_AUTHENTICATE);
            let failure = Failure::new(
                ErrorCode::AuthorizationRequired,
                format!("the server refuses these credentials (HTTP {status})"),
            );
            match challenge {
                Some(challenge) => failure.with("www_authenticate", challenge),
                None => failure,
            }
        }
        _ if status.is_redirection() => Failure::new(
            ErrorCode::ConnectFailed,
            format!(
                "the server redirects to {}; redirects are not followed, correct its url",
                host(headers)
            ),
        ),
        _ => Failure::new(
            ErrorCode::ServerError,
            format!("the server answered HTTP {status}{}", quoted(text)),
        ),
    };
    let outcome = if status.is_server_error() {
        Outcome::Unknown
    } else {
        Outcome::NotSent
    };
    let failure = failure
        .with("http_status", status.as_u16())
        .outcome(outcome);
    match text_header(headers, &header::RETRY_AFTER).and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => failure.retry_after(Duration::from_secs(seconds)),
        None => failure,
    }
}

/// The beginning of an error page, on one line.
fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(300)]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        text
    } else {
        format!(": {text}")
    }
}

/// The host a redirect points to, and no more of it: paths and queries may hold secrets.
fn host(headers: &HeaderMap) -> String {
    let location = text_header(headers, &header::LOCATION);
    location
        .and_then(|location| url::Url::parse(&location).ok())
        .and_then(|url| url.host_str().map(str::to_owned))
        .unwrap_or_else(|| "another path".into())
}

fn text_header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

fn media_type(headers: &HeaderMap) -> String {
    let full = text_header(headers, &header::CONTENT_TYPE).unwrap_or_default();
    full.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
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

enum BodyError {
    TooLarge,
    Broken(reqwest::Error),
}

/// A whole body of at most `limit` bytes.
async fn body(response: Response, limit: usize) -> Result<Bytes, BodyError> {
    let length = response
        .content_length()
        .and_then(|length| usize::try_from(length).ok());
    if length.is_some_and(|length| length > limit) {
        return Err(BodyError::TooLarge);
    }
    let mut chunks = response.bytes_stream();
    let mut whole = BytesMut::with_capacity(length.unwrap_or_default());
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(BodyError::Broken)?;
        if whole.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// The innermost reason: reqwest's own texts name the URL, which may hold a secret.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if std::ptr::eq(cause, error as &dyn std::error::Error as *const _) {
        return if error.is_timeout() {
            "timed out".into()
        } else {
            "the request failed".into()
        };
    }
    cause.to_string()
}
