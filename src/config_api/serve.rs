//! The API over HTTP/1.1, for many daemons. It keeps nothing between two requests, so any number of
//! servers may stand side by side.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::guard::{Guard, UNAVAILABLE};
use super::store::Store;
use super::{Api, admin, routes};
use crate::model::error::{ErrorCode, Failure};
use crate::model::settings::ServerSettings;
use crate::os;

/// The largest body of a request, in bytes.
const LARGEST_BODY: usize = 1024 * 1024;
/// After a failed `accept`, which mostly means that no descriptor is left.
const PAUSE: Duration = Duration::from_secs(1);

/// A config server that listens.
pub struct ConfigServer {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    guard: Arc<Guard>,
    is_draining: Arc<AtomicBool>,
    settings: ServerSettings,
}

impl ConfigServer {
    /// Binds the address of the settings.
    ///
    /// # Errors
    /// `config_invalid` for a setting that cannot be used; `config_unavailable` where the address
    /// or the store is not to be had.
    pub async fn bind(store: Store, settings: &ServerSettings) -> Result<Self, Failure> {
        let guard = Arc::new(Guard::new(store.clone(), settings).await?);
        let tls = acceptor(settings).map_err(invalid)?;
        let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
            let message = format!("server.listen {} cannot be had: {error}", settings.listen);
            Failure::new(ErrorCode::ConfigUnavailable, message)
        })?;
        let is_draining = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            store: store.clone(),
            is_draining: is_draining.clone(),
        };
        let signs = Router::new()
            .route("/health", get(async || "ok"))
            .route("/ready", get(ready))
            .with_state(watch);
        let admin = admin::routes::routes(store.clone(), guard.clone());
        let api = Api {
            store,
            guard: Some(guard.clone()),
        };
        Ok(Self {
            listener,
            tls,
            router: routes(api)
                .merge(admin)
                .merge(signs)
                .layer(DefaultBodyLimit::max(LARGEST_BODY)),
            guard,
            is_draining,
            settings: settings.clone(),
        })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let address = self.listener.local_addr().unwrap_or(self.settings.listen);
        format!("{scheme}://{address}")
    }

    /// Serves until `stop`, then lets what is being answered come to its end. Each `reload` reads the
    /// certificate and the keys again.
    pub async fn serve(mut self, stop: impl Future<Output = ()>, reload: &Notify) {
        let most = self.settings.max_connections;
        let places = Arc::new(Semaphore::new(most));
        let ending = CancellationToken::new();
        let mut stop = std::pin::pin!(stop.fuse());
        loop {
            let place = tokio::select! {
                () = &mut stop => break,
                () = reload.notified() => {
                    self.reload().await;
                    continue;
                }
                accepted = accept(&self.listener, &places) => accepted,
            };
            if let Some((stream, peer, place)) = place {
                let served = self.connection(stream, peer, ending.clone());
                tokio::spawn(async move {
                    served.await;
                    drop(place);
                });
            }
        }
        self.is_draining.store(true, Ordering::Relaxed);
        drop(self.listener);
        ending.cancel();
        let all = u32::try_from(most).unwrap_or(u32::MAX);
        if timeout(self.settings.drain_timeout, places.acquire_many(all))
            .await
            .is_err()
        {
            tracing::warn!("requests were still being answered at the end of server.drain_timeout");
        }
    }

    async fn reload(&mut self) {
        match acceptor(&self.settings) {
            Ok(tls) => self.tls = tls,
            Err(reason) => tracing::error!("{reason}; going on with the certificate at hand"),
        }
        self.guard.reload().await;
        tracing::info!("the certificate and the keys were read again");
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        ending: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (tls, router) = (self.tls.clone(), self.router.clone());
        let patience = self.settings.request_timeout;
        async move {
            let _ = stream.set_nodelay(true);
            // For an answer that is not read.
            let unread = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            os::set_unread_timeout(&stream, unread);
            let Some(tls) = tls else {
                return exchange(stream, router, patience, ending).await;
            };
            match timeout(patience, tls.accept(stream)).await {
                Ok(Ok(stream)) => exchange(stream, router, patience, ending).await,
                Ok(Err(error)) => tracing::debug!(%peer, "no TLS: {error}"),
                Err(_) => tracing::debug!(%peer, "no TLS in time"),
            }
        }
    }
}

type Accepted = (TcpStream, SocketAddr, OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<Accepted> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, place)),
        Err(error) => {
            tracing::warn!("a connection could not be accepted: {error}");
            sleep(PAUSE).await;
            None
        }
    }
}

/// Answers the requests of one connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    patience: Duration,
    ending: CancellationToken,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            if request.body().size_hint().lower() > LARGEST_BODY as u64 {
                return Ok::<_, Infallible>(StatusCode::PAYLOAD_TOO_LARGE.into_response());
            }
            let answer = router.oneshot(request.map(Body::new));
            Ok(match timeout(patience, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(never)) => match never {},
                Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection broke: {error}");
    }
}

#[derive(Clone)]
struct Watch {
    store: Store,
    is_draining: Arc<AtomicBool>,
}

/// Whether this server should be asked: the database answers, and it is not about to end.
async fn ready(State(watch): State<Watch>) -> Response {
    if watch.is_draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "about to end").into_response();
    }
    match watch.store.is_reachable().await {
        Ok(()) => "ready".into_response(),
        Err(failure) => {
            tracing::warn!("not ready: {failure}");
            (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE).into_response()
        }
    }
}

/// # Errors
/// Names the setting.
fn acceptor(settings: &ServerSettings) -> Result<Option<TlsAcceptor>, String> {
    let (cert, key) = match (&settings.tls_cert, &settings.tls_key) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (Path::new(cert), Path::new(key)),
        _ => return Err("server.tls_cert and server.tls_key go together".to_owned()),
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain
        .map_err(|error| format!("server.tls_cert {} cannot be read: {error}", cert.display()))?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| format!("server.tls_key {} cannot be read: {error}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(chain, key))
        .map_err(|error| format!("server.tls_cert and server.tls_key cannot be used: {error}"))?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::ConfigInvalid, message)
}
