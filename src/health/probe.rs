//! One probe: a new connection, so that it proves that the backend accepts connections.

mod connect;
mod fault;
mod http;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::addr::BackendAddr;
use crate::config::{Backend, Health, ProbeKind, Target};
use crate::model::health::Cause;
use crate::model::health::machine::ProbeOutcome;
use crate::sys::socket;

/// A lost SYN is repeated only after 1 s (RFC 6298), a lost segment after 200 ms: on a lossy path a single connection
/// would take a healthy backend for silent. So while there is no answer, further attempts start in parallel, one at
/// each fifth of the timeout; the first that ends decides.
const ATTEMPTS: u32 = 4;

/// Parts of the timeout. If a part ends late by as much again, this process did not run, and the answer may wait in the
/// socket: the probe then waits another part. At most so many times.
const PARTS: u32 = 10;

/// How to probe one backend.
#[derive(Debug)]
pub(super) struct Manner {
    kind: ProbeBy,
    timeout: Duration,
    /// The longest segment that the backend accepts, according to the last connection; 0: there was none.
    segment_max: AtomicU32,
}

#[derive(Debug)]
enum ProbeBy {
    Tcp,
    Tls(tls::TlsClient),
    Http(http::Question),
    Https(tls::TlsClient, http::Question),
}

impl Manner {
    pub(super) fn new(health: &Health, backend: &Backend) -> Self {
        let name = match (&health.host, &backend.address) {
            (Some(host), _) => Some(host.clone()),
            (None, Target::Name { host, port }) => Some(format!("{host}:{port}")),
            (None, Target::Address(_)) => None,
        };
        let question = || http::Question { host: name.clone(), path: health.path.clone() };
        let client = |alpn: &[&[u8]]| {
            let tls = health.tls.as_ref().expect("a valid configuration has TLS settings for this kind");
            tls::TlsClient::new(tls, name.as_deref(), alpn)
        };
        let kind = match health.kind {
            ProbeKind::Tcp => ProbeBy::Tcp,
            ProbeKind::Tls => ProbeBy::Tls(client(&[])),
            ProbeKind::Http => ProbeBy::Http(question()),
            ProbeKind::Https => ProbeBy::Https(client(http::ALPN), question()),
        };
        Self { kind, timeout: health.timeout, segment_max: AtomicU32::new(0) }
    }

    /// The longest segment that the backend accepts, in bytes; 0: not known yet.
    pub(super) fn segment_max(&self) -> u32 {
        self.segment_max.load(Relaxed)
    }

    /// Probes `to` once. The timeout covers everything from the SYN to the answer. Each connection is told to `heard`: the backend's
    /// host is there, whatever its process does.
    pub(super) async fn probe(self: Arc<Self>, to: BackendAddr, heard: impl Heard) -> ProbeOutcome {
        let timeout = self.timeout;
        tokio::select! {
            biased;
            outcome = self.first_of_several(to, heard) => outcome,
            () = run_out(timeout) => ProbeOutcome::Failed(Cause::TimedOut { after_ms: timeout.as_millis() as u64 }),
        }
    }

    async fn first_of_several(self: Arc<Self>, to: BackendAddr, heard: impl Heard) -> ProbeOutcome {
        let mut begin = interval((self.timeout / (ATTEMPTS + 1)).max(Duration::from_millis(1)));
        begin.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut attempts = JoinSet::new();
        let mut left = ATTEMPTS;
        loop {
            tokio::select! {
                Some(ended) = attempts.join_next() => {
                    return ended.unwrap_or_else(|error| ProbeOutcome::Inconclusive { error: error.to_string() });
                }
                _ = begin.tick(), if left > 0 => {
                    left -= 1;
                    let (manner, heard) = (self.clone(), heard.clone());
                    attempts.spawn(async move { manner.attempt(to, heard).await });
                }
            }
        }
    }

    async fn attempt(&self, to: BackendAddr, heard: impl Heard) -> ProbeOutcome {
        let stream = match connect::connect(to).await {
            Ok(stream) => stream,
            Err(error) => return fault::of_connect(&error),
        };
        heard();
        self.segment_max.store(socket::segment_max(&stream).unwrap_or(0), Relaxed);
        match &self.kind {
            ProbeBy::Tcp => ProbeOutcome::Passed,
            ProbeBy::Tls(client) => match client.handshake(to, stream).await {
                Ok(stream) => tls::aftermath(stream).await,
                Err(error) => fault::of_io(&error),
            },
            ProbeBy::Http(question) => question.ask(to, stream).await,
            ProbeBy::Https(client, question) => match client.handshake(to, stream).await {
                Ok(stream) => question.ask(to, stream).await,
                Err(error) => fault::of_io(&error),
            },
        }
    }
}

/// Is told that the backend's kernel has answered.
pub(super) trait Heard: Fn() + Clone + Send + 'static {}

impl<F: Fn() + Clone + Send + 'static> Heard for F {}

/// Returns after `timeout`, but counts only the time in which this process ran.
async fn run_out(timeout: Duration) {
    let part = (timeout / PARTS).max(Duration::from_millis(1));
    let (mut left, mut anew) = (timeout, PARTS);
    while !left.is_zero() {
        let began = Instant::now();
        sleep(part.min(left)).await;
        let took = began.elapsed();
        if took > 2 * part && anew > 0 {
            anew -= 1;
            continue;
        }
        left = left.saturating_sub(took);
    }
}

#[cfg(test)]
mod tests;
