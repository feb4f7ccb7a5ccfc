//! From entries to a flow without sockets: passes on late bytes, waits until they are acknowledged, and closes the
//! sockets without a segment.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::Outside;
use super::barrier::RcuBarrier;
use super::flows::Flows;
use super::offloaded::{ClosingSockets, OffloadedFlow, Step};
use super::reset::{give_up, look};
use super::tell::tell_offloaded;
use super::watch::has_moved;
use super::wire::EngineWire;
use crate::model::ids::FlowId;
use crate::model::offload::in_flight::{InFlight, SeenByEntries, SlippedIn};
use crate::model::offload::steps::{PassedOn, SettleAction};
use crate::model::segment::{Flags, Segment};
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Entry, Key};
use crate::offload::probe::EntryChange;
use crate::offload::program::Program;
use crate::ports::offload::{Answer, Offload};
use crate::sys::clock::now_ns;
use crate::sys::{silence, socket};
use crate::table::Part;

/// How often the engine looks for acknowledgements.
pub(super) const RETRY: Duration = Duration::from_millis(5);

/// The same for bytes that left in several segments. Without an acknowledgement within two round trips and two ticks
/// the kernel sends the last segment again (RFC 8985 section 7; net/ipv4/tcp_output.c, tcp_schedule_loss_probe). After
/// a single segment it waits 200 ms more.
const URGENT: Duration = Duration::from_millis(1);

/// Bytes of one read from a socket.
const CHUNK: usize = 4096;

/// Limit for packets of one turn that stand for bytes which took another path.
const ZEROS_AT_ONCE: usize = 1024;

/// A socket failed while its flow was between two steps.
#[derive(Debug)]
struct BrokenLeg {
    by_client: bool,
    error: io::Error,
}

/// Flows that still have sockets, by the event that they wait for.
#[derive(Debug)]
pub(super) struct Settling {
    barrier: RcuBarrier,
    /// Flows that were entered since the last RCU barrier began, and those that the present one is for.
    await_barrier: Vec<FlowId>,
    in_barrier: Vec<FlowId>,
    /// Flows whose RCU barrier is over, and whose bytes are not all acknowledged.
    unsettled: Vec<FlowId>,
    /// Flows whose sockets would soon send a segment again.
    urgent: HashSet<FlowId>,
}

impl Settling {
    pub(super) fn start(offload: Part<Offload>) -> io::Result<Self> {
        Ok(Self {
            barrier: RcuBarrier::start(offload)?,
            await_barrier: Vec::new(),
            in_barrier: Vec::new(),
            unsettled: Vec::new(),
            urgent: HashSet::new(),
        })
    }

    /// Carries out the action that the flow's step asks for.
    pub(super) fn carry_out(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        id: FlowId,
        asked: Vec<SettleAction<ClosingSockets>>,
    ) {
        for action in asked {
            match action {
                SettleAction::Pass => {
                    if let Err(broken) = drain(&outside.program, flows, id) {
                        let timed_out = broken.error.kind() == io::ErrorKind::TimedOut;
                        return self.go_on(outside, flows, id, |step| step.handle_broken(broken.by_client, timed_out));
                    }
                }
                SettleAction::AwaitBarrier => {
                    self.await_barrier.push(id);
                    self.watch_if_urgent(flows, id);
                }
                SettleAction::Look => self.close_if_acknowledged(outside, flows, id),
                SettleAction::TellSockets => tell_sockets(outside, flows, id),
                SettleAction::LookAgain => self.unsettled.push(id),
                SettleAction::Close(closing) => close(outside, closing),
                SettleAction::Mark => {
                    let marked = mark(outside, flows, id);
                    self.go_on(outside, flows, id, |step| step.handle_marked(marked));
                }
                SettleAction::TellOffloaded => tell_of_offload(outside, flows, id),
                SettleAction::End(reason) => give_up(outside, flows, id, reason),
            }
        }
    }

    /// Reports progress to the flow's step, and carries out the action that it asks for.
    fn go_on(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        id: FlowId,
        handle: impl FnOnce(&mut Step) -> Vec<SettleAction<ClosingSockets>>,
    ) {
        if let Some(flow) = flows.get_mut(&id) {
            let asked = handle(&mut flow.step);
            self.carry_out(outside, flows, id, asked);
        }
    }

    /// Starts an RCU barrier for the added flows, unless one is running.
    pub(super) fn begin(&mut self) {
        if self.in_barrier.is_empty() && !self.await_barrier.is_empty() {
            self.begin_barrier();
        }
    }

    fn begin_barrier(&mut self) {
        std::mem::swap(&mut self.await_barrier, &mut self.in_barrier);
        self.barrier.begin();
    }

    /// When the next turn must come.
    pub(super) fn wants_turn_in(&self) -> Option<Duration> {
        match (self.urgent.is_empty(), self.unsettled.is_empty()) {
            (false, _) => Some(URGENT),
            (true, false) => Some(RETRY),
            (true, true) => None,
        }
    }

    /// Continues flows whose RCU barrier is over, and those that wait for an acknowledgement.
    pub(super) fn settle(&mut self, outside: &mut Outside, flows: &mut Flows) {
        for id in std::mem::take(&mut self.urgent) {
            self.tell_urgently(outside, flows, id);
        }
        if self.barrier.is_over() {
            for id in std::mem::take(&mut self.in_barrier) {
                self.barrier_over(outside, flows, id);
            }
            if !self.await_barrier.is_empty() {
                self.begin_barrier();
            }
        }
        for id in std::mem::take(&mut self.unsettled) {
            self.close_if_acknowledged(outside, flows, id);
        }
    }

    fn barrier_over(&mut self, outside: &mut Outside, flows: &mut Flows, id: FlowId) {
        self.go_on(outside, flows, id, Step::handle_barrier_over);
        // More bytes may have come into the sockets.
        self.watch_if_urgent(flows, id);
    }

    fn close_if_acknowledged(&mut self, outside: &mut Outside, flows: &mut Flows, id: FlowId) {
        let Some(flow) = flows.get(&id) else { return };
        let Some(closing) = flow.step.closing() else { return };
        let (now_ns, patience_ns) = (now_ns(), flow.patience_ns);
        let passed_on = passed_on(&outside.program, flow, closing);
        self.go_on(outside, flows, id, |step| step.handle_look(passed_on, now_ns, patience_ns));
    }

    /// Puts the flow on the list for fast acknowledgements, if its sockets are about to send a segment again.
    fn watch_if_urgent(&mut self, flows: &Flows, id: FlowId) {
        if let Some(closing) = flows.get(&id).and_then(|flow| flow.step.closing())
            && (closing.up.is_urgent() || closing.down.is_urgent())
        {
            self.urgent.insert(id);
        }
    }

    /// Tells the sockets of acknowledgements before the kernel takes their absence for a loss. This also happens during
    /// the flow's RCU barrier, which lasts longer than the kernel waits.
    fn tell_urgently(&mut self, outside: &Outside, flows: &mut Flows, id: FlowId) {
        let Some(flow) = flows.get_mut(&id) else { return };
        let keys = flow.ends.keys();
        let Some(ClosingSockets { sockets, up, down }) = flow.step.closing_mut() else { return };
        // Entries that cannot be read now are read at the next turn.
        if let Ok([Some(of_client), Some(of_backend)]) = outside.program.entries(keys) {
            let expected = [up.expected(sockets.held_up.len()), down.expected(sockets.held_down.len())];
            for (socket, key, outgoing, acked, expected) in [
                (&sockets.client, keys[0], down, of_client.seen.acked as u32, expected[0]),
                (&sockets.backend, keys[1], up, of_backend.seen.acked as u32, expected[1]),
            ] {
                // Before the RCU barrier is over, more bytes may have come than were read.
                if outgoing.is_urgent() && silence::unread(socket).is_ok_and(|bytes| bytes == 0) {
                    tell_acked(&outside.wire, key, outgoing, acked, expected);
                }
            }
        }
        self.watch_if_urgent(flows, id);
    }
}

/// Passes on the held bytes and those that have come into the sockets.
fn drain(program: &Program, flows: &mut Flows, id: FlowId) -> Result<(), BrokenLeg> {
    let Some(flow) = flows.get_mut(&id) else { return Ok(()) };
    let Some(ClosingSockets { sockets, up, down }) = flow.step.closing_mut() else { return Ok(()) };
    pass(&sockets.client, &sockets.backend, &mut sockets.held_up, up)
        .map_err(|(source, error)| BrokenLeg { by_client: source, error })?;
    pass(&sockets.backend, &sockets.client, &mut sockets.held_down, down)
        .map_err(|(source, error)| BrokenLeg { by_client: !source, error })?;
    // The program has not seen bytes that came into a socket, and would take their acknowledgement for a forged one.
    let slipped = [
        (up, sockets.held_up.len(), FlowDirection::ToBackend),
        (down, sockets.held_down.len(), FlowDirection::ToClient),
    ];
    for (in_flight, held, direction) in slipped {
        let change = match in_flight.show(held) {
            Some(SlippedIn::Sent(position)) => EntryChange::Sent(position),
            Some(SlippedIn::Fin(position)) => EntryChange::Fin(position),
            None => continue,
        };
        if let Err(error) = program.change(id, &[flow.ends.key(direction)], change) {
            tracing::error!(%error, "cannot write a flow's new sequence position to the BPF map");
        }
    }
    Ok(())
}

/// Gives the sockets the acknowledgements of their far ends, whose packets no longer reach them.
fn tell_sockets(outside: &Outside, flows: &mut Flows, id: FlowId) {
    let Some(flow) = flows.get_mut(&id) else { return };
    let keys = flow.ends.keys();
    let Some(ClosingSockets { sockets, up, down }) = flow.step.closing_mut() else { return };
    // Entries that cannot be read now are read at the next turn.
    let Ok([Some(of_client), Some(of_backend)]) = outside.program.entries(keys) else { return };
    // The other side's acknowledgement of a far end's bytes, in the numbers of that end's own leg.
    let client = FarEnd { key: keys[0], acked: of_client.seen.acked as u32, taken: of_backend.taken() };
    let backend = FarEnd { key: keys[1], acked: of_backend.seen.acked as u32, taken: of_client.taken() };
    backend.tell(&outside.wire, &sockets.backend, up, down, sockets.held_down.len());
    client.tell(&outside.wire, &sockets.client, down, up, sockets.held_up.len());
}

/// The entries' view of the bytes that went through the flow's sockets.
fn passed_on(program: &Program, flow: &OffloadedFlow, closing: &ClosingSockets) -> PassedOn {
    let whole = closing.sockets.held_up.is_empty() && closing.sockets.held_down.is_empty();
    let has_arrived =
        |up: &Entry, down: &Entry| closing.up.has_arrived(seen(down, up)) && closing.down.has_arrived(seen(up, down));
    match program.entries(flow.ends.keys()) {
        Ok([Some(up), Some(down)]) if whole && has_arrived(&up, &down) => PassedOn::Arrived,
        Ok([Some(_), Some(_)]) => PassedOn::Awaited { by_client_alone: closing.up.is_empty() },
        _ if !whole => PassedOn::Awaited { by_client_alone: closing.up.is_empty() },
        Ok(_) => {
            tracing::error!(flow = flow.id.0, "the BPF map has lost the entries of a flow; Baton resets the flow");
            PassedOn::EntriesLost
        }
        Err(_) => PassedOn::Unread,
    }
}

fn close(outside: &Outside, closing: ClosingSockets) {
    for socket in [closing.sockets.client, closing.sockets.backend] {
        if let Err((socket, error)) = silence::close_silently(socket) {
            tracing::error!(%error, "cannot close an offloaded flow's socket without FIN or RST; Baton resets the connection");
            socket::reset(socket);
        }
    }
    outside.table.offload.count_out();
}

/// Marks the entries: from here on they alone carry the flow.
fn mark(outside: &Outside, flows: &Flows, id: FlowId) -> bool {
    let Some(flow) = flows.get(&id) else { return false };
    match outside.program.change(id, &flow.ends.keys(), EntryChange::Commit) {
        Ok(2) => {
            outside.wire.untrack(&flow.ends);
            true
        }
        found => {
            tracing::error!(
                flow = id.0,
                ?found,
                "cannot mark the entries of a flow as offloaded; Baton resets the flow"
            );
            false
        }
    }
}

fn tell_of_offload(outside: &mut Outside, flows: &mut Flows, id: FlowId) {
    outside.table.census.offloaded.add(1);
    if let Some(flow) = flows.get(&id)
        && let Some(ticket) = flow.ticket
    {
        let answer = Answer::Offloaded { ticket, stays_here: flow.stays_here() };
        outside.answers.answer(ticket.worker, answer);
    }
    tell_offloaded(outside, flows, id);
    // The flow may have ended while it had sockets; then no further packet reports that.
    if look(&outside.program, flows, id).is_ok() {
        has_moved(outside, flows, id, now_ns());
    }
}

/// The acknowledgements that a far end would send to the socket of its leg.
struct FarEnd {
    /// The key of its packets.
    key: Key,
    /// The highest number that it has acknowledged.
    acked: u32,
    /// The number up to which the other side has its bytes.
    taken: u32,
}

impl FarEnd {
    /// Tells `socket` which bytes of `outgoing` were acknowledged. Without that the socket resends its first segment
    /// for ever, even if a later one was lost. It also tells how far `incoming` has come: a resent segment carries its
    /// own acknowledgement, and the far end rejects a segment whose acknowledgement is further back than any window
    /// that it was ever given (RFC 5961 section 5.2; net/ipv4/tcp_input.c, tcp_ack). `held` bytes of `incoming` wait to
    /// be written.
    fn tell(&self, wire: &EngineWire, socket: &OwnedFd, outgoing: &mut InFlight, incoming: &mut InFlight, held: usize) {
        if outgoing.is_empty() {
            return;
        }
        tell_acked(wire, self.key, outgoing, self.acked, incoming.expected(held));
        // The socket must hold only the flow's own bytes until all of these have been read.
        let drained = held == 0 && !incoming.is_finished() && silence::unread(socket).is_ok_and(|bytes| bytes == 0);
        if !drained {
            return;
        }
        for _ in 0..ZEROS_AT_ONCE {
            let next = incoming.expected(0);
            if outgoing.is_told() {
                return;
            }
            let Some(zeros) = incoming.stand_in(self.taken) else { return };
            tell(wire, self.key, next, outgoing.told(), zeros);
            discard(socket);
        }
    }
}

/// Tells the socket that sent `outgoing` how much of it the far end has acknowledged, if that is news.
fn tell_acked(wire: &EngineWire, key: Key, outgoing: &mut InFlight, acked: u32, seq: u32) {
    if let Some(told) = outgoing.acknowledge(acked) {
        tell(wire, key, seq, told, 0);
    }
}

/// Sends to an address of this host, so by loopback, where the program lets packets with its mark pass. `key`: of the far
/// end's packets.
fn tell(wire: &EngineWire, key: Key, seq: u32, ack: u32, zeros: u16) {
    let Key { from, to } = key;
    let segment = Segment { from, to, seq, ack, flags: Flags::Ack, window: u16::MAX };
    wire.tell_socket(&segment, zeros);
}

/// Reads and drops bytes that only stand for bytes which took another path.
fn discard(socket: &OwnedFd) {
    let mut buffer = [0; CHUNK];
    while socket::read(socket, &mut buffer).is_ok_and(|count| count > 0) {}
}

/// The counters of the entry for the receiver's packets, `by`, and for the sender's, `of`.
fn seen(by: &Entry, of: &Entry) -> SeenByEntries {
    SeenByEntries { acked: by.seen.acked as u32, taken: by.taken(), sent: of.seen.sent as u32 }
}

/// Writes `held`, then all bytes that `source` has. An error says whether it was the source's.
fn pass(
    source: &OwnedFd,
    destination: &OwnedFd,
    held: &mut Vec<u8>,
    in_flight: &mut InFlight,
) -> Result<(), (bool, io::Error)> {
    let mut buffer = [0; CHUNK];
    loop {
        while !held.is_empty() {
            match socket::write(destination, held) {
                Ok(written) => {
                    held.drain(..written);
                    in_flight.wrote(written as u32);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err((false, error)),
            }
        }
        if in_flight.is_finished() {
            return Ok(());
        }
        match socket::read(source, &mut buffer) {
            Ok(0) => {
                in_flight.finish();
                let _ = socket::finish_writing(destination);
            }
            Ok(_) if !in_flight.reads_own_bytes() => {}
            Ok(count) => held.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err((true, error)),
        }
    }
}
