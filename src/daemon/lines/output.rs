//! The one writer: a queue of lines, written whole, a burst at a time.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::watch;

use super::Stream;
use crate::daemon::protocol::ascii;
use crate::model::json::Rope;

/// Bytes of answers waiting for the host above which no more commands are read.
const QUEUE_LIMIT: usize = 32 << 20;

/// How full the queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
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

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
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
    /// Starts the writer, and a watch that sees the host close its end also while nothing is written.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn to(output: Stream, ascii: bool) -> io::Result<Self> {
        let watched = output.try_clone()?;
        let lines = Self::to_plain(output, ascii)?;
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

    /// Starts the writer alone.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn to_plain(output: impl Write + Send + 'static, ascii: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            level: watch::Sender::new(Level::Open),
            ascii,
            #[cfg(test)]
            tap: None,
        });
        let own = shared.clone();
        thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || own.write_bursts(output))?;
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
            queue: Mutex::default(),
            filled: Condvar::new(),
            level: watch::Sender::new(Level::Open),
            ascii: false,
            tap: Some(sender),
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

    fn write_bursts(&self, mut output: impl Write) {
        loop {
            let burst = self.next_burst();
            let bytes: usize = burst.iter().map(|line| line.len() + 1).sum();
            if let Err(error) = write_all(&mut output, &burst) {
                tracing::info!(%error, "stdout is closed");
                self.level.send_replace(Level::Gone);
                return;
            }
            let mut queue = self.lock();
            queue.bytes -= bytes;
            self.tell(queue.level());
        }
    }

    fn next_burst(&self) -> VecDeque<Rope> {
        let waiting = |queue: &mut Queue| queue.lines.is_empty();
        let mut queue = self
            .filled
            .wait_while(self.lock(), waiting)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut queue.lines)
    }
}

fn write_all(output: &mut impl Write, burst: &VecDeque<Rope>) -> io::Result<()> {
    let mut slices = Vec::with_capacity(burst.len() * 4);
    for line in burst {
        slices.extend(line.pieces().iter().map(|piece| IoSlice::new(piece)));
        slices.push(IoSlice::new(b"\n"));
    }
    let mut rest = &mut slices[..];
    // Empty pieces alone would look like a stream that takes nothing.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match output.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    output.flush()
}
