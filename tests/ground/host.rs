//! A config host as they are in the field: answers `POST /internal/mcp/config`, or fails on request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};

pub const INTERNAL_TOKEN: &str = "internal-token-of-the-host";

/// How the host answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    Well,
    /// The data without its envelope.
    Bare,
    Status(u16),
    /// HTTP 200 with this `code` in the body.
    Code(u16),
    /// Half of the answer, then the connection breaks.
    Half,
    /// Half of the answer's text, as if it were whole.
    Cut,
    /// Never answers.
    Silent,
    /// This body.
    Body(String),
}

#[derive(Default)]
struct Rows {
    servers: Vec<Value>,
    defaults: BTreeMap<String, Value>,
    users: BTreeMap<(String, String), Value>,
}

pub struct Host {
    port: u16,
    rows: Mutex<Rows>,
    mode: Mutex<Mode>,
    requests: Mutex<Vec<Value>>,
    /// Lists JSON columns as strings, booleans as 0 and 1, ids as numbers: as rows come from a database.
    pub raw_rows: std::sync::atomic::AtomicBool,
    /// Ends the server with the host.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Host {
    pub fn start() -> Arc<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("for tokio");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let host = Arc::new(Self {
            port: listener.local_addr().expect("an address").port(),
            rows: Mutex::default(),
            mode: Mutex::new(Mode::Well),
            requests: Mutex::default(),
            raw_rows: false.into(),
            _stop: stop,
        });
        let state = Arc::downgrade(&host);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let router = axum::Router::new()
                    .route("/internal/mcp/config", post(config))
                    .with_state(state);
                tokio::select! {
                    _ = stopped => {}
                    served = axum::serve(listener, router) => served.expect("the host serves"),
                }
            });
        });
        host
    }

    pub fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn be(&self, mode: Mode) {
        *self.mode.lock().expect("unpoisoned") = mode;
    }

    pub fn add_server(&self, row: Value) {
        self.rows.lock().expect("unpoisoned").servers.push(row);
    }

    /// The row of a server.
    pub fn server(&self, name: &str) -> Value {
        let rows = self.rows.lock().expect("unpoisoned");
        let row = rows.servers.iter().find(|row| row["name"] == name);
        row.expect("a server of that name").clone()
    }

    pub fn change_server(&self, name: &str, column: &str, value: impl Into<Value>) {
        let mut rows = self.rows.lock().expect("unpoisoned");
        let row = rows
            .servers
            .iter_mut()
            .find(|row| row["name"] == name)
            .expect("a server of that name");
        row[column] = value.into();
    }

    pub fn remove_server(&self, name: &str) {
        self.rows
            .lock()
            .expect("unpoisoned")
            .servers
            .retain(|row| row["name"] != name);
    }

    pub fn set_user_credentials(&self, user: &str, server: &str, fields: Value) {
        self.rows
            .lock()
            .expect("unpoisoned")
            .users
            .insert((user.to_owned(), server.to_owned()), fields);
    }

    pub fn remove_user_credentials(&self, user: &str, server: &str) {
        self.rows
            .lock()
            .expect("unpoisoned")
            .users
            .remove(&(user.to_owned(), server.to_owned()));
    }

    pub fn set_default_credentials(&self, server: &str, fields: Value) {
        self.rows
            .lock()
            .expect("unpoisoned")
            .defaults
            .insert(server.to_owned(), fields);
    }

    /// What was asked: `{"authorization", "body"}` each.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().expect("unpoisoned").clone()
    }

    fn render(&self, user: Option<&str>) -> Value {
        let rows = self.rows.lock().expect("unpoisoned");
        let id_of = |name: &str| {
            rows.servers
                .iter()
                .find(|row| row["name"] == name)
                .map_or(Value::Null, |row| row["id"].clone())
        };
        let defaults = rows.defaults.iter().enumerate().map(|(number, (server, fields))| {
            json!({"id": format!("d{number}"), "mcp_server_id": id_of(server), "credentials": fields, "is_enabled": true})
        });
        let own = rows
            .users
            .iter()
            .filter(|((owner, _), _)| Some(owner.as_str()) == user);
        let users = own.enumerate().map(|(number, ((owner, server), fields))| {
            json!({"id": format!("u{number}"), "user_id": owner, "mcp_server_id": id_of(server), "credentials": fields, "is_enabled": true})
        });
        let mut all = json!({
            "servers": rows.servers, "default_credentials": defaults.collect::<Vec<_>>(), "user_credentials": users.collect::<Vec<_>>(),
        });
        if self.raw_rows.load(std::sync::atomic::Ordering::Relaxed) {
            let tables = all.as_object_mut().expect("an object").values_mut();
            tables
                .flat_map(|table| table.as_array_mut().expect("rows"))
                .for_each(as_in_a_database);
        }
        all
    }
}

fn as_in_a_database(row: &mut Value) {
    for (column, value) in row.as_object_mut().expect("a row") {
        match (column.as_str(), &*value) {
            (
                "args" | "env_template" | "headers" | "credential_fields" | "credentials",
                Value::Array(_) | Value::Object(_),
            ) => {
                *value = value.to_string().into();
            }
            ("is_public", Value::Bool(is)) => *value = u8::from(*is).into(),
            ("is_enabled", Value::Bool(is)) => {
                *value = json!({"type": "Buffer", "data": [u8::from(*is)]})
            }
            ("requires_credentials", Value::Bool(is)) => *value = u8::from(*is).to_string().into(),
            _ => {}
        }
    }
}

async fn config(
    State(host): State<std::sync::Weak<Host>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(host) = host.upgrade() else {
        return StatusCode::GONE.into_response();
    };
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let authorization = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    host.requests
        .lock()
        .expect("unpoisoned")
        .push(json!({"authorization": authorization, "body": asked}));
    let data = host.render(asked["user_id"].as_str());
    let text = json!({"code": 200, "message": "success", "data": data, "timestamp": 0}).to_string();
    let mode = host.mode.lock().expect("unpoisoned").clone();
    drop(host);
    match mode {
        Mode::Well => json_response(text.into()),
        Mode::Bare => json_response(data.to_string().into()),
        Mode::Status(status) => StatusCode::from_u16(status)
            .expect("a status")
            .into_response(),
        Mode::Code(code) => json_response(
            json!({"code": code, "message": "no", "data": null})
                .to_string()
                .into(),
        ),
        Mode::Half => {
            let half = Ok(Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]));
            let pieces = [half, Err(std::io::Error::other("cut"))];
            json_response(Body::from_stream(futures::stream::iter(pieces)))
        }
        Mode::Cut => json_response(text[..text.len() / 2].to_owned().into()),
        Mode::Silent => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            StatusCode::OK.into_response()
        }
        Mode::Body(body) => json_response(body.into()),
    }
}

fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
