//! Source address and source port of backend legs.
//!
//! While flows may be offloaded, Baton chooses the ports, not the kernel. An offloaded flow has no socket, so the
//! kernel would give its port to another connection with the same backend. Each worker cycles through its own ports, so
//! that a port rests for long before it is reused; then it may reuse its own TIME_WAIT, as `ports` describes.
//!
//! The kernel's connect(2) takes every second port of its range, from the first one on, as long as one of these is free
//! (net/ipv4/inet_hashtables.c, __inet_hash_connect). Baton prefers the others: a program with the same source address,
//! such as a client on this host, then seldom has a port that Baton wants, and each such port costs a socket.

mod begin;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::ports::Ports;
use crate::addr::{BackendAddr, LocalAddr};
use crate::model::fleet::PortRange;
use crate::ports::offload::Offload;
use crate::sys::source;

/// Ports of one half that are tried in a row, before the other half is.
const REFUSALS_MAX: usize = 32;

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
    own: OwnPorts,
    cursors: HashMap<(IpAddr, BackendAddr), PortCursor>,
    /// Per backend, the source address that the route chooses, and when it was asked for, in monotonic ns.
    routes: HashMap<BackendAddr, (u64, IpAddr)>,
    random: fastrand::Rng,
}

/// One worker's ports: those that connect(2) leaves alone, and those that it takes itself.
#[derive(Debug, Default)]
struct OwnPorts([Vec<u16>; 2]);

/// The next position in each half of the worker's ports, and the half in use.
#[derive(Clone, Copy, Debug)]
struct PortCursor {
    at: [usize; 2],
    half: usize,
}

impl SourcePorts {
    /// The ports of worker `number` of `workers`, from this instance's range among its peers'.
    pub(crate) fn new(number: usize, workers: usize, port_range: Option<PortRange>) -> Self {
        let ours = |port: &u16| port_range.is_none_or(|port_range| port_range.contains(*port));
        let ports: Vec<_> = source::local_ports().into_iter().filter(ours).collect();
        Self {
            own: OwnPorts::of_worker(number, workers, &ports, *source::local_port_range().start()),
            ..Self::default()
        }
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
        let cursor = self.cursors.entry((ip, backend)).or_insert(PortCursor { at: [start; 2], half: 0 });
        for half in [cursor.half, 1 - cursor.half] {
            let ports = &self.own.0[half];
            for _ in 0..ports.len() {
                cursor.at[half] = (cursor.at[half] + 1) % ports.len();
                let port = ports[cursor.at[half]];
                if !taken.is_reserved(LocalAddr::new((ip, port).into()), backend) {
                    return Some(port);
                }
            }
        }
        None
    }

    /// Another socket has the port that [`Self::next`] returned. After [`REFUSALS_MAX`] `in_a_row`, the other half is next.
    pub(super) fn refused(&mut self, ip: IpAddr, backend: BackendAddr, in_a_row: usize) {
        if in_a_row.is_multiple_of(REFUSALS_MAX)
            && let Some(cursor) = self.cursors.get_mut(&(ip, backend))
        {
            cursor.half = 1 - cursor.half;
        }
    }
}

impl OwnPorts {
    /// Its share of `ports`. `first`: of the kernel's range, reserved or not.
    fn of_worker(number: usize, workers: usize, ports: &[u16], first: u16) -> Self {
        let (kernels, left): (Vec<_>, Vec<_>) = ports.iter().partition(|port| (*port - first).is_multiple_of(2));
        Self([left, kernels].map(|half| half.into_iter().skip(number).step_by(workers).collect()))
    }

    fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
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
        let own = OwnPorts::of_worker(0, 2, &[40, 41, 42, 43, 44, 45, 46, 47], 40);
        assert_eq!(own.0, [[41, 45], [40, 44]]);
        let mut ports = SourcePorts { own, ..SourcePorts::default() };
        let reserve = |port: u16| taken.reserve(LocalAddr::new((ip, port).into()), backend);
        let mut next = || ports.next(ip, backend, 0, &taken);
        assert_eq!([next(), next(), next()], [Some(45), Some(41), Some(45)]);
        reserve(45);
        assert_eq!([next(), next()], [Some(41), Some(41)]);
        reserve(41);
        assert_eq!([next(), next(), next()], [Some(44), Some(40), Some(44)]);
        [40, 44].into_iter().for_each(reserve);
        assert_eq!(next(), None);
        taken.release(LocalAddr::new((ip, 41).into()), backend);
        assert_eq!(next(), Some(41));
    }

    #[test]
    fn where_others_have_half_of_the_ports_the_other_half_is_tried() {
        let taken = Offload::new(1).unwrap();
        let ip: IpAddr = "10.0.0.100".parse().unwrap();
        let backend = BackendAddr::new("10.0.0.11:6443".parse().unwrap());
        let all: Vec<u16> = (1000..2000).collect();
        let mut ports = SourcePorts { own: OwnPorts::of_worker(0, 1, &all, 1000), ..SourcePorts::default() };
        for half in [1, 0, 1] {
            for refusal in 0..REFUSALS_MAX {
                let port = ports.next(ip, backend, 0, &taken).unwrap();
                assert_eq!(port % 2, half, "refusal {refusal}");
                ports.refused(ip, backend, refusal + 1);
            }
        }
        // A success stays where it was.
        for _ in 0..2 * REFUSALS_MAX {
            assert_eq!(ports.next(ip, backend, 0, &taken).unwrap() % 2, 0);
            ports.next(ip, backend, 0, &taken).unwrap();
            ports.refused(ip, backend, 1);
        }
    }

    #[test]
    fn the_kernel_takes_none_of_the_ports_that_baton_prefers() {
        let own = SourcePorts::new(0, 1, None).own;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..50).map(|_| std::net::TcpStream::connect(place).unwrap()).collect();
        let theirs = clients.iter().map(|client| client.local_addr().unwrap().port());
        assert_eq!(theirs.filter(|port| own.0[0].contains(port)).count(), 0);
    }
}
