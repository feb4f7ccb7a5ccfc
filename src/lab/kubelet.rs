//! A client that behaves as a kubelet does towards its apiserver: one HTTP/2 connection over TLS, a lease renewed on
//! it again and again, a watch held on it. It tells how long it went without a renewal: the instrument by which
//! faults are judged.
//!
//! Like Go's HTTP/2 transport it stays on its connection when a request times out; it leaves when the connection
//! ends or when pings on it stay unanswered. So a load balancer that leaves it on a dead connection shows.

pub mod command;
pub mod gap;
mod lease;
mod session;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::addr::VipAddr;
use crate::lab::lease::WATCH_PATH;
use crate::sys::clock::now_ns;
use gap::GapMeter;

/// How a kubelet-like client behaves. [`KubeletSettings::new`] fills in what a real one does, except that it renews every
/// second instead of every 10 s, so that gaps are measured finely.
#[derive(Clone, Debug)]
pub struct KubeletSettings {
    /// The one address it ever connects to.
    pub server: VipAddr,
    /// The name its certificate must have.
    pub server_name: ServerName<'static>,
    /// Made by [`super::tls::client_config`].
    pub tls: Arc<rustls::ClientConfig>,
    /// The node's name.
    pub name: String,
    pub heartbeat: Heartbeat,
    pub renew_every: Duration,
    pub retries: Retries,
    /// For a renewal, and for a connection to be ready for requests.
    pub request_timeout: Duration,
    /// What it watches on the same connection.
    pub watch: Option<String>,
    /// So many times at once, each a stream of its own.
    pub watches: u16,
    /// Sent with every request, as the value of `authorization`.
    pub authorization: Option<String>,
    /// A ping is sent after this long without a frame from the server. `None`: never.
    pub ping_after: Option<Duration>,
    /// A ping unanswered for this long ends the connection.
    pub ping_timeout: Duration,
    /// The address to connect from. `None`: the kernel chooses.
    pub source: Option<IpAddr>,
}

impl KubeletSettings {
    pub fn new(server: VipAddr, tls: Arc<rustls::ClientConfig>, name: impl Into<String>) -> Self {
        Self {
            server,
            server_name: ServerName::IpAddress(server.ip().into()),
            tls,
            name: name.into(),
            heartbeat: Heartbeat::Lease,
            renew_every: Duration::from_secs(1),
            retries: Retries::NONE,
            request_timeout: Duration::from_secs(10),
            watch: Some(WATCH_PATH.to_owned()),
            watches: 1,
            authorization: None,
            ping_after: Some(Duration::from_secs(30)),
            ping_timeout: Duration::from_secs(15),
            source: None,
        }
    }
}

/// What a renewal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// PUT of the node's lease, whatever version the server has of it.
    Lease,
    /// PUT of a lease of the node's name in this namespace, made if it is not there: a drill's own, whose other state is never
    /// touched.
    DrillLease { namespace: String },
    /// GET of this path, which changes nothing on the server.
    Get(String),
}

/// How a failed renewal is tried again before the next is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// So many times at once, then after growing pauses.
    pub at_once: u32,
    /// The longest pause; `None`: it is not tried again.
    pub pause_max: Option<Duration>,
}

impl Retries {
    pub const NONE: Retries = Retries { at_once: 0, pause_max: None };

    /// What a kubelet does (k8s.io/component-helpers, apimachinery/lease/controller.go).
    pub const KUBELET: Retries = Retries { at_once: 4, pause_max: Some(Duration::from_secs(7)) };

    /// Pause before try `number`, counted from 1 for the first retry; `None`: give up until the next renewal is due.
    fn pause(&self, number: u32) -> Option<Duration> {
        if number <= self.at_once {
            return Some(Duration::ZERO);
        }
        let doublings = (number - self.at_once).min(16);
        self.pause_max.map(|longest| longest.min(RETRY_PAUSE * 2u32.pow(doublings)))
    }
}

const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Something the client noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum KubeletEvent {
    /// The first answer came over a new connection. `stand_in`: who answered, if it says so.
    Connected { stand_in: Option<String>, local: SocketAddr, took_ms: u64 },
    /// `gap_ms`: time since the renewal before.
    Renewed { latency_ms: u64, gap_ms: u64 },
    /// A connection could not be made, or a renewal got no or a bad answer.
    Failed { error: String },
    /// The connection ended, and not by the client's wish.
    Disconnected { error: String },
    /// An event came over a watch; `gap_ms`: time since the one before on the same watch, or since it was first asked for.
    Watched { bytes: usize, gap_ms: u64 },
    /// The watch ended; `None`: in the ordinary way.
    WatchEnded { error: Option<String> },
}

impl fmt::Display for KubeletEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { stand_in, local, took_ms } => {
                write!(f, "connected from {local} to {} in {took_ms} ms", stand_in.as_deref().unwrap_or("a server"))
            }
            Self::Renewed { latency_ms, gap_ms } => {
                write!(f, "renewed in {latency_ms} ms, {gap_ms} ms after the one before")
            }
            Self::Failed { error } => write!(f, "failed: {error}"),
            Self::Disconnected { error } => write!(f, "disconnected: {error}"),
            Self::Watched { bytes, .. } => write!(f, "watch: event of {bytes} bytes"),
            Self::WatchEnded { error: None } => write!(f, "watch ended"),
            Self::WatchEnded { error: Some(error) } => write!(f, "watch ended: {error}"),
        }
    }
}

/// An event and when it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Since the client's start.
    pub at_ms: u64,
    #[serde(flatten)]
    pub event: KubeletEvent,
}

/// A client's life in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub name: String,
    pub renewals: u64,
    /// Connections that could not be made, and renewals without a good answer.
    pub failures: u64,
    /// Longest time without a successful renewal; from the start to the first and from the last to now included.
    pub longest_gap_ms: u64,
    /// Connections over which an answer came.
    pub connections: u64,
    pub disconnections: u64,
    pub watch_events: u64,
    /// Watches that are open now.
    pub watches_open: u64,
    /// Who answered last, if it said so.
    pub stand_in: Option<String>,
    /// Time since the last successful renewal.
    pub last_renewal_ms: u64,
}

/// A running client; dropping it ends it.
#[derive(Debug)]
pub struct Kubelet {
    progress: Arc<KubeletProgress>,
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Starts it on the current tokio runtime. The receiver yields what it notices; it may be dropped.
    pub fn start(settings: KubeletSettings) -> (Self, mpsc::UnboundedReceiver<Observed>) {
        let (events, observed) = mpsc::unbounded_channel();
        (Self::start_into(settings, events), observed)
    }

    /// Removes the leases that a drill kept for these nodes, over a connection of its own; how many of them are gone.
    pub async fn remove_leases(
        settings: &KubeletSettings,
        namespace: &str,
        nodes: &[String],
        limit: Duration,
    ) -> usize {
        lease::remove(settings, namespace, nodes, limit).await
    }

    /// As [`Kubelet::start`], for many whose events come together.
    pub fn start_into(settings: KubeletSettings, events: mpsc::UnboundedSender<Observed>) -> Self {
        let now = now_ns();
        let counters = KubeletCounters {
            summary: Summary { name: settings.name.clone(), ..Summary::default() },
            whole: GapMeter::new(now),
            window: GapMeter::new(now),
            failed_in_a_row: 0,
            lease_version: None,
        };
        let progress = Arc::new(KubeletProgress { start_ns: now, counters: Mutex::new(counters), events });
        let task = tokio::spawn(live(settings, progress.clone()));
        Self { progress, task }
    }

    /// The figures so far.
    pub fn summary(&self) -> Summary {
        self.progress.summary()
    }

    /// Begins a window of its own for [`Kubelet::window_gap`], as one does before each fault.
    pub fn begin_window(&self) {
        self.progress.counters().window.begin_window();
    }

    /// The longest gap that ended in this window or is still open.
    pub fn window_gap(&self) -> Duration {
        Duration::from_nanos(self.progress.counters().window.longest_ns(now_ns()))
    }

    /// Ends it and returns its figures.
    pub fn stop(self) -> Summary {
        self.summary()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the client's task writes and its owner reads.
#[derive(Debug)]
struct KubeletProgress {
    start_ns: u64,
    counters: Mutex<KubeletCounters>,
    events: mpsc::UnboundedSender<Observed>,
}

#[derive(Debug)]
struct KubeletCounters {
    summary: Summary,
    whole: GapMeter,
    window: GapMeter,
    /// Renewals that failed since the last that succeeded.
    failed_in_a_row: u32,
    /// Of a lease of a drill's, as the server last told it.
    lease_version: Option<String>,
}

impl KubeletProgress {
    fn counters(&self) -> std::sync::MutexGuard<'_, KubeletCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, latency: Duration) {
        let now = now_ns();
        let gap_ms = {
            let counters = &mut *self.counters();
            let gap_ms = counters.whole.open_ns(now) / 1_000_000;
            counters.whole.success(now);
            counters.window.success(now);
            counters.failed_in_a_row = 0;
            gap_ms
        };
        self.note(KubeletEvent::Renewed { latency_ms: latency.as_millis() as u64, gap_ms });
    }

    fn failed(&self) {
        self.counters().failed_in_a_row += 1;
    }

    fn failed_in_a_row(&self) -> u32 {
        self.counters().failed_in_a_row
    }

    fn lease_version(&self) -> Option<String> {
        self.counters().lease_version.clone()
    }

    fn set_lease_version(&self, version: Option<String>) {
        self.counters().lease_version = version;
    }

    /// Counts an open watch for as long as it is held.
    fn watching(&self) -> Watching<'_> {
        self.counters().summary.watches_open += 1;
        Watching(self)
    }

    /// Time until the next renewal is due; the first is due at once.
    fn next_due(&self, every: Duration) -> Duration {
        let counters = self.counters();
        match counters.summary.renewals {
            0 => Duration::ZERO,
            _ => every.saturating_sub(Duration::from_nanos(counters.whole.open_ns(now_ns()))),
        }
    }

    /// Counts an event and passes it on.
    fn note(&self, event: KubeletEvent) {
        {
            let summary = &mut self.counters().summary;
            match &event {
                KubeletEvent::Connected { stand_in, .. } => {
                    summary.connections += 1;
                    summary.stand_in.clone_from(stand_in);
                }
                KubeletEvent::Renewed { .. } => summary.renewals += 1,
                KubeletEvent::Failed { .. } => summary.failures += 1,
                KubeletEvent::Disconnected { .. } => {
                    summary.disconnections += 1;
                    summary.stand_in = None;
                }
                KubeletEvent::Watched { .. } => summary.watch_events += 1,
                KubeletEvent::WatchEnded { .. } => {}
            }
        }
        let at_ms = (now_ns() - self.start_ns) / 1_000_000;
        // The receiver may be gone: not everyone wants the events.
        let _ = self.events.send(Observed { at_ms, event });
    }

    fn summary(&self) -> Summary {
        let now = now_ns();
        let counters = self.counters();
        Summary {
            longest_gap_ms: counters.whole.longest_ns(now) / 1_000_000,
            last_renewal_ms: counters.whole.open_ns(now) / 1_000_000,
            ..counters.summary.clone()
        }
    }
}

/// An open watch.
struct Watching<'p>(&'p KubeletProgress);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.counters().summary.watches_open -= 1;
    }
}

/// Connects again and again: at once when a connection that worked is lost, with growing pauses when not even a
/// renewal succeeds.
async fn live(settings: KubeletSettings, progress: Arc<KubeletProgress>) {
    let mut pause = PAUSE_MIN;
    loop {
        match session::connect(&settings).await {
            Ok(session) => {
                let renewals_before = progress.counters().summary.renewals;
                let error = session.run(&settings, &progress).await;
                progress.note(KubeletEvent::Disconnected { error });
                if progress.counters().summary.renewals > renewals_before {
                    pause = PAUSE_MIN;
                    continue;
                }
            }
            Err(error) => progress.note(KubeletEvent::Failed { error: error.to_string() }),
        }
        sleep(pause).await;
        pause = (pause * 2).min(settings.retries.pause_max.unwrap_or(PAUSE_MAX));
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_tries_at_once_and_then_after_pauses_that_grow_to_seven_seconds() {
        let ms = |number| Retries::KUBELET.pause(number).unwrap().as_millis();
        assert_eq!([1, 4, 5, 6, 7, 8, 9, 10, 11, 100].map(ms), [0, 0, 200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
        assert_eq!(Retries::NONE.pause(1), None);
    }
}
