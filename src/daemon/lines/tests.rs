use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::input::Splitter;
use super::*;
use crate::model::fuzz::cut;
use crate::model::json::{RawJson, Rope};

const MAX: usize = 12;

fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, max: usize) -> Vec<Line> {
    let mut splitter = Splitter::new(max);
    let mut lines = Vec::new();
    for piece in pieces {
        splitter.feed(piece, &mut lines);
    }
    splitter.end(&mut lines);
    lines
}

/// The slow way, after the words of docs/line-protocol.md.
fn reference(input: &[u8], max: usize) -> Vec<Option<Bytes>> {
    let mut lines: Vec<_> = input.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    let lines = lines
        .into_iter()
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let lines = lines.filter(|line| line.len() > max || !line.trim_ascii().is_empty());
    lines
        .map(|line| (line.len() <= max).then(|| Bytes::copy_from_slice(line)))
        .collect()
}

fn whole(line: &Line) -> Option<Bytes> {
    match line {
        Line::Whole(bytes) => Some(bytes.clone()),
        Line::TooLong(_) => None,
    }
}

#[test]
fn lines_end_with_either_break_and_the_last_needs_none() {
    let lines = split([&b"{\"a\":1}\r\n\n  \r\n{\"b\":2}\n{\"c\":3}"[..]], 100);
    let texts: Vec<_> = lines.iter().filter_map(whole).collect();
    assert_eq!(texts, ["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"]);
}

#[test]
fn lines_of_one_read_share_its_buffer() {
    let lines = split([&b"first\nsecond\n"[..]], 100);
    let texts: Vec<_> = lines.iter().filter_map(whole).collect();
    assert_eq!(texts[0].as_ptr().wrapping_add(6), texts[1].as_ptr());
}

#[test]
fn a_line_that_is_too_long_gives_its_id_and_spoils_nothing() {
    let long = format!("{{\"task_id\":\"t\",\"x\":\"{}\"}}\n", "x".repeat(50));
    let input = format!("before\n{long}after\n");
    for size in [1, 7, 1000] {
        let lines = split(input.as_bytes().chunks(size), 20);
        let [before, Line::TooLong(task), after] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(task.raw(), "\"t\"");
        assert_eq!(
            [whole(before), whole(after)],
            [Some("before".into()), Some("after".into())]
        );
    }
}

#[test]
fn a_stream_without_a_break_takes_no_memory() {
    let mut splitter = Splitter::new(1 << 16);
    let mut lines = Vec::new();
    let piece = [b'x'; 1 << 12];
    (0..4_096).for_each(|_| splitter.feed(&piece, &mut lines));
    assert!(lines.is_empty() && splitter.held() <= (1 << 16) + (1 << 16));
    splitter.feed(b"\nnext\n", &mut lines);
    assert_eq!(
        lines.iter().map(whole).collect::<Vec<_>>(),
        [None, Some("next".into())]
    );
}

async fn all_of(mut input: Input) -> Vec<Bytes> {
    let mut texts = Vec::new();
    while let Some(batch) = input.next().await {
        texts.extend(batch.iter().filter_map(whole));
    }
    texts
}

/// Two ends of each kind of stream that a host may give us.
fn ends() -> Vec<(OwnedFd, Stream)> {
    let (reader, writer) = io::pipe().expect("a pipe");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket");
    vec![
        (writer.into(), Stream(reader.into())),
        (theirs.into(), Stream(ours.into())),
    ]
}

#[tokio::test]
async fn reading_ends_with_the_input_whatever_it_is() {
    for (theirs, ours) in ends() {
        let input = Input::of(ours, 100).expect("a stream");
        assert!(matches!(input, Input::Polled(_)));
        let mut writer = File::from(theirs);
        writer.write_all(b"one\ntwo").expect("room");
        drop(writer);
        assert_eq!(all_of(input).await, ["one", "two"]);
    }
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(b"one\ntwo").expect("room");
    io::Seek::rewind(&mut file).expect("a file");
    let input = Input::of(file.into(), 100).expect("a stream");
    assert_eq!(all_of(input).await, ["one", "two"]);
}

#[tokio::test]
async fn what_was_sent_is_at_hand_and_no_wait_loses_it() {
    for (theirs, ours) in ends() {
        let mut input = Input::of(ours, 100).expect("a stream");
        assert!(input.next().now_or_never().is_none());
        let mut writer = File::from(theirs);
        writer.write_all(b"one\ntwo\nthr").expect("room");
        assert_eq!(input.next().await.map(|lines| lines.len()), Some(2));
        assert!(input.next().now_or_never().is_none());
        writer.write_all(b"ee\nfour\n").expect("room");
        let mut texts = Vec::new();
        while texts.is_empty() {
            tokio::task::yield_now().await;
            texts.extend(input.at_hand().iter().filter_map(whole));
        }
        assert_eq!(texts, ["three", "four"]);
    }
}

/// Whoever shares a pipe with us must not find it non-blocking.
#[tokio::test]
async fn the_hosts_pipe_is_left_as_it_was() {
    let (reader, writer) = io::pipe().expect("a pipe");
    let (others, shared) = (reader.try_clone(), writer.try_clone());
    let _input = Input::of(Stream(reader.into()), 100).expect("a stream");
    let _lines = Lines::to(Stream(writer.into()), false).expect("a stream");
    for fd in [
        OwnedFd::from(others.expect("a copy")),
        shared.expect("a copy").into(),
    ] {
        let flags = rustix::fs::fcntl_getfl(&fd).expect("flags");
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    }
}

/// A stream that takes a few bytes at a time and now and then asks to try again.
#[derive(Clone, Default)]
struct Trickle(Arc<Mutex<(Vec<u8>, usize)>>);

impl Write for Trickle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().expect("no panic");
        state.1 += 1;
        if state.1.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let taken = bytes.len().min(1 + state.1 % 5);
        state.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn written(lines: Vec<Rope>, ascii: bool) -> Vec<u8> {
    let stream = Trickle::default();
    let writer = Lines::to_plain(stream.clone(), ascii).expect("a thread");
    lines.into_iter().for_each(|line| writer.send(line));
    writer.finish();
    let mut level = writer.level();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let emptied = level.wait_for(|level| *level == Level::Done);
    runtime
        .expect("a runtime")
        .block_on(emptied)
        .expect("a writer");
    let state = stream.0.lock().expect("no panic");
    state.0.clone()
}

async fn reach(lines: &Lines, wanted: Level) {
    let mut level = lines.level();
    let reached = level.wait_for(|level| *level == wanted);
    reached.await.expect("a writer");
}

#[tokio::test]
async fn a_host_that_is_gone_is_noticed_while_nothing_is_written() {
    let (reader, writer) = io::pipe().expect("a pipe");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket");
    for (theirs, ours) in [
        (OwnedFd::from(reader), OwnedFd::from(writer)),
        (theirs.into(), ours.into()),
    ] {
        let lines = Lines::to(ours.into(), false).expect("a stream");
        assert_eq!(*lines.level().borrow(), Level::Open);
        drop(theirs);
        reach(&lines, Level::Gone).await;
    }
}

#[tokio::test]
async fn a_host_that_does_not_read_fills_the_queue_and_loses_nothing() {
    let (reader, writer) = io::pipe().expect("a pipe");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket");
    for (theirs, ours) in [
        (OwnedFd::from(reader), OwnedFd::from(writer)),
        (theirs.into(), ours.into()),
    ] {
        let lines = Lines::to(ours.into(), false).expect("a stream");
        let answer = Bytes::from(vec![b'7'; 1 << 20]);
        for _ in 0..40 {
            let mut rope = Rope::default();
            rope.push(answer.clone());
            lines.send(rope);
        }
        assert_eq!(*lines.level().borrow(), Level::Full);
        let length = 40 * (answer.len() + 1);
        let read = tokio::task::spawn_blocking(move || {
            let mut read = vec![0; length];
            File::from(theirs).read_exact(&mut read).map(|()| read)
        });
        lines.finish();
        reach(&lines, Level::Done).await;
        let read = read.await.expect("a reader").expect("every answer");
        assert!(
            read.chunks(answer.len() + 1)
                .all(|line| line.ends_with(b"7\n"))
        );
    }
}

fn chunked() -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    let byte = prop_oneof![
        Just(b'\n'),
        Just(b'\r'),
        Just(b' '),
        Just(b'"'),
        any::<u8>(),
        Just(b'a')
    ];
    (
        proptest::collection::vec(byte, 0..200),
        proptest::collection::vec(1usize..20, 1..40),
    )
}

/// F1: any chunking gives the same lines, the ones of the slow reference, in bounded memory.
pub(super) fn check_chunks(input: &[u8], sizes: &[usize], max: usize) -> Vec<Line> {
    let mut splitter = Splitter::new(max);
    let mut lines = Vec::new();
    for piece in cut(input, sizes) {
        splitter.feed(piece, &mut lines);
        assert!(splitter.held() <= max + 64 * 1024);
    }
    splitter.end(&mut lines);
    assert_eq!(lines, split([input], max));
    let wholes: Vec<_> = lines.iter().map(whole).collect();
    assert_eq!(wholes, reference(input, max));
    lines
}

/// F2: each line on stdout has one line break, its last byte, and holds what was queued.
pub(super) fn check_written(lines: &[Rope], ascii: bool) {
    let output = written(lines.to_vec(), ascii);
    assert!(output.ends_with(b"\n") || lines.is_empty());
    assert!(!ascii || output.is_ascii());
    let mut read = output.split(|byte| *byte == b'\n');
    for line in lines {
        let (line, read) = (line.concat(), read.next().expect("a line for each"));
        serde_json::from_slice::<IgnoredAny>(read).expect("JSON");
        let value = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
        assert_eq!(value(read), value(&line));
        assert!(ascii || read == line);
    }
    assert_eq!(read.map(<[u8]>::len).collect::<Vec<_>>(), [0]);
}

proptest! {
    #[test]
    fn chunks_do_not_matter((input, sizes) in chunked()) {
        check_chunks(&input, &sizes, MAX);
    }

    #[test]
    fn a_line_is_written_whole(texts in proptest::collection::vec("\\PC*|[\u{0}-\u{1f}\u{2028}\u{1f600}]{0,20}", 1..20), ascii: bool) {
        let lines = texts.into_iter().map(|text| {
            let mut line = Rope::from(RawJson::from(&Value::from(text)));
            line.push("");
            line
        });
        check_written(&lines.collect::<Vec<_>>(), ascii);
    }
}
