//! Listeners, and the steps from an accepted connection to a flow.

pub(super) mod admission;
pub(super) mod listeners;
pub(super) mod sources;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::context::WorkerContext;
use super::context::slab::FlowSlab;
use super::flow::{Arrival, Flow, Phase};
use super::plane::{FrontendPlane, Plane};
use super::timers::Due;
use super::token::{FlowRef, Token};
use super::verdict::FlowVerdict;
use crate::addr::{ClientAddr, VipAddr};
use crate::model::end_reason::EndReason;
use crate::model::proxy_protocol::{self, Parse};
use crate::ports::ended::EndedFlow;
use crate::sys::epoll::Ready;
use crate::sys::eventfd::EventFd;
use crate::sys::{liveness, socket};
use crate::table::flows::FlowOrigin;
use crate::table::journal::What;
use listeners::Listener;

/// How often paused listeners try again.
const RETRY: Duration = Duration::from_millis(50);

/// A connection that waits in the backlog for want of descriptors is reset after this time, so that it does not hang
/// there.
const SHED_AFTER: Duration = Duration::from_secs(1);

/// Connections reset at a time while there are no descriptors.
const SHED_BURST: usize = 1024;

/// The longest PROXY header that is looked at.
const HEADER_MAX: usize = proxy_protocol::HEADER_LENGTH_MAX;

/// One worker's listeners, and whether it accepts.
#[derive(Debug)]
pub(super) struct Acceptor {
    /// An index stays with its listener; closed ones leave a gap.
    listeners: Vec<Option<Listener>>,
    /// Monotonic ns since when accepting is paused.
    paused_since_ns: Option<u64>,
    /// The reason for which every new connection is reset, if it is.
    refuses: Option<EndReason>,
    /// Whether the listeners stay open, but another process takes their connections.
    parked: bool,
    /// Whether a stop came: a reload after it must not listen again.
    stopped: bool,
    /// A reserve that is closed for a moment when descriptors have run out, to reset connections that wait.
    spare: Option<EventFd>,
}

/// The result of taking one connection.
pub(super) enum Accepted {
    /// It is a flow now, with this to be done next.
    Flow(FlowRef, FlowVerdict),
    /// It was reset.
    Refused,
    /// The connection was lost in the backlog.
    Failed,
    /// There is none, or none can be taken.
    Nothing,
}

impl Acceptor {
    pub(super) fn new() -> io::Result<Self> {
        let spare = Some(EventFd::new()?);
        Ok(Self { listeners: Vec::new(), paused_since_ns: None, refuses: None, parked: false, stopped: false, spare })
    }

    /// Indices of listeners, and of gaps.
    pub(super) fn indices(&self) -> Range<usize> {
        0..self.listeners.len()
    }

    /// Whether listener `index` is there and `choose` chooses it.
    pub(super) fn chooses(&self, index: usize, choose: impl Fn(&Listener) -> bool) -> bool {
        self.listeners[index].as_ref().is_some_and(choose)
    }

    /// Takes one connection from listener `index`.
    pub(super) fn accept(&mut self, cx: &mut WorkerContext, flows: &mut FlowSlab, index: usize) -> Accepted {
        let Some(listener) = &self.listeners[index] else { return Accepted::Nothing };
        match socket::accept(&listener.socket) {
            Ok((client, client_addr)) => self.welcome(cx, flows, listener, client, client_addr),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Accepted::Nothing,
            Err(error) if out_of_files(&error) => {
                self.pause(cx, &error);
                Accepted::Nothing
            }
            // The connection died in the backlog, or its network is down (accept(2)); the next may live.
            Err(_) => {
                cx.state().accept_errors.add(1);
                Accepted::Failed
            }
        }
    }

    /// Gives the listeners the settings of a new plane.
    pub(super) fn follow(&mut self, plane: &Plane) {
        for listener in self.listeners.iter_mut().flatten() {
            if let Some(frontend) = plane.listening_on(listener.address) {
                if frontend.timeouts != listener.frontend.timeouts {
                    let _ = liveness::set_timeouts(&listener.socket, &frontend.timeouts);
                }
                listener.frontend = frontend.clone();
            }
        }
    }

    /// Begins to accept from `listener`, unless a stop came before.
    pub(super) fn open(&mut self, cx: &WorkerContext, listener: Listener) {
        if self.stopped {
            return;
        }
        let gap = self.listeners.iter().position(Option::is_none);
        let index = gap.unwrap_or(self.listeners.len());
        if gap.is_none() {
            self.listeners.push(None);
        }
        self.listeners[index] = Some(listener);
        self.watch(cx, index);
    }

    /// Closes a listener. What its backlog holds is reset: take it first.
    pub(super) fn close(&mut self, index: usize) {
        self.listeners[index] = None;
    }

    /// Listens on nothing new from now on.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Resets every new connection for this reason from now on; `None`: serves them again.
    pub(super) fn refuse(&mut self, reason: Option<EndReason>) {
        self.refuses = reason;
    }

    /// Duplicates each listener's descriptor.
    pub(super) fn share(&self) -> io::Result<Vec<(VipAddr, OwnedFd)>> {
        let copy = |listener: &Listener| Ok((listener.address, listener.socket.try_clone()?));
        self.listeners.iter().flatten().map(copy).collect()
    }

    /// Stops serving the listeners, or (not `parked`) serves them again. True: they are parked from now on, and the
    /// caller must take the connections in their backlogs.
    pub(super) fn park(&mut self, cx: &WorkerContext, parked: bool) -> bool {
        if std::mem::replace(&mut self.parked, parked) == parked {
            return false;
        }
        for index in self.indices() {
            if !parked {
                self.watch(cx, index);
            } else if let Some(listener) = &self.listeners[index] {
                // It may have been forgotten already, while accepting is paused.
                let _ = cx.epoll.forget(&listener.socket);
            }
        }
        parked
    }

    /// Accepts from `own` instead of the socket that another worker shares, and continues to serve.
    pub(super) fn exchange(&mut self, cx: &WorkerContext, address: VipAddr, own: OwnedFd) {
        let serves = |listener: &Option<Listener>| listener.as_ref().is_some_and(|it| it.address == address);
        let Some(index) = self.listeners.iter().position(serves) else { return };
        let Some(listener) = &mut self.listeners[index] else { return };
        let shared = std::mem::replace(&mut listener.socket, own);
        // The other worker's descriptor would keep the registration alive. It may be gone already, while accepting is
        // paused.
        let _ = cx.epoll.forget(&shared);
        self.watch(cx, index);
    }

    /// Accepting is paused for want of descriptors.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_since_ns.is_some()
    }

    /// Leaves connections in the backlog until a descriptor may be free.
    pub(super) fn pause(&mut self, cx: &mut WorkerContext, error: &io::Error) {
        cx.state().accept_errors.add(1);
        cx.tools.pipes.shrink();
        // A retry of a connecting flow may call this during a pause: the pause must not begin anew.
        if self.paused_since_ns.is_some() {
            return;
        }
        self.paused_since_ns = Some(cx.now_ns());
        cx.timers.set(cx.now_ns() + RETRY.as_nanos() as u64, Due::Accept);
        if cx.state().accept_paused.load(Relaxed) {
            return;
        }
        cx.state().accept_paused.store(true, Relaxed);
        cx.table.journal.record(What::AcceptPaused { worker: cx.number, error: error.to_string() });
        for listener in self.listeners.iter().flatten() {
            let _ = cx.epoll.forget(&listener.socket);
        }
    }

    /// Ends the pause, if there is one, and returns its beginning. Then try the listeners and report the result:
    /// [`Acceptor::stay_paused`] or [`Acceptor::resume`].
    pub(super) fn try_again(&mut self) -> Option<u64> {
        self.paused_since_ns.take()
    }

    /// There are still no descriptors: resets connections that have waited too long.
    pub(super) fn stay_paused(&mut self, cx: &mut WorkerContext, since_ns: u64) {
        self.paused_since_ns = Some(since_ns);
        if cx.now_ns().saturating_sub(since_ns) >= SHED_AFTER.as_nanos() as u64 {
            self.shed(cx);
        }
    }

    /// There are descriptors again.
    pub(super) fn resume(&mut self, cx: &WorkerContext, since_ns: u64) {
        cx.state().accept_paused.store(false, Relaxed);
        let paused_ms = cx.now_ns().saturating_sub(since_ns) / 1_000_000;
        cx.table.journal.record(What::AcceptResumed { worker: cx.number, paused_ms });
        for index in self.indices() {
            self.watch(cx, index);
        }
    }

    fn watch(&self, cx: &WorkerContext, index: usize) {
        if self.parked || self.paused_since_ns.is_some() {
            return;
        }
        let Some(listener) = &self.listeners[index] else { return };
        if let Err(error) = cx.epoll.watch_level(&listener.socket, Token::Listener(index as u32).pack()) {
            tracing::error!(address = %listener.address, %error, "cannot add a listening socket to epoll; this worker accepts no connection there");
        }
    }

    /// Makes a flow of a connection, or resets it.
    fn welcome(
        &self,
        cx: &mut WorkerContext,
        flows: &mut FlowSlab,
        listener: &Listener,
        client: OwnedFd,
        client_addr: ClientAddr,
    ) -> Accepted {
        if listener.is_shared && !is_for(listener.address, &client) {
            socket::reset(client);
            cx.state().accept_errors.add(1);
            return Accepted::Failed;
        }
        let (frontend, vip) = (listener.frontend.clone(), asked_for(listener.address, &client));
        cx.state().accepted.add(1);
        frontend.entry.lanes[cx.number].accepted.add(1);
        let origin = FlowOrigin { accepted_at_ns: cx.now_ns(), client: client_addr, vip, frontend: frontend.entry.id };
        if let Some(reason) = self.refuses {
            return turn_away(cx, client, &frontend, origin, reason);
        }
        let wants_header = admission::sends_header(&frontend.settings, client_addr);
        let admitted =
            admission::admit(cx.plane(), &frontend, &cx.table.flows, &cx.table.census).and_then(|frontend_hold| {
                let source_hold = match wants_header {
                    true => None,
                    false => admission::admit_source(&frontend, &cx.shared.sources, client_addr, cx.now_ns())?,
                };
                Ok((frontend_hold, source_hold))
            });
        let (frontend_hold, source_hold) = match admitted {
            Ok(holds) => holds,
            Err(reason) => return turn_away(cx, client, &frontend, origin, reason),
        };
        let Some((id, at)) = flows.enter(cx, &origin) else {
            return turn_away(cx, client, &frontend, origin, EndReason::LimitTotal);
        };
        let watched = cx.epoll.watch_flow(&client, Token::Client(at).pack());
        let now_ns = cx.now_ns();
        let phase = Phase::Header(client);
        let arrival = Arrival { id, at, phase, client_addr, vip, now_ns, frontend, frontend_hold, source_hold };
        let flow = Flow::new(arrival);
        let verdict = match watched {
            Err(error) => FlowVerdict::End(EndReason::Internal, error.raw_os_error().unwrap_or(0)),
            Ok(()) if wants_header => {
                expect_header(cx, &flow, now_ns);
                FlowVerdict::Keep
            }
            Ok(()) => FlowVerdict::Connect { readable: false, ends: false },
        };
        flows.put(flow);
        Accepted::Flow(at, verdict)
    }

    /// Uses the spare descriptor to reset connections that have waited for too long.
    fn shed(&mut self, cx: &mut WorkerContext) {
        self.spare = None;
        let mut shed = Vec::new();
        for listener in self.listeners.iter().flatten() {
            for _ in 0..SHED_BURST {
                let Ok((client, client_addr)) = socket::accept(&listener.socket) else { break };
                let vip = asked_for(listener.address, &client);
                cx.unheard.note_refused(&client, vip, client_addr);
                socket::reset(client);
                shed.push((listener.frontend.clone(), client_addr, vip));
            }
        }
        // The query for an address needs a descriptor.
        cx.tell_unheard();
        self.spare = EventFd::new().ok();
        for (frontend, client, vip) in shed {
            cx.state().accept_shed.add(1);
            let lane = &frontend.entry.lanes[cx.number];
            lane.accepted.add(1);
            lane.ended[EndReason::OutOfFiles as usize].add(1);
            let origin = FlowOrigin { accepted_at_ns: cx.now_ns(), client, vip, frontend: frontend.entry.id };
            let id = cx.take_id();
            cx.report_ended(EndedFlow::unserved(id, origin, EndReason::OutOfFiles));
        }
    }
}

/// Reads the PROXY header if it is complete, and goes on to connect.
pub(super) fn header_ready(cx: &mut WorkerContext, flow: &mut Flow, ready: Ready) -> FlowVerdict {
    let Phase::Header(client) = &flow.phase else { return FlowVerdict::Keep };
    let mut header = [0; HEADER_MAX];
    let length = match socket::peek(client, &mut header) {
        Ok(0) => return FlowVerdict::End(EndReason::BadProxyHeader, 0),
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return FlowVerdict::Keep,
        Err(error) => return FlowVerdict::End(EndReason::ClientLeft, error.raw_os_error().unwrap_or(0)),
    };
    match proxy_protocol::parse(&header[..length]) {
        Parse::Incomplete if length < HEADER_MAX => return FlowVerdict::Keep,
        Parse::Incomplete | Parse::Invalid(_) => return FlowVerdict::End(EndReason::BadProxyHeader, 0),
        Parse::Header { length, source } => {
            let _ = socket::read(client, &mut header[..length]);
            if let Some((client, vip)) = source {
                flow.client_addr = client;
                flow.vip = vip;
                cx.rename(flow);
            }
        }
    }
    match admission::admit_source(&flow.frontend, &cx.shared.sources, flow.client_addr, cx.now_ns()) {
        Ok(hold) => flow.holds.source = hold,
        Err(reason) => return FlowVerdict::End(reason, 0),
    }
    FlowVerdict::Connect { readable: ready.readable(), ends: ready.ends() }
}

/// Sets the deadline for the client's PROXY header.
pub(super) fn expect_header(cx: &mut WorkerContext, flow: &Flow, since_ns: u64) {
    let limit = flow.frontend.settings.proxy_protocol.header_timeout;
    cx.timers.set(since_ns + limit.as_nanos() as u64, Due::Header(flow.at));
}

/// The address that a client has asked for: one of many where the listener's is any.
pub(super) fn asked_for(listens: VipAddr, client: impl AsFd) -> VipAddr {
    match listens.ip().is_unspecified() {
        true => socket::local_addr(client).map_or(listens, |own| VipAddr::new(own.socket_addr())),
        false => listens,
    }
}

/// Whether a client has asked for `address`, and not for the dummy one that a socket is bound to whose port is shared: a route
/// of this host may lead there (AnyIP).
fn is_for(address: VipAddr, client: impl AsFd) -> bool {
    socket::local_addr(client).is_ok_and(|own| own.socket_addr() == address.socket_addr())
}

/// Resets a connection that may not have a flow.
fn turn_away(
    cx: &mut WorkerContext,
    client: OwnedFd,
    frontend: &FrontendPlane,
    origin: FlowOrigin,
    reason: EndReason,
) -> Accepted {
    cx.unheard.note_refused(&client, origin.vip, origin.client);
    socket::reset(client);
    frontend.entry.lanes[cx.number].ended[reason as usize].add(1);
    let id = cx.take_id();
    cx.report_ended(EndedFlow::unserved(id, origin, reason));
    Accepted::Refused
}

fn out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
