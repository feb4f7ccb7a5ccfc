//! Histograms that an upgrade passes on, and those of probes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::histogram::{LatencyHistogram, LatencySnapshot};

/// A histogram with one writer at a time, which continues in the next process.
#[derive(Debug, Default)]
pub struct LatencyTally {
    own: LatencyHistogram,
    /// The counts of the process before this one.
    before: LatencyHistogram,
}

/// A histogram at one moment, for the next process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyTotals {
    /// By the cells of `LatencyHistogram`.
    pub cells: Vec<u64>,
    pub sum_us: u64,
}

impl LatencyTally {
    pub(crate) fn record(&self, latency: Duration) {
        self.own.record(latency);
    }

    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        let mut all = self.own.snapshot();
        all.add(&self.before.snapshot());
        all
    }

    /// Sets the earlier process's counts, in place of earlier values of them. Only one thread may call this.
    pub(crate) fn carry(&self, before: &LatencyTotals) {
        before.raise(&self.before);
    }
}

impl LatencyTotals {
    pub(crate) fn of(snapshot: &LatencySnapshot) -> Self {
        Self { cells: snapshot.cells().to_vec(), sum_us: micros(snapshot) }
    }

    /// Raises the counts of `histogram` to these.
    pub(super) fn raise(&self, histogram: &LatencyHistogram) {
        let before = histogram.snapshot();
        let grown = self.cells.iter().zip(before.cells()).map(|(now, was)| now.saturating_sub(*was));
        histogram.absorb(&grown.collect::<Vec<_>>(), self.sum_us.saturating_sub(micros(&before)));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.cells.resize(self.cells.len().max(other.cells.len()), 0);
        self.cells.iter_mut().zip(&other.cells).for_each(|(sum, count)| *sum += count);
        self.sum_us += other.sum_us;
    }
}

fn micros(snapshot: &LatencySnapshot) -> u64 {
    (snapshot.sum_s * 1e6).round() as u64
}

/// How long probes took, by backend and outcome. All series of a removed backend are removed.
#[derive(Debug, Default)]
pub struct ProbeLatencies(Mutex<BTreeMap<ProbedBackend, BTreeMap<String, LatencyTally>>>);

/// A frontend and a backend.
type ProbedBackend = (String, String);

/// The probes of a backend with one outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeTotals {
    pub frontend: String,
    pub backend: String,
    /// `passed`, `not_ready`, or the kind of failure.
    pub outcome: String,
    pub latency: LatencyTotals,
}

impl ProbeLatencies {
    /// `outcome`: its label.
    pub fn record(&self, frontend: &str, backend: &str, outcome: &str, took: Duration) {
        let mut of = self.lock();
        let of_backend = of.entry((frontend.to_owned(), backend.to_owned())).or_default();
        of_backend.entry(outcome.to_owned()).or_default().record(took);
    }

    /// No backend has this name any more.
    pub(crate) fn forget(&self, frontend: &str, backend: &str) {
        self.lock().remove(&(frontend.to_owned(), backend.to_owned()));
    }

    /// Each with its frontend, its backend and its outcome.
    pub(crate) fn snapshots(&self) -> Vec<([String; 3], LatencySnapshot)> {
        let all = self.lock();
        let each = all.iter().flat_map(|((frontend, backend), outcomes)| {
            outcomes
                .iter()
                .map(|(outcome, latency)| ([frontend.clone(), backend.clone(), outcome.clone()], latency.snapshot()))
        });
        each.collect()
    }

    pub(super) fn totals(&self) -> Vec<ProbeTotals> {
        let each = self.snapshots().into_iter().map(|([frontend, backend, outcome], latency)| ProbeTotals {
            frontend,
            backend,
            outcome,
            latency: LatencyTotals::of(&latency),
        });
        each.collect()
    }

    pub(super) fn carry(&self, before: &ProbeTotals) {
        let mut of = self.lock();
        let of_backend = of.entry((before.frontend.clone(), before.backend.clone())).or_default();
        of_backend.entry(before.outcome.clone()).or_default().carry(&before.latency);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProbedBackend, BTreeMap<String, LatencyTally>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
