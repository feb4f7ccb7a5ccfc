//! Timers of another configuration for flows that live already.

use crate::proxy::flow::{Flow, Phase, patience_ns};
use crate::proxy::worker::{FlowVerdict, Worker};
use crate::sys::socket;
use crate::table::offload::Request;

impl Worker {
    /// Gives a flow the timers that its frontend has now. What is opened or lent later has them anyway.
    pub(in crate::proxy) fn retime(&mut self, flow: &mut Flow) -> FlowVerdict {
        let timeouts = &flow.frontend.timeouts;
        // They fail if the connection has ended, which epoll tells.
        match &flow.phase {
            Phase::Header(client) => drop(socket::set_timeouts(client, timeouts)),
            Phase::Connecting(connecting) => drop(socket::set_timeouts(&connecting.client, timeouts)),
            Phase::Relaying(relaying) => {
                // A lenient one was given more time, and gets what the settings say when it is looked at again.
                let set = if relaying.lenient { socket::set_keepalive } else { socket::set_timeouts };
                let _ = set(&relaying.client, timeouts);
                let _ = set(&relaying.backend, timeouts);
            }
            Phase::Offloading(_) | Phase::Offloaded { .. } => {
                let (ticket, patience_ns) = (self.ticket(flow), patience_ns(flow));
                self.table.offload.ask(Request::Patience { ticket, patience_ns });
            }
            Phase::Between => {}
        }
        FlowVerdict::Keep
    }
}
