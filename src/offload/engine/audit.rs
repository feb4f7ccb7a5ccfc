//! Goes through the whole map, a step a second. An entry that no list of this process names would otherwise stay for
//! good: it would divert the next user of its addresses, and take the room of others.
//!
//! ```text
//!   entry ──▶ no list here names it, twice, some time apart ──▶ removed, with a line in the log about it
//!         └─▶ kept for others ──▶ the failover, which says so if it lists no such thing
//! ```

use std::collections::HashMap;

use super::Outside;
use super::flows::Flows;
use super::keep::Keep;
use super::witness::Witnesses;
use crate::model::ends::Key;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Entry};
use crate::offload::program::{Cursor, Program};
use crate::ports::offload::StandbyAnswer;

/// Entries of one step: a map with a million takes eight minutes, and 1 ms of each second.
const STEP: usize = 2048;

/// Least time between the beginnings of two rounds.
const ROUND_NS: u64 = 10_000_000_000;

/// An entry that was unknown in all rounds for so long is removed.
const LEFTOVER_NS: u64 = 15_000_000_000;

/// Limit for the list of such entries.
const LEFTOVERS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Audit {
    /// `None`: between two rounds.
    cursor: Option<Cursor>,
    round: u64,
    round_at_ns: u64,
    leftovers: HashMap<Key, Leftover>,
}

/// An entry that no list of this process names.
#[derive(Clone, Copy, Debug)]
struct Leftover {
    id: FlowId,
    action: Action,
    since_ns: u64,
    round: u64,
}

impl Audit {
    /// Records an unknown entry. Returns whether it has been unknown for too long.
    fn is_over(&mut self, key: &Key, entry: &Entry, now_ns: u64) -> bool {
        let now = Leftover { id: entry.id, action: entry.action, since_ns: now_ns, round: self.round };
        let before = self.leftovers.get(key).filter(|before| (before.id, before.action) == (now.id, now.action));
        let leftover = Leftover { since_ns: before.map_or(now_ns, |before| before.since_ns), ..now };
        if now_ns - leftover.since_ns >= LEFTOVER_NS {
            self.leftovers.remove(key);
            return true;
        }
        if self.leftovers.len() < LEFTOVERS_MAX || before.is_some() {
            self.leftovers.insert(*key, leftover);
        }
        false
    }

    /// An entry that this round did not meet is gone, or is known now.
    fn end_round(&mut self, outside: &mut Outside, flows: &Flows) {
        outside.detach_from_lo(flows.len());
        self.leftovers.retain(|_, leftover| leftover.round == self.round);
        self.cursor = None;
    }
}

impl Audit {
    /// Continues a round, or begins one if it is due. Call it once a second.
    pub(super) fn audit(
        &mut self,
        outside: &mut Outside,
        flows: &Flows,
        keep: &Keep,
        witnesses: &Witnesses,
        now_ns: u64,
    ) {
        // Before an earlier process's entries have been read, every entry is unknown.
        if !flows.are_known() || (self.cursor.is_none() && now_ns < self.round_at_ns) {
            return;
        }
        let mut cursor = self.cursor.take().unwrap_or_else(|| {
            (self.round, self.round_at_ns) = (self.round + 1, now_ns + ROUND_NS);
            Cursor::default()
        });
        let mut seen = Vec::new();
        // Entries that cannot be read wait for the next round.
        let more = outside.program.scan(&mut cursor, STEP, &mut seen).unwrap_or(false);
        let (mut ids, mut keys) = (Vec::new(), Vec::new());
        for (key, entry) in &seen {
            let held = keep.held().by_packet(entry.id, entry.direction, key);
            match held.filter(|_| entry.held && entry.action == Action::Splice) {
                Some(id) if entry.direction == FlowDirection::ToBackend => ids.push(id),
                Some(_) => {}
                None if entry.held && keep.is_diverted(key) => keys.push(*key),
                None if is_known(flows, witnesses, key, entry) => {}
                None if self.is_over(key, entry, now_ns) => take_out_leftover(&outside.program, key, entry),
                None => {}
            }
        }
        if seen.iter().any(|(_, entry)| entry.by_lo) {
            outside.attach_to_lo(flows.len());
        }
        if outside.table.fleet.is_enabled() && !(ids.is_empty() && keys.is_empty()) {
            outside.table.offload.standby.answer(StandbyAnswer::Keeps { flows: ids, keys });
        }
        match more {
            true => self.cursor = Some(cursor),
            false => self.end_round(outside, flows),
        }
    }
}

/// Whether the entry belongs to a flow of this instance.
fn is_known(flows: &Flows, witnesses: &Witnesses, key: &Key, entry: &Entry) -> bool {
    match entry.action {
        Action::Witness => witnesses.contains(entry.id),
        _ => !entry.held && flows.get(&entry.id).is_some_and(|flow| flow.ends.key(entry.direction) == *key),
    }
}

fn take_out_leftover(program: &Program, key: &Key, entry: &Entry) {
    let Entry { id, action, held, direction, committed, .. } = entry;
    tracing::error!(
        flow = %id, ?action, held, ?direction, committed, from = %key.from, to = %key.to,
        "the BPF map has an entry of no known flow; Baton removes it. This is a bug, please report it"
    );
    // If it cannot be read now, a later round meets it again.
    let _ = program.take_out(key);
}
