//! The one writer: a queue of lines, written whole, a burst at a time.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use futures::executor::block_on;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, watch};

use super::{Kind, MAX_SLICES, Stream};
use crate::daemon::protocol::ascii;
use crate::model::json::Rope;

/// Bytes of answers waiting for the host above which no more commands are read.
const QUEUE_LIMIT: usize = 32 << 20;

/// How full the queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    #[default]
    Open,
    /// Above [`QUEUE_LIMIT`].
    Full,
    /// After [`Lines::finish`]: everything was handed to the system.
    Done,
    /// The host has closed its end: nothing can be written any more.
    Gone,
}

/// Takes lines to the writer. Cloning shares the queue.
#[derive(Clone)]
pub struct Lines(Arc<Shared>);

#[cfg_attr(test, derive(Default))]
struct Shared {
    queue: Mutex<Queue>,
    filled: Notify,
    level: watch::Sender<Level>,
    ascii: bool,
    /// Takes lines in place of the queue, for tests that hold the clock.
    #[cfg(test)]
    tap: Option<tokio::sync::mpsc::UnboundedSender<Rope>>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Rope>,
    /// Not yet handed to the system, the burst being written included.
    bytes: usize,
    finishing: bool,
}

impl Queue {
    fn level(&self) -> Level {
        match self.bytes {
            0 if self.finishing => Level::Done,
            0..=QUEUE_LIMIT => Level::Open,
            _ => Level::Full,
        }
    }
}

impl Lines {
    /// Starts the writer, in the runtime, and a watch that sees the host close its end also while
    /// nothing is written.
    ///
    /// # Errors
    /// What the system said of the stream, or of a thread.
    pub fn to(output: Stream, ascii: bool) -> io::Result<Self> {
        let watched = output.try_clone()?;
        let lines = match output.writable()? {
            Kind::Pipe(pipe) => Self::to_polled(pipe, ascii),
            Kind::Socket(socket) => Self::to_polled(socket, ascii),
            Kind::Other(stream) => Self::to_plain(stream, ascii)?,
        };
        let shared = lines.0.clone();
        thread::Builder::new()
            .name("stdout-watch".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || {
                watched.wait_until_gone();
                shared.level.send_replace(Level::Gone);
            })?;
        Ok(lines)
    }

    fn to_polled(output: impl Output, ascii: bool) -> Self {
        let shared = Shared::new(ascii);
        tokio::spawn(write_bursts(shared.clone(), output));
        Self(shared)
    }

    /// Starts the writer alone, on a thread.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn to_plain(output: impl Write + Send + 'static, ascii: bool) -> io::Result<Self> {
        let shared = Shared::new(ascii);
        let own = shared.clone();
        thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || block_on(write_bursts(own, Blocking(output))))?;
        Ok(Self(shared))
    }

    /// Queues one line (without its line break). Never blocks; an answer is never dropped while the
    /// host still reads.
    pub fn send(&self, line: Rope) {
        let line = if self.0.ascii { ascii(line) } else { line };
        #[cfg(test)]
        if let Some(tap) = &self.0.tap {
            let _ = tap.send(line);
            return;
        }
        let mut queue = self.0.lock();
        queue.bytes += line.len() + 1;
        queue.lines.push_back(line);
        self.0.tell(queue.level());
        self.0.filled.notify_one();
    }

    /// From now on [`Level::Done`] tells that nothing waits any more.
    pub fn finish(&self) {
        let mut queue = self.0.lock();
        queue.finishing = true;
        self.0.tell(queue.level());
    }

    /// Lines that come out of the receiver at once, without a thread.
    #[cfg(test)]
    pub fn tapped() -> (Self, tokio::sync::mpsc::UnboundedReceiver<Rope>) {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let shared = Shared {
            tap: Some(sender),
            ..Shared::default()
        };
        (Self(Arc::new(shared)), receiver)
    }

    #[cfg(test)]
    pub fn set_level(&self, level: Level) {
        self.0.level.send_replace(level);
    }

    pub fn level(&self) -> watch::Receiver<Level> {
        self.0.level.subscribe()
    }

    /// Bytes waiting.
    pub fn waiting(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Shared {
    fn new(ascii: bool) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            filled: Notify::new(),
            level: watch::Sender::default(),
            ascii,
            #[cfg(test)]
            tap: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, now: Level) {
        self.level.send_if_modified(|level| {
            let changed = *level != now && *level != Level::Gone;
            if changed {
                *level = now;
            }
            changed
        });
    }

    async fn next_burst(&self) -> VecDeque<Rope> {
        loop {
            let burst = std::mem::take(&mut self.lock().lines);
            if !burst.is_empty() {
                return burst;
            }
            self.filled.notified().await;
        }
    }
}

/// Where the writer writes.
trait Output: Send + 'static {
    /// Writes some of it.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> impl Future<Output = io::Result<usize>> + Send;
}

/// Holds up whoever writes: for a thread of its own.
struct Blocking<W>(W);

impl<W: Write + Send + 'static> Output for Blocking<W> {
    async fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(slices)
    }
}

impl Output for pipe::Sender {
    async fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match self.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                outcome => return outcome,
            }
        }
    }
}

impl Output for UnixStream {
    async fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match self.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                outcome => return outcome,
            }
        }
    }
}

/// Writes what is queued, until the host is gone. In the runtime it has its turn after the commands
/// whose answers it writes, so all that end together are one write.
async fn write_bursts(shared: Arc<Shared>, mut output: impl Output) {
    loop {
        let burst = shared.next_burst().await;
        let bytes: usize = burst.iter().map(|line| line.len() + 1).sum();
        if let Err(error) = write_all(&mut output, &burst).await {
            tracing::info!(%error, "stdout is closed");
            shared.level.send_replace(Level::Gone);
            return;
        }
        let mut queue = shared.lock();
        queue.bytes -= bytes;
        shared.tell(queue.level());
    }
}

async fn write_all(output: &mut impl Output, burst: &VecDeque<Rope>) -> io::Result<()> {
    let mut slices = Vec::with_capacity(burst.len() * 4);
    for line in burst {
        slices.extend(line.pieces().iter().map(|piece| IoSlice::new(piece)));
        slices.push(IoSlice::new(b"\n"));
    }
    let mut rest = &mut slices[..];
    // Empty pieces alone would look like a stream that takes nothing.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match output.write(&rest[..rest.len().min(MAX_SLICES)]).await {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
