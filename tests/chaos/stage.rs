//! One daemon, its servers and its users, from a start to an end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{Daemon, Order, PATIENCE};
use crate::dice::Dice;
use crate::ground::Ground;
use crate::journals::Journals;
use crate::ledger::{Answer, Expect};
use crate::processes::{self, Holdings};
use crate::secrets::Vault;
use crate::servers;
use crate::tally::{Tally, Wrong};

/// How long a snapshot is used: changes are in force after this.
pub const TTL: Duration = Duration::from_millis(200);
/// How long the config host may take to answer.
pub const CONFIG_TIMEOUT: Duration = Duration::from_secs(1);
/// What may stay above the memory before the faults.
const MEMORY_SLACK: u64 = 64 * 1024 * 1024;
/// Threads that come and go with blocking work, and end on their own when idle.
const THREAD_SLACK: u64 = 12;
/// Connections to the config host and to HTTP servers are kept open a while: two a command that was
/// on its way at once, at most.
const SOCKET_SLACK: usize = 1024;
/// Users of the load, whose calls must all succeed.
const REGULARS: usize = 6;

pub struct Stage {
    pub ground: Ground,
    pub daemon: Daemon,
    pub tally: Arc<Tally>,
    pub vault: Vault,
    pub journals: Mutex<Journals>,
    pub regulars: Vec<String>,
    /// Faults that need the config host as it is read; those that change it write.
    pub config: RwLock<()>,
    /// Held by the fault that changes the definition of `toggle`.
    pub toggling: Mutex<()>,
    next_user: AtomicUsize,
    next_marker: AtomicUsize,
    /// Processes of the harness that are none of the daemon's.
    ours: HashSet<i32>,
    baseline: Mutex<Option<Holdings>>,
}

impl Stage {
    pub fn new(tally: &Arc<Tally>, settings: &[(&str, &str)]) -> Self {
        let ground = Ground::new();
        let mut journals = Journals::default();
        servers::put_up(&ground, &mut journals);
        ground.set("config_ttl", &format!("{}ms", TTL.as_millis()));
        ground.set(
            "config_timeout",
            &format!("{}ms", CONFIG_TIMEOUT.as_millis()),
        );
        for (setting, value) in settings {
            ground.set(setting, value);
        }
        let own = i32::try_from(std::process::id()).expect("a pid");
        let ours = processes::children(own).into_iter().collect();
        let daemon = Daemon::start(ground.command(), tally);
        let mut stage = Self {
            ground,
            daemon,
            tally: Arc::clone(tally),
            vault: Vault::default(),
            journals: Mutex::new(journals),
            regulars: vec![],
            config: RwLock::default(),
            toggling: Mutex::default(),
            next_user: AtomicUsize::new(0),
            next_marker: AtomicUsize::new(0),
            ours,
            baseline: Mutex::default(),
        };
        stage.regulars = (0..REGULARS).map(|_| stage.user()).collect();
        stage
    }

    /// A new user with secrets for every server that wants one.
    pub fn user(&self) -> String {
        let user = format!("u{}", self.next_user.fetch_add(1, Ordering::Relaxed));
        for server in servers::WITH_SECRETS {
            self.renew(&user, server);
        }
        user
    }

    /// The daemon has read what is in force for the regulars, and can do without the config host.
    pub fn warm_up(&self) {
        for user in &self.regulars {
            self.act(user, json!({"action": "list_servers"}), Expect::Success);
        }
    }

    /// A new secret of a user, in force with the next snapshot.
    pub fn renew(&self, user: &str, server: &str) -> String {
        let secret = self.vault.renew(user, server);
        self.ground
            .credentials(user, server, json!({"KEY": secret}));
        secret
    }

    pub fn marker(&self) -> String {
        format!("m{}-", self.next_marker.fetch_add(1, Ordering::Relaxed))
    }

    pub fn call(&self, user: &str, server: &str, tool: &str, expect: Expect) -> Order {
        Order::call(user, server, tool, &self.marker(), expect)
    }

    /// Calls a tool and waits for its answer.
    pub fn ask(&self, user: &str, server: &str, tool: &str, expect: Expect) -> Option<Answer> {
        self.daemon.ask(self.call(user, server, tool, expect))
    }

    /// An action without a server.
    pub fn act(&self, user: &str, params: Value, expect: Expect) -> Option<Answer> {
        self.daemon.ask(Order::new(user, params, expect))
    }

    /// Waits until a call has reached its server.
    pub fn await_run(&self, order: &Order) {
        let marker = order.params["arguments"]["marker"]
            .as_str()
            .expect("a call");
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let mut journals = self.journals.lock().expect("unpoisoned");
            if journals.runs(marker, &self.daemon.ledger, &self.vault) > 0 {
                return;
            }
            drop(journals);
            std::thread::sleep(Duration::from_millis(2));
        }
        self.tally
            .blame(Wrong::Lost, format!("{marker} never reached its server"));
    }

    /// Commands of the regulars to servers no fault is aimed at: every one must succeed.
    pub fn load(&self, dice: &mut Dice, commands: usize, sent: &AtomicUsize) {
        for _ in 0..commands {
            if !self.daemon.ledger.wait_below(64, PATIENCE) {
                return sent.store(usize::MAX, Ordering::SeqCst);
            }
            self.daemon.send(self.honest(dice));
            sent.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn honest(&self, dice: &mut Dice) -> Order {
        let user = dice.pick(&self.regulars);
        let server = dice.word(servers::STEADY);
        match dice.below(100) {
            0..4 => Order::new(user, json!({"action": "list_servers"}), Expect::Success),
            4..8 => Order::new(
                user,
                json!({"action": "list_tools", "server_name": server}),
                Expect::Success,
            ),
            8..11 => Order {
                command: Some("ping"),
                ..Order::new(user, json!({}), Expect::Success)
            },
            11..16 if server != "commons" => self.call(user, server, "whoami", Expect::Success),
            16..18 => self
                .call(user, server, "echo", Expect::Success)
                .argument("text", "x".repeat(dice.below(100_000))),
            _ => self.call(user, server, "echo", Expect::Success),
        }
    }

    /// Waits until all is answered, then holds the daemon against everything that must be.
    pub fn settle(&self) {
        if !self.daemon.ledger.wait_below(1, PATIENCE) {
            self.daemon.ledger.lost();
        }
        let user = self.user();
        for server in servers::STEADY {
            self.ask(&user, server, "echo", Expect::Success);
        }
        self.act("", json!({"action": "shutdown"}), Expect::Success);
        if !self.daemon.ledger.wait_below(1, PATIENCE) {
            self.daemon.ledger.lost();
        }
        self.check_journals();
        self.daemon.check_stderr();
        self.check_holdings();
    }

    pub fn check_journals(&self) {
        let mut journals = self.journals.lock().expect("unpoisoned");
        journals.check(&self.daemon.ledger, &self.vault);
    }

    fn check_holdings(&self) {
        let Some(serving) = self.daemon.serving() else {
            return self.tally.blame(Wrong::Other, "the daemon is gone");
        };
        let left = wait_until(Duration::from_secs(5), || {
            processes::descendants(serving).is_empty()
        });
        if !left {
            for pid in processes::descendants(serving) {
                self.tally.blame(
                    Wrong::Orphan,
                    format!("below the daemon: {}", processes::describe(pid)),
                );
            }
        }
        let now = || processes::holdings(serving);
        let Some(before) = *self.baseline.lock().expect("unpoisoned") else {
            return self.set_baseline(now());
        };
        let is_back = |now: Holdings| {
            now.resident <= before.resident + MEMORY_SLACK
                && now.threads <= before.threads + THREAD_SLACK
                && now.files <= before.files
                && now.sockets <= before.sockets + SOCKET_SLACK
        };
        if !wait_until(Duration::from_secs(5), || now().is_some_and(is_back)) {
            let mut open = processes::open_files(serving);
            open.retain(|target| !target.starts_with("socket:"));
            let text = format!("it held {before:?}, now {:?}: {open:?}", now());
            self.tally.blame(Wrong::Other, text);
        }
    }

    fn set_baseline(&self, now: Option<Holdings>) {
        *self.baseline.lock().expect("unpoisoned") = now;
    }

    /// After the daemon's end: nothing of it is left, and nothing secret on its disk.
    pub fn check_nothing_left(&self, patience: Duration) {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let left = || -> Vec<i32> {
            reap_foundlings(own, &self.ours);
            let all = processes::descendants(own).into_iter();
            all.filter(|pid| !self.ours.contains(pid)).collect()
        };
        if !wait_until(patience, || left().is_empty()) {
            for pid in left() {
                self.tally.blame(
                    Wrong::Orphan,
                    format!("{patience:?} after the end: {}", processes::describe(pid)),
                );
                self.daemon.signal(pid, rustix::process::Signal::KILL);
            }
        }
        self.check_journals();
        self.daemon.check_stderr();
    }
}

/// Processes that fell to us because we are a subreaper: ended ones are taken off the list.
fn reap_foundlings(own: i32, ours: &HashSet<i32>) {
    use rustix::process::{Pid, WaitOptions, waitpid};
    for pid in processes::children(own) {
        if !ours.contains(&pid) {
            let _ = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
        }
    }
}

/// Whether `holds` comes true in time.
pub fn wait_until(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
