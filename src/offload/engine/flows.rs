//! This instance's flows with entries in the map, and the lists of those that need attention.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use super::breaker::Judge;
use super::later::Later;
use super::offloaded::{OffloadedFlow, Step};
use super::quiet::Quiet;
use super::unread::ToReadAgain;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::offload::moved::{Mark, Marked};
use crate::ports::reachability::Reachability;

/// In the second half of a flow's patience, the engine challenges the silent side at this rate: so often per patience.
pub(super) const ASK_EVERY: u64 = 8;

/// The lists beside `all` may name flows that are gone: look each up before acting.
#[derive(Debug, Default)]
pub(super) struct Flows {
    all: Marked<OffloadedFlow>,
    /// Flows of which one side waits for the other.
    waiting: HashSet<FlowId>,
    /// Flows of which one side has not acknowledged all that the other has sent.
    untaken: HashSet<FlowId>,
    /// Flows of which a FIN has passed, but not both were acknowledged, with the time of the next challenge.
    closing: HashMap<FlowId, u64>,
    /// Whether the earlier process's entries were read, so that all flows in the map are listed here.
    known: bool,
    /// Flows of an earlier process that no worker has claimed or refused yet.
    unclaimed: u64,
    /// Why flows ended that no worker had claimed yet.
    ended_early: HashMap<FlowId, EndReason>,
    pub later: Later,
    pub quiet: Quiet,
    pub unread: ToReadAgain,
    /// Decides whether further flows may be offloaded.
    pub judge: Judge,
}

/// Flows whose ends have been silent for some time.
#[derive(Debug)]
pub(super) struct Silent {
    /// Silent for too long.
    pub too_long: Vec<FlowId>,
    /// Silent for so long that the engine challenges them.
    pub to_ask: Vec<FlowId>,
}

impl Flows {
    pub(super) fn insert(&mut self, id: FlowId, flow: OffloadedFlow) {
        self.all.insert(id, flow);
    }

    pub(super) fn remove(&mut self, id: FlowId) -> Option<OffloadedFlow> {
        self.waiting.remove(&id);
        self.untaken.remove(&id);
        self.closing.remove(&id);
        self.all.remove(id)
    }

    pub(super) fn get_mut(&mut self, id: &FlowId) -> Option<&mut OffloadedFlow> {
        self.all.get_mut(id)
    }

    /// The flows with this mark.
    pub(super) fn at(&self, mark: Mark) -> impl Iterator<Item = FlowId> + '_ {
        self.all.at(mark)
    }

    /// A packet has passed: updates the flow's place in the lists.
    pub(super) fn sort(&mut self, id: FlowId, now_ns: u64) {
        let Some(flow) = self.all.get_mut(&id) else { return };
        flow.count_silence();
        match flow.waits.unanswered {
            Some(_) => self.waiting.insert(id),
            None => self.waiting.remove(&id),
        };
        flow.count_untaken(now_ns);
        match flow.waits.untaken {
            [None, None] => self.untaken.remove(&id),
            _ => self.untaken.insert(id),
        };
        match flow.is_closing() {
            true => drop(self.closing.entry(id).or_insert(0)),
            false => drop(self.closing.remove(&id)),
        }
    }

    /// Has the flow's ends challenged at the next turn, if it is about to end.
    pub(super) fn ask_if_closing(&mut self, id: FlowId) {
        if let Some(at_ns) = self.closing.get_mut(&id) {
            *at_ns = 0;
        }
    }

    /// Flows that are about to end. `too_long`: only those with both FINs passed. A flow in `to_ask` is not named again
    /// at once.
    pub(super) fn unfinished(&mut self, now_ns: u64, reachability: &Reachability) -> Silent {
        let flows = &self.all;
        self.closing
            .retain(|id, _| flows.get(id).is_some_and(|flow| matches!(flow.step, Step::Alone) && flow.is_closing()));
        let (mut too_long, mut to_ask) = (Vec::new(), Vec::new());
        for (id, ask_at_ns) in &mut self.closing {
            let Some(flow) = flows.get(id) else { continue };
            let last_ns = flow.up.last_ns.max(flow.down.last_ns);
            let between_ns = flow.patience_ns / ASK_EVERY;
            if flow.does_not_finish(now_ns, reachability).is_some() {
                too_long.push(*id);
            } else if now_ns > (*ask_at_ns).max(last_ns + between_ns) {
                *ask_at_ns = now_ns + between_ns;
                to_ask.push(*id);
            }
        }
        Silent { too_long, to_ask }
    }

    /// Flows of which one side waits for the other.
    pub(super) fn unanswered(&mut self, now_ns: u64, reachability: &Reachability) -> Silent {
        let flows = &self.all;
        self.waiting.retain(|id| flows.get(id).is_some_and(|flow| matches!(flow.step, Step::Alone)));
        let is_too_long = |flow: &&OffloadedFlow| flow.answers_nothing(now_ns, reachability).is_some();
        let waiting = self.waiting.iter().filter_map(|id| flows.get(id));
        let (too_long, waiting): (Vec<_>, Vec<_>) = waiting.partition(is_too_long);
        let due =
            |flow: &&&OffloadedFlow| flow.waits.unanswered.is_some_and(|unanswered| now_ns >= unanswered.ask_at_ns);
        Silent {
            to_ask: waiting.iter().filter(due).map(|flow| flow.id).collect(),
            too_long: too_long.iter().map(|flow| flow.id).collect(),
        }
    }

    /// Flows of which one side goes on sending bytes that do not arrive, while the other may speak: a direction of the network is lost, or it
    /// loses large packets.
    pub(super) fn untaken(&mut self, now_ns: u64, reachability: &Reachability) -> Vec<FlowId> {
        let flows = &self.all;
        self.untaken.retain(|id| flows.get(id).is_some_and(|flow| matches!(flow.step, Step::Alone)));
        let all = self.untaken.iter().filter_map(|id| flows.get(id));
        all.filter(|flow| flow.takes_nothing(now_ns, reachability).is_some()).map(|flow| flow.id).collect()
    }

    /// One of its ends has reset it, as `reason` says.
    pub(super) fn was_reset(&mut self, id: FlowId, reason: EndReason) {
        if let Some(flow) = self.all.get(&id) {
            self.judge.was_reset(flow, reason);
        }
    }

    /// Whether an entry that is not listed here belongs to no flow of this instance.
    pub(super) fn are_known(&self) -> bool {
        self.known
    }

    pub(super) fn set_known(&mut self) {
        self.known = true;
    }

    /// A flow of an earlier process waits for a worker to claim or refuse it.
    pub(super) fn wait_for_claim(&mut self) {
        self.unclaimed += 1;
    }

    /// The flow, which no worker has claimed, is over. The first reason counts.
    pub(super) fn end_early(&mut self, id: FlowId, reason: EndReason) {
        self.ended_early.entry(id).or_insert(reason);
    }

    /// Forgets why the flow ended before a worker had claimed it, and returns it.
    pub(super) fn take_ended_early(&mut self, id: FlowId) -> Option<EndReason> {
        self.ended_early.remove(&id)
    }

    /// Workers have claimed or refused so many. Returns whether none is left to wait for.
    pub(super) fn count_claimed(&mut self, flows: u64) -> bool {
        self.unclaimed = self.unclaimed.saturating_sub(flows);
        self.unclaimed == 0
    }
}

/// Reads need no care for the lists beside the flows, nor do changes of values.
impl Deref for Flows {
    type Target = HashMap<FlowId, OffloadedFlow>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}
