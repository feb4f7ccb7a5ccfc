//! From an accepted client to a connected backend: carries out the decisions of [`crate::model::connect`].
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
use crate::model::connect::{ClientSeen, ConnectAction, ConnectFailure, ConnectPolicy, FailedConnect, StartAnswer};
use crate::model::ids::BackendId;
use crate::model::offload::Eligibility;
use crate::model::proxy_protocol;
use crate::sys::epoll::Ready;
use crate::sys::socket;
use crate::table::backend::{BackendEntry, Suspicion};
use crate::table::flows::Field;
use pick::Picker;
use source_ports::{Leg, SourcePorts};

// The model knows no errno by its name.
const _: () = assert!(FailedConnect::TIMED_OUT.errno == libc::ETIMEDOUT);

/// One worker's connections to backends.
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

    /// Starts the first attempt. `seen`: events of the client's socket that were not acted upon.
    pub(super) fn begin(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        client_seen: ClientSeen,
    ) -> FlowVerdict {
        let (client, told) = match mem::replace(&mut flow.phase, Phase::Between) {
            Phase::Header(client) => (client, false),
            // An upgrade failed. The peers know of the flow, and must also be told of its end.
            Phase::Connecting(connecting) => (connecting.client, connecting.machine.is_told()),
            other => {
                flow.phase = other;
                return FlowVerdict::Keep;
            }
        };
        let mut connecting = Connecting::new(client, cx.now_ns(), client_seen);
        if told {
            connecting.machine.handle_told();
        }
        flow.phase = Phase::Connecting(connecting);
        self.carry_out(cx, acceptor, flow, None)
    }

    /// An event of the client's socket, while no backend has answered.
    pub(super) fn client_ready(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        ready: Ready,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        if !ready.failed() && !ready.hung_up() {
            connecting.machine.handle_client(ClientSeen { readable: ready.readable(), ends: ready.ends() });
            return FlowVerdict::Keep;
        }
        connecting.machine.handle_client_left(errno(socket::take_error(&connecting.client).as_ref()));
        self.carry_out(cx, acceptor, flow, None)
    }

    /// The backend has accepted or refused an attempt.
    pub(super) fn attempt_ready(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        number: u8,
        ready: Ready,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        let Connecting { machine, attempts, .. } = &mut **connecting;
        let Some(attempt) = attempts.iter().find(|attempt| attempt.number == number) else {
            return FlowVerdict::Keep;
        };
        if ready.failed() || ready.hung_up() {
            let error = socket::take_error(&attempt.socket).unwrap_or(io::ErrorKind::ConnectionReset.into());
            machine.handle_failed(number, failed(&error));
        } else if ready.writable() {
            machine.handle_answered(number, attempt.place.0.preference());
        } else {
            return FlowVerdict::Keep;
        }
        self.carry_out(cx, acceptor, flow, Some(ready))
    }

    /// A deadline of a connecting flow has come.
    pub(super) fn deadline_due(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        connecting.machine.handle_deadline();
        self.carry_out(cx, acceptor, flow, None)
    }

    /// Gives up the attempts at one backend, because it was ejected, and tries another.
    pub(super) fn abandon_attempts(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        backend: BackendId,
    ) -> FlowVerdict {
        let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
        connecting.machine.handle_ejected(backend);
        self.carry_out(cx, acceptor, flow, None)
    }

    /// Carries out all of the machine's requests. `answer`: the events of the socket of an answered attempt.
    fn carry_out(
        &mut self,
        cx: &mut WorkerContext,
        acceptor: &mut Acceptor,
        flow: &mut Flow,
        answer: Option<Ready>,
    ) -> FlowVerdict {
        let policy = policy(cx, flow);
        loop {
            let Phase::Connecting(connecting) = &mut flow.phase else { return FlowVerdict::Keep };
            let Some(action) = connecting.machine.poll(&policy, cx.now_ns()) else { return FlowVerdict::Keep };
            match action {
                ConnectAction::Start { number, hedges } => {
                    let answer = self.start(cx, flow, number, hedges);
                    if let Phase::Connecting(connecting) = &mut flow.phase {
                        connecting.machine.handle_start(&policy, cx.now_ns(), answer);
                    }
                }
                ConnectAction::Reset { number, failed } => {
                    let Some(attempt) = connecting.take_attempt(number) else { continue };
                    if let Some(failed) = failed {
                        account_failure(cx, &attempt.place.0, failed.failure);
                    }
                    socket::reset(attempt.socket);
                }
                ConnectAction::Establish { number, started_at_ns } => {
                    let Some(winner) = connecting.take_attempt(number) else { continue };
                    return establish(cx, flow, winner, started_at_ns, answer);
                }
                ConnectAction::TellPeers => tell_connecting(cx, flow),
                ConnectAction::SetTimer { at_ns } => cx.timers.set(at_ns, Due::Connect(flow.at)),
                ConnectAction::PauseAccepting { errno } => {
                    acceptor.pause(cx, &io::Error::from_raw_os_error(errno));
                }
                ConnectAction::End(reason, errno) => return FlowVerdict::End(reason, errno),
            }
        }
    }

    /// Begins an attempt at a backend that was not tried yet.
    fn start(&mut self, cx: &WorkerContext, flow: &mut Flow, number: u8, hedges: bool) -> StartAnswer {
        let entry = match self.picker.pick(cx, flow) {
            Ok(index) => Arc::clone(&flow.frontend.backends[index].current()),
            Err(reason) => return StartAnswer::NoPick(reason),
        };
        let backend = entry.id;
        if !entry.reserve() {
            return StartAnswer::Full(backend);
        }
        let place = BackendHold::new(entry);
        let Some(address) = place.0.address() else { return StartAnswer::Unresolved(backend) };
        let token = Token::Backend { flow: flow.at, attempt: number }.pack();
        let started = self.ports.open(cx, flow, address).and_then(|leg| {
            cx.epoll.watch_flow(&leg.socket, token)?;
            Ok(leg)
        });
        match started {
            Ok(Leg { socket, source_port }) => {
                if hedges {
                    place.0.lanes[cx.number].hedged.add(1);
                }
                if let Phase::Connecting(connecting) = &mut flow.phase {
                    connecting.attempts.push(Attempt { number, socket, address, place, source_port });
                }
                cx.show_state(flow);
                StartAnswer::Begun(backend)
            }
            Err(error) => {
                let failed = failed(&error);
                account_failure(cx, &place.0, failed.failure);
                StartAnswer::Failed(backend, failed)
            }
        }
    }
}

/// The machine's present policy: a reload may have added the first peers, or removed the last.
fn policy(cx: &WorkerContext, flow: &Flow) -> ConnectPolicy {
    let settings = &flow.frontend.settings;
    ConnectPolicy {
        attempts_max: settings.connect_attempts,
        timeout_ns: nanos(settings.connect_timeout),
        hedge_after_ns: settings.hedge_after.map(nanos),
        has_peers: cx.table.fleet.is_enabled(),
    }
}

/// The first answered attempt becomes the backend leg; the other is reset.
fn establish(
    cx: &WorkerContext,
    flow: &mut Flow,
    winner: Attempt,
    started_at_ns: u64,
    answer: Option<Ready>,
) -> FlowVerdict {
    let Phase::Connecting(connecting) = mem::replace(&mut flow.phase, Phase::Between) else {
        return FlowVerdict::Keep;
    };
    let Connecting { client, machine, attempts } = *connecting;
    for loser in attempts {
        socket::reset(loser.socket);
    }
    let connect = Duration::from_nanos(cx.now_ns().saturating_sub(machine.started_at_ns()));
    let lane = &winner.place.0.lanes[cx.number];
    lane.connected.add(1);
    lane.connect.record(Duration::from_nanos(cx.now_ns().saturating_sub(started_at_ns)));
    let slot = cx.slot(flow.at.key());
    slot.set(Field::ConnectUs as usize, (connect.as_micros() as u64).max(1));
    let mut up = match flow.frontend.settings.proxy_protocol.send_v2 {
        true => Direction::beginning_with(proxy_protocol::encode_v2(flow.client_addr, flow.vip).to_vec()),
        false => Direction::default(),
    };
    let mut down = Direction::default();
    let seen = machine.client_seen();
    match seen.readable {
        true => up.source_ready(seen.ends),
        // A backend that sends first must not wait for the client's first byte.
        false => socket::acknowledge_now(&winner.socket),
    }
    if let Some(ready) = answer.filter(|ready| ready.readable()) {
        down.source_ready(ready.ends());
    }
    flow.phase = Phase::Relaying(Relaying {
        client,
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
        waits_for_turn: false,
        eligibility: Eligibility::default(),
    });
    cx.show_state(flow);
    FlowVerdict::Serve
}

fn account_failure(cx: &WorkerContext, backend: &BackendEntry, failure: ConnectFailure) {
    backend.lanes[cx.number].failures[failure as usize].add(1);
    if failure.blames_backend() {
        backend.suspicion.raise(Suspicion::CONNECT_FAILED);
    }
}

fn failed(error: &io::Error) -> FailedConnect {
    FailedConnect { failure: classify(error), errno: error.raw_os_error().unwrap_or(0) }
}

/// The meaning of an error of connect(2) or SO_ERROR.
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

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests;
