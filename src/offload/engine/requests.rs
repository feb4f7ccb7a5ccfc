//! What the failover asks of the offload engine, in the order in which it asks.

use super::Engine;
use super::held::BOTH;
use super::quiet::ask_ends_soon;
use super::room::NoStandby;
use crate::offload::program::Unread;
use crate::table::offload::{StandbyAnswer, StandbyRequest};

/// Requests that are taken before flows of this instance have their turn.
const BURST: usize = 256;

impl Engine {
    /// Does what the failover asks. While another process takes over, requests wait for it.
    pub(super) fn take_standby_requests(&mut self) {
        // Before it has been read what an earlier process left, that would be taken for left behind as soon as it is said.
        if self.outside.is_frozen() || !self.listens {
            return;
        }
        for _ in 0..BURST {
            let unserved = self.keep.unserved.take();
            let Some(request) = unserved.or_else(|| self.outside.table.offload.held.next_request()) else { return };
            self.keep.unserved = self.serve_failover(request).err();
            if self.keep.unserved.is_some() {
                // Until the next turn.
                return;
            }
        }
        self.outside.table.offload.wake();
    }

    /// Fails with what is to be done again, because an entry could not be read.
    fn serve_failover(&mut self, request: StandbyRequest) -> Result<(), StandbyRequest> {
        match request {
            StandbyRequest::Hold(record) => {
                let id = record.fleet_id();
                // It has no sockets any more that its packets could be forwarded to.
                for direction in BOTH {
                    self.keep.crowded.packets.remove(&record.ends.key(direction));
                }
                match self.hold(&record) {
                    Ok(()) => {}
                    Err(NoStandby::Unread) => return Err(StandbyRequest::Hold(record)),
                    Err(NoStandby::NoRoom | NoStandby::Taken) => {
                        self.keep.crowded.flows.insert(id, record);
                        self.outside.table.offload.held.answer(StandbyAnswer::NoStandby(vec![id]));
                    }
                }
            }
            StandbyRequest::Drop(flows) => each(flows, |id| self.drop_standby(id)).map_err(StandbyRequest::Drop)?,
            StandbyRequest::Inherit(flows) => {
                each(flows, |id| self.inherit_standby(id)).map_err(StandbyRequest::Inherit)?;
            }
            StandbyRequest::Release(flows) => each(flows, |id| self.release(id)).map_err(StandbyRequest::Release)?,
            StandbyRequest::Settle { claim } => {
                self.settle_standby(claim).map_err(|_| StandbyRequest::Settle { claim })?;
            }
            StandbyRequest::Forward { flows, to } => {
                self.forward_flows(&flows, to).map_err(|_| StandbyRequest::Forward { flows, to })?;
            }
            StandbyRequest::Lend { keys, to } => {
                self.forward(&keys, to, true).map_err(|_| StandbyRequest::Lend { keys, to })?;
            }
            StandbyRequest::Refuse(keys) => {
                each(keys, |key| self.refuse_packets(key)).map_err(StandbyRequest::Refuse)?
            }
            StandbyRequest::Forget(keys) => each(keys, |key| self.forget(key)).map_err(StandbyRequest::Forget)?,
            StandbyRequest::Report(number) => self.outside.table.offload.held.answer(StandbyAnswer::Reached(number)),
            StandbyRequest::FindUnanswered(keys) => {
                self.find_unanswered(&keys).map_err(|_| StandbyRequest::FindUnanswered(keys))?;
            }
            StandbyRequest::Unknown { vip, unknown } => self.set_unknown(vip, unknown),
            StandbyRequest::PortRanges(port_ranges) => {
                self.keep.port_ranges = port_ranges;
                self.show_port_ranges();
            }
            StandbyRequest::AskEnds => ask_ends_soon(&mut self.outside, &mut self.flows),
            StandbyRequest::RoutesMoved => self.routes_moved(),
        }
        Ok(())
    }
}

/// Does it with each, in order; fails with those that are left once an entry cannot be read.
fn each<T: Copy>(mut all: Vec<T>, mut act: impl FnMut(T) -> Result<(), Unread>) -> Result<(), Vec<T>> {
    match all.iter().position(|one| act(*one).is_err()) {
        None => Ok(()),
        Some(first) => Err(all.split_off(first)),
    }
}
