//! Events that the program reports as they happen. Events are lost while 256 KiB of unread ones wait; a scan of the
//! entries finds the same facts.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use aya::maps::{Map, MapData, RingBuf};

use super::entry::{KEY_SIZE, Key};
use crate::model::fleet::UnknownPacket;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;

/// One report of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Flow(ProgramEvent),
    /// A packet that no entry and no socket of this host matches; the program dropped it.
    UnknownPacket(UnknownPacket),
    /// A segment of a flow whose numbers its receiver would not accept; it was sent on. The program reports no other
    /// segment of that direction before `EntryChange::Hear`.
    Doubt(UnknownPacket),
    /// A packet to a port of an instance's port range that passed to the kernel, because another program uses that
    /// port.
    Foreign(Key),
}

impl Told {
    /// `None`: it concerns no flow.
    #[allow(dead_code, reason = "for tests of the program")]
    pub fn flow(self) -> Option<ProgramEvent> {
        match self {
            Self::Flow(event) => Some(event),
            Self::UnknownPacket(_) | Self::Doubt(_) | Self::Foreign(_) => None,
        }
    }
}

/// An event of one flow.
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
    /// The direction's first RST that its receiver must accept passed.
    Rst,
    /// Its ends have begun another connection, whose packets pass to the kernel.
    Reused,
    /// A packet fitted no interface; both ends were reset.
    Oversized,
    /// The other direction's FIN was acknowledged.
    Finished,
}

/// The source of events; its descriptor is readable while one waits.
pub struct ProgramEvents(RingBuf<MapData>);

impl ProgramEvents {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let map = MapData::from_pin(path).and_then(Map::from_map_data).map_err(io::Error::other)?;
        Ok(Self(RingBuf::try_from(map).map_err(io::Error::other)?))
    }
}

impl Iterator for ProgramEvents {
    type Item = Told;

    /// The next waiting event.
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

/// `struct event` or `struct unknown_packet` of `bpf/entry.h`; `None`: a kind that this version does not know.
pub(crate) fn decode(raw: &[u8]) -> Option<Told> {
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
