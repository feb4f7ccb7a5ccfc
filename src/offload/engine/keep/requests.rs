//! What the failover asks of the offload engine, in the order in which it asks.

use super::super::Outside;
use super::super::flows::Flows;
use super::super::quiet::ask_ends_soon;
use super::super::witness::Witnesses;
use super::forward::find_unanswered;
use super::room::NoStandby;
use super::{BOTH, Keep};
use crate::offload::program::Unread;
use crate::table::offload::{StandbyAnswer, StandbyRequest};

/// Requests that are taken before flows of this instance have their turn.
const BURST: usize = 256;

impl Keep {
    /// Does what the failover asks. While another process takes over, requests wait for it.
    pub(in super::super) fn take_requests(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        witnesses: &mut Witnesses,
    ) {
        // Before it has been read what an earlier process left, that would be taken for left behind as soon as it is said.
        if outside.is_frozen() || !flows.are_known() {
            return;
        }
        for _ in 0..BURST {
            let unserved = self.unserved.take();
            let Some(request) = unserved.or_else(|| outside.table.offload.held.next_request()) else { return };
            self.unserved = self.serve(outside, flows, witnesses, request).err();
            if self.unserved.is_some() {
                // Until the next turn.
                return;
            }
        }
        outside.table.offload.wake();
    }

    /// Fails with what is to be done again, because an entry could not be read.
    fn serve(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        witnesses: &mut Witnesses,
        request: StandbyRequest,
    ) -> Result<(), StandbyRequest> {
        match request {
            StandbyRequest::Hold(record) => {
                let id = record.fleet_id();
                // It has no sockets any more that its packets could be forwarded to.
                for direction in BOTH {
                    self.crowded.forget_packets(&record.ends.key(direction));
                }
                match self.hold(outside, flows, witnesses, &record) {
                    Ok(()) => {}
                    Err(NoStandby::Unread) => return Err(StandbyRequest::Hold(record)),
                    Err(NoStandby::NoRoom | NoStandby::Taken) => {
                        self.crowded.add_flow(id, record);
                        outside.table.offload.held.answer(StandbyAnswer::NoStandby(vec![id]));
                    }
                }
            }
            StandbyRequest::Drop(ids) => {
                each(ids, |id| self.drop_standby(&outside.program, flows, id)).map_err(StandbyRequest::Drop)?
            }
            StandbyRequest::Inherit(ids) => {
                each(ids, |id| self.inherit_standby(outside, flows, id)).map_err(StandbyRequest::Inherit)?;
            }
            StandbyRequest::Release(ids) => {
                each(ids, |id| self.release(outside, flows, id)).map_err(StandbyRequest::Release)?
            }
            StandbyRequest::Settle { claim } => {
                self.settle_standby(outside, flows, claim).map_err(|_| StandbyRequest::Settle { claim })?;
            }
            StandbyRequest::Forward { flows: forwarded, to } => {
                self.forward_flows(outside, flows, witnesses, &forwarded, to)
                    .map_err(|_| StandbyRequest::Forward { flows: forwarded, to })?;
            }
            StandbyRequest::Lend { keys, to } => {
                self.forward(outside, flows, &keys, to, true).map_err(|_| StandbyRequest::Lend { keys, to })?;
            }
            StandbyRequest::Refuse(keys) => {
                each(keys, |key| self.refuse_packets(&outside.program, key)).map_err(StandbyRequest::Refuse)?
            }
            StandbyRequest::Forget(keys) => {
                each(keys, |key| self.forget(&outside.program, key)).map_err(StandbyRequest::Forget)?
            }
            StandbyRequest::Report(number) => outside.table.offload.held.answer(StandbyAnswer::Reached(number)),
            StandbyRequest::FindUnanswered(keys) => {
                find_unanswered(outside, &keys).map_err(|_| StandbyRequest::FindUnanswered(keys))?;
            }
            StandbyRequest::Unknown { vip, unknown } => self.set_unknown(&outside.program, vip, unknown),
            StandbyRequest::PortRanges(port_ranges) => self.hops.set_port_ranges(outside, flows, port_ranges),
            StandbyRequest::AskEnds => ask_ends_soon(outside, flows),
            StandbyRequest::RoutesMoved => self.hops.routes_moved(outside, flows, self.kept.held()),
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
