//! Challenges the ends of quiet flows, to learn whether they still know them.
//!
//! If a flow's two directions may pass different instances, neither instance sees all of its end, and reports of it may
//! be lost. A live end answers a challenge. An end that no longer knows the connection answers with RST. Silence proves
//! nothing: a kernel may drop segments without timestamps.

use std::collections::BTreeSet;

use super::Outside;
use super::flows::Flows;
use super::offloaded::{CounterSnapshot, OffloadedFlow, Step};
use crate::model::ids::FlowId;
use crate::model::pacing::TokenBucket;
use crate::model::splice::FlowDirection;
use crate::ports::offload::Answer;
use crate::sys::clock::now_ns;

/// The engine challenges a flow's ends when no packet has come for so many times its patience.
const QUIET: u64 = 2;

/// Flows that are checked for that in one turn.
const AT_ONCE: usize = 64;

/// Or when no packet has come for so long, after another instance may have reset the flow.
const SOON_NS: u64 = 2_000_000_000;

/// How long the shorter time applies: an instance that takes this one for dead does so within a second, and answers its
/// flows' packets for thirty.
const SOON_FOR_NS: u64 = 35_000_000_000;

/// The same after packets have passed the program by: time for an answer, and for a second challenge if one is lost.
const MISSED_FOR_NS: u64 = 5_000_000_000;

/// Flows per second that are then challenged, and the limit of one turn.
const SOON_PER_S: u32 = 2000;
const SOON_BURST: u32 = 200;

/// When the engine checks whether flows have been quiet for long.
#[derive(Debug)]
pub(super) struct Quiet {
    /// Earliest first. Only the last time that was set for a flow counts.
    due: BTreeSet<(u64, FlowId)>,
    /// Until then flows are challenged sooner, at this pace.
    soon_until_ns: u64,
    pace: TokenBucket,
    /// Packets before this time may have passed the program by: flows without a later one are challenged at once.
    unseen_before_ns: u64,
}

impl Default for Quiet {
    fn default() -> Self {
        Self {
            due: BTreeSet::new(),
            soon_until_ns: 0,
            pace: TokenBucket::new(SOON_PER_S, SOON_BURST, 0),
            unseen_before_ns: 0,
        }
    }
}

impl Quiet {
    /// After so long without a packet a flow is challenged.
    fn between_ns(&self, flow: &OffloadedFlow, now_ns: u64) -> u64 {
        let long_ns = QUIET * flow.patience_ns;
        if now_ns < self.soon_until_ns { long_ns.min(SOON_NS) } else { long_ns }
    }

    /// When a flow without a further packet is challenged.
    fn due_ns(&self, flow: &OffloadedFlow, now_ns: u64) -> u64 {
        let heard_ns = flow.heard_ns();
        let may_have_missed = heard_ns < self.unseen_before_ns && flow.questioned_ns < self.unseen_before_ns;
        if may_have_missed { self.unseen_before_ns } else { heard_ns + self.between_ns(flow, now_ns) }
    }

    fn first_due(&self, now_ns: u64) -> Option<(u64, FlowId)> {
        self.due.first().filter(|(at_ns, _)| *at_ns <= now_ns).copied()
    }
}

pub(super) fn ask_quiet(outside: &Outside, flows: &mut Flows, now_ns: u64) {
    let is_soon = now_ns < flows.quiet.soon_until_ns;
    for _ in 0..if is_soon { SOON_BURST as usize } else { AT_ONCE } {
        let Some((at_ns, id)) = flows.quiet.first_due(now_ns) else { return };
        let Some(flow) = flows.get(&id).filter(|flow| flow.quiet_at_ns == at_ns) else {
            flows.quiet.due.pop_first();
            continue;
        };
        let between_ns = flows.quiet.between_ns(flow, now_ns);
        let (due_ns, is_alone) = (flows.quiet.due_ns(flow, now_ns), matches!(flow.step, Step::Alone));
        if due_ns <= now_ns && is_soon && !flows.quiet.pace.take(now_ns) {
            return;
        }
        flows.quiet.due.pop_first();
        if due_ns > now_ns {
            ask_when_quiet(outside, flows, id, due_ns);
        } else {
            if is_alone {
                ask_both(outside, flows, id, now_ns);
            }
            ask_when_quiet(outside, flows, id, now_ns + between_ns);
        }
    }
}

/// Another instance may have reset flows of this one at one end only.
pub(super) fn ask_ends_soon(outside: &mut Outside, flows: &mut Flows) {
    let now_ns = now_ns();
    flows.quiet.soon_until_ns = now_ns + SOON_FOR_NS;
    let is_later = |flow: &&OffloadedFlow| flow.quiet_at_ns > now_ns + SOON_NS;
    let later: Vec<_> = flows.values().filter(is_later).map(|flow| flow.id).collect();
    later.into_iter().for_each(|id| begin_asking(outside, flows, id));
    let until_ns = flows.quiet.soon_until_ns;
    outside.answers.answer_all(|| Answer::AskEnds { until_ns });
}

/// Packets have passed the program by until now. The kernel has answered each with RST, but that tells only the end that sent it: the other
/// one, which may never send, has to be asked.
pub(super) fn ask_who_was_missed(outside: &mut Outside, flows: &mut Flows) {
    let now_ns = now_ns();
    flows.quiet.unseen_before_ns = now_ns;
    flows.quiet.soon_until_ns = flows.quiet.soon_until_ns.max(now_ns + MISSED_FOR_NS);
    let spread_ns = (flows.len() as u64 * 1_000_000_000 / u64::from(SOON_PER_S)).max(1);
    let all: Vec<_> = flows.values().map(|flow| flow.id).collect();
    all.into_iter().for_each(|id| ask_when_quiet(outside, flows, id, now_ns + fastrand::u64(0..spread_ns)));
}

/// Has the flow checked from time to time. Flows that come together are not challenged together.
pub(super) fn begin_asking(outside: &Outside, flows: &mut Flows, id: FlowId) {
    let Some(flow) = flows.get(&id) else { return };
    let now_ns = now_ns();
    let between_ns = flows.quiet.between_ns(flow, now_ns);
    ask_when_quiet(outside, flows, id, now_ns + fastrand::u64(between_ns / 2..=between_ns));
}

fn ask_when_quiet(outside: &Outside, flows: &mut Flows, id: FlowId, at_ns: u64) {
    // A single instance sees all packets, but for those that have passed its program by.
    let is_wanted = outside.table.fleet.is_enabled() || at_ns < flows.quiet.soon_until_ns;
    let Some(flow) = flows.get_mut(&id) else { return };
    flow.quiet_at_ns = if is_wanted { at_ns } else { 0 };
    if is_wanted {
        flows.quiet.due.insert((at_ns, id));
    }
}

pub(super) fn ask_both(outside: &Outside, flows: &mut Flows, id: FlowId, now_ns: u64) {
    let Some(flow) = flows.get_mut(&id) else { return };
    flow.questioned_ns = now_ns;
    let (ends, up, down) = (flow.ends, flow.up, flow.down);
    outside.wire.ask_end(&ends, FlowDirection::ToBackend, &up);
    // Its packets may pass another instance: its client has acknowledged bytes that were not seen here.
    let is_further = up.taken.wrapping_sub(down.sent) < 1 << 31;
    let down = CounterSnapshot { sent: if is_further { up.taken } else { down.sent }, ..down };
    outside.wire.ask_end(&ends, FlowDirection::ToClient, &down);
    // Packets that this host sends create a conntrack entry.
    outside.wire.untrack(&ends);
}
