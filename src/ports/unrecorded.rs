//! Events for the flight recorder, from whoever records one.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Limit for what waits for the recorder; what comes beyond is only counted.
const UNRECORDED_MAX: usize = 8192;

/// The events that the recorder has not taken yet. The journal has it beside its rings.
#[derive(Debug)]
pub(crate) struct Unrecorded<E> {
    queue: Mutex<RecorderQueue<E>>,
    woken: Condvar,
}

#[derive(Debug)]
struct RecorderQueue<E> {
    is_on: bool,
    has_ended: bool,
    /// Whether it has an event that must not wait.
    is_urgent: bool,
    events: Vec<E>,
    dropped: u64,
}

/// The events since the recorder last took some, oldest first.
#[derive(Debug)]
pub(crate) struct TakenEvents<E> {
    pub events: Vec<E>,
    /// Events for which there was no room.
    pub dropped: u64,
    /// No event follows.
    pub has_ended: bool,
}

impl<E> Default for Unrecorded<E> {
    fn default() -> Self {
        let queue = RecorderQueue { is_on: false, has_ended: false, is_urgent: false, events: Vec::new(), dropped: 0 };
        Self { queue: Mutex::new(queue), woken: Condvar::new() }
    }
}

impl<E: Clone> Unrecorded<E> {
    /// Keeps a copy for the recorder, if there is one. It never waits for it. `is_urgent`: the recorder looks at once.
    pub(crate) fn add(&self, event: &E, is_urgent: bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.is_on {
            return;
        }
        if queue.events.len() == UNRECORDED_MAX {
            queue.dropped += 1;
            return;
        }
        let before = queue.wants_attention();
        queue.events.push(event.clone());
        queue.is_urgent |= is_urgent;
        if !before && queue.wants_attention() {
            drop(queue);
            self.woken.notify_one();
        }
    }

    /// Whether events from now on are kept.
    pub(crate) fn turn(&self, is_on: bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.is_on = is_on;
        if !is_on {
            queue.events = Vec::new();
        }
    }

    /// Tells the recorder that no event follows.
    pub(crate) fn end(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.woken.notify_one();
    }

    /// Takes all: as soon as there is one that is urgent or they are many, at the latest after `wait`.
    pub(crate) fn take(&self, wait: Duration) -> TakenEvents<E> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.woken.wait_timeout_while(queue, wait, |queue| !queue.wants_attention());
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.is_urgent = false;
        TakenEvents {
            events: std::mem::take(&mut queue.events),
            dropped: std::mem::take(&mut queue.dropped),
            has_ended: queue.has_ended,
        }
    }
}

impl<E> RecorderQueue<E> {
    fn wants_attention(&self) -> bool {
        self.has_ended || self.is_urgent || self.events.len() >= UNRECORDED_MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn whoever_records_never_waits_for_a_recorder_that_hangs_and_what_is_left_out_is_counted() {
        let port = Unrecorded::default();
        port.add(&0, true);
        port.turn(true);
        (1..=UNRECORDED_MAX + 7).for_each(|event| port.add(&event, false));
        let taken = port.take(LONG);
        assert_eq!((taken.events.len(), taken.dropped, taken.events[0]), (UNRECORDED_MAX, 7, 1));
        let again = port.take(Duration::ZERO);
        assert_eq!((again.events.len(), again.dropped, again.has_ended), (0, 0, false));
        port.add(&1, true);
        assert_eq!(port.take(LONG).events, [1], "an urgent one is taken at once");
        port.end();
        assert!(port.take(LONG).has_ended);
        port.add(&1, false);
        port.turn(false);
        port.add(&2, true);
        assert!(port.take(LONG).events.is_empty());
    }
}
