//! `mcp_tools_cache` over the API: the tools that a server last listed, by whose connection it was.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::database::sql;
use super::edit::{failed, new_id};
use super::guard::{Principal, Refusal};
use super::store::{Store, is_storable};
use super::{Api, answer, refuse};
use crate::model::error::Failure;

/// The tools of one catalog; `null` where none are kept.
pub const GET_TOOLS: &str = "/internal/mcp/tools/get";
/// Keeps the tools of one catalog in place of those before.
pub const PUT_TOOLS: &str = "/internal/mcp/tools/put";

/// What one catalog may hold to be kept: tools, and bytes of them.
const MOST_TOOLS: usize = 2_000;
const MOST_BYTES: usize = 512 * 1024;
/// The longest name of a tool that is kept, in characters.
const LONGEST_NAME: usize = 255;

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route(GET_TOOLS, post(get))
        .route(PUT_TOOLS, post(put))
}

#[derive(Deserialize)]
struct Request<'a> {
    /// Whose connection listed them; absent: the one that all users share.
    #[serde(default)]
    user_id: Option<String>,
    mcp_server_id: String,
    #[serde(default, borrow)]
    tools: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Whose tools: nothing is read or written without saying it.
struct Whose<'a> {
    server: &'a str,
    /// "" for the shared connection.
    scope: &'a str,
}

async fn get(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response {
    answered(get_for(&api, &headers, &body).await)
}

async fn put(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response {
    answered(put_for(&api, &headers, &body).await)
}

fn answered(done: Result<Value, Refusal>) -> Response {
    match done {
        Ok(data) => answer(StatusCode::OK, "success".to_owned(), data),
        Err(Refusal(status, message)) => refuse(status, message),
    }
}

async fn get_for(api: &Api, headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let request = admitted(api, headers, body, false).await?;
    let tools = api.store.kept_tools(&whose(&request)?).await;
    let tools = tools.map_err(|failure| unavailable(&failure))?;
    Ok(match tools.is_empty() {
        true => json!({ "tools": null }),
        false => json!({ "tools": tools }),
    })
}

async fn put_for(api: &Api, headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let request = admitted(api, headers, body, true).await?;
    let whose = whose(&request)?;
    let bytes: usize = request.tools.iter().map(|tool| tool.get().len()).sum();
    if request.tools.len() > MOST_TOOLS || bytes > MOST_BYTES {
        let message = "the list is too long to be kept".to_owned();
        return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let tools: Option<Vec<_>> = request
        .tools
        .iter()
        .map(|tool| {
            let Named { name } = serde_json::from_str(tool.get()).ok()?;
            let fits = name.chars().count() <= LONGEST_NAME && !tool.get().contains('\0');
            fits.then(|| (name, tool.get()))
        })
        .collect();
    let unnamed = || {
        Refusal(
            StatusCode::BAD_REQUEST,
            "a tool has no name to keep".to_owned(),
        )
    };
    let tools = tools.ok_or_else(unnamed)?;
    let kept = api.store.keep_tools(&whose, &tools).await;
    kept.map_err(|failure| unavailable(&failure))?;
    Ok(json!({}))
}

/// A user writes what is that user's; what all are shown is written by a program of the operator.
async fn admitted<'a>(
    api: &Api,
    headers: &HeaderMap,
    body: &'a [u8],
    writes: bool,
) -> Result<Request<'a>, Refusal> {
    let principal = match &api.guard {
        Some(guard) => Some(guard.admit(headers).await?),
        None => None,
    };
    let request: Request = serde_json::from_slice(body)
        .map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.to_string()))?;
    match (&principal, request.user_id.as_deref()) {
        (Some(Principal::User(_)), None) if !writes => {}
        (Some(principal), user) => principal.may_read(user)?,
        (None, _) => {}
    }
    Ok(request)
}

fn whose<'a>(request: &'a Request<'_>) -> Result<Whose<'a>, Refusal> {
    let scope = match request.user_id.as_deref() {
        None => "",
        Some(user) if is_storable(user) => user,
        Some(_) => {
            let message = "that is no id of a user".to_owned();
            return Err(Refusal(StatusCode::BAD_REQUEST, message));
        }
    };
    Ok(Whose {
        server: &request.mcp_server_id,
        scope,
    })
}

fn unavailable(failure: &Failure) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, failure.message.clone())
}

impl Store {
    /// In the order of the server. What all share is only read of a server that is public still.
    async fn kept_tools(&self, whose: &Whose<'_>) -> Result<Vec<Box<RawValue>>, Failure> {
        let query = sql(
            "SELECT c.tool FROM mcp_tools_cache c JOIN mcp_servers s ON s.id = c.mcp_server_id
             WHERE c.mcp_server_id = ? AND c.user_scope = ? AND (c.user_scope <> '' OR s.is_public = ?)
             ORDER BY c.id",
        );
        let query = query.bind(whose.server).bind(whose.scope).bind(true);
        let rows: Vec<(String,)> = self.database.fetch(query).await.map_err(failed)?;
        let tools = rows.into_iter();
        Ok(tools
            .filter_map(|(tool,)| RawValue::from_string(tool).ok())
            .collect())
    }

    async fn keep_tools(&self, whose: &Whose<'_>, tools: &[(String, &str)]) -> Result<(), Failure> {
        let known = self.kept_tools(whose).await?;
        let same = known.iter().map(|tool| tool.get());
        if same.eq(tools.iter().map(|(_, tool)| *tool)) {
            return Ok(());
        }
        let mut change = self.database.change().await.map_err(failed)?;
        let delete = sql("DELETE FROM mcp_tools_cache WHERE mcp_server_id = ? AND user_scope = ?");
        let delete = delete.bind(whose.server).bind(whose.scope);
        change.execute(delete).await.map_err(failed)?;
        for (at, (name, tool)) in tools.iter().enumerate() {
            // Begins with the position, so that they come back in this order.
            let id = format!("{at:08x}{}", &new_id()[8..]);
            let insert = sql(
                "INSERT INTO mcp_tools_cache (id, mcp_server_id, user_scope, tool_name, tool)
                 VALUES (?, ?, ?, ?, ?)",
            );
            let insert = insert.bind(id).bind(whose.server).bind(whose.scope);
            let insert = insert.bind(name.as_str()).bind(*tool);
            change.execute(insert).await.map_err(failed)?;
        }
        change.commit().await.map_err(failed)
    }

    /// What was listed with other credentials is kept no longer: the owner's, and of the system's
    /// defaults everybody's.
    pub(super) async fn forget_tools(&self, server: &str, user: &str) -> Result<(), Failure> {
        // No id holds one, and not every database could be asked for it.
        if server.contains('\0') || user.contains('\0') {
            return Ok(());
        }
        let delete = match user {
            "" => sql("DELETE FROM mcp_tools_cache WHERE mcp_server_id = ?").bind(server),
            user => sql("DELETE FROM mcp_tools_cache WHERE mcp_server_id = ? AND user_scope = ?")
                .bind(server)
                .bind(user),
        };
        self.database.execute(delete).await.map_err(failed)?;
        Ok(())
    }
}
