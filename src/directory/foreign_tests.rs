use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::directory::reader::tests::field_rows;
use crate::directory::{Directory, Snapshot};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::redact::Redactor;
use crate::model::settings::Settings;

/// What the stand-in was asked: path, Authorization, If-None-Match, body.
type Asked = (String, Option<String>, Option<String>, Value);
type Answerer = fn(&Asked) -> Response<Body>;

#[derive(Clone)]
struct Host {
    base: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: Answerer,
}

/// A host with rows as they look in the field, on a port of its own.
async fn host(answer: Answerer) -> Host {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = Host {
        base: format!("http://{}", listener.local_addr().unwrap()),
        asked: Arc::default(),
        answer,
    };
    let router = Router::new().fallback(take).with_state(host.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    host
}

async fn take(State(host): State<Host>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let header = |name| Some(head.headers.get(name)?.to_str().unwrap().to_owned());
    let asked = (
        format!("{} {}", head.method, head.uri.path()),
        header("authorization"),
        header("if-none-match"),
        serde_json::from_slice(&body).unwrap_or(Value::Null),
    );
    let answer = (host.answer)(&asked);
    host.asked.lock().unwrap().push(asked);
    answer
}

fn success(_: &Asked) -> Response<Body> {
    let envelope = json!({"code": 200, "message": "success", "data": field_rows(), "timestamp": 1});
    Response::new(Body::from(envelope.to_string()))
}

fn settings(host: &Host, change: impl FnOnce(&mut ConfigSettings)) -> Settings {
    let mut settings = Settings::default();
    settings.config.api_base = Some(format!("{}/", host.base));
    settings.config.ttl = Duration::ZERO;
    settings.config.timeout = Duration::from_secs(2);
    change(&mut settings.config);
    settings
}

async fn open(host: &Host) -> Directory {
    let internal = Secret::new("the-internal-token");
    let settings = settings(host, |config| config.internal_token = Some(internal));
    Directory::open(&settings, Redactor::default())
        .await
        .unwrap()
}

fn ann(token: Option<&str>) -> Caller {
    Caller {
        user: Some(UserId::new("7")),
        access_token: token.map(Secret::new),
        session: None,
    }
}

async fn refusal(answer: Answerer) -> (Failure, usize) {
    let host = host(answer).await;
    let failed = open(&host).await.snapshot(&ann(None)).await.unwrap_err();
    let count = host.asked.lock().unwrap().len();
    (failed, count)
}

#[tokio::test]
async fn asks_as_the_user_else_with_the_internal_token() {
    let host = host(success).await;
    let directory = open(&host).await;
    let snapshot: Arc<Snapshot> = directory.snapshot(&ann(Some("anns-jwt"))).await.unwrap();
    assert_eq!(snapshot.servers.len(), 4);
    directory.snapshot(&ann(None)).await.unwrap();
    directory.snapshot(&Caller::default()).await.unwrap();
    let asked = host.asked.lock().unwrap().clone();
    let path = || "POST /internal/mcp/config".to_owned();
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    assert_eq!(
        asked,
        [
            (path(), bearer("anns-jwt"), None, json!({"user_id": "7"})),
            (
                path(),
                bearer("the-internal-token"),
                None,
                json!({"user_id": "7"})
            ),
            (
                path(),
                bearer("the-internal-token"),
                None,
                json!({"user_id": null})
            ),
        ]
    );
}

#[tokio::test]
async fn revalidates_by_etag() {
    let host = host(|asked| match &asked.2 {
        Some(tag) if tag == "\"v1\"" => {
            Response::builder().status(304).body(Body::empty()).unwrap()
        }
        _ => Response::builder()
            .header("etag", "\"v1\"")
            .body(success(asked).into_body())
            .unwrap(),
    })
    .await;
    let directory = open(&host).await;
    let first = directory.snapshot(&ann(None)).await.unwrap();
    let second = directory.snapshot(&ann(None)).await.unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(host.asked.lock().unwrap()[1].2.as_deref(), Some("\"v1\""));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (failure, count) = refusal(|_| {
        Response::builder()
            .status(307)
            .header("location", "/elsewhere")
            .body(Body::empty())
            .unwrap()
    })
    .await;
    assert_eq!((failure.code, count), (ErrorCode::ConfigUnavailable, 1));
    assert!(failure.message.contains("redirect"), "{failure}");
}

#[tokio::test]
async fn a_refusal_is_told_from_an_outage() {
    let (failure, count) =
        refusal(|_| Response::builder().status(401).body(Body::empty()).unwrap()).await;
    assert_eq!((failure.code, count), (ErrorCode::ConfigUnauthorized, 1));
    let (failure, count) = refusal(|_| {
        Response::new(Body::from(
            json!({"code": 403, "message": "expired", "data": null}).to_string(),
        ))
    })
    .await;
    assert_eq!((failure.code, count), (ErrorCode::ConfigUnauthorized, 1));
    assert!(failure.message.contains("expired"), "{failure}");
    let (failure, count) =
        refusal(|_| Response::builder().status(502).body(Body::empty()).unwrap()).await;
    assert_eq!(failure.code, ErrorCode::ConfigUnavailable);
    assert!(count > 1, "it was retried");
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let (failure, _) =
        refusal(|_| {
            let chunks = futures::stream::repeat(Ok::<_, std::convert::Infallible>(Bytes::from(
                vec![b' '; 1 << 20],
            )));
            Response::new(Body::from_stream(chunks))
        })
        .await;
    assert_eq!(failure.code, ErrorCode::ConfigUnavailable);
    assert!(failure.message.contains("16777216"), "{failure}");
}

#[tokio::test]
async fn an_unreachable_host_is_named_without_secrets() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut settings = Settings::default();
    settings.config.api_base = Some(format!("http://user:hush@{address}/api"));
    settings.config.timeout = Duration::from_millis(200);
    let directory = Directory::open(&settings, Redactor::default())
        .await
        .unwrap();
    let failure = directory.snapshot(&ann(Some("t0ken"))).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ConfigUnavailable);
    assert!(failure.message.contains(&address.to_string()), "{failure}");
    assert!(
        !failure.message.contains("hush") && !failure.message.contains("t0ken"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_token_that_is_none_is_refused_unsent() {
    let host = host(success).await;
    let failure = open(&host)
        .await
        .snapshot(&ann(Some("a\nb")))
        .await
        .unwrap_err();
    assert_eq!(failure.code, ErrorCode::ConfigUnauthorized);
    assert!(host.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_base_must_be_a_url() {
    for (base, fine) in [
        ("http://h", true),
        ("https://h/api/", true),
        ("https://h/internal/mcp/config", true),
        ("h:3000", false),
        ("ftp://h", false),
        ("", false),
    ] {
        assert_eq!(
            Foreign::new(base, &ConfigSettings::default()).is_ok(),
            fine,
            "{base}"
        );
    }
    let whole = Foreign::new("https://h/internal/mcp/config", &ConfigSettings::default());
    assert_eq!(whole.unwrap().url.path(), PATH);
}
