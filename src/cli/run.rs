//! `mcp-client [run]`: the daemon.

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::guardian::{self, Foundlings};
use crate::actions::Actions;
use crate::daemon::{Daemon, Input, Lines, Notice, Stream, claim_stdin, claim_stdout};
use crate::model::redact::Redactor;
use crate::model::settings::Settings;
use crate::os::Landlock;

/// How long a child that has ended is left to whoever started it.
const FOUNDLING_AGE: Duration = Duration::from_secs(1);

/// The host's ends, taken before anything else could use them.
pub struct Streams {
    input: Stream,
    output: Stream,
}

impl Streams {
    /// # Errors
    /// Stdin, stdout or stderr is not open.
    pub fn claim() -> std::io::Result<Self> {
        Ok(Self {
            input: claim_stdin()?,
            output: claim_stdout()?,
        })
    }
}

/// Serves the host until the end.
pub async fn run(
    settings: Settings,
    streams: Streams,
    redactor: Redactor,
    guardian: Option<i32>,
) -> ExitCode {
    match serve(settings, streams, redactor, guardian).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("mcp-client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(
    settings: Settings,
    streams: Streams,
    redactor: Redactor,
    guardian: Option<i32>,
) -> Result<u8, Box<dyn std::error::Error>> {
    // First, so that no signal meets its default action any more.
    let notices = notices(guardian)?;
    warn_of_missing_landlock();
    let lines = Lines::to(streams.output, settings.daemon.ascii)?;
    let actions = Actions::open(&settings, redactor.clone()).await?;
    let input = Input::of(streams.input, settings.daemon.max_line)?;
    tokio::spawn(reap_foundlings(signal(SignalKind::child())?));
    let daemon = Daemon::new(actions, settings, redactor, lines, input, notices);
    Ok(daemon.run().await)
}

fn warn_of_missing_landlock() {
    let landlock = Landlock::of_this_kernel();
    if !landlock.is_complete {
        tracing::warn!(
            abi = landlock.abi,
            "this kernel cannot keep servers apart (Landlock ABI 6 is needed): one that is hostile \
             can read and signal the processes of the others"
        );
    }
}

/// Signals that ask to end. SIGTERM is also what the kernel sends when the guardian dies.
fn notices(guardian: Option<i32>) -> std::io::Result<mpsc::Receiver<Notice>> {
    let (sender, receiver) = mpsc::channel(8);
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        let mut signals = signal(kind)?;
        let number = u8::try_from(kind.as_raw_value()).unwrap_or(0);
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let orphaned = guardian.is_some_and(|guardian| !guardian::is_guarded_by(guardian));
                let notice = match orphaned {
                    true => Notice::Orphaned,
                    false => Notice::Signal(number),
                };
                if sender.send(notice).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}

async fn reap_foundlings(mut ended: Signal) {
    let mut foundlings = Foundlings::default();
    let mut again = false;
    while again || ended.recv().await.is_some() {
        tokio::time::sleep(FOUNDLING_AGE).await;
        again = foundlings.look();
    }
}
