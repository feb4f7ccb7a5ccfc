//! NodePorts of Kubernetes within the ports of outgoing connections: their translation may use the VIP's address, too.

use std::ops::RangeInclusive;

use super::kernel::{Setting, spelled};
use super::limits::{local_ports, ranges};
use crate::model::finding::Finding;

/// The default range of kube-apiserver (`--service-node-port-range`).
const NODE_PORTS: RangeInclusive<u16> = 30000..=32767;

/// The widest range without them.
pub(super) const BEYOND: RangeInclusive<u16> = *NODE_PORTS.end() + 1..=u16::MAX;

const RESERVED: &str = "net/ipv4/ip_local_reserved_ports";

const WHY: &str = "a connection to a backend and a connection to a NodePort of the VIP could use the same port: Baton \
                   then asks conntrack to which connection a packet belongs, and cuts off connections that a program \
                   translates without conntrack";

/// Whether one of Baton's connections may get such a port. `suffices`: [`BEYOND`] has enough ports for all.
pub(super) fn look(suffices: bool) -> Option<Finding> {
    let (topic, range) = ("NodePorts", local_ports()?);
    let shown = format!("ip_local_port_range is {}-{}", range.start(), range.end());
    let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
    if !overlaps(&range) {
        return Some(Finding::good(topic, format!("{shown}, beside {first}-{last}")));
    }
    if is_reserved() {
        return Some(Finding::good(topic, format!("{shown}, of which {first}-{last} are reserved")));
    }
    let fix = match suffices {
        true => format!("sysctl -w net.ipv4.ip_local_port_range=\"{} {}\"", BEYOND.start(), BEYOND.end()),
        false => format!("sysctl -w {}={}", spelled(RESERVED), reserved_besides()),
    };
    Some(Finding::advice(topic, format!("{shown}, and NodePorts are {first}-{last}"), WHY, fix))
}

/// The setting for sysctl.d if `range` is that of outgoing connections.
pub(super) fn setting(range: &RangeInclusive<u16>) -> Option<Setting> {
    let needed = overlaps(range);
    needed.then(|| Setting { path: RESERVED.to_owned(), value: reserved_besides(), why: WHY })
}

fn overlaps(range: &RangeInclusive<u16>) -> bool {
    range.start() <= NODE_PORTS.end() && range.end() >= NODE_PORTS.start()
}

fn reserved() -> String {
    let text = std::fs::read_to_string(format!("/proc/sys/{RESERVED}")).unwrap_or_default();
    text.trim().to_owned()
}

fn is_reserved() -> bool {
    let reserved = ranges(&reserved());
    reserved.iter().any(|range| range.contains(NODE_PORTS.start()) && range.contains(NODE_PORTS.end()))
}

/// The reserved ports, with the NodePorts.
fn reserved_besides() -> String {
    let (before, own) = (reserved(), format!("{}-{}", NODE_PORTS.start(), NODE_PORTS.end()));
    match is_reserved() || before.is_empty() {
        true if before.is_empty() => own,
        true => before,
        false => format!("{before},{own}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_shares_one_port_overlaps() {
        assert!(!overlaps(&(32768..=60999)) && !overlaps(&(1024..=29999)) && !overlaps(&BEYOND));
        assert!([10240..=65535, 32767..=65535, 20000..=30000, 31000..=31001].iter().all(overlaps));
    }
}
