//! The fake servers of a ground: their scripts, definitions and journals.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{Ground, TAG, wait_for};

/// The built fake server.
pub fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_mcp-client"))
        .with_file_name("examples")
        .join("fake-server");
    assert!(
        built.exists(),
        "the fake server is not built: cargo build --example fake-server"
    );
    built
}

/// A row of `mcp_servers`.
pub struct Row(pub Value);

impl Row {
    /// A private stdio server that is started with `words`.
    pub fn stdio(name: &str, words: &[String]) -> Self {
        Self(json!({
            "id": format!("id-{name}"), "name": name, "display_name": name, "description": "a fake", "transport_type": "stdio",
            "command": words[0], "args": words[1..], "env_template": {}, "url": null, "headers": null,
            "is_public": false, "is_enabled": true, "requires_credentials": false, "credential_fields": [],
        }))
    }

    pub fn http(name: &str, url: &str) -> Self {
        let mut row = Self::stdio(name, &[String::new()]);
        row.set("transport_type", "http")
            .set("command", Value::Null)
            .set("args", Value::Null)
            .set("url", url);
        row
    }

    pub fn set(&mut self, column: &str, value: impl Into<Value>) -> &mut Self {
        self.0[column] = value.into();
        self
    }

    pub fn public(&mut self) -> &mut Self {
        self.set("is_public", true)
    }

    /// Needs credentials whose `field` becomes the variable TOKEN.
    pub fn token(&mut self, field: &str) -> &mut Self {
        self.env("TOKEN", &format!("${{user.{field}}}"));
        self.set("requires_credentials", true);
        self.set(
            "credential_fields",
            json!([{"name": field, "label": field, "type": "password", "required": true}]),
        )
    }

    pub fn env(&mut self, name: &str, value: &str) -> &mut Self {
        self.0["env_template"][name] = value.into();
        self
    }

    pub fn header(&mut self, name: &str, value: &str) -> &mut Self {
        if self.0["headers"].is_null() {
            self.0["headers"] = json!({});
        }
        self.0["headers"][name] = value.into();
        self
    }
}

/// What a test knows of one fake server.
pub struct Fake {
    pub name: String,
    pub journal: PathBuf,
    pub counter: PathBuf,
}

impl Fake {
    pub fn new(ground: &Ground, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            journal: ground.path(&format!("{name}.journal")),
            counter: ground.path(&format!("{name}.counter")),
        }
    }

    /// `script` with the journal and the counter filled in.
    pub fn script(&self, mut script: Value) -> String {
        let fixed = [
            ("journal", json!(self.journal)),
            ("counter", json!(self.counter)),
            ("name", json!(self.name)),
        ];
        for (member, value) in fixed {
            if script.get(member).is_none() {
                script[member] = value;
            }
        }
        script.to_string()
    }

    /// Starts it as an HTTP server and returns it with its port.
    pub fn start_http(&self, tag: &str, script: Value) -> (Child, u64) {
        let path = self.journal.with_extension("script");
        std::fs::write(&path, self.script(script)).expect("the script is written");
        let mut command = Command::new(program());
        command.arg("--http").arg("--script-file").arg(path);
        let mut child = command
            .env(format!("{TAG}_HTTP"), tag)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the fake server starts");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("the fake server speaks");
        let line: Value = serde_json::from_str(&line).expect("its first line is its port");
        (child, line["port"].as_u64().expect("a port"))
    }

    pub fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.journal).unwrap_or_default();
        // The last line may still be on its way.
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    pub fn events_of(&self, event: &str) -> Vec<Value> {
        self.events()
            .into_iter()
            .filter(|line| line["event"] == event)
            .collect()
    }

    /// The processes that served: that were asked for more than the probe. (One that was only probed
    /// is ended and started afresh.)
    pub fn served(&self) -> Vec<i64> {
        let asked = self.events_of("request");
        let served = asked
            .iter()
            .filter(|line| line["method"] != "server/discover");
        let mut pids: Vec<i64> = served.filter_map(|line| line["pid"].as_i64()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// How many of the processes that served met the event.
    pub fn served_and(&self, event: &str) -> usize {
        let met = self.events_of(event);
        let met = |pid: &i64| met.iter().any(|line| line["pid"] == *pid);
        self.served().into_iter().filter(met).count()
    }

    /// How often the process was started, probes included.
    pub fn starts(&self) -> usize {
        self.events_of("start").len()
    }

    /// How often the method, or `tools/call:NAME`, was asked for.
    pub fn requests(&self, key: &str) -> usize {
        self.events_of("request")
            .iter()
            .filter(|line| line["key"] == key)
            .count()
    }

    /// How often a tool ran.
    pub fn executed(&self, tool: &str) -> usize {
        self.events_of("executed")
            .iter()
            .filter(|line| line["tool"] == tool)
            .count()
    }

    /// Waits for a line of the journal.
    pub fn wait(&self, what: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let what = format!("{what} in the journal of {}", self.name);
        wait_for(&what, || {
            self.events().into_iter().find(|line| matches(line))
        })
    }

    /// Waits until the method, or `tools/call:NAME`, has been asked for `times` times.
    pub fn wait_for_requests(&self, key: &str, times: usize) {
        wait_for(&format!("{times} × {key} at {}", self.name), || {
            (self.requests(key) >= times).then_some(())
        });
    }

    /// Waits for the cancellation of a request.
    pub fn wait_for_cancel(&self) -> Value {
        self.wait("a cancellation", |line| {
            line["method"] == "notifications/cancelled"
        })
    }
}
