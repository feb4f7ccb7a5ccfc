//! Every interleaving of a flow's entry: the sequence lock of `src/table/slot.rs` under loom's
//! atomics.
//!
//! With few words, because loom tries each value that a load may see: two identity words and one live word are
//! enough to tell a mix of two flows from either.

/// The same source as `baton::table::slot`; its parent module gives it loom's atomics.
#[path = "."]
mod explored {
    #[allow(dead_code, reason = "the model needs a part of what the table needs")]
    #[path = "../src/table/slot.rs"]
    pub mod slot;

    pub mod sync {
        pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    }
}

use std::collections::BTreeSet;

use explored::slot::{Copied, Slot};
use explored::sync::{AtomicU64, Ordering::*, fence};
use loom::sync::Arc;
use loom::thread;

const IDENTITY: usize = 2;
const LIVE: usize = 1;

/// What a writer and a reader need of an entry, so that broken ones can be explored alike.
trait Entry: Default + Send + Sync + 'static {
    fn occupy(&self, identity: &[u64; IDENTITY], live: &[u64; LIVE]);
    fn vacate(&self);
    fn copy(&self) -> Option<Copied<IDENTITY, LIVE>>;
}

impl Entry for Slot<IDENTITY, LIVE> {
    fn occupy(&self, identity: &[u64; IDENTITY], live: &[u64; LIVE]) {
        Slot::occupy(self, identity, live);
    }

    fn vacate(&self) {
        Slot::vacate(self);
    }

    fn copy(&self) -> Option<Copied<IDENTITY, LIVE>> {
        Slot::copy(self)
    }
}

/// Explores every schedule and, for each load, every value that the memory model lets it see.
///
/// The reader must be the spawned thread: loom 0.7 finds a race only against the last access to a cell, so a writer
/// that loads a cell before it stores to it hides all that a reader did before.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    loom::model(model);
}

/// One flow leaves and another takes its place while a reader copies. Returns the occupations that were seen.
fn a_reader_never_mixes_two_flows<E: Entry>() -> BTreeSet<u64> {
    let occupations = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let noted = occupations.clone();
    explore(move || {
        let entry = Arc::new(E::default());
        entry.occupy(&[1, 1], &[1]);
        let reader = {
            let entry = entry.clone();
            thread::spawn(move || entry.copy())
        };
        entry.vacate();
        entry.occupy(&[2, 2], &[2]);
        if let Some(seen) = reader.join().unwrap() {
            let flow = seen.identity[0];
            assert_eq!((seen.identity, seen.live), ([flow; IDENTITY], [flow; LIVE]), "a mix of two flows");
            assert_eq!(seen.sequence, flow * 2 - 1, "a mix of two flows: the fields are of another occupation");
            noted.lock().unwrap().insert(seen.sequence);
        }
    });
    occupations.lock().unwrap().clone()
}

#[test]
fn the_entry_never_shows_a_mix_of_two_flows() {
    let occupations = a_reader_never_mixes_two_flows::<Slot<IDENTITY, LIVE>>();
    assert_eq!(occupations, BTreeSet::from([1, 3]), "the exploration must reach both flows");
}

#[test]
fn a_flow_that_lives_throughout_is_seen_and_no_add_is_lost() {
    explore(|| {
        let entry = Arc::new(Slot::<IDENTITY, LIVE>::default());
        entry.occupy(&[7, 7], &[0]);
        let reader = {
            let entry = entry.clone();
            thread::spawn(move || [entry.copy(), entry.copy()])
        };
        entry.add(0, 1);
        entry.add(0, 1);
        let [first, second] = reader.join().unwrap().map(|seen| seen.expect("it lives through the whole copy"));
        assert_eq!((first.identity, second.identity), ([7, 7], [7, 7]));
        assert!(first.live <= second.live && second.live <= [2], "{first:?} then {second:?}");
        assert_eq!(entry.copy().unwrap().live, [2], "an add was lost");
        entry.vacate();
        assert_eq!(entry.copy(), None);
    });
}

#[test]
fn a_reader_never_sees_an_older_flow_after_a_newer_one() {
    explore(|| {
        let entry = Arc::new(Slot::<1, 1>::default());
        let reader = {
            let entry = entry.clone();
            thread::spawn(move || [entry.copy(), entry.copy()].map(|seen| seen.map_or(0, |seen| seen.sequence)))
        };
        entry.occupy(&[1], &[1]);
        entry.vacate();
        entry.occupy(&[2], &[2]);
        let [first, second] = reader.join().unwrap();
        assert!(second == 0 || first <= second, "occupation {second} was seen after {first}");
    });
}

/// A slot whose defects can be chosen: each broken variant must be caught, or the exploration proves nothing.
struct Broken<const DEFECT: u8> {
    sequence: AtomicU64,
    words: [AtomicU64; IDENTITY + LIVE],
}

const SEQUENCE_BEFORE_FIELDS: u8 = 0;
const NO_FENCE_IN_WRITER: u8 = 1;
const NO_FENCE_IN_READER: u8 = 2;
const NO_SECOND_LOOK: u8 = 3;

impl<const DEFECT: u8> Default for Broken<DEFECT> {
    fn default() -> Self {
        Self { sequence: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const DEFECT: u8> Entry for Broken<DEFECT> {
    fn occupy(&self, identity: &[u64; IDENTITY], live: &[u64; LIVE]) {
        let sequence = self.sequence.load(Relaxed);
        if DEFECT != NO_FENCE_IN_WRITER {
            fence(Release);
        }
        if DEFECT == SEQUENCE_BEFORE_FIELDS {
            self.sequence.store(sequence + 1, Release);
        }
        for (cell, word) in self.words.iter().zip(identity.iter().chain(live)) {
            cell.store(*word, Relaxed);
        }
        if DEFECT != SEQUENCE_BEFORE_FIELDS {
            self.sequence.store(sequence + 1, Release);
        }
    }

    fn vacate(&self) {
        self.sequence.store(self.sequence.load(Relaxed) + 1, Release);
    }

    fn copy(&self) -> Option<Copied<IDENTITY, LIVE>> {
        let sequence = self.sequence.load(Acquire);
        if sequence.is_multiple_of(2) {
            return None;
        }
        let words: [u64; IDENTITY + LIVE] = std::array::from_fn(|word| self.words[word].load(Relaxed));
        if DEFECT != NO_FENCE_IN_READER {
            fence(Acquire);
        }
        let [first, second, live] = words;
        let unchanged = DEFECT == NO_SECOND_LOOK || self.sequence.load(Relaxed) == sequence;
        unchanged.then_some(Copied { sequence, identity: [first, second], live: [live] })
    }
}

#[test]
#[should_panic(expected = "a mix of two flows")]
fn a_sequence_published_before_its_fields_is_caught() {
    a_reader_never_mixes_two_flows::<Broken<SEQUENCE_BEFORE_FIELDS>>();
}

#[test]
#[should_panic(expected = "a mix of two flows")]
fn a_writer_without_its_fence_is_caught() {
    a_reader_never_mixes_two_flows::<Broken<NO_FENCE_IN_WRITER>>();
}

#[test]
#[should_panic(expected = "a mix of two flows")]
fn a_reader_without_its_fence_is_caught() {
    a_reader_never_mixes_two_flows::<Broken<NO_FENCE_IN_READER>>();
}

#[test]
#[should_panic(expected = "a mix of two flows")]
fn a_reader_that_does_not_look_again_is_caught() {
    a_reader_never_mixes_two_flows::<Broken<NO_SECOND_LOOK>>();
}
