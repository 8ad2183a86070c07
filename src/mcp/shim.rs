//! The last thing that runs before a stdio server does: our own binary, executed in the child's
//! place, prepares the process and then becomes the server.
//!
//! Preparing between fork and exec instead would turn the daemon's fast spawn into a fork of its
//! whole memory. What is prepared: the server leaves no core files, holds no descriptor but its
//! three pipes, on Linux dies with the daemon's thread that started it, and, where the kernel has Landlock,
//! can neither read nor signal a process outside its own tree.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use close_fds::CloseFdsBuilder;
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, setrlimit};

use crate::os;

/// The first argument that makes our binary a shim; the parent's pid, [`SANDBOXED`] or anything else,
/// and the server's command line follow.
pub const SHIM: &str = "__server";

/// Says that the server is to be kept from other processes.
pub(super) const SANDBOXED: &str = "sandboxed";

/// What a shell answers for a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;

/// Becomes the server; returns only if that fails.
pub fn become_server(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = words
        .next()
        .and_then(|word| word.to_str()?.parse().ok())
        .and_then(Pid::from_raw);
    let sandboxed = words.next().is_some_and(|word| word == SANDBOXED);
    let (Some(parent), Some(command)) = (parent, words.next()) else {
        return fail("a shim needs its parent and a command");
    };
    if let Err(error) = prepare(parent, sandboxed) {
        return fail(&format!("the server's process cannot be prepared: {error}"));
    }
    let error = Command::new(&command).args(words).exec();
    fail(&format!(
        "{} cannot be executed: {error}",
        command.display()
    ))
}

fn fail(text: &str) -> ExitCode {
    eprintln!("mcp-client: {text}");
    ExitCode::from(CANNOT_EXECUTE)
}

fn prepare(parent: Pid, sandboxed: bool) -> Result<(), Box<dyn std::error::Error>> {
    os::signal_on_parent_death(Signal::KILL)?;
    if getppid() != Some(parent) {
        return Err("the daemon has ended".into());
    }
    setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    CloseFdsBuilder::new().cloexecfrom(3);
    if sandboxed {
        os::isolate()?;
    }
    Ok(())
}

/// The file a command names: looked up in `path`, the child's `PATH`, unless it holds a slash.
pub fn find(command: &str, path: &OsStr) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(command.into()).filter(|file: &PathBuf| is_executable(file));
    }
    std::env::split_paths(path)
        .map(|folder| folder.join(command))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}
