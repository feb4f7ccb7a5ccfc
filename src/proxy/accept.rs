//! Listeners, and what becomes of a connection before it is a flow.

pub(super) mod admission;
pub(super) mod listeners;
pub(super) mod sources;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::flow::{Arrival, Flow, Phase};
use super::plane::FrontendPlane;
use super::timers::Due;
use super::token::Token;
use super::verdict::FlowVerdict;
use super::worker::Worker;
use crate::addr::{ClientAddr, VipAddr};
use crate::model::end_reason::EndReason;
use crate::model::proxy_protocol::{self, Parse};
use crate::sys::epoll::Ready;
use crate::sys::eventfd::EventFd;
use crate::sys::socket;
use crate::table::flows::FlowOrigin;
use crate::table::journal::What;
use crate::table::worker::EndedFlow;
use listeners::Listener;

/// Connections taken at a time, so that a flood does not keep flows waiting.
const BURST: usize = 64;

/// How often paused listeners try again.
const RETRY: Duration = Duration::from_millis(50);

/// A connection that waits in the backlog for want of descriptors is reset after this: it must not hang there.
const SHED_AFTER: Duration = Duration::from_secs(1);

/// Connections reset at a time while there are no descriptors.
const SHED_BURST: usize = 1024;

/// Connections taken from a listener that is about to close.
const LAST_ONES: usize = 65_536;

/// The longest PROXY header that is looked at.
const HEADER_MAX: usize = proxy_protocol::HEADER_LENGTH_MAX;

impl Worker {
    /// Takes what listener `index` has, within a fair share.
    pub(super) fn accept_from(&mut self, index: usize) {
        self.accept_up_to(index, BURST);
    }

    /// Recovers `open`, gives the others their new settings, closes those that the plane no longer has.
    pub(super) fn update_listeners(&mut self, open: Vec<Listener>) {
        let plane = self.cx.plane.clone();
        for listener in self.listeners.all.iter_mut().flatten() {
            if let Some(frontend) = plane.listening_on(listener.address) {
                if frontend.timeouts != listener.frontend.timeouts {
                    let _ = socket::set_timeouts(&listener.socket, &frontend.timeouts);
                }
                listener.frontend = frontend.clone();
            }
        }
        self.close_listeners(|listener| plane.listening_on(listener.address).is_none());
        for listener in open {
            self.open_listener(listener);
        }
    }

    /// Closes the chosen listeners. What their backlog holds is served first: closing would reset it.
    pub(super) fn close_listeners(&mut self, choose: impl Fn(&Listener) -> bool) {
        for index in 0..self.listeners.all.len() {
            if self.listeners.all[index].as_ref().is_some_and(&choose) {
                self.accept_up_to(index, LAST_ONES);
                self.listeners.all[index] = None;
            }
        }
    }

    /// A second descriptor for each listener.
    pub(super) fn lend_listeners(&self) -> io::Result<Vec<(VipAddr, OwnedFd)>> {
        let lend = |listener: &Listener| Ok((listener.address, listener.socket.try_clone()?));
        self.listeners.all.iter().flatten().map(lend).collect()
    }

    /// Takes what the listeners have, then leaves them alone, or (not `parked`) serves them again.
    pub(super) fn park_listeners(&mut self, parked: bool) {
        if self.listeners.parked == parked {
            return;
        }
        self.listeners.parked = parked;
        for index in 0..self.listeners.all.len() {
            if !parked {
                self.watch_listener(index);
            } else if let Some(listener) = &self.listeners.all[index] {
                // It may have been forgotten already, while accepting is paused.
                let _ = self.cx.epoll.forget(&listener.socket);
                self.accept_up_to(index, LAST_ONES);
            }
        }
    }

    /// Serves what the backlogs hold, and resets whoever comes later.
    pub(super) fn turn_all_away(&mut self) {
        (0..self.listeners.all.len()).for_each(|index| self.accept_up_to(index, LAST_ONES));
        self.listeners.closed = true;
    }

    /// Tries again after a pause; resets those who have waited too long.
    pub(super) fn resume_accepting(&mut self) {
        let Some(since_ns) = self.listeners.paused_since_ns.take() else { return };
        for index in 0..self.listeners.all.len() {
            self.accept_up_to(index, BURST);
            if self.listeners.paused_since_ns.is_some() {
                self.listeners.paused_since_ns = Some(since_ns);
                if self.cx.now_ns.saturating_sub(since_ns) >= SHED_AFTER.as_nanos() as u64 {
                    self.shed();
                }
                return;
            }
        }
        self.cx.state().accept_paused.store(false, Relaxed);
        let paused_ms = self.cx.now_ns.saturating_sub(since_ns) / 1_000_000;
        self.cx.table.journal.record(What::AcceptResumed { worker: self.cx.number, paused_ms });
        for index in 0..self.listeners.all.len() {
            self.watch_listener(index);
        }
    }

    /// Reads the PROXY header if it is complete, and goes on to connect.
    pub(super) fn header_ready(&mut self, flow: &mut Flow, ready: Ready) -> FlowVerdict {
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
                    self.cx.rename(flow);
                }
            }
        }
        match admission::admit_source(&flow.frontend, &self.cx.shared.sources, flow.client_addr, self.cx.now_ns) {
            Ok(hold) => flow.holds.source = hold,
            Err(reason) => return FlowVerdict::End(reason, 0),
        }
        self.begin_connect(flow, Some(ready))
    }

    fn open_listener(&mut self, listener: Listener) {
        let gap = self.listeners.all.iter().position(Option::is_none);
        let index = gap.unwrap_or(self.listeners.all.len());
        if gap.is_none() {
            self.listeners.all.push(None);
        }
        self.listeners.all[index] = Some(listener);
        self.watch_listener(index);
    }

    pub(super) fn watch_listener(&mut self, index: usize) {
        if self.listeners.parked || self.listeners.paused_since_ns.is_some() {
            return;
        }
        let Some(listener) = &self.listeners.all[index] else { return };
        if let Err(error) = self.cx.epoll.watch_level(&listener.socket, Token::Listener(index as u32).pack()) {
            tracing::error!(address = %listener.address, %error, "cannot add a listening socket to epoll; this worker accepts no connection there");
        }
    }

    fn accept_up_to(&mut self, index: usize, most: usize) {
        for _ in 0..most {
            let Some(listener) = &self.listeners.all[index] else { return };
            match socket::accept(&listener.socket) {
                Ok((client, client_addr)) => {
                    self.welcome(index, client, client_addr);
                    if self.listeners.paused_since_ns.is_some() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if out_of_files(&error) => return self.pause_accepting(&error),
                // The connection died in the backlog, or its network is down (accept(2)); the next may live.
                Err(_) => self.cx.state().accept_errors.add(1),
            }
        }
    }

    /// Makes a flow of a connection, or resets it.
    fn welcome(&mut self, listener: usize, client: OwnedFd, client_addr: ClientAddr) {
        let Some(listener) = &self.listeners.all[listener] else { return };
        let (frontend, vip) = (listener.frontend.clone(), listener.address);
        self.cx.state().accepted.add(1);
        frontend.entry.lanes[self.cx.number].accepted.add(1);
        let origin =
            FlowOrigin { accepted_at_ns: self.cx.now_ns, client: client_addr, vip, frontend: frontend.entry.id };
        if self.listeners.closed {
            return self.turn_away(client, &frontend, origin, EndReason::Shutdown);
        }
        let wants_header = admission::sends_header(&frontend.settings, client_addr);
        let admitted = admission::admit(&self.cx.plane, &frontend, &self.cx.table).and_then(|frontend_hold| {
            let source_hold = match wants_header {
                true => None,
                false => admission::admit_source(&frontend, &self.cx.shared.sources, client_addr, self.cx.now_ns)?,
            };
            Ok((frontend_hold, source_hold))
        });
        let (frontend_hold, source_hold) = match admitted {
            Ok(holds) => holds,
            Err(reason) => return self.turn_away(client, &frontend, origin, reason),
        };
        let Some((id, at)) = self.flows.enter(&mut self.cx, &origin) else {
            return self.turn_away(client, &frontend, origin, EndReason::LimitTotal);
        };
        let watched = self.cx.epoll.watch_flow(&client, Token::Client(at).pack());
        let now_ns = self.cx.now_ns;
        let phase = Phase::Header(client);
        let arrival = Arrival { id, at, phase, client_addr, vip, now_ns, frontend, frontend_hold, source_hold };
        self.flows.put(Flow::new(arrival));
        self.with_flow(at, |worker, flow| match watched {
            Err(error) => FlowVerdict::End(EndReason::Internal, error.raw_os_error().unwrap_or(0)),
            Ok(()) if wants_header => {
                worker.expect_header(flow, worker.cx.now_ns);
                FlowVerdict::Keep
            }
            Ok(()) => worker.begin_connect(flow, None),
        });
    }

    /// Has the client's PROXY header come in time.
    pub(super) fn expect_header(&mut self, flow: &Flow, since_ns: u64) {
        let limit = flow.frontend.settings.proxy_protocol.header_timeout;
        self.cx.timers.set(since_ns + limit.as_nanos() as u64, Due::Header(flow.at));
    }

    /// Resets a connection that may not have a flow.
    fn turn_away(&mut self, client: OwnedFd, frontend: &FrontendPlane, origin: FlowOrigin, reason: EndReason) {
        self.cx.unheard.note_refused(&client, origin.vip, origin.client);
        socket::reset(client);
        frontend.entry.lanes[self.cx.number].ended[reason as usize].add(1);
        let id = self.cx.take_id();
        self.cx.state().report_ended(EndedFlow::unserved(id, origin, reason));
    }

    /// Leaves connections in the backlog until a descriptor may be free.
    pub(super) fn pause_accepting(&mut self, error: &io::Error) {
        self.cx.state().accept_errors.add(1);
        self.cx.tools.pipes.shrink();
        // A retry of a connecting flow may come here during a pause: that is no reason to begin it anew.
        if self.listeners.paused_since_ns.is_some() {
            return;
        }
        self.listeners.paused_since_ns = Some(self.cx.now_ns);
        self.cx.timers.set(self.cx.now_ns + RETRY.as_nanos() as u64, Due::Accept);
        if self.cx.state().accept_paused.load(Relaxed) {
            return;
        }
        self.cx.state().accept_paused.store(true, Relaxed);
        self.cx.table.journal.record(What::AcceptPaused { worker: self.cx.number, error: error.to_string() });
        for listener in self.listeners.all.iter().flatten() {
            let _ = self.cx.epoll.forget(&listener.socket);
        }
    }

    /// Uses the spare descriptor to reset connections that have waited for too long.
    fn shed(&mut self) {
        self.listeners.spare = None;
        let mut shed = Vec::new();
        for listener in self.listeners.all.iter().flatten() {
            for _ in 0..SHED_BURST {
                let Ok((client, client_addr)) = socket::accept(&listener.socket) else { break };
                self.cx.unheard.note_refused(&client, listener.address, client_addr);
                socket::reset(client);
                shed.push((listener.frontend.clone(), client_addr, listener.address));
            }
        }
        // To ask where an address is takes a descriptor.
        self.tell_unheard();
        self.listeners.spare = EventFd::new().ok();
        for (frontend, client, vip) in shed {
            self.cx.state().accept_shed.add(1);
            let lane = &frontend.entry.lanes[self.cx.number];
            lane.accepted.add(1);
            lane.ended[EndReason::OutOfFiles as usize].add(1);
            let origin = FlowOrigin { accepted_at_ns: self.cx.now_ns, client, vip, frontend: frontend.entry.id };
            let id = self.cx.take_id();
            self.cx.state().report_ended(EndedFlow::unserved(id, origin, EndReason::OutOfFiles));
        }
    }
}

fn out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
