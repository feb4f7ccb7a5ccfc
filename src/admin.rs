//! The admin servers: a read-only HTTP server, and a Unix socket for everything that changes the instance. Also the log
//! of ended flows and the watchdog.
//!
//! ```text
//!   page, /status.json, /metrics, /livez, /readyz ── http ──┐
//!                                                           ├── Admin ── Table, Config, Metrics
//!   baton status, drain, kill, reload ... ── socket ────────┘      └──── Control (implemented by the wiring)
//! ```

pub mod census;
pub mod client;
pub mod collect;
mod commands;
pub mod control;
pub mod diff;
pub mod doors;
pub mod evacuate;
pub(crate) mod flow_log;
mod flow_names;
pub(crate) mod history;
pub mod http;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod pauses;
pub mod protocol;
pub(crate) mod rates;
pub(crate) mod refusals;
pub(crate) mod search;
pub mod session;
mod standing;
pub mod status;
pub(crate) mod summary;
pub mod unix;
pub mod upgrade;
pub(crate) mod watchdog;
pub mod what_if;
pub(crate) mod words;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::Config;
use crate::drain::{DrainWatch, LifePhase};
use crate::essential;
use crate::metrics::Metrics;
use crate::ports::fleet::Fleet;
use crate::ports::orders::Orders;
use crate::sys::clock::now_ns;
use crate::table::journal::Event;
use crate::table::{Part, Table};
use census::Census;
use collect::CollectorParts;
use control::Control;
use history::{PageHistory, PastMoment};
use rates::{Sample, Samples};
use status::Status;
use summary::WorstSoFar;

/// The ports that the admin servers use.
#[derive(Clone, Debug)]
pub struct AdminPorts {
    /// To end flows.
    pub orders: Part<Orders>,
    /// To learn whether there are peers, and whether this instance may take a VIP.
    pub fleet: Part<Fleet>,
}

/// What earlier processes recorded.
#[derive(Debug)]
struct EarlierEvents {
    /// Of the charts' time, for the page.
    shown: Vec<Event>,
    worst: WorstSoFar,
}

/// The content of the admin servers: the instance's shared state, and its [`Control`].
pub struct Admin {
    pub table: Arc<Table>,
    pub ports: AdminPorts,
    /// The running configuration.
    pub config: Arc<ArcSwap<Config>>,
    pub metrics: Arc<Metrics>,
    pub control: Arc<dyn Control>,
    pub phase: DrainWatch,
    census: Arc<Census>,
    samples: Mutex<Samples>,
    history: Mutex<PageHistory>,
    earlier: OnceLock<EarlierEvents>,
    /// Locked during a search.
    searching: Mutex<()>,
}

impl Admin {
    pub fn new(
        table: Arc<Table>,
        ports: AdminPorts,
        config: Arc<ArcSwap<Config>>,
        metrics: Arc<Metrics>,
        control: Arc<dyn Control>,
        phase: DrainWatch,
    ) -> Arc<Self> {
        let mut samples = Samples::default();
        samples.push(Sample::take(&table.registry, now_ns()));
        let (census, samples) = (Arc::<Census>::default(), Mutex::new(samples));
        let parts = CollectorParts {
            registry: table.part(),
            flows: table.part(),
            offload: table.part(),
            fleet: ports.fleet.clone(),
            fleet_view: table.part(),
            workers: table.part(),
            flow_log: table.part(),
            recorder: table.part(),
            nodes: table.part(),
            probes: table.part(),
            beats: table.part(),
        };
        collect::register(&metrics, parts, config.clone(), census.clone());
        let (history, searching) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            table,
            ports,
            config,
            metrics,
            control,
            phase,
            census,
            samples,
            history,
            earlier: OnceLock::new(),
            searching,
        })
    }

    /// Gathers the status on a blocking thread, where a walk over the table delays nothing.
    pub(crate) async fn status(self: &Arc<Self>) -> Status {
        self.aside(|admin| Status::gather(admin, now_ns())).await
    }

    /// Why `/readyz` fails, one sentence each; empty: it does not.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let phase = match self.phase.phase() {
            LifePhase::Starting => Some("this instance is starting".to_owned()),
            LifePhase::Serving => None,
            stopping => Some(format!("this instance is stopping: {}", stopping.label())),
        };
        phase.into_iter().chain(self.control.not_ready()).collect()
    }

    /// Why `/livez` fails, one sentence each; empty: it does not.
    pub(crate) fn not_live(&self, now_ns: u64) -> Vec<String> {
        let mut reasons = watchdog::complaints(&self.table.workers, &self.table.beats, self.phase.phase(), now_ns);
        reasons.extend(self.control.not_live());
        reasons
    }

    /// Samples the counters once a second, as long as it is polled: the source of all rates and charts, and of what the
    /// peers are told of this instance.
    pub(crate) async fn sample_rates(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut worst = WorstSoFar::default();
        loop {
            ticks.tick().await;
            let now_ns = now_ns();
            let sample = Sample::take(&self.table.registry, now_ns);
            if self.ports.fleet.is_enabled() {
                let samples = self.samples();
                self.ports.fleet.show_summary(summary::take(&self, &mut worst, &sample, &samples, now_ns));
            }
            self.samples().push(sample);
            self.table.standing.show(standing::take(&self, now_ns));
            // Until then it has no flow, or an old process still has them and records.
            if self.phase.phase() != LifePhase::Starting {
                self.history().sample(&self.table.registry, now_ns);
            }
        }
    }

    /// Adds what earlier processes recorded to the page's charts: the time of each moment, ms since 1970, the moment, and the flows
    /// of each backend by its frontend and name. A walk over all backends for each moment: call it on a thread for blocking work.
    /// `now_ns` and `now_unix_ms`: one moment by both clocks.
    pub(crate) fn fill_history<'a, F>(
        &self,
        now_ns: u64,
        now_unix_ms: u64,
        moments: impl IntoIterator<Item = (u64, PastMoment, F)>,
    ) where
        F: IntoIterator<Item = (&'a str, &'a str, u32)>,
    {
        for (at_unix_ms, moment, flows) in moments {
            // A clock that was set back since.
            let Some(ago_ms) = now_unix_ms.checked_sub(at_unix_ms) else { continue };
            let ago_ns = ago_ms.saturating_mul(1_000_000);
            self.history().fill(&self.table.registry, now_ns, ago_ns, moment, flows);
        }
    }

    /// Takes the events of the last hour that were recorded, in the order of time; those of this process may be among them. The page has
    /// those since `shown_from_ms`.
    pub(crate) fn set_earlier(&self, mut events: Vec<Event>, shown_from_ms: u64) {
        let own: HashSet<_> = self.table.journal.since(0, false).iter().map(Event::anchor).collect();
        events.retain(|event| !own.contains(&event.anchor()));
        let worst = WorstSoFar::of(&events);
        events.retain(|event| event.at_unix_ms >= shown_from_ms);
        // A second time is a second task's, which there is not.
        let _ = self.earlier.set(EarlierEvents { shown: events, worst });
    }

    /// The last events of this process, and of those before it as far as the charts go back, oldest first, ended flows left out.
    fn events(&self) -> Vec<Event> {
        let mut events = self.earlier.get().map_or_else(Vec::new, |it| it.shown.clone());
        events.extend(self.table.journal.since(0, false));
        events
    }

    /// Runs `work` on a thread for blocking work.
    async fn aside<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let admin = self.clone();
        match essential::aside(move || work(&admin)).await {
            Some(done) => done,
            // The runtime is shutting down, and with it the caller.
            None => std::future::pending().await,
        }
    }

    fn started_at_ns(&self) -> u64 {
        self.table.began_ns
    }

    fn census(&self) -> &Census {
        &self.census
    }

    /// Waits until no other search is under way.
    fn searching(&self) -> MutexGuard<'_, ()> {
        self.searching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn history(&self) -> MutexGuard<'_, PageHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("phase", &self.phase).finish_non_exhaustive()
    }
}
