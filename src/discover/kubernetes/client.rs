//! Asks the apiservers of a frontend's backends: an answer, or the lines of a watch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, Interval, interval, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::addr::BackendAddr;
use crate::config::{KubernetesSource, read_file};
use crate::essential::{Tasks, aside};
use crate::model::health::{Cause, HealthState};
use crate::part::Part;
use crate::table::backend::Registry;

/// Limits for an answer's head, and for one event of a watch.
const HEAD_MAX: Duration = Duration::from_secs(5);
const EVENT_BYTES_MAX: usize = 1 << 20;
const ERROR_BYTES_MAX: usize = 1 << 16;

/// The apiserver ends a watch after this, and Baton some time later if it does not.
const WATCH_S: u64 = 240;
const WATCH_MAX: Duration = Duration::from_secs(WATCH_S + 30);

/// Between two rounds through the backends if none lists, and at least between two lists.
pub(super) const RETRY: Duration = Duration::from_secs(2);

/// How often a watch looks whether its backend is still ready.
const READY_CHECK: Duration = Duration::from_secs(1);

/// A host that vanishes is noticed by its silence.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)).with_retries(3);
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The name in the certificate of each apiserver.
const NAME: &str = "kubernetes";

const SHOWN_CHARS_MAX: usize = 200;

#[derive(Clone)]
pub(super) struct ApiClient {
    pub source: KubernetesSource,
    pub registry: Part<Registry>,
    /// Its backends are asked.
    pub frontend: Arc<str>,
}

/// An answer, and the task that reads it.
pub(super) struct Answered {
    pub response: Response<Incoming>,
    pub _connection: Tasks,
}

/// Why a watch cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchFault {
    /// The version is too old: list again.
    Expired,
    /// The apiserver refuses it (403), and lists all the same.
    Forbidden(String),
    Broken(String),
}

/// The lines of a watch.
pub(super) struct ApiWatch<'c> {
    client: &'c ApiClient,
    server: BackendAddr,
    answered: Answered,
    unread: Vec<u8>,
    checks: Interval,
    began: Instant,
}

#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

/// An error of the apiserver.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiStatus {
    code: u16,
    message: String,
}

impl ApiClient {
    /// The backends to ask, in this order: those that are ready come first.
    pub(super) fn servers(&self, turn: usize) -> Vec<BackendAddr> {
        let mut all: Vec<_> = self.backends().collect();
        let count = all.len().max(1);
        all.rotate_left(turn % count);
        all.sort_by_key(|(_, is_ready)| !is_ready);
        all.into_iter().map(|(address, _)| address).collect()
    }

    fn backends(&self) -> impl Iterator<Item = (BackendAddr, bool)> {
        let all = self.registry.backends().into_iter().filter(|it| it.frontend.name == self.frontend);
        let all = all.filter(|it| !it.is_former() && it.health().cause != Cause::Removed);
        all.filter_map(|it| Some((it.address()?, it.health().health_state == HealthState::Ready)))
    }

    /// Whether another backend is ready, and this one is not.
    fn is_worse(&self, server: BackendAddr) -> bool {
        let ready: Vec<_> = self.backends().filter(|(_, is_ready)| *is_ready).collect();
        !ready.is_empty() && ready.iter().all(|(address, _)| *address != server)
    }

    /// Watches what `path`, with its `?`, lists, from `version` on.
    pub(super) async fn watch(
        &self,
        server: BackendAddr,
        path: &str,
        version: &str,
    ) -> Result<ApiWatch<'_>, WatchFault> {
        let path =
            format!("{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={version}");
        let began = Instant::now();
        let answered = self.get(server, &path).await.map_err(|error| match error.split(' ').next() {
            Some("410") => WatchFault::Expired,
            Some("403") => WatchFault::Forbidden(error),
            _ => WatchFault::Broken(error),
        })?;
        Ok(ApiWatch { client: self, server, answered, unread: Vec::new(), checks: interval(READY_CHECK), began })
    }

    /// The answer 200 to a request of `path`.
    pub(super) async fn get(&self, server: BackendAddr, path: &str) -> Result<Answered, String> {
        let answered = timeout(HEAD_MAX, self.ask(server, path)).await;
        let answered = answered.unwrap_or_else(|_| Err("no answer in time".to_owned()))?;
        let status = answered.response.status();
        if status == StatusCode::OK {
            return Ok(answered);
        }
        let body = Limited::new(answered.response.into_body(), ERROR_BYTES_MAX).collect();
        let body = timeout(HEAD_MAX, body).await.ok().and_then(Result::ok).map(|body| body.to_bytes());
        let said = body.map(|body| message(&body)).unwrap_or_default();
        Err(format!("{status}{said}"))
    }

    async fn ask(&self, server: BackendAddr, path: &str) -> Result<Answered, String> {
        let mut request = Request::get(path)
            .header(HOST, server.to_string())
            .header(USER_AGENT, concat!("baton/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json");
        if let Some(token) = self.token().await? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
        let stream = connect(server.socket_addr()).await.map_err(|error| error.to_string())?;
        let name = self.source.tls.server_name.clone();
        let name = name.unwrap_or_else(|| ServerName::try_from(NAME).expect("a DNS name"));
        let stream = TlsConnector::from(self.source.tls.client.clone()).connect(name, stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let tasks = Tasks::default();
        tasks.spawn("discovery", async {
            // The reader of the answer sees how it ends.
            let _ = connection.await;
        });
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Ok(Answered { response, _connection: tasks })
    }

    /// Read each time: a kubelet and others replace such files before they expire.
    async fn token(&self) -> Result<Option<HeaderValue>, String> {
        let Some(path) = self.source.token_file.clone() else { return Ok(None) };
        let shown = path.display().to_string();
        let read = aside(move || read_file(&path)).await;
        let bytes = read.ok_or("Baton ends")?.map_err(|fault| format!("cannot read {shown}: {fault}"))?;
        let token = String::from_utf8(bytes).ok().map(|text| text.trim().to_owned()).filter(|token| !token.is_empty());
        let header = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
        let mut header = header.ok_or_else(|| format!("{shown} has no token"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl ApiWatch<'_> {
    /// The next event. `None`: the apiserver has ended the watch in the ordinary way.
    pub(super) async fn next_line(&mut self) -> Result<Option<Vec<u8>>, WatchFault> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.unread.drain(..=end).collect()));
            }
            if self.unread.len() > EVENT_BYTES_MAX {
                return Err(WatchFault::Broken("an event is too long".to_owned()));
            }
            let frame = tokio::select! {
                frame = self.answered.response.body_mut().frame() => frame,
                _ = self.checks.tick() => {
                    if self.client.is_worse(self.server) {
                        return Err(WatchFault::Broken("it is no longer ready".to_owned()));
                    }
                    if self.began.elapsed() > WATCH_MAX {
                        return Err(WatchFault::Broken("it did not end the watch in time".to_owned()));
                    }
                    continue;
                }
            };
            let Some(frame) = frame else {
                // One that ends at once would be asked without a pause.
                sleep(RETRY.saturating_sub(self.began.elapsed())).await;
                return Ok(None);
            };
            let frame = frame.map_err(|error| WatchFault::Broken(error.to_string()))?;
            self.unread.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
    }
}

impl WatchFault {
    /// Of an event of the type ERROR.
    fn of_status(object: serde_json::Value) -> Self {
        let status: ApiStatus = serde_json::from_value(object).unwrap_or_default();
        if status.code == 410 { Self::Expired } else { Self::Broken(shown(&status.message)) }
    }
}

/// The type and the object of a line of a watch. `None`: the line is empty.
pub(super) fn watch_event<T: DeserializeOwned>(line: &[u8]) -> Result<Option<(String, T)>, WatchFault> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let broken = |error: serde_json::Error| WatchFault::Broken(format!("an event that is none: {error}"));
    let event: WatchEvent = serde_json::from_slice(line).map_err(broken)?;
    if event.kind == "ERROR" {
        return Err(WatchFault::of_status(event.object));
    }
    Ok(Some((event.kind, serde_json::from_value(event.object).map_err(broken)?)))
}

/// Reads `body` as that of an error.
#[cfg(fuzzing)]
pub(super) fn read_any(body: &[u8]) {
    assert!(message(body).chars().count() <= SHOWN_CHARS_MAX + 2);
}

async fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    let options = SockRef::from(&socket);
    options.set_tcp_keepalive(&KEEPALIVE)?;
    options.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_nodelay(true)?;
    socket.connect(server).await
}

/// The message of an error, as the end of a sentence.
pub(super) fn message(body: &[u8]) -> String {
    let status: ApiStatus = serde_json::from_slice(body).unwrap_or_default();
    if status.message.is_empty() { String::new() } else { format!(": {}", shown(&status.message)) }
}

pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
