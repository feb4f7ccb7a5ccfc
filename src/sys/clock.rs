//! The monotonic clock. All code that compares times reads it here, so that tests can pass their own times.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on CLOCK_MONOTONIC, the clock that std's `Instant` uses; never 0.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

/// CPU time of this thread so far, in nanoseconds; time in which it waited is not included.
pub(crate) fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Nanoseconds since 1970, UTC. Not comparable with another host's clock, nor reliably with this one's at another time.
pub(crate) fn unix_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.max(0) as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Milliseconds since 1970, UTC.
pub(crate) fn unix_ms() -> u64 {
    unix_ns() / 1_000_000
}

/// The UTC time in milliseconds since 1970 of a moment on the monotonic clock.
pub(crate) fn unix_ms_of(monotonic_ns: u64) -> u64 {
    unix_ns().saturating_sub(now_ns().saturating_sub(monotonic_ns)) / 1_000_000
}

/// The moment on the monotonic clock of a UTC time in milliseconds since 1970; 1 if that is before it began.
pub(crate) fn ns_of_unix_ms(at_unix_ms: u64) -> u64 {
    let ago_ns = unix_ns().saturating_sub(at_unix_ms.saturating_mul(1_000_000));
    now_ns().saturating_sub(ago_ns).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_way_to_the_other_clock_and_back() {
        let moment_ns = now_ns();
        let back_ns = ns_of_unix_ms(unix_ms_of(moment_ns));
        assert!(back_ns.abs_diff(moment_ns) < 1_000_000_000, "{back_ns} {moment_ns}");
        assert_eq!(ns_of_unix_ms(0), 1);
    }
}
