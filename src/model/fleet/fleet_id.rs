//! Identifies one flow among all that the instances of a fleet have or had.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::model::ends::Ends;
use crate::model::ids::FlowId;

/// A flow in the whole fleet. An instance that has lost its BPF map and its clock may give out an id again that another
/// instance still has: equal ids with other ends are two flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FleetId {
    pub flow: FlowId,
    /// A hash of the ends.
    pub ends: u64,
}

impl FleetId {
    pub(crate) fn of(flow: FlowId, ends: &Ends) -> Self {
        let all =
            [ends.client.socket_addr(), ends.vip.socket_addr(), ends.local.socket_addr(), ends.backend.socket_addr()];
        // FNV-1a: the same in every release, because two releases may run beside each other.
        let hash = all.iter().fold(0xcbf2_9ce4_8422_2325, |hash, end| fold_address(hash, *end));
        Self { flow, ends: hash }
    }
}

fn fold_address(hash: u64, address: SocketAddr) -> u64 {
    let hash = match address.ip() {
        IpAddr::V4(ip) => fold(hash, &ip.octets()),
        IpAddr::V6(ip) => fold(hash, &ip.octets()),
    };
    fold(hash, &address.port().to_be_bytes())
}

fn fold(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl fmt::Display for FleetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.flow.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::testing::record;

    #[test]
    fn equal_ids_with_other_ends_are_two_flows_in_every_release() {
        let (one, other) = (record(1), record(2));
        let ids = [FleetId::of(one.id, &one.ends), FleetId::of(one.id, &other.ends), FleetId::of(other.id, &one.ends)];
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert_eq!(ids[0].ends, 4_098_850_751_086_326_749);
    }
}
