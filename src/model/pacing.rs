//! Token buckets, which limit a rate.

/// A token bucket on the caller's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    per_second: u64,
    burst: u64,
    /// In billionths of a token.
    level: u64,
    filled_at_ns: u64,
}

const ONE: u64 = 1_000_000_000;

impl TokenBucket {
    /// Full at `now_ns`, with room for `burst` tokens and `per_second` new ones a second.
    pub(crate) fn new(per_second: u32, burst: u32, now_ns: u64) -> Self {
        let burst = u64::from(burst.max(1)) * ONE;
        Self { per_second: u64::from(per_second), burst, level: burst, filled_at_ns: now_ns }
    }

    /// Takes one token if there is one.
    pub(crate) fn take(&mut self, now_ns: u64) -> bool {
        self.fill(now_ns);
        let enough = self.level >= ONE;
        if enough {
            self.level -= ONE;
        }
        enough
    }

    /// A bucket with this level at `at_ns`, in billionths of a token, perhaps with new settings.
    pub(crate) fn resumed(per_second: u32, burst: u32, level: u64, at_ns: u64) -> Self {
        let full = Self::new(per_second, burst, at_ns);
        Self { level: level.min(full.burst), ..full }
    }

    /// The level in billionths of a token, and its monotonic time.
    pub(crate) fn level(&self) -> (u64, u64) {
        (self.level, self.filled_at_ns)
    }

    /// Lowers it to the level of `other`, if that is lower.
    pub(crate) fn lower_to(&mut self, other: &Self, now_ns: u64) {
        self.fill(now_ns);
        let mut other = *other;
        other.fill(now_ns);
        self.level = self.level.min(other.level);
    }

    /// Whether it is full at `now_ns`.
    pub(crate) fn is_full(&self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_at_ns);
        self.level.saturating_add(passed.saturating_mul(self.per_second)) >= self.burst
    }

    fn fill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.filled_at_ns);
        self.level = self.level.saturating_add(passed.saturating_mul(self.per_second)).min(self.burst);
        self.filled_at_ns = self.filled_at_ns.max(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_goes_on_where_it_was() {
        let mut bucket = TokenBucket::new(10, 5, 0);
        (0..4).for_each(|_| assert!(bucket.take(0)));
        let (level, at_ns) = bucket.level();
        let mut same = TokenBucket::resumed(10, 5, level, at_ns);
        let mut smaller = TokenBucket::resumed(10, 3, 5 * ONE, 0);
        assert_eq!((0..5).filter(|_| same.take(0)).count(), 1);
        assert_eq!((0..5).filter(|_| smaller.take(0)).count(), 3);
    }

    #[test]
    fn a_bucket_gives_its_burst_then_its_rate() {
        let mut bucket = TokenBucket::new(10, 5, 0);
        let burst = (0..20).filter(|_| bucket.take(0)).count();
        assert_eq!(burst, 5);
        let later = (1..=1000).filter(|ms| bucket.take(ms * 1_000_000)).count();
        assert_eq!(later, 10);
        assert!(!bucket.is_full(ONE) && bucket.is_full(2 * ONE));
    }
}
