//! The monotonic clock. Everything that compares times takes them from here, so that tests can pass their own.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on CLOCK_MONOTONIC, the clock that std's `Instant` uses; never 0.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

/// Milliseconds since 1970, UTC: what hosts agree on, more or less.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The moment of `at_unix_ms` on the monotonic clock; 1 if that is before it began.
pub fn ns_of_unix_ms(at_unix_ms: u64) -> u64 {
    let ago_ms = unix_ms().saturating_sub(at_unix_ms);
    now_ns().saturating_sub(ago_ms.saturating_mul(1_000_000)).max(1)
}

/// The moment of `at_ns` on the monotonic clock, in milliseconds since 1970.
pub fn unix_ms_of_ns(at_ns: u64) -> u64 {
    unix_ms().saturating_sub(now_ns().saturating_sub(at_ns) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_way_to_the_other_clock_and_back() {
        let moment_ns = now_ns();
        let back_ns = ns_of_unix_ms(unix_ms_of_ns(moment_ns));
        assert!(back_ns.abs_diff(moment_ns) < 1_000_000_000, "{back_ns} {moment_ns}");
        assert_eq!(ns_of_unix_ms(0), 1);
    }
}
