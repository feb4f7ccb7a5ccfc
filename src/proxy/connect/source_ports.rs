//! Source address and source port of backend legs.
//!
//! While flows may be offloaded, Baton chooses the ports, not the kernel. An offloaded flow has no socket, so the
//! kernel would give its port to another connection with the same backend. Each worker cycles through its own ports, so
//! that a port rests for long before it is reused; then it may reuse its own TIME_WAIT, as `ports` describes.

mod begin;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::ports::Ports;
use crate::addr::{BackendAddr, LocalAddr};
use crate::model::fleet::PortRange;
use crate::ports::offload::Offload;
use crate::sys::source;

/// A connection that was begun.
#[derive(Debug)]
pub(crate) struct Leg {
    pub socket: OwnedFd,
    /// 0: the kernel chose it.
    pub source_port: u16,
}

/// One worker's ports, and its position in them for each backend.
#[derive(Debug, Default)]
pub(crate) struct SourcePorts {
    /// Used while the kernel chooses the other ports.
    waiting: Ports,
    own: Vec<u16>,
    cursors: HashMap<(IpAddr, BackendAddr), usize>,
    /// Per backend, the source address that the route chooses, and when it was asked for, in monotonic ns.
    routes: HashMap<BackendAddr, (u64, IpAddr)>,
    random: fastrand::Rng,
}

impl SourcePorts {
    /// The ports of worker `number` of `workers`, from this instance's range among its peers'.
    pub(crate) fn new(number: usize, workers: usize, port_range: Option<PortRange>) -> Self {
        let ours = |port: &u16| port_range.is_none_or(|port_range| port_range.contains(*port));
        let own = source::local_ports().into_iter().filter(ours).skip(number).step_by(workers).collect();
        Self { own, ..Self::default() }
    }

    /// Whether the port of a flow with `backend` may be reused once the flow has ended with our FIN first.
    pub(crate) fn wants(&self, backend: BackendAddr, now_ns: u64) -> bool {
        self.waiting.wants(backend, now_ns)
    }

    /// `port` went into TIME_WAIT towards `backend`.
    pub(crate) fn give(&mut self, backend: BackendAddr, port: u16, now_ns: u64) {
        self.waiting.give(backend, port, now_ns);
    }

    /// Forgets backends that `keep` does not want.
    pub(crate) fn retain(&mut self, keep: impl Fn(BackendAddr) -> bool) {
        self.waiting.retain(&keep);
        self.cursors.retain(|(_, backend), _| keep(*backend));
        self.routes.retain(|backend, _| keep(*backend));
    }

    /// The next port from `ip` towards `backend` that no offloaded flow uses. `start`: the position at which a new
    /// round begins.
    pub(super) fn next(&mut self, ip: IpAddr, backend: BackendAddr, start: usize, taken: &Offload) -> Option<u16> {
        let count = self.own.len();
        let cursor = self.cursors.entry((ip, backend)).or_insert(start);
        for _ in 0..count {
            *cursor = (*cursor + 1) % count;
            let port = self.own[*cursor];
            if !taken.is_reserved(LocalAddr::new((ip, port).into()), backend) {
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_go_round_and_those_of_offloaded_flows_are_left_out() {
        let taken = Offload::new(1).unwrap();
        let ip: IpAddr = "10.0.0.100".parse().unwrap();
        let backend = BackendAddr::new("10.0.0.11:6443".parse().unwrap());
        let mut ports = SourcePorts { own: vec![40, 42, 44, 46], ..SourcePorts::default() };
        let reserve = |port: u16| taken.reserve(LocalAddr::new((ip, port).into()), backend);
        reserve(42);
        let mut next = || ports.next(ip, backend, 0, &taken);
        assert_eq!([next(), next(), next(), next()], [Some(44), Some(46), Some(40), Some(44)]);
        [40, 44, 46].into_iter().for_each(reserve);
        assert_eq!(next(), None);
        taken.release(LocalAddr::new((ip, 46).into()), backend);
        assert_eq!(next(), Some(46));
    }
}
