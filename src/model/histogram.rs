//! A histogram with one writer and any number of readers, none of which waits.
//!
//! Readers want two kinds of buckets: a few with bounds that people read ([`LATENCY_BOUNDS_S`]), and Prometheus' native
//! buckets, each 9 % wider than the one before. A latency is counted once, in the cell between two neighbours of both
//! kinds of bounds, so that both sum to the same count however a reader's copy and a writer meet: Prometheus refuses a
//! native histogram whose buckets and count differ.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of latency buckets, in seconds: 100 µs to 10 s.
pub(crate) const LATENCY_BOUNDS_S: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0];

/// Native buckets per power of two, as the exponent of two that Prometheus calls the schema.
pub(crate) const NATIVE_SCHEMA: i8 = 3;

/// A duration of at most so many seconds is in the zero bucket: 2⁻²⁰, about 1 µs.
pub(crate) const NATIVE_ZERO_S: f64 = 1.0 / (1u64 << ZERO_EXPONENT) as f64;

const ZERO_EXPONENT: usize = 20;
const PER_OCTAVE: usize = 1 << NATIVE_SCHEMA;
const OCTAVES: usize = 27;
/// 2⁻²⁰ s to 2⁷ s, 128 s; what is above counts in one bucket more.
const NATIVE_BOUNDS: usize = OCTAVES * PER_OCTAVE + 1;
const BUCKETS: usize = LATENCY_BOUNDS_S.len() + 1;
const CELLS: usize = NATIVE_BOUNDS + BUCKETS;

/// 2^(k/8): a native bound is one of them times a power of two.
const STEPS: [f64; PER_OCTAVE] = [
    1.0,
    1.090_507_732_665_257_7,
    1.189_207_115_002_721,
    1.296_839_554_651_009_6,
    std::f64::consts::SQRT_2,
    1.542_210_825_407_940_7,
    1.681_792_830_507_429,
    1.834_008_086_409_342_4,
];

/// Latencies by bucket. Only one thread may call [`LatencyHistogram::record`], so that recording needs no locked
/// instruction.
#[derive(Debug)]
pub struct LatencyHistogram {
    cells: [AtomicU64; CELLS],
    sum_us: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { cells: [const { AtomicU64::new(0) }; CELLS], sum_us: AtomicU64::new(0) }
    }
}

/// A reader's copy. Add copies of several writers with [`LatencySnapshot::add`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatencySnapshot {
    cells: [u64; CELLS],
    pub sum_s: f64,
}

/// Native buckets of Prometheus: a bucket with index `i` ends at 2^(i/8) seconds, and none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeBuckets {
    /// At most [`NATIVE_ZERO_S`].
    pub zero: u64,
    /// Runs of neighbours, each as the distance of its first index from the end of the run before (from 0 for the
    /// first), and its length.
    pub spans: Vec<(i32, u32)>,
    /// Each bucket's count less that of the bucket before it in the list.
    pub deltas: Vec<i64>,
}

impl LatencyHistogram {
    pub fn record(&self, latency: Duration) {
        bump(&self.cells[cell_of(latency.as_secs_f64())], 1);
        bump(&self.sum_us, latency.as_micros() as u64);
    }

    /// Adds the counts of another histogram, of [`LatencySnapshot::cells`]; surplus cells are left out.
    pub(crate) fn absorb(&self, cells: &[u64], sum_us: u64) {
        self.cells.iter().zip(cells).for_each(|(cell, count)| bump(cell, *count));
        bump(&self.sum_us, sum_us);
    }

    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot {
            cells: std::array::from_fn(|cell| self.cells[cell].load(Relaxed)),
            sum_s: self.sum_us.load(Relaxed) as f64 / 1e6,
        }
    }
}

impl Default for LatencySnapshot {
    fn default() -> Self {
        Self { cells: [0; CELLS], sum_s: 0.0 }
    }
}

impl LatencySnapshot {
    pub(crate) fn add(&mut self, other: &LatencySnapshot) {
        for (mine, theirs) in self.cells.iter_mut().zip(other.cells) {
            *mine += theirs;
        }
        self.sum_s += other.sum_s;
    }

    pub(crate) fn count(&self) -> u64 {
        self.cells.iter().sum()
    }

    /// For another process's [`LatencyHistogram::absorb`].
    pub(crate) fn cells(&self) -> &[u64] {
        &self.cells
    }

    /// Counts by [`LATENCY_BOUNDS_S`], not cumulative; the last is of everything above.
    pub(crate) fn buckets(&self) -> [u64; BUCKETS] {
        let mut counts = [0; BUCKETS];
        for (cell, bucket, _) in places() {
            counts[bucket] += self.cells[cell];
        }
        counts
    }

    pub(crate) fn native(&self) -> NativeBuckets {
        let mut counts = [0u64; NATIVE_BOUNDS + 1];
        for (cell, _, native) in places() {
            counts[native] += self.cells[cell];
        }
        let mut buckets = NativeBuckets { zero: counts[0], ..NativeBuckets::default() };
        let (mut end, mut before) = (0, 0);
        for (native, count) in counts.into_iter().enumerate().skip(1).filter(|(_, count)| *count > 0) {
            let index = native as i32 - (ZERO_EXPONENT * PER_OCTAVE) as i32;
            match buckets.spans.last_mut() {
                Some((_, length)) if index == end => *length += 1,
                _ => buckets.spans.push((index - end, 1)),
            }
            buckets.deltas.push(count as i64 - before);
            (end, before) = (index + 1, count as i64);
        }
        buckets
    }
}

/// Cells with these counts of [`LatencySnapshot::buckets`], each at its bucket's upper bound.
pub(crate) fn cells_of_buckets(counts: &[u64]) -> Vec<u64> {
    let mut cells = vec![0; CELLS];
    let above = LATENCY_BOUNDS_S[BUCKETS - 2].next_up();
    for (bound, count) in LATENCY_BOUNDS_S.into_iter().chain([above]).zip(counts) {
        cells[cell_of(bound)] = *count;
    }
    cells
}

/// The cell of a latency: as many bounds of both kinds are below it.
fn cell_of(seconds: f64) -> usize {
    LATENCY_BOUNDS_S.partition_point(|bound| *bound < seconds) + native_of(seconds)
}

/// How many native bounds are below a latency.
fn native_of(seconds: f64) -> usize {
    const MANTISSA_BITS: u32 = 52;
    const BIAS: usize = f64::MAX_EXP as usize - 1;
    if seconds <= NATIVE_ZERO_S {
        return 0;
    }
    let bits = seconds.to_bits();
    let mantissa = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | 1f64.to_bits());
    let octave = (bits >> MANTISSA_BITS) as usize + ZERO_EXPONENT - BIAS;
    (octave * PER_OCTAVE + STEPS.partition_point(|step| *step < mantissa)).min(NATIVE_BOUNDS)
}

/// Each cell with its bucket and its native bucket.
fn places() -> impl Iterator<Item = (usize, usize, usize)> {
    let native_bound = |native: usize| {
        let octave = (native / PER_OCTAVE) as i32 - ZERO_EXPONENT as i32;
        (native < NATIVE_BOUNDS).then(|| STEPS[native % PER_OCTAVE] * 2f64.powi(octave))
    };
    std::iter::successors(Some((0, 0)), move |(bucket, native): &(usize, usize)| {
        let bounds = (LATENCY_BOUNDS_S.get(*bucket).copied(), native_bound(*native));
        let next = bounds.0.into_iter().chain(bounds.1).min_by(f64::total_cmp)?;
        Some((bucket + usize::from(bounds.0 == Some(next)), native + usize::from(bounds.1 == Some(next))))
    })
    .map(|(bucket, native)| (bucket + native, bucket, native))
}

fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it() {
        let histogram = LatencyHistogram::default();
        histogram.record(Duration::from_micros(100));
        histogram.record(Duration::from_micros(101));
        histogram.record(Duration::from_secs(60));
        let seen = histogram.snapshot();
        let buckets = seen.buckets();
        assert_eq!((buckets[0], buckets[1], buckets[BUCKETS - 1]), (1, 1, 1));
        assert_eq!(seen.count(), 3);
        assert!((seen.sum_s - 60.000201).abs() < 1e-9);
    }

    /// Index and count of each native bucket, as a reader of the format decodes them.
    fn decoded(native: &NativeBuckets) -> Vec<(i32, i64)> {
        let (mut index, mut count, mut deltas) = (0, 0, native.deltas.iter());
        let mut found = Vec::new();
        for (offset, length) in &native.spans {
            index += offset;
            for _ in 0..*length {
                count += deltas.next().expect("a delta for each bucket");
                found.push((index, count));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        found
    }

    #[test]
    fn native_buckets_end_at_the_eighth_roots_of_two_and_hold_their_bounds() {
        let histogram = LatencyHistogram::default();
        for micros in
            [0, 1, 1_000_000, 1_000_001, 500_000, 1_050_000, 1_091_000, 128_000_000, 256_000_000, 1_000_000_000]
        {
            histogram.record(Duration::from_micros(micros));
        }
        let native = histogram.snapshot().native();
        // 1 µs is above 2⁻²⁰ s, which is 0.95 µs; the last is everything above 128 s.
        assert_eq!(native.zero, 1);
        assert_eq!(decoded(&native), [(-159, 1), (-8, 1), (0, 1), (1, 2), (2, 1), (56, 1), (57, 2)]);
        assert_eq!(native.spans, [(-159, 1), (150, 1), (7, 3), (53, 2)]);
    }

    #[test]
    fn a_histogram_without_a_latency_has_no_native_bucket() {
        assert_eq!(LatencySnapshot::default().native(), NativeBuckets::default());
    }

    proptest! {
        #[test]
        fn both_kinds_of_buckets_hold_each_latency_within_their_bounds(nanos in prop_oneof![0..5_000u64, 0..2_000_000u64, 0..200_000_000_000u64]) {
            let histogram = LatencyHistogram::default();
            histogram.record(Duration::from_nanos(nanos));
            let (seen, seconds) = (histogram.snapshot(), nanos as f64 / 1e9);
            let bucket = seen.buckets().iter().position(|count| *count == 1).expect("counted");
            prop_assert!(LATENCY_BOUNDS_S.get(bucket).is_none_or(|bound| seconds <= *bound));
            prop_assert!(bucket == 0 || seconds > LATENCY_BOUNDS_S[bucket - 1]);
            let native = seen.native();
            match decoded(&native)[..] {
                [] => prop_assert!(native.zero == 1 && seconds <= NATIVE_ZERO_S),
                [(57, 1)] => prop_assert!(seconds > 128.0),
                [(index, 1)] => {
                    let bound = |index: i32| (f64::from(index) / 8.0).exp2() * (1.0 + f64::EPSILON);
                    prop_assert!(seconds <= bound(index) && seconds * (1.0 + 2.0 * f64::EPSILON) > bound(index - 1));
                }
                ref more => prop_assert!(false, "{more:?}"),
            }
        }
    }
}
