//! What the servers noted, held against what was asked: nothing ran twice, nothing ran for others,
//! and what was said to have run did.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::ledger::Ledger;
use crate::secrets::{Vault, canaries};
use crate::tally::Wrong;

/// How long a snapshot may serve after a secret was renewed: the ttl of the daemons here, and some.
const SLACK: Duration = Duration::from_millis(1500);

struct Journal {
    server: String,
    path: PathBuf,
    read: u64,
}

#[derive(Default)]
pub struct Journals {
    all: Vec<Journal>,
    ran: HashMap<String, usize>,
}

#[derive(Deserialize)]
struct Line {
    event: String,
    marker: Option<String>,
    credential: Option<String>,
}

impl Journals {
    pub fn watch(&mut self, server: &str, path: PathBuf) {
        self.all.push(Journal {
            server: server.to_owned(),
            path,
            read: 0,
        });
    }

    /// How often the call has run so far.
    pub fn runs(&mut self, marker: &str, ledger: &Ledger, vault: &Vault) -> usize {
        self.read(ledger, vault);
        self.ran.get(marker).copied().unwrap_or_default()
    }

    /// Takes in what is new.
    fn read(&mut self, ledger: &Ledger, vault: &Vault) {
        for journal in &mut self.all {
            for line in journal.new_lines() {
                check_secrets(&journal.server, &line, ledger);
                let Ok(noted) = serde_json::from_str::<Line>(&line) else {
                    continue;
                };
                let Some(marker) = noted.marker.filter(|_| noted.event == "executed") else {
                    continue;
                };
                let runs = self.ran.entry(marker.clone()).or_default();
                *runs += 1;
                if *runs > 1 {
                    ledger.tally.blame(
                        Wrong::Doubled,
                        format!("{marker} ran again at {}", journal.server),
                    );
                }
                check_owner(
                    &journal.server,
                    &marker,
                    noted.credential.as_deref().unwrap_or_default(),
                    ledger,
                    vault,
                );
            }
        }
    }

    /// Everything said to have run has.
    pub fn check(&mut self, ledger: &Ledger, vault: &Vault) {
        self.read(ledger, vault);
        ledger.with_calls(|calls| {
            for (marker, call) in calls {
                if call.succeeded && !self.ran.contains_key(marker) {
                    ledger.tally.blame(
                        Wrong::Lost,
                        format!("{marker} ({}) succeeded and never ran", call.what),
                    );
                }
            }
        });
    }
}

impl Journal {
    /// Whole lines since the last look.
    fn new_lines(&mut self) -> Vec<String> {
        let mut text = Vec::new();
        let opened = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.read))?;
            file.read_to_end(&mut text)
        });
        let Some(end) = opened
            .ok()
            .and_then(|_| text.iter().rposition(|byte| *byte == b'\n'))
        else {
            return vec![];
        };
        self.read += u64::try_from(end + 1).expect("64 bits");
        let text = String::from_utf8_lossy(&text[..end]);
        text.lines().map(str::to_owned).collect()
    }
}

/// A server sees secrets that were made for it, and no access token.
fn check_secrets(server: &str, line: &str, ledger: &Ledger) {
    for canary in canaries(line).filter(|canary| canary.server != server) {
        ledger.tally.blame(
            Wrong::Leaked,
            format!("{canary:?} reached {server}: {line}"),
        );
    }
}

/// The call ran at its own server with a secret of its own user that was in force.
fn check_owner(server: &str, marker: &str, secret: &str, ledger: &Ledger, vault: &Vault) {
    ledger.with_calls(|calls| {
        let Some(call) = calls.get(marker) else {
            return ledger.tally.blame(
                Wrong::Other,
                format!("nobody asked for {marker}, which ran at {server}"),
            );
        };
        let since = call.at.checked_sub(SLACK).unwrap_or(call.at);
        if call.server != server || !vault.may_run(&call.user, server, secret, since) {
            ledger.tally.blame(
                Wrong::Misrouted,
                format!(
                    "{marker} of {} for {} ran at {server} with {secret:?}",
                    call.user, call.server
                ),
            );
        }
    });
}
