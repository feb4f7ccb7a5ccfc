//! Counters that cost no locked instruction.

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
