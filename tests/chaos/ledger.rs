//! What was asked and is to be answered: every line of the daemon is held against it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::secrets::canaries;
use crate::tally::{Tally, Wrong};

/// What must come of a command.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    Success,
    /// One of these error codes.
    Fails(&'static [&'static str]),
    /// A success or one of these.
    Either(&'static [&'static str]),
}

/// What of a success shows that it is the answer to this very command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proof {
    /// The marker of the call comes back.
    Marker,
    /// A secret of the caller comes back.
    Secret,
    None,
}

/// A command on its way.
#[derive(Clone, Debug)]
pub struct Asked {
    pub user: String,
    pub server: String,
    pub what: String,
    /// Of a tool call: what its journal line is found by.
    pub marker: Option<String>,
    pub expect: Expect,
    pub proof: Proof,
    /// Somebody waits for the answer.
    pub watched: bool,
    pub at: Instant,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub value: Value,
    pub after: Duration,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.value["error_code"].as_str().unwrap_or("success")
    }

    pub fn content(&self) -> &str {
        self.value["result"]["content"].as_str().unwrap_or_default()
    }
}

/// A call that is over, kept for the journals: whose it was and whether it was said to have run.
pub struct Call {
    pub user: String,
    pub server: String,
    pub what: String,
    pub at: Instant,
    pub succeeded: bool,
}

#[derive(Default)]
struct State {
    open: HashMap<String, Vec<Asked>>,
    outstanding: usize,
    kept: HashMap<String, Answer>,
    calls: HashMap<String, Call>,
    /// While these last, everybody's command may fail so.
    weather: Vec<(Option<Instant>, &'static str)>,
}

pub struct Ledger {
    pub tally: Arc<Tally>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Ledger {
    pub fn new(tally: Arc<Tally>) -> Self {
        Self {
            tally,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("unpoisoned")
    }

    /// To be called before the line is written.
    pub fn ask(&self, task: String, asked: Asked) {
        self.tally.commands.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        state.outstanding += 1;
        if let Some(marker) = &asked.marker {
            let call = Call {
                user: asked.user.clone(),
                server: asked.server.clone(),
                what: asked.what.clone(),
                at: asked.at,
                succeeded: false,
            };
            state.calls.insert(marker.clone(), call);
        }
        state.open.entry(task).or_default().push(asked);
    }

    /// The line could not be written.
    pub fn unask(&self, task: &str) {
        let mut state = self.state();
        if state.open.get_mut(task).and_then(Vec::pop).is_some() {
            state.outstanding -= 1;
        }
        self.changed.notify_all();
    }

    /// Takes a line of the daemon's stdout.
    pub fn take(&self, line: &str) {
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            return self
                .tally
                .blame(Wrong::Other, format!("not JSON on stdout: {line}"));
        };
        if value.get("type").is_some() {
            return self.check_event(&value, line);
        }
        let task = value["task_id"].to_string();
        let Some(asked) = self.close(&task, line) else {
            return self
                .tally
                .blame(Wrong::Doubled, format!("nobody asked for this: {line}"));
        };
        self.judge(&asked, &value, line);
        let succeeded = value["success"] == true;
        if !succeeded {
            self.tally.failures.fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.state();
        if let Some(call) = asked
            .marker
            .as_ref()
            .and_then(|marker| state.calls.get_mut(marker))
        {
            call.succeeded = succeeded;
        }
        if asked.watched {
            let answer = Answer {
                value,
                after: asked.at.elapsed(),
            };
            state.kept.insert(task, answer);
        }
        state.outstanding -= 1;
        self.changed.notify_all();
    }

    /// The command this line answers. Of several with one id, the one whose marker it holds.
    fn close(&self, task: &str, line: &str) -> Option<Asked> {
        let mut state = self.state();
        let open = state.open.get_mut(task)?;
        let own = open.iter().position(|asked| {
            asked
                .marker
                .as_ref()
                .is_some_and(|marker| line.contains(marker.as_str()))
        });
        let asked = (!open.is_empty()).then(|| open.remove(own.unwrap_or(0)));
        if open.is_empty() {
            state.open.remove(task);
        }
        asked
    }

    fn check_event(&self, value: &Value, line: &str) {
        if ["task_id", "error", "result", "success"]
            .iter()
            .any(|member| value.get(member).is_some())
        {
            self.tally.blame(
                Wrong::Other,
                format!("an event that looks like an answer: {line}"),
            );
        }
        for canary in canaries(line) {
            self.tally
                .blame(Wrong::Leaked, format!("{canary:?} in an event: {line}"));
        }
    }

    fn judge(&self, asked: &Asked, value: &Value, line: &str) {
        let Asked {
            what, user, expect, ..
        } = asked;
        let is_success = value["success"] == true;
        let code = value["error_code"].as_str().unwrap_or("success");
        let is_right = match expect {
            Expect::Success => is_success,
            Expect::Fails(codes) => !is_success && codes.contains(&code),
            Expect::Either(codes) => is_success || codes.contains(&code),
        };
        if !is_right && !self.is_in_the_weather(code, asked.at) {
            let after = asked.at.elapsed();
            let text = format!("{what} of {user} after {after:?}, not {expect:?}: {line}");
            self.tally.blame(Wrong::Other, text);
        }
        if !is_success && value["error"].as_str().is_none_or(str::is_empty) {
            self.tally.blame(
                Wrong::Other,
                format!("a failure without a sentence: {line}"),
            );
        }
        for canary in canaries(line) {
            if !is_success || canary.server == "token" {
                self.tally
                    .blame(Wrong::Leaked, format!("{canary:?} in an answer: {line}"));
            } else if canary.user != user {
                self.tally.blame(
                    Wrong::Misrouted,
                    format!("{canary:?} in an answer to {user}: {line}"),
                );
            }
        }
        if is_success && !is_proved(asked, line) {
            self.tally.blame(
                Wrong::Misrouted,
                format!("{what} of {user} ({:?}): {line}", asked.marker),
            );
        }
    }

    fn is_in_the_weather(&self, code: &str, since: Instant) -> bool {
        let state = self.state();
        state
            .weather
            .iter()
            .any(|(until, allowed)| *allowed == code && until.is_none_or(|until| until >= since))
    }

    /// From now on everybody's command may fail with `code`, until that is [over](Self::fair).
    pub fn foul(&self, code: &'static str) -> usize {
        let mut state = self.state();
        state.weather.push((None, code));
        state.weather.len() - 1
    }

    /// No more, but for commands asked before now and `slack` more.
    pub fn fair(&self, weather: usize, slack: Duration) {
        self.state().weather[weather].0 = Some(Instant::now() + slack);
    }

    /// Waits until less than `most` commands are on their way; false: that did not come.
    pub fn wait_below(&self, most: usize, patience: Duration) -> bool {
        let state = self
            .changed
            .wait_timeout_while(self.state(), patience, |state| state.outstanding >= most)
            .expect("unpoisoned");
        state.0.outstanding < most
    }

    /// The answer to a watched command.
    pub fn wait_for(&self, task: &str, patience: Duration) -> Option<Answer> {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.state(), patience, |state| {
                !state.kept.contains_key(task)
            })
            .expect("unpoisoned");
        state.kept.remove(task)
    }

    /// Commands that were never answered, which is told of each.
    pub fn lost(&self) {
        let mut state = self.state();
        for (task, asked) in state.open.drain() {
            for asked in asked {
                self.tally.blame(
                    Wrong::Lost,
                    format!(
                        "{task}: {} of {} after {:?}",
                        asked.what,
                        asked.user,
                        asked.at.elapsed()
                    ),
                );
            }
        }
        state.outstanding = 0;
    }

    /// Forgets what is on its way: its daemon was killed.
    pub fn let_go(&self) {
        let mut state = self.state();
        state.open.clear();
        state.outstanding = 0;
        self.changed.notify_all();
    }

    pub fn with_calls<R>(&self, look: impl FnOnce(&HashMap<String, Call>) -> R) -> R {
        look(&self.state().calls)
    }
}

fn is_proved(asked: &Asked, line: &str) -> bool {
    match asked.proof {
        Proof::Marker => asked
            .marker
            .as_ref()
            .is_some_and(|marker| line.contains(marker.as_str())),
        Proof::Secret => canaries(line)
            .next()
            .is_some_and(|canary| canary.user == asked.user),
        Proof::None => true,
    }
}
