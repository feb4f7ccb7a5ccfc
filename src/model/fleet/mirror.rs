//! This instance's own flows as its peers should know them, and a log of the changes.
//!
//! The log holds ids only. A change is sent with the flow's state at the time of sending, so a peer that lags gets only
//! the latest state of each flow. All peers share one log, and each has its own position in it. A peer whose position
//! has fallen out of the log gets a new snapshot; that limits the cost of a slow peer.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound::{Excluded, Unbounded};

use super::message::Change;
use super::{Asked, FleetId, FlowRecord, InstanceName, Keeping, Local};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;

/// Changes that the log keeps for peers that lag: 16 bytes each.
const LOG_MAX: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct Mirror {
    flows: BTreeMap<FlowId, FlowRecord>,
    /// By the hash of each direction's addresses.
    by_packet: HashMap<u64, FlowId>,
    /// Flows that other instances have claimed lately.
    claimed: HashMap<FleetId, Claimed>,
    claims: VecDeque<(u64, FleetId)>,
    /// Flows that this instance has claimed lately: their former owners wait for its record of them.
    taken: HashMap<FlowId, FleetId>,
    takings: VecDeque<(u64, FleetId)>,
    log: VecDeque<FleetId>,
    /// Number of the first change in `log`.
    log_start: u64,
    /// When the changes below each number were made, oldest first.
    made: VecDeque<Made>,
    offloaded: usize,
    pub(super) log_max: usize,
}

impl Default for Mirror {
    fn default() -> Self {
        Self {
            flows: BTreeMap::new(),
            by_packet: HashMap::new(),
            claimed: HashMap::new(),
            claims: VecDeque::new(),
            taken: HashMap::new(),
            takings: VecDeque::new(),
            log: VecDeque::new(),
            log_start: 0,
            made: VecDeque::new(),
            offloaded: 0,
            log_max: LOG_MAX,
        }
    }
}

/// The time of the changes below `end` that no earlier element covers.
#[derive(Clone, Copy, Debug)]
struct Made {
    end: u64,
    at_ns: u64,
}

/// A flow that another instance has claimed.
#[derive(Debug)]
struct Claimed {
    by: InstanceName,
    at_ns: u64,
    /// The claim may be older than the flow's begin here: own changes and peers' messages come by different ways.
    is_before: bool,
    /// It no longer belongs to this instance.
    gone: bool,
}

/// How long a claim is kept: by then the claimant has told of the flow.
const CLAIMED_NS: u64 = 5_000_000_000;

impl Mirror {
    /// Takes in changes. A flow that ended before any peer was told of it leaves no trace, unless it was claimed.
    pub(super) fn apply(&mut self, locals: impl IntoIterator<Item = Local>, now_ns: u64) {
        self.forget_claims(now_ns);
        let mut touched = Vec::new();
        // Per flow, whether it was there before.
        let mut known = HashMap::new();
        for local in locals {
            let flow = match &local {
                Local::Begun(record) => record.id,
                Local::Offloaded { id, .. } | Local::Ended(id) | Local::Left(id) => *id,
            };
            let before = self.flows.get(&flow).map(FlowRecord::fleet_id);
            if let Some(id) = before {
                known.entry(id).or_insert(true);
            }
            let changed = match local {
                Local::Begun(record) => {
                    let id = record.fleet_id();
                    known.entry(id).or_insert(false);
                    // Another flow has its id now: the flow that had it is over.
                    touched.extend(before.filter(|before| *before != id));
                    self.insert(*record).then_some(id)
                }
                Local::Offloaded { id, passage } => before.filter(|_| self.offload(id, Keeping::Passage(passage))),
                Local::Ended(id) => {
                    let taken = self.taken.remove(&id);
                    let ended = before.filter(|_| self.remove(id)).or(taken);
                    if let Some(id) = taken {
                        // Its former owner waits for its record, and no earlier claim explains its end.
                        known.insert(id, true);
                        self.claimed.remove(&id);
                    }
                    ended
                }
                Local::Left(id) => before.filter(|_| self.leave(id)),
            };
            touched.extend(changed);
        }
        let mut noted = HashSet::new();
        for id in touched {
            if (known[&id] || self.get(id).is_some()) && noted.insert(id) {
                self.log.push_back(id);
            }
        }
        if noted.is_empty() {
            return;
        }
        self.made.push_back(Made { end: self.end(), at_ns: now_ns });
        let surplus = self.log.len().saturating_sub(self.log_max);
        self.log.drain(..surplus);
        self.log_start += surplus as u64;
        while self.made.front().is_some_and(|made| made.end <= self.log_start) {
            self.made.pop_front();
        }
    }

    /// Number of the next change.
    pub(super) fn end(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// Whether the log still has all changes from `next` on.
    pub(super) fn reaches_back_to(&self, next: u64) -> bool {
        next >= self.log_start && next <= self.end()
    }

    /// At most `max` changes from `next` on, with the present state of their flows. The log must reach back to `next`.
    pub(super) fn changes(&self, next: u64, max: usize) -> Vec<Change> {
        let from = (next - self.log_start) as usize;
        let ids = self.log.range(from.min(self.log.len())..).take(max);
        let change = |id: &FleetId| match self.get(*id) {
            Some(record) => Change::Flow(Box::new(record.clone())),
            None => match self.claimed.get(id).filter(|claimed| claimed.gone) {
                Some(claimed) => Change::Moved { id: *id, to: claimed.by.clone() },
                None => Change::Ended(*id),
            },
        };
        ids.map(change).collect()
    }

    /// Flows with an id above `after`, in the order of their ids, `max` at most.
    pub(super) fn records(&self, after: FlowId, max: usize) -> Vec<FlowRecord> {
        self.flows.range((Excluded(after), Unbounded)).take(max).map(|(_, record)| record.clone()).collect()
    }

    /// When the change `number` was made. `None`: it was not made yet, or long ago.
    pub(super) fn made_at_ns(&self, number: u64) -> Option<u64> {
        let place = self.made.partition_point(|made| made.end <= number);
        self.made.get(place).map(|made| made.at_ns)
    }

    fn get(&self, id: FleetId) -> Option<&FlowRecord> {
        self.flows.get(&id.flow).filter(|record| record.fleet_id() == id)
    }

    /// Whether this is a packet of a flow that this instance has.
    pub(super) fn knows(&self, packet: &Asked) -> bool {
        self.by_packet.contains_key(&hash_of(packet))
    }

    /// `by` owns this flow from now on: an end here means that it goes on there.
    pub(super) fn claimed_by(&mut self, by: &InstanceName, id: FleetId, now_ns: u64) -> Option<Ends> {
        let ends = self.get(id).filter(|record| record.keeping != Keeping::Sockets).map(|record| record.ends);
        self.claimed.insert(id, Claimed { by: by.clone(), at_ns: now_ns, is_before: ends.is_none(), gone: false });
        self.claims.push_back((now_ns, id));
        ends
    }

    /// This instance owns these flows of others from now on. Their former owners will get a record or an end of each.
    pub(super) fn claims(&mut self, flows: &[FleetId], now_ns: u64) {
        self.taken.extend(flows.iter().map(|id| (id.flow, *id)));
        self.takings.extend(flows.iter().map(|id| (now_ns, *id)));
    }

    fn forget_claims(&mut self, now_ns: u64) {
        while let Some((_, id)) = self.takings.pop_front_if(|(at_ns, _)| now_ns - *at_ns >= CLAIMED_NS) {
            if self.taken.get(&id.flow) == Some(&id) {
                self.taken.remove(&id.flow);
            }
        }
        while let Some((at_ns, id)) = self.claims.front().copied().filter(|(at_ns, _)| now_ns - at_ns >= CLAIMED_NS) {
            self.claims.pop_front();
            if self.claimed.get(&id).is_some_and(|claimed| claimed.at_ns == at_ns) {
                self.claimed.remove(&id);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// How many of them are offloaded.
    #[cfg(test)]
    pub(super) fn offloaded(&self) -> usize {
        self.offloaded
    }

    fn insert(&mut self, record: FlowRecord) -> bool {
        if self.flows.get(&record.id) == Some(&record) {
            return false;
        }
        self.remove(record.id);
        if let Some(claimed) = self.claimed.get_mut(&record.fleet_id()) {
            (claimed.is_before, claimed.gone) = (true, false);
        }
        self.by_packet.extend(hashes(&record.ends).map(|hash| (hash, record.id)));
        self.offloaded += usize::from(matches!(record.keeping, Keeping::Passage(_)));
        self.flows.insert(record.id, record);
        true
    }

    fn offload(&mut self, id: FlowId, keeping: Keeping) -> bool {
        let Some(record) = self.flows.get_mut(&id).filter(|record| record.keeping != keeping) else { return false };
        self.offloaded += usize::from(record.keeping == Keeping::Sockets);
        record.keeping = keeping;
        true
    }

    /// As [`Mirror::remove`], but the flow goes on at its last claimant.
    fn leave(&mut self, id: FlowId) -> bool {
        if let Some(record) = self.flows.get(&id)
            && let Some(claimed) = self.claimed.get_mut(&record.fleet_id())
        {
            claimed.is_before = false;
        }
        self.remove(id)
    }

    fn remove(&mut self, id: FlowId) -> bool {
        let Some(record) = self.flows.remove(&id) else { return false };
        self.offloaded -= usize::from(matches!(record.keeping, Keeping::Passage(_)));
        if let Some(claimed) = self.claimed.get_mut(&record.fleet_id()) {
            claimed.gone = !claimed.is_before;
        }
        for hash in hashes(&record.ends) {
            // Another flow with the same ends may have come meanwhile.
            if self.by_packet.get(&hash) == Some(&id) {
                self.by_packet.remove(&hash);
            }
        }
        true
    }
}

/// The addresses of both directions' packets.
fn packets(ends: &Ends) -> [Asked; 2] {
    [FlowDirection::ToBackend, FlowDirection::ToClient].map(|direction| {
        let key = ends.key(direction);
        Asked { from: key.from, to: key.to }
    })
}

fn hashes(ends: &Ends) -> [u64; 2] {
    packets(ends).map(|packet| hash_of(&packet))
}

/// If two flows' packets had the same hash, a peer would take a packet of one for the other's, and send it to that
/// flow's owner. The owner answers it as any unknown packet.
fn hash_of(packet: &Asked) -> u64 {
    let mut hasher = DefaultHasher::new();
    packet.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::testing::{passage, record};

    fn established(id: u64) -> Local {
        Local::Begun(Box::new(record(id)))
    }

    fn ids(changes: &[Change]) -> Vec<(u64, bool)> {
        let id = |change: &Change| match change {
            Change::Flow(record) => (record.id.0, true),
            Change::Ended(id) | Change::Moved { id, .. } => (id.flow.0, false),
        };
        changes.iter().map(id).collect()
    }

    #[test]
    fn a_flow_that_ended_before_it_was_told_is_never_told() {
        let mut mirror = Mirror::default();
        mirror.apply([established(1), established(2), Local::Ended(FlowId(1))], 5);
        assert_eq!(ids(&mirror.changes(0, 10)), [(2, true)]);
        mirror.apply([Local::Ended(FlowId(2)), Local::Ended(FlowId(3))], 6);
        assert_eq!(ids(&mirror.changes(1, 10)), [(2, false)]);
        assert!(mirror.is_empty() && mirror.by_packet.is_empty());
    }

    #[test]
    fn a_change_is_told_as_the_flow_is_now() {
        let mut mirror = Mirror::default();
        mirror.apply([established(1)], 5);
        mirror.apply([Local::Offloaded { id: FlowId(1), passage: Box::new(passage(9)) }], 6);
        let told = mirror.changes(0, 10);
        let offloaded = FlowRecord { keeping: Keeping::Passage(Box::new(passage(9))), ..record(1) };
        assert_eq!(told, vec![Change::Flow(Box::new(offloaded)); 2]);
        assert_eq!((mirror.len(), mirror.offloaded()), (1, 1));
        // An unchanged state is no change.
        mirror.apply([Local::Offloaded { id: FlowId(1), passage: Box::new(passage(9)) }], 7);
        assert_eq!(mirror.end(), 2);
        assert_eq!([0, 1, 2].map(|number| mirror.made_at_ns(number)), [Some(5), Some(6), None]);
    }

    #[test]
    fn a_log_that_is_full_forgets_its_oldest_changes() {
        let mut mirror = Mirror { log_max: 1024, ..Mirror::default() };
        for round in 0..4 {
            let chunk = 512;
            mirror.apply((round * chunk + 1..=(round + 1) * chunk).map(established), round);
            mirror.apply((round * chunk + 1..=(round + 1) * chunk).map(|id| Local::Ended(FlowId(id))), round);
        }
        assert_eq!((mirror.log.len(), mirror.end()), (1024, 4 * 1024));
        assert!(!mirror.reaches_back_to(0) && mirror.reaches_back_to(3 * 1024));
        assert!(mirror.made.len() <= 3, "{:?}", mirror.made);
    }

    #[test]
    fn a_packet_of_either_end_names_its_flow() {
        let mut mirror = Mirror::default();
        mirror.apply((1..100).map(established), 1);
        let ends = record(7).ends;
        for packet in packets(&ends) {
            assert!(mirror.knows(&packet));
        }
        assert!(!mirror.knows(&Asked { from: ends.vip.socket_addr(), to: ends.client.socket_addr() }));
    }

    #[test]
    fn a_flow_that_was_claimed_while_word_of_its_coming_was_under_way_is_not_said_to_be_over() {
        let (by, id) = (InstanceName("b".into()), FlowId(1));
        let mut mirror = Mirror::default();
        assert_eq!(mirror.claimed_by(&by, record(1).fleet_id(), 1), None);
        mirror.apply([established(1), Local::Offloaded { id, passage: Box::new(passage(9)) }], 2);
        mirror.apply([Local::Left(id)], 3);
        assert_eq!(mirror.changes(mirror.end() - 1, 10), [Change::Moved { id: record(1).fleet_id(), to: by }]);
    }

    /// Regression: two instances gave a flow to each other for ever. The client's RST came to an instance that only
    /// held the flow. It claimed the flow and recorded its end before it had told any peer of it. The former owner
    /// waited for the record, and took the flow back.
    #[test]
    fn of_a_flow_that_was_claimed_here_the_end_is_told_however_soon_it_comes() {
        let id = FlowId(1);
        for locals in [vec![established(1), Local::Ended(id)], vec![Local::Ended(id)]] {
            let mut mirror = Mirror::default();
            mirror.claimed_by(&InstanceName("b".into()), record(1).fleet_id(), 0);
            mirror.claims(&[record(1).fleet_id()], 1);
            mirror.apply(locals, 2);
            assert_eq!(mirror.changes(0, 10), [Change::Ended(record(1).fleet_id())]);
            // Only once, and only for the flow with this id.
            mirror.apply([Local::Ended(id), established(1), Local::Ended(id)], 3);
            assert_eq!(mirror.end(), 1);
        }
        let mut mirror = Mirror::default();
        mirror.claims(&[record(1).fleet_id()], 1);
        mirror.apply([established(1), Local::Ended(id)], 1 + CLAIMED_NS);
        assert_eq!(mirror.end(), 0);
        assert!(mirror.taken.is_empty() && mirror.takings.is_empty());
    }

    #[test]
    fn of_a_flow_that_was_claimed_is_told_where_it_is() {
        let by = InstanceName("b".into());
        let mut mirror = Mirror::default();
        mirror.apply([1, 2, 3].map(established), 1);
        let offloaded = |id| Local::Offloaded { id: FlowId(id), passage: Box::new(passage(9)) };
        mirror.apply([1, 2].map(offloaded), 1);
        let ends = [1, 2, 3, 9].map(|id| mirror.claimed_by(&by, record(id).fleet_id(), 2));
        assert_eq!(ends, [Some(record(1).ends), Some(record(2).ends), None, None]);
        mirror.apply([Local::Ended(FlowId(1)), Local::Ended(FlowId(3))], 3);
        let told = mirror.changes(5, 10);
        assert_eq!(told, [Change::Moved { id: record(1).fleet_id(), to: by }, Change::Ended(record(3).fleet_id())]);
        // It comes back before the claim is forgotten.
        mirror.claimed_by(&InstanceName("b".into()), record(2).fleet_id(), 4);
        mirror.apply([Local::Ended(FlowId(2))], 5);
        mirror.apply([established(2), offloaded(2)], 6);
        mirror.apply([], 3 + CLAIMED_NS);
        mirror.apply([Local::Ended(FlowId(2))], 7 + CLAIMED_NS);
        assert_eq!(mirror.changes(mirror.end() - 1, 10), [Change::Ended(record(2).fleet_id())]);
        assert!(mirror.by_packet.is_empty() && mirror.claimed.is_empty() && mirror.claims.is_empty());
    }
}
