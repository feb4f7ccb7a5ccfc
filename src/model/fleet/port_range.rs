//! Source ports of backend legs: each instance has its own part of them, because all legs use one source address.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::SLOTS;

/// Ports from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// Part `slot` of `range`, below [`SLOTS`]; `None`: the range has fewer ports than there are parts.
pub(crate) fn port_range(range: RangeInclusive<u16>, slot: u8) -> Option<PortRange> {
    let size = (u32::from(*range.end()) + 1).saturating_sub(u32::from(*range.start())) / u32::from(SLOTS);
    let first = u32::from(*range.start()) + size * u32::from(slot);
    let last = (first + size).checked_sub(1)?;
    (size > 0 && slot < SLOTS).then_some(PortRange { first: first as u16, last: last as u16 })
}

impl PortRange {
    pub(crate) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_equal_and_none_shares_a_port() {
        let all: Vec<_> = (0..SLOTS).map(|slot| port_range(32768..=60999, slot).unwrap()).collect();
        assert_eq!((all[0].first, all[7].last), (32768, 60999));
        assert!(all.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
        assert!(all.iter().all(|port_range| port_range.last - port_range.first == 3528));
        assert_eq!(port_range(1..=65535, 7).map(|port_range| port_range.last), Some(65528));
        assert_eq!(port_range(5..=9, 0), None);
        assert_eq!(port_range(1..=65535, SLOTS), None);
    }
}
