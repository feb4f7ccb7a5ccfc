//! Counters: those on a byte's path use no locked instruction; the others continue in the next process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with one writer and any number of readers. Two writers would lose counts, so each worker has its own.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `by`. Only the owning thread may call this.
    pub fn add(&self, by: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(by), Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A counter with any number of writers, which an upgrade passes on.
#[derive(Debug, Default)]
pub struct Tally {
    own: AtomicU64,
    /// The count of the process before this one.
    before: AtomicU64,
}

impl Tally {
    pub fn add(&self, by: u64) {
        self.own.fetch_add(by, Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.own.load(Relaxed) + self.before.load(Relaxed)
    }

    /// Sets the earlier process's count, in place of an earlier value of it.
    pub(crate) fn carry(&self, before: u64) {
        self.before.fetch_max(before, Relaxed);
    }
}
