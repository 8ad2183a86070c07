//! `mcp-client config-server`: the config API over HTTP, for many daemons.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::oneshot;
use crate::config_api::{ConfigServer, Store};
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::Settings;

/// Serve the config API over HTTP, for many daemons
///
/// Answers on server.listen from the database of store.url until SIGTERM. A daemon asks it where its
/// config.api_base (API_BASE) says so. SIGHUP reads the certificate and the keys again.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  export MCP_CLIENT_STORE_URL=postgres://fleet@db.example/fleet MCP_CLIENT_STORE_KEY=...
  mcp-client token add daemons            # prints the INTERNAL_TOKEN of the daemons, once
  mcp-client config-server --set server.listen=0.0.0.0:8760")]
pub struct Args {}

/// # Errors
/// Those of [`ConfigServer::bind`] and of the store.
pub async fn run(settings: &Settings) -> Result<ExitCode, Failure> {
    let watch =
        |kind| signal(kind).map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()));
    let (mut terminate, mut interrupt) = (
        watch(SignalKind::terminate())?,
        watch(SignalKind::interrupt())?,
    );
    let reload = Arc::new(Notify::new());
    let mut hangups = watch(SignalKind::hangup())?;
    let told = reload.clone();
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            told.notify_one();
        }
    });
    let store = Store::open(settings).await?;
    let server = ConfigServer::bind(store, &settings.server).await?;
    oneshot::print(&format!("listening on {}", server.url()));
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    server.serve(stop, &reload).await;
    Ok(ExitCode::SUCCESS)
}
