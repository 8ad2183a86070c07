//! Reads lines in big pieces. A line shares the buffer it was read into.

use std::io::Read;
use std::thread;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::daemon::protocol::TaskId;
use crate::daemon::scan::Scan;

/// What a pipe holds.
const READ: usize = 64 * 1024;

/// Read ahead while the daemon is busy: so many reads, each with at most one long line.
const AHEAD: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Without its line break; never blank.
    Whole(Bytes),
    /// Thrown away; only its id was looked for.
    TooLong(TaskId),
}

/// Reads `input` on a thread of its own until it ends; then the channel ends. Stops reading while
/// nobody takes lines.
///
/// # Errors
/// No thread could be started.
pub fn read_lines(
    input: impl Read + Send + 'static,
    max_line: usize,
) -> std::io::Result<mpsc::Receiver<Vec<Line>>> {
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
