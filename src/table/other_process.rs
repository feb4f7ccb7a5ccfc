//! Flows that count here although another process serves them. During an upgrade each of the two processes counts the
//! other's flows, so that limits apply to both together.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Their number. 0 except during an upgrade.
#[derive(Debug, Default)]
pub struct OtherProcess(AtomicU32);

impl OtherProcess {
    pub fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Another process has so many flows and will give them to this one.
    pub fn expect(&self, flows: u32) {
        self.0.fetch_add(flows, Relaxed);
    }

    /// A flow went to another process.
    pub(crate) fn leave(&self) {
        self.expect(1);
    }

    /// A flow came. It need not have been expected.
    pub(crate) fn arrive(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |flows| flows.checked_sub(1));
    }

    /// The upgrade has succeeded or failed.
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_unexpected_leaves_nothing_owed() {
        let other_process = OtherProcess::default();
        other_process.expect(2);
        (0..3).for_each(|_| other_process.arrive());
        other_process.leave();
        assert_eq!(other_process.count(), 1);
        other_process.forget();
        assert_eq!(other_process.count(), 0);
    }
}
