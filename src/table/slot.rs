//! One flow's entry: a sequence lock with one writer, made of atomics only.
//!
//! ```text
//!            occupy                  vacate
//!   even ───────────────▶ odd ───────────────▶ even
//!   (free)   fields, then  (live)   sequence     (free, next generation)
//!            sequence
//! ```
//! A reader reads the sequence, copies the fields, and reads the sequence again: if it changed, the copy may mix two
//! flows, and the reader drops it. No reader makes the writer wait, and the memory is never freed while the table
//! exists.
//!
//! The atomics come from the parent module and the word counts are parameters, so that the interleavings can be
//! explored with other atomics and few words (`tests/interleavings.rs`).

use super::sync::{AtomicU64, Ordering::*, fence};

/// Words of identity, which stay the same while a flow exists: id, accept time, client, VIP, frontend.
pub(crate) const IDENTITY_WORDS: usize = 8;

/// Words that the owner changes while the flow exists; see `flows::Field`.
pub(crate) const LIVE_WORDS: usize = 8;

/// A reader's copy of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied<const IDENTITY: usize = IDENTITY_WORDS, const LIVE: usize = LIVE_WORDS> {
    /// Odd; differs for each occupation of the slot.
    pub sequence: u64,
    pub identity: [u64; IDENTITY],
    pub live: [u64; LIVE],
}

/// 136 bytes for one flow.
#[derive(Debug)]
pub struct Slot<const IDENTITY: usize = IDENTITY_WORDS, const LIVE: usize = LIVE_WORDS> {
    sequence: AtomicU64,
    identity: [AtomicU64; IDENTITY],
    live: [AtomicU64; LIVE],
}

impl<const IDENTITY: usize, const LIVE: usize> Default for Slot<IDENTITY, LIVE> {
    fn default() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            identity: std::array::from_fn(|_| AtomicU64::new(0)),
            live: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl<const IDENTITY: usize, const LIVE: usize> Slot<IDENTITY, LIVE> {
    /// Fills a free slot. Only the owner may call this.
    pub(crate) fn occupy(&self, identity: &[u64; IDENTITY], live: &[u64; LIVE]) {
        let sequence = self.sequence.load(Relaxed);
        debug_assert!(sequence.is_multiple_of(2), "the slot is already occupied");
        // Readers that see any of the fields below must also see that the slot was vacated before.
        fence(Release);
        for (cell, word) in self.identity.iter().zip(identity) {
            cell.store(*word, Relaxed);
        }
        for (cell, word) in self.live.iter().zip(live) {
            cell.store(*word, Relaxed);
        }
        self.sequence.store(sequence + 1, Release);
    }

    /// Frees an occupied slot. Only the owner may call this.
    pub(crate) fn vacate(&self) {
        let sequence = self.sequence.load(Relaxed);
        debug_assert!(!sequence.is_multiple_of(2), "the slot is already free");
        self.sequence.store(sequence + 1, Release);
    }

    /// Sets one changing word. Only the owner may call this.
    pub fn set(&self, word: usize, value: u64) {
        self.live[word].store(value, Relaxed);
    }

    /// Adds to one changing word. Only the owner may call this.
    pub(crate) fn add(&self, word: usize, by: u64) {
        self.live[word].store(self.live[word].load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// The present value of one changing word.
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.live[word].load(Relaxed)
    }

    /// A copy of the flow in this slot, or `None` if the slot is free or was reused meanwhile.
    ///
    /// A flow that exists during the whole call is always found.
    pub(crate) fn copy(&self) -> Option<Copied<IDENTITY, LIVE>> {
        let sequence = self.sequence.load(Acquire);
        if sequence.is_multiple_of(2) {
            return None;
        }
        let identity = std::array::from_fn(|word| self.identity[word].load(Relaxed));
        let live = std::array::from_fn(|word| self.live[word].load(Relaxed));
        fence(Acquire);
        (self.sequence.load(Relaxed) == sequence).then_some(Copied { sequence, identity, live })
    }
}
