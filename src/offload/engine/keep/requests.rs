//! What the failover asks of the offload engine, in the order in which it asks.

use super::super::Outside;
use super::super::flows::Flows;
use super::super::quiet::ask_ends_soon;
use super::super::witness::Witnesses;
use super::forward::find_unanswered;
use super::room::NoStandby;
use super::{BOTH, Keep};
use crate::offload::program::Unread;
use crate::ports::offload::{StandbyAnswer, StandbyRequest};

/// Requests that are taken before flows of this instance have their turn.
const BURST: usize = 256;

/// Does what the failover asks. While another process takes over, requests wait for it.
pub(in super::super) fn take_standby_requests(
    keep: &mut Keep,
    outside: &mut Outside,
    flows: &mut Flows,
    witnesses: &mut Witnesses,
) {
    // Before it has been read what an earlier process left, that would be taken for left behind as soon as it is said.
    if outside.is_frozen() || !flows.are_known() {
        return;
    }
    for _ in 0..BURST {
        let unserved = keep.unserved.take();
        let Some(request) = unserved.or_else(|| outside.table.offload.held.next_request()) else { return };
        keep.unserved = serve(keep, outside, flows, witnesses, request).err();
        if keep.unserved.is_some() {
            // Until the next turn.
            return;
        }
    }
    outside.table.offload.wake();
}

/// Fails with what is to be done again, because an entry could not be read.
fn serve(
    keep: &mut Keep,
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
                keep.crowded.forget_packets(&record.ends.key(direction));
            }
            match keep.hold(outside, flows, witnesses, &record) {
                Ok(()) => {}
                Err(NoStandby::Unread) => return Err(StandbyRequest::Hold(record)),
                Err(NoStandby::NoRoom | NoStandby::Taken) => {
                    keep.crowded.add_flow(id, record);
                    outside.table.offload.held.answer(StandbyAnswer::NoStandby(vec![id]));
                }
            }
        }
        StandbyRequest::Drop(ids) => {
            each(ids, |id| keep.drop_standby(&outside.program, flows, id)).map_err(StandbyRequest::Drop)?
        }
        StandbyRequest::Inherit(ids) => {
            each(ids, |id| keep.inherit_standby(outside, flows, id)).map_err(StandbyRequest::Inherit)?;
        }
        StandbyRequest::Release(ids) => {
            each(ids, |id| keep.release(outside, flows, id)).map_err(StandbyRequest::Release)?
        }
        StandbyRequest::Settle { claim } => {
            keep.settle_standby(outside, flows, claim).map_err(|_| StandbyRequest::Settle { claim })?;
        }
        StandbyRequest::Forward { flows: forwarded, to } => {
            keep.forward_flows(outside, flows, witnesses, &forwarded, to)
                .map_err(|_| StandbyRequest::Forward { flows: forwarded, to })?;
        }
        StandbyRequest::Lend { keys, to } => {
            keep.forward(outside, flows, &keys, to, true).map_err(|_| StandbyRequest::Lend { keys, to })?;
        }
        StandbyRequest::Refuse(keys) => {
            each(keys, |key| keep.refuse_packets(&outside.program, key)).map_err(StandbyRequest::Refuse)?
        }
        StandbyRequest::Forget(keys) => {
            each(keys, |key| keep.forget(&outside.program, key)).map_err(StandbyRequest::Forget)?
        }
        StandbyRequest::Report(number) => outside.table.offload.held.answer(StandbyAnswer::Reached(number)),
        StandbyRequest::FindUnanswered(keys) => {
            find_unanswered(outside, &keys).map_err(|_| StandbyRequest::FindUnanswered(keys))?;
        }
        StandbyRequest::Unknown { vip, unknown } => keep.set_unknown(&outside.program, vip, unknown),
        StandbyRequest::PortRanges(port_ranges) => keep.hops.set_port_ranges(outside, flows, port_ranges),
        StandbyRequest::AskEnds => ask_ends_soon(outside, flows),
        StandbyRequest::RoutesMoved => keep.hops.routes_moved(outside, flows, keep.kept.held()),
    }
    Ok(())
}

/// Does it with each, in order; fails with those that are left once an entry cannot be read.
fn each<T: Copy>(mut all: Vec<T>, mut act: impl FnMut(T) -> Result<(), Unread>) -> Result<(), Vec<T>> {
    match all.iter().position(|one| act(*one).is_err()) {
        None => Ok(()),
        Some(first) => Err(all.split_off(first)),
    }
}
