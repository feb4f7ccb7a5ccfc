//! Deadlines of one worker. A deadline that is no longer wanted is not removed: it fires, and whoever set it sees that
//! the flow has moved on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::token::FlowRef;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A connecting flow wants a hedged attempt, or an attempt has had its time.
    Connect(FlowRef),
    /// A PROXY header should have come.
    Header(FlowRef),
    /// Flows that have been idle for too long should be looked for.
    Idle,
    /// A flow's turn to be ended by order.
    End(FlowRef),
    /// Flows that wait for an answer should be looked at.
    Evidence,
    /// A flow should be tried again to be offloaded.
    Leave(FlowRef),
    /// Ends that were asked often get the timers of their settings again.
    Asked,
    /// Paused listeners may try again.
    Accept,
}

/// Deadlines, soonest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, Due)>>,
}

impl Timers {
    /// Lets `due` fire at `at_ns` on the monotonic clock.
    pub(super) fn set(&mut self, at_ns: u64, due: Due) {
        self.heap.push(Reverse((at_ns, due)));
    }

    /// The soonest deadline, in monotonic ns.
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
