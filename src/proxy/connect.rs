//! From an accepted client to a connected backend: pick, try, retry, hedge.
//!
//! The client's early bytes stay in its socket until a backend has answered, so any number of attempts costs it
//! nothing but time.

pub(super) mod pick;
pub(super) mod ports;
pub(super) mod source_ports;

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::accept::Acceptor;
use super::context::WorkerContext;
use super::flow::{Attempt, BackendHold, Connecting, Flow, Phase, Relaying};
use super::relay::Direction;
use super::tell::tell_connecting;
use super::timers::Due;
use super::token::Token;
use super::verdict::{FlowVerdict, errno};
use crate::addr::VipAddr;
use crate::model::balance::{NoPick, Preference};
use crate::model::connect::ConnectFailure;
use crate::model::end_reason::EndReason;
use crate::model::ids::BackendId;
use crate::model::offload::Eligibility;
use crate::model::proxy_protocol;
use crate::sys::epoll::Ready;
use crate::sys::socket;
use crate::table::backend::{BackendEntry, Suspicion};
use crate::table::flows::Field;
use pick::Picker;
use source_ports::{Leg, SourcePorts};

/// The peers are told of a flow that waits for a backend for longer. Most have one within a millisecond, and are told of once.
const TELL_AFTER_NS: u64 = 20_000_000;

/// One worker's way to the backends.
#[derive(Debug)]
pub(super) struct Connector {
    pub picker: Picker,
    pub ports: SourcePorts,
}

impl Connector {
    pub(super) fn new(cx: &WorkerContext) -> Self {
        let ports = SourcePorts::new(cx.number, cx.table.workers.len(), cx.table.fleet.ports());
        Self { picker: Picker::default(), ports }
    }

    /// Starts the first attempt. What is known of the client's socket was not acted upon.
    pub(super) fn begin(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        readable: bool,
        ends: bool,
    ) -> FlowVerdict {
        let client = match mem::replace(&mut flow.phase, Phase::Between) {
            Phase::Header(client) => client,
            Phase::Connecting(connecting) => connecting.client,
            other => {
                flow.phase = other;
                return FlowVerdict::Keep;
            }
        };
        let mut connecting = Connecting::new(client, cx.now_ns());
        connecting.client_readable = readable;
        connecting.client_ends = ends;
        flow.phase = Phase::Connecting(connecting);
        self.next_attempt(cx, acceptor, flow)
    }

    /// Starts an attempt at a backend not tried yet. Ends the flow if there is none and none is under way.
    fn next_attempt(&mut self, cx: &mut WorkerContext, acceptor: &mut Acceptor, flow: &mut Flow) -> FlowVerdict {
        let mut no_pick = None;
        // Another worker took the last place of a backend between our look and our reservation.
        let mut taken_meanwhile = false;
        loop {
            let picked = self.picker.pick(cx, flow);
            let Phase::Connecting(current) = &mut flow.phase else { return FlowVerdict::Keep };
            let settings = &flow.frontend.settings;
            if u32::from(current.begun) >= settings.connect_attempts {
                break;
            }
            let entry = match picked {
                Ok(index) => Arc::clone(&flow.frontend.backends[index].current()),
                Err(reason) => {
                    no_pick = Some(if taken_meanwhile { NoPick::AllFull } else { reason });
                    break;
                }
            };
            current.tried.push(entry.id);
            if !entry.reserve() {
                taken_meanwhile = true;
                continue;
            }
            let place = BackendHold::new(entry);
            let Some(address) = place.0.address() else { continue };
            let number = current.begun;
            current.begun = current.begun.saturating_add(1);
            let token = Token::Backend { flow: flow.at, attempt: number }.pack();
            let started = self.ports.open(cx, flow, address).and_then(|leg| {
                cx.epoll.watch_flow(&leg.socket, token)?;
                Ok(leg)
            });
            match started {
                Ok(Leg { socket, source_port }) => {
                    let deadline_ns = cx.now_ns() + nanos(settings.connect_timeout);
                    let started_at_ns = cx.now_ns();
                    let attempt = Attempt { number, socket, address, place, source_port, started_at_ns, deadline_ns };
                    let Phase::Connecting(current) = &mut flow.phase else { return FlowVerdict::Keep };
                    current.attempts.push(attempt);
                    set_deadline(cx, flow);
                    cx.show_state(flow);
                    return FlowVerdict::Keep;
                }
                Err(error) => {
                    let failure = classify(&error);
                    account_failure(cx, &place.0, failure);
                    let Phase::Connecting(current) = &mut flow.phase else { return FlowVerdict::Keep };
                    current.last_failure = Some((failure, error.raw_os_error().unwrap_or(0)));
                    if failure == ConnectFailure::OutOfFiles {
                        // This flow's own descriptor is about to be free again: without a pause the next client would
                        // be accepted with it, only to be reset as this one.
                        acceptor.pause(cx, &error);
                        break;
                    }
                }
            }
        }
        match &flow.phase {
            Phase::Connecting(connecting) if connecting.attempts.is_empty() => give_up(connecting, no_pick),
            _ => FlowVerdict::Keep,
        }
    }

    /// An attempt was answered, one way or the other.
    pub(super) fn attempt_ready(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        number: u8,
        ready: Ready,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        let Some(index) = connecting.attempts.iter().position(|attempt| attempt.number == number) else {
            return FlowVerdict::Keep;
        };
        if ready.failed() || ready.hung_up() {
            let attempt = connecting.attempts.swap_remove(index);
            let error = socket::take_error(&attempt.socket).unwrap_or(io::ErrorKind::ConnectionReset.into());
            return self.attempt_failed(
                cx,
                acceptor,
                flow,
                attempt,
                (classify(&error), error.raw_os_error().unwrap_or(0)),
            );
        }
        if !ready.writable() {
            return FlowVerdict::Keep;
        }
        let attempt = connecting.attempts.swap_remove(index);
        if attempt.place.0.preference() == Preference::Never {
            // Found dead while it was answering: the client would only be reset a moment later.
            socket::reset(attempt.socket);
            return self.next_attempt(cx, acceptor, flow);
        }
        establish(cx, flow, attempt, ready)
    }

    /// A deadline of a connecting flow has come: give up slow attempts, hedge the only one left.
    pub(super) fn deadline_due(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        let now_ns = cx.now_ns();
        if let Some(index) = connecting.attempts.iter().position(|attempt| attempt.deadline_ns <= now_ns) {
            let attempt = connecting.attempts.swap_remove(index);
            let verdict = self.attempt_failed(cx, acceptor, flow, attempt, (ConnectFailure::TimedOut, libc::ETIMEDOUT));
            return match verdict {
                FlowVerdict::Keep => self.deadline_due(cx, acceptor, flow),
                end => end,
            };
        }
        let hedge_after = flow.frontend.settings.hedge_after;
        if let ([only], Some(after)) = (&connecting.attempts[..], hedge_after)
            && now_ns >= only.started_at_ns + nanos(after)
        {
            let begun = connecting.begun;
            self.next_attempt(cx, acceptor, flow);
            if let Phase::Connecting(connecting) = &flow.phase
                && connecting.begun > begun
                && let Some(hedge) = connecting.attempts.last()
            {
                hedge.place.0.lanes[cx.number].hedged.add(1);
            }
        }
        if tell_at_ns(cx, flow).is_some_and(|at_ns| at_ns <= now_ns) {
            tell_connecting(cx, flow);
        }
        set_deadline(cx, flow);
        FlowVerdict::Keep
    }

    /// Gives up the attempts at one backend, for it was ejected, and tries another.
    pub(super) fn abandon_attempts(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        backend: BackendId,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        connecting.attempts.retain(|attempt| attempt.place.0.id != backend);
        match connecting.attempts.is_empty() {
            true => self.next_attempt(cx, acceptor, flow),
            false => FlowVerdict::Keep,
        }
    }

    fn attempt_failed(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        attempt: Attempt,
        (failure, errno): (ConnectFailure, i32),
    ) -> FlowVerdict {
        account_failure(cx, &attempt.place.0, failure);
        socket::reset(attempt.socket);
        if let Phase::Connecting(connecting) = &mut flow.phase {
            connecting.last_failure = Some((failure, errno));
        }
        drop(attempt.place);
        self.next_attempt(cx, acceptor, flow)
    }
}

/// Has a connecting flow looked at again when that may be of use.
fn set_deadline(cx: &mut WorkerContext, flow: &Flow) {
    let Phase::Connecting(connecting) = &flow.phase else { return };
    let given_up = connecting.attempts.iter().map(|attempt| attempt.deadline_ns).min();
    let hedged = match (&connecting.attempts[..], flow.frontend.settings.hedge_after) {
        ([only], Some(after)) => Some(only.started_at_ns + nanos(after)),
        _ => None,
    };
    // What could not be done when it was due is not tried again and again.
    let sooner = [hedged, tell_at_ns(cx, flow)].into_iter().flatten().filter(|at_ns| *at_ns > cx.now_ns());
    if let Some(at_ns) = sooner.chain(given_up).min() {
        cx.timers.set(at_ns, Due::Connect(flow.at));
    }
}

/// When the peers are to know of a connecting flow, if there are any who do not.
fn tell_at_ns(cx: &WorkerContext, flow: &Flow) -> Option<u64> {
    let Phase::Connecting(connecting) = &flow.phase else { return None };
    let wanted = cx.table.fleet.is_enabled() && !connecting.told;
    wanted.then_some(connecting.started_at_ns + TELL_AFTER_NS)
}

/// An event of the client's socket, while no backend has answered.
pub(super) fn client_ready(connecting: &mut Connecting, ready: Ready) -> FlowVerdict {
    if ready.failed() || ready.hung_up() {
        let errno = errno(socket::take_error(&connecting.client).as_ref());
        return FlowVerdict::End(EndReason::ClientLeft, errno);
    }
    connecting.client_readable |= ready.readable();
    connecting.client_ends |= ready.ends();
    FlowVerdict::Keep
}

/// The first attempt to be answered becomes the backend leg; the others are reset.
fn establish(cx: &WorkerContext, flow: &mut Flow, winner: Attempt, ready: Ready) -> FlowVerdict {
    let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
    for loser in connecting.attempts.drain(..) {
        socket::reset(loser.socket);
    }
    let connect = Duration::from_nanos(cx.now_ns().saturating_sub(connecting.started_at_ns));
    let lane = &winner.place.0.lanes[cx.number];
    lane.connected.add(1);
    lane.connect.record(Duration::from_nanos(cx.now_ns().saturating_sub(winner.started_at_ns)));
    let slot = cx.slot(flow.at.key());
    slot.set(Field::ConnectUs as usize, (connect.as_micros() as u64).max(1));
    let mut up = match flow.frontend.settings.proxy_protocol.send_v2 {
        true => Direction::beginning_with(proxy_header(flow)),
        false => Direction::default(),
    };
    let mut down = Direction::default();
    let Phase::Connecting(connecting) = mem::replace(&mut flow.phase, Phase::Between) else {
        return FlowVerdict::Keep;
    };
    match connecting.client_readable {
        true => up.source_ready(connecting.client_ends),
        // A backend that speaks first is not to wait for the client's first byte.
        false => socket::acknowledge_now(&winner.socket),
    }
    if ready.readable() {
        down.source_ready(ready.ends());
    }
    flow.phase = Phase::Relaying(Relaying {
        client: connecting.client,
        backend: winner.socket,
        backend_addr: winner.address,
        place: winner.place,
        source_port: winner.source_port,
        attempt: winner.number,
        up,
        down,
        first_fin: None,
        closing: None,
        unanswered_since_ns: 0,
        watched: false,
        delivering: false,
        lenient: false,
        waits_for_turn: false,
        eligibility: Eligibility::default(),
    });
    cx.show_state(flow);
    FlowVerdict::Serve
}

/// The v2 header for the backend. A wildcard listener does not know what the client asked for; its socket does.
fn proxy_header(flow: &Flow) -> Vec<u8> {
    let local = || Some(VipAddr::new(socket::local_addr(flow.client()?).ok()?.socket_addr()));
    let vip = match flow.vip.ip().is_unspecified() {
        true => local().unwrap_or(flow.vip),
        false => flow.vip,
    };
    proxy_protocol::encode_v2(flow.client_addr, vip).to_vec()
}

fn account_failure(cx: &WorkerContext, backend: &BackendEntry, failure: ConnectFailure) {
    backend.lanes[cx.number].failures[failure as usize].add(1);
    if failure.blames_backend() {
        backend.suspicion.raise(Suspicion::CONNECT_FAILED);
    }
}

/// What an error of connect(2) or SO_ERROR means.
pub(super) fn classify(error: &io::Error) -> ConnectFailure {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => ConnectFailure::Refused,
        Some(libc::ETIMEDOUT) => ConnectFailure::TimedOut,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN | libc::EACCES | libc::EPERM) => {
            ConnectFailure::Unreachable
        }
        Some(libc::ECONNRESET | libc::EPIPE) => ConnectFailure::Reset,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => ConnectFailure::OutOfFiles,
        Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE | libc::EAGAIN) => ConnectFailure::OutOfPorts,
        _ if error.kind() == io::ErrorKind::ConnectionReset => ConnectFailure::Reset,
        _ => ConnectFailure::Other,
    }
}

/// The reason for a flow that no backend took.
fn give_up(connecting: &Connecting, no_pick: Option<NoPick>) -> FlowVerdict {
    match connecting.last_failure {
        Some((failure, errno)) => {
            let reason = match failure {
                ConnectFailure::TimedOut => EndReason::ConnectTimedOut,
                ConnectFailure::OutOfFiles => EndReason::OutOfFiles,
                ConnectFailure::OutOfPorts => EndReason::OutOfPorts,
                _ => EndReason::ConnectFailed,
            };
            FlowVerdict::End(reason, errno)
        }
        None if no_pick == Some(NoPick::AllFull) => FlowVerdict::End(EndReason::BackendsFull, 0),
        None => FlowVerdict::End(EndReason::NoBackend, 0),
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
