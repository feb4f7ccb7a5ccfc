//! Flows that count here although another process serves them: while two processes hand flows over, each knows of the
//! other's, so that limits hold for both together.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many there are. 0 but for the moment of an upgrade.
#[derive(Debug, Default)]
pub struct OtherProcess(AtomicU32);

impl OtherProcess {
    pub fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Another process has so many and will give them to this one.
    pub fn expect(&self, flows: u32) {
        self.0.fetch_add(flows, Relaxed);
    }

    /// One went to another process.
    pub fn leave(&self) {
        self.expect(1);
    }

    /// One came. It need not have been expected.
    pub fn arrive(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |flows| flows.checked_sub(1));
    }

    /// The upgrade is over, or came to nothing.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_unexpected_leaves_nothing_owed() {
        let elsewhere = OtherProcess::default();
        elsewhere.expect(2);
        (0..3).for_each(|_| elsewhere.arrive());
        elsewhere.leave();
        assert_eq!(elsewhere.count(), 1);
        elsewhere.forget();
        assert_eq!(elsewhere.count(), 0);
    }
}
