//! Deadlines of one worker. An obsolete deadline is not searched for: either it has become the earliest one and its flow has ended, or
//! it fires, and its handler sees that the flow has moved on.

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

impl Due {
    /// The flow that it is about, if it is about one.
    fn flow(self) -> Option<FlowRef> {
        match self {
            Self::Connect(at) | Self::Header(at) | Self::End(at) | Self::Leave(at) => Some(at),
            Self::Idle | Self::Evidence | Self::Asked | Self::Accept => None,
        }
    }
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

    /// Removes the earliest deadlines, as long as they are of flows that `has_ended`.
    pub(super) fn forget_first_while(&mut self, has_ended: impl Fn(FlowRef) -> bool) {
        while let Some(Reverse((_, due))) = self.heap.peek()
            && due.flow().is_some_and(&has_ended)
        {
            self.heap.pop();
        }
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

    #[test]
    fn deadlines_of_ended_flows_go_before_they_fire_and_others_stay() {
        let flow = |index| FlowRef { index, generation: 0 };
        let mut timers = Timers::default();
        for index in 0..4 {
            timers.set(u64::from(index), Due::Connect(flow(index)));
        }
        timers.set(2, Due::Accept);
        timers.forget_first_while(|at| at.index != 3);
        assert_eq!(timers.pop(9), Some(Due::Accept), "it is about no flow");
        timers.forget_first_while(|at| at.index != 3);
        assert_eq!([timers.pop(2), timers.pop(3)], [None, Some(Due::Connect(flow(3)))]);
    }
}
