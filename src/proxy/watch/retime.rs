//! Sets new timers on existing flows: those of another configuration, or shorter ones while their far ends must be
//! challenged often.
//!
//! If live instances take each other for dead, one may answer packets of the other's flows with RST. Then the backend
//! forgets the connection, and the client would wait until this instance's keepalive finds that out. So keepalives go
//! out sooner for a while.

use std::time::Duration;

use super::FlowWatch;
use crate::ports::offload::Request;
use crate::proxy::context::WorkerContext;
use crate::proxy::context::slab::FlowSlab;
use crate::proxy::flow::{Flow, Phase, patience_ns};
use crate::proxy::timers::Due;
use crate::proxy::token::FlowRef;
use crate::proxy::verdict::FlowVerdict;
use crate::sys::liveness::{SocketTimeouts, set_timeouts_anew};

/// An end that was silent for so long is probed then, and again after [`ASK_EVERY`]. The time until it is given up
/// stays the same: so many more probes must be unanswered.
const ASK_AFTER: Duration = Duration::from_secs(2);

const ASK_EVERY: Duration = Duration::from_secs(1);

impl FlowWatch {
    /// Sets a flow's present timers. Sockets that are opened or come back later get them anyway.
    pub(in crate::proxy) fn retime(&self, cx: &WorkerContext, flow: &Flow) -> FlowVerdict {
        let timeouts = &self.timeouts(cx, flow);
        // Fails if the connection has ended, which epoll reports.
        match &flow.phase {
            Phase::Header(client) => drop(set_timeouts_anew(client, timeouts)),
            Phase::Connecting(connecting) => drop(set_timeouts_anew(&connecting.client, timeouts)),
            Phase::Relaying(relaying) => {
                let _ = set_timeouts_anew(&relaying.client, timeouts);
                let _ = set_timeouts_anew(&relaying.backend, timeouts);
            }
            Phase::Offloading(_) | Phase::Offloaded { .. } => {
                let (ticket, patience_ns) = (cx.ticket(flow), patience_ns(flow));
                cx.table.offload.ask(Request::Patience { ticket, patience_ns });
            }
            Phase::Between => {}
        }
        FlowVerdict::Keep
    }

    /// Schedules new timers for a flow whose settings have changed.
    pub(in crate::proxy) fn retime_later(&mut self, at: FlowRef) {
        self.retiming.push_back(at);
    }

    pub(in crate::proxy) fn next_retiming(&mut self) -> Option<FlowRef> {
        self.retiming.pop_front()
    }

    /// The timers of a flow's settings, or shorter ones while its ends are challenged often.
    pub(in crate::proxy) fn timeouts(&self, cx: &WorkerContext, flow: &Flow) -> SocketTimeouts {
        let timeouts = flow.frontend.timeouts;
        if cx.now_ns() >= self.asking_until_ns {
            return timeouts;
        }
        SocketTimeouts {
            keepalive_idle: timeouts.keepalive_idle.min(ASK_AFTER),
            keepalive_interval: timeouts.keepalive_interval.min(ASK_EVERY),
            ..timeouts
        }
    }

    /// Has the ends of quiet proxied flows probed until `until_ns`.
    pub(in crate::proxy) fn ask_ends(&mut self, cx: &mut WorkerContext, flows: &FlowSlab, until_ns: u64) {
        let asks_already = self.asking_until_ns != 0;
        self.asking_until_ns = self.asking_until_ns.max(until_ns);
        cx.timers.set(self.asking_until_ns, Due::Asked);
        if !asks_already {
            self.retime_relaying(flows);
        }
    }

    pub(in crate::proxy) fn stop_asking(&mut self, cx: &WorkerContext, flows: &FlowSlab) {
        if cx.now_ns() >= self.asking_until_ns && std::mem::take(&mut self.asking_until_ns) != 0 {
            self.retime_relaying(flows);
        }
    }

    fn retime_relaying(&mut self, flows: &FlowSlab) {
        self.retiming.extend(flows.iter().filter(|flow| matches!(flow.phase, Phase::Relaying(_))).map(|flow| flow.at));
    }
}
