//! Starts or reaches a server and settles which MCP it speaks.
//!
//! Two eras: *modern* (2026-07-28, `server/discover`, no handshake) and *legacy* (2024-11-05 to
//! 2025-11-25, `initialize`). An unknown server is probed with `server/discover`; anything but a
//! modern answer means legacy, and legacy starts afresh: a probed process may be confused by the
//! probe, or have died of it. The verdict is remembered per definition.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use rmcp::RoleClient;
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RunningService, serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::IntoTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::http::{self as mcp_http, Endpoint};
use super::process::{Process, Program};
use super::session::{Link, Session};
use super::stdio::StdioTransport;
use super::tap::Tap;
use super::wire::Answer;
use super::{Connect, ServerIdentity};
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::redact::Redactor;
use crate::model::resolve::{Fingerprint, Launch, Target};
use crate::model::secret::Secret;
use crate::model::settings::Settings;

const MODERN: &str = "2026-07-28";
/// What we offer in `initialize`, and every version we go on with.
const LEGACY: &str = "2025-11-25";
const LEGACY_VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", LEGACY];
/// JSON-RPC errors that only a modern server gives (MCP 2026-07-28, "Error Codes").
const MODERN_ERRORS: [i64; 3] = [-32022, -32021, -32020];
const UNSUPPORTED_VERSION: i64 = -32022;
/// Verdicts remembered; past that all are forgotten and found again.
const MAX_VERDICTS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Era {
    Modern,
    Legacy,
}

/// Opens connections for the whole process.
pub struct Connector {
    /// Made for the first server over HTTP: the system's certificates are many files.
    http: OnceCell<mcp_http::Client>,
    verdicts: Mutex<HashMap<Fingerprint, Era>>,
    base_env: Vec<(String, String)>,
    start_timeout: Duration,
    initialize_timeout: Duration,
    max_in_flight: usize,
    redactor: Redactor,
}

/// Why one try at one era did not work.
struct Refused {
    failure: Failure,
    /// The other era is not worth a try.
    is_final: bool,
}

impl Refused {
    /// Whether the server had answered and then did not take what ends the handshake.
    fn broke_off(&self) -> bool {
        self.failure.code == ErrorCode::SessionLost
    }
}

impl Connector {
    pub fn new(settings: &Settings, redactor: Redactor) -> Self {
        Self {
            http: OnceCell::new(),
            verdicts: Mutex::default(),
            base_env: settings.stdio.environment.clone(),
            start_timeout: settings.pool.start_timeout,
            initialize_timeout: settings.pool.initialize_timeout,
            max_in_flight: settings.pool.max_in_flight,
            redactor,
        }
    }

    /// # Errors
    /// `internal`, when it cannot be set up (no usable certificates, say).
    async fn http(&self) -> Result<mcp_http::Client, Failure> {
        let made = self.http.get_or_try_init(async || {
            let client = spawn_blocking(mcp_http::client).await;
            client.map_err(|error| error.to_string())?
        });
        made.await.cloned().map_err(|reason: String| {
            let text = format!("the HTTP client cannot be set up: {reason}");
            Failure::new(ErrorCode::Internal, text)
        })
    }

    fn verdict(&self, target: &Target) -> Option<Era> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.get(&target.definition_fingerprint).copied()
    }

    fn remember(&self, target: &Target, era: Option<Era>) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        if verdicts.len() >= MAX_VERDICTS {
            verdicts.clear();
        }
        match era {
            Some(era) => verdicts.insert(target.definition_fingerprint, era),
            None => verdicts.remove(&target.definition_fingerprint),
        };
    }

    async fn modern_or_legacy(
        &self,
        target: &Target,
        give_up: Instant,
    ) -> Result<Session, Refused> {
        match self.attempt(target, Era::Modern, give_up).await {
            Ok(session) => {
                self.remember(target, Some(Era::Modern));
                Ok(session)
            }
            Err(refused) if refused.is_final => Err(refused),
            Err(refused) => {
                let server = &target.server_name;
                tracing::debug!(%server, reason = %refused.failure, "not a modern server, trying initialize");
                let legacy = self.attempt(target, Era::Legacy, give_up).await;
                self.remember(target, legacy.is_ok().then_some(Era::Legacy));
                legacy
            }
        }
    }

    async fn attempt(
        &self,
        target: &Target,
        era: Era,
        give_up: Instant,
    ) -> Result<Session, Refused> {
        match &target.launch {
            Launch::Stdio {
                command,
                args,
                env,
                sandbox,
            } => {
                let program = Program {
                    command,
                    args,
                    env,
                    base_env: &self.base_env,
                    through_shim: true,
                    sandbox: *sandbox,
                };
                self.over_stdio(target, program, era, give_up).await
            }
            Launch::Http { url, headers } => {
                let first = self.over_http(target, url, headers, era, give_up).await;
                match first {
                    // It may have forgotten the session that it had just opened.
                    Err(refused) if refused.broke_off() => {
                        self.over_http(target, url, headers, era, give_up).await
                    }
                    outcome => outcome,
                }
            }
        }
    }

    async fn over_stdio(
        &self,
        target: &Target,
        program: Program<'_>,
        era: Era,
        give_up: Instant,
    ) -> Result<Session, Refused> {
        let (process, pipes) = Process::start(&program, self.redactor.clone())
            .map_err(|error| cannot_start(program.command, &error))?;
        let tap = Tap::new(target.server_name.clone(), target.key.scope.user().cloned());
        let transport = StdioTransport::new(pipes, tap.clone());
        let (outbox, alive) = (transport.outbox(), transport.alive());
        let stop = CancellationToken::new();
        let clock = self.stdio_clock(&process, alive, era, give_up);
        let served = tokio::select! {
            served = serve(transport, era, stop.clone()) => served.map_err(Some),
            () = clock => Err(None),
            () = tap.noise().faulted() => Err(None),
        };
        match served {
            Ok(running) => {
                let link = Link::Stdio {
                    process: process.clone(),
                    outbox,
                };
                let session = finish(target, running, tap, era, link, stop).await;
                session.map_err(|refused| Refused {
                    failure: process.explain(refused.failure),
                    ..refused
                })
            }
            Err(error) => {
                outbox.close();
                let ended = timeout(Duration::from_millis(100), process.exited())
                    .await
                    .ok();
                let refused = explain(&tap, era, error, ended.map(|status| status.to_string()));
                process.stop().await;
                Err(Refused {
                    failure: process.explain(refused.failure),
                    ..refused
                })
            }
        }
    }

    /// Ends when the server has had its time: counted from its first sign of life, for a cold start
    /// may take most of the start's own limit before that. A probe gets half of either.
    async fn stdio_clock(
        &self,
        process: &Process,
        mut output: watch::Receiver<bool>,
        era: Era,
        give_up: Instant,
    ) {
        let (silent, speaking) = match era {
            Era::Modern => (
                give_up - self.start_timeout / 2,
                self.initialize_timeout / 2,
            ),
            Era::Legacy => (give_up, self.initialize_timeout),
        };
        tokio::select! {
            () = sleep_until(silent) => return,
            () = process.first_words() => {}
            _ = output.wait_for(|alive| *alive) => {}
        }
        sleep_until(give_up.min(Instant::now() + speaking)).await;
    }

    async fn over_http(
        &self,
        target: &Target,
        url: &Secret,
        headers: &[(http::HeaderName, http::HeaderValue)],
        era: Era,
        give_up: Instant,
    ) -> Result<Session, Refused> {
        let tap = Tap::new(target.server_name.clone(), target.key.scope.user().cloned());
        let parsed = Url::parse(url.expose()).map_err(|_| Refused {
            failure: Failure::new(ErrorCode::ConfigInvalid, "its url cannot be read"),
            is_final: true,
        })?;
        let headers = HeaderMap::from_iter(headers.iter().cloned());
        let client = self.http().await.map_err(|failure| Refused {
            failure,
            is_final: true,
        })?;
        let endpoint = Endpoint::new(client, tap.clone(), parsed, headers);
        let config = StreamableHttpClientTransportConfig::with_uri(url.expose())
            .max_concurrent_requests(self.max_in_flight);
        let transport = StreamableHttpClientTransport::with_client(endpoint.clone(), config);
        let stop = CancellationToken::new();
        let speaking = match era {
            Era::Modern => self.initialize_timeout / 2,
            Era::Legacy => self.initialize_timeout,
        };
        let at = give_up.min(Instant::now() + speaking);
        let served = tokio::select! {
            served = serve(transport, era, stop.clone()) => served.map_err(Some),
            () = sleep_until(at) => Err(None),
            () = tap.noise().faulted() => Err(None),
        };
        match served {
            Ok(running) => finish(target, running, tap, era, Link::Http(endpoint), stop).await,
            Err(error) => Err(explain(&tap, era, error, None)),
        }
    }
}

impl Connect for Connector {
    type Session = Session;

    async fn connect(&self, target: Arc<Target>) -> Result<Session, Failure> {
        let started = Instant::now();
        let give_up = started + self.start_timeout;
        let outcome = match self.verdict(&target) {
            Some(Era::Legacy) => self.attempt(&target, Era::Legacy, give_up).await,
            Some(Era::Modern) | None => self.modern_or_legacy(&target, give_up).await,
        };
        outcome.map_err(|refused| {
            // The verdict may no longer hold; a server that merely crashed or hangs says nothing of it.
            if refused.failure.code == ErrorCode::ServerError {
                self.remember(&target, None);
            }
            let mut failure = refused.failure;
            if failure.code == ErrorCode::ServerError {
                failure.code = ErrorCode::ConnectFailed;
            }
            failure.message = format!("server `{}`: {}", target.server_name, failure.message);
            failure
                .server(&target.server_name)
                .phase(Phase::Initialize)
                .elapsed(started.elapsed())
        })
    }
}

/// rmcp's negotiation. We offer no capabilities: nobody is there to answer a server's questions.
async fn serve<T, E, A>(
    transport: T,
    era: Era,
    stop: CancellationToken,
) -> Result<RunningService<RoleClient, ClientConfig>, ClientInitializeError>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let identity = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let (version, mode) = match era {
        Era::Modern => {
            let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
            (
                ProtocolVersion::V_2026_07_28,
                ClientLifecycleMode::Discover { preferred_versions },
            )
        }
        Era::Legacy => (
            ProtocolVersion::V_2025_11_25,
            ClientLifecycleMode::Initialize,
        ),
    };
    let config =
        ClientConfig::new(ClientCapabilities::default(), identity).with_protocol_version(version);
    serve_client_with_lifecycle_and_ct(config, transport, mode, stop).await
}

async fn finish(
    target: &Target,
    running: RunningService<RoleClient, ClientConfig>,
    tap: Arc<Tap>,
    era: Era,
    link: Link,
    stop: CancellationToken,
) -> Result<Session, Refused> {
    let identity = identity(&tap, era);
    let version = identity.protocol_version.clone();
    let session = Session::start(
        target.server_name.clone(),
        running,
        tap,
        identity,
        link,
        stop,
    );
    if version == MODERN || LEGACY_VERSIONS.contains(&version.as_str()) {
        return Ok(session);
    }
    super::Connected::close(&session).await;
    let text = format!(
        "it speaks protocol version \"{version}\"; this client speaks {} and {MODERN}",
        LEGACY_VERSIONS.join(", ")
    );
    Err(Refused {
        failure: Failure::new(ErrorCode::ConnectFailed, text),
        is_final: true,
    })
}

/// What the server said of itself in its own words.
fn identity(tap: &Tap, era: Era) -> ServerIdentity {
    let said = match tap.handshake_answer() {
        Some(Answer::Result(raw)) => raw.read().unwrap_or(Value::Null),
        _ => Value::Null,
    };
    let member = |name: &str| said.get(name).cloned();
    let (protocol_version, server_info) = match era {
        Era::Modern => {
            let meta = member("_meta").unwrap_or_default();
            (
                MODERN.to_owned(),
                meta.get("io.modelcontextprotocol/serverInfo").cloned(),
            )
        }
        Era::Legacy => {
            let version = member("protocolVersion");
            let version = version.as_ref().and_then(Value::as_str).unwrap_or_default();
            (version.to_owned(), member("serverInfo"))
        }
    };
    ServerIdentity {
        protocol_version,
        server_info: server_info.unwrap_or_default(),
        capabilities: member("capabilities").unwrap_or_default(),
    }
}

fn cannot_start(command: &str, error: &std::io::Error) -> Refused {
    let text = match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("its command `{command}` was not found; install it, or give its full path")
        }
        _ => format!("its command `{command}` cannot be started: {error}"),
    };
    let failure = Failure::new(ErrorCode::ConnectFailed, text).phase(Phase::Start);
    Refused {
        failure,
        is_final: true,
    }
}

/// Says why a negotiation failed (`None`: it took too long), and whether the other era is ruled out.
fn explain(
    tap: &Tap,
    era: Era,
    error: Option<ClientInitializeError>,
    ended: Option<String>,
) -> Refused {
    let method = match era {
        Era::Modern => "server/discover",
        Era::Legacy => "initialize",
    };
    if let Some(failure) = tap.noise().fault() {
        return Refused {
            failure,
            is_final: true,
        };
    }
    let (failure, is_final) = match (tap.handshake_answer(), error) {
        (Some(Answer::Failed(failure)), _) => {
            let is_final = era == Era::Legacy || is_no_verdict(&failure);
            (failure, is_final)
        }
        (Some(Answer::Error(raw)), _) => {
            let said: Value = raw.read().unwrap_or_default();
            (
                refusal(method, &said),
                era == Era::Modern && rules_out_legacy(&said),
            )
        }
        (Some(Answer::Broken(reason)), _) => {
            let text = format!("its answer to `{method}` cannot be used: {reason}");
            (Failure::new(ErrorCode::ProtocolError, text), false)
        }
        (_, None) => {
            let text = format!("it did not answer `{method}` in time");
            (Failure::new(ErrorCode::ConnectTimeout, text), false)
        }
        (_, Some(_)) if ended.is_some() => {
            let text = format!(
                "it ended ({}) before answering `{method}`",
                ended.unwrap_or_default()
            );
            (Failure::new(ErrorCode::ConnectFailed, text), false)
        }
        (Some(Answer::Result(_)), Some(ClientInitializeError::TransportError { .. })) => {
            let text = format!("it answered `{method}`, and then lost or refused the session");
            (Failure::new(ErrorCode::SessionLost, text), false)
        }
        (Some(_), Some(_)) => {
            let text = format!("its answer to `{method}` is not one of MCP");
            (Failure::new(ErrorCode::ProtocolError, text), false)
        }
        (None, Some(error)) => {
            let text = format!(
                "the connection was lost during `{method}`: {}",
                brief(&error)
            );
            (Failure::new(ErrorCode::ConnectFailed, text), false)
        }
    };
    Refused { failure, is_final }
}

/// Failures of HTTP that say nothing of the era: the server was not reached, or not entered.
fn is_no_verdict(failure: &Failure) -> bool {
    matches!(
        failure.code,
        ErrorCode::ConnectFailed | ErrorCode::AuthorizationRequired
    )
}

fn refusal(method: &str, said: &Value) -> Failure {
    let message = said
        .get("message")
        .and_then(Value::as_str)
        .or(said.as_str())
        .unwrap_or("no reason given");
    let failure = Failure::new(
        ErrorCode::ServerError,
        format!("it refused `{method}`: {message}"),
    );
    match said.get("code") {
        Some(code) => failure.with("code", code.clone()),
        None => failure,
    }
}

/// A modern error is a modern server; but one that lists a legacy version among those it supports
/// can be had by `initialize`.
fn rules_out_legacy(said: &Value) -> bool {
    let code = said.get("code").and_then(Value::as_i64).unwrap_or_default();
    let supported = said.pointer("/data/supported").and_then(Value::as_array);
    let offers_legacy = supported.is_some_and(|versions| {
        versions
            .iter()
            .filter_map(Value::as_str)
            .any(|version| LEGACY_VERSIONS.contains(&version))
    });
    MODERN_ERRORS.contains(&code) && !(code == UNSUPPORTED_VERSION && offers_legacy)
}

/// rmcp's texts print whole messages; the kind is enough here.
fn brief(error: &ClientInitializeError) -> &'static str {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection",
        ClientInitializeError::TransportError { .. } => "the message could not be sent",
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "no protocol version in common"
        }
        _ => "an unexpected message came",
    }
}

#[cfg(test)]
mod tests;
