//! From a worker's flow to entries in the map: what it is, whether it may, what its terms are.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::carried::{Carried, CounterSnapshot, Entered, InFlight, Lent, Step};
use super::quiet::begin_asking;
use super::{Engine, note};
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::splice::{Held, LegState, Terms, still_fits, terms};
use crate::offload::entry::{Egress, Ends, Identity, Splice, Start};
use crate::offload::program::{InstallError, LegAddresses};
use crate::sys::clock::now_ns;
use crate::sys::{silence, socket};
use crate::table::backend::BackendEntry;
use crate::table::offload::{Answer, Candidate, Stays};

/// Of the TCP option, padded as it always is.
const TIMESTAMPS_LENGTH: u16 = 12;

/// The interface of connections of this host with itself; the first in every network namespace.
pub(super) const LOOPBACK: u32 = 1;

impl Engine {
    /// Enters what may be offloaded; the others go back.
    pub(super) fn enter(&mut self, candidates: Vec<Candidate>) {
        if candidates.is_empty() {
            return;
        }
        self.outside.surroundings.refresh();
        let mut named = Vec::new();
        for candidate in candidates {
            match ends(&candidate) {
                Ok(ends) => named.push((candidate, ends)),
                Err(error) => self.fail(candidate, &error),
            }
        }
        let legs = named.iter().flat_map(|(_, ends)| {
            [LegAddresses::client(ends.client, ends.vip), LegAddresses::backend(ends.local, ends.backend)]
        });
        let states = match self.outside.program.probe(&legs.collect::<Vec<_>>()) {
            Ok(states) => states,
            Err(error) => return named.into_iter().for_each(|(candidate, _)| self.fail(candidate, &error)),
        };
        for ((candidate, ends), pair) in named.into_iter().zip(states.chunks(2)) {
            match pair {
                [Some(client), Some(backend)] => self.enter_one(candidate, ends, client, backend),
                // Closed under our hands: the worker finds out what came.
                _ => self.give_back(candidate, Stays::Busy),
            }
        }
        self.settling.begin();
    }

    fn enter_one(&mut self, candidate: Candidate, ends: Ends, client: &LegState, backend: &LegState) {
        if self.outside.is_frozen() || !self.outside.table.offload.is_open() {
            return self.give_back(candidate, Stays::Busy);
        }
        if [client, backend].iter().any(|leg| [leg.interface, leg.receives_by].contains(&Some(LOOPBACK))) {
            return self.give_back(candidate, Stays::Local);
        }
        if self.outside.surroundings.are_covered(&ends) {
            return self.give_back(candidate, Stays::Ipsec);
        }
        // Whatever stands against it now, meanwhile its packets show what they look like.
        match self.witnesses.watch_for(&self.outside.program, candidate.ticket.id, ends) {
            Ok(()) => {}
            Err(InstallError::Full) => return self.give_back(candidate, Stays::MapFull),
            Err(InstallError::Exists) => return self.give_back(candidate, Stays::AddressInUse),
            Err(InstallError::Unread(unread)) => return self.fail(candidate, &unread),
            Err(InstallError::Io(error)) => return self.fail(candidate, &error),
        }
        let backend = &LegState { peer_mss: self.takes(ends.backend, backend), ..*backend };
        let held = Held { up: candidate.sockets.held_up.len() as u32, down: candidate.sockets.held_down.len() as u32 };
        let terms = match terms(client, backend, held) {
            Ok(terms) => terms,
            Err(obstacle) => {
                tracing::debug!(flow = candidate.ticket.id.0, %obstacle, "a flow stays proxied");
                return self.give_back(candidate, obstacle.into());
            }
        };
        let (towards_client, towards_backend) = match (self.egress(client), self.egress(backend)) {
            (Ok(client), Ok(backend)) => (client, backend),
            (Err(why), _) | (_, Err(why)) => return self.give_back(candidate, why),
        };
        if let Err(why) = self.witnesses.have_shown(&self.outside, &candidate, &ends, [client, backend]) {
            return self.give_back(candidate, why);
        }
        let (slot, is_new) = self.outside.slots.of(ends.backend);
        if is_new {
            let _ = self.outside.program.forget_evidence(slot);
        }
        if terms.in_flight_to_backend + terms.in_flight_to_client == 0 {
            // An ACK that our kernel still owes would never be sent, and the far end would send its bytes again.
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
        // This thread may not have run for a while since it asked, and the sockets have taken in whatever came.
        let unread = [&candidate.sockets.client, &candidate.sockets.backend].map(|socket| {
            let bytes = silence::unread(socket).unwrap_or(usize::MAX);
            bytes.try_into().unwrap_or(u32::MAX)
        });
        if let Err(obstacle) = still_fits(client, backend, held, unread) {
            return self.give_back(candidate, obstacle.into());
        }
        // Last of all: whoever is admitted is offloaded.
        if let Err(why) = self.flows.judge.admit(
            candidate.ticket.id,
            [splice.up.bytes_before, splice.down.bytes_before],
            self.outside.table.offload.is_hurried(),
        ) {
            return self.give_back(candidate, why);
        }
        if candidate.record.client != ends.client {
            let kept = self.outside.program.keep_note(candidate.ticket.id, &note::of(candidate.record.client));
            if let Err(error) = kept {
                self.flows.judge.not_admitted(candidate.ticket.id);
                return self.fail(candidate, &error);
            }
        }
        // Before the sockets are gone, so that the port is never free.
        self.outside.table.offload.reserve(ends.local, ends.backend);
        self.witnesses.give_way(candidate.ticket.id);
        match self.outside.program.install_over(&splice) {
            Ok(()) => self.entered(candidate, &splice, [backend.mss, client.mss]),
            Err(error) => {
                self.outside.table.offload.release(ends.local, ends.backend);
                self.flows.judge.not_admitted(candidate.ticket.id);
                self.fail(candidate, &error);
            }
        }
    }

    /// Passes on what was held, now that it can be no other's way: packets behind it go by the entries. `segments_max` are
    /// those of the backend's leg and of the client's.
    fn entered(&mut self, candidate: Candidate, splice: &Splice, segments_max: [u32; 2]) {
        let Candidate { ticket, sockets, bytes_to_backend, bytes_to_client, patience_ns, record } = candidate;
        let Terms { in_flight_to_backend, in_flight_to_client, backend_must_ack, client_must_ack, .. } = splice.terms;
        let now_ns = now_ns();
        let look =
            |start: &Start, bytes: u64| CounterSnapshot { bytes, sent: start.position, ..CounterSnapshot::default() };
        let mut flow = Carried {
            id: ticket.id,
            ticket: Some(ticket),
            ends: splice.ends,
            step: Step::Entered(Lent {
                sockets,
                up: in_flight(backend_must_ack, in_flight_to_backend, &splice.up, segments_max[0]),
                down: in_flight(client_must_ack, in_flight_to_client, &splice.down, segments_max[1]),
                since_ns: now_ns,
            }),
            up: look(&splice.up, bytes_to_backend),
            down: look(&splice.down, bytes_to_client),
            unanswered: None,
            patience_ns,
            told_bytes: 0,
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
        self.flows.insert(ticket.id, flow);
        begin_asking(&self.outside, &mut self.flows, ticket.id);
        self.settling.add(&mut self.outside, &mut self.flows, ticket.id);
    }

    /// The longest segment that the backend takes. The leg does not know it where the proxy had it announce a shorter one:
    /// its kernel then takes that for the most of both ways (TCP_MAXSEG, tcp(7)). A probe's connection does.
    fn takes(&self, backend: BackendAddr, leg: &LegState) -> u16 {
        // What timestamps need is taken off one of the two, and counted in what the probe saw.
        let timestamps = if leg.timestamps.is_some() { TIMESTAMPS_LENGTH } else { 0 };
        if leg.peer_mss != leg.own_mss + timestamps {
            return leg.peer_mss;
        }
        let entries = self.outside.table.registry.backends();
        let its = |entry: &Arc<BackendEntry>| entry.address() == Some(backend);
        let told = entries.iter().filter(|entry| its(entry)).map(|entry| entry.segment_max.load(Relaxed)).max();
        let told = u16::try_from(told.unwrap_or(0)).unwrap_or(u16::MAX);
        leg.peer_mss.max(told.saturating_sub(TIMESTAMPS_LENGTH - timestamps))
    }

    /// Where packets towards a leg's far end leave; a reason to stay if the program does not see what comes from there.
    fn egress(&mut self, leg: &LegState) -> Result<Egress, Stays> {
        let Some(leaves_by) = leg.interface else { return Err(Stays::Busy) };
        // A backend that has only acknowledged so far has not left the kernel a trace of its way. It is the way there
        // in all likelihood, and whatever interface it is, the program looks at it.
        let comes_by = leg.receives_by.unwrap_or_else(|| {
            self.outside.attach_everywhere(self.flows.len());
            leaves_by
        });
        if self.outside.surroundings.merges(comes_by) {
            return Err(Stays::Lro);
        }
        if self.outside.interfaces.attach_for_leg(&mut self.outside.program, comes_by)? {
            self.outside.show(self.flows.len());
        }
        Ok(Egress::Interface(leaves_by))
    }

    fn give_back(&mut self, candidate: Candidate, why: Stays) {
        let Candidate { ticket, sockets, .. } = candidate;
        if why.for_good() {
            self.witnesses.forget(&self.outside.program, ticket.id);
        }
        self.outside.table.offload.census.count_stayed(why);
        self.outside.table.offload.count_out();
        self.outside.answers.answer(ticket.worker, Answer::Stays { ticket, sockets, why });
    }

    fn fail(&mut self, candidate: Candidate, error: &dyn Error) {
        tracing::warn!(flow = candidate.ticket.id.0, %error, "cannot offload a flow; it stays proxied");
        self.give_back(candidate, Stays::Failed);
    }
}

fn in_flight(must_ack: u32, bytes: u32, start: &Start, segment_max: u32) -> InFlight {
    let base = must_ack.wrapping_sub(bytes);
    InFlight {
        base,
        position: start.position,
        at_first: bytes,
        told: base,
        segment_max,
        shown: start.position,
        ..InFlight::default()
    }
}

/// As the kernel has them: a PROXY header may have given the flow other names.
fn ends(candidate: &Candidate) -> io::Result<Ends> {
    let (client, backend) = (&candidate.sockets.client, &candidate.sockets.backend);
    Ok(Ends {
        client: ClientAddr::new(socket::peer_addr(client)?),
        vip: VipAddr::new(socket::local_addr(client)?.socket_addr()),
        local: socket::local_addr(backend)?,
        backend: BackendAddr::new(socket::peer_addr(backend)?),
    })
}
