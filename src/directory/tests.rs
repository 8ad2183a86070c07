use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::config_api::{Owner, open_in};
use crate::model::secret::{Credentials, Secret};

fn rows(name: &str) -> Value {
    json!({"servers": [{"id": 1, "name": name, "command": "x"}]})
}

fn caller(user: &str, token: &str) -> Caller {
    Caller {
        user: Some(UserId::new(user)),
        access_token: Some(Secret::new(token)),
        session: None,
    }
}

fn only_name(snapshot: &Snapshot) -> &str {
    &snapshot.servers[0].definition.name
}

/// One scripted reply of the stand-in.
enum Reply {
    Rows(&'static str),
    /// With this version.
    Versioned(&'static str, &'static str),
    NotModified,
    Status(u16),
    Dead,
    Hangs,
}

/// A config API that answers from a script, its last reply over and over.
struct Scripted {
    script: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<(Option<String>, Option<String>)>>,
    /// A permit for each reply that may leave.
    gate: Semaphore,
    ttl: Duration,
}

impl Scripted {
    fn next(&self, caller: &Caller, version: Option<&str>) -> Reply {
        let token = caller
            .access_token
            .as_ref()
            .map(|token| token.expose().to_owned());
        self.asked
            .lock()
            .unwrap()
            .push((token, version.map(str::to_owned)));
        let mut script = self.script.lock().unwrap();
        match script.len() {
            0 => Reply::Dead,
            1 => match script[0] {
                Reply::Rows(name) => Reply::Rows(name),
                Reply::Status(status) => Reply::Status(status),
                Reply::Hangs => Reply::Hangs,
                _ => script.pop_front().unwrap(),
            },
            _ => script.pop_front().unwrap(),
        }
    }

    async fn reply(&self, reply: Reply) -> Result<Fetched, Trouble> {
        self.gate.acquire().await.unwrap().forget();
        let body = |status, rows: Value, version: Option<&str>| {
            Ok(Fetched::Body {
                status,
                body: Bytes::from(rows.to_string()),
                version: version.map(str::to_owned),
            })
        };
        match reply {
            Reply::Rows(name) => body(200, rows(name), None),
            Reply::Versioned(name, version) => body(200, rows(name), Some(version)),
            Reply::NotModified => Ok(Fetched::NotModified),
            Reply::Status(status) => body(status, json!({"message": "no"}), None),
            Reply::Dead => Err(Trouble::Passing("cannot be reached".to_owned())),
            Reply::Hangs => std::future::pending().await,
        }
    }
}

struct Source(Arc<Scripted>);

impl ConfigSource for Source {
    fn freshness(&self) -> Freshness {
        Freshness::For(self.0.ttl)
    }

    fn fetch<'a>(
        &'a self,
        caller: &'a Caller,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Fetched, Trouble>> {
        let reply = self.0.next(caller, version);
        Box::pin(self.0.reply(reply))
    }

    fn ask<'a>(
        &'a self,
        _: &'a Caller,
        _: &'static str,
        _: Value,
    ) -> BoxFuture<'a, Result<(u16, Bytes), Trouble>> {
        let answer = json!({"code": 200, "data": {"deleted": true}}).to_string();
        Box::pin(async move { Ok((200, Bytes::from(answer))) })
    }

    fn name(&self) -> &'static str {
        "(scripted)"
    }
}

const TTL: Duration = Duration::from_secs(2);

fn scripted(ttl: Duration, script: impl IntoIterator<Item = Reply>) -> (Directory, Arc<Scripted>) {
    let scripted = Arc::new(Scripted {
        script: Mutex::new(script.into_iter().collect()),
        asked: Mutex::default(),
        gate: Semaphore::new(1_000),
        ttl,
    });
    let settings = ConfigSettings {
        ttl,
        timeout: Duration::from_secs(5),
        max_stale: Duration::from_secs(600),
        ..ConfigSettings::default()
    };
    let source = Box::new(Source(scripted.clone()));
    (
        Directory::over(source, &settings, Redactor::default()),
        scripted,
    )
}

fn asked(scripted: &Scripted) -> usize {
    scripted.asked.lock().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_holds_for_its_ttl_by_user_and_token() {
    let (directory, api) = scripted(TTL, [Reply::Rows("one")]);
    let ann = caller("ann", "t1");
    let first = directory.snapshot(&ann).await.unwrap();
    tokio::time::advance(TTL / 2).await;
    let again = directory.snapshot(&ann).await.unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(asked(&api), 1);
    for other in [caller("ann", "t2"), caller("bob", "t1"), Caller::default()] {
        directory.snapshot(&other).await.unwrap();
    }
    assert_eq!(asked(&api), 4);
    tokio::time::advance(TTL).await;
    let later = directory.snapshot(&ann).await.unwrap();
    assert!(later.sequence > first.sequence);
    assert_eq!(asked(&api), 5);
}

#[tokio::test(start_paused = true)]
async fn without_ttl_every_command_asks() {
    let (directory, api) = scripted(Duration::ZERO, [Reply::Rows("one")]);
    for count in 1..4 {
        directory.snapshot(&Caller::default()).await.unwrap();
        assert_eq!(asked(&api), count);
    }
}

#[tokio::test(start_paused = true)]
async fn one_question_is_in_flight_whoever_gives_up_waiting() {
    let (directory, api) = scripted(TTL, [Reply::Rows("one")]);
    api.gate.forget_permits(1_000);
    let ann = caller("ann", "t1");
    let impatient = directory.snapshot(&ann);
    assert!(
        tokio::time::timeout(Duration::from_millis(1), impatient)
            .await
            .is_err()
    );
    let waiting = (0..100).map(|_| directory.snapshot(&ann));
    let waiting = futures::future::join_all(waiting);
    api.gate.add_permits(1);
    let answers = waiting.await;
    assert!(
        answers
            .iter()
            .all(|answer| only_name(answer.as_ref().unwrap()) == "one")
    );
    assert_eq!(asked(&api), 1);
}

#[tokio::test(start_paused = true)]
async fn trouble_that_passes_is_retried_within_the_timeout() {
    let troubles = [
        Reply::Dead,
        Reply::Status(503),
        Reply::Status(500),
        Reply::Rows("one"),
    ];
    let (directory, api) = scripted(TTL, troubles);
    let snapshot = directory.snapshot(&Caller::default()).await.unwrap();
    assert_eq!((only_name(&snapshot), asked(&api)), ("one", 4));

    for (script, said) in [
        (vec![], "cannot be reached"),
        (vec![Reply::Hangs], "did not answer within 5s"),
    ] {
        let (directory, _) = scripted(TTL, script);
        let started = Instant::now();
        let failure = directory.snapshot(&Caller::default()).await.unwrap_err();
        assert_eq!(failure.code, ErrorCode::ConfigUnavailable);
        assert!(failure.message.contains(said), "{failure}");
        assert!(started.elapsed() <= Duration::from_secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_goes_on_with_the_last_answer_for_max_stale() {
    let (directory, api) = scripted(TTL, [Reply::Rows("one"), Reply::Dead]);
    let ann = caller("ann", "t1");
    let first = directory.snapshot(&ann).await.unwrap();
    tokio::time::advance(TTL).await;
    let stale = directory.snapshot(&ann).await.unwrap();
    assert!(Arc::ptr_eq(&first, &stale));
    let tries = asked(&api);
    assert!(tries > 2, "it was retried");
    assert!(Arc::ptr_eq(
        &first,
        &directory.snapshot(&ann).await.unwrap()
    ));
    assert_eq!(asked(&api), tries, "not asked again within the ttl");
    tokio::time::advance(TTL).await;
    directory.snapshot(&ann).await.unwrap();
    assert_eq!(asked(&api), tries + 1, "one try while the outage lasts");

    let strangers = [caller("ann", "t2"), caller("bob", "t1")];
    for stranger in strangers {
        let failure = directory.snapshot(&stranger).await.unwrap_err();
        assert_eq!(
            failure.code,
            ErrorCode::ConfigUnavailable,
            "another token is another snapshot"
        );
    }
    tokio::time::advance(Duration::from_secs(601)).await;
    let failure = directory.snapshot(&ann).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ConfigUnavailable);
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_loses_its_snapshot_at_once() {
    for status in [401, 403] {
        let (directory, _) = scripted(
            TTL,
            [Reply::Rows("one"), Reply::Status(status), Reply::Dead],
        );
        let ann = caller("ann", "t1");
        directory.snapshot(&ann).await.unwrap();
        tokio::time::advance(TTL).await;
        let refused = directory.snapshot(&ann).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::ConfigUnauthorized);
        let gone = directory.snapshot(&ann).await.unwrap_err();
        assert_eq!(
            gone.code,
            ErrorCode::ConfigUnavailable,
            "nothing stale is left"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn other_refusals_are_neither_retried_nor_bridged() {
    let (directory, api) = scripted(TTL, [Reply::Rows("one"), Reply::Status(404)]);
    directory.snapshot(&Caller::default()).await.unwrap();
    tokio::time::advance(TTL).await;
    let failure = directory.snapshot(&Caller::default()).await.unwrap_err();
    assert_eq!(
        (failure.code, asked(&api)),
        (ErrorCode::ConfigUnavailable, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_modified_is_kept() {
    let script = [
        Reply::Versioned("one", "\"v1\""),
        Reply::NotModified,
        Reply::Rows("two"),
    ];
    let (directory, api) = scripted(TTL, script);
    let first = directory.snapshot(&Caller::default()).await.unwrap();
    tokio::time::advance(TTL).await;
    let second = directory.snapshot(&Caller::default()).await.unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    tokio::time::advance(TTL).await;
    let third = directory.snapshot(&Caller::default()).await.unwrap();
    assert_eq!(only_name(&third), "two");
    let versions: Vec<_> = api
        .asked
        .lock()
        .unwrap()
        .iter()
        .map(|(_, version)| version.clone())
        .collect();
    let v1 = Some("\"v1\"".to_owned());
    assert_eq!(versions, [None, v1.clone(), v1]);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_known_to_the_redactor_while_their_snapshot_is_kept() {
    let (directory, _) = scripted(TTL, [Reply::Rows("one")]);
    directory
        .snapshot(&caller("ann", "the-access-token"))
        .await
        .unwrap();
    assert_eq!(directory.0.redactor.scrub("x the-access-token"), "x ***");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_snapshots_is_bounded_and_the_oldest_go_first() {
    let (directory, api) = scripted(Duration::from_secs(3600), [Reply::Rows("one")]);
    api.gate.add_permits(20_000);
    let first = caller("first", "t");
    directory.snapshot(&first).await.unwrap();
    for number in 0..10_050 {
        tokio::time::advance(Duration::from_micros(10)).await;
        directory
            .snapshot(&caller(&number.to_string(), "t"))
            .await
            .unwrap();
    }
    assert!(directory.0.cache.len() <= 10_000);
    let before = asked(&api);
    directory.snapshot(&caller("10049", "t")).await.unwrap();
    assert_eq!(asked(&api), before, "a recent one is still there");
    directory.snapshot(&first).await.unwrap();
    assert_eq!(asked(&api), before + 1, "the oldest was let go");
}

/// The embedded store, with the settings a daemon has.
async fn embedded(path: &std::path::Path) -> Directory {
    let mut settings = Settings::default();
    settings.store.data_dir = path.to_owned();
    Directory::open(&settings, Redactor::default())
        .await
        .unwrap()
}

fn stdio(name: &str) -> serde_json::Map<String, Value> {
    match json!({"name": name, "command": "x", "is_public": true}) {
        Value::Object(row) => row,
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn embedded_sees_every_change_with_the_next_command_and_asks_only_then() {
    let place = tempfile::tempdir().unwrap();
    let directory = embedded(place.path()).await;
    // Another connection to the same file, as the command line has beside the daemon.
    let store = open_in(place.path()).await;
    let ann = caller("ann", "");
    assert!(directory.snapshot(&ann).await.unwrap().servers.is_empty());

    let server = store.add_server(stdio("books")).await.unwrap();
    let added = directory.snapshot(&ann).await.unwrap();
    assert_eq!(only_name(&added), "books");
    assert!(Arc::ptr_eq(
        &added,
        &directory.snapshot(&ann).await.unwrap()
    ));

    let owner = Owner::User(UserId::new("ann"));
    for value in ["first-value", "second-value"] {
        let credentials = Credentials([("K".to_owned(), Secret::new(value))].into());
        store
            .put_credentials(&owner, &server.id, &credentials)
            .await
            .unwrap();
        let entry = directory.snapshot(&ann).await.unwrap().servers[0].clone();
        assert_eq!(
            entry
                .user_credentials
                .as_ref()
                .unwrap()
                .get("K")
                .unwrap()
                .expose(),
            value
        );
        assert_eq!(directory.0.redactor.scrub(value), "***");
        let bobs = directory.snapshot(&caller("bob", "")).await.unwrap();
        assert!(bobs.servers[0].user_credentials.is_none());
    }
    store.enable_server(&server.id, false).await.unwrap();
    assert!(
        !directory.snapshot(&ann).await.unwrap().servers[0]
            .definition
            .is_enabled
    );
    store.remove_server(&server.id).await.unwrap();
    assert!(directory.snapshot(&ann).await.unwrap().servers.is_empty());
}

#[tokio::test]
async fn embedded_answers_many_at_once_while_another_writes() {
    let place = tempfile::tempdir().unwrap();
    let directory = embedded(place.path()).await;
    let store = open_in(place.path()).await;
    let server = store.add_server(stdio("books")).await.unwrap();
    for round in 0..20 {
        let enabled = round % 2 == 0;
        store.enable_server(&server.id, enabled).await.unwrap();
        let asking = (0..50).map(|user| {
            let directory = directory.clone();
            async move { directory.snapshot(&caller(&user.to_string(), "")).await }
        });
        for answer in futures::future::join_all(asking).await {
            assert_eq!(answer.unwrap().servers[0].definition.is_enabled, enabled);
        }
    }
}

/// A connection may outlive the credentials it was started with; they stay known until it ends.
#[tokio::test]
async fn replaced_credentials_are_known_while_a_target_holds_them() {
    let place = tempfile::tempdir().unwrap();
    let directory = embedded(place.path()).await;
    let store = open_in(place.path()).await;
    let server = store.add_server(stdio("books")).await.unwrap();
    let owner = Owner::User(UserId::new("ann"));
    let ann = caller("ann", "");
    let set = |value: &'static str| {
        let credentials = Credentials([("K".to_owned(), Secret::new(value))].into());
        let (store, owner, id) = (store.clone(), owner.clone(), server.id.clone());
        async move {
            store
                .put_credentials(&owner, &id, &credentials)
                .await
                .unwrap()
        }
    };
    set("the-old-value").await;
    let snapshot = directory.snapshot(&ann).await.unwrap();
    let target = crate::model::resolve::resolve(&snapshot.servers[0], &ann).unwrap();
    drop(snapshot);
    set("the-new-value").await;
    directory.snapshot(&ann).await.unwrap();
    let redactor = &directory.0.redactor;
    assert_eq!(redactor.scrub("the-old-value the-new-value"), "*** ***");
    drop(target);
}
