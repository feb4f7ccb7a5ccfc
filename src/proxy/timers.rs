//! Deadlines of one worker. An obsolete deadline is not removed: it fires, and its handler sees that the flow has moved
//! on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::token::FlowRef;

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A connecting flow needs a hedged attempt, or an attempt has run out of time.
    Connect(FlowRef),
    /// The PROXY header is late.
    Header(FlowRef),
    /// Look for flows that have been idle for too long.
    Idle,
    /// A flow's time to be ended by order.
    End(FlowRef),
    /// Look at the flows that wait for an answer.
    Evidence,
    /// Try again to offload a flow.
    Leave(FlowRef),
    /// Ends that were challenged often get the timers of their settings back.
    Asked,
    /// Paused listeners may try again.
    Accept,
}

/// Deadlines, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, Due)>>,
}

impl Timers {
    /// Lets `due` fire at `at_ns` on the monotonic clock.
    pub(super) fn set(&mut self, at_ns: u64, due: Due) {
        self.heap.push(Reverse((at_ns, due)));
    }

    /// The earliest deadline, in monotonic ns.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Takes one deadline that has passed.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Due> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse((_, due))| due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_fire_in_order_and_not_before_their_time() {
        let mut timers = Timers::default();
        timers.set(30, Due::Accept);
        timers.set(10, Due::Evidence);
        assert_eq!((timers.pop(9), timers.next_ns()), (None, Some(10)));
        assert_eq!(timers.pop(40), Some(Due::Evidence));
        assert_eq!((timers.pop(40), timers.pop(40)), (Some(Due::Accept), None));
    }
}
