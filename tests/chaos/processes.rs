//! What the system says of processes. Only what is open to everybody: the daemon hides its memory.

use std::collections::HashMap;
use std::fs;

pub struct Process {
    parent: i32,
    pub state: String,
}

pub fn all() -> HashMap<i32, Process> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.filter_map(|pid| Some((pid, process(pid)?))).collect()
}

fn process(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some(Process {
        state: fields.next()?.to_owned(),
        parent: fields.next()?.parse().ok()?,
    })
}

pub fn children(of: i32) -> Vec<i32> {
    let all = all().into_iter();
    all.filter(|(_, process)| process.parent == of)
        .map(|(pid, _)| pid)
        .collect()
}

/// Everything below a process, zombies too.
pub fn descendants(of: i32) -> Vec<i32> {
    let mut below: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, process) in all() {
        below.entry(process.parent).or_default().push(pid);
    }
    let mut found = below.remove(&of).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(below.remove(parent).unwrap_or_default());
        next += 1;
    }
    found
}

/// A process in words.
pub fn describe(pid: i32) -> String {
    let state = process(pid).map_or_else(|| "gone".to_owned(), |process| process.state);
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: String = String::from_utf8_lossy(&words)
        .replace('\0', " ")
        .chars()
        .take(120)
        .collect();
    format!("{pid} ({state}) {words}")
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    pub resident: u64,
    pub threads: u64,
    /// Descriptors; only root sees those of a process that hides its memory.
    pub files: usize,
    pub sockets: usize,
}

pub fn holdings(pid: i32) -> Option<Holdings> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (sockets, files) = descriptors(pid);
    Some(Holdings {
        resident: number("VmRSS:")? * 1024,
        threads: number("Threads:")?,
        files,
        sockets,
    })
}

fn descriptors(pid: i32) -> (usize, usize) {
    let (sockets, files): (Vec<_>, Vec<_>) = open_files(pid)
        .into_iter()
        .partition(|target| target.starts_with("socket:"));
    (sockets.len(), files.len())
}

/// What its descriptors are open on, sockets too.
pub fn open_files(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let targets = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    targets
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// Processor time a process has used.
pub fn processor_time(pid: i32) -> Option<std::time::Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(std::time::Duration::from_millis(ticks * 1000 / per_second))
}
