//! Waiting for events, always with a deadline, and measuring how long they took.

use std::time::Duration;

use baton::sys::clock::now_ns;

/// How often a condition is looked at. Small beside every figure that a test asserts.
const POLL: Duration = Duration::from_millis(4);

/// Time since it was started, on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    began_ns: u64,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { began_ns: now_ns() }
    }

    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(now_ns() - self.began_ns)
    }
}

/// Waits until `condition` holds and returns how long that took; panics after `deadline`, saying `what`.
#[track_caller]
pub fn eventually(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    eventually_some(deadline, what, || condition().then_some(())).1
}

/// Waits until `look` returns something; panics after `deadline`, saying `what`.
#[track_caller]
pub fn eventually_some<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> (T, Duration) {
    let watch = Stopwatch::start();
    loop {
        // Taken before the look, so that a slow look cannot turn a met condition into a missed deadline.
        let elapsed = watch.elapsed();
        if let Some(found) = look() {
            return (found, watch.elapsed());
        }
        assert!(elapsed < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Checks for all of `time` that `condition` holds; panics at once when it does not, saying `what`.
#[track_caller]
pub fn throughout(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while watch.elapsed() < time {
        assert!(condition(), "only for {:?}: {what}", watch.elapsed());
        std::thread::sleep(POLL);
    }
}
