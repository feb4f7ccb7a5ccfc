//! Flows that become offloaded: when the worker passes them to the offload engine, and how it handles the engine's
//! answers.
//!
//! A flow leaves its worker in a quiet moment: right after the worker has read a request and before it passes it on, if
//! everything sent before is acknowledged; or when the flow has reached an age and no byte moves. Only flows that have
//! proved to last are offloaded: for a connection with one short request, an offload would cost more than it saves.

use std::mem;

use super::backlog::Backlog;
use super::context::WorkerContext;
use super::context::slab::FlowSlab;
use super::flow::{EndAsked, Flow, OffloadState, Phase, Relaying, patience_ns};
use super::relay::{Direction, Pumped};
use super::resume::{go_on, watch_again, watch_anew};
use super::tell::ends_of;
use super::timers::Due;
use super::token::FlowRef;
use super::verdict::FlowVerdict;
use super::watch::{self, FlowWatch};
use crate::model::end_reason::EndReason;
use crate::model::offload::OffloadRefusal;
use crate::ports::offload::{Candidate, Progress, Record, Request, Sockets, Stays, Ticket};
use crate::sys::liveness::forget_user_timeout;
use crate::sys::silence;
use crate::table::flows::Field;
use crate::table::offload::SocketlessHold;

/// The flow may leave if no byte moves: it is old enough, or was busy at the last try.
pub(super) fn leave_due(cx: &mut WorkerContext, flow: &mut Flow) -> FlowVerdict {
    if cx.offload_policy().is_none() || flow.pending_end.is_some() {
        return FlowVerdict::Keep;
    }
    let now_ns = cx.now_ns();
    let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::Keep };
    let closes = relaying.first_fin.is_some() || relaying.closing.is_some();
    if !relaying.eligibility.is_due(now_ns) || closes {
        return FlowVerdict::Keep;
    }
    match relaying.up.is_quiet() && relaying.down.is_quiet() && relaying.all_is_acknowledged() {
        true => give_to_engine(cx, flow),
        false => try_again(cx, flow),
    }
    FlowVerdict::Keep
}

/// Reads the client's bytes, and passes the flow to the engine if the moment is right. Otherwise the worker holds the
/// bytes.
pub(super) fn read_and_leave(
    cx: &mut WorkerContext,
    flow: &mut Flow,
    moved: &mut Pumped,
) -> Result<bool, super::relay::Broken> {
    let Some(policy) = cx.offload_policy() else { return Ok(false) };
    let (now_ns, age_ns) = (cx.now_ns(), cx.now_ns().saturating_sub(flow.accepted_at_ns));
    let Phase::Relaying(relaying) = &mut flow.phase else { return Ok(false) };
    if !relaying.eligibility.may_be_tried(policy, age_ns, now_ns) || flow.pending_end.is_some() {
        return Ok(false);
    }
    if relaying.first_fin.is_some() || !relaying.up.reads() || !relaying.down.is_quiet() {
        return Ok(false);
    }
    if !relaying.up.read_ahead(&relaying.client, &mut cx.tools, moved)? {
        return Ok(false);
    }
    if !relaying.all_is_acknowledged() {
        try_again(cx, flow);
        return Ok(false);
    }
    // The flow's own counter changes only when bytes are written.
    cx.slot(flow.at.key()).set(Field::LastToBackendNs as usize, now_ns);
    give_to_engine(cx, flow);
    Ok(true)
}

/// A request has just been passed on. If the flow may leave with the next one, the offload engine begins to watch its
/// packets: those until then show their addresses, and no request needs to wait for that.
pub(super) fn announce_if_near(cx: &WorkerContext, flow: &mut Flow) {
    let Some(policy) = cx.offload_policy() else { return };
    let age_ns = cx.now_ns().saturating_sub(flow.accepted_at_ns);
    let Phase::Relaying(relaying) = &mut flow.phase else { return };
    if relaying.eligibility.announce(policy, age_ns)
        && let Some(ends) = ends_of(flow)
    {
        cx.table.offload.ask(Request::Witness { id: flow.id, ends });
    }
}

/// The flow ends in its sockets, so the offload engine need not watch it any more.
pub(super) fn forget_announced(cx: &WorkerContext, flow: &Flow, reason: EndReason) {
    if matches!(&flow.phase, Phase::Relaying(relaying) if relaying.eligibility.is_announced()) {
        let slot = cx.slot(flow.at.key());
        let bytes = [Field::BytesToBackend, Field::BytesToClient].map(|field| slot.word(field as usize));
        cx.table.offload.ask(Request::Forget { id: flow.id, reason, bytes });
    }
}

/// Asks the offload engine to end a flow that has no sockets here.
pub(super) fn end_by_engine(cx: &WorkerContext, flow: &mut Flow, reason: EndReason) {
    let ticket = cx.ticket(flow);
    let idle = flow.pending_end.take().and_then(|pending| pending.only_idle_for);
    let idle = match reason {
        EndReason::IdleTimeout => flow.frontend.settings.idle_timeout,
        _ => idle,
    };
    let unless_moved_since_ns = idle.map(|idle| cx.now_ns().saturating_sub(idle.as_nanos() as u64));
    let asks = EndAsked { reason, only_if_idle: idle.is_some() };
    let (Phase::Offloading(state) | Phase::Offloaded { state, .. }) = &mut flow.phase else { return };
    // One order is enough, but an order that may spare the flow does not replace one that must end it.
    if state.ending.is_none_or(|asked| asked.only_if_idle && !asks.only_if_idle) {
        state.ending = Some(asks);
        cx.table.offload.ask(Request::End { ticket, unless_moved_since_ns });
    }
}

/// Tries all flows again that may be offloaded now.
pub(super) fn try_all_again(cx: &WorkerContext, watch: &mut FlowWatch, flows: &mut FlowSlab) {
    let now_ns = cx.now_ns();
    for flow in flows.iter_mut() {
        let Phase::Relaying(relaying) = &mut flow.phase else { continue };
        if relaying.eligibility.try_again() {
            watch.offload_now(now_ns, flow.at);
        }
    }
}

fn give_to_engine(cx: &WorkerContext, flow: &mut Flow) {
    let Phase::Relaying(relaying) = mem::replace(&mut flow.phase, Phase::Between) else { return };
    let Relaying {
        client, backend, backend_addr, place, source_port, attempt, mut up, mut down, mut eligibility, ..
    } = relaying;
    if flow.shared {
        // The other process's descriptors would keep the registration (epoll(7), Q6).
        let _ = cx.epoll.forget(&client);
        let _ = cx.epoll.forget(&backend);
    }
    let slot = cx.slot(flow.at.key());
    let word = |field: Field| slot.word(field as usize);
    if word(Field::LocalEnd) == 0 {
        // It is too young to have been settled, and has no sockets here from now on.
        watch::show_source(cx, flow.at, &backend);
    }
    let candidate = Candidate {
        ticket: cx.ticket(flow),
        sockets: Sockets { client, backend, held_up: up.take_held(), held_down: down.take_held() },
        record: Record {
            accepted_at_ns: flow.accepted_at_ns,
            connect_us: word(Field::ConnectUs),
            backend_key: place.0.hash_key,
            client: flow.client_addr,
        },
        bytes_to_backend: word(Field::BytesToBackend),
        bytes_to_client: word(Field::BytesToClient),
        patience_ns: patience_ns(flow),
    };
    eligibility.offered();
    flow.phase =
        Phase::Offloading(OffloadState { backend_addr, place, source_port, attempt, eligibility, ending: None });
    cx.table.offload.ask(Request::Offload(Box::new(candidate)));
}

/// Sets the next try of a flow that was busy.
fn try_again(cx: &mut WorkerContext, flow: &mut Flow) {
    let now_ns = cx.now_ns();
    if let Phase::Relaying(relaying) = &mut flow.phase {
        cx.timers.set(relaying.eligibility.busy(now_ns), Due::Leave(flow.at));
    }
}

/// The offload engine carries the flow from now on.
/// `stays_here`: its backend is on this host.
pub(super) fn offloaded(cx: &WorkerContext, flow: &mut Flow, stays_here: bool) -> FlowVerdict {
    if let Phase::Offloading(state) = mem::replace(&mut flow.phase, Phase::Between) {
        flow.phase = Phase::Offloaded {
            state,
            stays_here,
            _hold: SocketlessHold::count_in(cx.table.census.clone(), stays_here),
        };
        cx.show_state(flow);
    }
    FlowVerdict::Keep
}

/// The offload engine gives the sockets back.
pub(super) fn take_back(
    cx: &mut WorkerContext,
    watch: &mut FlowWatch,
    backlog: &mut Backlog,
    flow: &mut Flow,
    sockets: Sockets,
    why: Stays,
) -> FlowVerdict {
    let Phase::Offloading(state) = mem::replace(&mut flow.phase, Phase::Between) else { return FlowVerdict::Keep };
    let OffloadState { backend_addr, place, source_port, attempt, mut eligibility, ending } = state;
    let Sockets { client, backend, held_up, held_down } = sockets;
    forget_user_timeout(&client);
    forget_user_timeout(&backend);
    let shared = flow.shared;
    let refusal = match why {
        _ if why.for_good() => OffloadRefusal::ForGood,
        Stays::Busy => OffloadRefusal::Busy,
        // An end that does not answer a challenge may send by itself later.
        Stays::Unseen => OffloadRefusal::Unseen,
        Stays::Resets if !cx.table.census.is_stopped() => OffloadRefusal::Trial,
        _ => OffloadRefusal::ForNow,
    };
    let again_ns = eligibility.refused(refusal, cx.now_ns());
    flow.phase = Phase::Relaying(Relaying {
        client,
        backend,
        backend_addr,
        place,
        source_port,
        attempt,
        up: Direction::holding(held_up),
        down: Direction::holding(held_down),
        first_fin: None,
        closing: None,
        unanswered_since_ns: 0,
        watched: false,
        delivering: false,
        waits_for_turn: false,
        eligibility,
    });
    if let Some(asked) = ending.filter(|asked| !asked.only_if_idle) {
        return FlowVerdict::End(asked.reason, 0);
    }
    cx.slot(flow.at.key()).set(Field::Stays as usize, Stays::pack(Some(why)));
    if let Some(at_ns) = again_ns {
        cx.timers.set(at_ns, Due::Leave(flow.at));
    }
    let watched = match shared {
        true => watch_again(cx, flow),
        false => watch_anew(cx, flow),
    };
    match watched {
        Ok(()) => go_on(cx, watch, backlog, flow),
        Err(error) => FlowVerdict::End(EndReason::Internal, error.raw_os_error().unwrap_or(0)),
    }
}

/// Its packets have moved.
pub(super) fn progressed(cx: &WorkerContext, flow: &mut Flow, progress: &Progress) -> FlowVerdict {
    account_offload(cx, flow, progress);
    FlowVerdict::Keep
}

/// An idle flow was to be ended, but its bytes move.
pub(super) fn moves(cx: &WorkerContext, flow: &mut Flow, progress: &Progress) -> FlowVerdict {
    account_offload(cx, flow, progress);
    if let Phase::Offloading(state) | Phase::Offloaded { state, .. } = &mut flow.phase {
        state.ending = state.ending.filter(|asked| !asked.only_if_idle);
        if state.ending.is_none() {
            cx.show_state(flow);
        }
    }
    FlowVerdict::Keep
}

/// The offload engine has ended the flow; returns why.
pub(super) fn ended(cx: &WorkerContext, flow: &mut Flow, last: &Progress, reason: Option<EndReason>) -> EndReason {
    account_offload(cx, flow, last);
    let asked = match &flow.phase {
        Phase::Offloading(state) | Phase::Offloaded { state, .. } => state.ending,
        _ => None,
    };
    reason.or(asked.map(|asked| asked.reason)).unwrap_or(EndReason::Internal)
}

/// Counts the offloaded bytes since the engine's last report.
fn account_offload(cx: &WorkerContext, flow: &Flow, progress: &Progress) {
    let (Phase::Offloading(state) | Phase::Offloaded { state, .. }) = &flow.phase else { return };
    let slot = cx.slot(flow.at.key());
    let lane = &state.place.0.lanes[cx.number];
    let grown = |field: Field, to: u64| {
        let before = slot.word(field as usize);
        slot.set(field as usize, before.max(to));
        to.saturating_sub(before)
    };
    lane.bytes_to_backend.add(grown(Field::BytesToBackend, progress.bytes_to_backend));
    lane.bytes_to_client.add(grown(Field::BytesToClient, progress.bytes_to_client));
    grown(Field::LastToBackendNs, progress.last_to_backend_ns);
    grown(Field::LastToClientNs, progress.last_to_client_ns);
}

/// The place of the flow of `ticket`, if it exists and is not taken out.
pub(super) fn place_of(flows: &FlowSlab, ticket: Ticket) -> Option<FlowRef> {
    let flow = flows.at_key(ticket.key)?;
    (flow.id == ticket.id).then_some(flow.at)
}

impl Relaying {
    /// Whether neither leg has bytes in flight. Two system calls, so asked last.
    fn all_is_acknowledged(&self) -> bool {
        let quiet = |socket: &std::os::fd::OwnedFd| silence::unacknowledged(socket).is_ok_and(|bytes| bytes == 0);
        quiet(&self.client) && quiet(&self.backend)
    }
}
