//! The line streams of the process: stdin in, stdout out, each on a thread of its own.
//!
//! Nothing else can write to stdout: [`claim_stdout`] takes it away before anything runs, and what a
//! stray `println!` prints goes to stderr.

#[cfg(test)]
mod fuzz;
mod input;
mod output;
#[cfg(test)]
mod tests;

pub use input::{Line, read_lines};
pub use output::{Level, Lines};

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Takes stdout for the one writer: what is printed to it from now on goes to stderr.
///
/// # Errors
/// What the system said; stdout or stderr is not open.
pub fn claim_stdout() -> io::Result<Stream> {
    let own = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(Stream(own))
}

/// The process's stdin, for [`read_lines`].
///
/// # Errors
/// Stdin is not open.
pub fn claim_stdin() -> io::Result<Stream> {
    Ok(Stream(rustix::io::fcntl_dupfd_cloexec(
        rustix::stdio::stdin(),
        3,
    )?))
}

/// A descriptor for plain threads: waits also where the host made it non-blocking.
pub struct Stream(OwnedFd);

impl Stream {
    /// Blocks until the other end is gone; for ever on a regular file, which has none.
    fn wait_until_gone(&self) {
        while !self
            .wait(PollFlags::empty())
            .intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
        {}
    }

    fn wait(&self, wanted: PollFlags) -> PollFlags {
        let mut fds = [PollFd::new(&self.0, wanted)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => fds[0].revents(),
            Err(_) => PollFlags::NVAL,
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Calls until the system neither interrupts nor asks to wait.
    fn retry(
        &self,
        wanted: PollFlags,
        mut call: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
    ) -> io::Result<usize> {
        loop {
            match call(&self.0) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.wait(wanted);
                }
                outcome => return Ok(outcome?),
            }
        }
    }
}

impl From<File> for Stream {
    fn from(file: File) -> Self {
        Self(file.into())
    }
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, |fd| {
            rustix::io::read(fd.as_fd(), &mut *buffer)
        })
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, |fd| rustix::io::write(fd, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let slices = &slices[..slices.len().min(MAX_SLICES)];
        self.retry(PollFlags::OUT, |fd| rustix::io::writev(fd, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What one `writev` takes (`IOV_MAX`).
const MAX_SLICES: usize = 1024;
