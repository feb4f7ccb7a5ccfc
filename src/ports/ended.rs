//! Flows that ended, from the workers to the log of ended flows.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use crossbeam_queue::SegQueue;
use tokio::sync::Notify;

use crate::model::end_reason::EndReason;
use crate::model::flow::FlowOrigin;
use crate::model::ids::{BackendId, FlowId};

/// Limit for one worker's ended flows that wait for the log; further ones are only counted.
const ENDED_QUEUE: usize = 16_384;

/// One flow that ended: the source of its log line and its event.
#[derive(Clone, Copy, Debug)]
pub struct EndedFlow {
    pub id: FlowId,
    pub origin: FlowOrigin,
    pub backend: Option<BackendId>,
    /// The backend leg's destination, if there was one.
    pub backend_addr: Option<SocketAddr>,
    /// Its source: as the backend sees the client.
    pub source: Option<SocketAddr>,
    pub reason: EndReason,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    /// 0 if no backend was connected.
    pub connect_us: u64,
    /// Nanoseconds on the monotonic clock.
    pub ended_at_ns: u64,
    /// errno of the call that reported the end, 0 if none.
    pub errno: i32,
}

impl EndedFlow {
    /// A connection that was reset at once.
    pub(crate) fn unserved(id: FlowId, origin: FlowOrigin, reason: EndReason) -> Self {
        Self {
            id,
            origin,
            backend: None,
            backend_addr: None,
            source: None,
            reason,
            bytes_to_backend: 0,
            bytes_to_client: 0,
            connect_us: 0,
            ended_at_ns: origin.accepted_at_ns,
            errno: 0,
        }
    }
}

/// One queue per worker, so that no two workers write to the same.
#[derive(Debug)]
pub struct EndedFlows {
    lanes: Box<[EndedLane]>,
}

#[derive(Debug)]
struct EndedLane {
    /// Grows with what waits: room for all of it would be most of an idle process's memory.
    queue: SegQueue<EndedFlow>,
    reported: Notify,
}

impl EndedFlows {
    pub(crate) fn new(workers: usize) -> Self {
        let lane = |_| EndedLane { queue: SegQueue::new(), reported: Notify::new() };
        Self { lanes: (0..workers).map(lane).collect() }
    }

    pub fn workers(&self) -> usize {
        self.lanes.len()
    }

    /// Sends an ended flow of `worker` to the log; never waits. False: too many wait already, and the flow is left out.
    pub(crate) fn report(&self, worker: usize, flow: EndedFlow) -> bool {
        let lane = &self.lanes[worker];
        // The worker alone adds to its queue, so that it never grows beyond the limit.
        let has_room = lane.queue.len() < ENDED_QUEUE;
        if has_room {
            lane.queue.push(flow);
        }
        lane.reported.notify_one();
        has_room
    }

    /// The oldest ended flow of `worker` not yet taken.
    pub fn next(&self, worker: usize) -> Option<EndedFlow> {
        self.lanes[worker].queue.pop()
    }

    /// Returns when a worker may have reported a flow since the last call.
    pub(crate) async fn reported(&self) {
        let mut lanes: Vec<Pin<Box<_>>> = self.lanes.iter().map(|lane| Box::pin(lane.reported.notified())).collect();
        poll_fn(|context| {
            let any = lanes.iter_mut().any(|lane| lane.as_mut().poll(context).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{ClientAddr, VipAddr};
    use crate::model::ids::FrontendId;

    fn flow(id: u64) -> EndedFlow {
        let origin = FlowOrigin {
            accepted_at_ns: 1,
            client: ClientAddr::new("192.0.2.1:5000".parse().unwrap()),
            vip: VipAddr::new("192.0.2.100:6443".parse().unwrap()),
            frontend: FrontendId(1),
        };
        EndedFlow::unserved(FlowId(id), origin, EndReason::ClientClosed)
    }

    #[test]
    fn flows_above_the_limit_are_left_out_until_others_are_taken() {
        let ended = EndedFlows::new(2);
        assert!((0..ENDED_QUEUE as u64).all(|id| ended.report(0, flow(id))));
        assert!(!ended.report(0, flow(1)), "there is no room");
        assert!(ended.report(1, flow(2)), "each worker has a queue of its own");
        assert_eq!(ended.next(0).map(|flow| flow.id), Some(FlowId(0)));
        assert!(ended.report(0, flow(3)), "there is room for one more");
        assert!(!ended.report(0, flow(4)));
    }
}
