//! Packets of flows that this host does not have: dropped for a moment, answered with RST, or sent to the instance with
//! the flow.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::pins::{Meta, Pins};
use crate::addr::VipAddr;
use crate::model::fleet::{PortRange, Then, Unknown};
use crate::model::ids::FlowId;
use crate::model::splice::{FlowDirection, Rewrite};
use crate::offload::entry::{Action, Egress, Entry, Key, RawEntry, Seen, Share, Windows};
use crate::sys::bpf::{Map, Update};
use crate::sys::clock::now_ns;

/// The instance that has a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The next hop.
    pub ip: IpAddr,
    /// Packets from there are not sent back; `None`: the address is not known, and the time to live ends a loop.
    pub mac: Option<[u8; 6]>,
    /// Index of the interface towards it.
    pub interface: u32,
}

/// Packets of one service that the program reports between two calls of [`refill`]; it reports half of them only if
/// they are repeated (ASKS_SPARE of bpf/unknown.h).
const ASKS: i32 = 200;

/// Bytes of `struct service` of `bpf/entry.h`.
const SERVICE_SIZE: usize = 32;

/// `struct service` of `bpf/entry.h`, at its `struct place`.
pub(super) fn set(pins: &Pins, vip: VipAddr, unknown: Option<Unknown>) -> io::Result<()> {
    let _lock = pins.lock()?;
    let services = pins.map("services")?;
    let place = place(vip);
    let was = services.look_up(&place, &mut [0; SERVICE_SIZE])?;
    match unknown {
        Some(unknown) => services.update(&place, &service(&unknown), Update::Any)?,
        None => drop(services.delete(&place)?),
    }
    let map = pins.map("meta")?;
    let meta = Meta::read(&map)?.ok_or(io::ErrorKind::InvalidData)?;
    let services = meta.services + u32::from(unknown.is_some()) - u32::from(was);
    Meta { services, ..meta }.write(&map)
}

/// Lets the program report further packets to `vip`, which has a rule.
pub(super) fn refill(services: &Map, vip: VipAddr, unknown: &Unknown) -> io::Result<()> {
    services.update(&place(vip), &service(unknown), Update::Any)
}

/// `struct place`: a key's address, its own port, and its family.
fn place(vip: VipAddr) -> [u8; 20] {
    let key = Key { from: vip.socket_addr(), to: vip.socket_addr() }.encode();
    let mut place = [0; 20];
    place[..16].copy_from_slice(&key[..16]);
    place[16..18].copy_from_slice(&vip.port().to_be_bytes());
    place[18] = key[36];
    place
}

fn service(unknown: &Unknown) -> [u8; SERVICE_SIZE] {
    let mut service = [0; SERVICE_SIZE];
    let (then, all_told): (u32, bool) = match unknown.then {
        Then::Pass => (0, false),
        Then::Reset => (1, false),
        Then::Ask { all_told } => (2, all_told),
    };
    service[..8].copy_from_slice(&unknown.guard_until_ns.to_ne_bytes());
    service[8..16].copy_from_slice(&now_ns().to_ne_bytes());
    service[16..20].copy_from_slice(&then.to_ne_bytes());
    service[20..24].copy_from_slice(&ASKS.to_ne_bytes());
    service[24..28].copy_from_slice(&u32::from(all_told).to_ne_bytes());
    service
}

/// `struct port_range` of `bpf/entry.h`. `owners`: the addresses of the instance, of one or both families; an Ethernet
/// address that is known of one counts for both.
pub(super) fn port_range(ports: PortRange, owners: &[Owner]) -> [u8; PORT_RANGE_SIZE] {
    let mut raw = [0; PORT_RANGE_SIZE];
    raw[..2].copy_from_slice(&ports.first.to_ne_bytes());
    raw[2..4].copy_from_slice(&ports.last.to_ne_bytes());
    raw[4..10].copy_from_slice(&owners.iter().find_map(|owner| owner.mac).unwrap_or_default());
    for owner in owners {
        let (at, ip): (usize, Ipv6Addr) = match owner.ip {
            IpAddr::V4(ip) => (12, ip.to_ipv6_mapped()),
            IpAddr::V6(ip) => (32, ip),
        };
        raw[at..at + 16].copy_from_slice(&ip.octets());
        raw[at + 16..at + 20].copy_from_slice(&owner.interface.to_ne_bytes());
    }
    raw
}

/// Bytes of an element of the map of port ranges.
pub(super) const PORT_RANGE_SIZE: usize = 52;

/// `struct foreign` of `bpf/entry.h`.
pub(super) fn foreign(until_ns: u64) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&until_ns.to_ne_bytes());
    raw
}

/// An entry that forwards. `except_syn`: it forwards all but SYNs.
pub(super) fn forwarding(owner: &Owner, except_syn: bool) -> RawEntry {
    let mut raw = diverting(Action::Forward, owner.ip, owner.interface).encode();
    if except_syn {
        let flags = u16::from_ne_bytes([raw[FLAGS], raw[FLAGS + 1]]) | FLAG_EXCEPT_SYN;
        raw[FLAGS..][..2].copy_from_slice(&flags.to_ne_bytes());
    }
    raw[OWNER_MAC..][..6].copy_from_slice(&owner.mac.unwrap_or_default());
    raw
}

/// An entry that answers with RST. `before`: the entry at its key; RSTs go on to that entry's destination.
pub(super) fn refusing(key: &Key, before: Option<&RawEntry>) -> RawEntry {
    let hop = before.map(|raw| (Entry::decode(raw), raw)).and_then(|(entry, raw)| match (entry.action, entry.egress) {
        (Action::Forward | Action::Reset, Egress::Interface(interface)) => Some((entry.onward.to.ip(), interface, raw)),
        _ => None,
    });
    let Some((to, interface, before)) = hop else { return diverting(Action::Reset, key.from.ip(), 0).encode() };
    let mut raw = diverting(Action::Reset, to, interface).encode();
    raw[OWNER_MAC..][..6].copy_from_slice(&before[OWNER_MAC..][..6]);
    raw
}

/// An entry that belongs to no flow of this instance.
fn diverting(action: Action, to: IpAddr, interface: u32) -> Entry {
    let hop = SocketAddr::new(to, 0);
    Entry {
        action,
        direction: FlowDirection::ToBackend,
        onward: Key { from: hop, to: hop },
        rewrite: Rewrite::default(),
        egress: Egress::Interface(interface),
        by_lo: false,
        stays_here: false,
        committed: true,
        held: true,
        backend_slot: 0,
        windows: Windows::default(),
        id: FlowId(0),
        share: Share::Up { accepted_at_ns: 0, connect_us: 0 },
        start_position: 0,
        bytes_before: 0,
        seen: Seen::default(),
    }
}

/// Offsets in `struct entry` of `owner_mac` and `flags`.
const OWNER_MAC: usize = 36;
const FLAGS: usize = 54;

/// As in `bpf/entry.h`.
const FLAG_EXCEPT_SYN: u16 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_does_not_cross_between_hosts_of_which_one_address_has_not_been_talked_with() {
        let mac = Some([2, 0, 0, 0, 0, 21]);
        let owner = |ip: &str, mac| Owner { ip: ip.parse().unwrap(), mac, interface: 7 };
        let (v4, v6) = (|mac| owner("10.77.0.21", mac), |mac| owner("fd77::21", mac));
        let ports = PortRange { first: 6443, last: 6443 };
        for owners in [[v4(mac), v6(None)], [v4(None), v6(mac)], [v6(mac), v4(None)], [v6(None), v4(mac)]] {
            let raw = port_range(ports, &owners);
            assert_eq!(Some(raw[4..10].try_into().unwrap()), mac, "{owners:?}");
            assert_eq!((raw[28], raw[48]), (7, 7));
        }
        assert_eq!(port_range(ports, &[v4(None), v6(None)])[4..10], [0; 6]);
    }
}
