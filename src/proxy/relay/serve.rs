//! Events of a flow's two sockets.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Broken, End, Pumped};
use crate::proxy::backlog::Backlog;
use crate::proxy::connect::source_ports::SourcePorts;
use crate::proxy::context::WorkerContext;
use crate::proxy::ending::closing::{close_if_done, closing_ready};
use crate::proxy::flow::{Flow, Phase, Relaying, Side};
use crate::proxy::offload::{announce_if_near, read_and_leave};
use crate::proxy::verdict::{FlowVerdict, ended_by, errno};
use crate::proxy::watch::FlowWatch;
use crate::sys::epoll::Ready;
use crate::sys::socket;
use crate::sys::tcp_info::{fin_came, peer_signs};
use crate::table::flows::Field;

/// Precision of the time at which a backend last sent data: asking the kernel is a system call.
const SPEECH_EVERY: Duration = Duration::from_millis(10);

/// The parts that relaying uses besides the present flow.
pub(in crate::proxy) struct Relay<'a> {
    pub cx: &'a mut WorkerContext,
    pub watch: &'a mut FlowWatch,
    pub backlog: &'a mut Backlog,
    pub ports: &'a SourcePorts,
}

impl Relay<'_> {
    /// An event of the client's socket.
    pub(in crate::proxy) fn client_ready(&mut self, flow: &mut Flow, ready: Ready) -> FlowVerdict {
        match &mut flow.phase {
            Phase::Relaying(relaying) if relaying.closing.is_some() => closing_ready(self.cx, flow),
            Phase::Relaying(relaying) => {
                if ready.readable() {
                    relaying.up.source_ready(ready.ends());
                }
                // A direction that reads finds the error itself, behind the bytes that came before it.
                if ready.failed() && !relaying.up.reads() {
                    let error = socket::take_error(&relaying.client);
                    return ended_by(Side::Client, errno(error.as_ref()));
                }
                let answer_wanted = ready.writable() && relaying.down.is_blocked();
                let verdict = self.pump_to_backend(flow);
                match verdict {
                    FlowVerdict::Keep if answer_wanted => self.pump_to_client(flow),
                    verdict => verdict,
                }
            }
            _ => FlowVerdict::Keep,
        }
    }

    /// An event of the socket of one attempt to reach a backend.
    pub(in crate::proxy) fn backend_ready(&mut self, flow: &mut Flow, attempt: u8, ready: Ready) -> FlowVerdict {
        match &mut flow.phase {
            Phase::Relaying(relaying) if relaying.attempt != attempt => FlowVerdict::Keep,
            Phase::Relaying(relaying) if relaying.closing.is_some() => closing_ready(self.cx, flow),
            Phase::Relaying(relaying) => {
                if ready.readable() {
                    relaying.down.source_ready(ready.ends());
                }
                if ready.failed() && !relaying.down.reads() {
                    let error = socket::take_error(&relaying.backend);
                    return ended_by(Side::Backend, errno(error.as_ref()));
                }
                let room_wanted = ready.writable() && relaying.up.is_blocked();
                let verdict = self.pump_to_client(flow);
                match verdict {
                    FlowVerdict::Keep if room_wanted => self.pump_to_backend(flow),
                    verdict => verdict,
                }
            }
            _ => FlowVerdict::Keep,
        }
    }

    /// The turn of a flow that had its fair share and has more to do.
    pub(in crate::proxy) fn pump_more(&mut self, flow: &mut Flow) -> FlowVerdict {
        if let Phase::Relaying(relaying) = &mut flow.phase {
            relaying.waits_for_turn = false;
        }
        self.pump_both(flow)
    }

    /// Moves all bytes that can be moved, both ways.
    pub(in crate::proxy) fn pump_both(&mut self, flow: &mut Flow) -> FlowVerdict {
        match self.pump_to_backend(flow) {
            FlowVerdict::Keep => self.pump_to_client(flow),
            end => end,
        }
    }

    /// Client to backend.
    fn pump_to_backend(&mut self, flow: &mut Flow) -> FlowVerdict {
        let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::Keep };
        if !relaying.up.wants_pump() {
            return FlowVerdict::Keep;
        }
        let mut moved = Pumped::default();
        let left = read_and_leave(self.cx, flow, &mut moved);
        let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::Keep };
        let result = match left {
            Ok(_) => relaying.up.pump(&relaying.client, &relaying.backend, &mut self.cx.tools, &mut moved),
            Err(broken) => Err(broken),
        };
        let ends = relaying.up.owes_fin();
        if ends {
            // Before our FIN: once the backend has answered it, TIME_WAIT has begun and accepts no options.
            let to_be_shared = relaying.first_fin.is_none() && relaying.source_port == 0;
            if to_be_shared && self.ports.wants(relaying.backend_addr, self.cx.now_ns()) {
                relaying.source_port = socket::share_port(&relaying.backend).unwrap_or(0);
            }
            if relaying.down.is_done() {
                flow.holds.release();
            }
            relaying.up.pass_fin(&relaying.backend);
            relaying.first_fin.get_or_insert(Side::Client);
        }
        if moved.written > 0 && relaying.unanswered_since_ns == 0 {
            relaying.unanswered_since_ns = self.cx.now_ns();
            if !relaying.watched {
                relaying.watched = true;
                self.watch.watch_unanswered(self.cx, flow.at);
            }
        }
        if ends || moved.written > 0 {
            self.watch.look_after(self.cx, flow);
        }
        if moved.written > 0 {
            announce_if_near(self.cx, flow);
        }
        self.account_to_backend(flow, moved);
        match result {
            Ok(()) => close_if_done(self.cx, flow),
            Err(Broken { end: End::Source, error }) => ended_by(Side::Client, errno(Some(&error))),
            Err(Broken { end: End::Destination, error }) => self.backend_broke(flow, &error),
        }
    }

    /// Backend to client.
    fn pump_to_client(&mut self, flow: &mut Flow) -> FlowVerdict {
        let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::Keep };
        if !relaying.down.wants_pump() {
            return FlowVerdict::Keep;
        }
        let mut moved = Pumped::default();
        let result = relaying.down.pump(&relaying.backend, &relaying.client, &mut self.cx.tools, &mut moved);
        let ends = relaying.down.owes_fin();
        if ends {
            if relaying.up.is_done() {
                // Before the client learns of the end: it may connect again at once.
                flow.holds.release();
            }
            relaying.down.pass_fin(&relaying.client);
            relaying.first_fin.get_or_insert(Side::Backend);
        }
        if moved.read > 0 {
            // Several requests that one answer covers count as one.
            if std::mem::take(&mut relaying.unanswered_since_ns) != 0 {
                relaying.eligibility.count_round_trip();
            }
        }
        if ends || moved.written > 0 {
            self.watch.look_after(self.cx, flow);
        }
        self.account_to_client(flow, moved);
        match result {
            Ok(()) => close_if_done(self.cx, flow),
            Err(Broken { end: End::Source, error }) => ended_by(Side::Backend, errno(Some(&error))),
            Err(Broken { end: End::Destination, error }) => ended_by(Side::Client, errno(Some(&error))),
        }
    }

    /// Writing to the backend failed, but its earlier bytes may still wait in its socket, such as an answer that
    /// explains the failure: these go to the client first.
    fn backend_broke(&mut self, flow: &mut Flow, error: &io::Error) -> FlowVerdict {
        if let Phase::Relaying(relaying) = &mut flow.phase {
            let mut moved = Pumped::default();
            relaying.down.source_ready(false);
            let _ = relaying.down.pump(&relaying.backend, &relaying.client, &mut self.cx.tools, &mut moved);
            self.account_to_client(flow, moved);
        }
        let slot = self.cx.slot(flow.at.key());
        if let Phase::Relaying(relaying) = &mut flow.phase
            && relaying.down.owes_fin()
            && fin_came(&relaying.backend, slot.word(Field::BytesToClient as usize))
        {
            // The write has consumed the error, so the read found an EOF in any case.
            relaying.down.pass_fin(&relaying.client);
        }
        ended_by(Side::Backend, errno(Some(error)))
    }

    fn account_to_backend(&mut self, flow: &mut Flow, moved: Pumped) {
        let Phase::Relaying(relaying) = &mut flow.phase else { return };
        let slot = self.cx.slot(flow.at.key());
        slot.add(Field::BytesToBackend as usize, moved.written);
        if moved.read > 0 {
            slot.set(Field::LastToBackendNs as usize, self.cx.now_ns());
        }
        relaying.place.0.lanes[self.cx.number].bytes_to_backend.add(moved.written);
        // Once, though both directions may ask: otherwise a flow that is busy both ways gets twice as many turns each
        // time.
        if moved.again && !std::mem::replace(&mut relaying.waits_for_turn, true) {
            self.backlog.wants_more(flow.at);
        }
    }

    fn account_to_client(&mut self, flow: &mut Flow, moved: Pumped) {
        let Phase::Relaying(relaying) = &mut flow.phase else { return };
        let slot = self.cx.slot(flow.at.key());
        slot.add(Field::BytesToClient as usize, moved.written);
        if moved.read > 0 {
            slot.set(Field::LastToClientNs as usize, self.cx.now_ns());
            note_speech(relaying, slot.word(Field::LastToBackendNs as usize), self.cx.now_ns());
        }
        relaying.place.0.lanes[self.cx.number].bytes_to_client.add(moved.written);
        if moved.again && !std::mem::replace(&mut relaying.waits_for_turn, true) {
            self.backlog.wants_more(flow.at);
        }
    }
}

/// Notes that the backend's process has sent data, and whether it has acknowledged all bytes sent to it at `given_ns`.
/// The bytes read now may have come long ago: they wait in the socket while the client accepts none.
fn note_speech(relaying: &Relaying, given_ns: u64, now_ns: u64) {
    let entry = &relaying.place.0;
    if now_ns.saturating_sub(entry.spoke_ns.load(Relaxed)) < SPEECH_EVERY.as_nanos() as u64 {
        return;
    }
    let Ok(signs) = peer_signs(&relaying.backend) else { return };
    entry.spoke_ns.fetch_max(now_ns.saturating_sub(signs.since_data.as_nanos() as u64), Relaxed);
    if signs.unacked == 0 {
        entry.taken_ns.fetch_max(given_ns, Relaxed);
    }
}
