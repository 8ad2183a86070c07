//! Logs on stderr: one record a line, known secrets masked, control characters escaped. A host that does
//! not read stderr costs records, never the daemon's time.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::model::redact::Redactor;
use crate::model::settings::{LogFormat, LogSettings};

/// Records waiting for stderr; more are dropped and counted.
const WAITING: usize = 1024;

static LOG: OnceLock<Log> = OnceLock::new();

/// Where records go.
#[derive(Clone)]
struct Log {
    redactor: Redactor,
    records: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Record(String),
    /// Answered when everything before it has been written.
    Flush(SyncSender<()>),
}

/// Starts logging. The first call wins.
pub fn start(settings: &LogSettings, redactor: Redactor) -> io::Result<()> {
    let (records, waiting) = sync_channel(WAITING);
    let dropped = Arc::new(AtomicU64::new(0));
    let log = Log {
        redactor,
        records,
        dropped: dropped.clone(),
    };
    std::thread::Builder::new()
        .name("stderr".to_owned())
        .stack_size(128 * 1024)
        .spawn(move || write_records(&waiting, &dropped))?;
    if LOG.set(log.clone()).is_ok() {
        let registry = tracing_subscriber::registry().with(targets(&settings.level));
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(log);
        let _ = match settings.format {
            LogFormat::Text => registry.with(layer).try_init(),
            LogFormat::Json => registry.with(layer.json()).try_init(),
        };
    }
    Ok(())
}

/// Waits a little for what was logged to be written: called at the end of the process.
pub fn flush() {
    if let Some(log) = LOG.get() {
        let (written, all) = sync_channel(1);
        if log.records.try_send(Message::Flush(written)).is_ok() {
            let _ = all.recv_timeout(Duration::from_millis(200));
        }
    }
}

/// Says where a panic happened and no more: its text may hold anything.
pub fn hook_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        if LOG.get().is_some() {
            tracing::error!(%place, "a panic: this is a fault of mcp-client");
        } else {
            eprintln!("mcp-client: a panic at {place}: this is a fault of mcp-client");
        }
    }));
}

/// A bare level is ours; what the crates below say matters from `warn` on.
fn targets(level: &str) -> Targets {
    match level.parse::<LevelFilter>() {
        Ok(level) => Targets::new()
            .with_default(level.min(LevelFilter::WARN))
            .with_target("mcp_client", level),
        Err(_) => level
            .parse()
            .unwrap_or_else(|_| Targets::new().with_default(LevelFilter::WARN)),
    }
}

fn write_records(waiting: &Receiver<Message>, dropped: &AtomicU64) {
    let mut stderr = io::stderr();
    for message in waiting {
        match message {
            Message::Record(record) => {
                let _ = stderr.write_all(record.as_bytes());
                let lost = dropped.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(stderr, "mcp-client: {lost} log records were dropped");
                }
            }
            Message::Flush(written) => {
                let _ = written.try_send(());
            }
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Log {
    /// Takes one whole record: the layer formats each into one piece.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let line = one_line(&self.redactor, &String::from_utf8_lossy(record));
        if self.records.try_send(Message::Record(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn one_line(redactor: &Redactor, record: &str) -> String {
    let record = redactor.scrub(record.trim_end_matches('\n'));
    let mut line = String::with_capacity(record.len() + 1);
    for letter in record.chars() {
        if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::secret::Secret;

    #[test]
    fn a_record_is_one_line_without_secrets_and_control_characters() {
        let redactor = Redactor::default();
        let secret = Secret::new("hunter22");
        redactor.learn(&secret);
        let line = one_line(&redactor, "said hunter22\nFAKE \u{1b}[31m\r\u{2028}end\n");
        assert_eq!(line, "said ***\\nFAKE \\u{1b}[31m\\r\\u{2028}end\n");
    }

    #[test]
    fn a_bare_level_opens_our_own_records_alone() {
        let debug = targets("debug");
        assert!(debug.would_enable("mcp_client::pool", &tracing::Level::DEBUG));
        assert!(!debug.would_enable("rmcp::service", &tracing::Level::INFO));
        assert!(debug.would_enable("rmcp::service", &tracing::Level::WARN));
        assert!(!targets("error").would_enable("rmcp", &tracing::Level::WARN));
        assert!(targets("rmcp=trace").would_enable("rmcp", &tracing::Level::TRACE));
    }
}
