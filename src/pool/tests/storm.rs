//! Any order of asking, ending, crashing, taking and waiting: what must hold after every step.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Ask(Who),
    /// Ends one of the calls.
    End(usize),
    /// Cancels one of the callers still waiting.
    Cancel(usize),
    Kill(usize),
    Take(&'static str),
    Forget(Who),
    Plan(Plan),
    Pass(u64),
}

#[derive(Clone, Debug)]
struct Who {
    server: &'static str,
    user: Option<&'static str>,
    version: u8,
}

struct Call {
    key: PoolKey,
    lease: Lease<FakeSession>,
}

const IN_FLIGHT: usize = 2;
const IN_ALL: usize = 4;
const OF_USER: usize = 2;
const TO_SERVER: usize = 3;

type Asked = JoinHandle<Result<Lease<FakeSession>, Failure>>;

struct Storm {
    pool: TestPool,
    fake: Arc<Fake>,
    waiting: Vec<(PoolKey, Asked)>,
    calls: Vec<Call>,
    /// May be closed under a call.
    taken: Vec<Arc<Life>>,
    /// May be out of the pool with a call on them.
    superseded: Vec<Arc<Life>>,
}

impl Storm {
    fn new() -> Self {
        let (pool, fake) = pool_with(&PoolSettings {
            idle_timeout: Duration::from_secs(60),
            max_connections: IN_ALL,
            max_per_user: OF_USER,
            max_per_server: TO_SERVER,
            max_in_flight: IN_FLIGHT,
            ..settings()
        });
        Self {
            pool,
            fake,
            waiting: Vec::new(),
            calls: Vec::new(),
            taken: Vec::new(),
            superseded: Vec::new(),
        }
    }

    async fn run(mut self, events: Vec<Event>) {
        for event in events {
            self.apply(event).await;
            settle().await;
            self.collect().await;
            self.check();
        }
        self.end().await;
    }

    async fn apply(&mut self, event: Event) {
        match event {
            Event::Ask(who) => {
                let target = who.target();
                self.superseded.extend(self.fake.others_than(&target.key));
                let caller = ask(&self.pool, &target);
                self.waiting.push((target.key.clone(), caller));
            }
            Event::End(n) => drop(pick(&mut self.calls, n)),
            Event::Cancel(n) => {
                if let Some((_, caller)) = pick(&mut self.waiting, n) {
                    caller.abort();
                }
            }
            Event::Kill(n) => {
                let sessions = self.fake.sessions.lock().unwrap();
                if let Some(life) = sessions.get(n % sessions.len().max(1)) {
                    life.kill();
                }
            }
            Event::Take(server) => {
                let sessions = self.fake.sessions.lock().unwrap();
                let named = sessions
                    .iter()
                    .filter(|life| life.key.server.as_str() == server);
                self.taken.extend(named.cloned());
                let drain = self.pool.take(|key| key.server.as_str() == server);
                tokio::spawn(drain.finish(Duration::from_secs(1)));
            }
            Event::Forget(who) => self.pool.forget_failure(&who.target().key),
            Event::Plan(plan) => self.fake.plan([plan]),
            Event::Pass(millis) => sleep(Duration::from_millis(millis)).await,
        }
    }

    async fn collect(&mut self) {
        let (done, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(_, caller)| caller.is_finished());
        self.waiting = waiting;
        let done: Vec<_> = done;
        for (key, caller) in done {
            if let Ok(lease) = caller.await.unwrap() {
                self.calls.push(Call { key, lease });
            }
        }
    }

    fn check(&self) {
        let mut on_session: HashMap<u64, usize> = HashMap::new();
        for call in &self.calls {
            let life = &call.lease.life;
            assert_eq!(call.key, life.key, "a call on the connection of another");
            let is_in = |list: &[Arc<Life>]| list.iter().any(|one| Arc::ptr_eq(one, life));
            let excused = *life.dead.borrow() || is_in(&self.taken);
            assert!(!life.is_closed() || excused, "closed with a call on it");
            let pooled = self.pool.view(&call.key).session;
            let pooled = pooled.is_some_and(|session| session.id == call.lease.id);
            let excused = excused || is_in(&self.superseded);
            assert!(pooled || excused, "out of the pool with a call on it");
            *on_session.entry(call.lease.id).or_default() += 1;
        }
        assert!(on_session.values().all(|calls| *calls <= IN_FLIGHT));
        assert!(self.fake.open() <= IN_ALL);
        for user in ["ann", "bob"].map(UserId::new) {
            let open = self.fake.open_within(|key| key.scope.user() == Some(&user));
            assert!(open <= OF_USER);
        }
        for server in ["books", "films"].map(ServerId::new) {
            assert!(self.fake.open_within(|key| key.server == server) <= TO_SERVER);
        }
        assert!(self.pool.live() <= self.fake.open());
    }

    /// Nothing is left, and all that was lent has come back.
    async fn end(self) {
        drop(self.calls);
        self.pool.close(Duration::ZERO).await;
        for (_, caller) in self.waiting {
            caller.abort();
            let _ = caller.await;
        }
        assert_eq!(self.fake.open(), 0);
        assert_eq!(self.fake.starting.load(Ordering::SeqCst), 0);
        assert!(self.pool.tasks.is_empty());
        for who in everybody() {
            for (bound, semaphore) in self.pool.room.bounds(&who.target().key) {
                let limit = match bound {
                    Bound::User(_) => OF_USER,
                    Bound::Server(_) => TO_SERVER,
                    Bound::All => IN_ALL,
                };
                assert_eq!(semaphore.available_permits(), limit);
            }
        }
    }
}

impl Fake {
    /// The sessions of the same server and scope with another fingerprint.
    fn others_than(&self, key: &PoolKey) -> Vec<Arc<Life>> {
        let sessions = self.sessions.lock().unwrap();
        let others = sessions.iter().filter(|life| {
            life.key != *key && life.key.server == key.server && life.key.scope == key.scope
        });
        others.cloned().collect()
    }
}

impl Who {
    fn target(&self) -> Arc<Target> {
        target(self.server, self.user, self.version)
    }
}

fn pick<T>(from: &mut Vec<T>, n: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(n % from.len()))
}

fn everybody() -> Vec<Who> {
    let mut all = Vec::new();
    for server in ["books", "films"] {
        for user in [None, Some("ann"), Some("bob")] {
            all.extend([1, 2].map(|version| Who {
                server,
                user,
                version,
            }));
        }
    }
    all
}

fn event() -> impl Strategy<Value = Event> {
    let who = || prop::sample::select(everybody());
    let plan = prop_oneof![
        3 => (1_u64..4000).prop_map(|millis| Plan::Succeed(Duration::from_millis(millis))),
        2 => Just(Plan::Fail(ErrorCode::ConnectFailed)),
        1 => Just(Plan::Hang),
    ];
    prop_oneof![
        8 => who().prop_map(Event::Ask),
        4 => any::<usize>().prop_map(Event::End),
        1 => any::<usize>().prop_map(Event::Cancel),
        2 => any::<usize>().prop_map(Event::Kill),
        1 => prop::sample::select(vec!["books", "films"]).prop_map(Event::Take),
        1 => who().prop_map(Event::Forget),
        2 => plan.prop_map(Event::Plan),
        3 => prop_oneof![1_u64..1000, 1000_u64..90_000].prop_map(Event::Pass),
    ]
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_pools_promises(events in prop::collection::vec(event(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(Storm::new().run(events));
    }
}
