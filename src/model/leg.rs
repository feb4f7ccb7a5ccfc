//! Baton's end of a flow's connection to its backend, in one word of the flow table.
//!
//! ```text
//!   bit 48        bits 16 to 47                    bits 0 to 15
//!   IPv6?   the address, or its last 32 bits           port
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// `None` of it is known where the port is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegKey(pub u64);

impl LegKey {
    pub fn of(address: SocketAddr) -> Self {
        let (low, family) = match address.ip().to_canonical() {
            IpAddr::V4(ip) => (ip.to_bits(), 0),
            IpAddr::V6(ip) => (ip.to_bits() as u32, IS_IPV6),
        };
        Self(family | u64::from(low) << 16 | u64::from(address.port()))
    }

    pub(crate) fn port(self) -> u16 {
        self.0 as u16
    }

    /// Whole, if it is an address of IPv4.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        let is_whole = self.port() != 0 && self.0 & IS_IPV6 == 0;
        is_whole.then(|| SocketAddr::new(Ipv4Addr::from_bits((self.0 >> 16) as u32).into(), self.port()))
    }
}

const IS_IPV6: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv4_comes_back_whole_and_one_of_ipv6_is_told_from_others() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let four = LegKey::of(at("10.0.0.100:51234"));
        assert_eq!((four.address(), four.port()), (Some(at("10.0.0.100:51234")), 51234));
        assert_eq!(LegKey::of(at("[::ffff:10.0.0.100]:51234")), four);
        let six = LegKey::of(at("[fd00::100]:51234"));
        assert_eq!((six.address(), six.port()), (None, 51234));
        assert_ne!(six, LegKey::of(at("[fd00::101]:51234")));
        assert_ne!(six, LegKey::of(at("0.0.1.0:51234")));
        assert_eq!(LegKey::default().address(), None);
    }
}
