//! Whose connection a command uses, and with which values it is started (docs/config-api.md).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use chacha20poly1305::aead::Generate;
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::caller::{Caller, ServerId, SessionId, UserId};
use super::definition::{Definition, Isolation, Template, TransportType};
use super::error::{ErrorCode, Failure, Phase};
use super::secret::{CredentialSource, Credentials, Secret};
use super::template::{self, Fields, Flaw, Place, expand};

/// A definition with the credentials that its user has for it.
#[derive(Debug)]
pub struct ServerEntry {
    pub definition: Definition,
    pub user_credentials: Option<Credentials>,
    pub default_credentials: Option<Credentials>,
}

/// Who may use a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Shared,
    User(UserId),
    Session(UserId, SessionId),
}

impl Scope {
    pub fn user(&self) -> Option<&UserId> {
        match self {
            Self::Shared => None,
            Self::User(user) | Self::Session(user, _) => Some(user),
        }
    }
}

/// A keyed hash of everything a connection is started with; the key is random per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

/// The identity of a pooled connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    pub server: ServerId,
    pub scope: Scope,
    pub fingerprint: Fingerprint,
}

/// A definition resolved for one caller: all that is needed to connect.
#[derive(Debug)]
pub struct Target {
    pub server_name: Arc<str>,
    pub key: PoolKey,
    pub launch: Launch,
    pub credential_source: Option<CredentialSource>,
    /// What it was resolved with. Held so that the redactor knows these values for as long as anything
    /// runs with them, also when others have come into force.
    #[expect(dead_code, reason = "held, not read")]
    pub credentials: Option<Credentials>,
    /// Identifies the definition whoever uses it: era verdicts are remembered by it.
    pub definition_fingerprint: Fingerprint,
}

/// Values ready for use, placeholders replaced.
#[derive(Debug)]
pub enum Launch {
    Stdio {
        command: String,
        args: Vec<Secret>,
        env: BTreeMap<String, Secret>,
        /// In a Landlock domain of its own, where the kernel has it.
        sandbox: bool,
    },
    Http {
        url: Secret,
        headers: Vec<(http::HeaderName, http::HeaderValue)>,
    },
}

/// Decides whose connection `caller` gets to the server, and fills in its placeholders.
///
/// # Errors
/// `config_invalid`, `credentials_required`, `credential_field_missing`, `credential_invalid`,
/// `invalid_params` (a user-isolated server without a user), `unsupported`, with `server_name` and `phase`.
/// Whether the server is enabled is not asked here.
pub fn resolve(entry: &ServerEntry, caller: &Caller) -> Result<Target, Failure> {
    let definition = &entry.definition;
    target(entry, caller).map_err(|failure| failure.server(&definition.name).phase(Phase::Resolve))
}

fn target(entry: &ServerEntry, caller: &Caller) -> Result<Target, Failure> {
    let definition = &entry.definition;
    let template = match &definition.template {
        Ok(template) => template,
        Err(fault) => return Err(config_invalid(definition, &fault.field, &fault.reason)),
    };
    if definition.transport_type == TransportType::Sse {
        return Err(Failure::new(
            ErrorCode::Unsupported,
            format!(
                "server `{}` uses the old HTTP+SSE transport, which is not supported yet: set transport_type to http if the server also speaks Streamable HTTP",
                definition.name
            ),
        ));
    }
    let scope = scope(entry, caller)?;
    let (credentials, credential_source) = credentials_in_force(entry, caller)?.unzip();
    let launch = launch(definition, template, credentials)?;
    let fingerprint = fingerprint_of_launch(&launch, credentials);
    Ok(Target {
        server_name: definition.name.clone(),
        key: PoolKey {
            server: definition.id.clone(),
            scope,
            fingerprint,
        },
        launch,
        credential_source,
        credentials: credentials.cloned(),
        definition_fingerprint: fingerprint_of_definition(definition, template),
    })
}

/// A connection is shared only where the server is public, the user brings nothing of their own and
/// the definition does not ask for less sharing.
fn scope(entry: &ServerEntry, caller: &Caller) -> Result<Scope, Failure> {
    let definition = &entry.definition;
    let isolation = definition.isolation.unwrap_or(Isolation::Shared);
    let own = own_credentials(entry, caller).is_some();
    if definition.is_public && !own && isolation == Isolation::Shared {
        return Ok(Scope::Shared);
    }
    let Some(user) = caller.user.clone() else {
        return Err(Failure::new(
            ErrorCode::InvalidParams,
            format!(
                "server `{}` keeps its users apart: the command must name one in user.userId",
                definition.name
            ),
        ));
    };
    match (isolation, &caller.session) {
        (Isolation::Session, Some(session)) => Ok(Scope::Session(user, session.clone())),
        _ => Ok(Scope::User(user)),
    }
}

fn own_credentials<'a>(entry: &'a ServerEntry, caller: &Caller) -> Option<&'a Credentials> {
    caller.user.as_ref().and(entry.user_credentials.as_ref())
}

/// The credentials that `caller` uses with the server, and whose they are.
///
/// # Errors
/// `credentials_required`, with the form in the details.
pub fn credentials_in_force<'a>(
    entry: &'a ServerEntry,
    caller: &Caller,
) -> Result<Option<(&'a Credentials, CredentialSource)>, Failure> {
    if let Some(own) = own_credentials(entry, caller) {
        return Ok(Some((own, CredentialSource::User)));
    }
    if let Some(default) = &entry.default_credentials {
        return Ok(Some((default, CredentialSource::Default)));
    }
    let definition = &entry.definition;
    if !definition.requires_credentials {
        return Ok(None);
    }
    Err(Failure::new(
        ErrorCode::CredentialsRequired,
        format!(
            "server `{}` needs credentials, and there are none for {}: details.credential_fields holds the form to fill in",
            definition.name,
            match &caller.user {
                Some(user) => format!("user {user}"),
                None => "everybody".to_owned(),
            }
        ),
    )
    .phase(Phase::Credentials)
    .with("credential_fields", definition.credential_fields.clone()))
}

fn launch(
    definition: &Definition,
    template: &Template,
    credentials: Option<&Credentials>,
) -> Result<Launch, Failure> {
    let fields = |field: &str| {
        credentials
            .and_then(|all| all.get(field))
            .map(Secret::expose)
    };
    let faulty = |column: &str| {
        let column = column.to_owned();
        move |flaw| flaw_failure(definition, &column, flaw)
    };
    match template {
        Template::Stdio { command, args, env } => {
            if args.iter().any(|arg| arg.contains("${user.")) {
                warn_once(definition, SECRET_IN_ARGS);
            }
            Ok(Launch::Stdio {
                command: command.clone(),
                args: args
                    .iter()
                    .map(|arg| expand(arg, Place::Arg, &fields).map(Secret::new))
                    .collect::<Result<_, _>>()
                    .map_err(faulty("args"))?,
                env: expand_env(env, &fields).map_err(faulty("env_template"))?,
                sandbox: definition.sandbox,
            })
        }
        Template::Http { url, headers, env } => {
            expand_env(env, &fields).map_err(faulty("env_template"))?;
            let mut list =
                template::expand_headers(headers, env, &fields).map_err(faulty("headers"))?;
            add_automatic_headers(&mut list, credentials).map_err(faulty("headers"))?;
            if is_open_to_the_network(url, headers, list.len() > headers.len()) {
                warn_once(definition, OPEN_TO_THE_NETWORK);
            }
            Ok(Launch::Http {
                url: template::expand_url(url, &fields)
                    .map(Secret::new)
                    .map_err(faulty("url"))?,
                headers: list,
            })
        }
    }
}

fn expand_env(
    env: &BTreeMap<String, String>,
    fields: &Fields<'_>,
) -> Result<BTreeMap<String, Secret>, Flaw> {
    env.iter()
        .map(|(name, value)| {
            let value = expand(value, Place::Env, fields)?;
            Ok((name.clone(), Secret::new(value)))
        })
        .collect()
}

/// Well-known fields become headers where the definition does not set those itself.
fn add_automatic_headers(
    headers: &mut Vec<(HeaderName, HeaderValue)>,
    credentials: Option<&Credentials>,
) -> Result<(), Flaw> {
    let Some(credentials) = credentials else {
        return Ok(());
    };
    let filled = |field: &'static str| {
        let value = credentials.get(field).map(Secret::expose)?;
        (!value.is_empty()).then_some((field, value))
    };
    let automatic = [
        (
            http::header::AUTHORIZATION,
            "Bearer ",
            filled("api_key").or_else(|| filled("token")),
        ),
        (HeaderName::from_static("x-api-key"), "", filled("API_KEY")),
    ];
    for (name, prefix, found) in automatic {
        let Some((field, value)) = found else {
            continue;
        };
        if headers.iter().any(|(set, _)| *set == name) {
            continue;
        }
        if let Some(reason) = template::header_reason(value) {
            return Err(Flaw::Refused {
                field: field.to_owned(),
                reason,
            });
        }
        let text = Zeroizing::new(format!("{prefix}{value}"));
        headers.push((name, template::header_value(&text)?));
    }
    Ok(())
}

/// Whether credentials cross a network in the open.
fn is_open_to_the_network(url: &str, headers: &BTreeMap<String, String>, automatic: bool) -> bool {
    let carries = automatic
        || headers
            .iter()
            .any(|(name, value)| value.contains("${") || template::is_credential_header(name));
    carries && template::is_plain_and_remote(url)
}

fn flaw_failure(definition: &Definition, column: &str, flaw: Flaw) -> Failure {
    let name = &definition.name;
    match flaw {
        Flaw::Template(reason) => config_invalid(definition, column, &reason),
        Flaw::Missing(field) => Failure::new(
            ErrorCode::CredentialFieldMissing,
            format!(
                "server `{name}` needs the credential field `{field}` for its {column}, and the credentials in force have none"
            ),
        )
        .phase(Phase::Credentials)
        .with("field", field)
        .with("credential_fields", definition.credential_fields.clone()),
        Flaw::Refused { field, reason } => Failure::new(
            ErrorCode::CredentialInvalid,
            format!(
                "the credential field `{field}` cannot be used in the {column} of server `{name}`: its value {reason}"
            ),
        )
        .phase(Phase::Credentials)
        .with("field", field),
    }
}

fn config_invalid(definition: &Definition, field: &str, reason: &str) -> Failure {
    Failure::new(
        ErrorCode::ConfigInvalid,
        format!(
            "server `{}` cannot be used as it is defined: {field} {reason}",
            definition.name
        ),
    )
    .with("field", field)
}

const SECRET_IN_ARGS: &str = "args hold a credential, which everybody who can list processes sees: pass it in env_template instead";
const OPEN_TO_THE_NETWORK: &str = "credentials go over http:// to another machine, where everybody on the way can read them: use https://";

/// Once for each server and process.
fn warn_once(definition: &Definition, warning: &'static str) {
    static WARNED: LazyLock<Mutex<BTreeSet<(ServerId, &str)>>> = LazyLock::new(Mutex::default);
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.insert((definition.id.clone(), warning)) {
        tracing::warn!(server = %definition.name, "{warning}");
    }
}

/// A hash whose parts cannot run into each other.
struct Hash(Sha256);

impl Hash {
    fn keyed() -> Self {
        static KEY: LazyLock<[u8; 32]> = LazyLock::new(Generate::generate);
        Self(Sha256::new_with_prefix(*KEY))
    }

    fn part(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    fn map<'a>(&mut self, map: impl ExactSizeIterator<Item = (&'a str, &'a [u8])>) -> &mut Self {
        self.part(map.len().to_le_bytes());
        for (name, value) in map {
            self.part(name).part(value);
        }
        self
    }

    fn finish(self) -> Fingerprint {
        let mut short = [0; 16];
        short.copy_from_slice(&self.0.finalize()[..16]);
        Fingerprint(short)
    }
}

fn fingerprint_of_launch(launch: &Launch, credentials: Option<&Credentials>) -> Fingerprint {
    let mut hash = Hash::keyed();
    match launch {
        Launch::Stdio {
            command,
            args,
            env,
            sandbox,
        } => {
            hash.part("stdio")
                .part([u8::from(*sandbox)])
                .part(command)
                .part(args.len().to_le_bytes());
            for arg in args {
                hash.part(arg.expose());
            }
            hash.map(
                env.iter()
                    .map(|(name, value)| (name.as_str(), value.expose().as_bytes())),
            );
        }
        Launch::Http { url, headers } => {
            hash.part("http").part(url.expose());
            hash.map(
                headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_bytes())),
            );
        }
    }
    if let Some(credentials) = credentials {
        let fields = credentials.0.iter();
        hash.map(fields.map(|(name, value)| (name.as_str(), value.expose().as_bytes())));
    }
    hash.finish()
}

fn fingerprint_of_definition(definition: &Definition, template: &Template) -> Fingerprint {
    let mut hash = Hash::keyed();
    hash.part(definition.id.as_str())
        .part(definition.transport_type.as_str());
    let (main, list, env) = match template {
        Template::Stdio { command, args, env } => {
            hash.part(args.len().to_le_bytes());
            for arg in args {
                hash.part(arg);
            }
            (command, None, env)
        }
        Template::Http { url, headers, env } => (url, Some(headers), env),
    };
    hash.part(main);
    for map in list.into_iter().chain([env]) {
        hash.map(
            map.iter()
                .map(|(name, value)| (name.as_str(), value.as_bytes())),
        );
    }
    hash.finish()
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
