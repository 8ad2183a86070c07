//! Users' own credentials over the API: which there are, set, delete. Values go in and never out.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::database::sql;
use super::edit::{Owner, failed};
use super::guard::Refusal;
use super::store::{ServerRow, Store, is_storable};
use super::{Api, answer, refuse};
use crate::model::caller::UserId;
use crate::model::error::{ErrorCode, Failure};
use crate::model::form::{Form, Given};
use crate::model::row;

/// Which credentials there are for a user.
pub const LIST: &str = "/internal/mcp/credentials/list";
/// Sets a user's own credentials for a server, in place of those before.
pub const SET: &str = "/internal/mcp/credentials/set";
/// Deletes a user's own credentials for a server.
pub const DELETE: &str = "/internal/mcp/credentials/delete";

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route(LIST, post(list))
        .route(SET, post(set))
        .route(DELETE, post(delete))
}

/// That there are credentials; never what they are.
#[derive(Debug, Serialize, sqlx::FromRow)]
struct Held {
    mcp_server_id: String,
    /// `user` or `default`.
    source: String,
    is_enabled: bool,
    updated_at: Option<String>,
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    user_id: Option<String>,
    #[serde(default)]
    mcp_server_id: String,
    #[serde(default)]
    credentials: Map<String, Value>,
}

async fn list(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response {
    let work = async |request: Request| {
        let held = api.store.held(request.user_id.as_deref()).await?;
        Ok(json!({ "credentials": held }))
    };
    carry_out(&api, &headers, &body, work).await
}

async fn set(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response {
    let work = async |request: Request| {
        let (owner, server) = api.store.concerned(&request).await?;
        let definition = serde_json::to_value(&server).ok().and_then(row::definition);
        let form = definition.map_or(Form(Vec::new()), |definition| Form::of(&definition));
        let given = Given::read(request.credentials);
        let credentials = form.check(&given).map_err(|faults| {
            let message = "the credentials do not fit the server's form";
            let faults = serde_json::to_value(faults).unwrap_or_default();
            Failure::new(ErrorCode::CredentialInvalid, message).with("fields", faults)
        })?;
        let store = acting_for(&api.store, &owner);
        store
            .put_credentials(&owner, &server.id, &credentials)
            .await?;
        Ok(json!({}))
    };
    carry_out(&api, &headers, &body, work).await
}

async fn delete(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response {
    let work = async |request: Request| {
        let (owner, server) = api.store.concerned(&request).await?;
        let store = acting_for(&api.store, &owner);
        let deleted = store.remove_credentials(&owner, &server.id).await?;
        Ok(json!({ "deleted": deleted }))
    };
    carry_out(&api, &headers, &body, work).await
}

/// Whoever asks does it for the user, and so the audit says.
fn acting_for(store: &Store, owner: &Owner) -> Store {
    store.acting(&format!("user {}", owner.user()))
}

/// Does the work for whoever may ask for that user's sake.
async fn carry_out(
    api: &Api,
    headers: &HeaderMap,
    body: &Bytes,
    work: impl AsyncFnOnce(Request) -> Result<Value, Failure>,
) -> Response {
    match admitted(api, headers, body).await {
        Err(Refusal(status, message)) => refuse(status, message),
        Ok(request) => match work(request).await {
            Ok(data) => answer(StatusCode::OK, "success".to_owned(), data),
            Err(failure) => {
                let data = json!({"error_code": failure.code, "details": failure.details});
                answer(status_of(failure.code), failure.message, data)
            }
        },
    }
}

async fn admitted(api: &Api, headers: &HeaderMap, body: &Bytes) -> Result<Request, Refusal> {
    let principal = match &api.guard {
        Some(guard) => Some(guard.admit(headers).await?),
        None => None,
    };
    // What the parser says may quote a value.
    let unreadable = |_| {
        let message = "the body is no request for credentials".to_owned();
        Refusal(StatusCode::BAD_REQUEST, message)
    };
    let mut request: Request = serde_json::from_slice(body).map_err(unreadable)?;
    request.user_id = request.user_id.filter(|user| !user.is_empty());
    if let Some(principal) = principal {
        principal.may_read(request.user_id.as_deref())?;
    }
    Ok(request)
}

fn status_of(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::ServerNotFound => StatusCode::NOT_FOUND,
        ErrorCode::InvalidParams | ErrorCode::CredentialInvalid => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl Store {
    /// Which credentials there are for a user: their own, and the system's.
    async fn held(&self, user: Option<&str>) -> Result<Vec<Held>, Failure> {
        let query = sql(
            "SELECT mcp_server_id, 'user' AS source, is_enabled, CAST(updated_at AS CHAR(19)) AS updated_at
             FROM mcp_user_credentials WHERE user_id = ?
             UNION ALL
             SELECT mcp_server_id, 'default' AS source, is_enabled, CAST(updated_at AS CHAR(19)) AS updated_at
             FROM mcp_credentials ORDER BY 1, 2",
        );
        let user = user.filter(|user| is_storable(user)).unwrap_or_default();
        self.database.fetch(query.bind(user)).await.map_err(failed)
    }

    async fn concerned(&self, request: &Request) -> Result<(Owner, ServerRow), Failure> {
        let Some(user) = &request.user_id else {
            let message = "a user_id is needed: the system's credentials are not set this way";
            return Err(Failure::new(ErrorCode::InvalidParams, message));
        };
        let mut servers = self.servers().await?;
        let found = servers
            .iter()
            .position(|server| server.id == request.mcp_server_id);
        let found = found.ok_or_else(|| {
            Failure::new(ErrorCode::ServerNotFound, "there is no server of this id")
        })?;
        Ok((Owner::User(UserId::new(user)), servers.swap_remove(found)))
    }
}
