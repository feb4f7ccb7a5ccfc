//! One flow of the offload engine: the step of its offload, which `model::offload::steps` decides and draws, and the
//! last look at its entries.

use crate::model::ids::FlowId;
use crate::model::offload::in_flight::InFlight;
use crate::model::offload::steps::OffloadStep;
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Ends, Entry};
use crate::ports::offload::{Found, Progress, Record, Sockets, Ticket};

/// A flow whose entries are in the map.
#[derive(Debug)]
pub(super) struct OffloadedFlow {
    pub id: FlowId,
    /// `None`: the flow was found in the map, and no worker has claimed it yet.
    pub ticket: Option<Ticket>,
    pub ends: Ends,
    pub step: Step,
    pub up: CounterSnapshot,
    pub down: CounterSnapshot,
    pub waits: Waits,
    /// How long a silence ends the flow.
    pub patience_ns: u64,
    /// Bytes of both directions at the last report to other instances. `None`: they are not told of the offload, because the
    /// flow was offloaded here and its backend is on this host, with which it ends.
    pub told_bytes: Option<u64>,
    /// When another instance gave it, ns; 0 if none did: the flow may then be ahead of its record.
    pub inherited_ns: u64,
    /// When both its ends were last challenged, ns; 0 if they never were.
    pub questioned_ns: u64,
    /// When the engine next checks whether the flow has been quiet for long, ns.
    pub quiet_at_ns: u64,
    /// The state of the flow when it was offloaded here.
    pub entered: Option<Entered>,
    pub first_rst: Option<RstOrigin>,
}

/// Why an RST passed, or was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RstOrigin {
    /// An end sent it in this direction, with a number that proves nothing.
    End(FlowDirection),
    /// The program ended the flow, as a packet did not fit an interface.
    Oversized,
}

pub(super) type Step = OffloadStep<ClosingSockets>;

/// The state of a flow when its entries were made; of client and backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    pub at_ns: u64,
    /// The position behind the last byte that each had sent, in the numbers of its own leg.
    pub positions: [u32; 2],
    pub bytes: [u64; 2],
}

/// Sockets that are about to be closed.
#[derive(Debug)]
pub(super) struct ClosingSockets {
    pub sockets: Sockets,
    pub up: InFlight,
    pub down: InFlight,
}

/// The last look at one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterSnapshot {
    pub packets: u64,
    pub bytes: u64,
    pub last_ns: u64,
    pub last_data_ns: u64,
    pub asked_ns: u64,
    pub fin_ns: u64,
    pub rst_ns: u64,
    pub reused: bool,
    /// Numbers of the sender's last packet.
    pub sent: u32,
    pub acked: u32,
    /// `acked` in the numbers of the other leg.
    pub taken: u32,
}

/// What one end waits for and the other does not give.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// One side has sent a packet that demands an answer, and the other has sent nothing since.
    pub unanswered: Option<Unanswered>,
    /// Bytes to the backend, and bytes to the client, that do not arrive though their receiver may speak.
    pub untaken: [Option<Untaken>; 2],
}

/// A silence that the engine measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub by_client: bool,
    pub since_ns: u64,
    /// Time of the silent side's last packet.
    pub last_ns: u64,
    /// Number of packets that the other side had sent when the silence began.
    pub packets: u64,
    /// When the silent side is challenged next.
    pub ask_at_ns: u64,
}

/// Bytes that one side has sent and the other has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Untaken {
    /// The end of those that it has acknowledged, in the numbers of their sender.
    pub taken: u32,
    /// Since when it has acknowledged no further byte.
    pub since_ns: u64,
}

impl CounterSnapshot {
    pub(super) fn at(entry: &Entry) -> Self {
        let seen = &entry.seen;
        Self {
            packets: seen.packets,
            bytes: entry.bytes(),
            last_ns: seen.last_ns,
            last_data_ns: seen.last_data_ns,
            asked_ns: seen.asked_ns.max(seen.last_data_ns),
            fin_ns: seen.fin_ns,
            rst_ns: seen.rst_ns,
            reused: seen.reused,
            sent: seen.sent as u32,
            acked: seen.acked as u32,
            taken: entry.taken(),
        }
    }
}

impl CounterSnapshot {
    /// Whether its FIN has arrived; `other` is the other direction.
    pub(super) fn is_finished(&self, other: &Self) -> bool {
        self.fin_ns != 0 && other.taken.wrapping_sub(self.sent) < 1 << 31
    }
}

impl OffloadedFlow {
    /// Whether the entry's positions may be behind the flow's real ones: until one of its segments has matched them.
    pub(super) fn may_be_old(&self, direction: FlowDirection) -> bool {
        let look = if direction == FlowDirection::ToBackend { &self.up } else { &self.down };
        self.inherited_ns != 0 && look.last_ns <= self.inherited_ns
    }

    /// Records the state of one direction. Returns whether any packet has passed since the last time.
    pub(super) fn take_note(&mut self, entry: &Entry) -> bool {
        let look = match entry.direction {
            FlowDirection::ToBackend => &mut self.up,
            FlowDirection::ToClient => &mut self.down,
        };
        let now = CounterSnapshot::at(entry);
        // Before its first packet the entry knows less than the relay did.
        let last_data_ns = now.last_data_ns.max(look.last_data_ns);
        let changed =
            (now.packets, now.fin_ns, now.rst_ns, now.reused) != (look.packets, look.fin_ns, look.rst_ns, look.reused);
        *look = CounterSnapshot { last_data_ns, ..now };
        changed
    }

    pub(super) fn has_sockets(&self) -> bool {
        self.step.has_sockets()
    }

    /// Whether it ends with this host.
    pub(super) fn stays_here(&self) -> bool {
        self.told_bytes.is_none()
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        Some(Progress {
            ticket: self.ticket?,
            bytes_to_backend: self.up.bytes,
            bytes_to_client: self.down.bytes,
            last_to_backend_ns: self.last_byte_ns(&self.up),
            last_to_client_ns: self.last_byte_ns(&self.down),
        })
    }

    pub(super) fn found(&self, record: Record) -> Found {
        Found {
            id: self.id,
            record,
            connection: self.ends.client,
            vip: self.ends.vip,
            backend: self.ends.backend,
            local: self.ends.local,
            stays_here: self.stays_here(),
            bytes_to_backend: self.up.bytes,
            bytes_to_client: self.down.bytes,
            last_to_backend_ns: self.last_byte_ns(&self.up),
            last_to_client_ns: self.last_byte_ns(&self.down),
        }
    }

    /// When a byte of this direction was seen last, as people are told. What passed the instance that had the flow before is not known here: the
    /// time counts from when this one took it.
    fn last_byte_ns(&self, look: &CounterSnapshot) -> u64 {
        look.last_data_ns.max(self.inherited_ns)
    }
}
