//! Lines a command asked for beside its answer.

use std::sync::Arc;

use super::error::words;
use super::json::RawJson;

words! {
    /// What an event can be about (docs/line-protocol.md, "Events").
    EventKind {
        Progress = "progress",
        Log = "log",
        ToolsChanged = "tools_changed",
        ResourcesChanged = "resources_changed",
        PromptsChanged = "prompts_changed",
        ResourceUpdated = "resource_updated",
        ServerStatus = "server_status",
        Elicitation = "elicitation",
        Sampling = "sampling",
        Roots = "roots",
        AuthRequired = "auth_required",
    }
}

words! {
    /// How grave a server's log message is, from the least on (RFC 5424, as MCP takes it).
    LogLevel {
        Debug = "debug",
        Info = "info",
        Notice = "notice",
        Warning = "warning",
        Error = "error",
        Critical = "critical",
        Alert = "alert",
        Emergency = "emergency",
    }
}

impl EventKind {
    /// The kind that `word` names on the wire.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }

    /// Whether the newest event makes an older one, about the same thing, worthless.
    fn is_superseded(self) -> bool {
        match self {
            Self::Progress
            | Self::ToolsChanged
            | Self::ResourcesChanged
            | Self::PromptsChanged
            | Self::ResourceUpdated
            | Self::ServerStatus => true,
            Self::Log | Self::Elicitation | Self::Sampling | Self::Roots | Self::AuthRequired => {
                false
            }
        }
    }

    /// Whether the host has to do something: such an event is never left out.
    pub fn is_question(self) -> bool {
        matches!(
            self,
            Self::Elicitation | Self::Sampling | Self::Roots | Self::AuthRequired
        )
    }
}

impl LogLevel {
    /// The level that `word` names on the wire.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|level| level.as_str() == word)
    }
}

/// What a command wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// One bit a kind.
    kinds: u16,
    /// The least grave log messages wanted.
    log_level: LogLevel,
}

impl Default for Interest {
    /// Nothing.
    fn default() -> Self {
        Self {
            kinds: 0,
            log_level: LogLevel::Info,
        }
    }
}

impl Interest {
    /// Every kind there is.
    pub fn all() -> Self {
        EventKind::ALL
            .iter()
            .fold(Self::default(), |all, kind| all.with(*kind))
    }

    pub fn with(self, kind: EventKind) -> Self {
        Self {
            kinds: self.kinds | 1 << kind as u16,
            ..self
        }
    }

    /// The same, with log messages from this level on.
    pub fn with_logs(self, log_level: LogLevel) -> Self {
        Self {
            log_level,
            ..self.with(EventKind::Log)
        }
    }

    pub fn has(self, kind: EventKind) -> bool {
        self.kinds & (1 << kind as u16) != 0
    }

    pub fn is_empty(self) -> bool {
        self.kinds == 0
    }

    /// The least grave log messages wanted, if any are.
    pub fn logs(self) -> Option<LogLevel> {
        self.has(EventKind::Log).then_some(self.log_level)
    }
}

/// Something that happened on the way to an answer.
#[derive(Clone, Debug)]
pub struct Event {
    pub kind: EventKind,
    pub server_name: Arc<str>,
    /// What it is about within its server: the URI of a resource.
    pub about: Option<Arc<str>>,
    /// What to name in `respond`, where the host is asked for an answer.
    pub request_id: Option<Arc<str>>,
    /// What the server sent, untouched, where it comes from the server.
    pub params: RawJson,
}

impl Event {
    pub fn new(kind: EventKind, server_name: Arc<str>, params: RawJson) -> Self {
        Self {
            kind,
            server_name,
            about: None,
            request_id: None,
            params,
        }
    }

    /// Whether nobody who has `newer` needs this one.
    pub fn is_superseded_by(&self, newer: &Self) -> bool {
        self.kind == newer.kind
            && self.kind.is_superseded()
            && self.server_name == newer.server_name
            && self.about == newer.about
    }
}

/// Takes a command's events to the host. May merge and drop them under pressure, never blocks.
pub trait TakeEvent: Send + Sync {
    /// What the command wants to hear of; other events need not be made.
    fn interest(&self) -> Interest;

    fn take(&self, event: Event);
}

/// Wants everything, in tests.
#[cfg(test)]
impl<F: Fn(Event) + Send + Sync> TakeEvent for F {
    fn interest(&self) -> Interest {
        Interest::all()
    }

    fn take(&self, event: Event) {
        self(event);
    }
}

/// A sink shared by all that may have something to tell.
pub type EventSink = Arc<dyn TakeEvent>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interest_holds_the_kinds_it_was_made_of() {
        for &kind in EventKind::ALL {
            let interest = Interest::default().with(kind);
            assert!(interest.has(kind) && Interest::all().has(kind));
            assert_eq!(EventKind::named(kind.as_str()), Some(kind));
            for &other in EventKind::ALL {
                assert_eq!(interest.has(other), kind == other);
            }
        }
        assert!(Interest::default().is_empty());
    }

    #[test]
    fn logs_are_wanted_only_where_they_were_asked_for() {
        let warnings = Interest::default().with_logs(LogLevel::Warning);
        assert_eq!(warnings.logs(), Some(LogLevel::Warning));
        let progress = Interest::default().with(EventKind::Progress);
        assert_eq!(progress.logs(), None);
        assert!(LogLevel::Debug < LogLevel::Emergency);
    }

    #[test]
    fn only_the_same_news_of_the_same_thing_is_superseded() {
        let event = |kind, about: &str| Event {
            about: Some(about.into()),
            ..Event::new(
                kind,
                "books".into(),
                RawJson::from(&serde_json::Value::Null),
            )
        };
        let updated = event(EventKind::ResourceUpdated, "a");
        assert!(updated.is_superseded_by(&event(EventKind::ResourceUpdated, "a")));
        assert!(!updated.is_superseded_by(&event(EventKind::ResourceUpdated, "b")));
        assert!(!updated.is_superseded_by(&event(EventKind::ResourcesChanged, "a")));
        let asked = event(EventKind::Elicitation, "a");
        assert!(!asked.is_superseded_by(&asked.clone()));
    }
}
