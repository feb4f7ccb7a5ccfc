//! Token buckets: how fast something may happen.

/// A token bucket on the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    per_second: u64,
    burst: u64,
    /// In billionths of a token.
    level: u64,
    filled_at_ns: u64,
}

const ONE: u64 = 1_000_000_000;

impl TokenBucket {
    /// Full at `now_ns`, with room for `burst` tokens and `per_second` new ones a second.
    pub fn new(per_second: u32, burst: u32, now_ns: u64) -> Self {
        let burst = u64::from(burst.max(1)) * ONE;
        Self { per_second: u64::from(per_second), burst, level: burst, filled_at_ns: now_ns }
    }

    /// Takes one token if there is one.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_at_ns);
        self.level = self.level.saturating_add(passed.saturating_mul(self.per_second)).min(self.burst);
        self.filled_at_ns = self.filled_at_ns.max(now_ns);
        let enough = self.level >= ONE;
        if enough {
            self.level -= ONE;
        }
        enough
    }

    /// Whether it is as full as it can be at `now_ns`: nothing was taken for long.
    pub fn is_full(&self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_at_ns);
        self.level.saturating_add(passed.saturating_mul(self.per_second)) >= self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
