//! From a worker's flow to entries in the map: its addresses, whether it may be offloaded, and its terms.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::flows::Flows;
use super::offloaded::{ClosingSockets, CounterSnapshot, Entered, OffloadedFlow, Step, Waits};
use super::quiet::begin_asking;
use super::settle::Settling;
use super::witness::Witnesses;
use super::{Outside, note};
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::offload::in_flight::{InFlight, InFlightStart};
use crate::model::splice::{Held, LegState, Terms, still_fits, terms};
use crate::offload::entry::{Egress, Ends, Identity, Splice, Start};
use crate::offload::program::{InstallError, LegAddresses};
use crate::ports::offload::{Answer, Candidate, Stays};
use crate::sys::clock::now_ns;
use crate::sys::{silence, socket};
use crate::table::backend::BackendEntry;

/// Length of the TCP option with its usual padding.
const TIMESTAMPS_LENGTH: u16 = 12;

/// The loopback interface; the first in every network namespace.
pub(super) const LOOPBACK: u32 = 1;

/// Enters the candidates that may be offloaded, and gives the others back to their workers.
pub(super) fn enter(
    outside: &mut Outside,
    flows: &mut Flows,
    settling: &mut Settling,
    witnesses: &mut Witnesses,
    candidates: Vec<Candidate>,
) {
    if candidates.is_empty() {
        return;
    }
    outside.surroundings.refresh();
    let mut named = Vec::new();
    for candidate in candidates {
        match ends(&candidate) {
            Ok(ends) => named.push((candidate, ends)),
            Err(error) => fail(outside, witnesses, candidate, &error),
        }
    }
    let legs = named.iter().flat_map(|(_, ends)| {
        [LegAddresses::client(ends.client, ends.vip), LegAddresses::backend(ends.local, ends.backend)]
    });
    let states = match outside.program.probe(&legs.collect::<Vec<_>>()) {
        Ok(states) => states,
        Err(error) => return named.into_iter().for_each(|(candidate, _)| fail(outside, witnesses, candidate, &error)),
    };
    for ((candidate, ends), pair) in named.into_iter().zip(states.chunks(2)) {
        match pair {
            [Some(client), Some(backend)] => {
                enter_one(outside, flows, settling, witnesses, candidate, ends, [client, backend])
            }
            // The connection was closed meanwhile: the worker finds out why.
            _ => give_back(outside, witnesses, candidate, Stays::Busy),
        }
    }
    settling.begin();
}

fn enter_one(
    outside: &mut Outside,
    flows: &mut Flows,
    settling: &mut Settling,
    witnesses: &mut Witnesses,
    candidate: Candidate,
    ends: Ends,
    [client, backend]: [&LegState; 2],
) {
    if outside.is_frozen() || !outside.table.offload.is_open() {
        return give_back(outside, witnesses, candidate, Stays::Busy);
    }
    if is_by_lo(client) {
        return give_back(outside, witnesses, candidate, Stays::Local);
    }
    if outside.surroundings.are_covered(&ends) {
        return give_back(outside, witnesses, candidate, Stays::Ipsec);
    }
    // Even if a reason stands against the offload now: until the next try its packets show their addresses.
    match witnesses.watch_for(outside, flows.len(), candidate.ticket.id, ends) {
        Ok(()) => {}
        Err(InstallError::Full) => return give_back(outside, witnesses, candidate, Stays::MapFull),
        Err(InstallError::Exists) => return give_back(outside, witnesses, candidate, Stays::AddressInUse),
        Err(InstallError::Unread(unread)) => return fail(outside, witnesses, candidate, &unread),
        Err(InstallError::Io(error)) => return fail(outside, witnesses, candidate, &error),
    }
    let backend = &LegState { peer_mss: takes(outside, ends.backend, backend), ..*backend };
    let held = Held { up: candidate.sockets.held_up.len() as u32, down: candidate.sockets.held_down.len() as u32 };
    let terms = match terms(client, backend, held) {
        Ok(terms) => terms,
        Err(obstacle) => {
            tracing::debug!(flow = candidate.ticket.id.0, %obstacle, "a flow stays proxied");
            return give_back(outside, witnesses, candidate, obstacle.into());
        }
    };
    let (towards_client, towards_backend) = match (egress(outside, flows, client), egress(outside, flows, backend)) {
        (Ok(client), Ok(backend)) => (client, backend),
        (Err(why), _) | (_, Err(why)) => return give_back(outside, witnesses, candidate, why),
    };
    if let Err(why) = witnesses.have_shown(outside, &candidate, &ends, [client, backend]) {
        return give_back(outside, witnesses, candidate, why);
    }
    let (slot, is_new) = outside.slots.of(ends.backend);
    if is_new {
        let _ = outside.program.forget_evidence(slot);
    }
    if terms.in_flight_to_backend + terms.in_flight_to_client == 0 {
        // Our kernel would never send an ACK that it still owes, and the far end would repeat its bytes.
        socket::acknowledge_now(&candidate.sockets.client);
        socket::acknowledge_now(&candidate.sockets.backend);
    }
    let splice = Splice {
        ends,
        terms,
        identity: Identity {
            id: candidate.ticket.id,
            accepted_at_ns: candidate.record.accepted_at_ns,
            connect_us: candidate.record.connect_us.try_into().unwrap_or(u32::MAX),
            backend_key: candidate.record.backend_key,
        },
        up: Start {
            egress: towards_backend,
            bytes_before: candidate.bytes_to_backend + u64::from(terms.in_flight_to_backend),
            position: client.rcv_nxt,
        },
        down: Start {
            egress: towards_client,
            bytes_before: candidate.bytes_to_client + u64::from(terms.in_flight_to_client),
            position: backend.rcv_nxt,
        },
        backend_slot: slot,
    };
    // This thread may not have run for a while since the probe, and the sockets may have received data.
    let unread = [&candidate.sockets.client, &candidate.sockets.backend].map(|socket| {
        let bytes = silence::unread(socket).unwrap_or(usize::MAX);
        bytes.try_into().unwrap_or(u32::MAX)
    });
    if let Err(obstacle) = still_fits(client, backend, held, unread) {
        return give_back(outside, witnesses, candidate, obstacle.into());
    }
    // Last of all: every admitted flow is offloaded.
    if let Err(why) = flows.judge.admit(
        candidate.ticket.id,
        [splice.up.bytes_before, splice.down.bytes_before],
        outside.table.offload.is_wanted_at_once(),
    ) {
        return give_back(outside, witnesses, candidate, why);
    }
    if candidate.record.client != ends.client {
        let kept = outside.program.keep_note(candidate.ticket.id, &note::of(candidate.record.client));
        if let Err(error) = kept {
            flows.judge.not_admitted(candidate.ticket.id);
            return fail(outside, witnesses, candidate, &error);
        }
    }
    // Before the sockets are closed, so that the port is never free.
    outside.table.offload.reserve(ends.local, ends.backend);
    witnesses.give_way(candidate.ticket.id);
    match outside.program.install_over(&splice) {
        Ok(()) => entered(outside, flows, settling, candidate, &splice, [backend.mss, client.mss]),
        Err(error) => {
            outside.table.offload.release(ends.local, ends.backend);
            flows.judge.not_admitted(candidate.ticket.id);
            fail(outside, witnesses, candidate, &error);
        }
    }
}

/// Passes on the held bytes, which must go first: packets behind them go by the entries. `segments_max`: of the
/// backend's leg and of the client's.
fn entered(
    outside: &mut Outside,
    flows: &mut Flows,
    settling: &mut Settling,
    candidate: Candidate,
    splice: &Splice,
    segments_max: [u32; 2],
) {
    let Candidate { ticket, sockets, bytes_to_backend, bytes_to_client, patience_ns, record } = candidate;
    let Terms { in_flight_to_backend, in_flight_to_client, backend_must_ack, client_must_ack, .. } = splice.terms;
    let now_ns = now_ns();
    let look =
        |start: &Start, bytes: u64| CounterSnapshot { bytes, sent: start.position, ..CounterSnapshot::default() };
    let closing = ClosingSockets {
        sockets,
        up: in_flight(backend_must_ack, in_flight_to_backend, &splice.up, segments_max[0]),
        down: in_flight(client_must_ack, in_flight_to_client, &splice.down, segments_max[1]),
    };
    let (step, asked) = Step::enter(closing, now_ns);
    let mut flow = OffloadedFlow {
        id: ticket.id,
        ticket: Some(ticket),
        ends: splice.ends,
        step,
        up: look(&splice.up, bytes_to_backend),
        down: look(&splice.down, bytes_to_client),
        waits: Waits::default(),
        patience_ns,
        told_bytes: (splice.up.egress != Egress::Local).then_some(0),
        inherited_ns: 0,
        questioned_ns: 0,
        quiet_at_ns: 0,
        entered: Some(Entered {
            at_ns: now_ns,
            positions: [splice.up.position, splice.down.position],
            bytes: [splice.up.bytes_before, splice.down.bytes_before],
        }),
        first_rst: None,
    };
    flow.up.last_data_ns = record.accepted_at_ns;
    flows.insert(ticket.id, flow);
    begin_asking(outside, flows, ticket.id);
    settling.carry_out(outside, flows, ticket.id, asked);
}

/// The longest segment that the backend accepts. The leg does not know it if the proxy announced a shorter one: its
/// kernel then applies the shorter length to both directions (TCP_MAXSEG, tcp(7)). The connection of a health probe
/// knows it.
fn takes(outside: &Outside, backend: BackendAddr, leg: &LegState) -> u16 {
    // Timestamps reduce the leg's value, but not the probe's.
    let timestamps = if leg.timestamps.is_some() { TIMESTAMPS_LENGTH } else { 0 };
    if leg.peer_mss != leg.own_mss + timestamps {
        return leg.peer_mss;
    }
    let entries = outside.table.registry.backends();
    let its = |entry: &Arc<BackendEntry>| entry.address() == Some(backend);
    let told = entries.iter().filter(|entry| its(entry)).map(|entry| entry.segment_max.load(Relaxed)).max();
    let told = u16::try_from(told.unwrap_or(0)).unwrap_or(u16::MAX);
    leg.peer_mss.max(told.saturating_sub(TIMESTAMPS_LENGTH - timestamps))
}

/// The interface for packets towards a leg's far end; or the reason to stay proxied if the program does not see the
/// packets from there.
fn egress(outside: &mut Outside, flows: &Flows, leg: &LegState) -> Result<Egress, Stays> {
    let Some(leaves_by) = leg.interface else { return Err(Stays::Busy) };
    if is_by_lo(leg) {
        return if outside.attach_to_lo(flows.len()) { Ok(Egress::Local) } else { Err(Stays::Interface) };
    }
    // While a backend has only sent acknowledgements, the kernel has not recorded the interface that it sends by. It is
    // most likely the one that packets to it leave by; in case it is not, the program is attached to all.
    let comes_by = leg.receives_by.unwrap_or_else(|| {
        outside.attach_everywhere(flows.len());
        leaves_by
    });
    if outside.surroundings.merges(comes_by) {
        return Err(Stays::Lro);
    }
    if outside.interfaces.attach_for_leg(&mut outside.program, comes_by)? {
        outside.show(flows.len());
    }
    Ok(Egress::Interface(leaves_by))
}

/// Whether the leg's far end is on this host.
fn is_by_lo(leg: &LegState) -> bool {
    [leg.interface, leg.receives_by].contains(&Some(LOOPBACK))
}

fn give_back(outside: &mut Outside, witnesses: &mut Witnesses, candidate: Candidate, why: Stays) {
    let Candidate { ticket, sockets, .. } = candidate;
    if why.for_good() {
        witnesses.forget(&outside.program, ticket.id);
    }
    outside.table.census.count_stayed(why);
    outside.table.offload.count_out();
    outside.answers.answer(ticket.worker, Answer::Stays { ticket, sockets, why });
}

fn fail(outside: &mut Outside, witnesses: &mut Witnesses, candidate: Candidate, error: &dyn Error) {
    tracing::warn!(flow = candidate.ticket.id.0, %error, "cannot offload a flow; it stays proxied");
    give_back(outside, witnesses, candidate, Stays::Failed);
}

fn in_flight(must_ack: u32, bytes: u32, start: &Start, segment_max: u32) -> InFlight {
    let base = must_ack.wrapping_sub(bytes);
    InFlight::new(InFlightStart { base, position: start.position, between: bytes, segment_max })
}

/// The kernel's addresses: a PROXY header may have given the flow other ones.
fn ends(candidate: &Candidate) -> io::Result<Ends> {
    let (client, backend) = (&candidate.sockets.client, &candidate.sockets.backend);
    Ok(Ends {
        client: ClientAddr::new(socket::peer_addr(client)?),
        vip: VipAddr::new(socket::local_addr(client)?.socket_addr()),
        local: socket::local_addr(backend)?,
        backend: BackendAddr::new(socket::peer_addr(backend)?),
    })
}
