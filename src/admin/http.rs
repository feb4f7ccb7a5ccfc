//! The read-only HTTP servers: one with the page, `/live`, `/status.json`, `/metrics`, `/livez` and `/readyz`, one with the last three alone.

#[cfg(fuzzing)]
pub(crate) mod any;
mod host;
mod live;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::page::PageView;
use super::search::{self, PageLists, PageSearch};
use super::{Admin, page};
use crate::metrics::Exposition;
use crate::sys::clock::now_ns;
use crate::sys::socket::{listen_alone, peek};
use host::Hosts;
use live::{LiveHub, PageBody};

/// The pages that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpPages {
    All,
    /// No page with addresses of clients.
    Metrics,
}

impl HttpPages {
    fn paths(self) -> &'static [&'static str] {
        match self {
            Self::All => &["/", "/live", "/status.json", "/metrics", "/livez", "/readyz"],
            Self::Metrics => &["/metrics", "/livez", "/readyz"],
        }
    }
}

/// Limits of the HTTP server; the tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    pub connections: usize,
    /// Connections of one source. Connections beyond either number have only `extra_head`, and the oldest of these is
    /// closed for the next unless its whole request has come: silent connections must not delay a probe.
    pub connections_of_source: usize,
    pub extra_connections: usize,
    pub extra_head: Duration,
    /// Time for a request's head, including the wait for a further request.
    pub head: Duration,
    /// Time for a whole connection. It then ends even if the client does not read; clients may connect again at once.
    pub connection: Duration,
    /// Streams of server-sent events, and those of one source: each costs its reader's lists.
    pub streams: usize,
    pub streams_of_source: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 128,
            connections_of_source: 32,
            extra_connections: 32,
            extra_head: Duration::from_millis(500),
            head: Duration::from_secs(5),
            connection: Duration::from_secs(60),
            streams: 16,
            streams_of_source: 8,
        }
    }
}

/// Opens the listening socket.
pub fn open(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::from_std(listen_alone(address, BACKLOG)?)
}

/// Serves `listener` as long as it is polled. Accepted connections complete; the streams among them end.
pub async fn serve(admin: Arc<Admin>, listener: TcpListener, pages: HttpPages, limits: HttpLimits) {
    let live = LiveHub::new(&limits);
    let _ended = live.end_with_this();
    tokio::select! {
        () = live.run(&admin) => {}
        () = accept(&admin, &live, listener, pages, limits) => {}
    }
}

async fn accept(admin: &Arc<Admin>, live: &Arc<LiveHub>, listener: TcpListener, pages: HttpPages, limits: HttpLimits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let sources = DoorSources::default();
    let (mut extra, answers) = (VecDeque::new(), Arc::new(Semaphore::new(limits.extra_connections)));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (admin, live) = (admin.clone(), live.clone());
                let place =
                    sources.enter(from.ip(), limits.connections_of_source).zip(room.clone().try_acquire_owned().ok());
                let limits = match place {
                    Some(_) => limits,
                    None => HttpLimits {
                        head: limits.extra_head,
                        connection: limits.extra_head,
                        streams_of_source: 0,
                        ..limits
                    },
                };
                let cut_off = CancellationToken::new();
                let place = match place {
                    Some(permits) => DoorPlace::Regular { _permits: permits },
                    None => {
                        let give_way = CancellationToken::new();
                        extra.push_back(give_way.clone());
                        DoorPlace::Extra { give_way, answers: answers.clone() }
                    }
                };
                if extra.len() > limits.extra_connections
                    && let Some(oldest) = extra.pop_front()
                {
                    oldest.cancel();
                }
                let visit = Visit { live, from: from.ip(), limits, begun: Instant::now(), cut_off: cut_off.clone() };
                tokio::spawn(async move {
                    cut_off.run_until_cancelled(serve_connection(admin, pages, stream, visit, &place)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the HTTP server cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether a connection counts among those that the limits allow.
#[derive(Debug)]
enum DoorPlace {
    Regular {
        _permits: (DoorPermit, OwnedSemaphorePermit),
    },
    Extra {
        /// A newer connection takes this one's place.
        give_way: CancellationToken,
        /// How many that gave way may be answered at a time.
        answers: Arc<Semaphore>,
    },
}

impl DoorPlace {
    /// Completes when a newer connection takes this place.
    async fn given_way(&self) {
        match self {
            Self::Regular { .. } => std::future::pending().await,
            Self::Extra { give_way, .. } => give_way.cancelled().await,
        }
    }

    /// The right to be answered without a place. `None`: too many have it, or this is a regular place, which needs none.
    fn answer(&self) -> Option<SemaphorePermit<'_>> {
        match self {
            Self::Regular { .. } => None,
            Self::Extra { answers, .. } => answers.try_acquire().ok(),
        }
    }
}

/// What an answer may depend on beside its request.
#[derive(Clone, Debug)]
struct Visit {
    live: Arc<LiveHub>,
    from: IpAddr,
    limits: HttpLimits,
    begun: Instant,
    /// Ends the connection at once.
    cut_off: CancellationToken,
}

/// Number of connections per source.
#[derive(Clone, Debug, Default)]
struct DoorSources(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Counts one of them, as long as it exists.
#[derive(Debug)]
struct DoorPermit(DoorSources, IpAddr);

impl DoorSources {
    /// `None`: the source already has `max`.
    fn enter(&self, ip: IpAddr, max: usize) -> Option<DoorPermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(ip).or_default();
        (*count < max).then(|| {
            *count += 1;
            DoorPermit(self.clone(), ip)
        })
    }
}

impl Drop for DoorPermit {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

async fn serve_connection(admin: Arc<Admin>, pages: HttpPages, stream: TcpStream, visit: Visit, place: &DoorPlace) {
    let limits = visit.limits;
    // Many can come before the runtime gets to this one, whose request may be there by then.
    let mut answer = None;
    if matches!(place, DoorPlace::Extra { .. }) {
        tokio::select! {
            biased;
            () = place.given_way() => {
                answer = place.answer();
                if answer.is_none() || !has_whole_head(&stream) {
                    return;
                }
            }
            _ = stream.readable() => {}
            () = tokio::time::sleep(limits.head) => return,
        }
    }
    let answering = Arc::new(AtomicBool::new(false));
    let begun = answering.clone();
    let service = service_fn(move |request| {
        begun.store(true, Relaxed);
        let (admin, visit) = (admin.clone(), visit.clone());
        async move { Ok::<_, Infallible>(respond(&admin, pages, &visit, &request).await) }
    });
    let connection = reader(limits).keep_alive(answer.is_none()).serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        biased;
        served = connection.as_mut() => Some(served),
        () = place.given_way(), if answer.is_none() => {
            answer = place.answer();
            if answer.is_none() || !answering.load(Relaxed) {
                return;
            }
            None
        }
        () = tokio::time::sleep(limits.connection) => None,
    };
    // What is being answered is answered to its end.
    let served = match served {
        Some(served) => served,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.head, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "an HTTP connection broke");
    }
}

/// Reads requests within the limits.
fn reader(limits: HttpLimits) -> http1::Builder {
    let mut reader = http1::Builder::new();
    reader.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_MAX);
    reader
}

/// Whether a whole request without a body waits in the socket's buffer.
fn has_whole_head(stream: &TcpStream) -> bool {
    let mut head = [0; HEAD_MAX];
    peek(stream, &mut head).is_ok_and(|len| head[..len].windows(4).any(|it| it == b"\r\n\r\n"))
}

async fn respond(
    admin: &Arc<Admin>,
    pages: HttpPages,
    visit: &Visit,
    request: &Request<Incoming>,
) -> Response<PageBody> {
    let path = request.uri().path();
    if !pages.paths().contains(&path) {
        let there = pages.paths().join(", ");
        return text(StatusCode::NOT_FOUND, format!("this server has no such page; it has {there}\n"));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response =
            text(StatusCode::METHOD_NOT_ALLOWED, "this server is read-only; send orders to the admin socket\n");
        response.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("it is ASCII"));
        return response;
    }
    if matches!(path, "/" | "/live" | "/status.json")
        && let Err(refused) = Hosts::of(&admin.config.load()).check(request)
    {
        return text(StatusCode::MISDIRECTED_REQUEST, format!("{refused}\n"));
    }
    match path {
        "/livez" => verdict(&admin.not_live(now_ns())),
        "/readyz" => verdict(&admin.not_ready()),
        "/metrics" => metrics(admin, request).await,
        "/live" => live::respond(admin, visit, request),
        "/status.json" => match serde_json::to_vec_pretty(&admin.status().await) {
            Ok(json) => answer(StatusCode::OK, "application/json", json),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        _ => {
            let search = PageSearch::of_query(request.uri().query().unwrap_or(""));
            let page = admin.aside(move |admin| {
                let begun_ns = now_ns();
                let (view, lists) = (PageView::gather(admin, begun_ns), PageLists::find(admin, search));
                let again = search::pause(Duration::from_nanos(now_ns() - begun_ns));
                page::render(&view, &lists, again)
            });
            let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", page.await);
            let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy.parse().expect("it is ASCII"));
            response
        }
    }
}

fn verdict(reasons: &[String]) -> Response<PageBody> {
    match reasons {
        [] => text(StatusCode::OK, "ok\n"),
        reasons => text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
    }
}

async fn metrics(admin: &Arc<Admin>, request: &Request<Incoming>) -> Response<PageBody> {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::for_accept(accept);
    match admin.aside(move |admin| admin.metrics.encode(exposition)).await {
        Ok(body) => answer(StatusCode::OK, exposition.content_type(), body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<PageBody> {
    answer(status, "text/plain; charset=utf-8", text)
}

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<PageBody> {
    let mut response = Response::new(PageBody::Whole(Full::new(body.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in
        [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")]
    {
        headers.insert(name, value.parse().expect("it is ASCII"));
    }
    response
}

const HEAD_MAX: usize = 16 * 1024;
/// The kernel allows at most net.core.somaxconn. A client beyond it sends its SYN again after a second.
const BACKLOG: i32 = 4096;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
