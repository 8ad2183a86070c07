//! The figures of `stats` as Prometheus text, on a loopback port, for whoever may open one there.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::sight::Sight;
use crate::actions::Perform;

/// Requests at once; more wait.
const AT_ONCE: usize = 4;
const MAX_HEAD: usize = 8 * 1024;
/// For one request, answer included.
const PATIENCE: Duration = Duration::from_secs(5);
/// After a failed `accept`, which mostly means that no descriptor is left.
const PAUSE: Duration = Duration::from_secs(1);

/// One figure: its place in `stats`, its name, and the label under which its members stand.
struct Metric(&'static str, &'static str, &'static str, &'static str);

const METRICS: &[Metric] = &[
    Metric("/uptime_ms", "uptime_milliseconds", "gauge", ""),
    Metric("/rss_bytes", "resident_bytes", "gauge", ""),
    Metric("/commands/queued", "commands_queued", "gauge", ""),
    Metric("/commands/running", "commands_running", "gauge", ""),
    Metric(
        "/commands/succeeded",
        "commands_succeeded_total",
        "counter",
        "",
    ),
    Metric(
        "/commands/failed",
        "commands_failed_total",
        "counter",
        "code",
    ),
    Metric(
        "/answers_waiting_bytes",
        "answers_waiting_bytes",
        "gauge",
        "",
    ),
    Metric("/pool/keys", "pool_keys", "gauge", "state"),
    Metric(
        "/pool/connections",
        "pool_connections",
        "gauge",
        "transport",
    ),
    Metric("/pool/in_flight", "pool_in_flight", "gauge", ""),
    Metric("/pool/waiting", "pool_waiting", "gauge", ""),
    Metric("/pool/room_taken", "pool_room_taken", "gauge", ""),
    Metric("/pool/room_max", "pool_room_max", "gauge", ""),
    Metric("/pool/starts", "pool_starts_total", "counter", ""),
    Metric(
        "/pool/failed_starts",
        "pool_failed_starts_total",
        "counter",
        "",
    ),
    Metric(
        "/pool/departures",
        "pool_departures_total",
        "counter",
        "reason",
    ),
    Metric("/catalogs/count", "catalogs", "gauge", ""),
    Metric("/catalogs/bytes", "catalogs_bytes", "gauge", ""),
    Metric(
        "/catalogs/newest_age_ms",
        "catalogs_newest_age_milliseconds",
        "gauge",
        "",
    ),
    Metric(
        "/catalogs/oldest_age_ms",
        "catalogs_oldest_age_milliseconds",
        "gauge",
        "",
    ),
];

/// Opens the port and serves it in a task of its own, until the process ends.
pub(super) async fn serve<P: Perform>(
    address: SocketAddr,
    sight: Arc<Sight<P>>,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    tokio::spawn(accept(listener, sight));
    Ok(bound)
}

async fn accept<P: Perform>(listener: TcpListener, sight: Arc<Sight<P>>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let sight = Arc::clone(&sight);
                tokio::spawn(async move {
                    let _ = timeout(PATIENCE, answer(stream, &sight)).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One request a connection: the least that every scraper speaks.
async fn answer<P: Perform>(mut stream: TcpStream, sight: &Sight<P>) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics ") {
        true => ("200 OK", render(&sight.figures())),
        false => ("404 Not Found", "There is GET /metrics\n".to_owned()),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

fn render(figures: &Value) -> String {
    let mut text = String::new();
    for Metric(place, name, kind, label) in METRICS {
        let samples: Vec<(String, &Value)> = match figures.pointer(place) {
            Some(Value::Object(members)) => {
                let labelled = |(word, value)| (format!("{{{label}=\"{word}\"}}"), value);
                members.iter().map(labelled).collect()
            }
            Some(number @ Value::Number(_)) => vec![(String::new(), number)],
            _ => continue,
        };
        let _ = writeln!(text, "# TYPE mcp_client_{name} {kind}");
        for (label, value) in samples {
            let _ = writeln!(text, "mcp_client_{name}{label} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::Figures;

    /// Every place in `figures` that holds a number, or would.
    fn places(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    places(value, &format!("{at}/{name}"), found);
                }
            }
            Value::String(_) => {}
            _ => found.push(at.to_owned()),
        }
    }

    #[test]
    fn every_figure_below_has_its_metric() {
        let figures = serde_json::json!(Figures::default());
        let mut found = Vec::new();
        places(&figures, "", &mut found);
        assert!(found.len() > 15);
        for place in found {
            let is_told = |metric: &Metric| place.starts_with(metric.0);
            assert!(METRICS.iter().any(is_told), "{place} has no metric");
        }
    }

    #[test]
    fn members_become_labels_and_what_is_unknown_is_left_out() {
        let figures = serde_json::json!({
            "rss_bytes": null, "uptime_ms": 7, "pool": {"departures": {"idle": 1, "died": 2}},
        });
        assert_eq!(
            render(&figures),
            "# TYPE mcp_client_uptime_milliseconds gauge\nmcp_client_uptime_milliseconds 7\n\
             # TYPE mcp_client_pool_departures_total counter\n\
             mcp_client_pool_departures_total{reason=\"idle\"} 1\n\
             mcp_client_pool_departures_total{reason=\"died\"} 2\n"
        );
    }
}
