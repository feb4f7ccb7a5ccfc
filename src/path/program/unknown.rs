//! Packets of flows that are not this host's: held off, answered, or sent to the instance that has them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::pins::{Meta, Pins};
use crate::addr::VipAddr;
use crate::model::ids::FlowId;
use crate::model::splice::{Direction, Rewrite};
use crate::path::entry::{Action, Egress, Entry, Key, RawEntry, Seen, Share};
use crate::sys::bpf::Update;

/// What becomes of packets that neither an entry nor a socket knows; SYN and RST always pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Until then they are dropped, so that TCP sends them again: the records of their flows are on their way. On the
    /// monotonic clock; 0: not at all.
    pub guard_until_ns: u64,
    /// After that they are answered with RST; otherwise they pass to the kernel.
    pub then_reset: bool,
}

/// The instance that has a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The next hop.
    pub ip: IpAddr,
    /// What comes from there is not sent back; `None`: its address is not known, and the time to live ends a loop.
    pub mac: Option<[u8; 6]>,
    /// Index of the interface towards it.
    pub interface: u32,
}

/// `struct service` of `bpf/entry.h`, at its `struct place`.
pub(super) fn set(pins: &Pins, vip: VipAddr, unknown: Option<Unknown>) -> io::Result<()> {
    let _lock = pins.lock()?;
    let services = pins.map("services")?;
    // A key's address, its own port, and its family.
    let key = Key { from: vip.socket_addr(), to: vip.socket_addr() }.encode();
    let mut place = [0; 20];
    place[..16].copy_from_slice(&key[..16]);
    place[16..18].copy_from_slice(&vip.port().to_be_bytes());
    place[18] = key[36];
    let was = services.look_up(&place, &mut [0; 16])?;
    match unknown {
        Some(unknown) => {
            let mut service = [0; 16];
            service[..8].copy_from_slice(&unknown.guard_until_ns.to_ne_bytes());
            service[8..12].copy_from_slice(&u32::from(unknown.then_reset).to_ne_bytes());
            services.update(&place, &service, Update::Any)?;
        }
        None => drop(services.delete(&place)?),
    }
    let map = pins.map("meta")?;
    let meta = Meta::read(&map)?.ok_or(io::ErrorKind::InvalidData)?;
    let services = meta.services + u32::from(unknown.is_some()) - u32::from(was);
    Meta { services, ..meta }.write(&map)
}

/// An entry that forwards.
pub(super) fn forwarding(owner: &Owner) -> RawEntry {
    let hop = SocketAddr::new(owner.ip, 0);
    let entry = Entry {
        action: Action::Forward,
        direction: Direction::Up,
        onward: Key { from: hop, to: hop },
        rewrite: Rewrite::default(),
        egress: Egress::Interface(owner.interface),
        committed: true,
        backend_slot: 0,
        id: FlowId(0),
        share: Share::Up { accepted_at_ns: 0, connect_us: 0 },
        start_position: 0,
        bytes_before: 0,
        seen: Seen::default(),
    };
    let mut raw = entry.encode();
    raw[OWNER_MAC..][..6].copy_from_slice(&owner.mac.unwrap_or_default());
    raw
}

/// Offset of `owner_mac` in `struct entry`.
const OWNER_MAC: usize = 36;
