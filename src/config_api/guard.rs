//! Who may ask the config API over HTTP, and for whom.

use axum::http::{HeaderMap, StatusCode, header};

use super::jwks::Keys;
use super::jwt::{Claims, Rules};
use super::store::Store;
use super::tokens;
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::ServerSettings;

/// Said to whoever is refused, whatever the reason was.
const UNAUTHORIZED: &str = "the bearer token is missing, expired or not valid";
/// Said to whoever has not shown a token yet.
pub(super) const UNAVAILABLE: &str = "the store cannot be read";
const FORBIDDEN: &str = "this token does not speak for that user";

/// Looks at the bearer of every request.
pub(super) struct Guard {
    store: Store,
    keys: Keys,
    rules: Rules,
    admin: Option<(String, String)>,
}

/// Whoever was let in.
#[derive(Debug)]
pub(super) enum Principal {
    User(Box<Claims>),
    /// A program that speaks for any user.
    Service,
    /// May change things too; how the audit names them.
    Admin(String),
}

impl Principal {
    /// # Errors
    /// The same for a user who does not exist and one whose rows are none of the asker's business.
    pub(super) fn may_read(&self, user: Option<&str>) -> Result<(), Refusal> {
        match (self, user) {
            (Self::Service | Self::Admin(_), _) => Ok(()),
            (Self::User(claims), Some(user)) if claims.is_of(user) => Ok(()),
            (Self::User(_), _) => {
                tracing::info!(user, "a user's token was refused for another user");
                Err(Refusal(StatusCode::FORBIDDEN, FORBIDDEN.to_owned()))
            }
        }
    }
}

/// What is answered instead.
#[derive(Debug)]
pub(super) struct Refusal(pub StatusCode, pub String);

impl Guard {
    /// # Errors
    /// `config_invalid`, naming the setting.
    pub(super) async fn new(store: Store, settings: &ServerSettings) -> Result<Self, Failure> {
        let invalid = |message| Failure::new(ErrorCode::ConfigInvalid, message);
        let rules = Rules::of(settings);
        let keys = Keys::read(settings).await.map_err(invalid)?;
        if keys.are_none() && store.tokens().await?.is_empty() {
            tracing::warn!(
                "nobody can ask this server yet: set server.jwt_key or server.jwt_jwks for users' tokens, \
                 or make a service token (`mcp-client token add NAME`)"
            );
        }
        let admin = settings.jwt_admin.as_deref().map(|claim| {
            claim
                .split_once('=')
                .map(|(name, word)| (name.trim().to_owned(), word.trim().to_owned()))
                .ok_or_else(|| {
                    invalid("server.jwt_admin must be CLAIM=VALUE, as in role=admin".to_owned())
                })
        });
        Ok(Self {
            store,
            keys,
            rules,
            admin: admin.transpose()?,
        })
    }

    /// Reads the keys again, for whoever changed them.
    pub(super) async fn reload(&self) {
        if let Err(reason) = self.keys.read_again().await {
            tracing::error!("{reason}; going on with the keys at hand");
        }
    }

    /// # Errors
    /// 401; 503 while the database cannot be asked.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Result<Principal, Refusal> {
        let refused = || Refusal(StatusCode::UNAUTHORIZED, UNAUTHORIZED.to_owned());
        let token = bearer(headers).ok_or_else(refused)?;
        if token.starts_with(tokens::PREFIX) {
            let known = self.store.check_token(token).await;
            let known = known.map_err(|error| {
                tracing::warn!("the store cannot be read: {error}");
                Refusal(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE.to_owned())
            })?;
            return match known {
                Some(token) if token.is_admin => {
                    Ok(Principal::Admin(format!("token {}", token.name)))
                }
                Some(_) => Ok(Principal::Service),
                None => Err(refused()),
            };
        }
        let keys = self.keys.for_token(token).await;
        match self.rules.verify(token, &keys) {
            Ok(claims) if self.is_admin(&claims) => {
                Ok(Principal::Admin(format!("user {}", claims.user())))
            }
            Ok(claims) => Ok(Principal::User(Box::new(claims))),
            Err(reason) => {
                tracing::info!("a token was refused: {reason}");
                Err(refused())
            }
        }
    }

    fn is_admin(&self, claims: &Claims) -> bool {
        let admin = self.admin.as_ref();
        admin.is_some_and(|(claim, word)| claims.says(claim, word))
    }
}

/// The token of the only `Authorization` header there is.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
