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

    /// All ports of the host whose part `slot` this is: the inverse of [`port_range`], and the few ports that are left over there.
    pub(super) fn whole_of(self, slot: u8) -> Self {
        let size = u32::from(self.last.saturating_sub(self.first)) + 1;
        let first = u32::from(self.first).saturating_sub(size * u32::from(slot));
        let last = first + (size + 1) * u32::from(SLOTS) - 2;
        Self { first: first as u16, last: last.min(u32::from(u16::MAX)) as u16 }
    }

    /// The smallest range with `port` and all ports of `before`.
    pub(super) fn widened(before: Option<Self>, port: u16) -> Self {
        let before = before.unwrap_or(Self { first: port, last: port });
        Self { first: before.first.min(port), last: before.last.max(port) }
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

    #[test]
    fn a_part_and_its_slot_tell_all_ports_of_the_host() {
        for (first, last) in [(32768, 60999), (1024, 65535), (1, 65535), (20000, 20008), (61000, 61017)] {
            for slot in 0..SLOTS {
                let whole = port_range(first..=last, slot).unwrap().whole_of(slot);
                let spare = u32::from(whole.last) - u32::from(last);
                assert!(whole.first == first && spare < u32::from(SLOTS), "{first}-{last} {slot}: {whole}");
            }
        }
        // What no release says.
        for ports in [(9, 1), (0, u16::MAX), (u16::MAX, 0)].map(|(first, last)| PortRange { first, last }) {
            assert!((0..=u8::MAX).all(|slot| ports.whole_of(slot).first <= ports.first), "{ports}");
        }
    }
}
