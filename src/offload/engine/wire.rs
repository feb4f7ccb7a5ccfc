//! Segments that the engine sends to the ends of flows, each with the address of the other end, and their removal from
//! conntrack.

use std::io;
use std::net::SocketAddr;

use super::offloaded::CounterSnapshot;
use super::untrack::Untrack;
use crate::model::ends::Ends;
use crate::model::segment::{Flags, Segment};
use crate::model::splice::FlowDirection;
use crate::sys::raw::RawSender;
use crate::table::Part;
use crate::table::offload::OffloadCensus;

/// Of packets to Baton's own sockets. TOLD_MARK of bpf/entry.h.
const TOLD_MARK: u32 = 22867;

#[derive(Debug)]
pub(super) struct EngineWire {
    raw: RawSender,
    told: RawSender,
    untrack: Untrack,
}

impl EngineWire {
    pub(super) fn open(census: Part<OffloadCensus>) -> io::Result<Self> {
        Ok(Self { raw: RawSender::open()?, told: RawSender::marked(TOLD_MARK)?, untrack: Untrack::start(census)? })
    }

    /// Sends a challenge that every live end answers with its numbers: a bare ACK below the number that it expects (RFC
    /// 9293 section 3.10.7.4). `look`: at the packets of `to`.
    fn ask(&self, from: SocketAddr, to: SocketAddr, look: &CounterSnapshot) {
        let (seq, ack) = (look.acked.wrapping_sub(1), look.sent);
        self.send(&Segment { from, to, seq, ack, flags: Flags::Ack, window: 0 });
    }

    /// As [`EngineWire::ask`], to the end whose packets have this direction.
    pub(super) fn ask_end(&self, ends: &Ends, sends: FlowDirection, look: &CounterSnapshot) {
        match sends {
            FlowDirection::ToBackend => self.ask(ends.vip.socket_addr(), ends.client.socket_addr(), look),
            FlowDirection::ToClient => self.ask(ends.local.socket_addr(), ends.backend.socket_addr(), look),
        }
    }

    /// Makes the end whose packets have this direction accept an RST; `look`: at its packets.
    pub(super) fn challenge_end(&self, ends: &Ends, sends: FlowDirection, look: &CounterSnapshot) {
        // The entry was gone before its first look, so no number is known. Or a new connection has its port.
        if *look == CounterSnapshot::default() || look.reused {
            return;
        }
        let (from, to) = match sends {
            FlowDirection::ToBackend => (ends.vip.socket_addr(), ends.client.socket_addr()),
            FlowDirection::ToClient => (ends.local.socket_addr(), ends.backend.socket_addr()),
        };
        let exact = Segment { from, to, seq: look.acked, ack: look.sent, flags: Flags::RstAck, window: 0 };
        self.send(&exact);
        self.send(&Segment { seq: look.acked.wrapping_sub(1), flags: Flags::Ack, ..exact });
    }

    fn send(&self, segment: &Segment) {
        if let Some(packet) = segment.packet() {
            // Where it cannot be sent no end would answer, and a host that cannot be reached needs no RST.
            let _ = self.raw.send(&packet, segment.to.ip());
        }
    }

    /// Sends the segment with so many bytes of zeros.
    pub(super) fn send_zeros(&self, segment: &Segment, zeros: u16) {
        if let Some(packet) = segment.packet_of_zeros(zeros) {
            let _ = self.raw.send(&packet, segment.to.ip());
        }
    }

    /// As [`EngineWire::send_zeros`], to a socket of Baton's own.
    pub(super) fn tell_socket(&self, segment: &Segment, zeros: u16) {
        if let Some(packet) = segment.packet_of_zeros(zeros) {
            let _ = self.told.send(&packet, segment.to.ip());
        }
    }

    /// Removes both legs from connection tracking, soon: even packets that this host has just sent create an entry
    /// (nf_conntrack_tcp_loose).
    pub(super) fn untrack(&self, ends: &Ends) {
        self.untrack.forget(ends);
    }
}
