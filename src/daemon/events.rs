//! Events of one command on their way out: written at most twenty times a second, the newest of each
//! kind of news, and what is left out is counted. Nobody who has an event to tell ever waits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::tasks::Ticket;
use crate::model::error::{ErrorCode, Failure};
use crate::model::event::{Event, EventKind, Interest, LogLevel, TakeEvent};

const APART: Duration = Duration::from_millis(50);

/// Events that may wait for the next time; the oldest goes, of those that ask the host for nothing.
const MAX_WAITING: usize = 64;

/// The events of one command.
pub struct Outlet {
    interest: Interest,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    /// In the order in which they happened.
    events: VecDeque<Event>,
    /// Events left out since the last line.
    dropped: u64,
}

impl Outlet {
    pub fn new(interest: Interest) -> Self {
        Self {
            interest,
            waiting: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// Passes events on for as long as it is polled.
    pub async fn pass_on(&self, ticket: &Ticket) -> Infallible {
        loop {
            self.arrived.notified().await;
            self.flush(ticket);
            sleep(APART).await;
        }
    }

    /// Passes on what waits, at once: the last word before an answer.
    pub fn flush(&self, ticket: &Ticket) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = waiting.events.pop_front() {
            if ticket.tell(&event, waiting.dropped) {
                waiting.dropped = 0;
            } else {
                waiting.dropped += 1;
            }
        }
    }
}

impl TakeEvent for Outlet {
    fn interest(&self) -> Interest {
        self.interest
    }

    fn take(&self, event: Event) {
        if !self.interest.has(event.kind) {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take(event);
        drop(waiting);
        self.arrived.notify_one();
    }
}

impl Waiting {
    fn take(&mut self, event: Event) {
        let old = self
            .events
            .iter()
            .rposition(|old| old.is_superseded_by(&event));
        let old = old.or_else(|| {
            let is_full = self.events.len() >= MAX_WAITING;
            let spare = |old: &Event| !old.kind.is_question();
            self.events.iter().position(spare).filter(|_| is_full)
        });
        if let Some(old) = old {
            self.events.remove(old);
            self.dropped += 1;
        }
        self.events.push_back(event);
    }
}

/// What a command says it wants to hear of: `events`, `progress` and `log_level` of its params.
///
/// # Errors
/// `invalid_params`, naming the member and what it can hold.
pub fn interest(
    events: Option<&RawValue>,
    progress: Option<&RawValue>,
    log_level: Option<&RawValue>,
) -> Result<Interest, Failure> {
    let mut interest = events.map_or(Ok(Interest::default()), kinds)?;
    match progress.map(|raw| serde_json::from_str(raw.get())) {
        None | Some(Ok(false)) => {}
        Some(Ok(true)) => interest = interest.with(EventKind::Progress),
        Some(Err(_)) => return Err(invalid("`progress` must be true or false".to_owned())),
    }
    match log_level.map(|raw| serde_json::from_str::<String>(raw.get())) {
        None => Ok(interest),
        Some(word) => match word.ok().as_deref().and_then(LogLevel::named) {
            Some(level) => Ok(interest.with_logs(level)),
            None => Err(invalid(format!(
                "`log_level` must be one of {}",
                listed(LogLevel::ALL.iter().map(|level| level.as_str()))
            ))),
        },
    }
}

fn kinds(raw: &RawValue) -> Result<Interest, Failure> {
    if let Ok(all) = serde_json::from_str(raw.get()) {
        return Ok(match all {
            true => Interest::all(),
            false => Interest::default(),
        });
    }
    let words: Option<Vec<String>> = serde_json::from_str(raw.get()).ok();
    let kinds = words.and_then(|words| {
        let kinds = words.iter().map(|word| EventKind::named(word));
        kinds.collect::<Option<Vec<_>>>()
    });
    match kinds {
        Some(kinds) => Ok(kinds.into_iter().fold(Interest::default(), Interest::with)),
        None => Err(invalid(format!(
            "`events` must be true, or a list of {}",
            listed(EventKind::ALL.iter().map(|kind| kind.as_str()))
        ))),
    }
}

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::json::RawJson;

    fn read(params: Value) -> Result<Interest, String> {
        let raw = |name: &str| {
            let value = params.get(name)?;
            Some(serde_json::value::to_raw_value(value).expect("a value"))
        };
        let [events, progress, level] = ["events", "progress", "log_level"].map(raw);
        interest(events.as_deref(), progress.as_deref(), level.as_deref())
            .map_err(|failure| failure.message)
    }

    #[test]
    fn a_command_names_the_events_it_wants() {
        let none = Interest::default();
        let progress = none.with(EventKind::Progress);
        for (params, expected) in [
            (json!({}), none),
            (json!({"events": false, "progress": false}), none),
            (json!({"events": []}), none),
            (json!({"events": true}), Interest::all()),
            (json!({"progress": true}), progress),
            (json!({"events": ["progress"]}), progress),
            (
                json!({"events": ["log"], "progress": true, "log_level": "error"}),
                progress.with_logs(LogLevel::Error),
            ),
        ] {
            assert_eq!(read(params.clone()), Ok(expected), "{params}");
        }
        for (params, named) in [
            (json!({"events": ["progres"]}), "tools_changed"),
            (json!({"events": "progress"}), "a list of progress"),
            (json!({"events": 1}), "`events`"),
            (json!({"progress": "yes"}), "`progress`"),
            (json!({"log_level": "loud"}), "emergency"),
        ] {
            let fault = read(params).unwrap_err();
            assert!(fault.contains(named), "{fault}");
        }
    }

    fn event(kind: EventKind, n: usize) -> Event {
        Event::new(kind, "books".into(), RawJson::from(&json!(n)))
    }

    fn shown(waiting: &Waiting) -> Vec<(EventKind, String)> {
        let events = waiting.events.iter();
        events
            .map(|event| (event.kind, format!("{:?}", event.params)))
            .collect()
    }

    #[test]
    fn the_newest_news_stands_where_it_happened_among_the_logs() {
        let mut waiting = Waiting::default();
        for (kind, n) in [
            (EventKind::Progress, 1),
            (EventKind::Log, 2),
            (EventKind::Log, 3),
            (EventKind::Progress, 4),
            (EventKind::Log, 5),
        ] {
            waiting.take(event(kind, n));
        }
        assert_eq!(waiting.dropped, 1);
        let expected = [
            (EventKind::Log, "2"),
            (EventKind::Log, "3"),
            (EventKind::Progress, "4"),
            (EventKind::Log, "5"),
        ];
        assert_eq!(
            shown(&waiting),
            expected.map(|(kind, n)| (kind, n.to_owned()))
        );
    }

    #[test]
    fn too_many_logs_cost_the_oldest_and_never_a_question() {
        let mut waiting = Waiting::default();
        waiting.take(event(EventKind::Elicitation, 0));
        (1..=MAX_WAITING + 1).for_each(|n| waiting.take(event(EventKind::Log, n)));
        assert_eq!((waiting.events.len(), waiting.dropped), (MAX_WAITING, 2));
        assert_eq!(waiting.events[0].kind, EventKind::Elicitation);
        assert_eq!(format!("{:?}", waiting.events[1].params), "3");
    }
}
