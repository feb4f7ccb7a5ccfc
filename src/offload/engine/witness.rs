//! Checks the addresses and numbers that a flow has on the wire, before it is offloaded.
//!
//! Entries use the sockets' addresses as keys, but the program sees packets before anything on this host has translated
//! them (masquerade, DNAT, redirect, stateless rules, a SYNPROXY). Where the two differ, no packet would match the
//! entry, and packets that leave by it would go out untranslated. So a flow first gets witness entries, which only
//! record its packets. It is offloaded once packets of both legs have matched exactly their keys, with the numbers that
//! its sockets know.
//!
//! ```text
//!   Witness, or the first try ──▶ noted ──▶ both legs seen ──▶ entered
//!                                   │  a leg is silent: it is challenged, and answers, or sends by itself later
//!                                   └─ a leg's socket received a segment that the program did not see ──▶ stays proxied: nat
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::Outside;
use super::wire::EngineWire;
use crate::model::ids::FlowId;
use crate::model::segment::{Flags, Segment};
use crate::model::splice::LegState;
use crate::offload::entry::{Ends, Key};
use crate::offload::program::{InstallError, Program};
use crate::ports::offload::{Candidate, Stays};
use crate::sys::clock::now_ns;
use crate::sys::tcp_info::segments_in;

/// A packet needs less than this from its look-up in the map to its socket.
const ON_ITS_WAY: Duration = Duration::from_millis(10);

/// A flow that was not tried for so long gets new witnesses at its next try.
const STALE: Duration = Duration::from_secs(300);

/// How often the engine looks for such flows.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// A flow with witnesses.
#[derive(Debug)]
struct Witness {
    ends: Ends,
    since_ns: u64,
    /// Segments that the client's and the backend's leg had received when they were challenged, after all earlier
    /// packets had reached their sockets.
    heard: [Option<u32>; 2],
}

/// Proxied flows with witnesses.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    of: HashMap<FlowId, Witness>,
    sweep_at_ns: u64,
}

impl Witnesses {
    pub(super) fn contains(&self, id: FlowId) -> bool {
        self.of.contains_key(&id)
    }

    /// The flow is being offloaded: its entries replace the witnesses.
    pub(super) fn give_way(&mut self, id: FlowId) {
        self.of.remove(&id);
    }

    /// The flow may be offloaded soon. Reasons against it show at the try.
    pub(super) fn announced(&mut self, outside: &mut Outside, flows_held: usize, id: FlowId, ends: Ends) {
        if !outside.is_frozen() && outside.table.offload.is_open() {
            let _ = self.watch_for(outside, flows_held, id, ends);
        }
    }

    /// Enters witnesses for the flow.
    pub(super) fn watch_for(
        &mut self,
        outside: &mut Outside,
        flows_held: usize,
        id: FlowId,
        ends: Ends,
    ) -> Result<(), InstallError> {
        let now_ns = now_ns();
        if self.of.get(&id).is_some_and(|witness| witness.ends == ends) {
            return Ok(());
        }
        self.forget(&outside.program, id);
        // The backend's packets come by `lo` then.
        let to_here = outside.surroundings.is_here(ends.backend.ip());
        if to_here {
            outside.attach_to_lo(flows_held);
        }
        outside.program.witness(id, &ends, to_here)?;
        self.of.insert(id, Witness { ends, since_ns: now_ns, heard: [None; 2] });
        Ok(())
    }

    pub(super) fn forget(&mut self, program: &Program, id: FlowId) {
        if let Some(Witness { ends, .. }) = self.of.remove(&id) {
            self.withdraw(program, id, ends);
        }
    }

    /// Removes the flow's witnesses; those that cannot be read are removed later, as stale ones.
    pub(super) fn withdraw(&mut self, program: &Program, id: FlowId, ends: Ends) {
        if program.withdraw(id, &ends).is_err() {
            self.of.insert(id, Witness { ends, since_ns: 0, heard: [None; 2] });
        }
    }

    /// Removes, now and then, the witnesses of flows whose workers have not reported their fate.
    pub(super) fn forget_stale(&mut self, program: &Program, now_ns: u64) {
        if now_ns < self.sweep_at_ns {
            return;
        }
        self.sweep_at_ns = now_ns + SWEEP_EVERY.as_nanos() as u64;
        let stale = |witness: &Witness| now_ns.saturating_sub(witness.since_ns) > STALE.as_nanos() as u64;
        let ids: Vec<_> = self.of.iter().filter(|(_, witness)| stale(witness)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.forget(program, id));
    }

    /// Whether both legs' packets have shown the addresses and numbers of their sockets; challenges those that were
    /// silent.
    pub(super) fn have_shown(
        &mut self,
        outside: &Outside,
        candidate: &Candidate,
        ends: &Ends,
        legs: [&LegState; 2],
    ) -> Result<(), Stays> {
        let id = candidate.ticket.id;
        let sockets = [&candidate.sockets.client, &candidate.sockets.backend];
        let keys = ends.keys();
        let mut all = true;
        for (leg, ((socket, key), state)) in sockets.into_iter().zip(keys).zip(legs).enumerate() {
            match self.has_shown(outside, id, leg, socket, key, state) {
                Ok(shown) => all &= shown,
                Err(why) => return Err(why),
            }
        }
        if all { Ok(()) } else { Err(Stays::Unseen) }
    }

    fn has_shown(
        &mut self,
        outside: &Outside,
        id: FlowId,
        leg: usize,
        socket: &OwnedFd,
        key: Key,
        state: &LegState,
    ) -> Result<bool, Stays> {
        // Read this before the entry: the program has seen every segment that the socket has received.
        let heard = segments_in(socket).map_err(|error| failed(id, &error))?;
        let entry = outside.program.entry(&key).map_err(|error| failed(id, &error))?;
        let Some(entry) = entry.filter(|entry| entry.is_witness_of(id)) else {
            // The entry is another flow's now, or another process removed it as a dead flow's.
            self.forget(&outside.program, id);
            return Err(Stays::Unseen);
        };
        if entry.shows(state) {
            return Ok(true);
        }
        let Some(witness) = self.of.get_mut(&id) else { return Err(Stays::Unseen) };
        let settled = now_ns().saturating_sub(witness.since_ns) > ON_ITS_WAY.as_nanos() as u64;
        match witness.heard[leg] {
            Some(before) if before != heard => return Err(Stays::Nat),
            Some(_) => {}
            None => witness.heard[leg] = settled.then_some(heard),
        }
        ask_leg(&outside.wire, key, state);
        Ok(false)
    }
}

/// Sends a segment that every live end answers at once, and whose byte it drops: a byte below all that it expects (RFC
/// 9293 section 3.10.7.4). Kernels answer a bare ACK only twice a second (tcp_invalid_ratelimit).
fn ask_leg(wire: &EngineWire, key: Key, state: &LegState) {
    let (seq, ack) = (state.snd_una.wrapping_sub(2), state.rcv_nxt);
    let window = if state.own_window_scale == 0 { WINDOW_UNSCALED } else { WINDOW };
    let segment = Segment { from: key.to, to: key.from, seq, ack, flags: Flags::Ack, window };
    wire.send_zeros(&segment, 1);
}

/// An end that owes an acknowledgement may record the segment's window until the next one: it is large enough, and
/// smaller than any socket's.
const WINDOW: u16 = 512;
const WINDOW_UNSCALED: u16 = 32 * 1024;

fn failed(id: FlowId, error: &dyn Error) -> Stays {
    tracing::warn!(flow = id.0, %error, "cannot offload a flow; it stays proxied");
    Stays::Failed
}
