//! The admin API over HTTP: for whoever has the admin role (openapi.json describes it).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, patch, put};
use axum::{Extension, Router};
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use super::{PAGE, Wanted};
use crate::config_api::edit::{Owner, at_fault, invalid};
use crate::config_api::guard::{Guard, Principal, Refusal};
use crate::config_api::servers::no_such_server;
use crate::config_api::store::{ServerRow, Store};
use crate::config_api::{answer, refuse};
use crate::model::caller::UserId;
use crate::model::definition::ConfigFault;
use crate::model::error::{ErrorCode, Failure};
use crate::model::row;
use crate::model::secret::Credentials;

/// Where the description of the admin API is; anybody may read it.
pub(super) const OPENAPI: &str = "/openapi.json";
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

const FORBIDDEN: &str = "this token may not administer: it needs the admin role";

/// Changes made before the one asked for last: how many are told at once.
const AUDITED: i64 = 100;

/// Every route behind the guard.
pub(super) fn table() -> Vec<(&'static str, MethodRouter)> {
    vec![
        ("/admin/servers", get(list_servers).post(create_server)),
        (
            "/admin/servers/{server}",
            get(show_server).patch(update_server).delete(delete_server),
        ),
        ("/admin/servers/{server}/default-credentials", credentials()),
        ("/admin/servers/{server}/user-credentials", credentials()),
        ("/admin/credentials", get(list_credentials)),
        ("/admin/audit", get(audit)),
    ]
}

fn credentials() -> MethodRouter {
    put(set_credentials)
        .merge(patch(enable_credentials))
        .delete(delete_credentials)
}

#[derive(Clone)]
struct Gate {
    store: Store,
    guard: Arc<Guard>,
}

/// The admin API on the store, for those whom the guard knows as administrators.
pub(in crate::config_api) fn routes(store: Store, guard: Arc<Guard>) -> Router {
    let gate = Gate { store, guard };
    let router = table()
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| {
            router.route(path, methods)
        });
    router
        .route_layer(from_fn_with_state(gate, admit))
        .route(OPENAPI, get(openapi))
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

/// Who asks is looked at first: of others nothing is read.
async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let actor = match gate.guard.admit(request.headers()).await {
        Ok(Principal::Admin(actor)) => actor,
        Ok(Principal::User(_) | Principal::Service) => {
            return refuse(StatusCode::FORBIDDEN, FORBIDDEN.to_owned());
        }
        Err(Refusal(status, message)) => return refuse(status, message),
    };
    request.extensions_mut().insert(gate.store.acting(&actor));
    let mut response = next.run(request).await;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

struct Done(StatusCode, Value);

impl IntoResponse for Done {
    fn into_response(self) -> Response {
        answer(self.0, "success".to_owned(), self.1)
    }
}

struct Refused(Failure);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(failure) = self;
        let status = match failure.code {
            ErrorCode::ServerNotFound => StatusCode::NOT_FOUND,
            ErrorCode::InvalidJson
            | ErrorCode::InvalidParams
            | ErrorCode::ConfigInvalid
            | ErrorCode::CredentialInvalid => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let data = json!({"error_code": failure.code, "details": failure.details});
        answer(status, failure.message, data)
    }
}

type Reply = Result<Done, Refused>;

fn done(data: Value) -> Reply {
    Ok(Done(StatusCode::OK, data))
}

async fn list_servers(Extension(store): Extension<Store>) -> Reply {
    let servers = store.servers().await?;
    let servers: Vec<_> = servers.iter().map(ServerRow::unpacked).collect();
    done(json!({ "servers": servers }))
}

async fn create_server(Extension(store): Extension<Store>, body: Bytes) -> Reply {
    let row = store.add_server(object(&body)?).await?;
    Ok(Done(StatusCode::CREATED, row.unpacked().into()))
}

async fn show_server(Extension(store): Extension<Store>, Path(id): Path<String>) -> Reply {
    done(by_id(&store, &id).await?.unpacked().into())
}

async fn by_id(store: &Store, id: &str) -> Result<ServerRow, Failure> {
    let servers = store.servers().await?;
    let mut servers = servers.into_iter();
    servers.find(|row| row.id == id).ok_or_else(no_such_server)
}

/// Also a server whose definition is no longer one can be switched off.
async fn update_server(
    Extension(store): Extension<Store>,
    Path(id): Path<String>,
    body: Bytes,
) -> Reply {
    let columns = object(&body)?;
    let row = match columns.get("is_enabled") {
        Some(Value::Bool(enabled)) if columns.len() == 1 => {
            store.enable_server(&id, *enabled).await?;
            by_id(&store, &id).await?
        }
        _ => store.update_server(&id, columns).await?,
    };
    done(row.unpacked().into())
}

async fn delete_server(Extension(store): Extension<Store>, Path(id): Path<String>) -> Reply {
    store.remove_server(&id).await?;
    done(json!({"deleted": true}))
}

async fn list_credentials(Extension(store): Extension<Store>, RawQuery(query): RawQuery) -> Reply {
    let mut given = parameters(query.as_deref(), &["server", "user", "after"])?;
    let mut take = |name| given.remove(name).unwrap_or_default();
    let wanted = Wanted {
        server: take("server"),
        user: take("user"),
    };
    let page = store.holdings(&wanted, &take("after")).await?;
    done(json!(page))
}

async fn set_credentials(
    Extension(store): Extension<Store>,
    Path(server): Path<String>,
    request: Request,
) -> Reply {
    let owner = owner(request.uri())?;
    let given = fields(body_of(request).await?)?;
    store.put_credentials(&owner, &server, &given).await?;
    let names: Vec<_> = given.0.keys().collect();
    done(json!({ "fields": names }))
}

async fn enable_credentials(
    Extension(store): Extension<Store>,
    Path(server): Path<String>,
    request: Request,
) -> Reply {
    let owner = owner(request.uri())?;
    let body = body_of(request).await?;
    let enabled = match (body.get("is_enabled"), body.len()) {
        (Some(Value::Bool(enabled)), 1) => *enabled,
        _ => return Err(faulty("is_enabled", "must be true or false, and alone").into()),
    };
    let changed = store.enable_credentials(&owner, &server, enabled).await?;
    done(json!({ "changed": changed }))
}

async fn delete_credentials(
    Extension(store): Extension<Store>,
    Path(server): Path<String>,
    request: Request,
) -> Reply {
    let owner = owner(request.uri())?;
    let deleted = store.remove_credentials(&owner, &server).await?;
    done(json!({ "deleted": deleted }))
}

async fn audit(Extension(store): Extension<Store>, RawQuery(query): RawQuery) -> Reply {
    let given = parameters(query.as_deref(), &["before", "limit"])?;
    let mut faults = Vec::new();
    let mut number = |name: &str, absent: i64, most: i64| {
        let Some(text) = given.get(name) else {
            return absent;
        };
        let number = text.parse().ok();
        let number = number.filter(|number| (1..=most).contains(number));
        number.unwrap_or_else(|| {
            faults.push(fault(name, format!("must be a number from 1 to {most}")));
            absent
        })
    };
    let (before, limit) = (
        number("before", i64::MAX, i64::MAX),
        number("limit", AUDITED, PAGE),
    );
    all_well(faults)?;
    done(json!({"changes": store.audit(before, limit).await?}))
}

/// Whose credentials: the path says so, and for a user's the query whose.
fn owner(uri: &axum::http::Uri) -> Result<Owner, Failure> {
    if uri.path().ends_with("/default-credentials") {
        parameters(uri.query(), &[])?;
        return Ok(Owner::Default);
    }
    let user = parameters(uri.query(), &["user"])?.remove("user");
    match user.filter(|user| !user.is_empty()) {
        Some(user) => Ok(Owner::User(UserId::new(&user))),
        None => Err(faulty("user", "must be given")),
    }
}

/// The parameters of a query, each given once.
fn parameters(query: Option<&str>, known: &[&str]) -> Result<BTreeMap<String, String>, Failure> {
    let mut given = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if !known.contains(&&*name) {
            faults.push(fault(&name, "is no parameter here".to_owned()));
        } else if given.insert(name.to_string(), value.into_owned()).is_some() {
            faults.push(fault(&name, "is given twice".to_owned()));
        }
    }
    all_well(faults)?;
    Ok(given)
}

async fn body_of(request: Request) -> Result<Map<String, Value>, Failure> {
    let unread = |error: axum::Error| invalid(format!("the body cannot be read: {error}"));
    let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
    object(&body.map_err(unread)?)
}

/// What the parser says may quote a value, so only the place is told.
fn object(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let message = format!("the body is no JSON object (at line {line}, column {column})");
        Failure::new(ErrorCode::InvalidJson, message)
    })
}

/// The fields of `{"credentials": {...}}`.
fn fields(mut body: Map<String, Value>) -> Result<Credentials, Failure> {
    let given = body.remove("credentials");
    let mut faults: Vec<_> = body
        .keys()
        .map(|member| fault(member, "is no member here".to_owned()))
        .collect();
    let Some(Value::Object(given)) = given else {
        faults.push(fault(
            "credentials",
            "must be an object of fields".to_owned(),
        ));
        all_well(faults)?;
        return Ok(Credentials::default());
    };
    for (name, value) in &given {
        let reason = match value {
            Value::Object(_) | Value::Array(_) if name != "env_overrides" => "must be a text",
            Value::String(text) if text.contains('\0') => "holds a NUL character",
            _ if name.is_empty() => "must have a name",
            _ => continue,
        };
        faults.push(fault(&format!("credentials.{name}"), reason.to_owned()));
    }
    match row::flatten(given) {
        Err(found) => faults.push(found),
        Ok(read) if read.0.is_empty() && faults.is_empty() => {
            faults.push(fault("credentials", "holds no field".to_owned()));
        }
        Ok(read) if faults.is_empty() => return Ok(read),
        Ok(_) => {}
    }
    all_well(faults)?;
    Ok(Credentials::default())
}

fn fault(field: &str, reason: String) -> ConfigFault {
    ConfigFault {
        field: field.to_owned(),
        reason,
    }
}

fn faulty(field: &str, reason: &str) -> Failure {
    let fault = fault(field, reason.to_owned());
    at_fault(ErrorCode::InvalidParams, "", &[fault])
}

/// # Errors
/// `invalid_params`, naming everything that is at fault.
fn all_well(faults: Vec<ConfigFault>) -> Result<(), Failure> {
    match faults.is_empty() {
        true => Ok(()),
        false => Err(at_fault(ErrorCode::InvalidParams, "", &faults)),
    }
}
