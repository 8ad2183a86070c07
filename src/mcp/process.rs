//! A stdio server's process: started in a group of its own, watched, and ended with all its group.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::model::error::Failure;
use crate::model::redact::Redactor;
use crate::model::secret::Secret;

/// How long a server gets to leave by itself once its input is closed.
const AFTER_EOF: Duration = Duration::from_secs(2);
/// How long a probed one gets after SIGTERM.
const AFTER_STOP: Duration = Duration::from_secs(1);
/// How long any other gets after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(3);

/// Lines of stderr that are kept, and the bytes of each.
const TAIL_LINES: usize = 20;
const TAIL_LINE: usize = 2048;

pub(super) struct Process {
    group: Pid,
    exit: watch::Receiver<Option<ExitStatus>>,
    alive: watch::Receiver<bool>,
    tail: Arc<StderrTail>,
}

/// The three pipes' ends that are ours, but for stderr.
pub(super) struct Pipes {
    pub input: pipe::Sender,
    pub output: pipe::Receiver,
}

/// What to start: values ready for use.
pub(super) struct Program<'a> {
    pub command: &'a str,
    pub args: &'a [Secret],
    pub env: &'a BTreeMap<String, Secret>,
    /// The small fixed environment that every child gets.
    pub base_env: &'a [(String, String)],
}

impl Process {
    /// Starts the program. It sees nothing of our environment but what `program` names.
    pub(super) fn start(program: &Program, redactor: Redactor) -> io::Result<(Arc<Self>, Pipes)> {
        let mut command = Command::new(program.command);
        command
            .args(program.args.iter().map(Secret::expose))
            .env_clear()
            .envs(program.base_env.iter().map(|(name, value)| (name, value)))
            .envs(
                program
                    .env
                    .iter()
                    .map(|(name, value)| (name, value.expose())),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut guard = Started(command.spawn()?);
        let child = &mut guard.0;
        let group = Pid::from_child(child);
        let missing = || io::Error::other("a pipe of the child is missing");
        let pipes = Pipes {
            input: pipe::Sender::from_owned_fd(child.stdin.take().ok_or_else(missing)?.into())?,
            output: pipe::Receiver::from_owned_fd(child.stdout.take().ok_or_else(missing)?.into())?,
        };
        let stderr =
            pipe::Receiver::from_owned_fd(child.stderr.take().ok_or_else(missing)?.into())?;
        let pidfd =
            AsyncFd::with_interest(pidfd_open(group, PidfdFlags::NONBLOCK)?, Interest::READABLE)?;

        let tail = Arc::new(StderrTail {
            lines: Mutex::default(),
            redactor,
        });
        let (alive_sender, alive) = watch::channel(false);
        let (exit_sender, exit) = watch::channel(None);
        tokio::spawn(read_stderr(stderr, tail.clone(), alive_sender));
        tokio::spawn(async move {
            let status = reap(guard, pidfd).await;
            exit_sender.send_replace(Some(status));
        });
        Ok((
            Arc::new(Self {
                group,
                exit,
                alive,
                tail,
            }),
            pipes,
        ))
    }

    /// Ends once the server has written to stderr (or will never do so any more).
    pub(super) async fn first_words(&self) {
        let _ = self.alive.clone().wait_for(|alive| *alive).await;
    }

    /// Ends when the process has ended, its group has been killed and it has been reaped.
    pub(super) async fn exited(&self) -> ExitStatus {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(status) => status.unwrap_or_default(),
            Err(_) => ExitStatus::default(),
        }
    }

    /// Ends the process, whose input must be closed already: waits, SIGTERM to the group, waits,
    /// SIGKILL to the group. Returns when it has been reaped.
    pub(super) async fn end(&self) {
        if timeout(AFTER_EOF, self.exited()).await.is_ok() {
            return;
        }
        self.signal(Signal::TERM);
        if timeout(AFTER_TERM, self.exited()).await.is_ok() {
            return;
        }
        self.kill().await;
    }

    /// Ends a process that has not served anybody yet.
    pub(super) async fn stop(&self) {
        self.signal(Signal::TERM);
        if timeout(AFTER_STOP, self.exited()).await.is_err() {
            self.kill().await;
        }
    }

    async fn kill(&self) {
        self.signal(Signal::KILL);
        self.exited().await;
    }

    fn signal(&self, signal: Signal) {
        // Once reaped, the number may belong to somebody else.
        if self.exit.borrow().is_none() {
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Adds what is known of the process to a failure: how it ended, its last words.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let failure = match *self.exit.borrow() {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => failure.with("exit_status", code),
                (None, Some(signal)) => failure.with("signal", signal),
                (None, None) => failure,
            },
            None => failure,
        };
        match self.tail.text() {
            text if text.is_empty() => failure,
            text => failure.with("stderr", text),
        }
    }
}

impl Drop for Process {
    /// The last line of defence, for a connect that was dropped half-way.
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// A child that is killed with its group unless it has been reaped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// Waits for the leader's end, then ends what it left in its group: as long as the leader is not
/// reaped, the group's number cannot have passed to somebody else.
async fn reap(mut child: Started, pidfd: AsyncFd<OwnedFd>) -> ExitStatus {
    let _ = pidfd.readable().await;
    let _ = kill_process_group(Pid::from_child(&child.0), Signal::KILL);
    child.0.wait().unwrap_or_default()
}

/// The last lines a server wrote to stderr, scrubbed.
struct StderrTail {
    lines: Mutex<VecDeque<String>>,
    redactor: Redactor,
}

impl StderrTail {
    fn push(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let scrubbed = self.redactor.scrub(text.trim_end());
        if scrubbed.is_empty() {
            return;
        }
        tracing::debug!(target: "mcp_client::server_stderr", "{scrubbed}");
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(scrubbed.into_owned());
    }

    fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from_iter(lines.iter().map(String::as_str)).join("\n")
    }
}

/// Drains stderr for the life of the server: one that is not read blocks it.
async fn read_stderr(
    mut stderr: pipe::Receiver,
    tail: Arc<StderrTail>,
    alive: watch::Sender<bool>,
) {
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        alive.send_replace(true);
        for &byte in &chunk[..length] {
            match byte {
                b'\n' => {
                    tail.push(&line);
                    line.clear();
                }
                _ if line.len() < TAIL_LINE => line.push(byte),
                _ => {}
            }
        }
    }
    tail.push(&line);
}
