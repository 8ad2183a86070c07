//! The line streams of the process: stdin in, stdout out.
//!
//! A pipe or a socket, as hosts give us, is read and written by the runtime itself: each hand-over to
//! another thread costs a call more than all that we do with it. Files and terminals, which cannot be waited
//! for, have a thread each.
//!
//! Nothing else can write to stdout: [`claim_stdout`] takes it away before anything runs, and what a
//! stray `println!` prints goes to stderr.

#[cfg(test)]
mod fuzz;
mod input;
mod output;
#[cfg(test)]
mod tests;

pub use input::{Input, Line};
pub use output::{Level, Lines};

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::os;

/// Takes stdout for the one writer: what is printed to it from now on goes to stderr.
///
/// # Errors
/// What the system said; stdout or stderr is not open.
pub fn claim_stdout() -> io::Result<Stream> {
    let own = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(Stream(own))
}

/// The process's stdin, for [`Input::of`].
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

/// What a stream is for the runtime.
enum Kind<P> {
    Pipe(P),
    Socket(UnixStream),
    /// Nothing that can be waited for.
    Other(Stream),
}

impl Stream {
    /// For reading, in the runtime. A pipe is opened anew, so that nobody who shares it finds it
    /// non-blocking; where that is not possible, it is left to a thread.
    fn readable(self) -> io::Result<Kind<pipe::Receiver>> {
        let anew = |path: &str| pipe::OpenOptions::new().open_receiver(path);
        self.sorted(anew)
    }

    /// For writing, likewise.
    fn writable(self) -> io::Result<Kind<pipe::Sender>> {
        let anew = |path: &str| pipe::OpenOptions::new().open_sender(path);
        self.sorted(anew)
    }

    fn sorted<P>(self, anew: impl FnOnce(&str) -> io::Result<P>) -> io::Result<Kind<P>> {
        match FileType::from_raw_mode(rustix::fs::fstat(&self.0)?.st_mode) {
            FileType::Fifo => match os::path_of(&self.0).map(|path| anew(&path)) {
                Some(Ok(pipe)) => {
                    // Large answers take fewer turns.
                    os::set_pipe_size(&self.0, PIPE);
                    Ok(Kind::Pipe(pipe))
                }
                Some(Err(_)) | None => Ok(Kind::Other(self)),
            },
            FileType::Socket => {
                let socket = std::os::unix::net::UnixStream::from(self.0);
                if socket.local_addr().is_err() {
                    return Ok(Kind::Other(Self(socket.into())));
                }
                socket.set_nonblocking(true)?;
                UnixStream::from_std(socket).map(Kind::Socket)
            }
            _ => Ok(Kind::Other(self)),
        }
    }

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
        self.retry(PollFlags::OUT, |fd| rustix::io::writev(fd, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How much the host's pipes are to hold, in bytes: what a system lets anybody have.
const PIPE: usize = 1 << 20;

/// What one `writev` takes (`IOV_MAX`).
const MAX_SLICES: usize = 1024;
