//! The time that a client went without a successful renewal: tests judge every fault by it.

/// Measures the gaps between successes. Times are monotonic ns and arguments.
///
/// A gap runs from the start or the last success to the next success, or to the time of the call: for a client that
/// never succeeds again the gap grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapMeter {
    last_ns: u64,
    longest_ns: u64,
}

impl GapMeter {
    pub(crate) fn new(start_ns: u64) -> Self {
        Self { last_ns: start_ns, longest_ns: 0 }
    }

    /// A renewal succeeded.
    pub(crate) fn success(&mut self, now_ns: u64) {
        self.longest_ns = self.longest_ns.max(now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// Time since the last success.
    pub(crate) fn open_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_ns)
    }

    /// The longest gap, the open one included.
    pub(crate) fn longest_ns(&self, now_ns: u64) -> u64 {
        self.longest_ns.max(self.open_ns(now_ns))
    }

    /// Drops the longest gap and keeps the open one: a gap that ends from now on belongs to the next fault.
    pub(crate) fn begin_window(&mut self) {
        self.longest_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_gap_counts_so_that_a_client_that_never_returns_is_seen() {
        let mut meter = GapMeter::new(100);
        meter.success(150);
        meter.success(170);
        assert_eq!(meter.longest_ns(171), 50);
        assert_eq!(meter.longest_ns(1170), 1000);
    }

    #[test]
    fn a_gap_that_began_before_the_window_counts_where_it_ends() {
        let mut meter = GapMeter::new(0);
        meter.success(500);
        meter.begin_window();
        assert_eq!(meter.longest_ns(510), 10);
        meter.success(700);
        meter.success(710);
        assert_eq!(meter.longest_ns(711), 200);
    }
}
