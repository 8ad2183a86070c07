//! The stdio transport: one JSON-RPC message a line, over the pipes of a child.
//!
//! Unlike rmcp's own it never waits for the child to read: a message that the pipe does not take at
//! once is queued, so that a stuck server cannot hold up timeouts, cancellation or closing.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc, watch};

use super::lines::{GIVE_UP, Line, Splitter};
use super::process::Pipes;
use super::tap::{Slot, Tap};
use super::wire::{Answer, MAX_MESSAGE};

/// Bytes that may wait for a child that does not read.
const MAX_BACKLOG: usize = GIVE_UP * MAX_MESSAGE;
/// Lines that go in one write.
const MAX_SLICES: usize = 256;
/// Messages for rmcp that may wait before the child is read on.
const MAX_UNHEARD: usize = 16;

/// What rmcp has of the connection: it sends through the outbox, and hears what the reader passes on.
pub(super) struct StdioTransport {
    tap: Arc<Tap>,
    outbox: Arc<Outbox>,
    heard: mpsc::Receiver<Box<ServerJsonRpcMessage>>,
    alive: watch::Receiver<bool>,
}

impl StdioTransport {
    pub(super) fn new(pipes: Pipes, tap: Arc<Tap>) -> Self {
        let outbox = Arc::new(Outbox {
            state: Mutex::new(State {
                pipe: Some(Arc::new(pipes.input)),
                queue: VecDeque::new(),
                bytes: 0,
            }),
            wake: Notify::new(),
        });
        tokio::spawn(empty(outbox.clone()));
        let (sender, heard) = mpsc::channel(MAX_UNHEARD);
        let (alive_sender, alive) = watch::channel(false);
        let reader = Reader {
            tap: tap.clone(),
            lines: LineReader::new(pipes.output),
            pretty: None,
            heard: sender,
            alive: alive_sender,
        };
        tokio::spawn(reader.read());
        Self {
            tap,
            outbox,
            heard,
            alive,
        }
    }

    /// The way to the child's input, beside rmcp's.
    pub(super) fn outbox(&self) -> Arc<Outbox> {
        self.outbox.clone()
    }

    /// Turns true with the first line on the child's stdout.
    pub(super) fn alive(&self) -> watch::Receiver<bool> {
        self.alive.clone()
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let rendered = self.tap.outgoing(&message).map_err(io::Error::from);
        let sent = rendered.and_then(|(line, _)| {
            let mut line = Vec::from(line);
            line.push(b'\n');
            self.outbox.send(line.into(), None)
        });
        std::future::ready(sent)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.heard.recv().await.map(|message| *message)
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.outbox.close();
        Ok(())
    }
}

impl Drop for StdioTransport {
    /// A connect that was dropped half-way closes nothing else.
    fn drop(&mut self) {
        self.outbox.close();
    }
}

/// Reads the child's stdout until it ends, or until rmcp is gone.
struct Reader {
    tap: Arc<Tap>,
    lines: LineReader,
    pretty: Option<BytesMut>,
    heard: mpsc::Sender<Box<ServerJsonRpcMessage>>,
    alive: watch::Sender<bool>,
}

impl Reader {
    async fn read(mut self) {
        let heard = self.heard.clone();
        tokio::select! {
            () = heard.closed() => {}
            () = self.read_all() => {}
        }
    }

    async fn read_all(&mut self) {
        let mut out = VecDeque::new();
        while let Some(line) = self.lines.next().await {
            match line {
                Line::Whole(line) => self.take_line(line, &mut out),
                Line::TooLong(id) => {
                    out.extend(self.tap.settle_some(id, Answer::TooLarge).told());
                }
            }
            for message in out.drain(..) {
                let _ = self.heard.send(Box::new(message)).await;
            }
            self.alive
                .send_if_modified(|alive| !std::mem::replace(alive, true));
        }
    }

    fn take_line(&mut self, line: Bytes, out: &mut VecDeque<ServerJsonRpcMessage>) {
        let line = match (self.pretty.take(), line.trim_ascii()) {
            // A message printed over several lines: rare, against the rules, and easy to put together.
            (None, b"{") => {
                self.pretty = Some(BytesMut::from(&line[..]));
                return;
            }
            (Some(mut text), part) if text.len() + part.len() < MAX_MESSAGE => {
                text.extend_from_slice(&line);
                if line.trim_ascii_end() != b"}" {
                    self.pretty = Some(text);
                    return;
                }
                text.freeze()
            }
            _ => line,
        };
        if !line.trim_ascii().is_empty() {
            self.tap.incoming(&line, None, out);
        }
    }
}

/// What is on its way to the child's stdin.
pub(super) struct Outbox {
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    /// `None` once closed.
    pipe: Option<Arc<pipe::Sender>>,
    queue: VecDeque<(Bytes, Option<Arc<Slot>>)>,
    bytes: usize,
}

impl Outbox {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line, which is written as soon as the commands that are about to send more have done
    /// so: all of them are one write.
    ///
    /// # Errors
    /// The child has closed its input (`BrokenPipe`), or has not read for too long.
    pub(super) fn send(&self, line: Bytes, slot: Option<Arc<Slot>>) -> io::Result<()> {
        let mut state = self.lock();
        if state.pipe.is_none() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if state.bytes + line.len() > MAX_BACKLOG {
            return Err(io::Error::other("the server does not read its input"));
        }
        state.bytes += line.len();
        state.queue.push_back((line, slot));
        if state.queue.len() == 1 {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Writes what is queued; gives the pipe where it takes no more. Requests that can no longer
    /// reach the child end here.
    fn write(&self) -> Option<Arc<pipe::Sender>> {
        let mut state = self.lock();
        let pipe = state.pipe.clone()?;
        while !state.queue.is_empty() {
            let lines = state.queue.iter().take(MAX_SLICES);
            let slices: Vec<_> = lines.map(|(line, _)| IoSlice::new(line)).collect();
            match pipe.try_write_vectored(&slices) {
                Ok(length) => state.written(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(pipe),
                Err(_) => {
                    state.bytes = 0;
                    let lost = state.queue.drain(..).filter_map(|(_, slot)| slot);
                    lost.for_each(|slot| slot.settle(Answer::Lost));
                }
            }
        }
        None
    }

    /// Closes the child's stdin; what is still queued is dropped.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.pipe = None;
        state.queue.clear();
        self.wake.notify_one();
    }
}

impl State {
    /// So many bytes have gone.
    fn written(&mut self, mut length: usize) {
        self.bytes -= length;
        while length > 0
            && let Some((line, slot)) = self.queue.front_mut()
        {
            if let Some(slot) = slot {
                slot.mark_sent();
            }
            let part = length.min(line.len());
            line.advance(part);
            length -= part;
            if line.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

/// Writes the queue whenever there is one and the pipe takes it, until the outbox is closed.
async fn empty(outbox: Arc<Outbox>) {
    loop {
        outbox.wake.notified().await;
        while let Some(full) = outbox.write() {
            if full.writable().await.is_err() {
                return;
            }
        }
        if outbox.lock().pipe.is_none() {
            return;
        }
    }
}

/// The lines of the child's stdout. Cancel-safe: all state is in the struct.
struct LineReader {
    pipe: pipe::Receiver,
    splitter: Splitter,
}

impl LineReader {
    fn new(pipe: pipe::Receiver) -> Self {
        Self {
            pipe,
            splitter: Splitter::new(MAX_MESSAGE),
        }
    }

    /// The next line without its line break; `None` when the child has closed its stdout.
    async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.splitter.next() {
                return Some(line);
            }
            if self.splitter.has_ended() {
                return None;
            }
            self.read().await;
        }
    }

    async fn read(&mut self) {
        if self.pipe.readable().await.is_err() {
            self.splitter.end();
            return;
        }
        match self.pipe.try_read_buf(self.splitter.room()) {
            Ok(0) => self.splitter.end(),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.splitter.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::mcp::tap::Request;

    fn reader() -> (File, LineReader) {
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        let pipe = pipe::Receiver::from_owned_fd(ours).expect("a pipe");
        (File::from(theirs), LineReader::new(pipe))
    }

    fn outbox() -> (OwnedFd, Outbox) {
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        let pipe = pipe::Sender::from_owned_fd(theirs).expect("a pipe");
        let state = State {
            pipe: Some(Arc::new(pipe)),
            queue: VecDeque::new(),
            bytes: 0,
        };
        (
            ours,
            Outbox {
                state: Mutex::new(state),
                wake: Notify::new(),
            },
        )
    }

    #[tokio::test]
    async fn a_transport_that_is_dropped_lets_go_of_both_pipes() {
        let (input, theirs) = rustix::pipe::pipe().expect("a pipe");
        let (ours, output) = rustix::pipe::pipe().expect("a pipe");
        let pipes = Pipes {
            input: pipe::Sender::from_owned_fd(theirs).expect("a pipe"),
            output: pipe::Receiver::from_owned_fd(ours).expect("a pipe"),
        };
        drop(StdioTransport::new(pipes, Tap::new("x".into(), None)));
        let mut input = pipe::Receiver::from_owned_fd(input).expect("a pipe");
        let mut rest = [0];
        let end = tokio::io::AsyncReadExt::read(&mut input, &mut rest);
        assert_eq!(end.await.expect("it reads"), 0);
        let mut output = pipe::Sender::from_owned_fd(output).expect("a pipe");
        while tokio::io::AsyncWriteExt::write_all(&mut output, b"\n")
            .await
            .is_ok()
        {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_names_its_call_and_the_next_is_read() {
        let (mut pipe, mut reader) = reader();
        let writer = std::thread::spawn(move || {
            pipe.write_all(br#"{"result":{"text":""#)?;
            let part = vec![b'x'; MAX_MESSAGE / 4];
            (0..5).try_for_each(|_| pipe.write_all(&part))?;
            pipe.write_all(b"\"},\"jsonrpc\":\"2.0\",\"id\":12}\nnext\n")
        });
        assert!(matches!(reader.next().await, Some(Line::TooLong(Some(12)))));
        assert!(matches!(reader.next().await, Some(Line::Whole(line)) if &line[..] == b"next"));
        assert!(reader.splitter.capacity() <= 2 * MAX_MESSAGE);
        writer.join().expect("the writer").expect("all is written");
    }

    #[tokio::test]
    async fn a_child_that_does_not_read_holds_up_nobody() {
        let (_unread, outbox) = outbox();
        let line = Bytes::from(vec![b'x'; MAX_MESSAGE]);
        let sent = (0..5)
            .map(|_| outbox.send(line.clone(), None).is_ok())
            .collect::<Vec<_>>();
        assert_eq!(sent, [true, true, true, true, false]);
    }

    #[tokio::test]
    async fn what_never_reached_the_pipe_is_known_to_be_unsent() {
        let (_unread, outbox) = outbox();
        let tap = Tap::new("x".into(), None);
        let slot = || {
            tap.open(
                Request::List {
                    kind: crate::mcp::ListKind::Tools,
                    cursor: None,
                },
                None,
            )
        };
        let (begun, waiting) = (slot(), slot());
        let pipe = outbox.lock().pipe.clone().expect("an open pipe");
        pipe.writable().await.expect("an open pipe");
        let line = Bytes::from(vec![b'x'; 1024 * 1024]);
        outbox
            .send(line.clone(), Some(begun.clone()))
            .expect("room in the queue");
        outbox
            .send(line, Some(waiting.clone()))
            .expect("room in the queue");
        assert!(outbox.write().is_some(), "the pipe is full");
        assert!(begun.may_be_sent());
        assert!(!waiting.may_be_sent());
    }

    #[tokio::test]
    async fn what_can_no_longer_reach_the_child_is_lost_at_once() {
        let (unread, outbox) = outbox();
        let tap = Tap::new("x".into(), None);
        let slot = tap.open(
            Request::List {
                kind: crate::mcp::ListKind::Tools,
                cursor: None,
            },
            None,
        );
        let pipe = outbox.lock().pipe.clone().expect("an open pipe");
        pipe.writable().await.expect("an open pipe");
        drop(unread);
        let sent = outbox.send(Bytes::from_static(b"x\n"), Some(slot.clone()));
        sent.expect("room in the queue");
        assert!(outbox.write().is_none());
        assert!(matches!(slot.answer(), Some(Answer::Lost)));
        assert!(!slot.may_be_sent());
    }

    #[tokio::test]
    async fn many_lines_arrive_whole_and_in_order_however_the_pipe_takes_them() {
        let (unread, outbox) = outbox();
        let lines = (0..2_000).map(|n| format!("{n} {}\n", "x".repeat(n % 300)));
        let lines: Vec<_> = lines.map(Bytes::from).collect();
        for line in &lines {
            outbox.send(line.clone(), None).expect("room in the queue");
        }
        let length = lines.iter().map(Bytes::len).sum();
        let reader = tokio::task::spawn_blocking(move || {
            let mut read = vec![0; length];
            std::io::Read::read_exact(&mut File::from(unread), &mut read).map(|()| read)
        });
        let outbox = Arc::new(outbox);
        let emptier = tokio::spawn(empty(outbox.clone()));
        let read = reader.await.expect("a reader").expect("every byte");
        assert_eq!(read, lines.concat());
        outbox.close();
        emptier.await.expect("it ends");
        assert_eq!(outbox.lock().bytes, 0);
    }
}
