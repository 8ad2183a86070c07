use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::directory::reader::tests::field_rows;
use crate::directory::{Directory, Snapshot};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::redact::Redactor;
use crate::model::settings::Settings;

/// What the stand-in was asked: method and path, Authorization, If-None-Match, body.
type Asked = (String, Option<String>, Option<String>, Value);
type Answerer = fn(&Asked) -> Reply;

/// What the stand-in answers: the status, a header of its own, the body.
struct Reply(u16, &'static str, Sent);

enum Sent {
    Whole(String),
    /// Blanks, until the other side has enough.
    Endless,
}

fn bare(status: u16) -> Reply {
    Reply(status, "x-stand-in: 1", Sent::Whole(String::new()))
}

fn rows(header: &'static str) -> Reply {
    let envelope = json!({"code": 200, "message": "success", "data": field_rows(), "timestamp": 1});
    Reply(200, header, Sent::Whole(envelope.to_string()))
}

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
    let serving = host.clone();
    tokio::spawn(async move {
        while let Ok((peer, _)) = listener.accept().await {
            tokio::spawn(serving.clone().serve(peer));
        }
    });
    host
}

impl Host {
    /// One request, one answer, and the connection is closed.
    async fn serve(self, mut peer: TcpStream) -> std::io::Result<()> {
        let asked = read_request(&mut peer).await?;
        let Reply(status, header, sent) = (self.answer)(&asked);
        self.asked.lock().unwrap().push(asked);
        let head = format!("HTTP/1.1 {status} Said\r\nconnection: close\r\n{header}\r\n\r\n");
        peer.write_all(head.as_bytes()).await?;
        match sent {
            Sent::Whole(body) => peer.write_all(body.as_bytes()).await,
            Sent::Endless => loop {
                peer.write_all(&[b' '; 65_536]).await?;
            },
        }
    }
}

async fn read_request(peer: &mut TcpStream) -> std::io::Result<Asked> {
    let mut bytes = Vec::new();
    loop {
        if let Some(asked) = parse_request(&bytes) {
            return Ok(asked);
        }
        if peer.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// `None`: not all of it has come yet.
fn parse_request(bytes: &[u8]) -> Option<Asked> {
    let (head, body) = std::str::from_utf8(bytes).ok()?.split_once("\r\n\r\n")?;
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    let length: usize = header("content-length")?.parse().ok()?;
    let asked = (
        head.split(" HTTP/").next()?.to_owned(),
        header("authorization"),
        header("if-none-match"),
        serde_json::from_str(body.get(..length)?).ok()?,
    );
    Some(asked)
}

fn success(_: &Asked) -> Reply {
    rows("content-type: application/json")
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
    let host = host(|asked| match asked.2.as_deref() {
        Some("\"v1\"") => bare(304),
        _ => rows("etag: \"v1\""),
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
    let (failure, count) =
        refusal(|_| Reply(307, "location: /elsewhere", Sent::Whole(String::new()))).await;
    assert_eq!((failure.code, count), (ErrorCode::ConfigUnavailable, 1));
    assert!(failure.message.contains("redirect"), "{failure}");
}

#[tokio::test]
async fn a_refusal_is_told_from_an_outage() {
    let (failure, count) = refusal(|_| bare(401)).await;
    assert_eq!((failure.code, count), (ErrorCode::ConfigUnauthorized, 1));
    let (failure, count) = refusal(|_| {
        let body = json!({"code": 403, "message": "expired", "data": null});
        Reply(200, "x-stand-in: 1", Sent::Whole(body.to_string()))
    })
    .await;
    assert_eq!((failure.code, count), (ErrorCode::ConfigUnauthorized, 1));
    assert!(failure.message.contains("expired"), "{failure}");
    let (failure, count) = refusal(|_| bare(502)).await;
    assert_eq!(failure.code, ErrorCode::ConfigUnavailable);
    assert!(count > 1, "it was retried");
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let (failure, _) = refusal(|_| Reply(200, "x-stand-in: 1", Sent::Endless)).await;
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
