//! One connection of a kubelet-like client, from the connect to its end.

use std::error::Error;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::gap::GapMeter;
use super::{Heartbeat, KubeletEvent, KubeletProgress, KubeletSettings, lease};
use crate::lab::lease::{LEASES_PATH, Lease, NAME_HEADER};
use crate::sys::clock::now_ns;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("connecting to {server}: {source}")]
    Tcp { server: SocketAddr, source: io::Error },
    /// Names the certificate's fault if that is the cause.
    #[error("TLS with {server}: {source}")]
    Tls { server: SocketAddr, source: io::Error },
    #[error("HTTP/2 with {server}: {}", chain(source))]
    Http2 { server: SocketAddr, source: hyper::Error },
    #[error("connecting to {server}: not done within {after_ms} ms")]
    TimedOut { server: SocketAddr, after_ms: u128 },
}

/// Why a request got no good answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("{}", chain(.0))]
    Http(#[from] hyper::Error),
    #[error("the request: {0}")]
    Build(#[from] hyper::http::Error),
    #[error("the lease: {0}")]
    Json(#[from] serde_json::Error),
    #[error("answered {0}")]
    Status(hyper::StatusCode),
    #[error("a lease of this name is there already, and no drill's")]
    Foreign,
    #[error("no answer within {after_ms} ms")]
    TimedOut { after_ms: u128 },
}

pub(super) type Requests = SendRequest<Full<Bytes>>;
pub(super) type Driver = http2::Connection<TokioIo<TlsStream<TcpStream>>, Full<Bytes>, TokioExecutor>;

/// A connection that requests can be sent on while [`KubeletSession::run`] runs.
pub(super) struct KubeletSession {
    pub requests: Requests,
    pub driver: Driver,
    local: SocketAddr,
    start_ns: u64,
}

/// Makes a connection.
pub(super) async fn connect(settings: &KubeletSettings) -> Result<KubeletSession, ConnectError> {
    let server = settings.server.socket_addr();
    let after_ms = settings.request_timeout.as_millis();
    timeout(settings.request_timeout, connect_slowly(settings, server))
        .await
        .unwrap_or(Err(ConnectError::TimedOut { server, after_ms }))
}

async fn connect_slowly(settings: &KubeletSettings, server: SocketAddr) -> Result<KubeletSession, ConnectError> {
    let start_ns = now_ns();
    let (stream, local) = connect_tcp(settings, server).await.map_err(|source| ConnectError::Tcp { server, source })?;
    let stream = TlsConnector::from(settings.tls.clone())
        .connect(settings.server_name.clone(), stream)
        .await
        .map_err(|source| ConnectError::Tls { server, source })?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    if let Some(ping_after) = settings.ping_after {
        builder.keep_alive_interval(ping_after).keep_alive_timeout(settings.ping_timeout).keep_alive_while_idle(true);
    }
    let (requests, driver) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|source| ConnectError::Http2 { server, source })?;
    Ok(KubeletSession { requests, driver, local, start_ns })
}

async fn connect_tcp(settings: &KubeletSettings, server: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
    let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_nodelay(true)?;
    if let Some(source) = settings.source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    let stream = socket.connect(server).await?;
    let local = stream.local_addr()?;
    Ok((stream, local))
}

impl KubeletSession {
    /// Renews and watches until the connection ends; returns how it ended.
    pub(super) async fn run(self, settings: &KubeletSettings, progress: &KubeletProgress) -> String {
        let KubeletSession { requests, driver, local, start_ns } = self;
        let hello = Proven { local, start_ns };
        let watching = requests.clone();
        // The watches and the renewals come before the driver: their errors say more than "connection closed".
        tokio::select! {
            biased;
            ended = watches(watching, settings, progress) => ended,
            error = renew(requests, settings, progress, hello) => error,
            ended = driver => match ended {
                Ok(()) => "the connection was closed".to_owned(),
                Err(error) => chain(&error),
            },
        }
    }
}

/// The report of a connection once it has proved to work.
struct Proven {
    local: SocketAddr,
    start_ns: u64,
}

/// Renews the lease for ever; returns only when the connection accepts no more requests.
async fn renew(
    mut requests: Requests,
    settings: &KubeletSettings,
    progress: &KubeletProgress,
    hello: Proven,
) -> String {
    let mut hello = Some(hello);
    // A new connection does not change when the next renewal is due.
    let mut ticks = interval_at(Instant::now() + progress.next_due(settings.renew_every), settings.renew_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let failed = progress.failed_in_a_row();
        match failed {
            0 => drop(ticks.tick().await),
            _ => match settings.retries.pause(failed) {
                Some(pause) => sleep(pause).await,
                None => drop(ticks.tick().await),
            },
        }
        let start_ns = now_ns();
        let attempt = timeout(settings.request_timeout, renew_once(&mut requests, settings, progress));
        let timed_out = RequestError::TimedOut { after_ms: settings.request_timeout.as_millis() };
        match attempt.await.unwrap_or(Err(timed_out)) {
            Ok(stand_in) => {
                // The next renewal is due an interval after this one, however late this one came.
                if failed > 0 {
                    ticks.reset();
                }
                if let Some(Proven { local, start_ns }) = hello.take() {
                    let took_ms = (now_ns() - start_ns) / 1_000_000;
                    progress.note(KubeletEvent::Connected { stand_in, local, took_ms });
                }
                progress.renewed(Duration::from_nanos(now_ns() - start_ns));
            }
            Err(error) => {
                progress.failed();
                progress.note(KubeletEvent::Failed { error: format!("renewing the lease: {error}") });
                if requests.is_closed() {
                    return error.to_string();
                }
            }
        }
    }
}

/// Returns the name of the answering stand-in.
async fn renew_once(
    requests: &mut Requests,
    settings: &KubeletSettings,
    progress: &KubeletProgress,
) -> Result<Option<String>, RequestError> {
    let answer = match &settings.heartbeat {
        Heartbeat::Lease => {
            let lease = serde_json::to_vec(&Lease::renewed_now(&settings.name))?;
            let path = format!("{LEASES_PATH}/{}", settings.name);
            send(requests, settings, Method::PUT, &path, lease.into()).await?
        }
        Heartbeat::DrillLease { namespace } => return lease::renew(requests, settings, namespace, progress).await,
        Heartbeat::Get(path) => send(requests, settings, Method::GET, path, Bytes::new()).await?,
    };
    let stand_in = name_of(&answer);
    let code = answer.status();
    answer.into_body().collect().await?;
    if code.is_success() { Ok(stand_in) } else { Err(RequestError::Status(code)) }
}

/// The name of the answering stand-in.
pub(super) fn name_of(answer: &Response<Incoming>) -> Option<String> {
    answer.headers().get(NAME_HEADER).and_then(|name| name.to_str().ok()).map(str::to_owned)
}

/// Holds the configured number of watches; returns when one of them reports the end of the connection.
async fn watches(requests: Requests, settings: &KubeletSettings, progress: &KubeletProgress) -> String {
    let path = settings.watch.as_deref().unwrap_or_default();
    let number = settings.watch.as_ref().map_or(0, |_| settings.watches);
    let mut all: Vec<_> = (0..number).map(|_| Box::pin(watch(requests.clone(), path, settings, progress))).collect();
    poll_fn(|cx| all.iter_mut().map(|watch| watch.as_mut().poll(cx)).find(Poll::is_ready).unwrap_or(Poll::Pending))
        .await
}

/// Holds a watch for ever: opens a new one whenever it ends, until the connection ends.
async fn watch(mut requests: Requests, path: &str, settings: &KubeletSettings, progress: &KubeletProgress) -> String {
    let mut meter = GapMeter::new(now_ns());
    loop {
        let ended = watch_once(&mut requests, path, settings, progress, &mut meter).await;
        let error = ended.err().map(|error| error.to_string());
        progress.note(KubeletEvent::WatchEnded { error: error.clone() });
        if requests.is_closed() {
            return error.unwrap_or_else(|| "the connection was closed".to_owned());
        }
        sleep(REWATCH_PAUSE).await;
    }
}

async fn watch_once(
    requests: &mut Requests,
    path: &str,
    settings: &KubeletSettings,
    progress: &KubeletProgress,
    meter: &mut GapMeter,
) -> Result<(), RequestError> {
    let answer = send(requests, settings, Method::GET, path, Bytes::new()).await?;
    if !answer.status().is_success() {
        return Err(RequestError::Status(answer.status()));
    }
    let _open = progress.watching();
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data()
            && !data.is_empty()
        {
            let now = now_ns();
            let gap_ms = meter.open_ns(now) / 1_000_000;
            meter.success(now);
            progress.note(KubeletEvent::Watched { bytes: data.len(), gap_ms });
        }
    }
    Ok(())
}

pub(super) async fn send(
    requests: &mut Requests,
    settings: &KubeletSettings,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, RequestError> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("https://{}{path}", settings.server))
        .header(CONTENT_TYPE, "application/json");
    if let Some(authorization) = &settings.authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let request = request.body(Full::new(body))?;
    requests.ready().await?;
    Ok(requests.send_request(request).await?)
}

/// An error and its causes in one line: hyper's own text alone is rarely enough.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let _ = write!(text, ": {cause}");
        next = cause.source();
    }
    // rustls adds a link to its manual if the far end closed without a TLS close_notify.
    text.split(": https://").next().unwrap_or_default().to_owned()
}

const REWATCH_PAUSE: Duration = Duration::from_secs(1);
