//! Orders to end flows: any part gives them, and the workers that own the flows carry them out.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crossbeam_queue::SegQueue;
use ipnet::IpNet;

use crate::model::end_reason::EndReason;
use crate::model::flow::{FlowKey, Ticket};
use crate::model::ids::{BackendId, FlowId};
use crate::sys::eventfd::EventFd;

/// The flows that an order selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    Flow {
        id: FlowId,
        key: FlowKey,
    },
    Backend(BackendId),
    /// The backend's flows with sockets here.
    SocketsOf(BackendId),
    Client(IpNet),
    /// All except those that the offload engine carries, or is about to.
    WithSockets,
    /// As `WithSockets`, and offloaded ones whose backend is on this host.
    EndingHere,
    All,
}

/// The rate at which many flows may be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Spread over this time, with jitter.
    pub within: Duration,
    /// Limit per second, for all workers together.
    pub per_second: u32,
}

impl Pace {
    pub const AT_ONCE: Pace = Pace { within: Duration::ZERO, per_second: u32::MAX };

    /// Time between two ends of a worker that ends `flows`: spreads them over the window, but never exceeds the rate.
    pub(crate) fn step_ns(self, flows: usize, workers: usize) -> u64 {
        let spread = self.within.as_nanos() as u64 / (flows as u64).max(1);
        let rate_limit = Duration::from_secs(workers as u64).as_nanos() as u64 / u64::from(self.per_second.max(1));
        spread.max(rate_limit)
    }

    /// Time until all flows of an order have had their turn, with the number of its flows at each worker; whole milliseconds, rounded up.
    pub(crate) fn lasts(self, by_worker: &[usize]) -> Duration {
        let of_worker = |flows: &usize| self.step_ns(*flows, by_worker.len()).saturating_mul(*flows as u64);
        Duration::from_millis(by_worker.iter().map(of_worker).max().unwrap_or(0).div_ceil(1_000_000))
    }
}

/// End the selected flows for `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndOrder {
    pub selector: Selector,
    pub reason: EndReason,
    pub pace: Pace,
    /// Spare flows that moved a byte within this time, or that hold undelivered bytes.
    pub only_idle_for: Option<Duration>,
}

/// One queue and one wake per worker.
#[derive(Debug)]
pub struct Orders {
    lanes: Box<[Lane]>,
}

#[derive(Debug)]
struct Lane {
    queue: SegQueue<EndOrder>,
    wake: EventFd,
}

impl Orders {
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        let lane = |_| Ok(Lane { queue: SegQueue::new(), wake: EventFd::new()? });
        Ok(Self { lanes: (0..workers).map(lane).collect::<io::Result<_>>()? })
    }

    pub(crate) fn workers(&self) -> usize {
        self.lanes.len()
    }

    /// Sends `order` to every worker.
    pub fn end(&self, order: EndOrder) {
        for worker in 0..self.lanes.len() {
            self.send(worker, order);
        }
    }

    /// Ends one flow at once.
    pub fn end_flow(&self, flow: Ticket, reason: EndReason, only_idle_for: Option<Duration>) {
        let selector = Selector::Flow { id: flow.id, key: flow.key };
        self.send(flow.worker, EndOrder { selector, reason, pace: Pace::AT_ONCE, only_idle_for });
    }

    /// The next order for `worker`.
    pub fn take(&self, worker: usize) -> Option<EndOrder> {
        self.lanes[worker].queue.pop()
    }

    /// Wakes `worker`.
    pub fn wake(&self, worker: usize) {
        self.lanes[worker].wake.signal();
    }

    /// Clears the wake. Call it before taking orders, so that none is missed.
    pub(crate) fn clear_wake(&self, worker: usize) {
        self.lanes[worker].wake.clear();
    }

    pub(crate) fn wake_fd(&self, worker: usize) -> BorrowedFd<'_> {
        self.lanes[worker].wake.fd()
    }

    fn send(&self, worker: usize, order: EndOrder) {
        self.lanes[worker].queue.push(order);
        self.wake(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_spread_over_the_window_and_never_exceed_the_rate() {
        let pace = Pace { within: Duration::from_millis(250), per_second: 50_000 };
        assert_eq!(pace.step_ns(100, 2), 2_500_000);
        // 50,000 per second is 20 µs a flow for both workers together, 40 µs for each.
        assert_eq!(pace.step_ns(100_000, 2) * 100_000, 4_000_000_000);
        assert_eq!(pace.lasts(&[3, 0]), Duration::from_millis(250));
        assert_eq!(pace.lasts(&[100_000, 5]), Duration::from_secs(4));
        assert_eq!(pace.lasts(&[0, 0]), Duration::ZERO);
    }
}
