//! The config API of a host, over HTTP.

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use reqwest::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
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

    fn request(&self, caller: &Caller, url: Url, body: &Value) -> Result<RequestBuilder, Trouble> {
        let request = self.client.post(url).json(body);
        let own = caller.access_token.as_ref();
        Ok(match own.or(self.settings.internal_token.as_ref()) {
            Some(token) => request.header(reqwest::header::AUTHORIZATION, bearer(token)?),
            None => request,
        })
    }

    async fn ask_once(
        &self,
        caller: &Caller,
        route: &str,
        body: &Value,
    ) -> Result<(u16, Bytes), Trouble> {
        let mut url = self.url.clone();
        let base = url.path().strip_suffix(PATH).unwrap_or_default();
        let path = format!("{base}{route}");
        url.set_path(&path);
        let request = self.request(caller, url, body)?;
        let answer = request.send().await.map_err(unreachable)?;
        Ok((answer.status().as_u16(), whole_body(answer).await?))
    }

    async fn ask(&self, caller: &Caller, version: Option<&str>) -> Result<Fetched, Trouble> {
        let body = json!({ "user_id": caller.user.as_ref().map(|user| user.as_str()) });
        let mut request = self.request(caller, self.url.clone(), &body)?;
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

    fn ask<'a>(
        &'a self,
        caller: &'a Caller,
        route: &'static str,
        body: Value,
    ) -> BoxFuture<'a, Result<(u16, Bytes), Trouble>> {
        Box::pin(async move { self.ask_once(caller, route, &body).await })
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

#[cfg(test)]
#[path = "foreign_tests.rs"]
mod tests;
