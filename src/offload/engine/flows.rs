//! The flows of this instance whose entries are in the map, and which of them are to be looked at.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use super::breaker::Judge;
use super::carried::{Carried, Step};
use super::later::Later;
use super::quiet::Quiet;
use super::unread::ToReadAgain;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::offload::moved::{Mark, Marked};
use crate::ports::reachability::Reachability;

/// In the second half of a flow's patience its silent side is asked, so often in as long as the whole of it.
pub(super) const ASK_EVERY: u64 = 8;

/// What is kept beside the flows may name some that are gone: each is looked up before anything is done.
#[derive(Debug, Default)]
pub(super) struct Flows {
    all: Marked<Carried>,
    /// Those of which one side waits for the other.
    waiting: HashSet<FlowId>,
    /// Those of which a FIN has passed, and not both are acknowledged yet, and when their ends are asked.
    closing: HashMap<FlowId, u64>,
    /// What an earlier process left has been read, so that all flows in the map are here.
    known: bool,
    /// So many of an earlier process no worker has taken or refused yet.
    unclaimed: u64,
    pub later: Later,
    pub quiet: Quiet,
    pub unread: ToReadAgain,
    /// Whether flows may go on offloading.
    pub judge: Judge,
}

/// Flows whose ends have said nothing for some time.
#[derive(Debug)]
pub(super) struct Silent {
    /// For too long.
    pub too_long: Vec<FlowId>,
    /// For so long that they are asked.
    pub to_ask: Vec<FlowId>,
}

impl Flows {
    pub(super) fn insert(&mut self, id: FlowId, flow: Carried) {
        self.all.insert(id, flow);
    }

    pub(super) fn remove(&mut self, id: FlowId) -> Option<Carried> {
        self.waiting.remove(&id);
        self.closing.remove(&id);
        self.all.remove(id)
    }

    pub(super) fn get_mut(&mut self, id: &FlowId) -> Option<&mut Carried> {
        self.all.get_mut(id)
    }

    /// Flows that have this mark.
    pub(super) fn at(&self, mark: Mark) -> impl Iterator<Item = FlowId> + '_ {
        self.all.at(mark)
    }

    /// Something has passed: has it among those that wait, or are about to end, or no longer.
    pub(super) fn sort(&mut self, id: FlowId) {
        let Some(flow) = self.all.get_mut(&id) else { return };
        flow.count_silence();
        match flow.unanswered {
            Some(_) => self.waiting.insert(id),
            None => self.waiting.remove(&id),
        };
        match flow.is_closing() {
            true => drop(self.closing.entry(id).or_insert(0)),
            false => drop(self.closing.remove(&id)),
        }
    }

    /// Has its ends asked at the next turn, if it is about to end.
    pub(super) fn ask_if_closing(&mut self, id: FlowId) {
        if let Some(at_ns) = self.closing.get_mut(&id) {
            *at_ns = 0;
        }
    }

    /// Those that are about to end; it is too long for those whose both FINs have passed. Whom it says to ask is not named again at once.
    pub(super) fn unfinished(&mut self, now_ns: u64, reachability: &Reachability) -> Silent {
        let flows = &self.all;
        self.closing
            .retain(|id, _| flows.get(id).is_some_and(|flow| matches!(flow.step, Step::Alone) && flow.is_closing()));
        let (mut too_long, mut to_ask) = (Vec::new(), Vec::new());
        for (id, ask_at_ns) in &mut self.closing {
            let Some(flow) = flows.get(id) else { continue };
            let last_ns = flow.up.last_ns.max(flow.down.last_ns);
            let between_ns = flow.patience_ns / ASK_EVERY;
            let is_too_long = now_ns.saturating_sub(reachability.counts_from(last_ns)) > flow.patience_ns;
            if is_too_long && flow.have_both_closed() {
                too_long.push(*id);
            } else if now_ns > (*ask_at_ns).max(last_ns + between_ns) {
                *ask_at_ns = now_ns + between_ns;
                to_ask.push(*id);
            }
        }
        Silent { too_long, to_ask }
    }

    /// Those of which one side waits for the other.
    pub(super) fn unanswered(&mut self, now_ns: u64, reachability: &Reachability) -> Silent {
        let flows = &self.all;
        self.waiting.retain(|id| flows.get(id).is_some_and(|flow| matches!(flow.step, Step::Alone)));
        let is_too_long = |flow: &&Carried| {
            let since_ns = flow.unanswered.map_or(now_ns, |unanswered| unanswered.since_ns);
            now_ns.saturating_sub(reachability.counts_from(since_ns)) > flow.patience_ns && flow.is_surely_silent()
        };
        let waiting = self.waiting.iter().filter_map(|id| flows.get(id));
        let (too_long, waiting): (Vec<_>, Vec<_>) = waiting.partition(is_too_long);
        let due = |flow: &&&Carried| flow.unanswered.is_some_and(|unanswered| now_ns >= unanswered.ask_at_ns);
        Silent {
            to_ask: waiting.iter().filter(due).map(|flow| flow.id).collect(),
            too_long: too_long.iter().map(|flow| flow.id).collect(),
        }
    }

    /// One of its ends has reset it, as `reason` says.
    pub(super) fn was_reset(&mut self, id: FlowId, reason: EndReason) {
        if let Some(flow) = self.all.get(&id) {
            self.judge.was_reset(flow, reason);
        }
    }

    /// Whether what is in the map and not here is nobody's.
    pub(super) fn are_known(&self) -> bool {
        self.known
    }

    pub(super) fn set_known(&mut self) {
        self.known = true;
    }

    /// A flow of an earlier process waits for a worker that takes or refuses it.
    pub(super) fn wait_for_claim(&mut self) {
        self.unclaimed += 1;
    }

    /// So many have been taken or refused; true if no more are waited for.
    pub(super) fn count_claimed(&mut self, flows: u64) -> bool {
        self.unclaimed = self.unclaimed.saturating_sub(flows);
        self.unclaimed == 0
    }
}

/// Reading needs no care for what is kept beside the flows, nor does changing what is there.
impl Deref for Flows {
    type Target = HashMap<FlowId, Carried>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}
