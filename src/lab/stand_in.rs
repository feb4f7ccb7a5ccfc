//! A stand-in for an apiserver: HTTPS with HTTP/1.1 and HTTP/2, readiness, leases and a watch. It is a process of its
//! own, so that a test can kill and stop it like the real one.
//!
//! Signals: SIGUSR1 makes it not ready, SIGUSR2 ready again; SIGTERM makes it not ready for `--shutdown-delay` and
//! then ends it gracefully, as an apiserver with `--shutdown-delay-duration` does.

pub(crate) mod api;
mod watch_body;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::bind;
use super::certs::{Authority, CertError};
use crate::lab::tls::{self, TlsFileError};
use crate::model::duration;
use api::StandIn;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StandInArgs {
    /// The address to listen on; with port 0, on a free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Name of the stand-in.
    #[arg(long, default_value = "cp1")]
    pub name: String,
    /// Certificate chain, PEM.
    #[arg(long, required_unless_present = "make_certs")]
    pub cert: Option<PathBuf>,
    /// Private key, PEM.
    #[arg(long, required_unless_present = "make_certs")]
    pub key: Option<PathBuf>,
    /// Time between two events of a watch; 0: no events.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub watch_period: Duration,
    /// Time after SIGTERM for which it serves but is not ready.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub shutdown_delay: Duration,
    /// Writes ca.crt and the certificates server, expired and wrong-name into this directory, and ends.
    #[arg(long)]
    pub make_certs: Option<PathBuf>,
    /// One more name or address for the certificates that --make-certs writes.
    #[arg(long, requires = "make_certs")]
    pub san: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StandInError {
    #[error(transparent)]
    Certs(#[from] CertError),
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error("--cert and --key are both needed")]
    NoCertificate,
    #[error("listening on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("starting: {0}")]
    Start(#[source] io::Error),
}

/// Runs `baton stand-in` until it is told to stop.
pub(crate) fn run(args: StandInArgs) -> ExitCode {
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton stand-in: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: StandInArgs) -> Result<(), StandInError> {
    if let Some(dir) = &args.make_certs {
        return Ok(Authority::new()?.issue_all(dir, &args.san)?);
    }
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return Err(StandInError::NoCertificate) };
    let tls = TlsAcceptor::from(tls::server_config(cert, key)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StandInError::Start)?;
    runtime.block_on(serve(args, tls))
}

async fn serve(args: StandInArgs, tls: TlsAcceptor) -> Result<(), StandInError> {
    let listening = |source| StandInError::Listen { address: args.listen, source };
    let mut signals = Signals::new().map_err(StandInError::Start)?;
    let listener = bind::listener(args.listen).map_err(listening)?;
    let address = listener.local_addr().map_err(listening)?;
    let stand_in = Arc::new(StandIn::new(args.name, args.watch_period));
    announce(address);

    let mut connections = JoinSet::new();
    let mut stop_at = None;
    loop {
        tokio::select! {
            stream = accept(&listener) => {
                connections.spawn(connection(stream, tls.clone(), stand_in.clone()));
            }
            Some(_) = connections.join_next() => {}
            order = signals.next() => match order {
                StandInOrder::Ready(ready) => stand_in.set_ready(ready),
                StandInOrder::Stop => {
                    stand_in.set_ready(false);
                    stop_at.get_or_insert_with(|| tokio::time::Instant::now() + args.shutdown_delay);
                }
            },
            () = until(stop_at) => break,
        }
    }
    drop(listener);
    stand_in.stop();
    let all_ended = async { while connections.join_next().await.is_some() {} };
    // Connections that are still open are cut off, as those of an apiserver are.
    let _ = tokio::time::timeout(STOP_MARGIN, all_ended).await;
    Ok(())
}

/// Prints its address for the process that started it. The reader may be gone.
fn announce(address: SocketAddr) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{LISTENING}{address}").and_then(|()| out.flush());
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // Probably out of file descriptors: without a pause this would use a whole core.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn until(when: Option<tokio::time::Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Serves one connection to its end; once the stand-in stops, only the requests in flight.
async fn connection(stream: TcpStream, tls: TlsAcceptor, stand_in: Arc<StandIn>) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await else { return };
    let http2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
    let mut stopping = stand_in.stopping();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let stand_in = stand_in.clone();
        async move { Ok::<_, std::convert::Infallible>(stand_in.answer(request).await) }
    });
    let io = TokioIo::new(stream);
    // The two kinds of connection share no trait, so the macro writes the body for each.
    macro_rules! drive {
        ($builder:expr) => {{
            let mut served = std::pin::pin!($builder.timer(TokioTimer::new()).serve_connection(io, service));
            tokio::select! {
                _ = served.as_mut() => {}
                () = api::stop_ordered(&mut stopping) => {
                    served.as_mut().graceful_shutdown();
                    let _ = served.await;
                }
            }
        }};
    }
    if http2 {
        drive!(http2::Builder::new(TokioExecutor::new()));
    } else {
        drive!(http1::Builder::new());
    }
}

enum StandInOrder {
    Ready(bool),
    Stop,
}

struct Signals {
    not_ready: Signal,
    ready: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            not_ready: signal(SignalKind::user_defined1())?,
            ready: signal(SignalKind::user_defined2())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> StandInOrder {
        tokio::select! {
            _ = self.not_ready.recv() => StandInOrder::Ready(false),
            _ = self.ready.recv() => StandInOrder::Ready(true),
            _ = self.terminate.recv() => StandInOrder::Stop,
            _ = self.interrupt.recv() => StandInOrder::Stop,
        }
    }
}

/// The beginning of the line with its address.
pub(crate) const LISTENING: &str = "listening ";
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_MARGIN: Duration = Duration::from_secs(3);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
