//! Ends offloaded flows by order: the entries answer every packet with RST, and challenges make both ends send one.
//!
//! An RST with the number that an end last acknowledged ends its connection if no bytes were in flight (RFC 5961). A
//! bare ACK one below that number makes the end answer with its own numbers, and the program answers these with RST.
//! Where one of the two works, the end ignores the other, so both are sent; and once more after the time for which
//! kernels limit such answers (tcp_invalid_ratelimit, 500 ms).

use std::net::SocketAddr;
use std::time::Duration;

use super::Outside;
use super::flows::Flows;
use super::offloaded::{CounterSnapshot, OffloadedFlow, Step};
use crate::model::end_reason::EndReason;
use crate::model::ends::Ends;
use crate::model::fleet::failover::Wake;
use crate::model::fleet::{FleetId, StandbyAnswer};
use crate::model::ids::FlowId;
use crate::model::offload::steps::{DueAction, SilenceAction};
use crate::model::splice::FlowDirection;
use crate::offload::entry::Key;
use crate::offload::probe::EntryChange;
use crate::offload::program::{Program, Unread};
use crate::ports::late_resets::Abandoned;
use crate::ports::offload::{Answer, Progress, Ticket};
use crate::sys::clock::now_ns;
use crate::sys::socket;

/// Time from the first round to the second, and from there to the removal of the entries.
const ROUND: Duration = Duration::from_millis(700);

/// Clients that are challenged at a time, to learn whether they hear this host.
const CLIENTS_ASKED: usize = 32;

/// Every live end answers the bare ACK of a reset with an RST of its kernel. An end that has sent nothing by then may
/// be behind a network that is down for a while, and would wait for ever. It is told again after this time, and then by
/// `late_resets`, which needs no entry.
const SILENT_ROUND: Duration = Duration::from_secs(5);

/// How long entries outlive a flow that has ended by itself, for packets that are still on their way.
const LINGER: Duration = Duration::from_secs(2);

/// The flow's worker ordered its end.
pub(super) fn end(outside: &mut Outside, flows: &mut Flows, ticket: Ticket, unless_moved_since_ns: Option<u64>) {
    let is_known = look(&outside.program, flows, ticket.id).is_ok();
    let Some(flow) = flows.get_mut(&ticket.id) else {
        // Either the flow stays proxied, and its worker knows that, or it has ended, and its worker is about to learn
        // it.
        return;
    };
    flow.ticket = Some(ticket);
    if flow.step.is_ending() {
        return;
    }
    let last = flow.progress();
    // While this host heard nobody, bytes may have passed another host.
    let moved_ns = outside.table.reachability.counts_from(flow.up.last_data_ns.max(flow.down.last_data_ns));
    if let (Some(since_ns), Some(last)) = (unless_moved_since_ns, last)
        && (moved_ns >= since_ns || !is_known)
    {
        // Its worker asks again if the flow is idle for that long.
        return outside.answers.answer(ticket.worker, Answer::Moves(last));
    }
    reset(outside, flows, ticket.id);
    if let Some(last) = last {
        outside.answers.answer(ticket.worker, Answer::Ended { last, reason: None });
    }
}

/// Resets both ends, and the sockets if there are any.
pub(super) fn reset(outside: &Outside, flows: &mut Flows, id: FlowId) {
    let Some(flow) = flows.get_mut(&id) else { return };
    let closing = flow.step.handle_reset(now_ns());
    let keys = flow.ends.keys();
    // Entries first: the ends' answers to the segments below must find them.
    if let Err(error) = outside.program.change(id, &keys, EntryChange::Reset) {
        tracing::error!(%error, "cannot turn the entries of a flow into reset entries");
    }
    if let Some(closing) = closing {
        socket::reset(closing.sockets.client);
        socket::reset(closing.sockets.backend);
        outside.table.offload.count_out();
    }
    reset_round(outside, flows, id);
    make_way(&outside.program, flows, id);
}

/// Ends the flow for this reason: tells its worker, and resets both ends.
pub(super) fn give_up(outside: &mut Outside, flows: &mut Flows, id: FlowId, reason: EndReason) {
    flows.was_reset(id, reason);
    over(outside, flows, id, reason);
    reset(outside, flows, id);
}

/// A client that has begun a new connection from the same port needs no entry any more: the new connection is proxied,
/// and may itself be offloaded.
pub(super) fn make_way(program: &Program, flows: &Flows, id: FlowId) {
    let Some(flow) = flows.get(&id) else { return };
    for (direction, look) in [(FlowDirection::ToBackend, &flow.up), (FlowDirection::ToClient, &flow.down)] {
        if look.reused {
            take_out_own(program, flows, id, direction);
        }
    }
}

/// A flow is over; its worker is told, or is told as soon as there is one.
pub(super) fn over(outside: &mut Outside, flows: &mut Flows, id: FlowId, reason: EndReason) {
    let Some(flow) = flows.get(&id) else { return };
    let Some(ticket) = flow.ticket else { return flows.end_early(id, reason) };
    let last = flow.progress().unwrap_or_else(|| Progress::none(ticket));
    outside.answers.answer(ticket.worker, Answer::Ended { last, reason: Some(reason) });
}

/// As [`over`]; its entries stay for packets that are still on their way.
pub(super) fn fade(outside: &mut Outside, flows: &mut Flows, id: FlowId, reason: EndReason) {
    over(outside, flows, id, reason);
    if let Some(flow) = flows.get_mut(&id) {
        flow.step.handle_over();
        // Counted from its last packet: it may have ended long before this process began.
        let last_ns = flow.up.last_ns.max(flow.down.last_ns);
        flows.later.insert(last_ns + LINGER.as_nanos() as u64, id);
    }
}

/// Carries out the actions that are due.
pub(super) fn do_what_is_due(outside: &Outside, flows: &mut Flows) {
    let now_ns = now_ns();
    while !outside.is_frozen()
        && let Some(id) = flows.later.take_due(now_ns)
    {
        match flows.get_mut(&id).map_or(DueAction::Nothing, |flow| flow.step.handle_due()) {
            DueAction::Nothing => {}
            DueAction::Challenge => reset_round(outside, flows, id),
            DueAction::HearEnds => reset_silent(outside, flows, id),
            DueAction::RemoveIfQuiet => remove_if_quiet(outside, flows, id, now_ns),
        }
    }
}

/// Resets an end again that has sent nothing since the reset began; the other end may use its port again.
fn reset_silent(outside: &Outside, flows: &mut Flows, id: FlowId) {
    if look(&outside.program, flows, id).is_err() {
        // On an error: an end that has sent something meanwhile would count as silent.
        flows.later.insert(now_ns() + ROUND.as_nanos() as u64, id);
        return;
    }
    let Some(flow) = flows.get_mut(&id) else { return };
    let (ends, up, down) = (flow.ends, flow.up, flow.down);
    let may_be_old = flow.may_be_old(FlowDirection::ToBackend);
    // An end without an entry has answered before.
    let is_awaited = |look: &CounterSnapshot| *look != CounterSnapshot::default() && !look.reused;
    let last_ns = [&up, &down].map(|look| is_awaited(look).then_some(look.last_ns));
    let [client, backend] = match flow.step.handle_silence(last_ns) {
        None => return,
        Some(SilenceAction::Challenge(silent)) => silent,
        Some(SilenceAction::Remove([client, backend])) => {
            if !remove(outside, flows, id) {
                return;
            }
            let silent = [
                (client, ends.vip.socket_addr(), ends.client.socket_addr(), up, down),
                (backend, ends.local.socket_addr(), ends.backend.socket_addr(), down, up),
            ];
            for (_, from, to, look, other) in silent.into_iter().filter(|(is_silent, ..)| *is_silent) {
                outside.table.late_resets.tell(abandoned(from, to, &look, &other));
            }
            if client && may_be_old {
                // A client ignores an RST below the number that it expects.
                wake_client(outside, &ends);
            }
            return;
        }
    };
    match client {
        true => outside.wire.challenge_end(&ends, FlowDirection::ToBackend, &up),
        false => take_out_own(&outside.program, flows, id, FlowDirection::ToBackend),
    }
    match backend {
        true => outside.wire.challenge_end(&ends, FlowDirection::ToClient, &down),
        false => take_out_own(&outside.program, flows, id, FlowDirection::ToClient),
    }
    outside.wire.untrack(&ends);
    flows.later.insert(now_ns() + SILENT_ROUND.as_nanos() as u64, id);
}

/// Removes the entries unless packets still pass them.
fn remove_if_quiet(outside: &Outside, flows: &mut Flows, id: FlowId, now_ns: u64) {
    if look(&outside.program, flows, id).is_err() {
        flows.later.insert(now_ns + LINGER.as_nanos() as u64, id);
        return;
    }
    let Some(flow) = flows.get(&id) else { return };
    let until_ns = flow.up.last_ns.max(flow.down.last_ns) + LINGER.as_nanos() as u64;
    match until_ns > now_ns {
        true => flows.later.insert(until_ns, id),
        false => _ = remove(outside, flows, id),
    }
}

/// Sends both ends of the flow a challenge and an RST.
fn reset_round(outside: &Outside, flows: &mut Flows, id: FlowId) {
    // A challenge with an older number makes an end answer with its own number too, and the entries answer that.
    let _ = look(&outside.program, flows, id);
    let Some(OffloadedFlow { ends, up, down, .. }) = flows.get(&id) else { return };
    let (ends, up, down) = (*ends, *up, *down);
    outside.wire.challenge_end(&ends, FlowDirection::ToBackend, &up);
    outside.wire.challenge_end(&ends, FlowDirection::ToClient, &down);
    // Packets that this host sends create a conntrack entry (nf_conntrack_tcp_loose).
    outside.wire.untrack(&ends);
    flows.later.insert(now_ns() + ROUND.as_nanos() as u64, id);
}

/// The client has another connection by now. Not at once: the backend's answer may reach an instance that still holds
/// the flow, and that would take it for its own.
pub(super) fn reset_backend_soon(outside: &Outside, flows: &Flows, id: FlowId) {
    if let Some(OffloadedFlow { ends, up, down, .. }) = flows.get(&id) {
        let backend = abandoned(ends.local.socket_addr(), ends.backend.socket_addr(), down, up);
        outside.table.late_resets.repeat(backend);
    }
}

/// Has `late_resets` challenge a client again and again, because its numbers are not known.
pub(super) fn wake_client(outside: &Outside, ends: &Ends) {
    outside.table.late_resets.wake(Wake { from: ends.vip.socket_addr(), to: ends.client.socket_addr() });
}

/// Challenges some clients, to learn whether they hear this host.
pub(super) fn ask_clients(outside: &Outside, flows: &Flows) {
    let after = fastrand::usize(..flows.len().max(1));
    let flows = flows.values().cycle().skip(after).take(flows.len().min(CLIENTS_ASKED));
    for OffloadedFlow { ends, up, .. } in flows.filter(|flow| matches!(flow.step, Step::Alone)) {
        outside.wire.ask_end(ends, FlowDirection::ToBackend, up);
        outside.wire.untrack(ends);
    }
}

/// Removes the entries of an ended flow, and frees its port. Returns false if that must be tried again.
pub(super) fn remove(outside: &Outside, flows: &mut Flows, id: FlowId) -> bool {
    let Some(flow) = flows.get(&id) else { return true };
    let ends = flow.ends;
    if take_out_both(&outside.program, id, &ends).is_err() {
        flows.later.insert(now_ns() + ROUND.as_nanos() as u64, id);
        return false;
    }
    if flows.remove(id).is_some_and(|flow| flow.inherited_ns != 0) {
        outside.table.offload.standby.answer(StandbyAnswer::Over(vec![FleetId::of(id, &ends)]));
    }
    if let Err(error) = outside.program.drop_note(id) {
        tracing::error!(%error, "cannot remove the stored client address of an ended flow from the BPF map");
    }
    outside.table.offload.release(ends.local, ends.backend);
    true
}

fn take_out_both(program: &Program, id: FlowId, ends: &Ends) -> Result<(), Unread> {
    take_out(program, id, &ends.key(FlowDirection::ToBackend))?;
    take_out(program, id, &ends.key(FlowDirection::ToClient))
}

fn take_out_own(program: &Program, flows: &Flows, id: FlowId, direction: FlowDirection) {
    if let Some(flow) = flows.get(&id) {
        // An entry that cannot be read is removed with the flow.
        let _ = take_out(program, id, &flow.ends.key(direction));
    }
}

/// Removes an entry, unless it now belongs to another flow.
pub(super) fn take_out(program: &Program, id: FlowId, key: &Key) -> Result<(), Unread> {
    if program.entry(key)?.is_some_and(|entry| entry.id == id) {
        program.take_out(key)?;
    }
    Ok(())
}

/// Records the entries' counters. Returns whether any packet has passed since the last time. If the entries cannot be
/// read, nothing changes, and the next turn tries again.
pub(super) fn look(program: &Program, flows: &mut Flows, id: FlowId) -> Result<bool, Unread> {
    let Some(flow) = flows.get(&id) else { return Ok(false) };
    let keys = flow.ends.keys();
    // Both or neither: with one alone, the other end would seem silent.
    let seen = program.entries(keys).inspect_err(|_| flows.unread.look_at(id))?;
    let Some(flow) = flows.get_mut(&id) else { return Ok(false) };
    // Check both, whatever the result of the first.
    let own = seen.iter().flatten().filter(|entry| entry.id == id);
    Ok(own.fold(false, |changed, entry| flow.take_note(entry) | changed))
}

/// `look` is at what `to` has sent.
fn abandoned(from: SocketAddr, to: SocketAddr, look: &CounterSnapshot, other: &CounterSnapshot) -> Abandoned {
    // The other end's bytes, in the numbers of this end's leg: the end may have received more than it acknowledged.
    let under_way = other.sent.wrapping_sub(look.taken);
    let last = look.acked.wrapping_add(if under_way < 1 << 31 { under_way } else { 0 });
    Abandoned { from, to, seqs: [look.acked, last], ack: look.sent }
}
