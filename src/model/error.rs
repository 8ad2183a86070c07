//! What can go wrong, as the host sees it: a code for programs, a sentence for people, details.

use std::time::Duration;

use serde_json::{Map, Value};

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($variant,)* }

        impl $name {
            /// Every value, in the order of the documentation.
            #[allow(dead_code)] // Not every list of words is walked.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// The closed list of `error_code`s (docs/line-protocol.md).
    ErrorCode {
        InvalidJson = "invalid_json",
        InvalidCommand = "invalid_command",
        LineTooLong = "line_too_long",
        UnknownAction = "unknown_action",
        InvalidParams = "invalid_params",
        ServerNotFound = "server_not_found",
        ServerDisabled = "server_disabled",
        ToolNotFound = "tool_not_found",
        CredentialsRequired = "credentials_required",
        CredentialFieldMissing = "credential_field_missing",
        CredentialInvalid = "credential_invalid",
        AuthorizationRequired = "authorization_required",
        ConfigUnavailable = "config_unavailable",
        ConfigUnauthorized = "config_unauthorized",
        ConfigInvalid = "config_invalid",
        ConnectFailed = "connect_failed",
        ConnectTimeout = "connect_timeout",
        Starting = "starting",
        ServerCrashed = "server_crashed",
        SessionLost = "session_lost",
        ProtocolError = "protocol_error",
        ServerError = "server_error",
        CallTimeout = "call_timeout",
        Cancelled = "cancelled",
        Overloaded = "overloaded",
        CircuitOpen = "circuit_open",
        ResultTooLarge = "result_too_large",
        Unsupported = "unsupported",
        ShuttingDown = "shutting_down",
        Internal = "internal",
    }
}

words! {
    /// How far a command had come when it failed.
    Phase {
        Resolve = "resolve",
        Credentials = "credentials",
        Start = "start",
        Initialize = "initialize",
        List = "list",
        Call = "call",
    }
}

words! {
    /// What is known of a call that failed: may the tool have run?
    Outcome {
        NotSent = "not_sent",
        Unknown = "unknown",
    }
}

/// The failure of a command: becomes an answer line with `success` false.
///
/// Cheap to clone, so that one failure can answer every command it struck.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub code: ErrorCode,
    /// For a person: what happened, to whom, and what to do. Never empty.
    pub message: String,
    /// For a program; see docs/line-protocol.md for the members.
    pub details: Map<String, Value>,
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Map::new(),
        }
    }

    /// Adds a member to the details, unless a lower floor has set it already.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        if !self.details.contains_key(name) {
            self.details.insert(name.to_owned(), value.into());
        }
        self
    }

    pub fn server(self, name: &str) -> Self {
        self.with("server_name", name)
    }

    pub fn phase(self, phase: Phase) -> Self {
        self.with("phase", phase.as_str())
    }

    pub fn outcome(self, outcome: Outcome) -> Self {
        self.with("outcome", outcome.as_str())
    }

    pub fn elapsed(self, elapsed: Duration) -> Self {
        self.with("elapsed_ms", millis(elapsed))
    }

    pub fn retry_after(self, delay: Duration) -> Self {
        self.with("retry_after_ms", millis(delay))
    }

    /// Whether the server surely never saw the call.
    pub fn is_not_sent(&self) -> bool {
        self.details.get("outcome").and_then(Value::as_str) == Some(Outcome::NotSent.as_str())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Failure {}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
