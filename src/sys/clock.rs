//! The monotonic clock. All code that compares times reads it here, so that tests can pass their own times.

use std::sync::LazyLock;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the kernel's own CLOCK_MONOTONIC, by which the BPF program and other processes tell time; never 0. std's `Instant` is
/// as much ahead of it as this process's time namespace says.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    (now_ns - *AHEAD_NS).max(1).cast_unsigned()
}

/// The time of [`now_ns`] by the clock of this process's namespace, as timers take it.
pub(crate) fn for_timer_ns(at_ns: u64) -> u64 {
    at_ns.saturating_add_signed(*AHEAD_NS)
}

/// A process may have another time namespace than the one before it, whose flows it recovers.
static AHEAD_NS: LazyLock<i64> = LazyLock::new(|| {
    // Without the file the kernel has no such namespaces.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    monotonic_offset_ns(&offsets).unwrap_or(0)
});

/// Of time_namespaces(7) `timens_offsets`: a clock, seconds and nanoseconds in each line.
fn monotonic_offset_ns(offsets: &str) -> Option<i64> {
    let mut words = offsets.lines().find_map(|line| line.strip_prefix("monotonic "))?.split_whitespace();
    let mut number = || words.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000_000)?.checked_add(number()?)
}

/// Nanoseconds since the machine began, those included for which it was suspended (CLOCK_BOOTTIME). Its differences alone mean something.
pub(crate) fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = |seconds: &str| format!("monotonic  {seconds}\nboottime          7         0\n");
        assert_eq!(monotonic_offset_ns(&offsets("        -20 500000000")), Some(-19_500_000_000));
        assert_eq!(monotonic_offset_ns(&offsets("    1000000         0")), Some(1_000_000_000_000_000));
        assert_eq!(monotonic_offset_ns(&offsets("9999999999999 0")), None);
        assert_eq!(monotonic_offset_ns(""), None);
    }

    #[test]
    fn a_moment_survives_the_way_to_the_other_clock_and_back() {
        let moment_ns = now_ns();
        let back_ns = ns_of_unix_ms(unix_ms_of(moment_ns));
        assert!(back_ns.abs_diff(moment_ns) < 1_000_000_000, "{back_ns} {moment_ns}");
        assert_eq!(ns_of_unix_ms(0), 1);
    }
}
