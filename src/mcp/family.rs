//! Processes that left their server's group: they fall to us, on Linux the subreaper, when their parent
//! ends, and are known by a mark in the environment they inherited.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::os;

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
        let strays = os::children_with(&marked);
        if strays.is_empty() {
            return;
        }
        for pid in strays {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(ROUND).await;
    }
}
