//! What a response means: an answer to read, or why there is none.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, StatusCode, header};
use reqwest::Response;

use super::SESSION_ID;
use crate::mcp::wire::MAX_MESSAGE;
use crate::model::error::{ErrorCode, Failure, Outcome};

/// How much of a body that only explains an HTTP error is read, in bytes.
const MAX_DIAGNOSTIC: usize = 64 * 1024;

/// What a POST has brought.
pub(super) enum Reply {
    /// Taken, and nothing is to be read.
    Accepted,
    /// Also the session that it opens.
    Body(Bytes, Option<String>),
    TooLarge,
    Events(Response),
    /// Why there is no answer.
    Failed(Failure),
    /// What it means where it cannot be helped.
    SessionGone(Failure),
}

pub(super) async fn taken(response: Response, asks: bool) -> Reply {
    let status = response.status();
    if !asks {
        return Reply::Accepted;
    }
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        let text = format!("the server answered a request with HTTP {status} and no result");
        let failure = Failure::new(ErrorCode::ProtocolError, text);
        return Reply::Failed(failure.outcome(Outcome::Unknown));
    }
    if media_type(response.headers()) == "text/event-stream" {
        return Reply::Events(response);
    }
    let session = text_header(response.headers(), &SESSION_ID);
    match body(response, MAX_MESSAGE).await {
        Ok(body) => Reply::Body(body, session),
        Err(BodyError::TooLarge) => Reply::TooLarge,
        Err(BodyError::Broken(error)) => {
            let text = format!("the response broke off: {}", root_cause(&error));
            let failure = Failure::new(ErrorCode::SessionLost, text);
            Reply::Failed(failure.outcome(Outcome::Unknown))
        }
    }
}

pub(super) async fn refused(response: Response, in_session: bool) -> Reply {
    let status = response.status();
    let headers = response.headers().clone();
    let text = body(response, MAX_DIAGNOSTIC).await.unwrap_or_default();
    let is_auth = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if in_session && session_is_gone(status, &headers, &text) {
        if is_auth {
            return Reply::SessionGone(refusal(status, &headers, &text));
        }
        let text = format!("it does not know the session it has just opened (HTTP {status})");
        let failure = Failure::new(ErrorCode::SessionLost, text).outcome(Outcome::NotSent);
        return Reply::SessionGone(failure.with("http_status", status.as_u16()));
    }
    if !is_auth && text.trim_ascii().starts_with(b"{") && has_error(&text) {
        return Reply::Body(text, None);
    }
    Reply::Failed(refusal(status, &headers, &text))
}

/// Whether a refusal means that the server no longer knows the session: 404 by the rules; in the
/// field also 400 with a text about the session, and 401 without a challenge.
pub(super) fn session_is_gone(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> bool {
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
pub(super) fn unreachable(error: &reqwest::Error) -> Failure {
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

pub(super) fn refusal(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> Failure {
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

pub(super) fn text_header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

pub(super) fn media_type(headers: &HeaderMap) -> String {
    let full = text_header(headers, &header::CONTENT_TYPE).unwrap_or_default();
    full.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

pub(super) enum BodyError {
    TooLarge,
    Broken(reqwest::Error),
}

/// A whole body of at most `limit` bytes.
pub(super) async fn body(response: Response, limit: usize) -> Result<Bytes, BodyError> {
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
pub(super) fn root_cause(error: &reqwest::Error) -> String {
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
