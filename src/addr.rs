//! Addresses as types: a signature says which end of a flow an address belongs to, so that nobody can swap the client's
//! and the backend's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize};

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(SocketAddr);

        impl $name {
            /// Wraps `address`. An IPv4-mapped IPv6 address becomes plain IPv4 (RFC 4291 section 2.5.5.2),
            /// so that one host has one spelling.
            pub fn new(address: SocketAddr) -> Self {
                Self(SocketAddr::new(address.ip().to_canonical(), address.port()))
            }

            pub fn socket_addr(self) -> SocketAddr {
                self.0
            }

            pub fn ip(self) -> IpAddr {
                self.0.ip()
            }

            #[allow(dead_code, reason = "not each kind of address is asked for it")]
            pub fn port(self) -> u16 {
                self.0.port()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                SocketAddr::deserialize(deserializer).map(Self::new)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

address! {
    /// The address that a client connects from.
    ClientAddr
}
address! {
    /// The address where a frontend listens and clients connect; often a virtual IP.
    VipAddr
}
address! {
    /// The address where a backend serves.
    BackendAddr
}
address! {
    /// The source address of a flow's backend leg: this host, towards the backend.
    LocalAddr
}

impl BackendAddr {
    /// An address that Baton can connect to, or probe.
    pub(crate) fn reachable(address: SocketAddr) -> Option<Self> {
        let plain = is_plain(&address) && address.port() != 0;
        let address = Self::new(address);
        (plain && !address.ip().is_unspecified()).then_some(address)
    }
}

/// Neither multicast nor IPv6 link-local: the latter needs an interface, which the types of this module do not hold.
pub(crate) fn is_plain(address: &SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => !ip.is_multicast(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unicast_link_local(),
    }
}

impl VipAddr {
    /// Whether one of the two is the other's port on every address of its family.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let same_family = self.0.is_ipv4() == other.0.is_ipv4();
        same_family && self.port() == other.port() && (self.ip().is_unspecified() || other.ip().is_unspecified())
    }
}

/// A source network: the unit that per-source limits count. Width in bits, per family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SourceMask {
    pub ipv4_bits: u8,
    pub ipv6_bits: u8,
}

impl Default for SourceMask {
    fn default() -> Self {
        Self { ipv4_bits: 32, ipv6_bits: 64 }
    }
}

impl SourceMask {
    /// The network that `client` counts for.
    pub(crate) fn network(self, client: ClientAddr) -> SourceNetwork {
        match client.ip() {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.ipv4_bits.min(32))).unwrap_or(0);
                SourceNetwork(IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask)))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_bits.min(128))).unwrap_or(0);
                SourceNetwork(IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask)))
            }
        }
    }
}

/// The base address of a client's network, as masked by [`SourceMask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceNetwork(IpAddr);

impl SourceNetwork {
    /// Its lowest address.
    pub(crate) fn base(self) -> IpAddr {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> ClientAddr {
        ClientAddr::new(text.parse().unwrap())
    }

    #[test]
    fn a_mapped_ipv4_client_is_an_ipv4_client() {
        assert_eq!(client("[::ffff:10.0.0.7]:99"), client("10.0.0.7:99"));
    }

    #[test]
    fn source_networks_fold_an_ipv6_prefix_but_not_two_ipv4_hosts() {
        let mask = SourceMask::default();
        assert_eq!(mask.network(client("[2001:db8::1]:1")), mask.network(client("[2001:db8::2]:2")));
        assert_ne!(mask.network(client("10.0.0.1:1")), mask.network(client("10.0.0.2:1")));
        let all = SourceMask { ipv4_bits: 0, ipv6_bits: 0 };
        assert_eq!(all.network(client("10.0.0.1:1")), all.network(client("192.0.2.9:1")));
    }
}
