//! What the failover asks of the offload engine, in the order in which it asks.

use super::Engine;
use super::held::BOTH;
use crate::table::offload::{StandbyAnswer, StandbyRequest};

/// Requests that are taken before flows of this instance have their turn.
const BURST: usize = 256;

impl Engine {
    /// Does what the failover asks. While another process takes over, requests wait for it.
    pub(super) fn take_standby_requests(&mut self) {
        // Before it has been read what an earlier process left, that would be taken for left behind as soon as it is said.
        if self.is_frozen() || !self.listens {
            return;
        }
        for _ in 0..BURST {
            let Some(request) = self.table.offload.held.next_request() else { return };
            self.serve_failover(request);
        }
        self.table.offload.wake();
    }

    fn serve_failover(&mut self, request: StandbyRequest) {
        match request {
            StandbyRequest::Hold(record) => {
                let id = record.fleet_id();
                // It has no sockets any more that its packets could be forwarded to.
                for direction in BOTH {
                    self.keep.crowded.packets.remove(&record.ends.key(direction));
                }
                if self.hold(&record).is_err() {
                    self.keep.crowded.flows.insert(id, record);
                    self.table.offload.held.answer(StandbyAnswer::NoStandby(vec![id]));
                }
            }
            StandbyRequest::Drop(flows) => flows.into_iter().for_each(|id| self.drop_standby(id)),
            StandbyRequest::Inherit(flows) => flows.into_iter().for_each(|id| self.inherit_standby(id)),
            StandbyRequest::Release(flows) => flows.into_iter().for_each(|id| self.release(id)),
            StandbyRequest::Settle { claim } => self.settle_standby(claim),
            StandbyRequest::Forward { keys, to } => self.forward(keys, to, false),
            StandbyRequest::Lend { keys, to } => self.forward(keys, to, true),
            StandbyRequest::Refuse(keys) => keys.into_iter().for_each(|key| self.refuse_packets(key)),
            StandbyRequest::Forget(keys) => keys.into_iter().for_each(|key| self.forget(key)),
            StandbyRequest::Report(number) => self.table.offload.held.answer(StandbyAnswer::Reached(number)),
            StandbyRequest::FindUnanswered(keys) => self.find_unanswered(keys),
            StandbyRequest::Unknown { vip, unknown } => self.set_unknown(vip, unknown),
            StandbyRequest::PortRanges(port_ranges) => {
                self.keep.port_ranges = port_ranges;
                self.show_port_ranges();
            }
            StandbyRequest::AskEnds => self.ask_ends_soon(),
            StandbyRequest::RoutesMoved => self.routes_moved(),
        }
    }
}
