//! The peers, backends and clients that this host hears: a host that has lost its own network must not take any silence
//! for an end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// What the listening parts have heard, in cache lines of its own. Times are monotonic nanoseconds; 0: never.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Reachability {
    client_ns: AtomicU64,
    deaf_ns: AtomicU64,
    wanted: AtomicBool,
}

impl Reachability {
    /// A client's packet came at `at_ns`.
    pub(crate) fn hear_client(&self, at_ns: u64) {
        self.client_ns.fetch_max(at_ns, Relaxed);
    }

    /// When a client of an offloaded flow was last heard, as far as any part has looked.
    pub(crate) fn client_ns(&self) -> u64 {
        self.client_ns.load(Relaxed)
    }

    /// The health checker, or the VIP's holder, asks whether this host hears clients.
    pub(crate) fn want_clients(&self) {
        self.wanted.store(true, Relaxed);
    }

    /// Whether that was wanted since the last call.
    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.load(Relaxed) && self.wanted.swap(false, Relaxed)
    }

    /// No peer, backend or client is heard at `now_ns`.
    pub(crate) fn is_deaf(&self, now_ns: u64) {
        self.deaf_ns.fetch_max(now_ns, Relaxed);
    }

    /// When a silence that began at `since_ns` starts to count: not while nobody was heard.
    pub(crate) fn counts_from(&self, since_ns: u64) -> u64 {
        since_ns.max(self.deaf_ns.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_when_this_host_last_heard_nobody() {
        let reachability = Reachability::default();
        assert_eq!(reachability.counts_from(7), 7);
        reachability.is_deaf(20);
        reachability.is_deaf(10);
        assert_eq!((reachability.counts_from(7), reachability.counts_from(30)), (20, 30));
    }

    #[test]
    fn a_wish_is_taken_once() {
        let reachability = Reachability::default();
        assert!(!reachability.take_wanted());
        reachability.want_clients();
        assert!(reachability.take_wanted() && !reachability.take_wanted());
    }
}
