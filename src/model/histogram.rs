//! A histogram with one writer and any number of readers, none of which waits.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of latency buckets, in seconds: 100 µs to 10 s.
pub(crate) const LATENCY_BOUNDS_S: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0];

const BUCKETS: usize = LATENCY_BOUNDS_S.len() + 1;

/// Latencies by [`LATENCY_BOUNDS_S`]; the last bucket is everything above. Only one thread may call
/// [`LatencyHistogram::record`], so that recording needs no locked instruction.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// A reader's copy. Buckets are not cumulative; add copies of several writers with [`LatencySnapshot::add`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LatencySnapshot {
    pub counts: [u64; BUCKETS],
    pub sum_s: f64,
}

impl LatencyHistogram {
    pub fn record(&self, latency: Duration) {
        let seconds = latency.as_secs_f64();
        let bucket = LATENCY_BOUNDS_S.partition_point(|bound| *bound < seconds);
        bump(&self.counts[bucket], 1);
        bump(&self.sum_us, latency.as_micros() as u64);
    }

    /// Adds the counts of another histogram; surplus buckets are left out.
    pub(crate) fn absorb(&self, counts: &[u64], sum_us: u64) {
        self.counts.iter().zip(counts).for_each(|(cell, count)| bump(cell, *count));
        bump(&self.sum_us, sum_us);
    }

    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot {
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Relaxed)),
            sum_s: self.sum_us.load(Relaxed) as f64 / 1e6,
        }
    }
}

impl LatencySnapshot {
    pub(crate) fn add(&mut self, other: &LatencySnapshot) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.sum_s += other.sum_s;
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it() {
        let histogram = LatencyHistogram::default();
        histogram.record(Duration::from_micros(100));
        histogram.record(Duration::from_micros(101));
        histogram.record(Duration::from_secs(60));
        let seen = histogram.snapshot();
        assert_eq!((seen.counts[0], seen.counts[1], seen.counts[BUCKETS - 1]), (1, 1, 1));
        assert_eq!(seen.count(), 3);
        assert!((seen.sum_s - 60.000201).abs() < 1e-9);
    }
}
