//! Other hosts' claims to this host's addresses: each is reported once when it is certain, and once when it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::addr::Mac;

/// A claim that is repeated so long after the first is no left-over of a VIP that was moving.
const CERTAIN_AFTER_NS: u64 = 400_000_000;
/// Baton asks each second: a claim is over after three questions without an answer.
const OVER_AFTER_NS: u64 = 3_500_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimChange {
    Shared { address: IpAddr, mac: Mac },
    Alone { address: IpAddr },
}

/// Addresses of this host that others have claimed lately.
#[derive(Debug, Default)]
pub(super) struct Claims {
    heard: BTreeMap<IpAddr, ClaimHeard>,
}

#[derive(Debug)]
struct ClaimHeard {
    first_ns: u64,
    last_ns: u64,
    told: bool,
}

impl Claims {
    /// Another host has claimed `address`, which is on this host.
    pub(super) fn heard(&mut self, address: IpAddr, mac: Mac, now_ns: u64) -> Option<ClaimChange> {
        let heard = self.heard.entry(address).or_insert(ClaimHeard { first_ns: now_ns, last_ns: now_ns, told: false });
        heard.last_ns = now_ns;
        let certain = now_ns - heard.first_ns >= CERTAIN_AFTER_NS && !heard.told;
        heard.told |= certain;
        certain.then_some(ClaimChange::Shared { address, mac })
    }

    /// `here`: this host's present addresses. Forgets addresses that have left, and those that no other host claims any
    /// more.
    pub(super) fn pass(&mut self, here: &BTreeSet<IpAddr>, now_ns: u64) -> Vec<ClaimChange> {
        let over = |address: &IpAddr, heard: &ClaimHeard| {
            !here.contains(address) || now_ns.saturating_sub(heard.last_ns) > OVER_AFTER_NS
        };
        let gone = self.heard.extract_if(.., |address, heard| over(address, heard));
        gone.filter(|(_, heard)| heard.told).map(|(address, _)| ClaimChange::Alone { address }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 100));
    const OTHER: Mac = [2, 0, 0, 0, 0, 1];
    const MS: u64 = 1_000_000;

    #[test]
    fn one_announcement_is_a_vip_that_moves_and_two_are_two_hosts() {
        let mut claims = Claims::default();
        let here = [VIP].into();
        assert_eq!(claims.heard(VIP, OTHER, 0), None);
        assert_eq!(claims.heard(VIP, OTHER, MS), None, "a burst is one announcement");
        assert_eq!(claims.heard(VIP, OTHER, 1000 * MS), Some(ClaimChange::Shared { address: VIP, mac: OTHER }));
        assert_eq!(claims.heard(VIP, OTHER, 2000 * MS), None, "it is told once");
        assert_eq!(claims.pass(&here, 5000 * MS), []);
        assert_eq!(claims.pass(&here, 6000 * MS), [ClaimChange::Alone { address: VIP }]);
        assert_eq!(claims.pass(&here, 7000 * MS), []);
    }

    #[test]
    fn a_vip_that_went_is_the_other_host_s() {
        let mut claims = Claims::default();
        claims.heard(VIP, OTHER, 0);
        assert_eq!(claims.pass(&BTreeSet::new(), 100 * MS), [], "nothing was told of it");
        claims.heard(VIP, OTHER, 200 * MS);
        claims.heard(VIP, OTHER, 700 * MS);
        assert_eq!(claims.pass(&BTreeSet::new(), 800 * MS), [ClaimChange::Alone { address: VIP }]);
    }
}
