//! The client command of the official conformance suite (scripts/conformance): plays the host of a daemon that
//! meets one server, the suite's, and uses whatever that offers.
//!
//! It knows nothing of the scenarios: it lists, calls each tool with arguments that its schema asks for (or those of
//! the suite's context), reads each resource and gets each prompt. Asked to authorize, it plays the user's
//! browser; asked a question, it accepts and leaves the answer to the defaults.
//!
//! `conformance-client URL`, with `MCP_CLIENT` (the program), and of the suite `MCP_CONFORMANCE_CONTEXT`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use serde_json::{Map, Value, json};

const SERVER: &str = "suite";
/// How often the browser is sent to the authorization server for one command: far more than the daemon may ask.
const MAX_VISITS: usize = 10;
/// Where the browser is sent back to; nobody listens there, the adapter takes the URL to the daemon.
const REDIRECT: &str = "http://127.0.0.1:9/callback";

fn main() -> ExitCode {
    let url = std::env::args().next_back().expect("the server's URL");
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let mut host = Host::start(&url);
    host.use_everything(&context);
    let failures = std::mem::take(&mut host.failures);
    host.end();
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    match failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

struct Host {
    daemon: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    browser: Browser,
    /// Answers that were no successes, in words.
    failures: Vec<String>,
    _directory: tempfile::TempDir,
}

impl Host {
    fn start(url: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        define(directory.path(), url);
        let mut daemon = program(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let stdout = daemon.stdout.take().expect("piped");
        Self {
            stdin: daemon.stdin.take().expect("piped"),
            stdout: BufReader::new(stdout).lines(),
            daemon,
            browser: Browser::new(),
            failures: Vec::new(),
            _directory: directory,
        }
    }

    fn use_everything(&mut self, context: &Value) {
        let server = json!({ "server_name": SERVER });
        let Some(listed) = self.ask("list_tools", &server) else {
            return;
        };
        let calls = match context.get("toolCalls").and_then(Value::as_array) {
            Some(calls) => calls.clone(),
            None => members(&listed, "tools").map(call_of).collect(),
        };
        for call in calls {
            let params = json!({"server_name": SERVER, "tool_name": call["name"], "arguments": call["arguments"], "events": true});
            self.ask("call_tool", &params);
        }
        if let Some(listed) = self.ask("list_resources", &server) {
            for resource in members(&listed, "resources") {
                let params = json!({"server_name": SERVER, "uri": resource["uri"]});
                self.ask("read_resource", &params);
            }
        }
        if let Some(listed) = self.ask("list_prompts", &server) {
            for prompt in members(&listed, "prompts") {
                let params = json!({"server_name": SERVER, "name": prompt["name"], "arguments": words_for(prompt)});
                self.ask("get_prompt", &params);
            }
        }
    }

    /// The result of an action, authorizing as often as the daemon asks for it; `None`: there is none.
    fn ask(&mut self, action: &str, params: &Value) -> Option<Value> {
        for _ in 0..MAX_VISITS {
            let answer = self.command(action, params);
            if answer["success"] == true {
                return Some(answer["result"].clone());
            }
            let Some(url) = answer["details"]["authorization_url"].as_str() else {
                self.fail(action, &answer);
                return None;
            };
            let Some(callback_url) = self.browser.visit(url) else {
                self.fail(action, &answer);
                return None;
            };
            let params = json!({"server_name": SERVER, "callback_url": callback_url});
            let completed = self.command("complete_authorization", &params);
            if completed["success"] != true {
                self.fail("complete_authorization", &completed);
                return None;
            }
        }
        self.failures.push(format!(
            "{action}: authorized {MAX_VISITS} times, and asked again"
        ));
        None
    }

    fn fail(&mut self, action: &str, answer: &Value) {
        if answer["error_code"] != "unsupported" {
            self.failures.push(format!("{action}: {answer}"));
        }
    }

    /// One command and its answer; questions that come before it are answered.
    fn command(&mut self, action: &str, params: &Value) -> Value {
        let line = json!({"task_id": 1, "command": action, "params": params, "user": {"userId": "conformance"}});
        self.send(&line);
        loop {
            let line = self.stdout.next().expect("an answer").expect("text");
            eprintln!("{line}");
            let line: Value = serde_json::from_str(&line).expect("JSON");
            match line["type"].as_str() {
                Some("event") => self.respond(&line),
                _ if line["task_id"] == 1 => return line,
                _ => {}
            }
        }
    }

    fn respond(&mut self, event: &Value) {
        let result = match event["event"].as_str() {
            Some("elicitation") => json!({"action": "accept", "content": {}}),
            Some("sampling") => {
                json!({"role": "assistant", "model": "none", "content": {"type": "text", "text": "nothing"}})
            }
            Some("roots") => json!({"roots": []}),
            _ => return,
        };
        let params = json!({"request_id": event["request_id"], "result": result});
        self.send(&json!({"task_id": 2, "command": "respond", "params": params, "user": {"userId": "conformance"}}));
    }

    fn send(&mut self, line: &Value) {
        eprintln!("{line}");
        writeln!(self.stdin, "{line}").expect("the daemon reads");
    }

    fn end(self) {
        let Self {
            mut daemon, stdin, ..
        } = self;
        drop(stdin);
        let _ = daemon.wait();
    }
}

/// The daemon's program, in a world of its own.
fn program(directory: &Path) -> Command {
    let program: PathBuf = std::env::var_os("MCP_CLIENT").expect("MCP_CLIENT").into();
    let mut command = Command::new(program);
    command
        .env_remove("MCP_CLIENT_CONFIG")
        .env_remove("API_BASE")
        .env("MCP_CLIENT_DATA_DIR", directory);
    command
}

/// Puts the server into the store.
fn define(directory: &Path, url: &str) {
    let mut command = program(directory);
    command.args(["server", "add", SERVER, "--url", url]);
    let added = command.stdout(Stdio::null()).status();
    assert!(added.expect("it runs").success(), "the server is defined");
}

fn members<'a>(listed: &'a Value, member: &str) -> impl Iterator<Item = &'a Value> {
    listed[member].as_array().into_iter().flatten()
}

fn call_of(tool: &Value) -> Value {
    json!({"name": tool["original_name"], "arguments": arguments_for(&tool["inputSchema"])})
}

/// Something that fits for each property the schema requires.
fn arguments_for(schema: &Value) -> Map<String, Value> {
    let required = members(schema, "required").filter_map(Value::as_str);
    let arguments = required.map(|name| {
        let value = match schema["properties"][name]["type"].as_str() {
            Some("integer" | "number") => json!(5),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => json!("text"),
        };
        (name.to_owned(), value)
    });
    arguments.collect()
}

fn words_for(prompt: &Value) -> Map<String, Value> {
    let arguments = members(prompt, "arguments").filter_map(|argument| argument["name"].as_str());
    arguments
        .map(|name| (name.to_owned(), json!("text")))
        .collect()
}

/// The user's browser: goes where it is sent, until that is the redirect URI.
struct Browser {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
}

impl Browser {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
            client: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("a client"),
        }
    }

    /// Where the authorization server sent the browser back to.
    fn visit(&self, url: &str) -> Option<String> {
        let mut url = url::Url::parse(url).ok()?;
        for _ in 0..5 {
            let response = self
                .runtime
                .block_on(self.client.get(url.clone()).send())
                .ok()?;
            let location = response.headers().get("location")?.to_str().ok()?;
            if location.starts_with(REDIRECT) {
                return Some(location.to_owned());
            }
            url = url.join(location).ok()?;
        }
        None
    }
}
