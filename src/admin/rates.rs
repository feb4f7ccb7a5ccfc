//! Averages over the last seconds, from counters that never fall.

use std::collections::{HashMap, VecDeque};

use super::status::Rate;
use crate::model::ids::FrontendId;
use crate::table::backend::{BackendEntry, FrontendEntry, Registry};

/// One more than the seconds that an average spans.
const SAMPLES: usize = 11;
/// A shorter span would turn single flows into large rates.
const SPAN_MIN_S: f64 = 0.5;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateCounters {
    pub flows: u64,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
}

/// All counters at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    at_ns: u64,
    pub totals: RateCounters,
    pub frontends: HashMap<FrontendId, RateCounters>,
    /// By `BackendEntry::hash_key`: a name with a new address continues.
    pub backends: HashMap<u64, RateCounters>,
}

/// The samples of the last ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    ring: VecDeque<Sample>,
}

impl Sample {
    pub(crate) fn take(registry: &Registry, now_ns: u64) -> Self {
        let mut sample = Sample { at_ns: now_ns, ..Sample::default() };
        for frontend in registry.frontends() {
            let flows = accepted(&frontend);
            sample.totals.flows += flows;
            sample.frontends.insert(frontend.id, RateCounters { flows, ..RateCounters::default() });
        }
        for backend in registry.backends().into_iter().filter(|it| !it.is_former()) {
            let counters = of_backend(&backend);
            sample.totals.bytes_to_backend += counters.bytes_to_backend;
            sample.totals.bytes_to_client += counters.bytes_to_client;
            let frontend = sample.frontends.entry(backend.frontend.id).or_default();
            frontend.bytes_to_backend += counters.bytes_to_backend;
            frontend.bytes_to_client += counters.bytes_to_client;
            sample.backends.insert(backend.hash_key, counters);
        }
        sample
    }
}

impl Samples {
    /// Takes in one sample; call it once a second.
    pub(crate) fn push(&mut self, sample: Sample) {
        if self.ring.len() == SAMPLES {
            self.ring.pop_front();
        }
        self.ring.push_back(sample);
    }

    /// The averages up to `now` of the counters that `counters` selects; 0 while too little time has passed.
    pub(crate) fn rate(&self, now: &Sample, counters: impl Fn(&Sample) -> Option<RateCounters>) -> Rate {
        let Some(then) = self.ring.front() else { return Rate::default() };
        let span_s = now.at_ns.saturating_sub(then.at_ns) as f64 / 1e9;
        if span_s < SPAN_MIN_S {
            return Rate::default();
        }
        // A counter that did not exist then began at 0.
        let (before, after) = (counters(then).unwrap_or_default(), counters(now).unwrap_or_default());
        let per_s = |before: u64, after: u64| after.saturating_sub(before) as f64 / span_s;
        Rate {
            flows_per_s: per_s(before.flows, after.flows),
            bytes_to_backend_per_s: per_s(before.bytes_to_backend, after.bytes_to_backend),
            bytes_to_client_per_s: per_s(before.bytes_to_client, after.bytes_to_client),
        }
    }
}

fn accepted(frontend: &FrontendEntry) -> u64 {
    frontend.lanes.iter().map(|lane| lane.accepted.value()).sum()
}

fn of_backend(backend: &BackendEntry) -> RateCounters {
    let mut sum = RateCounters::default();
    for lane in &*backend.lanes {
        sum.flows += lane.connected.value();
        sum.bytes_to_backend += lane.bytes_to_backend.value();
        sum.bytes_to_client += lane.bytes_to_client.value();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, flows: u64) -> Sample {
        let totals = RateCounters { flows, bytes_to_backend: flows * 100, bytes_to_client: 0 };
        Sample { at_ns: second * 1_000_000_000 + 1, totals, ..Sample::default() }
    }

    #[test]
    fn a_rate_spans_ten_seconds_at_most() {
        let mut samples = Samples::default();
        for second in 0..30 {
            samples.push(at(second, second.saturating_sub(19)));
        }
        let rate = samples.rate(&at(29, 10), |sample| Some(sample.totals));
        assert_eq!((rate.flows_per_s, rate.bytes_to_backend_per_s), (1.0, 100.0));
    }

    #[test]
    fn no_rate_is_made_up_from_too_short_a_span() {
        let mut samples = Samples::default();
        assert_eq!(samples.rate(&at(0, 5), |sample| Some(sample.totals)), Rate::default());
        samples.push(at(0, 0));
        assert_eq!(samples.rate(&at(0, 5), |sample| Some(sample.totals)), Rate::default());
    }

    #[test]
    fn a_counter_that_shrank_because_a_backend_was_forgotten_gives_no_negative_rate() {
        let mut samples = Samples::default();
        samples.push(at(0, 50));
        assert_eq!(samples.rate(&at(5, 10), |sample| Some(sample.totals)).flows_per_s, 0.0);
    }
}
