//! Looks at flows with new packets. The program marks these; the engine leaves the others alone, so that an idle flow
//! costs nothing.
//!
//! ```text
//!            few marks ──▶ Looks: each of them is looked up
//!   Rest ──▶                                               ──▶ Rest, until the next round
//!            many      ──▶ Sweep: all entries are read
//! ```
//! Both proceed in steps, so that no flow's offload waits behind a million entries.

use std::time::Duration;

use super::Outside;
use super::flows::Flows;
use super::keep::Keep;
use super::reset::look;
use super::tell::{tell_failover, tell_progress};
use super::watch::has_moved;
use crate::model::fleet::FleetId;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::offload::entry::Entry;
use crate::offload::moved::{Mark, Moved};
use crate::offload::program::{Cursor, Unread};
use crate::sys::clock;

/// Least time between the beginnings of two rounds.
const ROUND: Duration = Duration::from_millis(250);

/// Time from the beginning of one step to the next, as a multiple of the CPU time that the step took. With many busy
/// flows the scan must not fill a core, and it must not pause for seconds because another program had the core.
const SHARE: u64 = 50;

/// Flows looked up in one step, and entries read in one.
const LOOKS: usize = 2048;
const SWEEP: usize = 8192;

/// Entries of one call.
const BATCH: usize = 2048;

/// Reading all entries costs as much as looking up this part of them one by one.
const MANY: usize = 4;

/// The progress of a round.
#[derive(Debug)]
pub(super) struct Scan {
    moved: Moved,
    /// Marks of the round before: a CPU may have written their entries only after they were taken.
    before: Vec<Mark>,
    stage: ScanStage,
    round_at_ns: u64,
    step_at_ns: u64,
}

#[derive(Debug)]
enum ScanStage {
    Rest,
    Looks(Vec<FlowId>),
    Sweep(Cursor),
}

impl Scan {
    pub(super) fn new(moved: Moved) -> Self {
        // Flows are read when they are recovered; earlier packets are known.
        Self { moved, before: Vec::new(), stage: ScanStage::Rest, round_at_ns: 0, step_at_ns: 0 }
    }

    /// Another process may have taken marks.
    pub(super) fn begin_anew(&mut self) {
        self.stage = ScanStage::Sweep(Cursor::default());
    }

    /// Marks of this round and of the one before.
    fn take(&mut self) -> Vec<Mark> {
        let mut now = Vec::new();
        self.moved.take(&mut now);
        let mut both = std::mem::replace(&mut self.before, now.clone());
        both.extend(now);
        both.sort_unstable();
        both.dedup();
        both
    }
}

impl Scan {
    /// Continues a round, or begins one if it is due.
    pub(super) fn scan(&mut self, outside: &mut Outside, flows: &mut Flows, keep: &mut Keep, now_ns: u64) {
        if now_ns < self.step_at_ns {
            return;
        }
        if matches!(self.stage, ScanStage::Rest) {
            if now_ns < self.round_at_ns {
                return;
            }
            self.round_at_ns = now_ns + ROUND.as_nanos() as u64;
            self.begin_round(flows, keep);
        }
        let began_ns = clock::thread_cpu_ns();
        let mut touched = Vec::new();
        self.stage = match std::mem::replace(&mut self.stage, ScanStage::Rest) {
            ScanStage::Rest => ScanStage::Rest,
            ScanStage::Looks(ids) => look_up(outside, flows, keep, ids, &mut touched, now_ns),
            ScanStage::Sweep(cursor) => sweep(outside, flows, keep, cursor, &mut touched, now_ns),
        };
        tell_failover(outside, touched, Vec::new());
        self.step_at_ns = now_ns + SHARE * clock::thread_cpu_ns().saturating_sub(began_ns);
    }

    fn begin_round(&mut self, flows: &Flows, keep: &Keep) {
        let marks = self.take();
        let all = flows.len() + keep.held().len();
        // Decide first: there are as many flows as marks, or more that share marks.
        self.stage = if marks.len() * MANY > all {
            ScanStage::Sweep(Cursor::default())
        } else {
            let ids = marks.iter().flat_map(|mark| flows.at(*mark).chain(keep.held().at(*mark)));
            ScanStage::Looks(ids.collect())
        };
    }
}

fn look_up(
    outside: &mut Outside,
    flows: &mut Flows,
    keep: &mut Keep,
    mut ids: Vec<FlowId>,
    touched: &mut Vec<FleetId>,
    now_ns: u64,
) -> ScanStage {
    for _ in 0..LOOKS {
        let Some(id) = ids.pop() else { return ScanStage::Rest };
        if look_at(outside, flows, keep, id, touched, now_ns).is_err() {
            // Its mark is taken: no later round would look at it.
            ids.push(id);
            break;
        }
    }
    if ids.is_empty() { ScanStage::Rest } else { ScanStage::Looks(ids) }
}

fn look_at(
    outside: &mut Outside,
    flows: &mut Flows,
    keep: &mut Keep,
    id: FlowId,
    touched: &mut Vec<FleetId>,
    now_ns: u64,
) -> Result<(), Unread> {
    for key in keep.held().with(id).map(|(_, held)| held.ends.key(FlowDirection::ToBackend)).collect::<Vec<_>>() {
        if let Some(entry) = outside.program.entry(&key)? {
            hear(outside, &entry);
            touched.extend(keep.see(&key, &entry));
        }
    }
    if look(&outside.program, flows, id)? {
        let heard_ns = flows.get(&id).map_or(0, |flow| flow.up.last_ns);
        outside.table.reachability.hear_client(heard_ns);
        moved_on(outside, flows, id, now_ns);
    }
    Ok(())
}

fn sweep(
    outside: &mut Outside,
    flows: &mut Flows,
    keep: &mut Keep,
    mut cursor: Cursor,
    touched: &mut Vec<FleetId>,
    now_ns: u64,
) -> ScanStage {
    let mut seen = Vec::with_capacity(BATCH);
    let mut changed = Vec::new();
    let mut next = ScanStage::Rest;
    for step in 1..=SWEEP / BATCH {
        seen.clear();
        let Ok(more) = outside.program.scan(&mut cursor, BATCH, &mut seen) else {
            // The marks are taken, and a single entry needs less memory than many.
            next = ScanStage::Looks(all_flows(flows, keep));
            break;
        };
        for (key, entry) in &seen {
            hear(outside, entry);
            if entry.held {
                touched.extend(keep.see(key, entry));
            } else if let Some(flow) = flows.get_mut(&entry.id)
                && flow.take_note(entry)
            {
                changed.push(flow.id);
            }
        }
        if !more {
            break;
        }
        if step == SWEEP / BATCH {
            next = ScanStage::Sweep(std::mem::take(&mut cursor));
        }
    }
    changed.sort_unstable();
    changed.dedup();
    changed.into_iter().for_each(|id| moved_on(outside, flows, id, now_ns));
    next
}

fn all_flows(flows: &Flows, keep: &Keep) -> Vec<FlowId> {
    flows.keys().copied().chain(keep.held().iter().map(|(id, _)| id.flow)).collect()
}

/// Records when a client was last heard, for [`Reachability`](crate::ports::reachability).
fn hear(outside: &Outside, entry: &Entry) {
    if entry.direction == FlowDirection::ToBackend {
        outside.table.reachability.hear_client(entry.seen.last_ns);
    }
}

pub(super) fn moved_on(outside: &mut Outside, flows: &mut Flows, id: FlowId, now_ns: u64) {
    tell_progress(outside, flows, id);
    has_moved(outside, flows, id, now_ns);
}
