//! The plain Unix way: what the Linux one promises, as far as it can be had, and otherwise nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use rustix::process::{Pid, Signal};

use super::{Landlock, ProcessLimit};

/// Our own executable, by its path: a file that has been replaced since is the new one.
///
/// # Errors
/// The system does not say where it is.
pub fn own_executable() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Nothing: the path already has the name.
pub fn set_process_name() {}

/// `Ok(false)`: what loses its parent falls to the system's first process.
///
/// # Errors
/// None here.
pub fn adopt_orphans() -> io::Result<bool> {
    Ok(false)
}

/// Nothing: no such signal exists.
///
/// # Errors
/// None here.
pub fn signal_on_parent_death(_: Signal) -> io::Result<()> {
    Ok(())
}

/// Nothing.
pub fn forbid_inspection() {}

/// Nothing: there is no Landlock.
///
/// # Errors
/// None here.
pub fn isolate() -> io::Result<()> {
    Ok(())
}

impl Landlock {
    /// There is none.
    pub fn of_this_kernel() -> Self {
        Self::NONE
    }
}

/// The system does not list children.
pub fn lists_children() -> bool {
    false
}

/// None are known.
pub fn children_with(_: &[u8]) -> Vec<Pid> {
    Vec::new()
}

/// None are known, and none have fallen to us.
pub fn ended_children() -> Vec<Pid> {
    Vec::new()
}

/// The system does not say.
pub fn descendants() -> Option<Vec<Pid>> {
    None
}

/// None: a pipe that is shared stays as it is, and is left to a thread.
pub fn path_of(_: &impl AsRawFd) -> Option<String> {
    None
}

/// Nothing: a pipe has the size that the system gives it.
pub fn set_pipe_size(_: impl AsFd, _: usize) {}

/// Nothing: the system's own patience ends such a connection.
pub fn set_unread_timeout(_: impl AsFd, _: u32) {}

/// The system does not say.
pub fn resident_bytes() -> Option<u64> {
    None
}

/// None beyond those of the user.
pub fn process_limits() -> Vec<ProcessLimit> {
    Vec::new()
}
