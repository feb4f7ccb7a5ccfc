//! Segments whose numbers no receiver would accept: most are forged or damaged, but a few show that this host knows an
//! old position of their flow.
//!
//! The program passes them on and does not count them. The engine challenges the apparent sender (RFC 5961), and
//! believes only the answer. A live end's answer matches the known positions, and the doubt ends. A dead end's RST has
//! exactly the number of the challenge. In one case the engine believes a segment itself: the positions may be old, and
//! the challenged end has sent nothing that matches them. Then it accepts the end's next segment: if another instance
//! reported the positions, one that lies as far ahead as the report may be behind; if another instance sees the flow's
//! other direction, one that lies within the windows.
//!
//! An end that no longer knows a flow of another instance may answer that instance's challenge here, with a number that
//! only that instance knows. This engine challenges it as well: then the answer has a number that is known here, and
//! ends the flow.

use std::collections::{HashMap, VecDeque};

use super::Outside;
use super::flows::Flows;
use super::keep::Keep;
use super::offloaded::{CounterSnapshot, OffloadedFlow, RstOrigin, Step};
use super::reset::look;
use super::tell::tell_failover;
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{FleetId, UnknownPacket};
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Entry};
use crate::offload::probe::EntryChange;
use crate::offload::program::{Program, Unread};

/// How often the engine checks whether doubts are over.
const SETTLE_EVERY_NS: u64 = 100_000_000;

/// Pause between two challenges: kernels limit their answers (tcp_invalid_ratelimit, 500 ms).
const ASK_AGAIN_NS: u64 = 600_000_000;

/// Time for the answer to a challenge; after it the engine accepts that its position is old.
const ANSWER_NS: u64 = 200_000_000;

/// Limit for the challenges of one doubt.
const ASKED_MAX: u8 = 4;

/// Limit for doubts at a time, and for directions that are reported again in a turn: a flood costs no more than that.
const DOUBTS_MAX: usize = 4096;
const HEAR_AT_ONCE: usize = 256;

/// A known position is at most so far behind: the owner of a busy flow reports it after each GiB.
const BEHIND_MAX: u32 = (1 << 31) - (1 << 28);

const TCP_RST: u8 = 4;

#[derive(Debug, Default)]
pub(super) struct Doubts {
    of: HashMap<Key, OpenDoubt>,
    /// Directions for which the program reports no segments at present.
    silenced: VecDeque<Key>,
    /// Segments whose entries could not be read.
    unread: Vec<UnknownPacket>,
    settle_at_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenDoubt {
    id: FlowId,
    /// The ends, if another instance owns the flow.
    held: Option<Ends>,
    direction: FlowDirection,
    began_ns: u64,
    asked: u8,
    ask_at_ns: u64,
}

impl Doubts {
    /// Records such a segment. Returns the id of the flow if another instance owns it and its client now sends here.
    pub(super) fn doubt(
        &mut self,
        outside: &Outside,
        flows: &mut Flows,
        keep: &Keep,
        told: &UnknownPacket,
        now_ns: u64,
    ) -> Option<FleetId> {
        let Ok(entry) = outside.program.entry(&told.key) else {
            // The segment may be the only sign of an end that is gone.
            match self.unread.len() < DOUBTS_MAX {
                true => self.unread.push(*told),
                false => self.silenced.push_back(told.key),
            }
            return None;
        };
        self.silenced.push_back(told.key);
        let entry = entry?;
        if entry.action != Action::Splice {
            return None;
        }
        let is_rst = told.flags & TCP_RST != 0;
        let (id, direction) = (entry.id, entry.direction);
        let new = OpenDoubt { id, held: None, direction, began_ns: now_ns, asked: 0, ask_at_ns: now_ns };
        let has_room = self.of.len() < DOUBTS_MAX || self.of.contains_key(&told.key);
        if entry.held {
            let held = keep.held().by_packet(id, direction, &told.key)?;
            if is_rst && has_room {
                let ends = keep.held().get(held).map(|held| held.ends);
                self.of.entry(told.key).or_insert(OpenDoubt { held: ends, ..new });
            }
            let may_be = !is_rst && direction == FlowDirection::ToBackend && is_ahead(&entry, told);
            return may_be.then_some(held);
        }
        let is_alone = flows.get(&id).is_some_and(|flow| matches!(flow.step, Step::Alone));
        if is_alone && has_room {
            self.of.entry(told.key).or_insert(new);
            if let Some(flow) = flows.get_mut(&id).filter(|_| is_rst) {
                // If the flow ends, this end was the first to say so.
                flow.first_rst.get_or_insert(RstOrigin::End(direction));
            }
        }
        None
    }

    /// Challenges, and ends doubts, when they are due.
    pub(super) fn settle_doubts(&mut self, outside: &Outside, flows: &mut Flows, keep: &Keep, now_ns: u64) {
        if now_ns < self.settle_at_ns {
            return;
        }
        self.settle_at_ns = now_ns + SETTLE_EVERY_NS;
        let unread = std::mem::take(&mut self.unread);
        let touched: Vec<_> = unread.iter().filter_map(|told| self.doubt(outside, flows, keep, told, now_ns)).collect();
        tell_failover(outside, touched, Vec::new());
        for (key, mut doubt) in std::mem::take(&mut self.of) {
            // A doubt whose entry cannot be read stays open.
            if !self.settle_doubt(outside, flows, &key, &mut doubt, now_ns).unwrap_or(false) {
                self.of.insert(key, doubt);
            }
        }
        let count = self.silenced.len().min(HEAR_AT_ONCE);
        let heard: Vec<_> = self.silenced.drain(..count).collect();
        if !heard.is_empty()
            && let Err(error) = outside.program.hear(&heard)
        {
            tracing::error!(%error, "cannot make the BPF program report segments of these flows again");
        }
    }

    /// Challenges, if it is time; returns whether the doubt is over. An error means that nothing was done.
    fn settle_doubt(
        &mut self,
        outside: &Outside,
        flows: &mut Flows,
        key: &Key,
        doubt: &mut OpenDoubt,
        now_ns: u64,
    ) -> Result<bool, Unread> {
        let is_settled = is_settled(&outside.program, key, doubt)?;
        if now_ns < doubt.ask_at_ns && !is_settled {
            return Ok(false);
        }
        if doubt.asked == ASKED_MAX || is_settled {
            // The program reports the next segment, and the engine believes none.
            let own = flows.get_mut(&doubt.id).filter(|_| doubt.held.is_none());
            if let Some(flow) = own.filter(|flow| flow.ended().is_none()) {
                flow.first_rst = None;
            }
            self.silenced.push_back(*key);
            return Ok(true);
        }
        let take = what_to_take(outside, flows, doubt)?;
        let asked = whom_it_seems(&outside.program, flows, doubt)?;
        if let Some(take) = take.filter(|_| doubt.asked > 0) {
            let _ = outside.program.change(doubt.id, &[*key], take);
            self.silenced.retain(|silenced| silenced != key);
        }
        if let Some((ends, look)) = asked {
            outside.wire.ask_end(&ends, doubt.direction, &look);
            outside.wire.untrack(&ends);
        }
        doubt.asked += 1;
        let is_soon = take == Some(EntryChange::Take) && doubt.asked == 1;
        doubt.ask_at_ns = now_ns + if is_soon { ANSWER_NS } else { ASK_AGAIN_NS };
        Ok(false)
    }
}

/// Whether a segment that matches the positions has come since, or the flow is over.
fn is_settled(program: &Program, key: &Key, doubt: &OpenDoubt) -> Result<bool, Unread> {
    let entry = program.entry(key)?.filter(|entry| entry.id == doubt.id);
    let live = entry.filter(|entry| entry.action == Action::Splice && entry.seen.rst_ns == 0);
    // The program's clock is late by at most a tick.
    Ok(live.is_none_or(|entry| entry.seen.last_ns > doubt.began_ns))
}

/// How to bring the direction's position up to date.
fn what_to_take(outside: &Outside, flows: &mut Flows, doubt: &OpenDoubt) -> Result<Option<EntryChange>, Unread> {
    if doubt.held.is_some() {
        return Ok(None);
    }
    look(&outside.program, flows, doubt.id)?;
    let may_be_old = flows.get(&doubt.id).is_some_and(|flow| flow.may_be_old(doubt.direction));
    Ok(match may_be_old {
        true => Some(EntryChange::Take),
        false => outside.table.fleet.is_shared().then_some(EntryChange::TakeNear),
    })
}

/// The flow's ends, and the state of the end to challenge; `None`: the flow is gone.
fn whom_it_seems(
    program: &Program,
    flows: &mut Flows,
    doubt: &OpenDoubt,
) -> Result<Option<(Ends, CounterSnapshot)>, Unread> {
    if let Some(ends) = doubt.held {
        let entry = program.entry(&ends.key(doubt.direction))?.filter(|entry| entry.id == doubt.id);
        return Ok(entry.map(|entry| (ends, CounterSnapshot::at(&entry))));
    }
    look(program, flows, doubt.id)?;
    let its = |flow: &OffloadedFlow| if doubt.direction == FlowDirection::ToBackend { flow.up } else { flow.down };
    Ok(flows.get(&doubt.id).map(|flow| (flow.ends, its(flow))))
}

/// Whether the flow may have progressed so far since the last report.
fn is_ahead(entry: &Entry, told: &UnknownPacket) -> bool {
    let near = |number: u32, position: u64, window: u8| {
        let slack = 1 << window.min(30);
        number.wrapping_sub(position as u32).wrapping_add(slack) <= BEHIND_MAX
    };
    near(told.seq, entry.seen.sent, entry.windows.far) && near(told.ack, entry.seen.acked, entry.windows.own)
}
