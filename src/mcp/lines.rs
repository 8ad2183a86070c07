//! Splits what a server writes into lines, in bounded memory and without waiting for anything.

use bytes::{Bytes, BytesMut};

use super::wire::{CallId, IdScan};

/// A line so many times longer than the longest one gives its server up.
pub(super) const GIVE_UP: usize = 4;

#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Whole(Bytes),
    /// Longer than the longest: discarded, but for the id of the call it would have answered.
    TooLong(Option<CallId>),
}

pub(super) struct Splitter {
    max: usize,
    buffer: BytesMut,
    chunk: usize,
    /// How much of the buffer is known to hold no line break.
    searched: usize,
    discarding: Option<Discarding>,
    ended: bool,
}

impl Splitter {
    /// What a pipe holds.
    const CHUNK: usize = 64 * 1024;
    /// What a quiet server needs.
    const LEAST: usize = 4 * 1024;

    /// `max`: the longest line, in bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            buffer: BytesMut::new(),
            chunk: Self::LEAST,
            searched: 0,
            discarding: None,
            ended: false,
        }
    }

    /// Where the next bytes go: as many as the last ones filled, and more where they left nothing.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        let free = self.buffer.capacity() - self.buffer.len();
        if free == 0 {
            self.chunk = (4 * self.chunk).min(Self::CHUNK);
        }
        // Doubling while a long line grows keeps the copying linear; short lines use up what is there.
        if free < self.chunk / 4 {
            self.buffer.reserve(self.chunk.max(self.buffer.len()));
        }
        &mut self.buffer
    }

    /// Nothing more comes: what is left is a line.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Nothing more comes, or the server was given up for a line that did not end.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The next line without its line break, if there is one yet.
    pub(super) fn next(&mut self) -> Option<Line> {
        while let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            let mut line = self.buffer.split_to(self.searched + at + 1);
            self.searched = 0;
            line.truncate(line.len() - 1);
            if let Some(line) = self.finish(line) {
                return Some(line);
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.len() > self.max || self.discarding.is_some() {
            self.searched = 0;
            let part = self.buffer.split();
            if self.buffer.capacity() > self.max {
                self.buffer = BytesMut::new();
            }
            return self.discard(&part, false);
        }
        if self.ended && !self.buffer.is_empty() {
            self.searched = 0;
            let line = self.buffer.split();
            return self.finish(line);
        }
        None
    }

    /// `None`: the call of this line has been named already.
    fn finish(&mut self, line: BytesMut) -> Option<Line> {
        if self.discarding.is_none() && line.len() <= self.max {
            return Some(Line::Whole(line.freeze()));
        }
        let told = self.discard(&line, true);
        self.discarding = None;
        told
    }

    fn discard(&mut self, part: &[u8], is_end: bool) -> Option<Line> {
        let max = self.max;
        let discarding = self.discarding.get_or_insert_with(|| Discarding::new(max));
        discarding.feed(part);
        if discarding.is_hopeless() {
            self.ended = true;
            self.buffer.clear();
            self.searched = 0;
        }
        let told = discarding.tell(is_end || self.ended);
        told.map(Line::TooLong)
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }
}

/// A message that is too long to keep.
pub(super) struct Discarding {
    scan: IdScan,
    /// How many more bytes are looked at.
    left: usize,
    is_hopeless: bool,
    /// Its call has been named already.
    told: bool,
}

impl Discarding {
    /// `max`: the longest message that is kept, in bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            scan: IdScan::default(),
            left: max.saturating_mul(GIVE_UP),
            is_hopeless: false,
            told: false,
        }
    }

    pub(super) fn feed(&mut self, part: &[u8]) {
        self.is_hopeless |= part.len() > self.left;
        let part = &part[..part.len().min(self.left)];
        self.left -= part.len();
        self.scan.feed(part);
    }

    /// It goes on for so long that nothing good can come of it.
    pub(super) fn is_hopeless(&self) -> bool {
        self.is_hopeless
    }

    /// The call to fail (`None` where the message names none), as soon as it is known, and once.
    pub(super) fn tell(&mut self, at_end: bool) -> Option<Option<CallId>> {
        let id = self.scan.found();
        let tells = !self.told && (at_end || self.is_hopeless || id.is_some());
        self.told |= tells;
        tells.then_some(id)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::fuzz::cut;

    fn split(pieces: &[&[u8]], max: usize) -> Vec<Line> {
        let mut splitter = Splitter::new(max);
        let mut lines = Vec::new();
        for piece in pieces {
            if splitter.has_ended() {
                break;
            }
            splitter.room().extend_from_slice(piece);
            lines.extend(std::iter::from_fn(|| splitter.next()));
            assert!(splitter.buffer.len() <= max);
        }
        splitter.end();
        lines.extend(std::iter::from_fn(|| splitter.next()));
        lines
    }

    /// The slow way.
    fn reference(input: &[u8], max: usize) -> Vec<Line> {
        let mut lines = Vec::new();
        for line in input.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            if line.len() <= max {
                lines.push(Line::Whole(Bytes::copy_from_slice(line)));
                continue;
            }
            let mut scan = IdScan::default();
            scan.feed(&line[..line.len().min(GIVE_UP * max)]);
            lines.push(Line::TooLong(scan.found()));
            if line.len() > GIVE_UP * max {
                break;
            }
        }
        lines
    }

    /// F3: any chunking gives the same lines, the ones of the slow reference.
    pub(in crate::mcp) fn check_lines(input: &[u8], sizes: &[usize], max: usize) -> Vec<Line> {
        let lines = split(&cut(input, sizes), max);
        assert_eq!(lines, split(&[input], max));
        assert_eq!(lines, reference(input, max));
        lines
    }

    #[test]
    fn a_last_line_without_its_end_is_a_line() {
        let lines = check_lines(b"one\n\ntwo", &[2], 10);
        let lines: Vec<_> = lines.iter().map(|line| format!("{line:?}")).collect();
        assert_eq!(
            lines,
            [r#"Whole(b"one")"#, r#"Whole(b"")"#, r#"Whole(b"two")"#]
        );
    }

    #[test]
    fn only_the_call_of_a_line_that_is_too_long_is_named() {
        let long = format!("{{\"result\":\"{}\",\"id\":12}}", "x".repeat(30));
        let input = format!("{long}\nnext\n");
        let expected = [Line::TooLong(Some(12)), Line::Whole("next".into())];
        for size in 1..input.len() {
            assert_eq!(check_lines(input.as_bytes(), &[size], 20), expected);
        }
    }

    #[test]
    fn a_line_that_does_not_end_gives_the_server_up() {
        let endless = format!("{{\"id\":3,{}\nnext\n", "x".repeat(100));
        for size in [1, 10, 1000] {
            let lines = check_lines(endless.as_bytes(), &[size], 20);
            assert_eq!(lines, [Line::TooLong(Some(3))]);
        }
        let nameless = [b'x'; 100];
        assert_eq!(check_lines(&nameless, &[7], 20), [Line::TooLong(None)]);
    }
}
