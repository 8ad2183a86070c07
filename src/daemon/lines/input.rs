//! Reads lines in big pieces. A line shares the buffer it was read into.

use std::future::poll_fn;
use std::io::{self, Read};
use std::task::{Context, Poll};
use std::thread;

use bytes::Bytes;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::{Kind, Stream};
use crate::daemon::protocol::TaskId;
use crate::daemon::scan::Scan;

/// What a pipe holds.
const READ: usize = 64 * 1024;

/// So many reads, each with at most one long line: what is read ahead by a thread, and what counts as
/// read already when the end comes.
const AHEAD: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Without its line break; never blank.
    Whole(Bytes),
    /// Thrown away; only its id was looked for.
    TooLong(TaskId),
}

/// Lines as they come.
pub enum Input {
    Polled(Polled),
    /// Read elsewhere.
    Lines(mpsc::Receiver<Vec<Line>>),
}

impl Input {
    /// In the runtime. `max_line`: the longest line that is kept, in bytes.
    ///
    /// # Errors
    /// What the system said of the stream, or of a thread.
    pub fn of(stream: Stream, max_line: usize) -> io::Result<Self> {
        let source: Box<dyn Source> = match stream.readable()? {
            Kind::Pipe(pipe) => Box::new(pipe),
            Kind::Socket(socket) => Box::new(socket),
            Kind::Other(stream) => return Ok(Self::Lines(read_lines(stream, max_line)?)),
        };
        Ok(Self::Polled(Polled {
            source,
            buffer: Vec::new(),
            splitter: Splitter::new(max_line),
            ended: false,
        }))
    }

    /// The next lines, at least one; `None` when the input has ended. Whoever drops the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Vec<Line>> {
        match self {
            Self::Polled(polled) => polled.next().await,
            Self::Lines(lines) => lines.recv().await,
        }
    }

    /// What can be had without waiting.
    pub fn at_hand(&mut self) -> Vec<Line> {
        let mut all = Vec::new();
        for _ in 0..AHEAD {
            match self {
                Self::Polled(polled) => all.extend(polled.read()),
                Self::Lines(lines) => all.extend(lines.try_recv().into_iter().flatten()),
            }
        }
        all
    }
}

/// A stream that the runtime waits for.
pub struct Polled {
    source: Box<dyn Source>,
    buffer: Vec<u8>,
    splitter: Splitter,
    ended: bool,
}

trait Source: Send + Sync {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;
}

impl Source for UnixStream {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(context)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_read(buffer)
    }
}

impl Source for pipe::Receiver {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(context)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_read(buffer)
    }
}

impl Polled {
    async fn next(&mut self) -> Option<Vec<Line>> {
        while !self.ended {
            let lines = match poll_fn(|context| self.source.poll_readable(context)).await {
                Ok(()) => self.read(),
                Err(error) => self.end(Some(error)),
            };
            if !lines.is_empty() {
                return Some(lines);
            }
        }
        None
    }

    /// One read, if there is something to read.
    fn read(&mut self) -> Vec<Line> {
        if self.ended {
            return Vec::new();
        }
        self.buffer.resize(READ, 0);
        let mut lines = Vec::new();
        match self.source.try_read(&mut self.buffer) {
            Ok(0) => return self.end(None),
            Ok(read) => self.splitter.feed(&self.buffer[..read], &mut lines),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return self.end(Some(error)),
        }
        lines
    }

    fn end(&mut self, error: Option<io::Error>) -> Vec<Line> {
        if let Some(error) = error {
            tracing::warn!(%error, "reading stdin failed: taken as its end");
        }
        self.ended = true;
        let mut lines = Vec::new();
        self.splitter.end(&mut lines);
        lines
    }
}

/// Reads `input` on a thread of its own until it ends; then the channel ends. Stops reading while
/// nobody takes lines.
pub(super) fn read_lines(
    input: impl Read + Send + 'static,
    max_line: usize,
) -> io::Result<mpsc::Receiver<Vec<Line>>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || pass_on(input, max_line, &sender))?;
    Ok(receiver)
}

fn pass_on(mut input: impl Read, max_line: usize, sender: &mpsc::Sender<Vec<Line>>) {
    let mut buffer = vec![0; READ];
    let mut splitter = Splitter::new(max_line);
    loop {
        let mut lines = Vec::new();
        let read = match input.read(&mut buffer) {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "reading stdin failed: taken as its end");
                0
            }
        };
        if read == 0 {
            splitter.end(&mut lines);
        } else {
            splitter.feed(&buffer[..read], &mut lines);
        }
        let gone = !lines.is_empty() && sender.blocking_send(lines).is_err();
        if gone || read == 0 {
            return;
        }
    }
}

/// Makes lines of pieces, however the pieces are cut. Holds at most one line.
pub struct Splitter {
    max: usize,
    partial: Vec<u8>,
    /// The line is too long: the rest of it is looked through and thrown away.
    discarded: Option<Scan>,
}

impl Splitter {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            partial: Vec::new(),
            discarded: None,
        }
    }

    pub fn feed(&mut self, mut piece: &[u8], lines: &mut Vec<Line>) {
        if let Some(scan) = &mut self.discarded {
            let Some(end) = memchr::memchr(b'\n', piece) else {
                return scan.feed(piece);
            };
            scan.feed(&piece[..end]);
            self.end_discarded(lines);
            piece = &piece[end + 1..];
        }
        let rest = match memchr::memrchr(b'\n', piece) {
            Some(last) => {
                self.keep(&piece[..=last]);
                self.take_whole(lines);
                &piece[last + 1..]
            }
            None => piece,
        };
        self.keep(rest);
        if self.is_over(&self.partial) {
            let mut scan = Scan::default();
            scan.feed(&std::mem::take(&mut self.partial));
            self.discarded = Some(scan);
        }
    }

    /// The input has ended: what is left is a line.
    pub fn end(&mut self, lines: &mut Vec<Line>) {
        self.end_discarded(lines);
        self.take_whole(lines);
    }

    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.partial.capacity()
    }

    fn end_discarded(&mut self, lines: &mut Vec<Line>) {
        if let Some(scan) = self.discarded.take() {
            lines.push(Line::TooLong(scan.finish()));
        }
    }

    /// Grows by doubling, but never far beyond the longest line.
    fn keep(&mut self, piece: &[u8]) {
        let needed = self.partial.len() + piece.len();
        if needed > self.partial.capacity() {
            let wanted = (2 * self.partial.len()).min(self.max + READ).max(needed);
            self.partial.reserve_exact(wanted - self.partial.len());
        }
        self.partial.extend_from_slice(piece);
    }

    fn take_whole(&mut self, lines: &mut Vec<Line>) {
        let block = Bytes::from(std::mem::take(&mut self.partial));
        let mut start = 0;
        while start < block.len() {
            let length = memchr::memchr(b'\n', &block[start..]).unwrap_or(block.len() - start);
            let line = &block[start..start + length];
            start += length + 1;
            if self.is_over(line) {
                let mut scan = Scan::default();
                scan.feed(line);
                lines.push(Line::TooLong(scan.finish()));
            } else if !line.trim_ascii().is_empty() {
                lines.push(Line::Whole(block.slice_ref(without_return(line))));
            }
        }
    }

    fn is_over(&self, line: &[u8]) -> bool {
        without_return(line).len() > self.max
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
