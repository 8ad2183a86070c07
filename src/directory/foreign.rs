//! The config API of a host, over HTTP.

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use reqwest::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use serde_json::json;
use url::Url;

use super::source::{ConfigSource, Fetched, Freshness, Trouble};
use crate::config_api::PATH;
use crate::model::caller::Caller;
use crate::model::secret::Secret;
use crate::model::settings::ConfigSettings;

/// The largest answer that is read, in bytes.
const LARGEST_BODY: usize = 16 * 1024 * 1024;

pub struct Foreign {
    client: Client,
    url: Url,
    name: String,
    settings: ConfigSettings,
}

impl Foreign {
    /// # Errors
    /// Reads after "config.api_base ".
    pub fn new(base: &str, settings: &ConfigSettings) -> Result<Self, String> {
        let whole = match base.trim().trim_end_matches('/') {
            base if base.ends_with(PATH) => base.to_owned(),
            base => format!("{base}{PATH}"),
        };
        let url = Url::parse(&whole).map_err(|error| format!("is no url: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("must begin with http:// or https://".to_owned());
        }
        // Whoever came first has installed the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(settings.timeout)
            .build()
            .map_err(|error| format!("cannot be used: {}", cause(&error)))?;
        Ok(Self {
            client,
            name: format!("at {}", url.origin().ascii_serialization()),
            url,
            settings: settings.clone(),
        })
    }

    async fn ask(&self, caller: &Caller, version: Option<&str>) -> Result<Fetched, Trouble> {
        let mut request = self.client.post(self.url.clone()).json(&json!({
            "user_id": caller.user.as_ref().map(|user| user.as_str()),
        }));
        let token = caller
            .access_token
            .as_ref()
            .or(self.settings.internal_token.as_ref());
        if let Some(token) = token {
            request = request.header(reqwest::header::AUTHORIZATION, bearer(token)?);
        }
        if let Some(version) = version {
            request = request.header(IF_NONE_MATCH, version);
        }
        let answer = request.send().await.map_err(unreachable)?;
        if answer.status() == StatusCode::NOT_MODIFIED && version.is_some() {
            return Ok(Fetched::NotModified);
        }
        Ok(Fetched::Body {
            status: answer.status().as_u16(),
            version: etag(answer.headers()),
            body: whole_body(answer).await?,
        })
    }
}

impl ConfigSource for Foreign {
    fn freshness(&self) -> Freshness {
        Freshness::For(self.settings.ttl)
    }

    fn fetch<'a>(
        &'a self,
        caller: &'a Caller,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Fetched, Trouble>> {
        Box::pin(self.ask(caller, version))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

fn bearer(token: &Secret) -> Result<HeaderValue, Trouble> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| {
        Trouble::Unauthorized(
            "cannot be asked: the token holds characters that no token has".to_owned(),
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn etag(headers: &HeaderMap) -> Option<String> {
    headers.get(ETAG)?.to_str().ok().map(str::to_owned)
}

async fn whole_body(mut answer: Response) -> Result<Bytes, Trouble> {
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > LARGEST_BODY {
            return Err(Trouble::Lasting(format!(
                "sent more than {LARGEST_BODY} bytes, which is more than is read"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn unreachable(error: reqwest::Error) -> Trouble {
    Trouble::Passing(format!(
        "cannot be reached: {}",
        cause(&error.without_url())
    ))
}

/// The innermost cause: what the system said.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
