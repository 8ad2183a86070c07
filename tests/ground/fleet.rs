//! A config server under test, and what stands around it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Ground, PATIENCE, TAG, wait_for};

/// The key that all machines of a fleet share.
pub const STORE_KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Directs the command at a store that many share.
pub fn on_store(mut command: Command, url: &str) -> Command {
    command
        .env("MCP_CLIENT_STORE_URL", url)
        .env("MCP_CLIENT_STORE_KEY", STORE_KEY);
    command
}

pub struct ConfigServer {
    child: Child,
    pub base: String,
    stderr: Arc<Mutex<String>>,
}

impl ConfigServer {
    /// On a free port; `settings` as in [`Ground::set`].
    pub fn start(ground: &Ground, store_url: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = on_store(ground.embedded_command(), store_url);
        command
            .arg("config-server")
            // It outlives the daemons, whose leftovers are found by this.
            .env_remove(TAG)
            .env("MCP_CLIENT_SERVER_LISTEN", "127.0.0.1:0");
        for (name, value) in settings {
            command.env(format!("MCP_CLIENT_{}", name.to_uppercase()), value);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the config server starts");
        let stderr = Arc::new(Mutex::new(String::new()));
        let (kept, mut source) = (stderr.clone(), child.stderr.take().expect("piped"));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = source.read(&mut part) {
                let text = String::from_utf8_lossy(&part[..length]);
                kept.lock().expect("unpoisoned").push_str(&text);
            }
        });
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("stdout reads");
        let base = line.trim().strip_prefix("listening on ");
        let base = base
            .unwrap_or_else(|| panic!("{line:?}; stderr:\n{}", stderr.lock().expect("unpoisoned")));
        Self {
            base: base.to_owned(),
            child,
            stderr,
        }
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("unpoisoned").clone()
    }

    pub fn address(&self) -> &str {
        self.base.split("//").nth(1).expect("a url")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it is there");
    }

    /// Waits for its end; whether it ended well.
    pub fn ended(&mut self) -> bool {
        wait_for("the config server's end", || {
            self.child.try_wait().expect("it can be waited for")
        })
        .success()
    }
}

impl Drop for ConfigServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One HTTP request over a connection of its own; status, headers and body.
pub fn http(address: &str, head: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let length = body.len();
    let text = format!(
        "{head}\r\nHost: fleet\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).expect("a status");
    (
        status.parse().expect("a number"),
        head.to_ascii_lowercase(),
        body.to_owned(),
    )
}

/// Asks the config API for the rows of a user.
pub fn ask(address: &str, bearer: &str, user: Value) -> (u16, Value) {
    let head = format!("POST /internal/mcp/config HTTP/1.1\r\nAuthorization: Bearer {bearer}");
    let body = serde_json::json!({"user_id": user}).to_string();
    let (status, _, body) = http(address, &head, &body);
    (status, serde_json::from_str(&body).unwrap_or_default())
}

/// Stands between a client and a server, and can be cut.
pub struct Proxy {
    pub port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn to(target: String) -> Self {
        Self::between(vec![target])
    }

    /// Takes the targets in turn, and the next one where one does not listen: a balancer.
    pub fn between(targets: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Self {
            port: listener.local_addr().expect("an address").port(),
            is_cut: Arc::default(),
            open: Arc::default(),
        };
        let (is_cut, open) = (proxy.is_cut.clone(), proxy.open.clone());
        std::thread::spawn(move || {
            for (turn, near) in listener.incoming().map_while(Result::ok).enumerate() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let mut in_turn = targets.iter().cycle().skip(turn).take(targets.len());
                let Some(far) = in_turn.find_map(|target| TcpStream::connect(target).ok()) else {
                    continue;
                };
                let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                open.lock()
                    .expect("unpoisoned")
                    .extend([clone(&near), clone(&far)]);
                pump(clone(&near), clone(&far));
                pump(far, near);
            }
        });
        proxy
    }

    /// Ends every connection, and each new one at once.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().expect("unpoisoned").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}
