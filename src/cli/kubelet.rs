//! A client that behaves as a kubelet does towards its apiserver: one HTTP/2 connection over TLS, a lease renewed on
//! it again and again, a watch held on it. It tells how long it went without a renewal: the instrument by which
//! faults are judged.
//!
//! Like Go's HTTP/2 transport it stays on its connection when a request times out; it leaves when the connection
//! ends or when pings on it stay unanswered. So a load balancer that leaves it on a dead connection shows.

pub mod command;
pub mod gap;
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
use crate::sys::clock::now_ns;
use gap::GapMeter;

/// How a kubelet-like client behaves. [`Settings::new`] fills in what a real one does, except that it renews every
/// second instead of every 10 s, so that gaps are measured finely.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The one address it ever connects to.
    pub server: VipAddr,
    /// The name its certificate must have.
    pub server_name: ServerName<'static>,
    /// Made by [`super::tls::client_config`].
    pub tls: Arc<rustls::ClientConfig>,
    /// The node's name.
    pub name: String,
    pub renew_every: Duration,
    /// For a renewal, and for a connection to be ready for requests.
    pub request_timeout: Duration,
    pub watch: bool,
    /// A ping is sent after this long without a frame from the server. `None`: never.
    pub ping_after: Option<Duration>,
    /// A ping unanswered for this long ends the connection.
    pub ping_timeout: Duration,
    /// The address to connect from. `None`: the kernel chooses.
    pub source: Option<IpAddr>,
}

impl Settings {
    pub fn new(server: VipAddr, tls: Arc<rustls::ClientConfig>, name: impl Into<String>) -> Self {
        Self {
            server,
            server_name: ServerName::IpAddress(server.ip().into()),
            tls,
            name: name.into(),
            renew_every: Duration::from_secs(1),
            request_timeout: Duration::from_secs(10),
            watch: true,
            ping_after: Some(Duration::from_secs(30)),
            ping_timeout: Duration::from_secs(15),
            source: None,
        }
    }
}

/// Something the client noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first answer came over a new connection. `stand_in`: who answered, if it says so.
    Connected { stand_in: Option<String>, local: SocketAddr, took_ms: u64 },
    /// `gap_ms`: time since the renewal before.
    Renewed { latency_ms: u64, gap_ms: u64 },
    /// A connection could not be made, or a renewal got no or a bad answer.
    Failed { error: String },
    /// The connection ended, and not by the client's wish.
    Disconnected { error: String },
    /// An event came over the watch.
    Watched { bytes: usize },
    /// The watch ended; `None`: in the ordinary way.
    WatchEnded { error: Option<String> },
}

impl fmt::Display for Event {
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
            Self::Watched { bytes } => write!(f, "watch: event of {bytes} bytes"),
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
    pub event: Event,
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
    /// Who answered last, if it said so.
    pub stand_in: Option<String>,
    /// Time since the last successful renewal.
    pub last_renewal_ms: u64,
}

/// A running client; dropping it ends it.
#[derive(Debug)]
pub struct Kubelet {
    progress: Arc<Progress>,
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Starts it on the current tokio runtime. The receiver yields what it notices; it may be dropped.
    pub fn start(settings: Settings) -> (Self, mpsc::UnboundedReceiver<Observed>) {
        let (events, observed) = mpsc::unbounded_channel();
        let now = now_ns();
        let counters = Counters {
            summary: Summary { name: settings.name.clone(), ..Summary::default() },
            whole: GapMeter::new(now),
            window: GapMeter::new(now),
        };
        let progress = Arc::new(Progress { start_ns: now, counters: Mutex::new(counters), events });
        let task = tokio::spawn(live(settings, progress.clone()));
        (Self { progress, task }, observed)
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
struct Progress {
    start_ns: u64,
    counters: Mutex<Counters>,
    events: mpsc::UnboundedSender<Observed>,
}

#[derive(Debug)]
struct Counters {
    summary: Summary,
    whole: GapMeter,
    window: GapMeter,
}

impl Progress {
    fn counters(&self) -> std::sync::MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, latency: Duration) {
        let now = now_ns();
        let gap_ms = {
            let counters = &mut *self.counters();
            let gap_ms = counters.whole.open_ns(now) / 1_000_000;
            counters.whole.success(now);
            counters.window.success(now);
            gap_ms
        };
        self.note(Event::Renewed { latency_ms: latency.as_millis() as u64, gap_ms });
    }

    /// Counts an event and passes it on.
    fn note(&self, event: Event) {
        {
            let summary = &mut self.counters().summary;
            match &event {
                Event::Connected { stand_in, .. } => {
                    summary.connections += 1;
                    summary.stand_in.clone_from(stand_in);
                }
                Event::Renewed { .. } => summary.renewals += 1,
                Event::Failed { .. } => summary.failures += 1,
                Event::Disconnected { .. } => {
                    summary.disconnections += 1;
                    summary.stand_in = None;
                }
                Event::Watched { .. } => summary.watch_events += 1,
                Event::WatchEnded { .. } => {}
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

/// Connects again and again: at once when a connection that worked is lost, with growing pauses when not even a
/// renewal succeeds.
async fn live(settings: Settings, progress: Arc<Progress>) {
    let mut pause = PAUSE_MIN;
    loop {
        match session::connect(&settings).await {
            Ok(session) => {
                let renewals_before = progress.counters().summary.renewals;
                let error = session.run(&settings, &progress).await;
                progress.note(Event::Disconnected { error });
                if progress.counters().summary.renewals > renewals_before {
                    pause = PAUSE_MIN;
                    continue;
                }
            }
            Err(error) => progress.note(Event::Failed { error: error.to_string() }),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
