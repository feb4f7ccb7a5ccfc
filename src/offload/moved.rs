//! Marks for flows with new packets: the program sets them and user space takes them, so that user space need not look
//! at idle flows.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::atomic::Ordering::*;

use crate::model::ids::FlowId;
use crate::sys::bpf::{Map, SharedWords};

/// Number of marks; `MARKS_SHIFT` of `bpf/entry.h`. If there are more flows, they share marks.
const MARKS: usize = 1 << 18;
/// Keeps flows of different instances from sharing marks, because all instances number from 0; `FLOW_TAG_STRIDE`.
const TAG_STRIDE: u32 = 40503;

/// Room for so many flows is kept, however few there are.
const ROOM_MIN: usize = 4096;

/// A flow's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark(u32);

impl Mark {
    /// The same as `mark` of `bpf/entry.h`.
    pub fn of(flow: FlowId) -> Self {
        let at = (flow.0 as u32).wrapping_add(u32::from(flow.tag()).wrapping_mul(TAG_STRIDE));
        Self(at & (MARKS as u32 - 1))
    }
}

/// The marks, as the program sets them.
#[derive(Debug)]
pub struct Moved(SharedWords);

impl Moved {
    pub(super) fn open(map: &Map) -> io::Result<Self> {
        let shared = SharedWords::of(map)?;
        if shared.words().len() == MARKS / 8 { Ok(Self(shared)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Adds the marks that were set to `out`, and clears them. The program writes an entry before it checks whether the
    /// mark is set, but a CPU may reorder the two: then that entry's change appears a moment later, without another
    /// mark.
    pub fn take(&self, out: &mut Vec<Mark>) {
        for (index, word) in self.0.words().iter().enumerate() {
            if word.load(Relaxed) != 0 {
                let marks = word.swap(0, AcqRel).to_ne_bytes();
                let set = marks.iter().enumerate().filter(|(_, mark)| **mark != 0);
                out.extend(set.map(|(byte, _)| Mark((index * 8 + byte) as u32)));
            }
        }
    }
}

/// Flows by their ids, and by their marks.
#[derive(Debug)]
pub(crate) struct Marked<T> {
    flows: HashMap<FlowId, T>,
    /// One flow for each mark; `more` has the others.
    first: Box<[Option<Named>]>,
    more: HashMap<Mark, Vec<FlowId>>,
}

/// An id for which the kernel's zeroed pages mean "no flow".
type Named = std::num::NonZeroU64;

fn named(flow: FlowId) -> Option<Named> {
    Named::new(flow.0.wrapping_add(1))
}

fn id(named: Named) -> FlowId {
    FlowId(named.get().wrapping_sub(1))
}

impl<T> Default for Marked<T> {
    fn default() -> Self {
        Self { flows: HashMap::new(), first: vec![None; MARKS].into_boxed_slice(), more: HashMap::new() }
    }
}

impl<T> Marked<T> {
    pub(crate) fn insert(&mut self, flow: FlowId, value: T) {
        if self.flows.insert(flow, value).is_some() {
            return;
        }
        let mark = Mark::of(flow);
        match &mut self.first[mark.0 as usize] {
            place @ None => *place = named(flow),
            Some(_) => self.more.entry(mark).or_default().push(flow),
        }
    }

    pub(crate) fn remove(&mut self, flow: FlowId) -> Option<T> {
        let value = self.flows.remove(&flow)?;
        let mark = Mark::of(flow);
        let others = self.more.get_mut(&mark);
        let place = &mut self.first[mark.0 as usize];
        match others {
            None => *place = None,
            Some(others) if *place == named(flow) => *place = others.pop().and_then(named),
            Some(others) => others.retain(|other| *other != flow),
        }
        if self.more.get(&mark).is_some_and(Vec::is_empty) {
            self.more.remove(&mark);
        }
        // A storm's room, which nothing else would give back.
        if self.flows.capacity() > ROOM_MIN && self.flows.len() < self.flows.capacity() / 8 {
            self.flows.shrink_to(self.flows.len() * 2);
        }
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, flow: &FlowId) -> Option<&mut T> {
        self.flows.get_mut(flow)
    }

    /// The flows with this mark.
    pub(crate) fn at(&self, mark: Mark) -> impl Iterator<Item = FlowId> + '_ {
        let first = self.first[mark.0 as usize].map(id);
        first.into_iter().chain(self.more.get(&mark).into_iter().flatten().copied())
    }
}

/// Reads need no care for the marks, nor do changes of values; only [`Marked::insert`] and [`Marked::remove`] change
/// marks.
impl<T> Deref for Marked<T> {
    type Target = HashMap<FlowId, T>;

    fn deref(&self) -> &Self::Target {
        &self.flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after a storm the room for its flows, 600 bytes for each, was kept as long as the process ran.
    #[test]
    fn the_room_of_a_storm_is_given_back_and_what_stays_is_found() {
        let mut marked = Marked::default();
        let flows: Vec<_> = (0..50_000).map(|count| FlowId::of(7, count)).collect();
        flows.iter().for_each(|flow| marked.insert(*flow, flow.0));
        let (stays, ends) = flows.split_at(10);
        ends.iter().for_each(|flow| assert_eq!(marked.remove(*flow), Some(flow.0)));
        assert!(marked.flows.capacity() <= 2 * ROOM_MIN, "{}", marked.flows.capacity());
        assert!(stays.iter().all(|flow| marked.get(flow) == Some(&flow.0)));
    }

    #[test]
    fn flows_are_found_by_their_marks_whoever_shares_them_comes_and_goes() {
        let mut marked = Marked::default();
        let mut rng = fastrand::Rng::with_seed(7);
        // A few ids of two instances that lie a multiple of all marks apart: most share a mark.
        let any = |rng: &mut fastrand::Rng| {
            FlowId::of(rng.u16(..2), rng.u64(..8) + rng.u64(..4) * MARKS as u64 + rng.u64(..2) * u64::from(TAG_STRIDE))
        };
        let mut there = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            let flow = any(&mut rng);
            if rng.bool() {
                marked.insert(flow, ());
                there.insert(flow);
            } else {
                assert_eq!(marked.remove(flow).is_some(), there.remove(&flow));
            }
            let mark = Mark::of(any(&mut rng));
            let mut found: Vec<_> = marked.at(mark).collect();
            found.sort_unstable();
            let all = there.iter().copied().filter(|flow| Mark::of(*flow) == mark);
            assert_eq!(found, all.collect::<Vec<_>>());
        }
        assert!(!there.is_empty() && marked.more.values().all(|others| !others.is_empty()));
    }

    #[test]
    fn the_first_flows_of_instances_do_not_share_marks() {
        let marks = (0..4).flat_map(|tag| (0..5000).map(move |count| Mark::of(FlowId::of(tag, count))));
        assert_eq!(marks.collect::<std::collections::BTreeSet<_>>().len(), 20_000);
    }
}
