//! Watches offloaded flows: their ends, their silence, their bytes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::breaker::judge;
use super::flows::{ASK_EVERY, Flows, Silent};
use super::interfaces::follow_routes;
use super::keep::{is_foreign, use_room};
use super::offloaded::{CounterSnapshot, OffloadedFlow, RstOrigin, Step, Unanswered, Untaken};
use super::quiet::{ask_both, ask_quiet, ask_who_was_missed, begin_asking};
use super::reset::{ask_clients, fade, give_up, look, make_way};
use super::surroundings::end_covered;
use super::tell::tell_failover;
use super::unread::{read_again, say_unread};
use super::{Engine, Outside};
use crate::addr::BackendAddr;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::model::offload::steps::Ending;
use crate::model::splice::FlowDirection;
use crate::offload::events::{self, Told};
use crate::offload::program::{Evidence, FixedProgram, OpenError};
use crate::ports::offload::Ticket;
use crate::ports::reachability::Reachability;
use crate::ports::suspicion::Suspicion;
use crate::sys::clock::now_ns;
use crate::table::journal::What;

/// Events that are taken before other work has its turn.
const EVENTS: usize = 1024;

/// A backend that has not answered for so long is suspect.
const PATIENCE: Duration = Duration::from_millis(300);

/// TCP has repeated a segment that was sent so long ago; most kernels twice (TCP_RTO_MIN is 200 ms, include/net/tcp.h).
const SENT_AGAIN: Duration = Duration::from_millis(600);

/// How often the engine checks that the program is still attached.
const REATTACH_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// The work of each turn.
    pub(super) fn watch(&mut self) {
        let now_ns = now_ns();
        see_backends(&self.outside, now_ns);
        say_unread(&self.outside, &mut self.flows, now_ns);
        let links_changed = self.outside.interfaces.links_changed();
        if self.outside.is_frozen() {
            return self.scan.begin_anew();
        }
        if links_changed {
            // An interface that is made anew lacks the program, and the kernel answers the first packet of a flow there with RST: be
            // there before the interface has an address.
            fix(&mut self.outside, &mut self.flows);
        }
        read_again(&mut self.outside, &mut self.flows, now_ns);
        follow_routes(&mut self.outside, &self.flows);
        end_covered(&mut self.outside, &mut self.flows);
        if now_ns >= self.reattach_at_ns {
            self.reattach_at_ns = now_ns + REATTACH_EVERY.as_nanos() as u64;
            fix(&mut self.outside, &mut self.flows);
            use_room(&mut self.keep, &mut self.outside, &mut self.flows, &mut self.witnesses, now_ns);
            self.audit.audit(&mut self.outside, &self.flows, &self.keep, &self.witnesses, now_ns);
            self.outside.show(self.flows.len());
        }
        if self.outside.table.reachability.take_wanted() {
            ask_clients(&self.outside, &self.flows);
        }
        judge(&self.outside, &mut self.flows, now_ns);
        self.witnesses.forget_stale(&self.outside.program, now_ns);
        self.keep.refill_asks(&self.outside.program, now_ns);
        if !(self.flows.is_empty() && self.keep.held().is_empty()) {
            self.scan.scan(&mut self.outside, &mut self.flows, &mut self.keep, now_ns);
            ask_quiet(&self.outside, &mut self.flows, now_ns);
            end_unfinished(&mut self.outside, &mut self.flows, now_ns);
            end_silent(&mut self.outside, &mut self.flows, now_ns);
            end_untaken(&mut self.outside, &mut self.flows, now_ns);
        }
        self.doubts.settle_doubts(&self.outside, &mut self.flows, &self.keep, now_ns);
    }

    /// Whether this process takes events: no other process does, and the flows are known.
    pub(super) fn takes_events(&self) -> bool {
        self.flows.are_known() && !self.outside.is_frozen()
    }

    /// Takes events about flows.
    pub(super) fn take_events(&mut self) {
        if !self.takes_events() {
            return;
        }
        let now_ns = now_ns();
        let (mut packets, mut touched) = (Vec::new(), Vec::new());
        for told in self.events.by_ref().take(EVENTS).collect::<Vec<_>>() {
            match told {
                Told::UnknownPacket(packet) => {
                    packets.extend((!is_foreign(&self.outside.program, &packet.key)).then_some(packet))
                }
                Told::Doubt(segment) => {
                    touched.extend(self.doubts.doubt(&self.outside, &mut self.flows, &self.keep, &segment, now_ns))
                }
                Told::Foreign(key) => drop(is_foreign(&self.outside.program, &key)),
                // A backend's packets may take another path than its client's; but an RST ends the flow wherever it
                // passes.
                Told::Flow(event) => match self.keep.held().by_packet(event.id, event.direction, &event.key) {
                    Some(held) => {
                        let counts =
                            event.direction == FlowDirection::ToBackend || event.what == events::ProgramWhat::Rst;
                        touched.extend(counts.then_some(held));
                    }
                    None => {
                        if event.what == events::ProgramWhat::Oversized
                            && let Some(flow) = self.flows.get_mut(&event.id)
                        {
                            flow.first_rst = Some(RstOrigin::Oversized);
                        }
                        if look(&self.outside.program, &mut self.flows, event.id).is_ok() {
                            has_moved(&mut self.outside, &mut self.flows, event.id, now_ns);
                        }
                    }
                },
            }
        }
        tell_failover(&self.outside, touched, packets);
    }
}

/// Reports progress to the worker, and ends the flow if it is over.
pub(super) fn has_moved(outside: &mut Outside, flows: &mut Flows, id: FlowId, now_ns: u64) {
    let Some(flow) = flows.get(&id) else { return };
    if flow.step.is_ending() {
        return make_way(&outside.program, flows, id);
    }
    flows.sort(id, now_ns);
    let Some(flow) = flows.get(&id) else { return };
    if let Some(progress) = flow.progress() {
        outside.answers.has_come_to(progress);
    }
    let Some(reason) = flow.ended() else { return };
    match flow.step.handle_ended(flow.is_finished()) {
        Some(Ending::Reset) => give_up(outside, flows, id, reason),
        Some(Ending::Fade) => fade(outside, flows, id, reason),
        None => {}
    }
}

/// Challenges the ends of flows that seem to end, and ends those with both FINs passed whose ends have been silent for
/// too long: an end that is left would wait for bytes that no end will send again.
fn end_unfinished(outside: &mut Outside, flows: &mut Flows, now_ns: u64) {
    let Silent { too_long, to_ask } = flows.unfinished(now_ns, &outside.table.reachability);
    to_ask.into_iter().for_each(|id| ask_both(outside, flows, id, now_ns));
    end_stuck(outside, flows, too_long, OffloadedFlow::does_not_finish, now_ns);
}

/// Ends flows of which one side has been silent for too long while the other waits for it.
fn end_silent(outside: &mut Outside, flows: &mut Flows, now_ns: u64) {
    if outside.table.fleet.is_shared() {
        // The other side's packets may pass another instance.
        return;
    }
    let Silent { too_long, to_ask } = flows.unanswered(now_ns, &outside.table.reachability);
    to_ask.into_iter().for_each(|id| ask_silent(outside, flows, id, now_ns));
    end_stuck(outside, flows, too_long, OffloadedFlow::answers_nothing, now_ns);
}

/// Ends flows of which one side has not acknowledged a byte for too long, though the other goes on sending.
fn end_untaken(outside: &mut Outside, flows: &mut Flows, now_ns: u64) {
    if outside.table.fleet.is_shared() {
        // What acknowledges them may pass another instance.
        return;
    }
    let too_long = flows.untaken(now_ns, &outside.table.reachability);
    end_stuck(outside, flows, too_long, OffloadedFlow::takes_nothing, now_ns);
}

/// Why a flow cannot go on at this time; `None`: it can.
type StuckVerdict = fn(&OffloadedFlow, u64, &Reachability) -> Option<EndReason>;

/// Ends those of the flows for which `verdict` still has a reason after another look: the last scan may have been a while ago.
fn end_stuck(outside: &mut Outside, flows: &mut Flows, ids: Vec<FlowId>, verdict: StuckVerdict, now_ns: u64) {
    for id in ids {
        if look(&outside.program, flows, id).is_err() {
            continue;
        }
        has_moved(outside, flows, id, now_ns);
        // What the look has found may have ended it.
        let stuck = flows.get(&id).filter(|flow| matches!(flow.step, Step::Alone));
        if let Some(reason) = stuck.and_then(|flow| verdict(flow, now_ns, &outside.table.reachability)) {
            give_up(outside, flows, id, reason);
        }
    }
}

/// Sets how long a silence ends the flow.
pub(super) fn set_patience(outside: &Outside, flows: &mut Flows, ticket: Ticket, patience_ns: u64) {
    let Some(flow) = flows.get_mut(&ticket.id).filter(|flow| flow.ticket == Some(ticket)) else { return };
    flow.patience_ns = patience_ns;
    if let Some(unanswered) = &mut flow.waits.unanswered {
        unanswered.ask_at_ns = unanswered.ask_at_ns.min(unanswered.since_ns + patience_ns / 2);
    }
    let is_asked_when_quiet = flow.quiet_at_ns != 0;
    flows.ask_if_closing(ticket.id);
    if is_asked_when_quiet {
        begin_asking(outside, flows, ticket.id);
    }
}

/// Challenges the silent side: any live end answers. The waiting side may send too rarely to tell silence from a lost
/// answer: probes of a closed window and retransmissions come up to two minutes apart.
fn ask_silent(outside: &Outside, flows: &mut Flows, id: FlowId, now_ns: u64) {
    let Some(flow) = flows.get_mut(&id) else { return };
    let Some(unanswered) = &mut flow.waits.unanswered else { return };
    unanswered.ask_at_ns = now_ns + flow.patience_ns / ASK_EVERY;
    let (ends, by_client, up, down) = (flow.ends, unanswered.by_client, flow.up, flow.down);
    match by_client {
        true => outside.wire.ask_end(&ends, FlowDirection::ToBackend, &up),
        false => outside.wire.ask_end(&ends, FlowDirection::ToClient, &down),
    }
    outside.wire.untrack(&ends);
}

/// Reports backends that have not answered.
fn see_backends(outside: &Outside, now_ns: u64) {
    let seen: Vec<_> = outside
        .slots
        .iter()
        .filter_map(|(slot, backend)| Some((backend, outside.program.evidence(slot).ok()?)))
        .collect();
    let is_older = |since_ns: u64, than: Duration| now_ns.saturating_sub(since_ns) > than.as_nanos() as u64;
    for (address, Evidence { asked_ns, answered_ns, spoke_ns, given_ns, taken_ns }) in seen {
        let silent = asked_ns > answered_ns && is_older(asked_ns, PATIENCE);
        let takes_nothing = given_ns > taken_ns && is_older(given_ns, SENT_AGAIN);
        for entry in outside.table.registry.backends() {
            if entry.address().is_some_and(|its: BackendAddr| its == address) {
                entry.heard_ns.fetch_max(answered_ns, Relaxed);
                entry.spoke_ns.fetch_max(spoke_ns, Relaxed);
                entry.taken_ns.fetch_max(taken_ns, Relaxed);
                if takes_nothing {
                    entry.untaken_ns.fetch_max(now_ns, Relaxed);
                }
                if silent && entry.active.load(Relaxed) > 0 {
                    entry.suspicion.raise(Suspicion::SEGMENTS_UNACKED);
                }
            }
        }
    }
}

/// Attaches the program again where somebody detached it.
fn fix(outside: &mut Outside, flows: &mut Flows) {
    match outside.program.fix() {
        Ok(FixedProgram { interfaces, unpinned }) => {
            outside.lost = None;
            let unpinned = unpinned.then(|| outside.program.directory().display().to_string());
            let was_away = !interfaces.is_empty();
            if was_away || unpinned.is_some() {
                outside.table.journal.record(What::ProgramReattached { interfaces, unpinned });
            }
            if was_away {
                outside.table.census.reattached.add(1);
                ask_who_was_missed(outside, flows);
            }
        }
        // It cannot be pinned again, and without its pins it is attached to nothing.
        Err(error @ OpenError::Directory { .. }) if outside.program.notice_loss() => {
            let (error, flows_lost) = (error.to_string(), flows.len());
            if outside.lost.as_ref() != Some(&error) {
                outside.table.journal.record(What::ProgramLost { error: error.clone(), flows: flows_lost });
            }
            outside.lost = Some(error);
            if flows_lost > 0 {
                give_all_up(outside, flows);
            }
        }
        Err(error) => tracing::error!(%error, "cannot attach the BPF program again"),
    }
}

/// No interface runs the program, and none can.
fn give_all_up(outside: &mut Outside, flows: &mut Flows) {
    tracing::error!(flows = flows.len(), "nothing carries the offloaded flows any more: Baton resets them");
    let all: Vec<_> = flows.values().map(|flow| flow.id).collect();
    all.into_iter().for_each(|id| give_up(outside, flows, id, EndReason::Internal));
}

impl OffloadedFlow {
    /// Why the flow is over, if it is.
    pub(super) fn ended(&self) -> Option<EndReason> {
        let (up, down) = (&self.up, &self.down);
        if up.reused || down.reused {
            return Some(EndReason::ClientReset);
        }
        let by_client = up.fin_ns != 0 && (down.fin_ns == 0 || up.fin_ns <= down.fin_ns);
        let closed = if by_client { EndReason::ClientClosed } else { EndReason::BackendClosed };
        if self.is_finished() {
            return Some(closed);
        }
        match (up.rst_ns, down.rst_ns) {
            (0, 0) => None,
            _ if self.first_rst == Some(RstOrigin::Oversized) => Some(EndReason::Oversized),
            _ if self.is_long_over() => Some(closed),
            _ if self.first_rst == Some(RstOrigin::End(FlowDirection::ToBackend)) => Some(EndReason::ClientReset),
            _ if self.first_rst == Some(RstOrigin::End(FlowDirection::ToClient)) => Some(EndReason::BackendReset),
            (up, down) if down == 0 || (up != 0 && up <= down) => Some(EndReason::ClientReset),
            _ => Some(EndReason::BackendReset),
        }
    }

    /// Both FINs have arrived.
    fn is_finished(&self) -> bool {
        !self.up.reused && !self.down.reused && self.up.is_finished(&self.down) && self.down.is_finished(&self.up)
    }

    /// Whether an end has closed in order and later said by RST, when challenged or through another instance, that it
    /// no longer knows the connection.
    fn is_long_over(&self) -> bool {
        let first = |one: u64, other: u64| [one, other].into_iter().filter(|at_ns| *at_ns != 0).min();
        let (fin_ns, rst_ns) = (first(self.up.fin_ns, self.down.fin_ns), first(self.up.rst_ns, self.down.rst_ns));
        fin_ns.zip(rst_ns).is_some_and(|(fin_ns, rst_ns)| {
            let was_asked = self.questioned_ns != 0 && self.questioned_ns <= rst_ns;
            fin_ns < rst_ns && (was_asked || rst_ns <= self.inherited_ns)
        })
    }

    /// When the flow's last packet came, or when it came here.
    pub(super) fn heard_ns(&self) -> u64 {
        self.up.last_ns.max(self.down.last_ns).max(self.inherited_ns)
    }

    pub(super) fn have_both_closed(&self) -> bool {
        self.up.fin_ns != 0 && self.down.fin_ns != 0
    }

    /// Whether a FIN has passed and not both have arrived.
    pub(super) fn is_closing(&self) -> bool {
        (self.up.fin_ns != 0 || self.down.fin_ns != 0) && self.ended().is_none()
    }

    /// Why the flow cannot go on, if both FINs have passed, and its ends have been silent for too long since.
    pub(super) fn does_not_finish(&self, now_ns: u64, reachability: &Reachability) -> Option<EndReason> {
        let since_ns = reachability.counts_from(self.up.last_ns.max(self.down.last_ns));
        let is_stuck =
            self.is_closing() && self.have_both_closed() && now_ns.saturating_sub(since_ns) > self.patience_ns;
        let by_backend = !self.up.is_finished(&self.down);
        is_stuck.then_some(if by_backend { EndReason::BackendTimedOut } else { EndReason::ClientTimedOut })
    }

    /// Why the flow cannot go on, if one side has been silent for too long while the other waits for it, beyond doubt. Any live end answers
    /// bytes. Other packets that seem to demand an answer may be ACKs that were overtaken by bytes, and get none; a probe is repeated.
    pub(super) fn answers_nothing(&self, now_ns: u64, reachability: &Reachability) -> Option<EndReason> {
        let unanswered = self.waits.unanswered.as_ref()?;
        let (silent, other) = if unanswered.by_client { (&self.up, &self.down) } else { (&self.down, &self.up) };
        let is_sure = other.last_data_ns > silent.last_ns || other.packets > unanswered.packets + 1;
        let silence_ns = now_ns.saturating_sub(reachability.counts_from(unanswered.since_ns));
        let reason = if unanswered.by_client { EndReason::ClientTimedOut } else { EndReason::BackendTimedOut };
        (is_sure && silence_ns > self.patience_ns).then_some(reason)
    }

    /// Starts, continues or stops the measurement of each direction: the receiver has not acknowledged all that its sender has sent.
    pub(super) fn count_untaken(&mut self, now_ns: u64) {
        let before = self.waits.untaken;
        let directions = [(&self.up, &self.down, before[0]), (&self.down, &self.up, before[1])];
        self.waits.untaken = directions.map(|(given, back, before)| {
            // One byte may be a probe of a closed window, which many systems send from beyond it.
            let is_behind = back.packets > 0 && given.sent.wrapping_sub(back.taken).wrapping_sub(2) < 1 << 31;
            let now = Untaken { taken: back.taken, since_ns: now_ns };
            is_behind.then(|| before.filter(|before| before.taken == now.taken).unwrap_or(now))
        });
    }

    /// Why the flow cannot go on, if bytes of one direction have not arrived for too long: their sender goes on sending all this time. An end
    /// whose reader stands still acknowledges what it has room for, and its other side sends no bytes beyond that.
    pub(super) fn takes_nothing(&self, now_ns: u64, reachability: &Reachability) -> Option<EndReason> {
        let [to_backend, to_client] = self.waits.untaken;
        let is_over = |untaken: Option<Untaken>, given: &CounterSnapshot| {
            untaken.is_some_and(|Untaken { since_ns, .. }| {
                let since_ns = reachability.counts_from(since_ns);
                let goes_on = given.last_data_ns > since_ns + self.patience_ns / 2;
                now_ns.saturating_sub(since_ns) > self.patience_ns && goes_on
            })
        };
        if [FlowDirection::ToBackend, FlowDirection::ToClient].into_iter().any(|direction| self.may_be_old(direction)) {
            return None;
        }
        if is_over(to_backend, &self.up) {
            return Some(EndReason::BackendTimedOut);
        }
        is_over(to_client, &self.down).then_some(EndReason::ClientTimedOut)
    }

    /// Starts, continues or stops the measurement: a side is silent while the other has demanded an answer since its
    /// last packet.
    pub(super) fn count_silence(&mut self) {
        let silent = [(true, &self.up, &self.down), (false, &self.down, &self.up)]
            .into_iter()
            .find(|(_, silent, other)| other.packets > 0 && other.asked_ns > silent.last_ns);
        let before = self.waits.unanswered;
        self.waits.unanswered = silent.map(|(by_client, silent, other)| match before {
            Some(before) if (before.by_client, before.last_ns) == (by_client, silent.last_ns) => before,
            _ => Unanswered {
                by_client,
                since_ns: other.asked_ns,
                last_ns: silent.last_ns,
                packets: other.packets,
                ask_at_ns: other.asked_ns + self.patience_ns / 2,
            },
        });
    }
}
