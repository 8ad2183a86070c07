//! A directory and servers in memory, for the tests of the actions.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::desk::Actions;
use super::seams::{CallTools, Snapshots};
use super::{Action, Context, Perform};
use crate::directory::{Held, Snapshot, ToolsOf};
use crate::mcp::{
    Ask, Connect, Connected, ListKind, Listed, ListedTools, ServerIdentity, ToolCall,
};
use crate::model::caller::{Caller, ServerId, SessionId, UserId};
use crate::model::deadline::Deadline;
use crate::model::definition::{Definition, Template, TransportType};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::event::EventSink;
use crate::model::json::{RawJson, Rope};
use crate::model::naming::Namer;
use crate::model::redact::Redactor;
use crate::model::resolve::{ServerEntry, Target};
use crate::model::secret::{Credentials, Secret};
use crate::model::settings::Settings;

/// One fake server: what it offers, and what was asked of it.
pub(super) struct FakeServer {
    pub tools: Mutex<Result<Vec<Value>, Failure>>,
    /// What becomes of the next calls; then every call answers its own arguments.
    pub answers: Mutex<VecDeque<Result<Value, Failure>>>,
    pub calls: Mutex<Vec<String>>,
    pub connects: AtomicUsize,
    pub closes: AtomicUsize,
    pub lists: AtomicUsize,
    /// What it lists beside tools, by the member of its result; what is not there it does not support.
    pub lists_of: Mutex<HashMap<&'static str, Vec<Value>>>,
    pub refuses: Mutex<Option<Failure>>,
    pub hangs_on_list: bool,
    pub start_takes: Duration,
    /// Happens while the next connect is under way.
    pub meanwhile: Mutex<Option<Meanwhile>>,
}

type Meanwhile = Box<dyn FnOnce(&World) + Send>;

impl FakeServer {
    pub fn new(tools: &[&str]) -> Self {
        let tool = |name: &&str| json!({"name": name, "inputSchema": {"type": "object"}});
        Self {
            tools: Mutex::new(Ok(tools.iter().map(tool).collect())),
            answers: Mutex::default(),
            calls: Mutex::default(),
            connects: AtomicUsize::new(0),
            closes: AtomicUsize::new(0),
            lists: AtomicUsize::new(0),
            lists_of: Mutex::default(),
            refuses: Mutex::new(None),
            hangs_on_list: false,
            start_takes: Duration::ZERO,
            meanwhile: Mutex::new(None),
        }
    }

    pub fn will(self: &Arc<Self>, answer: Result<Value, Failure>) {
        self.answers.lock().unwrap().push_back(answer);
    }

    pub fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }
}

#[derive(Clone, Default)]
pub(super) struct World {
    servers: Arc<Mutex<HashMap<String, Arc<FakeServer>>>>,
    snapshots: Arc<Mutex<HashMap<Option<UserId>, Arc<Snapshot>>>>,
    next: Arc<AtomicU64>,
    kept: Arc<Mutex<HashMap<ToolsOf, Vec<RawJson>>>>,
    /// How often tools were kept.
    pub keeps: watch::Sender<usize>,
}

pub(super) struct FakeSession {
    server: Arc<FakeServer>,
    identity: ServerIdentity,
    id: u64,
    dead: watch::Sender<Option<Failure>>,
    changed: watch::Sender<u64>,
}

impl World {
    pub fn server(&self, name: &str, server: FakeServer) -> Arc<FakeServer> {
        let server = Arc::new(server);
        self.servers
            .lock()
            .unwrap()
            .insert(name.to_owned(), server.clone());
        server
    }

    /// What is in force for the user from now on.
    pub fn defines(&self, user: Option<&str>, entries: Vec<ServerEntry>) {
        let user = user.map(UserId::new);
        let snapshot = Snapshot {
            sequence: self.next.fetch_add(1, Ordering::SeqCst),
            user: user.clone(),
            namer: Namer::new(entries.iter().map(|entry| &*entry.definition.name)),
            servers: entries.into_iter().map(Arc::new).collect(),
        };
        self.snapshots
            .lock()
            .unwrap()
            .insert(user, Arc::new(snapshot));
    }

    pub fn actions(&self) -> Actions<World, World> {
        let mut settings = Settings::default();
        settings.pool.idle_timeout = Duration::from_secs(600);
        settings.pool.start_timeout = Duration::from_secs(60);
        settings.pool.initialize_timeout = Duration::from_secs(30);
        settings.pool.call_timeout = Duration::from_secs(100);
        settings.pool.call_hard_cap = Duration::from_secs(600);
        settings.pool.list_timeout = Duration::from_secs(20);
        settings.pool.close_grace = Duration::from_secs(5);
        settings.pool.max_connections = 1000;
        settings.pool.max_per_user = 1000;
        settings.pool.max_per_server = 1000;
        settings.pool.max_in_flight = 64;
        Actions::new(self.clone(), self.clone(), &settings, Redactor::default())
    }
}

impl Snapshots for World {
    async fn snapshot(&self, caller: &Caller, _: Instant) -> Result<Arc<Snapshot>, Failure> {
        let snapshots = self.snapshots.lock().unwrap();
        Ok(snapshots
            .get(&caller.user)
            .expect("a snapshot for this user")
            .clone())
    }

    async fn credentials(&self, caller: &Caller) -> Result<Vec<Held>, Failure> {
        let known = self.snapshots.lock().unwrap()[&caller.user].clone();
        let own = known
            .servers
            .iter()
            .filter(|entry| entry.user_credentials.is_some());
        let held = own.map(|entry| Held {
            mcp_server_id: entry.definition.id.as_str().to_owned(),
            source: "user".to_owned(),
            is_enabled: true,
            updated_at: None,
        });
        Ok(held.collect())
    }

    async fn set_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        self.put(caller, server, Some(credentials));
        Ok(())
    }

    async fn delete_credentials(
        &self,
        caller: &Caller,
        server: &ServerId,
    ) -> Result<bool, Failure> {
        Ok(self.put(caller, server, None))
    }

    async fn kept_tools(&self, _: &Caller, of: &ToolsOf) -> Option<Vec<RawJson>> {
        self.kept.lock().unwrap().get(of).cloned()
    }

    async fn keep_tools(&self, _: &Caller, of: &ToolsOf, tools: &[RawJson]) {
        let mut kept = self.kept.lock().unwrap();
        kept.insert(of.clone(), tools.to_vec());
        self.keeps.send_modify(|count| *count += 1);
    }
}

impl World {
    /// Puts credentials in force as the config API would; whether there were any before.
    fn put(&self, caller: &Caller, server: &ServerId, own: Option<&Credentials>) -> bool {
        let known = self.snapshots.lock().unwrap()[&caller.user].clone();
        let mut had = false;
        let entries = known.servers.iter().map(|entry| {
            let is_it = entry.definition.id == *server;
            had |= is_it && entry.user_credentials.is_some();
            ServerEntry {
                definition: entry.definition.clone(),
                user_credentials: match is_it {
                    true => own.cloned(),
                    false => entry.user_credentials.clone(),
                },
                default_credentials: entry.default_credentials.clone(),
            }
        });
        let entries = entries.collect();
        self.defines(caller.user.as_ref().map(UserId::as_str), entries);
        had
    }
}

impl Connect for World {
    type Session = FakeSession;

    async fn connect(&self, target: Arc<Target>) -> Result<FakeSession, Failure> {
        let server = self.servers.lock().unwrap()[&*target.server_name].clone();
        server.connects.fetch_add(1, Ordering::SeqCst);
        if let Some(meanwhile) = server.meanwhile.lock().unwrap().take() {
            meanwhile(self);
        }
        tokio::time::sleep(server.start_takes).await;
        if let Some(failure) = server.refuses.lock().unwrap().clone() {
            return Err(failure);
        }
        Ok(FakeSession {
            server,
            identity: ServerIdentity {
                protocol_version: "2025-11-25".to_owned(),
                server_info: json!({"name": "fake"}),
                capabilities: json!({"tools": {}}),
            },
            id: self.next.fetch_add(1, Ordering::SeqCst),
            dead: watch::channel(None).0,
            changed: watch::channel(0).0,
        })
    }
}

impl Connected for FakeSession {
    async fn died(&self) -> Failure {
        let mut dead = self.dead.subscribe();
        let death = dead
            .wait_for(Option::is_some)
            .await
            .expect("the sender lives");
        death.clone().expect("waited for")
    }

    fn is_dead(&self) -> bool {
        self.dead.borrow().is_some()
    }

    async fn close(&self) {
        self.server.closes.fetch_add(1, Ordering::SeqCst);
    }

    fn id(&self) -> u64 {
        self.id
    }

    async fn list_tools(&self, deadline: Instant) -> Result<ListedTools, Failure> {
        self.server.lists.fetch_add(1, Ordering::SeqCst);
        if self.server.hangs_on_list {
            tokio::time::sleep_until(deadline).await;
            return Err(Failure::new(ErrorCode::CallTimeout, "no list in time").phase(Phase::List));
        }
        let tools = self.server.tools.lock().unwrap().clone()?;
        Ok(ListedTools {
            tools: tools.iter().map(RawJson::from).collect(),
            warnings: Vec::new(),
        })
    }

    fn tools_changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl CallTools for FakeSession {
    fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    fn noise(&self) -> u64 {
        3
    }

    async fn list(&self, kind: ListKind, _: Instant) -> Result<Listed, Failure> {
        match self.server.lists_of.lock().unwrap().get(kind.member()) {
            Some(items) => Ok(Listed {
                items: items.iter().map(RawJson::from).collect(),
                warnings: Vec::new(),
            }),
            None => Err(Failure::new(ErrorCode::Unsupported, "has none")
                .with("capability", kind.capability())),
        }
    }

    async fn ask(&self, ask: Ask, _: Deadline, _: Option<EventSink>) -> Result<RawJson, Failure> {
        Ok(RawJson::from(&json!({"asked": format!("{ask:?}")})))
    }

    async fn call_tool(&self, call: ToolCall) -> Result<RawJson, Failure> {
        self.server
            .calls
            .lock()
            .unwrap()
            .push(call.name.to_string());
        let answer = self.server.answers.lock().unwrap().pop_front();
        let text = String::from_utf8_lossy(call.arguments.bytes()).into_owned();
        match answer {
            Some(Ok(result)) => Ok(RawJson::from(&result)),
            None => Ok(RawJson::from(
                &json!({"content": [{"type": "text", "text": text}]}),
            )),
            Some(Err(failure)) => {
                if failure.code == ErrorCode::ServerCrashed {
                    self.dead.send_replace(Some(failure.clone()));
                }
                Err(failure)
            }
        }
    }
}

/// A public server without credentials.
pub(super) fn public(name: &str) -> ServerEntry {
    ServerEntry {
        definition: Definition {
            id: ServerId::new(&format!("id-{name}")),
            name: name.into(),
            display_name: None,
            description: None,
            transport_type: TransportType::Stdio,
            template: Ok(Template::Stdio {
                command: "fake".to_owned(),
                args: Vec::new(),
                env: [("KEY".to_owned(), "${user.key}".to_owned())].into(),
            }),
            is_public: true,
            is_enabled: true,
            requires_credentials: false,
            credential_fields: json!([]),
            isolation: None,
            sandbox: true,
            extra: Map::new(),
        },
        user_credentials: None,
        default_credentials: Some(key("default-key")),
    }
}

/// A server of each user's own, who has this key.
pub(super) fn private(name: &str, value: &str) -> ServerEntry {
    let mut entry = public(name);
    entry.definition.is_public = false;
    entry.default_credentials = None;
    entry.user_credentials = Some(key(value));
    entry
}

pub(super) fn key(value: &str) -> Credentials {
    Credentials([("key".to_owned(), Secret::new(value))].into())
}

fn context(user: Option<&str>, limit: Duration) -> Context {
    Context {
        caller: Caller {
            user: user.map(UserId::new),
            ..Caller::default()
        },
        deadline: Deadline::after(limit),
        events: None,
        begun: Instant::now(),
        in_force: None,
        trail: Arc::default(),
    }
}

impl Actions<World, World> {
    /// Performs one command and reads its answer.
    pub(super) async fn ask(
        &self,
        user: Option<&str>,
        name: &str,
        params: Value,
    ) -> Result<Value, Failure> {
        self.ask_within(user, name, params, Duration::from_secs(30))
            .await
    }

    /// Performs one command in one conversation of a user.
    pub(super) async fn ask_in(
        &self,
        session: Option<&str>,
        name: &str,
        params: Value,
    ) -> Result<Value, Failure> {
        let mut context = context(Some("u1"), Duration::from_secs(30));
        context.caller.session = session.map(SessionId::new);
        let action = Action::parse(name, Some(&RawJson::from(&params)))?;
        let answer = self.perform(action, context).await?.concat();
        Ok(serde_json::from_slice(&answer).expect("an answer is JSON"))
    }

    /// The live connections at each moment at which the command said that it is in force.
    pub(super) async fn live_when_in_force(&self, name: &str, params: Value) -> Vec<usize> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (pool, marks) = (self.pool.clone(), seen.clone());
        let mut context = context(None, Duration::from_secs(30));
        context.in_force = Some(Arc::new(move || marks.lock().unwrap().push(pool.live())));
        let action = Action::parse(name, Some(&RawJson::from(&params))).expect("an action");
        self.perform(action, context).await.expect("an answer");
        let seen = seen.lock().unwrap();
        seen.clone()
    }

    /// A whole `list_tools`, as it goes to the host.
    pub(super) async fn list_all(&self, user: Option<&str>) -> Rope {
        let action = Action::parse("list_tools", None).expect("an action");
        let context = context(user, Duration::from_secs(30));
        self.perform(action, context).await.expect("an answer")
    }

    pub(super) async fn ask_within(
        &self,
        user: Option<&str>,
        name: &str,
        params: Value,
        limit: Duration,
    ) -> Result<Value, Failure> {
        let action = Action::parse(name, Some(&RawJson::from(&params)))?;
        let answer = self.perform(action, context(user, limit)).await?.concat();
        Ok(serde_json::from_slice(&answer).expect("an answer is JSON"))
    }
}
