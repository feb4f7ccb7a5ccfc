//! Serves the failover's requests, in their order.

use super::super::Outside;
use super::super::flows::Flows;
use super::super::quiet::ask_ends_soon;
use super::super::witness::Witnesses;
use super::forward::find_unanswered;
use super::room::NoStandby;
use super::standby::confirm;
use super::{BOTH, Keep};
use crate::offload::program::Unread;
use crate::ports::offload::{StandbyAnswer, StandbyRequest};

/// Requests that are served before this instance's own flows have their turn.
const BURST: usize = 256;

/// Serves the failover's requests. During an upgrade the requests wait for the new process.
pub(in super::super) fn take_standby_requests(
    keep: &mut Keep,
    outside: &mut Outside,
    flows: &mut Flows,
    witnesses: &mut Witnesses,
) {
    // Before the earlier process's entries were read: otherwise entries for these requests would look like left-over
    // ones.
    if outside.is_frozen() || !flows.are_known() {
        return;
    }
    for _ in 0..BURST {
        let unserved = keep.unserved.take();
        let Some(request) = unserved.or_else(|| outside.table.offload.standby.next_request()) else { return };
        keep.unserved = serve(keep, outside, flows, witnesses, request).err();
        if keep.unserved.is_some() {
            // Go on at the next turn.
            return;
        }
    }
    outside.table.offload.wake();
}

/// On an error returns the rest to do again, because an entry could not be read.
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
            // The flow has no sockets left to forward its packets to.
            for direction in BOTH {
                keep.crowded.forget_packets(&record.ends.key(direction));
            }
            match keep.hold(outside, flows, witnesses, &record) {
                Ok(()) if keep.missing.remove(&id) => {
                    outside.table.offload.standby.answer(StandbyAnswer::Held(vec![id]));
                }
                Ok(()) => {}
                Err(NoStandby::Unread) => return Err(StandbyRequest::Hold(record)),
                Err(NoStandby::NoRoom | NoStandby::Taken) => {
                    keep.crowded.add_flow(id, record);
                    outside.table.offload.standby.answer(StandbyAnswer::NoStandby(vec![id]));
                }
            }
        }
        StandbyRequest::Confirm(ids) => confirm(keep, outside, flows, ids),
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
        StandbyRequest::ForwardKeys { keys, to } => {
            keep.forward(outside, flows, &keys, to, true).map_err(|_| StandbyRequest::ForwardKeys { keys, to })?;
        }
        StandbyRequest::Refuse(keys) => {
            each(keys, |key| keep.refuse_packets(&outside.program, key)).map_err(StandbyRequest::Refuse)?
        }
        StandbyRequest::Forget(keys) => {
            each(keys, |key| keep.forget(&outside.program, key)).map_err(StandbyRequest::Forget)?
        }
        StandbyRequest::Report(number) => outside.table.offload.standby.answer(StandbyAnswer::Reached(number)),
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

/// Calls `act` for each, in order; on an error returns those that are left, because an entry could not be read.
fn each<T: Copy>(mut all: Vec<T>, mut act: impl FnMut(T) -> Result<(), Unread>) -> Result<(), Vec<T>> {
    match all.iter().position(|one| act(*one).is_err()) {
        None => Ok(()),
        Some(first) => Err(all.split_off(first)),
    }
}
