//! A client that behaves as a kubelet does towards its apiserver: it renews a lease again and again, and holds a watch,
//! on one HTTP/2 connection over TLS. It reports how long it went without a renewal: tests judge faults by that.
//!
//! Like Go's HTTP/2 transport it stays on its connection when a request times out; it leaves when the connection ends
//! or when pings on it stay unanswered. So it shows when a load balancer leaves it on a dead connection.

pub(crate) mod command;
pub(crate) mod gap;
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

/// The behaviour of a kubelet-like client. [`KubeletSettings::new`] sets that of a real one, except that it renews
/// every second instead of every 10 s, so that gaps are measured precisely.
#[derive(Clone, Debug)]
pub struct KubeletSettings {
    /// The one address that it connects to.
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
    /// Timeout of a renewal, and of the wait until a connection accepts requests.
    pub request_timeout: Duration,
    /// The path that it watches on the same connection.
    pub watch: Option<String>,
    /// Number of such watches, each a stream of its own.
    pub watches: u16,
    /// Sent with every request, as the value of `authorization`.
    pub authorization: Option<String>,
    /// Time without a frame from the server after which it sends a ping. `None`: never.
    pub ping_after: Option<Duration>,
    /// Time without an answer to a ping after which it ends the connection.
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

/// The kind of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// PUT of the node's lease, whatever its version on the server.
    Lease,
    /// PUT of a lease with the node's name in this namespace, created if it is missing. Only leases of a drill are
    /// written.
    DrillLease { namespace: String },
    /// GET of this path, which changes nothing on the server.
    Get(String),
}

/// Retries of a failed renewal before the next is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Number of immediate retries; later ones follow after growing pauses.
    pub at_once: u32,
    /// The longest pause; `None`: no further retry.
    pub pause_max: Option<Duration>,
}

impl Retries {
    pub(crate) const NONE: Retries = Retries { at_once: 0, pause_max: None };

    /// The behaviour of a kubelet (k8s.io/component-helpers, apimachinery/lease/controller.go).
    pub(crate) const KUBELET: Retries = Retries { at_once: 4, pause_max: Some(Duration::from_secs(7)) };

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

/// An event of the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum KubeletEvent {
    /// The first answer came over a new connection. `stand_in`: the name of the answering stand-in, if it sends one.
    Connected { stand_in: Option<String>, local: SocketAddr, took_ms: u64 },
    /// `gap_ms`: time since the renewal before.
    Renewed { latency_ms: u64, gap_ms: u64 },
    /// A connection failed, or a renewal got no answer or a bad one.
    Failed { error: String },
    /// The connection ended, but not by the client.
    Disconnected { error: String },
    /// An event came over a watch; `gap_ms`: time since the last event of the same watch, or since its request.
    Watched { bytes: usize, gap_ms: u64 },
    /// The watch ended; `None`: in order.
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

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Time since the client's start.
    pub at_ms: u64,
    #[serde(flatten)]
    pub event: KubeletEvent,
}

/// The numbers of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub name: String,
    pub renewals: u64,
    /// Failed connections, and renewals without a good answer.
    pub failures: u64,
    /// Longest time without a successful renewal, also before the first and after the last.
    pub longest_gap_ms: u64,
    /// Connections with at least one answer.
    pub connections: u64,
    pub disconnections: u64,
    pub watch_events: u64,
    /// Number of open watches.
    pub watches_open: u64,
    /// The name of the stand-in that answered last, if it sends one.
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
    /// Starts the client on the current tokio runtime. The receiver gets its events; it may be dropped.
    pub fn start(settings: KubeletSettings) -> (Self, mpsc::UnboundedReceiver<Observed>) {
        let (events, observed) = mpsc::unbounded_channel();
        (Self::start_into(settings, events), observed)
    }

    /// Removes a drill's leases for these nodes, over a connection of its own; returns how many are gone.
    pub(crate) async fn remove_leases(
        settings: &KubeletSettings,
        namespace: &str,
        nodes: &[String],
        limit: Duration,
    ) -> usize {
        lease::remove(settings, namespace, nodes, limit).await
    }

    /// As [`Kubelet::start`], for many clients with one receiver.
    pub(crate) fn start_into(settings: KubeletSettings, events: mpsc::UnboundedSender<Observed>) -> Self {
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

    /// The numbers so far.
    pub fn summary(&self) -> Summary {
        self.progress.summary()
    }

    /// Begins a window for [`Kubelet::window_gap`]; call it before each fault.
    pub fn begin_window(&self) {
        self.progress.counters().window.begin_window();
    }

    /// The longest gap that ended in this window or is still open.
    pub fn window_gap(&self) -> Duration {
        Duration::from_nanos(self.progress.counters().window.longest_ns(now_ns()))
    }

    /// Ends the client and returns its numbers.
    pub fn stop(self) -> Summary {
        self.summary()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state that the client's task writes and its owner reads.
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
    /// Failed renewals since the last successful one.
    failed_in_a_row: u32,
    /// The version of a drill's lease, from the server's last answer.
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

    /// Counts an open watch, as long as the result exists.
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

    /// Counts an event and sends it.
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
        // The receiver may be gone: not every caller wants the events.
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

/// Connects again and again: at once when a working connection is lost, with growing pauses while no renewal succeeds.
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
