//! Server-sent events, read as the WHATWG's HTML standard says and in bounded memory: lines end with
//! CR, LF or both; comments, unknown fields and fields without a colon are no reason to give up.

use memchr::{memchr, memchr2};
use sse_stream::Sse;

use super::lines::Discarding;
use super::wire::CallId;

#[derive(Debug)]
pub(super) enum Event {
    Whole {
        /// All but the data.
        head: Sse,
        data: Vec<u8>,
    },
    /// Larger than the limit: discarded, but for the id of the call it would have answered.
    TooLarge(Option<CallId>),
}

/// Makes events of pieces, however the pieces are cut.
pub(super) struct Parser {
    max: usize,
    line: Vec<u8>,
    is_first_line: bool,
    /// The last piece ended with a CR, to which a LF may belong.
    after_return: bool,
    head: Sse,
    data: Option<Vec<u8>>,
    discarding: Option<Discarding>,
}

impl Parser {
    /// `max`: the largest event, in bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            line: Vec::new(),
            is_first_line: true,
            after_return: false,
            head: Sse::default(),
            data: None,
            discarding: None,
        }
    }

    /// An event that the stream does not end is none.
    pub(super) fn feed(&mut self, mut piece: &[u8], events: &mut Vec<Event>) {
        if self.after_return && !piece.is_empty() {
            self.after_return = false;
            piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        while let Some(at) = memchr2(b'\n', b'\r', piece) {
            self.keep(&piece[..at], events);
            self.end_line(events);
            let is_return = piece[at] == b'\r';
            piece = &piece[at + 1..];
            self.after_return = is_return && piece.is_empty();
            if is_return {
                piece = piece.strip_prefix(b"\n").unwrap_or(piece);
            }
        }
        self.keep(piece, events);
    }

    fn keep(&mut self, part: &[u8], events: &mut Vec<Event>) {
        let is_comment = self.line.first().or(part.first()) == Some(&b':');
        if self.discarding.is_none() && !is_comment {
            self.line.extend_from_slice(part);
            if self.held() > self.max {
                self.discarding = Some(Discarding::new(self.max));
                self.head = Sse::default();
                let data = self.data.take();
                self.discard(data.as_deref().unwrap_or_default(), events);
                let line = std::mem::take(&mut self.line);
                self.line.extend(line.first());
                self.discard(&line, events);
            }
            return;
        }
        // Of what is not kept matters only that the line is not blank, and whether it is a comment.
        if self.line.is_empty() {
            self.line.extend(part.first());
        }
        if !is_comment {
            self.discard(part, events);
        }
    }

    /// Bytes kept of the event so far.
    fn held(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let data = self.data.as_ref().map_or(0, Vec::len);
        self.line.len() + data + text(&self.head.id) + text(&self.head.event)
    }

    fn discard(&mut self, part: &[u8], events: &mut Vec<Event>) {
        if let Some(discarding) = &mut self.discarding {
            discarding.feed(part);
            let told = discarding.tell(false);
            events.extend(told.map(Event::TooLarge));
        }
    }

    fn end_line(&mut self, events: &mut Vec<Event>) {
        let line = std::mem::take(&mut self.line);
        let mut text = &line[..];
        if std::mem::take(&mut self.is_first_line) {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        if text.is_empty() {
            self.end_event(events);
        } else if self.discarding.is_none() {
            self.take_field(text);
        }
        // The next line will often be as long.
        self.line = line;
        self.line.clear();
    }

    fn end_event(&mut self, events: &mut Vec<Event>) {
        let (head, data) = (std::mem::take(&mut self.head), self.data.take());
        match self.discarding.take() {
            Some(mut discarding) => events.extend(discarding.tell(true).map(Event::TooLarge)),
            None if data.is_some() || head != Sse::default() => events.push(Event::Whole {
                head,
                data: data.unwrap_or_default(),
            }),
            None => {}
        }
    }

    fn take_field(&mut self, line: &[u8]) {
        let (name, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || String::from_utf8_lossy(value).into_owned();
        match name {
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            b"event" => self.head.event = Some(text()),
            b"id" if !value.contains(&0) => self.head.id = Some(text()),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                self.head.retry = text().parse().ok().or(self.head.retry);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fuzz::{Choices, cut};

    const MAX: usize = 100;

    /// An event, or the call of one that is too large, in a form that can be compared.
    type Parsed = Result<(Sse, Vec<u8>), Option<CallId>>;

    fn parsed(pieces: &[&[u8]], max: usize) -> Vec<Parsed> {
        let mut parser = Parser::new(max);
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, &mut events);
            // What is not UTF-8 may grow threefold in an id or the name of an event.
            assert!(parser.held() / 3 <= max);
        }
        let plain = |event| match event {
            Event::Whole { head, data } => Ok((head, data)),
            Event::TooLarge(id) => Err(id),
        };
        events.into_iter().map(plain).collect()
    }

    /// The slow way, after the standard's words; it knows no limit.
    fn reference(input: &[u8]) -> Vec<(Sse, Vec<u8>)> {
        let input = input.strip_prefix(b"\xef\xbb\xbf").unwrap_or(input);
        let mut plain = Vec::new();
        for (at, byte) in input.iter().enumerate() {
            match byte {
                b'\r' => plain.push(b'\n'),
                b'\n' if at > 0 && input[at - 1] == b'\r' => {}
                byte => plain.push(*byte),
            }
        }
        let mut events = Vec::new();
        let (mut head, mut data) = (Sse::default(), Vec::new());
        let lines: Vec<_> = plain.split(|byte| *byte == b'\n').collect();
        for line in &lines[..lines.len() - 1] {
            let line = line.to_vec();
            let mut halves = line.splitn(2, |byte| *byte == b':');
            let name = halves.next().unwrap_or_default();
            let value = halves.next().unwrap_or_default();
            let value = value.strip_prefix(b" ").unwrap_or(value).to_vec();
            let text = String::from_utf8_lossy(&value).into_owned();
            match name {
                b"" if line.is_empty() => {
                    let (head, data) = (std::mem::take(&mut head), std::mem::take(&mut data));
                    if head != Sse::default() || !data.is_empty() {
                        events.push((head, data.join(&b'\n')));
                    }
                }
                b"data" => data.push(value),
                b"event" => head.event = Some(text),
                b"id" if !value.contains(&0) => head.id = Some(text),
                b"retry" if value.iter().all(u8::is_ascii_digit) => {
                    head.retry = text.parse().ok().or(head.retry);
                }
                _ => {}
            }
        }
        events
    }

    /// F4: any chunking gives the same events, those of the slow reference where none is too large.
    fn check(input: &[u8], sizes: &[usize], max: usize) {
        let whole = parsed(&[input], usize::MAX / 8);
        let expected: Vec<_> = reference(input).into_iter().map(Ok).collect();
        assert_eq!(whole, expected);
        assert_eq!(parsed(&cut(input, sizes), usize::MAX / 8), expected);
        let bounded = parsed(&cut(input, sizes), max);
        assert_eq!(bounded, parsed(&[input], max));
        let kept: Vec<_> = bounded.into_iter().filter(Result::is_ok).collect();
        let mut rest = expected.iter();
        assert!(kept.iter().all(|event| rest.any(|other| other == event)));
    }

    const WORDS: &[&str] = &[
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        ":",
        " ",
        "data:",
        "data: ",
        "data",
        "event: ",
        "id",
        "id:",
        "retry: ",
        "1500",
        ": ping\n\n",
        "foo: bar\n",
        "\u{feff}",
        "\0",
        "message",
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
        r#"{"id":7,"result":""#,
        "xxxxxxxxxxxxxxxxxxxx",
    ];

    #[test]
    fn f4_events() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut choices = Choices::new(bytes);
            let (sizes, max) = (choices.sizes(), 30 + choices.below(200));
            check(&choices.text(WORDS, 80), &sizes, max);
            check(bytes, &sizes, max);
        });
    }

    #[test]
    fn every_line_end_and_every_cut_gives_the_same_events() {
        let text = "\u{feff}: hello\n\nid: 1\nretry: 10\nevent: message\ndata: {\"a\":\ndata:1}\n\ndata\n\ndata: last";
        for end in ["\n", "\r", "\r\n"] {
            let input = text.replace('\n', end).into_bytes();
            let sse = Sse::default().id("1").retry(10).event("message");
            let expected = [
                Ok((sse, b"{\"a\":\n1}".to_vec())),
                Ok((Sse::default(), Vec::new())),
            ];
            for size in 1..input.len() {
                check(&input, &[size], MAX);
                assert_eq!(
                    parsed(&cut(&input, &[size]), MAX),
                    expected,
                    "{end:?} {size}"
                );
            }
        }
    }

    #[test]
    fn what_the_standard_ignores_is_ignored() {
        for odd in [
            "foo: bar",
            "foo",
            "id: a\0b",
            "retry: soon",
            "retry: -1",
            ": \u{e9}",
            "retry:",
        ] {
            let input = format!("{odd}\ndata: x\n\n");
            let expected = Ok((Sse::default(), b"x".to_vec()));
            assert_eq!(parsed(&[input.as_bytes()], MAX), [expected], "{odd}");
        }
        let twice = parsed(
            &[b"id: 1\nid: 2\nevent: a\nevent: b\nretry: 1\nretry: 2\n\n"],
            MAX,
        );
        let last = Sse::default().id("2").event("b").retry(2);
        assert_eq!(twice, [Ok((last, Vec::new()))]);
    }

    #[test]
    fn an_event_that_is_too_large_names_its_call_and_the_next_is_read() {
        let long = "x".repeat(3 * MAX);
        for (input, id) in [
            (format!("data: {{\"id\":7,\"x\":\"{long}\"}}\n\n"), Some(7)),
            (format!("data: {{\"x\":\"{long}\",\"id\":7}}\n\n"), Some(7)),
            (
                format!("data: {long}\ndata: {long}\ndata: {long}\n\n"),
                None,
            ),
            (
                format!("data: {{\"id\":7,\ndata:\"x\":1\nid: {long}\n\n"),
                Some(7),
            ),
        ] {
            let input = format!("{input}data: next\n\n");
            for size in [1, 7, 1000] {
                let events = parsed(&cut(input.as_bytes(), &[size]), MAX);
                assert_eq!(
                    events,
                    [Err(id), Ok((Sse::default(), b"next".to_vec()))],
                    "{input}"
                );
            }
        }
    }

    #[test]
    fn keep_alives_never_add_up() {
        let mut parser = Parser::new(MAX);
        let mut events = Vec::new();
        (0..1000).for_each(|_| parser.feed(b": still here, still here\n\n", &mut events));
        parser.feed(&[b':'; 10_000], &mut events);
        parser.feed(b"\ndata: x\n\n", &mut events);
        assert!(matches!(&events[..], [Event::Whole { data, .. }] if data == b"x"));
    }
}
