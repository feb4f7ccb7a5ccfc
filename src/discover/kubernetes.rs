//! The source "kubernetes": the EndpointSlices of default/kubernetes, by list and watch at one of the frontend's own backends.
//!
//! ```text
//!   a backend, the ready ones first ──▶ list ──▶ watch ──▶ ends in time: watch again from the last version
//!         ▲                              ▲         ├─────▶ 410 Gone: list again
//!         └──────────────────────────────┼─────────┴─────▶ fails, or the backend is no longer ready: the next backend
//!                                        └── no backend lists: all errors in one, and again after a while
//! ```

mod slices;

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsConnector;

use super::LookSender;
use crate::addr::BackendAddr;
use crate::config::{KubernetesSource, read_file};
use crate::essential::{Tasks, aside};
use crate::model::health::{Cause, HealthState};
use crate::part::Part;
use crate::table::backend::Registry;
use slices::{SliceFault, Slices};

/// As [`super::read_any`].
#[cfg(fuzzing)]
pub(super) fn read_any(bytes: &[u8]) {
    let (list, events) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    let Ok(mut slices) = Slices::of_list(list) else { return };
    for line in events.split(|byte| *byte == b'\n') {
        let before = slices.addresses();
        if let Ok(has_changed) = slices.apply(line) {
            assert_eq!(has_changed, slices.addresses() != before);
        }
    }
    let _ = slices.version();
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";

/// Limits for an answer's head, for a whole list, and for one event of a watch.
const HEAD_MAX: Duration = Duration::from_secs(5);
const LIST_MAX: Duration = Duration::from_secs(10);
const LIST_BYTES_MAX: usize = 1 << 20;
const EVENT_BYTES_MAX: usize = 1 << 20;
const ERROR_BYTES_MAX: usize = 1 << 16;

/// The apiserver ends a watch after this, and Baton some time later if it does not.
const WATCH_S: u64 = 240;
const WATCH_MAX: Duration = Duration::from_secs(WATCH_S + 30);

/// Between two rounds through the backends if none lists, and at least between two lists.
const RETRY: Duration = Duration::from_secs(2);

/// How often a watch looks whether its backend is still ready.
const READY_CHECK: Duration = Duration::from_secs(1);

/// A host that vanishes is noticed by its silence.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)).with_retries(3);
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The name in the certificate of each apiserver.
const NAME: &str = "kubernetes";

/// Lists and watches until it is dropped.
pub(super) async fn follow(source: KubernetesSource, registry: Part<Registry>, looks: LookSender) {
    let client = SliceClient { source, registry, looks };
    // The instances of a fleet begin at different backends.
    let mut turn = fastrand::usize(..1 << 16);
    loop {
        let mut errors = Vec::new();
        let mut has_listed = false;
        for server in client.servers(turn) {
            match client.list(server).await {
                Ok(slices) => {
                    has_listed = true;
                    client.follow_at(server, slices).await;
                    break;
                }
                Err(error) => errors.push(format!("{server}: {error}")),
            }
        }
        if !has_listed {
            // In an order of their own, so that the same errors are the same sentence.
            errors.sort();
            let all = if errors.is_empty() { "no backend has an address".to_owned() } else { errors.join("; ") };
            client.looks.send(Err(format!("no apiserver answers: {all}"))).await;
        }
        turn = turn.wrapping_add(1);
        sleep(RETRY).await;
    }
}

struct SliceClient {
    source: KubernetesSource,
    registry: Part<Registry>,
    looks: LookSender,
}

/// An answer, and the task that reads it.
struct Answered {
    response: Response<Incoming>,
    _connection: Tasks,
}

impl SliceClient {
    /// The backends to ask, in this order: those that are ready come first.
    fn servers(&self, turn: usize) -> Vec<BackendAddr> {
        let mut all: Vec<_> = self.backends().collect();
        let count = all.len().max(1);
        all.rotate_left(turn % count);
        all.sort_by_key(|(_, is_ready)| !is_ready);
        all.into_iter().map(|(address, _)| address).collect()
    }

    fn backends(&self) -> impl Iterator<Item = (BackendAddr, bool)> {
        let all = self.registry.backends().into_iter().filter(|it| it.frontend.name == self.looks.frontend);
        let all = all.filter(|it| !it.is_former() && it.health().cause != Cause::Removed);
        all.filter_map(|it| Some((it.address()?, it.health().health_state == HealthState::Ready)))
    }

    /// Whether another backend is ready, and this one is not.
    fn is_worse(&self, server: BackendAddr) -> bool {
        let ready: Vec<_> = self.backends().filter(|(_, is_ready)| *is_ready).collect();
        !ready.is_empty() && ready.iter().all(|(address, _)| *address != server)
    }

    async fn list(&self, server: BackendAddr) -> Result<Slices, String> {
        let listed = async {
            let Answered { response, _connection } = self.get(server, SLICES).await?;
            let body = Limited::new(response.into_body(), LIST_BYTES_MAX).collect().await;
            Slices::of_list(&body.map_err(|error| error.to_string())?.to_bytes())
        };
        timeout(LIST_MAX, listed).await.unwrap_or_else(|_| Err("it did not list in time".to_owned()))
    }

    /// Follows `server`, which has just listed `slices`, for as long as it can be watched.
    async fn follow_at(&self, server: BackendAddr, mut slices: Slices) {
        while self.tell(&slices).await {
            match self.watch(server, &mut slices).await {
                Ok(()) => {}
                Err(SliceFault::Expired) => {
                    sleep(RETRY).await;
                    match self.list(server).await {
                        Ok(listed) => slices = listed,
                        Err(_) => return,
                    }
                }
                Err(SliceFault::Broken(error)) => {
                    tracing::debug!(%server, error, "the watch of the apiservers' addresses has ended");
                    return;
                }
            }
        }
    }

    /// Reports the addresses. Returns whether there is one: a cluster without an apiserver does not answer, so Baton lists again.
    async fn tell(&self, slices: &Slices) -> bool {
        let addresses = slices.addresses();
        let is_some = !addresses.is_empty();
        self.looks.send(Ok(addresses)).await;
        is_some
    }

    /// Returns when the apiserver ends the watch in the ordinary way.
    async fn watch(&self, server: BackendAddr, slices: &mut Slices) -> Result<(), SliceFault> {
        let version = slices.version();
        let path =
            format!("{SLICES}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={version}");
        let began = tokio::time::Instant::now();
        let Answered { mut response, _connection } =
            self.get(server, &path).await.map_err(|error| match error.starts_with("410 ") {
                true => SliceFault::Expired,
                false => SliceFault::Broken(error),
            })?;
        let (mut unread, mut checks) = (Vec::new(), interval(READY_CHECK));
        loop {
            let frame = tokio::select! {
                frame = response.body_mut().frame() => frame,
                _ = checks.tick() => {
                    if self.is_worse(server) {
                        return Err(SliceFault::Broken("it is no longer ready".to_owned()));
                    }
                    if began.elapsed() > WATCH_MAX {
                        return Err(SliceFault::Broken("it did not end the watch in time".to_owned()));
                    }
                    continue;
                }
            };
            let Some(frame) = frame else {
                // One that ends at once would be asked without a pause.
                sleep(RETRY.saturating_sub(began.elapsed())).await;
                return Ok(());
            };
            let frame = frame.map_err(|error| SliceFault::Broken(error.to_string()))?;
            unread.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                if slices.apply(&line)? && !self.tell(slices).await {
                    return Err(SliceFault::Broken("no address is left".to_owned()));
                }
            }
            if unread.len() > EVENT_BYTES_MAX {
                return Err(SliceFault::Broken("an event is too long".to_owned()));
            }
        }
    }

    /// The answer 200 to a request of `path`.
    async fn get(&self, server: BackendAddr, path: &str) -> Result<Answered, String> {
        let answered = timeout(HEAD_MAX, self.ask(server, path)).await;
        let answered = answered.unwrap_or_else(|_| Err("no answer in time".to_owned()))?;
        let status = answered.response.status();
        if status == StatusCode::OK {
            return Ok(answered);
        }
        let body = Limited::new(answered.response.into_body(), ERROR_BYTES_MAX).collect();
        let body = timeout(HEAD_MAX, body).await.ok().and_then(Result::ok).map(|body| body.to_bytes());
        let said = body.map(|body| slices::message(&body)).unwrap_or_default();
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

async fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    let options = SockRef::from(&socket);
    options.set_tcp_keepalive(&KEEPALIVE)?;
    options.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_nodelay(true)?;
    socket.connect(server).await
}
