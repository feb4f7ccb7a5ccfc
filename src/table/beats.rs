//! Signs of life of the loops that other parts rely on: each loop reports every turn, so that the watchdog notices one
//! that hangs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::count::Tally;
use crate::sys::clock::now_ns;

/// The running loops.
#[derive(Debug, Default)]
pub struct LoopBeats {
    loops: Mutex<Vec<(&'static str, Weak<AtomicU64>)>>,
    /// Times at which no thread of the process ran.
    pub(crate) pauses: Tally,
}

/// One loop's handle. Once it is dropped, no more turns are expected.
#[derive(Debug)]
pub(crate) struct LoopBeat {
    /// Monotonic ns.
    last_ns: Arc<AtomicU64>,
}

impl LoopBeats {
    /// From now on a loop called `name` must turn many times a second.
    pub(crate) fn begin(&self, name: &'static str) -> LoopBeat {
        let last_ns = Arc::new(AtomicU64::new(now_ns()));
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.retain(|(_, beat)| beat.strong_count() > 0);
        loops.push((name, Arc::downgrade(&last_ns)));
        LoopBeat { last_ns }
    }

    /// The loops that have not turned for `longer_than`, and for how long.
    pub(crate) fn stuck(&self, now_ns: u64, longer_than: Duration) -> Vec<(&'static str, Duration)> {
        let loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = |(name, beat): &(&'static str, Weak<AtomicU64>)| {
            let last_ns = beat.upgrade()?.load(Relaxed);
            Some((*name, Duration::from_nanos(now_ns.saturating_sub(last_ns))))
        };
        loops.iter().filter_map(silence).filter(|(_, silent)| *silent > longer_than).collect()
    }
}

impl LoopBeat {
    /// Reports a turn.
    pub(crate) fn turn(&self) {
        self.last_ns.store(now_ns(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_loop_that_hangs_is_named_and_one_that_ended_is_not() {
        let beats = LoopBeats::default();
        let (one, other) = (beats.begin("one"), beats.begin("other"));
        one.turn();
        let now = now_ns();
        assert_eq!(beats.stuck(now, Duration::from_secs(5)), []);
        other.last_ns.store(now + 4 * S, Relaxed);
        let stuck = beats.stuck(now + 8 * S, Duration::from_secs(5));
        assert_eq!(stuck.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["one"]);
        drop(one);
        assert_eq!(beats.stuck(now + 8 * S, Duration::from_secs(5)), []);
        other.last_ns.store(now, Relaxed);
        assert_eq!(beats.stuck(now + 8 * S, Duration::from_secs(5)).len(), 1);
    }
}
