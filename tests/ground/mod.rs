//! The ground the integration tests stand on: a clean home, a config host, fake servers, and the
//! built `mcp-client` driven over its pipes.
//!
//! Whatever a test does, [`Daemon::finish`] asserts what must always hold: one answer a command,
//! nothing but JSON on stdout, no canary secret in logs or failures, no process left.

// Every test file compiles this module for itself and uses its own part of it.
#![allow(dead_code, unused_imports)]

mod daemon;
mod fake;
pub mod fleet;
mod host;
mod processes;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use daemon::{Answer, Daemon};
pub use fake::{Fake, Row};
pub use host::{Host, Mode};
pub use processes::{left_over, parent_of, state_of};

/// How long a test waits for what must come. Generous: reaching it is a failure of the test.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The variable every process of a ground carries, to be found by.
pub const TAG: &str = "MCP_TEST_GROUND";

pub struct Ground {
    home: tempfile::TempDir,
    pub tag: String,
    pub host: Arc<Host>,
    /// Secrets that must never be seen.
    canaries: Arc<Mutex<Vec<String>>>,
    http_fakes: Mutex<Vec<std::process::Child>>,
    pub settings: Mutex<Vec<(String, String)>>,
}

impl Ground {
    /// A clean home whose definitions come from a config host of its own.
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            home: tempfile::tempdir().expect("a temporary directory"),
            tag: format!("ground-{}-{number}", std::process::id()),
            host: Host::start(),
            canaries: Arc::default(),
            http_fakes: Mutex::default(),
            settings: Mutex::default(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// Sets a setting (`pool_call_timeout`, ...) for the daemons started from now on.
    pub fn set(&self, setting: &str, value: &str) {
        let name = format!("MCP_CLIENT_{}", setting.to_uppercase());
        self.settings
            .lock()
            .expect("unpoisoned")
            .push((name, value.to_owned()));
    }

    /// A secret that no log and no failure may ever show.
    pub fn canary(&self, name: &str) -> String {
        let mut canaries = self.canaries.lock().expect("unpoisoned");
        let secret = format!("canary-{name}-{}-{}", canaries.len(), self.tag);
        canaries.push(secret.clone());
        secret
    }

    pub fn canaries(&self) -> Vec<String> {
        self.canaries.lock().expect("unpoisoned").clone()
    }

    /// A stdio server named `name` that follows `script`; `row` may change its definition.
    pub fn stdio(&self, name: &str, script: Value, row: impl FnOnce(&mut Row)) -> Fake {
        let fake = Fake::new(self, name);
        let script = fake.script(script);
        let mut definition = Row::stdio(
            name,
            &[
                fake::program().display().to_string(),
                "--script".to_owned(),
                script,
            ],
        );
        definition.env(TAG, &self.tag);
        row(&mut definition);
        self.host.add_server(definition.0);
        fake
    }

    /// A server that is reached over HTTP, already running.
    pub fn http(&self, name: &str, script: Value, row: impl FnOnce(&mut Row)) -> Fake {
        let fake = Fake::new(self, name);
        let (child, port) = fake.start_http(&self.tag, script);
        self.http_fakes.lock().expect("unpoisoned").push(child);
        let mut definition = Row::http(name, &format!("http://127.0.0.1:{port}/mcp"));
        row(&mut definition);
        self.host.add_server(definition.0);
        fake
    }

    /// The private credentials of `user` for `server`.
    pub fn credentials(&self, user: &str, server: &str, fields: Value) {
        self.host.set_user_credentials(user, server, fields);
    }

    /// The credentials everybody has for `server` who has none of their own.
    pub fn default_credentials(&self, server: &str, fields: Value) {
        self.host.set_default_credentials(server, fields);
    }

    /// The built program, in this ground's clean environment, with definitions from its host.
    pub fn command(&self) -> Command {
        let mut command = self.embedded_command();
        command
            .env("API_BASE", self.host.base())
            .env("INTERNAL_TOKEN", host::INTERNAL_TOKEN);
        command
    }

    /// The same on its own embedded store.
    pub fn embedded_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-client"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.home.path())
            .env("MCP_CLIENT_DATA_DIR", self.data_dir())
            .env(TAG, &self.tag)
            .current_dir(self.home.path());
        std::fs::create_dir_all(self.path("home")).expect("a home");
        command.envs(self.settings.lock().expect("unpoisoned").iter().cloned());
        command
    }

    /// A running daemon.
    pub fn daemon(&self) -> Daemon {
        Daemon::start(self, self.command())
    }

    pub fn daemon_with(&self, arguments: &[&str]) -> Daemon {
        let mut command = self.command();
        command.args(arguments);
        Daemon::start(self, command)
    }

    /// Runs the program to its end with `input` on stdin, and asserts that it succeeds.
    pub fn run(&self, mut command: Command, input: &str) -> String {
        use std::io::Write;
        use std::process::Stdio;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        child
            .stdin
            .take()
            .expect("piped")
            .write_all(input.as_bytes())
            .expect("it reads its input");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for child in self.http_fakes.get_mut().expect("unpoisoned") {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until `found` yields something; `what` is said when it never does.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Opens a gate that a script waits at (`until`).
pub fn open(gate: &Path) {
    std::fs::write(gate, "").expect("the gate opens");
}

/// Params of a `call_tool`.
pub fn call(server: &str, tool: &str, arguments: Value) -> Value {
    json!({"action": "call_tool", "server_name": server, "tool_name": tool, "arguments": arguments})
}

/// Params of a `call_tool` whose result is wanted as the server sent it.
pub fn call_raw(server: &str, tool: &str, arguments: Value) -> Value {
    let mut params = call(server, tool, arguments);
    params["result"] = "mcp".into();
    params
}
