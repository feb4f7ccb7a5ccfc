//! Reports the fate of offloaded flows to `model::breaker`, and carries out its decisions.

use std::collections::HashMap;

use super::Outside;
use super::flows::Flows;
use super::offloaded::{OffloadedFlow, Step};
use super::reset::look;
use crate::model::breaker::{Admission, Breaker, BreakerChange, Fate, SOON_NS};
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::ports::offload::Stays;
use crate::sys::clock::now_ns;
use crate::table::flows::FlowTable;
use crate::table::journal::What;

/// How often the breaker looks in the table for flows that were held back.
const LOOK_EVERY_NS: u64 = 500_000_000;

/// The breaker, and the state of the flows that it holds back.
#[derive(Debug, Default)]
pub(super) struct Judge {
    breaker: Breaker,
    held: HashMap<FlowId, HeldBack>,
    look_at_ns: u64,
}

/// A flow that could have been offloaded and was held back.
#[derive(Clone, Copy, Debug)]
struct HeldBack {
    since_ns: u64,
    /// Bytes from client and backend.
    bytes: [u64; 2],
}

impl Judge {
    /// Whether this flow may be offloaded; `bytes` are those from its client and its backend so far. `at_once`: an
    /// evacuation is under way.
    pub(super) fn admit(&mut self, id: FlowId, bytes: [u64; 2], at_once: bool) -> Result<(), Stays> {
        if at_once && !self.breaker.is_open() {
            // A flow that is held back during an evacuation is lost.
            return Ok(());
        }
        let now_ns = now_ns();
        match self.breaker.admit(id, now_ns) {
            Admission::Offload => return Ok(()),
            Admission::Observe => drop(self.held.insert(id, HeldBack { since_ns: now_ns, bytes })),
            Admission::Stay => {}
        }
        Err(Stays::Resets)
    }

    /// An admitted flow was not offloaded after all.
    pub(super) fn not_admitted(&mut self, id: FlowId) {
        self.breaker.handle_fate(id, Fate::Gone, now_ns());
    }

    /// One of the flow's ends has reset it, as `reason` says.
    pub(super) fn was_reset(&mut self, flow: &OffloadedFlow, reason: EndReason) {
        let by = match reason {
            EndReason::ClientReset => FlowDirection::ToBackend,
            EndReason::BackendReset => FlowDirection::ToClient,
            _ => return,
        };
        if !(flow.up.reused || flow.down.reused) {
            let now_ns = now_ns();
            let fate = if flow.is_reset_right_after(by, now_ns) { Fate::Reset } else { Fate::Lives };
            self.breaker.handle_fate(flow.id, fate, now_ns);
        }
    }

    /// A flow that was held back has ended in its sockets, after so many bytes from its client and its backend.
    pub(super) fn held_back_ended(&mut self, id: FlowId, reason: EndReason, bytes: [u64; 2]) {
        let Some(held) = self.held.remove(&id) else { return };
        let now_ns = now_ns();
        let by = match reason {
            EndReason::ClientReset => Some(0),
            EndReason::BackendReset => Some(1),
            _ => None,
        };
        let was_reset = by.is_some_and(|by| {
            // The same rule as for offloaded flows.
            let is_answer = bytes[by] == held.bytes[by] && bytes[1 - by] > held.bytes[1 - by];
            is_answer || now_ns.saturating_sub(held.since_ns) <= SOON_NS
        });
        self.breaker.handle_fate(id, if was_reset { Fate::Reset } else { Fate::Lives }, now_ns);
    }

    fn judge_held_back(&mut self, flows: &FlowTable, now_ns: u64) {
        let Self { breaker, held, .. } = self;
        let watched: Vec<_> = breaker.watched(false).collect();
        held.retain(|id, _| watched.contains(id));
        if held.is_empty() {
            return;
        }
        let lives = |held: &HeldBack, bytes: [u64; 2]| {
            let both_spoke = bytes[0] > held.bytes[0] && bytes[1] > held.bytes[1];
            both_spoke && now_ns.saturating_sub(held.since_ns) > SOON_NS
        };
        for flow in flows.iter() {
            if held.get(&flow.id).is_some_and(|held| lives(held, [flow.bytes_to_backend, flow.bytes_to_client])) {
                breaker.handle_fate(flow.id, Fate::Lives, now_ns);
            }
        }
    }
}

/// Checks the watched flows, and applies the breaker's decision.
pub(super) fn judge(outside: &Outside, flows: &mut Flows, now_ns: u64) {
    let (table, judge) = (&outside.table, &mut flows.judge);
    if table.offload.take_retry_wanted() {
        judge.breaker.handle_reload();
    }
    if judge.breaker.is_closed() {
        return;
    }
    judge_offloaded(outside, flows, now_ns);
    let (table, judge) = (&outside.table, &mut flows.judge);
    if now_ns >= judge.look_at_ns {
        judge.look_at_ns = now_ns + LOOK_EVERY_NS;
        judge.judge_held_back(&table.flows, now_ns);
    }
    let change = judge.breaker.poll(now_ns);
    table.census.set_stopped(judge.breaker.is_open());
    match change {
        None => {}
        Some(BreakerChange::Opened { reset, of }) => {
            table.journal.record(What::OffloadStopped { reset, of });
        }
        Some(BreakerChange::Closed) => table.journal.record(What::OffloadResumed {}),
    }
}

fn judge_offloaded(outside: &Outside, flows: &mut Flows, now_ns: u64) {
    for id in flows.judge.breaker.watched(true).collect::<Vec<_>>() {
        if look(&outside.program, flows, id).is_err() {
            continue;
        }
        let fate = match flows.get(&id) {
            None => Some(Fate::Gone),
            Some(flow) => flow.fate(now_ns),
        };
        match fate {
            Some(fate) => flows.judge.breaker.handle_fate(id, fate, now_ns),
            None => make_speak(outside, flows, id),
        }
    }
}

/// Challenges an idle flow's ends: their answers take the path that its bytes will take.
fn make_speak(outside: &Outside, flows: &Flows, id: FlowId) {
    let Some(flow) = flows.get(&id).filter(|flow| matches!(flow.step, Step::Alone)) else { return };
    // For an end that has sent nothing since, the entry has its socket's state.
    for (direction, packets) in
        [(FlowDirection::ToBackend, flow.up.packets), (FlowDirection::ToClient, flow.down.packets)]
    {
        if packets > 0 {
            continue;
        }
        // A flow that cannot be read is challenged at the next turn.
        let Ok(Some(entry)) = outside.program.entry(&flow.ends.key(direction)) else { continue };
        let look = super::offloaded::CounterSnapshot::at(&entry);
        outside.wire.ask_end(&flow.ends, direction, &look);
        outside.wire.untrack(&flow.ends);
    }
}

impl OffloadedFlow {
    /// Whether offload may have caused a reset `by` one of the flow's ends: the reset came soon after the offload, or
    /// this end has sent nothing else since, though the other end sent data.
    fn is_reset_right_after(&self, by: FlowDirection, now_ns: u64) -> bool {
        let Some(entered) = self.entered else { return false };
        if now_ns.saturating_sub(entered.at_ns) <= SOON_NS {
            return true;
        }
        let (its, other, it, them) = match by {
            FlowDirection::ToBackend => (&self.up, &self.down, 0, 1),
            FlowDirection::ToClient => (&self.down, &self.up, 1, 0),
        };
        let has_taken_nothing = (its.taken.wrapping_sub(entered.positions[them]) as i32) <= 0;
        its.bytes == entered.bytes[it] && other.bytes > entered.bytes[them] && has_taken_nothing
    }

    /// `None`: too early to judge.
    fn fate(&self, now_ns: u64) -> Option<Fate> {
        let age_ns = self.entered.map_or(u64::MAX, |entered| now_ns.saturating_sub(entered.at_ns));
        match self.step {
            Step::Over => Some(Fate::Lives),
            Step::Resetting { .. } => Some(Fate::Gone),
            Step::Alone if age_ns > SOON_NS && self.up.packets > 0 && self.down.packets > 0 => Some(Fate::Lives),
            Step::Alone | Step::Entered { .. } | Step::Filling { .. } => None,
        }
    }
}
