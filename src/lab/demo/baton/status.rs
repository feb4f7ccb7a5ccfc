//! The fields of `/status.json` that the demo reads. Only this module knows that format.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use crate::model::fleet::Liveness;
use crate::model::health::HealthState;
use crate::table::journal::Event;

/// The part of the status that the demo shows. Missing fields keep their defaults, so that the demo also works with
/// another version of Baton.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoStatus {
    pub instance: DemoInstance,
    pub totals: DemoTotals,
    pub fleet: DemoPeers,
    pub frontends: Vec<DemoFrontend>,
    /// Oldest first. An unknown kind of event does not make the others unreadable.
    events: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoInstance {
    pub phase: String,
    pub pid: u32,
    /// The frontends' addresses that are on its host.
    pub vips: Vec<IpAddr>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoTotals {
    pub flows: DemoFlows,
}

/// Flows by state.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoFlows {
    pub accepted: u64,
    pub connecting: u64,
    pub proxied: u64,
    pub offloaded: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoPeers {
    pub peers: Vec<DemoPeer>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DemoPeer {
    pub liveness: Liveness,
    /// Whether the instance knows all its flows.
    pub synced: bool,
    /// How many of its offloaded flows the instance knows.
    pub offloaded: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoFrontend {
    pub backends: Vec<DemoBackend>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DemoBackend {
    pub name: String,
    pub health_state: Option<HealthState>,
    /// Why it has this health state, in words.
    pub why: String,
    pub since_ms: Option<u64>,
    pub drain_deadline_in_ms: Option<u64>,
    pub flows: u32,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("connecting: {0}")]
    Connect(#[from] io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("the request: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("answered {0}")]
    Code(hyper::StatusCode),
    #[error("reading the answer: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("it closed the connection")]
    Closed,
    #[error("not the status that is expected: {0}")]
    Json(#[from] serde_json::Error),
    #[error("no answer within {} ms", TIMEOUT.as_millis())]
    TimedOut,
}

impl DemoStatus {
    pub(crate) fn backend(&self, name: &str) -> Option<&DemoBackend> {
        self.frontends.iter().flat_map(|frontend| &frontend.backends).find(|backend| backend.name == name)
    }

    /// Whether it serves and all of its backends are ready.
    pub(crate) fn all_ready(&self) -> bool {
        let mut backends = self.frontends.iter().flat_map(|frontend| &frontend.backends).peekable();
        self.instance.phase == "serving"
            && backends.peek().is_some()
            && backends.all(|backend| backend.health_state == Some(HealthState::Ready))
    }

    /// Whether it knows all flows of all its peers, and hears them.
    pub(crate) fn all_synced(&self) -> bool {
        self.fleet.peers.iter().all(|peer| peer.liveness == Liveness::Alive && peer.synced)
    }

    /// The events with a number of at least `since`, and the number for the next call.
    pub(crate) fn events_since(&self, since: u64) -> (Vec<Event>, u64) {
        let mut events: Vec<Event> = self.events.iter().filter_map(|event| Event::deserialize(event).ok()).collect();
        let next = events.iter().map(|event| event.number + 1).max().unwrap_or(since).max(since);
        events.retain(|event| event.number >= since);
        (events, next)
    }
}

/// Asks once.
pub(crate) async fn fetch(http: SocketAddr) -> Result<DemoStatus, StatusError> {
    tokio::time::timeout(TIMEOUT, fetch_slowly(http)).await.unwrap_or(Err(StatusError::TimedOut))
}

/// Asks once by the admin socket, which an instance in another network namespace has, too.
async fn fetch_by_socket(path: &Path) -> Result<DemoStatus, StatusError> {
    let asked = async {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(b"{\"command\":\"status\"}\n").await?;
        let mut line = String::new();
        BufReader::new(stream.take(BODY_MAX_BYTES as u64)).read_line(&mut line).await?;
        let reply: SocketReply = serde_json::from_str(&line)?;
        reply.ok.ok_or(StatusError::Closed)
    };
    tokio::time::timeout(TIMEOUT, asked).await.unwrap_or(Err(StatusError::TimedOut))
}

#[derive(Deserialize)]
struct SocketReply {
    ok: Option<DemoStatus>,
}

/// As [`follow`], by the admin socket. While there is no answer, the receiver sees a status without a phase.
pub(crate) fn follow_socket(path: PathBuf) -> watch::Receiver<DemoStatus> {
    let (sender, receiver) = watch::channel(DemoStatus::default());
    tokio::spawn(async move {
        while !sender.is_closed() {
            sender.send_replace(fetch_by_socket(&path).await.unwrap_or_default());
            tokio::time::sleep(PERIOD).await;
        }
    });
    receiver
}

/// Asks again and again as long as there is a receiver, which sees the last good answer.
pub(crate) fn follow(http: SocketAddr) -> watch::Receiver<DemoStatus> {
    let (sender, receiver) = watch::channel(DemoStatus::default());
    tokio::spawn(async move {
        while !sender.is_closed() {
            if let Ok(status) = fetch(http).await {
                sender.send_replace(status);
            }
            tokio::time::sleep(PERIOD).await;
        }
    });
    receiver
}

async fn fetch_slowly(http: SocketAddr) -> Result<DemoStatus, StatusError> {
    let stream = TcpStream::connect(http).await?;
    let (mut requests, driver) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/status.json").header(HOST, http.to_string()).body(Empty::<Bytes>::new())?;
    let exchange = async {
        let answer = requests.send_request(request).await?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), BODY_MAX_BYTES).collect().await.map_err(StatusError::Body)?;
        if code.is_success() { Ok(serde_json::from_slice(&body.to_bytes())?) } else { Err(StatusError::Code(code)) }
    };
    let mut driver = std::pin::pin!(driver);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        status = &mut exchange => status,
        ended = &mut driver => match ended {
            // The server may close before the body is read; it has arrived by then.
            Ok(()) => exchange.await,
            Err(error) => Err(error.into()),
        },
    }
}

const PERIOD: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(1);
const BODY_MAX_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_with_unknown_fields_and_events_still_reads() {
        let text = r#"{"at_unix_ms": 1, "instance": {"phase": "serving", "pid": 7}, "frontends": [{"name": "apiserver",
            "backends": [{"name": "cp1", "health_state": "ready", "why": "probes pass", "flows": 3, "weight": 1}]}],
            "events": [{"number": 4, "at_unix_ms": 1, "event": "from_the_future"},
                {"number": 5, "at_unix_ms": 1, "event": "backend_changed", "frontend": "apiserver", "backend": "cp1",
                 "from": "ready", "to": "ejected", "cause": {"kind": "refused"}}]}"#;
        let status: DemoStatus = serde_json::from_str(text).unwrap();
        assert!(status.all_ready());
        assert_eq!(status.backend("cp1").unwrap().flows, 3);
        let (events, next) = status.events_since(0);
        let sentences: Vec<_> = events.iter().map(|event| event.what.sentence()).collect();
        assert_eq!((sentences, next), (vec!["apiserver/cp1: ready → ejected: connection refused".to_owned()], 6));
        assert!(status.events_since(6).0.is_empty());
    }

    #[test]
    fn nothing_is_ready_before_the_first_answer() {
        assert!(!DemoStatus::default().all_ready());
    }
}
