//! The daemon a transcript talks to: our own program, over pipes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::script::{Setup, words};

/// Stands for the path of our own program in `$` and `>` lines.
const SELF: &str = "$SELF";

/// How our own program is run.
pub(super) struct Stage {
    program: PathBuf,
    /// A data directory of its own.
    fresh: Option<PathBuf>,
    timeout: Duration,
}

impl Stage {
    pub fn new(fresh: Option<&Path>, timeout: Duration) -> io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            fresh: fresh.map(Path::to_owned),
            timeout,
        })
    }

    /// Runs a `$` line to its end and gives what it printed.
    pub fn set_up(&self, setup: &Setup) -> Result<String, String> {
        let mut child = self
            .command(&words(&self.expand(&setup.arguments))?)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot be started: {error}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A subcommand that reads no input may be gone already.
            let _ = stdin.write_all(self.expand(&setup.stdin).as_bytes());
        }
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.code() == Some(setup.status) {
            return Ok(text(&output.stdout));
        }
        let expected = setup.status;
        Err(format!(
            "ended with {}, not with exit code {expected}\n{}",
            output.status,
            text(&output.stderr)
        ))
    }

    pub fn start(&self, arguments: &[String]) -> io::Result<Player> {
        let mut child = self.command(arguments).stderr(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let stderr = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut log = Vec::new();
                // What could be read is what can be shown.
                let _ = stderr.read_to_end(&mut log);
                String::from_utf8_lossy(&log).into_owned()
            })
        });
        Ok(Player {
            child,
            stdin,
            lines,
            stderr,
            timeout: self.timeout,
        })
    }

    pub fn expand(&self, text: &str) -> String {
        text.replace(SELF, &self.program.to_string_lossy())
    }

    fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(directory) = &self.fresh {
            for name in [
                "API_BASE",
                "INTERNAL_TOKEN",
                "MCP_CLIENT_CONFIG",
                "MCP_CLIENT_STORE_URL",
            ] {
                command.env_remove(name);
            }
            command
                .env("MCP_CLIENT_DATA_DIR", directory)
                .env("XDG_CONFIG_HOME", directory);
        }
        command
    }
}

/// A running daemon.
pub(super) struct Player {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    timeout: Duration,
}

impl Player {
    /// Sends the lines together and gathers what comes back until each is answered; events and
    /// anything else that came meanwhile is there as well.
    pub fn exchange(&mut self, commands: &[String]) -> Result<Vec<Value>, String> {
        let lines: String = commands.iter().map(|line| format!("{line}\n")).collect();
        let stdin = self.stdin.as_mut().ok_or("stdin is closed")?;
        stdin
            .write_all(lines.as_bytes())
            .and_then(|()| stdin.flush())
            .map_err(|error| format!("the daemon takes no more commands: {error}"))?;
        let until = Instant::now() + self.timeout;
        let wanted = commands
            .iter()
            .filter(|line| !line.trim().is_empty())
            .count();
        let mut answers = Vec::new();
        let mut answered = 0;
        while answered < wanted {
            let answer = self.next(until)?;
            answered += usize::from(answer.get("task_id").is_some());
            answers.push(answer);
        }
        Ok(answers)
    }

    fn next(&self, until: Instant) -> Result<Value, String> {
        let left = until.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => read(&line),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("no answer within {} s", self.timeout.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => Err("the daemon ended".to_owned()),
        }
    }

    /// Ends the input and waits for the daemon; gives the lines that nobody asked for.
    pub fn finish(mut self) -> Result<Vec<Value>, String> {
        self.stdin = None;
        let until = Instant::now() + self.timeout;
        let mut rest = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => rest.push(read(&line)?),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err("the daemon did not end with its input".to_owned());
                }
            }
        }
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(rest)
        } else {
            Err(format!("the daemon ended with {status}"))
        }
    }

    /// Ends the daemon at once and gives what it logged.
    pub fn abandon(mut self) -> String {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.stderr.take().map(JoinHandle::join);
        log.and_then(Result::ok).unwrap_or_default()
    }
}

fn read(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|error| format!("not a JSON line: {line} ({error})"))
}
