//! Waiting for events, always with a deadline, and measuring how long they took.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{LazyLock, Once};
use std::time::Duration;

use baton::sys::clock::now_ns;

use super::LONG;

/// How often a condition is looked at. Small beside every figure that a test asserts.
const POLL: Duration = Duration::from_millis(4);

/// Time since it was started, on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    began_ns: u64,
    stalled_before_ns: u64,
}

impl Stopwatch {
    pub fn start() -> Self {
        watch_for_stalls();
        Self { began_ns: now_ns(), stalled_before_ns: STALLED_NS.load(SeqCst) }
    }

    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(now_ns() - self.began_ns)
    }

    /// As [`Stopwatch::elapsed`], less the time for which the whole machine stood still: virtual machines on a busy
    /// host do, for seconds. Figures that Baton must meet are compared with this.
    pub fn unstalled(self) -> Duration {
        let stalled = Duration::from_nanos(STALLED_NS.load(SeqCst) - self.stalled_before_ns);
        if !stalled.is_zero() {
            println!("the machine stood still for {stalled:?} of {:?}", self.elapsed());
        }
        self.elapsed().saturating_sub(stalled)
    }
}

/// Time for which a thread that only sleeps was not woken, beyond [`STALL`].
static STALLED_NS: AtomicU64 = AtomicU64::new(0);

/// What the scheduler may do to a thread on a busy machine.
const STALL: Duration = Duration::from_millis(50);

fn watch_for_stalls() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let before_ns = now_ns();
                std::thread::sleep(POLL);
                let late = Duration::from_nanos(now_ns() - before_ns).saturating_sub(POLL);
                if late > STALL {
                    STALLED_NS.fetch_add(late.as_nanos() as u64, SeqCst);
                }
            }
        });
    });
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
    let deadline = patient(deadline);
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

/// `deadline`, longer on an emulated processor unless it is a figure to meet, which is shorter than [`LONG`].
pub fn patient(deadline: Duration) -> Duration {
    if deadline < LONG { deadline } else { deadline * *PATIENCE }
}

/// An emulated processor is ten times as slow (tests/machines/suite): waits without a figure to meet, and figures that are compared by
/// [`meets`], may be longer there by this factor.
static PATIENCE: LazyLock<u32> = LazyLock::new(|| {
    let given = std::env::var("BATON_TESTS_PATIENCE").ok();
    given.map_or(1, |factor| factor.parse().expect("BATON_TESTS_PATIENCE is a whole number"))
});

/// Sets the flag when dropped, so that threads which run until then end also after a panic.
#[derive(Debug)]
pub struct SetsAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Checks that a figure is below `limit`. It is taken up to three times, for one below a few scheduler slices says
/// as much about who else is running as about Baton; what else `scenario` checks must hold each time.
#[track_caller]
pub fn meets(limit: Duration, what: &str, mut scenario: impl FnMut() -> Duration) {
    let limit = limit * *PATIENCE;
    let mut figures = Vec::new();
    for _ in 0..3 {
        let figure = scenario();
        println!("{what} {figure:?}");
        if figure < limit {
            return;
        }
        figures.push(figure);
    }
    panic!("{what} {figures:?}, never below {limit:?}");
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
