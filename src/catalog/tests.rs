//! When lists are fetched, kept and served, over a session whose every answer the test decides.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::mcp::ListedTools;
use crate::model::caller::ServerId;
use crate::model::resolve::{Fingerprint, Scope};

/// What the next list does; after the last, lists answer at once with the names in force.
enum Plan {
    Take(Duration),
    Fail,
    /// The server announces a change while it answers.
    Change,
    Panic,
}

struct Fake {
    id: u64,
    lists: AtomicUsize,
    plans: Mutex<VecDeque<Plan>>,
    names: Mutex<Vec<String>>,
    changed: watch::Sender<u64>,
}

impl Fake {
    fn new(id: u64, names: &[&str]) -> Arc<Self> {
        let fake = Self {
            id,
            lists: AtomicUsize::new(0),
            plans: Mutex::default(),
            names: Mutex::default(),
            changed: watch::Sender::new(0),
        };
        fake.offer(names);
        Arc::new(fake)
    }

    fn offer(&self, names: &[&str]) {
        *self.names.lock().unwrap() = names.iter().map(|name| name.to_string()).collect();
    }

    fn plan(&self, plans: impl IntoIterator<Item = Plan>) {
        self.plans.lock().unwrap().extend(plans);
    }

    fn announce(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }
}

impl Connected for Fake {
    async fn died(&self) -> Failure {
        std::future::pending().await
    }

    fn is_dead(&self) -> bool {
        false
    }

    async fn close(&self) {}

    fn id(&self) -> u64 {
        self.id
    }

    async fn list_tools(&self, _deadline: Instant) -> Result<ListedTools, Failure> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let names = self.names.lock().unwrap().clone();
        let plan = self.plans.lock().unwrap().pop_front();
        match plan {
            None => {}
            Some(Plan::Take(time)) => sleep(time).await,
            Some(Plan::Fail) => return Err(Failure::new(ErrorCode::SessionLost, "lost")),
            Some(Plan::Change) => self.announce(),
            Some(Plan::Panic) => panic!("a fault in the session"),
        }
        let tool = |name: &String| {
            let text = format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#);
            RawJson::parse(text.into()).unwrap()
        };
        Ok(ListedTools {
            tools: names.iter().map(tool).collect(),
            warnings: Vec::new(),
        })
    }

    fn tools_changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

fn key(server: &str) -> PoolKey {
    PoolKey {
        server: ServerId::new(server),
        scope: Scope::Shared,
        fingerprint: Fingerprint([1; 16]),
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn names(catalog: &Arc<Catalog>) -> Vec<&str> {
    catalog.tools.iter().map(|tool| &*tool.name).collect()
}

async fn current(catalogs: &Catalogs, fake: &Arc<Fake>) -> Arc<Catalog> {
    let listed = catalogs.current(&key("books"), fake, soon()).await;
    listed.unwrap()
}

fn ask(catalogs: &Arc<Catalogs>, fake: &Arc<Fake>) -> JoinHandle<Result<Arc<Catalog>, Failure>> {
    let (catalogs, fake) = (Arc::clone(catalogs), Arc::clone(fake));
    tokio::spawn(async move { catalogs.current(&key("books"), &fake, soon()).await })
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_share_one_list_and_later_ones_need_none() {
    let (catalogs, fake) = (Arc::new(Catalogs::new()), Fake::new(1, &["find"]));
    fake.plan([Plan::Take(Duration::from_secs(1))]);
    let callers: Vec<_> = (0..100).map(|_| ask(&catalogs, &fake)).collect();
    for caller in callers {
        assert_eq!(names(&caller.await.unwrap().unwrap()), ["find"]);
    }
    current(&catalogs, &fake).await;
    assert_eq!((fake.lists(), catalogs.count()), (1, 1));
    assert!(catalogs.get(&key("books")).is_some());
    assert!(catalogs.get(&key("films")).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_list_outlives_the_caller_that_asked_first() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    fake.plan([Plan::Take(Duration::from_secs(8))]);
    let failure = catalogs
        .current(&key("books"), &fake, soon())
        .await
        .err()
        .unwrap();
    assert_eq!(failure.code, ErrorCode::CallTimeout);
    assert_eq!(failure.details["phase"], "list");
    assert_eq!(names(&current(&catalogs, &fake).await), ["find"]);
    assert_eq!(fake.lists(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_changed_while_it_was_listed_is_listed_again() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    fake.plan([Plan::Change]);
    current(&catalogs, &fake).await;
    assert_eq!(fake.lists(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_catalog_is_replaced_only_if_its_generation_has_not_moved() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    let good = current(&catalogs, &fake).await;
    fake.offer(&["find", "half"]);
    fake.plan([Plan::Change, Plan::Change]);
    let kept = catalogs
        .refresh(&key("books"), &fake, soon())
        .await
        .unwrap();
    assert!(Arc::ptr_eq(&kept, &good));
    assert_eq!(fake.lists(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_last_good_catalog_stays_when_a_list_fails() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    let good = current(&catalogs, &fake).await;
    fake.plan([Plan::Fail, Plan::Fail]);
    let failure = catalogs
        .refresh(&key("books"), &fake, soon())
        .await
        .err()
        .unwrap();
    assert_eq!(failure.code, ErrorCode::SessionLost);
    assert_eq!(failure.details["phase"], "list");
    fake.announce();
    assert!(Arc::ptr_eq(&current(&catalogs, &fake).await, &good));
    assert_eq!(fake.lists(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_failed_first_list_is_not_remembered() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    fake.plan([Plan::Fail, Plan::Panic]);
    let failed = catalogs.current(&key("books"), &fake, soon()).await;
    assert_eq!(failed.err().unwrap().code, ErrorCode::SessionLost);
    let broken = catalogs.current(&key("books"), &fake, soon()).await;
    assert_eq!(broken.err().unwrap().code, ErrorCode::Internal);
    assert_eq!(catalogs.count(), 0);
    assert_eq!(names(&current(&catalogs, &fake).await), ["find"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_change_callers_get_the_new_list() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find", "old"]));
    let before = current(&catalogs, &fake).await;
    fake.offer(&["find", "new"]);
    fake.announce();
    let after = current(&catalogs, &fake).await;
    assert_eq!(names(&after), ["find", "new"]);
    assert_eq!((before.revision, after.revision), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_change_is_listed_in_the_background_after_a_short_quiet_time() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    current(&catalogs, &fake).await;
    sleep(Duration::from_secs(10)).await;
    fake.offer(&["new"]);
    for _ in 0..20 {
        fake.announce();
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(fake.lists(), 1);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(fake.lists(), 2);
    let catalog = catalogs.get(&key("books")).unwrap();
    assert_eq!(names(&catalog), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_changes_is_listed_rarely() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    current(&catalogs, &fake).await;
    for _ in 0..10_000 {
        fake.announce();
        sleep(Duration::from_millis(6)).await;
    }
    assert!((5..=13).contains(&fake.lists()), "{}", fake.lists());
}

#[tokio::test(start_paused = true)]
async fn callers_cannot_turn_a_flood_of_changes_into_a_flood_of_lists() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    for _ in 0..1000 {
        current(&catalogs, &fake).await;
        fake.announce();
        sleep(Duration::from_millis(10)).await;
    }
    assert!((3..=9).contains(&fake.lists()), "{}", fake.lists());
}

#[tokio::test(start_paused = true)]
async fn after_a_reconnect_the_old_catalog_is_served_and_listed_again_in_the_background() {
    let catalogs = Catalogs::new();
    current(&catalogs, &Fake::new(1, &["old"])).await;
    let next = Fake::new(2, &["new"]);
    assert_eq!(names(&current(&catalogs, &next).await), ["old"]);
    settle().await;
    assert_eq!(names(&current(&catalogs, &next).await), ["new"]);
    assert_eq!(next.lists(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_an_earlier_connection_does_not_replace_that_of_a_later_one() {
    let (catalogs, first) = (Arc::new(Catalogs::new()), Fake::new(1, &["old"]));
    first.plan([Plan::Take(Duration::from_secs(3))]);
    let late = ask(&catalogs, &first);
    settle().await;
    let second = Fake::new(2, &["new"]);
    current(&catalogs, &second).await;
    assert_eq!(names(&late.await.unwrap().unwrap()), ["new"]);
    assert_eq!(names(&current(&catalogs, &second).await), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_begins_after_it_was_asked_for() {
    let (catalogs, fake) = (Arc::new(Catalogs::new()), Fake::new(1, &["find"]));
    fake.plan([Plan::Take(Duration::from_secs(1))]);
    let earlier = ask(&catalogs, &fake);
    settle().await;
    fake.offer(&["find", "new"]);
    let refreshed = catalogs
        .refresh(&key("books"), &fake, soon())
        .await
        .unwrap();
    assert_eq!(names(&refreshed), ["find", "new"]);
    assert_eq!(names(&earlier.await.unwrap().unwrap()), ["find"]);
}

#[tokio::test(start_paused = true)]
async fn the_revision_is_raised_only_by_a_list_that_differs() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    let first = current(&catalogs, &fake).await;
    let same = catalogs
        .refresh(&key("books"), &fake, soon())
        .await
        .unwrap();
    assert!(Arc::ptr_eq(&first, &same));
    fake.offer(&[]);
    let empty = catalogs
        .refresh(&key("books"), &fake, soon())
        .await
        .unwrap();
    assert_eq!((empty.revision, empty.tools.len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn watching_keeps_neither_session_nor_catalogs() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    current(&catalogs, &fake).await;
    settle().await;
    assert_eq!(Arc::strong_count(&fake), 1);
    assert_eq!(Arc::strong_count(&catalogs.shelf), 1);
    let changed = fake.changed.clone();
    assert_eq!(changed.receiver_count(), 1);
    drop(fake);
    changed.send_modify(|count| *count += 1);
    sleep(QUIET * 2).await;
    assert_eq!(changed.receiver_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn catalogs_are_bounded_in_number_and_the_least_used_goes_first() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["find"]));
    let kept = key("0");
    for n in 0..4100 {
        let key = key(&n.to_string());
        catalogs.current(&key, &fake, soon()).await.unwrap();
        assert!(catalogs.get(&kept).is_some());
    }
    assert_eq!(catalogs.count(), 4096);
    assert!(catalogs.get(&key("1")).is_none());
    assert!(catalogs.get(&key("4099")).is_some());
}

#[tokio::test(start_paused = true)]
async fn figures_tell_the_ages_of_lists_not_of_their_content() {
    let (catalogs, fake) = (Catalogs::new(), Fake::new(1, &["a"]));
    let ages = |catalogs: &Catalogs| {
        let figures = catalogs.figures();
        (figures.count, figures.newest_age_ms, figures.oldest_age_ms)
    };
    assert_eq!(ages(&catalogs), (0, None, None));
    current(&catalogs, &fake).await;
    sleep(Duration::from_secs(60)).await;
    catalogs
        .current(&key("other"), &fake, soon())
        .await
        .unwrap();
    assert_eq!(ages(&catalogs), (2, Some(0), Some(60_000)));
    catalogs
        .refresh(&key("books"), &fake, soon())
        .await
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(ages(&catalogs), (2, Some(1_000), Some(1_000)));
    assert!(catalogs.figures().bytes > 0);
}
