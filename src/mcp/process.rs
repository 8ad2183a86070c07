//! A stdio server's process: started in a group of its own, watched, and ended with all its group.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal as ChildSignals, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{family, shim};
use crate::model::error::Failure;
use crate::model::redact::Redactor;
use crate::model::secret::Secret;
use crate::os;

/// How long a server gets to leave by itself once its input is closed.
const AFTER_EOF: Duration = Duration::from_secs(2);
/// How long a probed one gets after SIGTERM.
const AFTER_STOP: Duration = Duration::from_secs(1);
/// How long any other gets after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(3);

/// How long what an ended server wrote to stderr may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(50);

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
    /// Whether our own binary prepares the process first; a test's binary cannot.
    pub through_shim: bool,
    /// Whether the shim keeps it from reading and signalling other processes.
    pub sandbox: bool,
}

impl Program<'_> {
    /// # Errors
    /// `NotFound` when no such program can be executed.
    fn command(&self, mark: &str) -> io::Result<Command> {
        let base = self
            .base_env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let own = self
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()));
        let env: BTreeMap<_, _> = base.chain(own).collect();
        let path = OsStr::new(env.get("PATH").copied().unwrap_or_default());
        let file = shim::find(self.command, path).ok_or(io::ErrorKind::NotFound)?;
        let mut command = match self.through_shim {
            true => {
                let mut command = Command::new(os::own_executable()?);
                command
                    .arg(shim::SHIM)
                    .arg(std::process::id().to_string())
                    .arg(if self.sandbox {
                        shim::SANDBOXED
                    } else {
                        "open"
                    })
                    .arg(file);
                command
            }
            false => Command::new(file),
        };
        command
            .args(self.args.iter().map(Secret::expose))
            .env_clear()
            .envs(env)
            .env(family::MARK, mark);
        Ok(command)
    }
}

impl Process {
    /// Starts the program. It sees nothing of our environment but what `program` names.
    pub(super) fn start(program: &Program, redactor: Redactor) -> io::Result<(Arc<Self>, Pipes)> {
        let mark = family::new_mark();
        let mut command = program.command(&mark)?;
        command
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
        let exits = signal(SignalKind::child())?;

        let tail = Arc::new(StderrTail {
            lines: Mutex::default(),
            redactor,
        });
        let (alive_sender, alive) = watch::channel(false);
        let (exit_sender, exit) = watch::channel(None);
        let words = tokio::spawn(read_stderr(stderr, tail.clone(), alive_sender));
        tokio::spawn(async move {
            let status = reap(guard, exits).await;
            family::end_strays(&mark).await;
            // Whoever learns of the end reads its last words: they may still be in the pipe.
            let _ = timeout(LAST_WORDS, words).await;
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
async fn reap(mut child: Started, mut exits: ChildSignals) -> ExitStatus {
    let leader = Pid::from_child(&child.0);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(None) = waitid(WaitId::Pid(leader), look) {
        exits.recv().await;
    }
    let _ = kill_process_group(leader, Signal::KILL);
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
        let text = text.trim_end();
        let scrubbed = match line.len() {
            TAIL_LINE.. => self.redactor.scrub_cut(text).into(),
            _ => self.redactor.scrub(text),
        };
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
async fn read_stderr(stderr: pipe::Receiver, tail: Arc<StderrTail>, alive: watch::Sender<bool>) {
    let mut line = Vec::new();
    while stderr.readable().await.is_ok() {
        // Not held while there is nothing to read.
        let mut chunk = [0; 4096];
        let length = match stderr.try_read(&mut chunk) {
            Ok(length @ 1..) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Ok(0) | Err(_) => break,
        };
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

#[cfg(test)]
mod tests {
    use rustix::process::test_kill_process;
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    fn shell(script: &str) -> (Arc<Process>, Pipes) {
        let path = std::env::var("PATH").expect("a PATH");
        let program = Program {
            command: "sh",
            args: &[Secret::new("-c"), Secret::new(script)],
            env: &BTreeMap::new(),
            base_env: &[("PATH".into(), path)],
            through_shim: false,
            sandbox: false,
        };
        Process::start(&program, Redactor::default()).expect("a shell")
    }

    async fn first_line(output: pipe::Receiver) -> String {
        BufReader::new(output)
            .lines()
            .next_line()
            .await
            .expect("a line")
            .expect("a line")
    }

    async fn grandchild(output: pipe::Receiver) -> Pid {
        let line = first_line(output).await;
        Pid::from_raw(line.parse().expect("a pid")).expect("a pid")
    }

    /// Orphans are reaped by whoever adopts them, a moment after they have been killed.
    async fn wait_until_gone(pid: Pid) {
        for _ in 0..1000 {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
            let is_zombie = state.is_ok_and(|stat| stat.contains(") Z "));
            if is_zombie || test_kill_process(pid).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("process {pid:?} lives on");
    }

    #[test]
    fn a_line_that_is_cut_shows_no_beginning_of_a_secret() {
        let redactor = Redactor::default();
        let secret = Secret::new("hunter22-hunter22");
        redactor.learn(&secret);
        let tail = StderrTail {
            lines: Mutex::default(),
            redactor,
        };
        let line = format!("{:TAIL_LINE$}{}", "key:", secret.expose());
        tail.push(&line.as_bytes()[8..TAIL_LINE + 8]);
        assert!(!tail.text().contains('h'), "{}", tail.text());
    }

    #[tokio::test]
    async fn a_server_that_leaves_at_eof_takes_its_group_with_it() {
        let (process, pipes) = shell("sleep 1000 & echo $!; read line");
        let left = grandchild(pipes.output).await;
        drop(pipes.input);
        process.end().await;
        wait_until_gone(left).await;
    }

    #[tokio::test]
    async fn when_a_wrapper_is_killed_what_it_wraps_is_ended() {
        let (process, pipes) = shell("sleep 1000 & echo $!; wait");
        let left = grandchild(pipes.output).await;
        let _ = rustix::process::kill_process(process.group, Signal::KILL);
        assert_eq!(process.exited().await.signal(), Some(9));
        wait_until_gone(left).await;
    }

    #[tokio::test]
    async fn a_server_that_ignores_everything_is_killed() {
        let (process, pipes) = shell("trap '' TERM; echo ready; while :; do sleep 1000; done");
        first_line(pipes.output).await;
        tokio::time::pause();
        process.end().await;
        assert_eq!(process.exited().await.signal(), Some(9));
    }

    #[tokio::test]
    async fn a_dropped_connect_leaves_no_process() {
        let (process, pipes) = shell("echo $$; sleep 1000");
        let child = grandchild(pipes.output).await;
        drop(process);
        wait_until_gone(child).await;
    }

    #[tokio::test]
    async fn a_child_sees_nothing_of_our_environment() {
        let (_process, pipes) =
            shell("echo $(env | cut -d= -f1 | grep -v -e PWD -e SHLVL -e ^_ | sort)");
        assert_eq!(first_line(pipes.output).await, "MCP_CLIENT_CONNECTION PATH");
    }

    #[tokio::test]
    async fn the_last_words_and_the_status_explain_a_failure() {
        let (process, _pipes) = shell("echo going down >&2; exit 3");
        process.exited().await;
        let tail = process.tail.clone();
        while tail.text().is_empty() {
            tokio::task::yield_now().await;
        }
        let failure = process.explain(Failure::new(
            crate::model::error::ErrorCode::ServerCrashed,
            "x",
        ));
        assert_eq!(failure.details["exit_status"], 3);
        assert_eq!(failure.details["stderr"], "going down");
    }
}
