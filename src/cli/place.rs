//! Where `server` and `credential` work: on the store here, or over the admin API of a config server.

use url::Url;

use super::REDACTOR;
use crate::config_api::{Remote, Store};
use crate::model::error::{ErrorCode, Failure};
use crate::model::secret::Secret;
use crate::model::settings::{Lookup, OwnEnvironment, Settings};

/// Where the token of an administrator is looked for. Never on the command line, which others can see.
const ADMIN_TOKEN: &str = "MCP_CLIENT_ADMIN_TOKEN";

/// Where the definitions and credentials are.
#[derive(clap::Args, Debug)]
pub struct Place {
    /// Work over the admin API of the config server at this url, with the token in
    /// $MCP_CLIENT_ADMIN_TOKEN, instead of on the store
    #[arg(long, global = true, value_name = "URL")]
    api: Option<String>,
}

/// A place that was opened.
pub enum Opened {
    Here(Store),
    Remote(Remote),
}

impl Place {
    /// # Errors
    /// Those of [`Store::open`] and [`Remote::new`]; `config_unauthorized` where there is no token.
    pub async fn open(&self, settings: &Settings) -> Result<Opened, Failure> {
        let Some(base) = &self.api else {
            note_foreign(settings);
            return Store::open(settings).await.map(Opened::Here);
        };
        let token = OwnEnvironment.variable(ADMIN_TOKEN);
        let token = token.map(|token| token.to_string_lossy().into_owned());
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            let message = format!("the admin API needs a token: set {ADMIN_TOKEN}");
            return Err(Failure::new(ErrorCode::ConfigUnauthorized, message));
        };
        if base.trim().starts_with("http:") && !is_here(base) {
            eprintln!("note: without https the token and credentials cross the network in clear");
        }
        let token = Secret::new(token);
        REDACTOR.learn(&token);
        Remote::new(base, token, &settings.config).map(Opened::Remote)
    }
}

fn is_here(url: &str) -> bool {
    let url = Url::parse(url.trim()).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    ["127.0.0.1", "[::1]", "localhost"].contains(&host)
}

/// What is done here is of no effect on a daemon that asks another config API.
pub(super) fn note_foreign(settings: &Settings) {
    if settings.config.api_base.is_some() {
        eprintln!(
            "note: config.api_base (API_BASE) is set, so the daemon reads its servers there, not from this store"
        );
    }
}
