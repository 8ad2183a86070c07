//! Processes that left their server's group: they fall to us, the subreaper, when their parent ends,
//! and are known by a mark in the environment they inherited.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The variable that holds a server's mark.
pub(super) const MARK: &str = "MCP_CLIENT_CONNECTION";

/// How often strays are looked for: ending one may make its children ours.
const ROUNDS: usize = 100;
const ROUND: Duration = Duration::from_millis(2);

/// A value that no other server of this machine carries.
pub(super) fn new_mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!(
        "{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Ends what the server with this mark has left behind, once the server itself has been reaped.
pub(super) async fn end_strays(mark: &str) {
    let marked = format!("{MARK}={mark}").into_bytes();
    for _ in 0..ROUNDS {
        let strays: Vec<_> = own_children()
            .into_iter()
            .filter(|pid| carries(*pid, &marked))
            .collect();
        if strays.is_empty() {
            return;
        }
        for pid in strays {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(ROUND).await;
    }
}

/// A process that has ended carries nothing any more.
fn carries(pid: Pid, marked: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == marked)
}

/// The children of this process, adopted ones included.
pub fn own_children() -> Vec<Pid> {
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
