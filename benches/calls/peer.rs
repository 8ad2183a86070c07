//! What is measured: something that answers lines (or requests), one by one or many in flight.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A process spoken to in lines.
pub struct Lines {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// Latencies of calls made one after the other.
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn quantile(&self, part: f64) -> f64 {
        let index = (self.0.len() as f64 * part) as usize;
        self.0[index.min(self.0.len() - 1)].as_secs_f64() * 1e6
    }

    pub fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }
}

/// Runs `call` for `budget`, at most `most` times, after a warm-up.
pub fn one_by_one(budget: Duration, most: usize, mut call: impl FnMut(usize)) -> Latencies {
    let start = Instant::now();
    let mut warm = 0;
    while warm < most / 10 + 2 && start.elapsed() < budget / 4 {
        call(warm);
        warm += 1;
    }
    let mut taken = Vec::new();
    let start = Instant::now();
    while taken.len() < most && (start.elapsed() < budget || taken.is_empty()) {
        let before = Instant::now();
        call(taken.len());
        taken.push(before.elapsed());
    }
    taken.sort();
    Latencies(taken)
}

impl Lines {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::with_capacity(1 << 18, child.stdout.take().expect("piped"));
        Self {
            child,
            stdin,
            stdout,
        }
    }

    pub fn send(&mut self, line: &[u8]) {
        self.stdin.write_all(line).expect("it reads");
    }

    /// Reads one line and returns it.
    pub fn read(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stdout
            .read_until(b'\n', &mut line)
            .expect("it answers");
        assert!(!line.is_empty(), "it ended");
        line
    }

    /// Reads one line without keeping it; returns its length.
    pub fn skip(&mut self) -> usize {
        let length = self.stdout.skip_until(b'\n').expect("it answers");
        assert!(length > 0, "it ended");
        length
    }

    /// Calls a second with `in_flight` on their way all the time.
    pub fn throughput(
        &mut self,
        in_flight: usize,
        total: usize,
        line: impl Fn(usize) -> Vec<u8>,
    ) -> f64 {
        let start = Instant::now();
        let mut sent = 0;
        let mut burst = Vec::new();
        while sent < in_flight {
            burst.extend_from_slice(&line(sent));
            sent += 1;
        }
        self.send(&burst);
        let mut read = 0;
        while read < total {
            self.skip();
            let mut answered = 1;
            // What has arrived with it is answered with it.
            while self.stdout.buffer().contains(&b'\n') {
                self.skip();
                answered += 1;
            }
            read += answered;
            burst.clear();
            for _ in 0..answered.min(total.saturating_sub(sent)) {
                burst.extend_from_slice(&line(sent));
                sent += 1;
            }
            self.send(&burst);
        }
        total as f64 / start.elapsed().as_secs_f64()
    }

    /// Seconds of CPU of the process and of those of its descendants that run the same program.
    pub fn cpu(&self) -> f64 {
        let ticks: f64 = family(self.child.id()).into_iter().map(cpu_ticks).sum();
        ticks / 100.0
    }

    /// Resident memory of the daemon in MB, now (`VmRSS`) or at its peak (`VmHWM`), and what its guardian
    /// has besides: the pages of the program itself are there once for both.
    pub fn memory(&self, which: &str) -> f64 {
        let mut family = family(self.child.id());
        let daemon = family.pop().expect("a process");
        let guardians = family.into_iter().map(|pid| memory_of(pid, "RssAnon:"));
        memory_of(daemon, which) + guardians.sum::<f64>()
    }

    pub fn end(mut self) {
        drop(self.stdin);
        let _ = self.child.wait();
    }
}

fn memory_of(pid: u32, which: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(which))
        .expect("a line");
    let kilobytes: f64 = line
        .trim_matches(|letter: char| !letter.is_ascii_digit())
        .parse()
        .expect("a number");
    kilobytes / 1024.0
}

/// A process and its descendants as far as they are the daemon itself: not the servers it runs.
fn family(pid: u32) -> Vec<u32> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let mut all = vec![pid];
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
    {
        if fs::read_link(format!("/proc/{child}/exe")).ok() == program {
            all.extend(family(child));
        }
    }
    all
}

fn cpu_ticks(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return 0.0;
    };
    let field = |number: usize| {
        fields
            .split_whitespace()
            .nth(number)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or_default()
    };
    field(11) + field(12)
}

/// Keep-alive connections to an HTTP server.
pub struct Http(Vec<BufReader<TcpStream>>);

impl Http {
    pub fn connect(port: u16, connections: usize) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            stream.set_nodelay(true).expect("an option");
            BufReader::with_capacity(1 << 18, stream)
        };
        Self((0..connections).map(connect).collect())
    }

    pub fn send(&mut self, connection: usize, body: &[u8]) {
        let mut request = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.0[connection]
            .get_mut()
            .write_all(&request)
            .expect("it reads");
    }

    pub fn read(&mut self, connection: usize) {
        super::echo::read_request(&mut self.0[connection]).expect("it answers");
    }

    /// Calls a second with one call on every connection all the time.
    pub fn throughput(&mut self, total: usize, body: &[u8]) -> f64 {
        let connections = self.0.len();
        let start = Instant::now();
        for connection in 0..connections {
            self.send(connection, body);
        }
        for call in 0..total {
            self.read(call % connections);
            if call + connections < total {
                self.send(call % connections, body);
            }
        }
        total as f64 / start.elapsed().as_secs_f64()
    }
}

/// A child that tells its port on its first line, killed with its owner.
pub struct Listening(Child, pub u16);

impl Listening {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut first = String::new();
        let mut stdout = child.stdout.take().expect("piped");
        let mut byte = [0];
        while stdout.read_exact(&mut byte).is_ok() && byte[0] != b'\n' {
            first.push(char::from(byte[0]));
        }
        Self(child, first.trim().parse().expect("a port"))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
