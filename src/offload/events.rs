//! What the program tells when it happens. Events that nobody takes are lost once 256 KiB of them wait; the entries say
//! the same to whoever scans.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use aya::maps::{Map, MapData, RingBuf};

use super::entry::{KEY_SIZE, Key};
use crate::model::fleet::UnknownPacket;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;

/// What the program tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Flow(ProgramEvent),
    /// A packet that nobody here knows; it was dropped.
    UnknownPacket(UnknownPacket),
    /// A segment of a flow, sent on, whose numbers its receiver would not take. The next one of its direction is told of once
    /// `Change::Hear` has been made.
    Doubt(UnknownPacket),
    /// A packet to a port of an instance's port range that passed, for somebody else uses that port.
    Foreign(Key),
}

impl Told {
    /// `None`: it is of no flow.
    #[allow(dead_code, reason = "for tests of the program")]
    pub fn flow(self) -> Option<ProgramEvent> {
        match self {
            Self::Flow(event) => Some(event),
            Self::UnknownPacket(_) | Self::Doubt(_) | Self::Foreign(_) => None,
        }
    }
}

/// Something happened to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramEvent {
    pub key: Key,
    pub id: FlowId,
    pub direction: FlowDirection,
    pub what: ProgramWhat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramWhat {
    /// The direction's first FIN passed.
    Fin,
    /// The direction's first RST that its receiver has to take passed.
    Rst,
    /// Its ends have begun another connection, whose packets pass to the kernel.
    Reused,
    /// A packet fitted no interface; both ends were reset.
    Oversized,
    /// The other direction's FIN was acknowledged.
    Finished,
}

/// Where events come from; readable when there is one.
pub struct ProgramEvents(RingBuf<MapData>);

impl ProgramEvents {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let map = MapData::from_pin(path).and_then(Map::from_map_data).map_err(io::Error::other)?;
        Ok(Self(RingBuf::try_from(map).map_err(io::Error::other)?))
    }
}

impl Iterator for ProgramEvents {
    type Item = Told;

    /// The next event that waits.
    fn next(&mut self) -> Option<Told> {
        loop {
            let item = self.0.next()?;
            if let Some(told) = decode(&item) {
                return Some(told);
            }
        }
    }
}

impl fmt::Debug for ProgramEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.0.as_fd()).finish()
    }
}

impl AsFd for ProgramEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `struct event` or `struct unknown_packet` of `bpf/entry.h`; `None`: of a kind that this version does not know.
fn decode(raw: &[u8]) -> Option<Told> {
    let (key, rest) = raw.split_first_chunk::<KEY_SIZE>()?;
    let (word, rest) = rest.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first_chunk()?;
    let (last, _) = rest.split_first_chunk::<4>()?;
    let key = Key::decode(key);
    let what = match u32::from_ne_bytes(*kind) {
        1 => ProgramWhat::Fin,
        2 => ProgramWhat::Rst,
        3 => ProgramWhat::Reused,
        4 => ProgramWhat::Oversized,
        7 => ProgramWhat::Finished,
        kind @ (UNKNOWN | DOUBT) => {
            let [seq, ack] = [[word[0], word[1], word[2], word[3]], [word[4], word[5], word[6], word[7]]];
            let length = u16::from_ne_bytes([last[0], last[1]]);
            let [seq, ack] = [seq, ack].map(u32::from_ne_bytes);
            let packet = UnknownPacket { key, seq, ack, length, flags: last[2] };
            return Some(if kind == UNKNOWN { Told::UnknownPacket(packet) } else { Told::Doubt(packet) });
        }
        FOREIGN => return Some(Told::Foreign(key)),
        _ => return None,
    };
    let direction = if u32::from_ne_bytes(*last) != 0 { FlowDirection::ToClient } else { FlowDirection::ToBackend };
    Some(Told::Flow(ProgramEvent { key, id: FlowId(u64::from_ne_bytes(*word)), direction, what }))
}

const UNKNOWN: u32 = 5;
const DOUBT: u32 = 6;
const FOREIGN: u32 = 8;
