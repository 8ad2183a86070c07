//! The Linux way: prctl, Landlock, /proc, the size of pipes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use landlock::{
    AccessFs, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{
    DumpableBehavior, Pid, Signal, getpid, set_child_subreaper, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::{Landlock, ProcessLimit};

/// Our own executable, even if the file has been replaced since.
///
/// # Errors
/// None here; elsewhere it may not be found.
pub fn own_executable() -> io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Gives the process its name back: it was started by the name of a link in /proc.
pub fn set_process_name() {
    let _ = rustix::thread::set_name(c"mcp-client");
}

/// Makes whatever loses its parent below this process a child of this one (a child subreaper).
/// `false`: the system has no such thing.
///
/// # Errors
/// The kernel refuses it.
pub fn adopt_orphans() -> io::Result<bool> {
    set_child_subreaper(Some(getpid()))?;
    Ok(true)
}

/// Has the kernel send this process `signal` when the thread that started it ends.
///
/// # Errors
/// The kernel refuses it.
pub fn signal_on_parent_death(signal: Signal) -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(signal))?)
}

/// No other process of the same user may look into our memory and environment.
pub fn forbid_inspection() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Puts this process in a Landlock domain of its own; nothing where the kernel has none.
///
/// # Errors
/// The kernel has Landlock and refuses.
pub fn isolate() -> io::Result<()> {
    restrict().map(drop).map_err(io::Error::other)
}

/// The kernel asks about other processes' memory and environment only for a domain that restricts
/// files; so this one restricts moving them between directories, and then allows it everywhere.
fn restrict() -> Result<RestrictionStatus, RulesetError> {
    for capability in [
        CapabilitySet::SYS_ADMIN,
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::PERFMON,
    ] {
        // Under root these would look past Landlock; without root there is nothing to remove.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let everywhere = path_beneath_rules(["/"], AccessFs::Refer);
    Ruleset::default()
        .handle_access(AccessFs::Refer)?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(everywhere)?
        .restrict_self()
}

impl Landlock {
    /// Tries what the shim does in a thread of its own: a domain binds the thread that makes it.
    pub fn of_this_kernel() -> Self {
        let tried = std::thread::spawn(restrict).join();
        let Ok(Ok(status)) = tried else {
            return Self::NONE;
        };
        Self {
            abi: match status.landlock {
                LandlockStatus::Available {
                    effective_abi,
                    kernel_abi,
                } => kernel_abi.unwrap_or(effective_abi as i32),
                LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
            },
            is_complete: status.ruleset == RulesetStatus::FullyEnforced,
        }
    }
}

/// The children of this process, adopted ones included.
fn own_children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let words: Vec<String> = lists.collect();
    let pids = words.iter().flat_map(|list| list.split_whitespace());
    pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

/// Whether the system lists the children of a process.
pub fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// The children of this process, adopted ones included, that have `variable` (`NAME=value`) in their
/// environment. A process that has ended carries nothing any more.
pub fn children_with(variable: &[u8]) -> Vec<Pid> {
    let mut children = own_children();
    children.retain(|pid| carries(*pid, variable));
    children
}

fn carries(pid: Pid, marked: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == marked)
}

/// The children of this process, adopted ones included, that have ended and are not reaped.
pub fn ended_children() -> Vec<Pid> {
    let mut children = own_children();
    children.retain(|pid| stat(pid.as_raw_pid()).is_some_and(|(_, state)| state == "Z"));
    children
}

/// Every process below this one; `None`: the system does not say.
pub fn descendants() -> Option<Vec<Pid>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in numbers("/proc") {
        if let Some((parent, _)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![getpid().as_raw_pid()];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    found.drain(..1);
    Some(found.into_iter().filter_map(Pid::from_raw).collect())
}

fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// The parent and the state of a process. Its name, which stands before them, may hold anything.
fn stat(pid: i32) -> Option<(i32, String)> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.to_owned();
    Some((fields.next()?.parse().ok()?, state))
}

/// A path by which an open pipe can be opened anew, with flags of its own; `None`: there is none.
pub fn path_of(pipe: &impl AsRawFd) -> Option<String> {
    Some(format!("/proc/self/fd/{}", pipe.as_raw_fd()))
}

/// Lets a pipe hold `size` bytes; it may be refused.
pub fn set_pipe_size(pipe: impl AsFd, size: usize) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, size);
}

/// Ends a TCP connection whose peer takes nothing for so many milliseconds.
pub fn set_unread_timeout(connection: impl AsFd, milliseconds: u32) {
    let _ = rustix::net::sockopt::set_tcp_user_timeout(connection, milliseconds);
}

/// The memory this process holds in RAM; `None` where the system does not say.
pub fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The limits on processes that only this system has.
pub fn process_limits() -> Vec<ProcessLimit> {
    vec![
        ProcessLimit {
            name: "kernel.pid_max",
            value: number_in("/proc/sys/kernel/pid_max"),
            advice: "raise it (sysctl)",
        },
        ProcessLimit {
            name: "pids.max of the control group",
            value: number_in("/sys/fs/cgroup/pids.max"),
            advice: "raise it (TasksMax=, --pids-limit)",
        },
    ]
}

fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
