//! Floor 1: the internal API `/internal/mcp/config` over the store.

mod admin;
mod audit;
mod credentials;
mod database;
mod edit;
mod files;
mod guard;
mod inspect;
mod jwks;
mod jwt;
mod keyring;
mod location;
mod rotate;
mod schema;
mod serve;
mod servers;
mod store;
mod tokens;
mod tools;
mod vault;
mod wal;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{self, FromRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tower::ServiceExt;

pub use admin::{Admin, Holding, Remote, Wanted};
pub use credentials::{DELETE, LIST, SET};
pub use edit::Owner;
pub use inspect::{Inspection, inspect};
pub use rotate::{KeyUse, new_key};
pub use serve::ConfigServer;
pub use servers::check_server;
pub use store::{ServerRow, Store};
pub use tools::{GET_TOOLS, PUT_TOOLS};
pub use wal::Mark;

use guard::{Guard, Refusal};
use store::{Rows, SealedRow};

/// Where the API answers.
pub const PATH: &str = "/internal/mcp/config";

/// What the routes work on.
#[derive(Clone)]
struct Api {
    store: Store,
    /// `None`: whoever can call the API in this process may read everything.
    guard: Option<Arc<Guard>>,
}

fn routes(api: Api) -> Router {
    Router::new()
        .route(PATH, post(config))
        .merge(credentials::routes())
        .merge(tools::routes())
        .with_state(api)
}

/// The API called in process: no port is opened.
pub struct InProcess(Router);

impl InProcess {
    pub fn new(store: Store) -> Self {
        Self(routes(Api { store, guard: None }))
    }

    /// The status and the body of the answer for `user`.
    pub async fn post(&self, user: Option<&str>) -> Result<(u16, Bytes), String> {
        let body = serde_json::json!({ "user_id": user }).to_string();
        self.ask(PATH, body).await
    }

    /// The status and the body of a route's answer.
    pub async fn ask(&self, route: &str, body: String) -> Result<(u16, Bytes), String> {
        let request = axum::http::Request::post(route)
            .body(Body::from(body))
            .map_err(|error| error.to_string())?;
        let answer = match self.0.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
        body.map(|body| (status, body))
            .map_err(|error| error.to_string())
    }
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    user_id: Option<String>,
}

#[derive(Serialize)]
struct Envelope<T> {
    code: u16,
    message: String,
    data: T,
    timestamp: u64,
}

#[derive(Serialize)]
struct Tables {
    servers: Vec<ServerRow>,
    default_credentials: Vec<CredentialRow>,
    user_credentials: Vec<CredentialRow>,
}

#[derive(Serialize)]
struct CredentialRow {
    id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_id: String,
    mcp_server_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<Box<RawValue>>,
    is_enabled: bool,
    /// Why there are none to show; reads after "credentials ".
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

async fn config(State(api): State<Api>, question: extract::Request) -> Response {
    match answer_for(&api, question).await {
        Ok(response) => response,
        Err(Refusal(status, message)) => refuse(status, message),
    }
}

/// Who asks is looked at first: of others nothing is read, and they are not told what they did wrong.
async fn answer_for(api: &Api, question: extract::Request) -> Result<Response, Refusal> {
    let principal = match &api.guard {
        Some(guard) => Some(guard.admit(question.headers()).await?),
        None => None,
    };
    let headers = question.headers().clone();
    let body = Bytes::from_request(question, &()).await;
    let body = body.map_err(|error| Refusal(error.status(), error.body_text()))?;
    let request: Request = serde_json::from_slice(&body)
        .map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.to_string()))?;
    let user = request.user_id.filter(|user| !user.is_empty());
    if let Some(principal) = principal {
        principal.may_read(user.as_deref())?;
    }
    let rows = api.store.rows_for(user.as_deref()).await;
    let rows = rows.map_err(|failure| Refusal(StatusCode::SERVICE_UNAVAILABLE, failure.message))?;
    if api.guard.is_none() {
        let data = show(&api.store, rows);
        return Ok(answer(StatusCode::OK, "success".to_owned(), data));
    }
    let tag = api.store.etag(user.as_deref(), &rows);
    let is_at_hand = is_at_hand(&headers, &tag);
    tracing::debug!(user, unchanged = is_at_hand, "answered");
    let mut response = match is_at_hand {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer(StatusCode::OK, "success".to_owned(), show(&api.store, rows)),
    };
    for (name, value) in [
        (header::ETAG, tag.as_str()),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

/// Whether the asker has the answer of this tag already. What stands between us may have made it weak.
fn is_at_hand(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut tags = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    tags.any(|one| one.trim().trim_start_matches("W/") == tag)
}

fn show(store: &Store, rows: Rows) -> Tables {
    let credentials =
        |rows: Vec<SealedRow>| rows.into_iter().map(|row| unsealed(store, row)).collect();
    Tables {
        servers: rows.servers,
        default_credentials: credentials(rows.default_credentials),
        user_credentials: credentials(rows.user_credentials),
    }
}

fn unsealed(store: &Store, row: SealedRow) -> CredentialRow {
    let (credentials, fault) = match readable(store, &row) {
        Ok(credentials) => (credentials, None),
        Err(reason) => (None, Some(reason)),
    };
    CredentialRow {
        id: row.id,
        user_id: row.user_id,
        mcp_server_id: row.mcp_server_id,
        credentials,
        is_enabled: row.is_enabled,
        fault,
    }
}

fn readable(store: &Store, row: &SealedRow) -> Result<Option<Box<RawValue>>, String> {
    let plain = store.unseal(row)?;
    if plain.expose().trim().is_empty() {
        return Ok(None);
    }
    let raw = serde_json::from_str(plain.expose());
    raw.map(Some).map_err(|_| "are not JSON".to_owned())
}

fn refuse(status: StatusCode, message: String) -> Response {
    answer(status, message, serde_json::Value::Null)
}

fn answer(status: StatusCode, message: String, data: impl Serialize) -> Response {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let envelope = Envelope {
        code: status.as_u16(),
        message,
        data,
        timestamp: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
    };
    match serde_json::to_vec(&envelope) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod databases_tests;
#[cfg(test)]
pub(crate) use store::tests::open_in;
