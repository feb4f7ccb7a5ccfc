//! Recovers the flows that an earlier process left in the map.

use std::collections::HashMap;
use std::io;

use super::flows::Flows;
use super::keep::Keep;
use super::offloaded::{CounterSnapshot, OffloadedFlow, Step, Waits};
use super::quiet::begin_asking;
use super::reset::reset;
use super::tell::tell_offloaded;
use super::watch::has_moved;
use super::witness::Witnesses;
use super::{Outside, note};
use crate::model::end_reason::EndReason;
use crate::model::ends::Key;
use crate::model::ids::FlowId;
use crate::model::offload::steps::{LeftEntry, goes_on};
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Ends, Entry, Identity};
use crate::offload::program::Cursor;
use crate::offload::program::Program;
use crate::ports::offload::{Answer, Progress, Record, Ticket};
use crate::sys::clock::now_ns;
use crate::table::journal::What;

/// Entries of one call.
const STEP: usize = 4096;

/// Until its worker sets another patience, a flow with a silent end is given up after this time.
const PATIENCE_NS: u64 = 30_000_000_000;

/// The two directions of one flow that are in the map.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub ends: Option<Ends>,
    pub up: Option<Entry>,
    pub down: Option<Entry>,
}

/// The earlier process's own flows.
#[derive(Debug, Default)]
struct LeftFlows {
    pairs: HashMap<FlowId, Pair>,
    /// Flows that were about to be offloaded.
    witnesses: Vec<(FlowId, Ends)>,
}

/// Reserves the ids and ports of all flows in the map: no new flow may get one of them.
pub(super) fn keep_names(outside: &Outside, keep: &mut Keep) -> io::Result<()> {
    let tag = outside.table.flows.tag();
    let count_of = |id: FlowId| (id.tag() == tag).then(|| id.count());
    let mut highest = None;
    // Clients wait for the end of this: no list of the flows is made here.
    each_left(&outside.program, keep, |key, entry| {
        if entry.action != Action::Witness {
            let ends = entry.ends(key);
            outside.table.offload.reserve(ends.local, ends.backend);
        }
        highest = highest.max(count_of(entry.id));
    })?;
    // Ids of other instances' flows, held or inherited, come from those instances.
    let held = keep.held().iter().filter_map(|(id, _)| count_of(id.flow)).max();
    outside.table.flows.begin_ids_at(highest.max(held).map_or(0, |count| count + 1));
    Ok(())
}

/// Gives every flow that is not listed yet to a worker, or resets it if it was left between two steps.
pub(super) fn recover(outside: &mut Outside, flows: &mut Flows, keep: &mut Keep, witnesses: &mut Witnesses) {
    let LeftFlows { pairs, witnesses: abandoned } = match left(&outside.program, keep) {
        Ok(found) => found,
        Err(error) => {
            if flows.unread.recover_later(now_ns()) {
                outside.table.fleet.set_whole();
                tracing::error!(%error, "cannot read the flows of an earlier process from the BPF map; Baton tries again");
            }
            return;
        }
    };
    // Not before: until then no list names the entries of the map.
    flows.set_known();
    for (id, ends) in abandoned {
        if !witnesses.contains(id) {
            witnesses.withdraw(&outside.program, id, ends);
        }
    }
    let (mut found, mut unfinished) = (0, 0_u64);
    for (id, pair) in pairs {
        let Some(ends) = pair.ends.filter(|_| !flows.contains_key(&id)) else { continue };
        outside.table.offload.reserve(ends.local, ends.backend);
        let left = |entry: &Entry| LeftEntry { committed: entry.committed, splices: entry.action == Action::Splice };
        let whole = goes_on(pair.up.as_ref().map(left), pair.down.as_ref().map(left));
        flows.insert(id, offloaded_flow(id, ends, &pair));
        begin_asking(outside, flows, id);
        match pair.up {
            Some(entry) if whole => {
                outside.slots.keep(entry.backend_slot, ends.backend);
                // The process before this one may have died before it did this.
                outside.wire.untrack(&ends);
                flows.wait_for_claim();
                offer(outside, flows, id, pair.up.as_ref(), pair.down.as_ref());
                found += 1;
            }
            _ => {
                // One that is over is answered with RST for a while, as its clients were told already.
                let is_over = pair.up.as_ref().is_some_and(|up| up.committed && up.action != Action::Splice);
                unfinished += u64::from(!is_over);
                reset(outside, flows, id);
            }
        }
    }
    count_claimed(outside, flows, 0);
    outside.surroundings.compare_again();
    outside.table.census.recovered.add(found);
    if found + unfinished > 0 {
        outside.table.journal.record(What::OffloadRecovered { flows: found, reset: unfinished });
    }
}

/// Returns the flows of this instance, and records those that are held for others.
fn left(program: &Program, keep: &mut Keep) -> io::Result<LeftFlows> {
    let LeftFlows { mut pairs, mut witnesses } = LeftFlows::default();
    each_left(program, keep, |key, entry| {
        if entry.action == Action::Witness {
            // Its flow had sockets: they closed with their process, or came to this one, which starts a new witness.
            return witnesses.push((entry.id, entry.ends(key)));
        }
        let pair: &mut Pair = pairs.entry(entry.id).or_default();
        pair.ends = Some(entry.ends(key));
        match entry.direction {
            FlowDirection::ToBackend => pair.up = Some(entry),
            FlowDirection::ToClient => pair.down = Some(entry),
        }
    })?;
    Ok(LeftFlows { pairs, witnesses })
}

/// Passes each entry of this instance to `visit`, and records those that are held for others.
fn each_left(program: &Program, keep: &mut Keep, mut visit: impl FnMut(Key, Entry)) -> io::Result<()> {
    let mut cursor = Cursor::default();
    loop {
        let mut seen = Vec::new();
        let more = program.scan(&mut cursor, STEP, &mut seen)?;
        for (key, entry) in seen {
            match entry.held && entry.action != Action::Witness {
                true => keep.recover(key, &entry),
                false => visit(key, entry),
            }
        }
        if !more {
            return Ok(());
        }
    }
}

pub(super) fn claim(outside: &mut Outside, flows: &mut Flows, ticket: Ticket, patience_ns: u64) {
    let early = flows.take_ended_early(ticket.id);
    let Some(flow) = flows.get_mut(&ticket.id) else {
        let reason = early.or(Some(EndReason::Internal));
        // Nothing of it is left to be told to peers, who else would wait for the rest for ever.
        count_claimed(outside, flows, 1);
        return outside.answers.answer(ticket.worker, Answer::Ended { last: Progress::none(ticket), reason });
    };
    let is_new = flow.ticket.replace(ticket).is_none();
    flow.patience_ns = patience_ns;
    if is_new {
        count_claimed(outside, flows, 1);
    }
    let Some(flow) = flows.get(&ticket.id) else { return };
    if flow.step.is_ending() {
        // It ended before a worker had it.
        let (last, reason) = (flow.progress(), early.or_else(|| flow.ended()).or(Some(EndReason::Internal)));
        let last = last.unwrap_or_else(|| Progress::none(ticket));
        return outside.answers.answer(ticket.worker, Answer::Ended { last, reason });
    }
    tell_offloaded(outside, flows, ticket.id);
    has_moved(outside, flows, ticket.id, now_ns());
}

/// Counts claimed flows. Peers get no snapshot before every recovered flow is in it.
pub(super) fn count_claimed(outside: &Outside, flows: &mut Flows, count: u64) {
    if flows.count_claimed(count) {
        outside.table.fleet.set_whole();
    }
}

pub(super) fn refuse(outside: &Outside, flows: &mut Flows, id: FlowId, why: &str) {
    count_claimed(outside, flows, 1);
    flows.take_ended_early(id);
    tracing::warn!(flow = id.0, "Baton resets a flow that an earlier process or a peer has offloaded: {why}");
    reset(outside, flows, id);
}

pub(super) fn offer(outside: &mut Outside, flows: &mut Flows, id: FlowId, up: Option<&Entry>, down: Option<&Entry>) {
    let Some(identity) = up.zip(down).and_then(|(up, down)| Identity::of(up, down)) else {
        return refuse(outside, flows, id, "its two map entries are not of one flow");
    };
    let Some(flow) = flows.get(&id) else { return };
    let Ok(note) = outside.program.note(id) else {
        // Otherwise status and metrics would show a wrong client for the rest of the flow's life.
        return flows.unread.offer(id, [up, down].map(|entry| entry.copied()));
    };
    let record = Record {
        accepted_at_ns: identity.accepted_at_ns,
        connect_us: identity.connect_us.into(),
        backend_key: identity.backend_key,
        client: note.as_ref().map_or(flow.ends.client, note::client),
    };
    let found = Box::new(flow.found(record));
    let worker = outside.answers.any_worker(id.0);
    outside.answers.answer(worker, Answer::Found(found));
}

/// A flow as it is found: offloaded, and without a worker.
pub(super) fn offloaded_flow(id: FlowId, ends: Ends, pair: &Pair) -> OffloadedFlow {
    let look = |entry: &Option<Entry>| entry.as_ref().map(CounterSnapshot::at).unwrap_or_default();
    OffloadedFlow {
        id,
        ticket: None,
        ends,
        step: Step::Alone,
        up: look(&pair.up),
        down: look(&pair.down),
        waits: Waits::default(),
        patience_ns: PATIENCE_NS,
        told_bytes: (!pair.up.as_ref().is_some_and(|entry| entry.stays_here)).then_some(0),
        inherited_ns: 0,
        questioned_ns: 0,
        quiet_at_ns: 0,
        entered: None,
        first_rst: None,
    }
}
