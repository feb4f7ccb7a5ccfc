//! An outage as rebalancing sees it: from the last moment at which a backend is known to have served, until all are ready again with
//! their whole share, and a while after. Flows that began in that time are where they are because of the outage.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A backend that may take flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackendSeen {
    pub ready: bool,
    /// Whether any probe has ended: until then nobody knows whether it is ready.
    pub probed: bool,
    /// Monotonic ns until which it is known to have served, if it is not ready: its clients leave it before probes decide.
    pub served_until_ns: u64,
    /// False during slow start.
    pub has_whole_share: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outage {
    #[default]
    None,
    /// A backend is not ready, or not yet with its whole share.
    Lasts { since_ns: u64 },
    /// All are back; flows that began since `since_ns` may still move until `until_ns`.
    Over { since_ns: u64, until_ns: u64 },
}

/// A frontend's outage, as it passes to another process. Times are monotonic nanoseconds of the same host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOutage {
    pub frontend: String,
    pub outage: Outage,
    /// How many flows of each client have moved since it began.
    pub moved_of: HashMap<IpAddr, u32>,
}

impl Outage {
    /// Time to spread flows after the last backend has its whole share again.
    pub(crate) const SPREAD_NS: u64 = 60_000_000_000;

    /// The outage after a look at all backends of a frontend.
    #[must_use]
    pub(crate) fn observe(self, backends: &[BackendSeen], now_ns: u64) -> Self {
        let gone = |backend: &&BackendSeen| backend.probed && !backend.ready;
        let gone_since_ns = backends.iter().filter(gone).map(|backend| backend.served_until_ns).min();
        let since_ns = match (self.since_ns(), gone_since_ns) {
            (Some(known), Some(gone)) => known.min(gone),
            (Some(since_ns), None) | (None, Some(since_ns)) => since_ns,
            (None, None) => return Self::None,
        };
        if gone_since_ns.is_some() || backends.iter().any(|backend| backend.ready && !backend.has_whole_share) {
            return Self::Lasts { since_ns };
        }
        match self {
            Self::Over { until_ns, .. } if now_ns >= until_ns => Self::None,
            Self::Over { .. } => self,
            Self::None | Self::Lasts { .. } => Self::Over { since_ns, until_ns: now_ns + Self::SPREAD_NS },
        }
    }

    /// Monotonic ns from which flows began because of it.
    pub(crate) fn since_ns(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Lasts { since_ns } | Self::Over { since_ns, .. } => Some(since_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn ready() -> BackendSeen {
        BackendSeen { ready: true, probed: true, served_until_ns: 0, has_whole_share: true }
    }

    fn gone(served_until_ns: u64) -> BackendSeen {
        BackendSeen { ready: false, served_until_ns, ..ready() }
    }

    fn starting(served_until_ns: u64) -> BackendSeen {
        BackendSeen { served_until_ns, has_whole_share: false, ..ready() }
    }

    #[test]
    fn a_rolling_restart_is_one_outage_from_the_first_that_went_to_a_minute_after_the_last() {
        let mut outage = Outage::None.observe(&[ready(), ready()], S);
        assert_eq!(outage, Outage::None);
        outage = outage.observe(&[gone(10 * S), ready()], 11 * S);
        assert_eq!(outage, Outage::Lasts { since_ns: 10 * S });
        outage = outage.observe(&[starting(20 * S), gone(21 * S)], 22 * S);
        assert_eq!(outage, Outage::Lasts { since_ns: 10 * S });
        outage = outage.observe(&[ready(), starting(30 * S)], 40 * S);
        assert_eq!(outage.since_ns(), Some(10 * S));
        outage = outage.observe(&[ready(), ready()], 60 * S);
        assert_eq!(outage, Outage::Over { since_ns: 10 * S, until_ns: 120 * S });
        assert_eq!(outage.observe(&[ready(), ready()], 119 * S), outage);
        assert_eq!(outage.observe(&[ready(), ready()], 120 * S), Outage::None);
    }

    #[test]
    fn a_start_is_none_unless_a_probe_has_failed() {
        let unknown = BackendSeen { probed: false, ..gone(S) };
        assert_eq!(Outage::None.observe(&[unknown, ready()], 2 * S), Outage::None);
        assert_eq!(Outage::None.observe(&[gone(S), ready()], 2 * S), Outage::Lasts { since_ns: S });
    }

    #[test]
    fn slow_start_alone_is_none() {
        assert_eq!(Outage::None.observe(&[starting(S), ready()], 2 * S), Outage::None);
    }

    proptest! {
        /// It lasts while a backend is gone, its beginning never moves to a later time, and it ends.
        #[test]
        fn it_ends_a_minute_after_all_are_back(looks in proptest::collection::vec(proptest::collection::vec(0u8..3, 1..4), 0..30)) {
            let mut outage = Outage::None;
            let mut now_ns = 0;
            for look in looks {
                now_ns += S;
                let seen: Vec<_> = look.iter().map(|kind| [ready(), gone(now_ns), starting(now_ns)][usize::from(*kind)]).collect();
                let before = outage.since_ns();
                outage = outage.observe(&seen, now_ns);
                if look.contains(&1) {
                    prop_assert!(matches!(outage, Outage::Lasts { .. }), "{:?}", outage);
                }
                prop_assert!(before.is_none() || outage.since_ns().is_none() || outage.since_ns() <= before);
            }
            outage = outage.observe(&[ready()], now_ns + S);
            prop_assert_eq!(outage.observe(&[ready()], now_ns + S + Outage::SPREAD_NS), Outage::None);
        }
    }
}
