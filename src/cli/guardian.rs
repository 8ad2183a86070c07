//! No process outlives us. What starts servers runs below a guardian: a tiny process of the same binary
//! that starts it, passes signals on, and when it ends, however it ends, ends everything left below.
//!
//! On Linux both are child subreapers: what one of them leaves behind when it dies falls to the other, also a
//! process that has called `setsid`. Only when both are killed in the same instant is nobody left to look.

use std::collections::HashSet;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::os;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process,
    kill_process_group, setrlimit, wait, waitpid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// How long descendants are hunted: one that cannot be killed must not hold up the end.
const HUNT: Duration = Duration::from_secs(5);
const HUNT_STEP: Duration = Duration::from_millis(2);

/// The hidden option that tells our binary who guards it.
pub const GUARDED_BY: &str = "guarded-by";

/// Stands guard over a second run of this command line; returns how that ended.
///
/// # Errors
/// It could not be started; nothing is running then.
pub fn stand_guard() -> io::Result<ExitCode> {
    protect_memory();
    let adopts = os::adopt_orphans()?;
    // Before the start: a signal that comes early is passed on late, not lost.
    let mut signals = Signals::new([SIGCHLD, SIGTERM, SIGINT, SIGHUP])?;
    let on_terminal = io::stdin().is_terminal();
    let guarded = start(on_terminal)?;
    let_go_of_pipes()?;
    let status = watch(guarded, on_terminal, &mut signals);
    if !adopts && !on_terminal {
        // Nothing has fallen to us: the guarded process's group is all that is known.
        let _ = kill_process_group(guarded, Signal::KILL);
    }
    end_descendants();
    Ok(like(status))
}

fn start(on_terminal: bool) -> io::Result<Pid> {
    let mut words = std::env::args_os();
    let mut command = Command::new(os::own_executable()?);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command
        .arg(format!("--{GUARDED_BY}={}", getpid()))
        .args(words);
    if !on_terminal {
        // A signal to the guardian's group, SIGKILL too, must not reach both. On a terminal the group
        // stays, for only that group may read from it.
        command.process_group(0);
    }
    Ok(Pid::from_child(&command.spawn()?))
}

/// The pipes belong to the guarded process: they must close when it closes them.
fn let_go_of_pipes() -> io::Result<()> {
    let nothing = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(())
}

fn watch(guarded: Pid, on_terminal: bool, signals: &mut Signals) -> Option<WaitStatus> {
    for signal in signals.forever() {
        match Signal::from_named_raw(signal) {
            Some(Signal::CHILD) => {
                while let Some((pid, status)) = reap() {
                    if pid == guarded && (status.exited() || status.signaled()) {
                        return Some(status);
                    }
                }
            }
            // The terminal has sent any other to the whole group.
            Some(signal) if !on_terminal || signal == Signal::TERM => {
                let _ = kill_process(guarded, signal);
            }
            _ => {}
        }
    }
    None
}

fn reap() -> Option<(Pid, WaitStatus)> {
    wait(WaitOptions::NOHANG).ok().flatten()
}

/// Ends this process as `status` says the guarded one ended.
fn like(status: Option<WaitStatus>) -> ExitCode {
    let Some(status) = status else {
        return ExitCode::FAILURE;
    };
    if let Some(signal) = status.terminating_signal() {
        let _ = match Signal::from_named_raw(signal) {
            Some(Signal::KILL) => kill_process(getpid(), Signal::KILL).map_err(io::Error::from),
            _ => emulate_default_handler(signal),
        };
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    let code = status
        .exit_status()
        .and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Makes this process the guarded one. `false`: its guardian has ended already.
///
/// # Errors
/// The system refuses what the guarding rests on.
pub fn be_guarded_by(guardian: i32) -> io::Result<bool> {
    protect_memory();
    os::set_process_name();
    os::signal_on_parent_death(Signal::TERM)?;
    os::adopt_orphans()?;
    Ok(is_guarded_by(guardian))
}

/// Whether the guardian still lives.
pub fn is_guarded_by(guardian: i32) -> bool {
    getppid() == Pid::from_raw(guardian)
}

/// No core file, and no other process of the same user may look into our memory and environment.
fn protect_memory() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    os::forbid_inspection();
}

/// Kills and reaps everything below this process, as far as the system says what that is.
pub fn end_descendants() {
    let until = Instant::now() + HUNT;
    while has_children() && Instant::now() < until {
        let Some(descendants) = os::descendants() else {
            return;
        };
        for pid in descendants {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(HUNT_STEP);
    }
}

/// Reaps what has ended; whether there are children left.
fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => return true,
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Processes that fell to us, for their parents ended, and have ended themselves: reaps those that were
/// there already at the last look, so that whoever waits for a child of his own has had his time.
#[derive(Default)]
pub struct Foundlings(HashSet<i32>);

impl Foundlings {
    /// Whether another look will be needed.
    pub fn look(&mut self) -> bool {
        let ended = os::ended_children().into_iter();
        let ended: HashSet<_> = ended.map(Pid::as_raw_pid).collect();
        for pid in ended.intersection(&self.0) {
            let _ = waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
        }
        self.0 = &ended - &self.0;
        !self.0.is_empty()
    }
}
