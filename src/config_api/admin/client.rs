//! The admin API of a config server, asked over HTTP.

use reqwest::redirect::Policy;
use reqwest::{Client, Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use url::Url;

use super::{Admin, Page, Wanted};
use crate::config_api::edit::{Owner, invalid};
use crate::config_api::store::ServerRow;
use crate::config_api::{PATH, edit};
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::{Credentials, Secret};
use crate::model::settings::ConfigSettings;

/// The largest answer that is read, in bytes.
const LARGEST_BODY: usize = 64 * 1024 * 1024;

/// A config server that is administered from here.
pub struct Remote {
    client: Client,
    base: Url,
    token: Secret,
}

/// The envelope of every answer.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Value,
}

impl Remote {
    /// `base`: what comes before `/admin`, or the `config.api_base` of the daemons.
    ///
    /// # Errors
    /// `invalid_params` for a base that is no url.
    pub fn new(base: &str, token: Secret, settings: &ConfigSettings) -> Result<Self, Failure> {
        let bare = base.trim().trim_end_matches('/');
        let bare = bare.strip_suffix(PATH).unwrap_or(bare);
        let base = Url::parse(bare)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.query().is_none())
            .ok_or_else(|| invalid("the API must be a url with http:// or https://".to_owned()))?;
        let client = Client::builder()
            .redirect(Policy::none())
            .timeout(settings.timeout)
            .build()
            .map_err(|error| invalid(format!("the API cannot be asked: {error}")))?;
        Ok(Self {
            client,
            base,
            token,
        })
    }

    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<Value>,
    ) -> Result<Value, Failure> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("admin").extend(path);
        }
        let query: Vec<_> = query
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .collect();
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self
            .client
            .request(method, url)
            .bearer_auth(self.token.expose());
        if let Some(body) = body {
            request = request.json(&body);
        }
        let mut answer = request
            .send()
            .await
            .map_err(|error| self.unreachable(error))?;
        let status = answer.status();
        let mut text = Vec::new();
        while let Some(part) = answer
            .chunk()
            .await
            .map_err(|error| self.unreachable(error))?
        {
            if text.len() + part.len() > LARGEST_BODY {
                return Err(self.broken(&format!("sent more than {LARGEST_BODY} bytes")));
            }
            text.extend_from_slice(&part);
        }
        let read: Option<Answer> = serde_json::from_slice(&text).ok();
        match read {
            Some(answer) if status.is_success() => Ok(answer.data),
            read => Err(self.refusal(status, read)),
        }
    }

    async fn read<T: DeserializeOwned>(&self, asked: Result<Value, Failure>) -> Result<T, Failure> {
        serde_json::from_value(asked?)
            .map_err(|_| self.broken("sent an answer that cannot be read"))
    }

    fn row(&self, data: Value) -> Result<ServerRow, Failure> {
        ServerRow::packed(data).ok_or_else(|| self.broken("sent a server that cannot be read"))
    }

    fn refusal(&self, status: StatusCode, answer: Option<Answer>) -> Failure {
        let shown = self.shown();
        let Some(answer) = answer else {
            return match status {
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Failure::new(
                    ErrorCode::Unsupported,
                    format!("{shown} has no admin API: it is no config server, or an older one"),
                ),
                status => self.broken(&format!("failed (status {status})")),
            };
        };
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            let message = format!("the admin API at {shown} refuses: {}", answer.message);
            return Failure::new(ErrorCode::ConfigUnauthorized, message);
        }
        let word = answer.data["error_code"].as_str();
        let known = ErrorCode::ALL.iter();
        let code = known.copied().find(|code| word == Some(code.as_str()));
        let mut failure =
            Failure::new(code.unwrap_or(ErrorCode::ConfigUnavailable), answer.message);
        if let Value::Object(details) = &answer.data["details"] {
            failure.details.clone_from(details);
        }
        failure
    }

    fn shown(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    fn broken(&self, what: &str) -> Failure {
        let message = format!("the admin API at {} {what}", self.shown());
        Failure::new(ErrorCode::ConfigUnavailable, message)
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        let mut innermost: &dyn std::error::Error = &error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        self.broken(&format!("cannot be reached: {innermost}"))
    }
}

/// The last part of the path, and the query.
fn of_owner(owner: &Owner) -> (&'static str, [(&'static str, &str); 1]) {
    let part = match owner {
        Owner::Default => "default-credentials",
        Owner::User(_) => "user-credentials",
    };
    (part, [("user", owner.user())])
}

impl Admin for Remote {
    async fn servers(&self) -> Result<Vec<ServerRow>, Failure> {
        let mut data = self.ask(Method::GET, &["servers"], &[], None).await?;
        let Value::Array(rows) = data["servers"].take() else {
            return Err(self.broken("sent no servers"));
        };
        rows.into_iter().map(|row| self.row(row)).collect()
    }

    async fn add_server(&self, row: Map<String, Value>) -> Result<ServerRow, Failure> {
        let row = Some(row.into());
        self.row(self.ask(Method::POST, &["servers"], &[], row).await?)
    }

    async fn enable_server(&self, id: &str, enabled: bool) -> Result<(), Failure> {
        let body = Some(json!({"is_enabled": enabled}));
        let path = ["servers", id];
        self.ask(Method::PATCH, &path, &[], body).await.map(drop)
    }

    async fn remove_server(&self, id: &str) -> Result<(), Failure> {
        let path = ["servers", id];
        self.ask(Method::DELETE, &path, &[], None).await.map(drop)
    }

    async fn holdings(&self, wanted: &Wanted, cursor: &str) -> Result<Page, Failure> {
        let query = [
            ("server", &*wanted.server),
            ("user", &wanted.user),
            ("after", cursor),
        ];
        let asked = self.ask(Method::GET, &["credentials"], &query, None).await;
        self.read(asked).await
    }

    async fn put_credentials(
        &self,
        owner: &Owner,
        server: &str,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        let (part, query) = of_owner(owner);
        let body = json!({"credentials": edit::plain(credentials)});
        let path = ["servers", server, part];
        let asked = self.ask(Method::PUT, &path, &query, Some(body)).await;
        asked.map(drop)
    }

    async fn enable_credentials(
        &self,
        owner: &Owner,
        server: &str,
        enabled: bool,
    ) -> Result<bool, Failure> {
        let (part, query) = of_owner(owner);
        let body = Some(json!({"is_enabled": enabled}));
        let path = ["servers", server, part];
        let data = self.ask(Method::PATCH, &path, &query, body).await?;
        Ok(data["changed"] == true)
    }

    async fn remove_credentials(&self, owner: &Owner, server: &str) -> Result<bool, Failure> {
        let (part, query) = of_owner(owner);
        let path = ["servers", server, part];
        let data = self.ask(Method::DELETE, &path, &query, None).await?;
        Ok(data["deleted"] == true)
    }
}
