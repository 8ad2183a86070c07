//! The pool's invariants, over a connector whose every start the test decides.

mod storm;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::mcp::{Connected, ListedTools};
use crate::model::caller::{ServerId, UserId};
use crate::model::resolve::{Fingerprint, Launch, Scope};

/// What the next start does; after the last, starts succeed at once.
#[derive(Clone, Debug)]
enum Plan {
    Succeed(Duration),
    Fail(ErrorCode),
    Hang,
    Panic,
}

#[derive(Default)]
struct Fake {
    plans: Mutex<VecDeque<Plan>>,
    ids: AtomicU64,
    /// Starts begun, running now, and running at most.
    begun: AtomicUsize,
    starting: AtomicUsize,
    most_starting: AtomicUsize,
    sessions: Mutex<Vec<Arc<Life>>>,
}

/// The life of a fake session, seen from outside; it does not keep the session.
struct Life {
    key: PoolKey,
    dead: watch::Sender<bool>,
    closed: watch::Sender<bool>,
}

struct FakeSession {
    id: u64,
    life: Arc<Life>,
    changed: watch::Sender<u64>,
}

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connect for Arc<Fake> {
    type Session = FakeSession;

    async fn connect(&self, target: Arc<Target>) -> Result<FakeSession, Failure> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let now = self.starting.fetch_add(1, Ordering::SeqCst) + 1;
        let _running = Counted(&self.starting);
        self.most_starting.fetch_max(now, Ordering::SeqCst);
        let plan = self.plans.lock().unwrap().pop_front();
        match plan {
            None => {}
            Some(Plan::Succeed(after)) => sleep(after).await,
            Some(Plan::Fail(code)) => return Err(Failure::new(code, "it would not start")),
            Some(Plan::Hang) => std::future::pending().await,
            Some(Plan::Panic) => panic!("a fault in the connector"),
        }
        let life = Arc::new(Life {
            key: target.key.clone(),
            dead: watch::Sender::new(false),
            closed: watch::Sender::new(false),
        });
        self.sessions.lock().unwrap().push(Arc::clone(&life));
        Ok(FakeSession {
            id: self.ids.fetch_add(1, Ordering::SeqCst),
            life,
            changed: watch::Sender::new(0),
        })
    }
}

impl Connected for FakeSession {
    async fn died(&self) -> Failure {
        let _ = self.life.dead.subscribe().wait_for(|dead| *dead).await;
        Failure::new(ErrorCode::ServerCrashed, "it crashed")
    }

    fn is_dead(&self) -> bool {
        *self.life.dead.borrow()
    }

    async fn close(&self) {
        self.life.closed.send_replace(true);
    }

    fn id(&self) -> u64 {
        self.id
    }

    async fn list_tools(&self, _deadline: Instant) -> Result<ListedTools, Failure> {
        Ok(ListedTools::default())
    }

    fn tools_changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl Fake {
    fn plan(&self, plans: impl IntoIterator<Item = Plan>) {
        self.plans.lock().unwrap().extend(plans);
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    fn session(&self, n: usize) -> Arc<Life> {
        Arc::clone(&self.sessions.lock().unwrap()[n])
    }

    fn open(&self) -> usize {
        self.open_within(|_| true)
    }

    fn open_within(&self, bound: impl Fn(&PoolKey) -> bool) -> usize {
        let sessions = self.sessions.lock().unwrap();
        let open = sessions.iter().filter(|life| !life.is_closed());
        open.filter(|life| bound(&life.key)).count()
    }
}

impl Life {
    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    async fn closed(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    fn kill(&self) {
        self.dead.send_replace(true);
    }
}

type TestPool = Arc<Pool<Arc<Fake>>>;

fn settings() -> PoolSettings {
    PoolSettings {
        idle_timeout: Duration::from_secs(600),
        max_connections: 100,
        max_per_user: 100,
        max_per_server: 100,
        max_in_flight: 32,
        ..PoolSettings::default()
    }
}

fn pool_with(settings: &PoolSettings) -> (TestPool, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let pool = Pool::with_jitter(Arc::clone(&fake), settings, 1_000, || 1.0);
    (pool, fake)
}

fn pool() -> (TestPool, Arc<Fake>) {
    pool_with(&settings())
}

fn target(server: &str, user: Option<&str>, version: u8) -> Arc<Target> {
    Arc::new(Target {
        server_name: server.into(),
        key: PoolKey {
            server: ServerId::new(server),
            scope: user.map_or(Scope::Shared, |user| Scope::User(UserId::new(user))),
            fingerprint: Fingerprint([version; 16]),
        },
        launch: Launch::Stdio {
            command: "fake".into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            sandbox: true,
        },
        credential_source: None,
        credentials: None,
        definition_fingerprint: Fingerprint([version; 16]),
    })
}

fn books() -> Arc<Target> {
    target("books", None, 1)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

async fn code(pool: &TestPool, target: &Arc<Target>) -> ErrorCode {
    match pool.acquire(target, soon()).await {
        Ok(_) => panic!("acquired"),
        Err(failure) => failure.code,
    }
}

fn ask(pool: &TestPool, target: &Arc<Target>) -> JoinHandle<Result<Lease<FakeSession>, Failure>> {
    let (pool, target) = (Arc::clone(pool), Arc::clone(target));
    tokio::spawn(async move { pool.acquire(&target, soon()).await })
}

/// Lets every task run until it waits for something.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_share_one_connect() {
    let settings = PoolSettings {
        max_in_flight: 100,
        ..settings()
    };
    let (pool, fake) = pool_with(&settings);
    fake.plan([Plan::Succeed(Duration::from_secs(1))]);
    let callers: Vec<_> = (0..100).map(|_| ask(&pool, &books())).collect();
    let mut leases = Vec::new();
    for caller in callers {
        leases.push(caller.await.unwrap().unwrap());
    }
    assert_eq!(fake.begun(), 1);
    assert!(leases.iter().all(|lease| lease.id == leases[0].id));
    assert_eq!(pool.live(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_outlives_the_caller_that_asked_first() {
    let (pool, fake) = pool();
    fake.plan([Plan::Succeed(Duration::from_secs(8))]);
    let hasty = Deadline::after(Duration::from_secs(3));
    let failure = pool.acquire(&books(), hasty).await.err().unwrap();
    assert_eq!(failure.code, ErrorCode::Starting);
    assert_eq!(failure.details["elapsed_ms"], 3000);
    assert_eq!(failure.details["phase"], "start");
    assert_eq!(pool.view(&books().key).status, SlotStatus::Connecting);
    let cancelled = ask(&pool, &books());
    settle().await;
    cancelled.abort();
    pool.acquire(&books(), Deadline::after(Duration::from_secs(6)))
        .await
        .unwrap();
    assert_eq!(fake.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_call_runs_on_a_connection_of_another_key() {
    let (pool, _) = pool();
    let targets = [
        target("books", None, 1),
        target("books", Some("ann"), 1),
        target("books", Some("bob"), 1),
        target("films", Some("bob"), 1),
        target("films", Some("bob"), 2),
    ];
    let mut ids = std::collections::HashSet::new();
    for target in &targets {
        ids.insert(pool.acquire(target, soon()).await.unwrap().id);
    }
    assert_eq!(ids.len(), targets.len());
}

#[tokio::test(start_paused = true)]
async fn a_failed_connect_answers_its_callers_and_then_cools() {
    let (pool, fake) = pool();
    fake.plan([Plan::Fail(ErrorCode::ConnectFailed)]);
    let (one, two) = (ask(&pool, &books()), ask(&pool, &books()));
    for caller in [one, two] {
        let failure = caller.await.unwrap().err().unwrap();
        assert_eq!(failure.code, ErrorCode::ConnectFailed);
        assert_eq!(failure.details["server_name"], "books");
    }
    let refusal = pool.acquire(&books(), soon()).await.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::CircuitOpen);
    assert_eq!(refusal.details["retry_after_ms"], 500);
    assert!(refusal.message.contains("it would not start"));
    assert_eq!(pool.view(&books().key).status, SlotStatus::Cooling);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(pool.view(&books().key).status, SlotStatus::Idle);
    pool.acquire(&books(), soon()).await.unwrap();
    let view = pool.view(&books().key);
    assert_eq!(view.status, SlotStatus::Connected);
    assert!(view.last_failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn new_credentials_and_forgetting_start_at_once() {
    let (pool, fake) = pool();
    fake.plan([
        Plan::Fail(ErrorCode::ConnectFailed),
        Plan::Fail(ErrorCode::ConnectFailed),
    ]);
    assert_eq!(code(&pool, &books()).await, ErrorCode::ConnectFailed);
    assert_eq!(code(&pool, &books()).await, ErrorCode::CircuitOpen);
    pool.forget_failure(&books().key);
    assert_eq!(code(&pool, &books()).await, ErrorCode::ConnectFailed);
    assert_eq!(code(&pool, &books()).await, ErrorCode::CircuitOpen);
    pool.acquire(&target("books", None, 2), soon())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_costs_few_starts() {
    let (pool, fake) = pool();
    fake.plan((0..1000).map(|_| Plan::Fail(ErrorCode::ConnectFailed)));
    for _ in 0..1000 {
        code(&pool, &books()).await;
        sleep(Duration::from_millis(60)).await;
    }
    assert!((2..=7).contains(&fake.begun()), "{}", fake.begun());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_connector_fails_that_start_alone() {
    let (pool, fake) = pool();
    fake.plan([Plan::Panic]);
    assert_eq!(code(&pool, &books()).await, ErrorCode::Internal);
    pool.forget_failure(&books().key);
    pool.acquire(&books(), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_session_leaves_the_pool_at_once_and_the_next_caller_reconnects() {
    let (pool, fake) = pool();
    let lease = pool.acquire(&books(), soon()).await.unwrap();
    fake.session(0).kill();
    settle().await;
    assert_eq!(pool.live(), 0);
    assert!(fake.session(0).is_closed());
    let next = pool.acquire(&books(), soon()).await.unwrap();
    assert_ne!(lease.id, next.id);
    assert_eq!(fake.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_dying_is_paced_and_then_refused() {
    let (pool, fake) = pool();
    let start = Instant::now();
    for n in 0..5 {
        pool.acquire(&books(), soon()).await.unwrap();
        fake.session(n).kill();
        settle().await;
    }
    assert_eq!(start.elapsed(), Duration::from_millis(500 + 1000 + 2000));
    assert_eq!(code(&pool, &books()).await, ErrorCode::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_a_place_survive_the_death_of_the_connection() {
    let settings = PoolSettings {
        max_in_flight: 1,
        ..settings()
    };
    let (pool, fake) = pool_with(&settings);
    let _busy = pool.acquire(&books(), soon()).await.unwrap();
    let waiting = ask(&pool, &books());
    settle().await;
    fake.session(0).kill();
    assert_eq!(waiting.await.unwrap().unwrap().id, 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_takes_so_many_calls_at_once_and_so_many_wait() {
    let settings = PoolSettings {
        max_in_flight: 2,
        ..settings()
    };
    let (pool, _) = pool_with(&settings);
    let one = pool.acquire(&books(), soon()).await.unwrap();
    let _two = pool.acquire(&books(), soon()).await.unwrap();
    let waiting: Vec<_> = (0..30).map(|_| ask(&pool, &books())).collect();
    settle().await;
    let refused = pool.acquire(&books(), soon()).await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    assert!(refused.details.contains_key("retry_after_ms"));
    drop(one);
    let codes = futures::future::join_all(waiting).await;
    let served = codes.iter().filter(|got| got.as_ref().unwrap().is_ok());
    // The first in the queue holds its lease to the end; the deadline ends the wait of the others.
    assert_eq!(served.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_and_never_one_with_a_call_on_it() {
    let (pool, fake) = pool();
    let lease = pool.acquire(&books(), soon()).await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(pool.live(), 1);
    drop(lease);
    sleep(Duration::from_secs(594)).await;
    assert_eq!(pool.live(), 1);
    let closed = Instant::now();
    fake.session(0).closed().await;
    assert!(closed.elapsed() <= Duration::from_secs(12));
    assert_eq!(pool.live(), 0);
    pool.acquire(&books(), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn room_is_made_by_closing_what_was_used_least_recently() {
    let settings = PoolSettings {
        max_connections: 3,
        ..settings()
    };
    let (pool, fake) = pool_with(&settings);
    let servers = ["a", "b", "c"].map(|name| target(name, None, 1));
    let busy = pool.acquire(&servers[0], soon()).await.unwrap();
    for server in [&servers[1], &servers[2], &servers[1]] {
        sleep(Duration::from_secs(1)).await;
        pool.acquire(server, soon()).await.unwrap();
    }
    pool.acquire(&target("d", None, 1), soon()).await.unwrap();
    assert!(fake.session(2).is_closed());
    assert_eq!((fake.open(), pool.live()), (3, 3));
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn without_room_a_start_is_overloaded_and_the_server_not_blamed() {
    let settings = PoolSettings {
        max_per_user: 1,
        ..settings()
    };
    let (pool, _) = pool_with(&settings);
    let lease = pool
        .acquire(&target("a", Some("ann"), 1), soon())
        .await
        .unwrap();
    let second = target("b", Some("ann"), 1);
    assert_eq!(code(&pool, &second).await, ErrorCode::Overloaded);
    pool.acquire(&target("b", Some("bob"), 1), soon())
        .await
        .unwrap();
    pool.acquire(&target("b", None, 1), soon()).await.unwrap();
    drop(lease);
    pool.acquire(&second, soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_being_closed_still_takes_its_room() {
    let settings = PoolSettings {
        max_per_server: 1,
        ..settings()
    };
    let (pool, fake) = pool_with(&settings);
    let lease = pool
        .acquire(&target("a", Some("ann"), 1), soon())
        .await
        .unwrap();
    let drain = pool.take(|_| true);
    let waiting = ask(&pool, &target("a", Some("bob"), 1));
    settle().await;
    assert_eq!(fake.begun(), 1);
    drop(lease);
    waiting.await.unwrap().unwrap();
    drain.finish(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn starts_at_once_are_limited_and_a_hanging_one_gives_its_turn_away() {
    let (pool, fake) = pool();
    let turns = pool.starts.available_permits();
    fake.plan((0..turns).map(|_| Plan::Hang));
    let start = Instant::now();
    for n in 0..turns {
        ask(&pool, &target(&format!("tarpit{n}"), None, 1));
    }
    settle().await;
    let honest: Vec<_> = (0..3 * turns)
        .map(|n| ask(&pool, &target(&format!("honest{n}"), None, 1)))
        .collect();
    settle().await;
    assert_eq!(fake.begun(), turns);
    for caller in honest {
        caller.await.unwrap().unwrap();
    }
    assert_eq!(start.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_superseded_connection_finishes_its_calls_and_closes() {
    let (pool, fake) = pool();
    let (old, new) = (target("books", None, 1), target("books", None, 2));
    let running = pool.acquire(&old, soon()).await.unwrap();
    pool.acquire(&new, soon()).await.unwrap();
    assert_eq!((pool.live(), fake.open()), (1, 2));
    drop(running);
    fake.session(0).closed().await;
    assert_eq!(fake.open(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stale_snapshot_is_served_and_does_not_take_the_newer_ones_place() {
    let (pool, fake) = pool();
    let (old, new) = (target("books", None, 1), target("books", None, 2));
    pool.acquire(&old, soon()).await.unwrap();
    let newer = pool.acquire(&new, soon()).await.unwrap().id;
    pool.acquire(&old, soon()).await.unwrap();
    assert_eq!(pool.acquire(&new, soon()).await.unwrap().id, newer);
    // What served the stale one is not kept.
    fake.session(2).closed().await;
    assert!(!fake.session(1).is_closed());
    // Asked for again much later, it is the definition in force once more.
    sleep(Duration::from_secs(60)).await;
    pool.acquire(&old, soon()).await.unwrap();
    fake.session(1).closed().await;
    assert_eq!((pool.live(), fake.open()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_is_out_of_the_pool_at_once_and_has_its_grace() {
    let (pool, fake) = pool();
    let _lease = pool.acquire(&books(), soon()).await.unwrap();
    pool.acquire(&target("films", None, 1), soon())
        .await
        .unwrap();
    let drain = pool.take(|key| key.server.as_str() == "books");
    assert_eq!((drain.len(), pool.live()), (1, 1));
    let start = Instant::now();
    drain.finish(Duration::from_secs(5)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert!(fake.session(0).is_closed());
    assert!(!fake.session(1).is_closed());
}

#[tokio::test(start_paused = true)]
async fn draining_ends_with_the_last_call() {
    let (pool, fake) = pool();
    let lease = pool.acquire(&books(), soon()).await.unwrap();
    let drain = tokio::spawn(pool.take(|_| true).finish(Duration::from_secs(5)));
    sleep(Duration::from_secs(1)).await;
    assert!(!drain.is_finished());
    drop(lease);
    let start = Instant::now();
    drain.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(fake.session(0).is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_taken_is_called_off_and_its_callers_are_answered() {
    let (pool, fake) = pool();
    fake.plan([Plan::Hang]);
    let caller = ask(&pool, &books());
    settle().await;
    let drain = pool.take(|_| true);
    assert_eq!(drain.len(), 1);
    drain.finish(Duration::from_secs(5)).await;
    assert_eq!(fake.starting.load(Ordering::SeqCst), 0);
    let failure = caller.await.unwrap().err().unwrap();
    assert_eq!(failure.code, ErrorCode::Cancelled);
    pool.acquire(&books(), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_dropped_still_closes() {
    let (pool, fake) = pool();
    let _lease = pool.acquire(&books(), soon()).await.unwrap();
    drop(pool.take(|_| true));
    fake.session(0).closed().await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_every_connection_and_refuses_new_ones() {
    let (pool, fake) = pool();
    let (old, new) = (target("books", None, 1), target("books", None, 2));
    let _superseded = pool.acquire(&old, soon()).await.unwrap();
    let _running = pool.acquire(&new, soon()).await.unwrap();
    fake.plan([Plan::Hang]);
    let starting = ask(&pool, &target("films", None, 1));
    settle().await;
    let start = Instant::now();
    pool.close(Duration::from_secs(5)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!((pool.live(), fake.open()), (0, 0));
    assert!(starting.await.unwrap().is_err());
    assert_eq!(code(&pool, &books()).await, ErrorCode::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_dropped_pool_stays() {
    let (pool, fake) = pool();
    pool.acquire(&books(), soon()).await.unwrap();
    let weak = Arc::downgrade(&pool);
    drop(pool);
    settle().await;
    assert!(weak.upgrade().is_none());
    assert_eq!(
        Arc::strong_count(&fake.session(0)),
        2,
        "a task keeps the session"
    );
}

#[tokio::test(start_paused = true)]
async fn figures_tell_where_every_key_call_and_place_is() {
    let settings = PoolSettings {
        max_in_flight: 1,
        max_connections: 3,
        ..settings()
    };
    let (pool, fake) = pool_with(&settings);
    let lease = pool.acquire(&books(), soon()).await.unwrap();
    let _queued = ask(&pool, &books());
    fake.plan([Plan::Fail(ErrorCode::ConnectFailed), Plan::Hang]);
    code(&pool, &target("broken", None, 1)).await;
    let _starting = [(); 2].map(|()| ask(&pool, &target("slow", None, 1)));
    settle().await;
    let figures = serde_json::to_value(pool.figures()).unwrap();
    let expected = serde_json::json!({
        "keys": {"idle": 0, "connecting": 1, "connected": 1, "cooling": 1},
        "connections": {"stdio": 1, "http": 0},
        "in_flight": 1,
        "waiting": 3,
        "room_taken": 2,
        "room_max": 3,
        "starts": 3,
        "failed_starts": 1,
        "departures": {"idle": 0, "evicted": 0, "superseded": 0, "taken": 0, "died": 0},
    });
    assert_eq!(figures, expected);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn every_departure_is_counted_under_its_reason() {
    let settings = PoolSettings {
        max_connections: 1,
        ..settings()
    };
    let (pool, fake) = pool_with(&settings);
    pool.acquire(&target("a", None, 1), soon()).await.unwrap();
    pool.acquire(&target("b", None, 1), soon()).await.unwrap();
    pool.acquire(&target("b", None, 2), soon()).await.unwrap();
    fake.session(2).kill();
    fake.session(2).closed().await;
    pool.acquire(&target("c", None, 1), soon()).await.unwrap();
    pool.take(|_| true).finish(Duration::ZERO).await;
    pool.acquire(&target("d", None, 1), soon()).await.unwrap();
    fake.session(4).closed().await;
    let figures = pool.figures();
    let counts: Vec<_> = figures.departures.into_iter().collect();
    let expected = ["died", "evicted", "idle", "superseded", "taken"].map(|reason| (reason, 1));
    assert_eq!(counts, expected);
    assert_eq!(figures.starts, 5);
}
