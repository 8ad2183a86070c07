use std::io;

use futures::FutureExt;
use serde_json::{Value, json};

use super::super::tap::tests::{call, initialize};
use super::reply::{BodyError, body, refusal, session_is_gone};
use super::*;
use crate::model::fuzz::{Choices, cut};

/// Nothing here waits for anything.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("an outcome at once")
}

fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
    let value = |text| HeaderValue::from_static(text);
    pairs
        .iter()
        .map(|(name, text)| (name.clone(), value(text)))
        .collect()
}

#[test]
fn a_lost_session_is_told_from_other_refusals() {
    let none = || headers(&[]);
    let challenge = || headers(&[(header::WWW_AUTHENTICATE, "Bearer")]);
    for (status, headers, text, expected) in [
        (404, none(), "", true),
        (404, none(), "<html>not found</html>", true),
        (
            400,
            none(),
            "Bad Request: No valid session ID provided",
            true,
        ),
        (
            400,
            none(),
            r#"{"error":{"message":"Unknown SESSION"}}"#,
            true,
        ),
        (400, none(), "missing field `name`", false),
        (401, none(), "", true),
        (401, challenge(), "session expired", false),
        (403, none(), "session", false),
        (405, none(), "session", false),
        (410, none(), "", false),
        (500, none(), "session", false),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(
            session_is_gone(status, &headers, text.as_bytes()),
            expected,
            "{status} {text}"
        );
    }
}

#[test]
fn a_refusal_says_what_it_means_for_the_call() {
    let none = || headers(&[]);
    for (status, headers, text, code, words, outcome) in [
        (
            401,
            headers(&[(header::WWW_AUTHENTICATE, "Bearer realm=\"x\"")]),
            "",
            "authorization_required",
            "the server refuses these credentials (HTTP 401 Unauthorized)",
            "not_sent",
        ),
        (
            403,
            none(),
            "go away",
            "authorization_required",
            "the server refuses these credentials (HTTP 403 Forbidden)",
            "not_sent",
        ),
        (
            307,
            headers(&[(header::LOCATION, "https://other.example/path?token=secret")]),
            "",
            "connect_failed",
            "the server redirects to other.example; redirects are not followed, correct its url",
            "not_sent",
        ),
        (
            302,
            headers(&[(header::LOCATION, "/login?token=secret")]),
            "",
            "connect_failed",
            "the server redirects to another path; redirects are not followed, correct its url",
            "not_sent",
        ),
        (
            301,
            none(),
            "",
            "connect_failed",
            "the server redirects to another path; redirects are not followed, correct its url",
            "not_sent",
        ),
        (
            400,
            none(),
            " <p>\r\n  bad </p>\n",
            "server_error",
            "the server answered HTTP 400 Bad Request: <p> bad </p>",
            "not_sent",
        ),
        (
            429,
            headers(&[(header::RETRY_AFTER, "7")]),
            "",
            "server_error",
            "the server answered HTTP 429 Too Many Requests",
            "not_sent",
        ),
        (
            503,
            headers(&[(header::RETRY_AFTER, "Fri, 31 Dec 1999 23:59:59 GMT")]),
            "",
            "server_error",
            "the server answered HTTP 503 Service Unavailable",
            "unknown",
        ),
        (
            500,
            none(),
            "\u{e9}\u{fffd}",
            "server_error",
            "the server answered HTTP 500 Internal Server Error: \u{e9}\u{fffd}",
            "unknown",
        ),
    ] {
        let code_number = StatusCode::from_u16(status).expect("a status");
        let failure = refusal(code_number, &headers, text.as_bytes());
        assert_eq!((failure.code.as_str(), &*failure.message), (code, words));
        let mut expected = json!({"http_status": status, "outcome": outcome});
        if headers.contains_key(header::WWW_AUTHENTICATE) {
            expected["www_authenticate"] = json!("Bearer realm=\"x\"");
        }
        if status == 429 {
            expected["retry_after_ms"] = json!(7000);
        }
        assert_eq!(sorted(&Value::Object(failure.details)), sorted(&expected));
    }
    let long = "x".repeat(1000);
    let failure = refusal(StatusCode::BAD_REQUEST, &none(), long.as_bytes());
    assert!(failure.message.len() < 400);
}

fn sorted(value: &Value) -> Vec<(&String, &Value)> {
    let mut members: Vec<_> = value.as_object().expect("an object").iter().collect();
    members.sort_unstable_by_key(|(name, _)| *name);
    members
}

/// MCP 2026-07-28, Streamable HTTP, "Value Encoding".
#[test]
fn a_mirrored_value_is_plain_where_a_header_can_hold_it() {
    for (value, expected) in [
        ("us-west1", "us-west1"),
        ("two words, [odd] \"ones\"~!", "two words, [odd] \"ones\"~!"),
        ("", ""),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("x\r\nInjected: 1", "=?base64?eA0KSW5qZWN0ZWQ6IDE=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?", "=?base64?"),
        ("\u{7f}", "=?base64?fw==?="),
        ("\u{a0}x", "=?base64?wqB4?="),
    ] {
        assert_eq!(mirrored(value), expected, "{value:?}");
    }
}

#[tokio::test]
async fn why_a_server_was_not_reached_never_shows_its_url() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = client().expect("a client");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = listener.local_addr().expect("an address");
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    };
    for (url, code) in [
        (
            format!("http://{closed}/hunter22?key=hunter22"),
            ErrorCode::ConnectFailed,
        ),
        (
            format!("http://hunter22:hunter22@{silent}/hunter22"),
            ErrorCode::SessionLost,
        ),
        ("http://hunter22.invalid/".into(), ErrorCode::ConnectFailed),
        ("ftp://hunter22/".into(), ErrorCode::SessionLost),
    ] {
        let sent = client.get(&url).timeout(Duration::from_millis(100)).send();
        let error = sent.await.expect_err("no server");
        let failure = unreachable(&error);
        assert!(error.to_string().contains("hunter22") || url.starts_with("ftp"));
        assert!(!failure.message.contains("hunter22"), "{}", failure.message);
        if !url.contains(".invalid") {
            assert_eq!(failure.code, code, "{}", failure.message);
        }
    }
}

fn pieces(texts: &[&'static str]) -> Response {
    let texts: Vec<_> = texts.iter().map(|text| Ok::<_, io::Error>(*text)).collect();
    let body = reqwest::Body::wrap_stream(stream::iter(texts));
    http::Response::new(body).into()
}

#[test]
fn a_body_is_read_up_to_its_limit() {
    let read = |response, limit| at_once(body(response, limit));
    let told = |text: &'static str| Response::from(http::Response::new(text));
    assert!(matches!(read(told("12345"), 5), Ok(text) if text == "12345"));
    assert!(matches!(read(told("123456"), 5), Err(BodyError::TooLarge)));
    assert!(matches!(read(pieces(&["123", "", "45"]), 5), Ok(text) if text == "12345"));
    assert!(matches!(
        read(pieces(&["123", "456"]), 5),
        Err(BodyError::TooLarge)
    ));
    assert!(matches!(read(pieces(&[]), 0), Ok(text) if text.is_empty()));
}

/// What rmcp sees of a response of these pieces, and the answers of the calls 1 to 3.
fn seen(parts: Vec<Bytes>, reply_to: Option<CallId>) -> (Vec<Sse>, Vec<Option<String>>) {
    let tap = Tap::new("books".into(), None);
    let slots = [1, 2, 3].map(|_| call(&tap, None));
    let bytes = stream::iter(parts.into_iter().map(Ok::<_, io::Error>));
    let events = events(bytes, tap, reply_to).map(|event| event.expect("no fault"));
    let events = at_once(events.collect());
    let answer = |slot: &Arc<Slot>| slot.answer().map(|answer| format!("{answer:?}"));
    (events, slots.iter().map(answer).collect())
}

#[test]
fn an_event_stream_answers_its_calls_and_lets_rmcp_resume() {
    let text = "id: 1\nretry: 500\ndata:\n\n: ping\n\nid: 2\ndata: {\"id\":2,\ndata: \"result\":{\"x\":1}}\n\nfoo\nbar: 1\ndata: {\"id\":9,\"result\":{}}\n\n";
    let (events, answers) = seen(vec![text.into()], Some(1));
    let resumable = Sse::default().id("2");
    assert_eq!(events, [Sse::default().id("1").retry(500), resumable]);
    assert_eq!(answers, [None, Some(r#"Result({"x":1})"#.into()), None]);
}

fn endpoint() -> Endpoint {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = Url::parse("http://127.0.0.1:1/mcp").expect("a URL");
    let tap = Tap::new("books".into(), None);
    Endpoint::new(Client::new(), tap, url, HeaderMap::new())
}

#[test]
fn the_events_of_a_response_answer_its_call_and_say_where_to_go_on() {
    let endpoint = endpoint();
    let slot = call(&endpoint.0.tap, None);
    let mut last = Sse::default();
    let parts = ["id: a\nretry: 5\ndata:\n\nda", "ta: {\"method\":\"x\"}\n\n"];
    assert!(at_once(endpoint.hear_events(
        pieces(&parts),
        &slot,
        &mut last
    )));
    assert_eq!((&last.id, last.retry), (&Some("a".into()), Some(5)));
    assert!(slot.answer().is_none());
    let parts = ["id: b\ndata: {\"id\":1,\"result\":7}\n\n"];
    at_once(endpoint.hear_events(pieces(&parts), &slot, &mut last));
    assert!(matches!(slot.answer(), Some(Answer::Result(_))));
    assert_eq!((&last.id, last.retry), (&Some("b".into()), Some(5)));
}

#[test]
fn a_stream_that_ends_too_soon_and_cannot_be_continued_fails_its_call() {
    let endpoint = endpoint();
    let slot = call(&endpoint.0.tap, None);
    at_once(endpoint.follow(pieces(&["data: {\"method\":\"x\"}\n\n"]), &slot));
    let Some(Answer::Failed(failure)) = slot.answer() else {
        panic!("no failure");
    };
    assert_eq!(failure.code, ErrorCode::SessionLost);
}

#[test]
fn an_event_that_is_too_large_is_the_answer_of_its_call_and_the_stream_goes_on() {
    let long = Bytes::from(vec![b'x'; MAX_MESSAGE]);
    let parts = |start: &'static str| {
        vec![
            start.into(),
            long.clone(),
            "\"}\n\ndata: {\"id\":3,\"result\":1}\n\n".into(),
        ]
    };
    let (events, answers) = seen(parts("data: {\"id\":2,\"result\":\""), None);
    assert_eq!(
        answers,
        [None, Some("TooLarge".into()), Some("Result(1)".into())]
    );
    assert!(events.is_empty());
    let (_, answers) = seen(parts("data: {\"result\":\""), Some(1));
    assert_eq!(
        answers,
        [Some("TooLarge".into()), None, Some("Result(1)".into())]
    );
}

#[test]
fn a_response_that_breaks_off_is_told_to_rmcp_once() {
    let tap = Tap::new("books".into(), None);
    initialize(&tap, 0);
    let broken = io::Error::other("reset");
    let parts = [Ok(Bytes::from_static(b"data: {\"id\"")), Err(broken)];
    let events: Vec<_> = at_once(events(stream::iter(parts), tap, Some(1)).collect());
    assert!(matches!(&events[..], [Err(SseError::Body(_))]));
}

const WORDS: &[&str] = &[
    "\n",
    "\n\n",
    "\r",
    "\r\n\r\n",
    "data: ",
    "data:",
    "id: 5\n",
    "retry: 9\r",
    ": ping\n\n",
    "foo\n",
    "data: {\"id\":1,\"result\":{}}\n\n",
    "data: {\"id\":2,\rdata: \"result\":{}}\r\r",
    "data: [{\"id\":3,\"error\":{}},{\"id\":1}]\r\n\r\n",
    "data: {\"method\":\"ping\",\"id\":1,\"jsonrpc\":\"2.0\"}\n\n",
    "data: {\"id\":null,\"error\":1}\n\n",
    "data: noise\n\n",
];

/// F4: whatever the chunks, the same calls are answered and rmcp sees the same.
#[test]
fn f4_answers() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut choices = Choices::new(bytes);
        let sizes = choices.sizes();
        let reply_to = Some(1 + choices.below(4) as CallId).filter(|id| *id < 4);
        for input in [&choices.text(WORDS, 60)[..], bytes] {
            let parts = cut(input, &sizes).into_iter().map(Bytes::copy_from_slice);
            let whole = seen(vec![Bytes::copy_from_slice(input)], reply_to);
            assert_eq!(seen(parts.collect(), reply_to), whole);
        }
    });
}
