//! Source ports of backend legs that ended with our FIN first, to be used again.
//!
//! The side that sends FIN first keeps the connection's four-tuple in TIME_WAIT for a minute (RFC 9293 section 3.6.1).
//! A balancer that passes its clients' FINs on collects many of these towards few backends: at some ten thousand the
//! kernel's search for a free port takes milliseconds per connect, and later no port is left. But a socket that is
//! bound to a port by number may reuse its own TIME_WAIT if the connection had timestamps (RFC 6191;
//! net/ipv4/tcp_ipv4.c, tcp_twsk_unique with no twp). So Baton reuses the ports in turn, few are in TIME_WAIT, and no
//! sysctl needs a change.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::addr::BackendAddr;

/// Ports are reused only while this many wait: at low rates the kernel's own choice costs nothing, and a backend that
/// has not received our last ACK yet gets time.
const DEPTH: usize = 512;

/// If more wait, the rest is left to the kernel.
const DEPTH_MAX: usize = 8192;

/// TIME_WAIT lasts a minute (TCP_TIMEWAIT_LEN); after that the port is as good as any other.
const USEFUL_FOR: Duration = Duration::from_secs(60);

/// After so many refusals in a row the worker pauses its tries: without timestamps it can get none of the ports, and on
/// a host that is its own clients' host most ports belong to the clients.
const REFUSALS_MAX: u32 = 32;
const GIVE_UP_FOR: Duration = Duration::from_secs(10);

/// One worker's ports in TIME_WAIT, by backend.
#[derive(Debug, Default)]
pub(super) struct Ports {
    backends: HashMap<BackendAddr, WaitingPorts>,
}

#[derive(Debug, Default)]
struct WaitingPorts {
    /// Oldest first, each with the time when it was given.
    ports: VecDeque<(u64, u16)>,
    refusals: u32,
    given_up_until_ns: u64,
}

impl Ports {
    /// Whether a port towards `backend` may be reused once its flow has ended.
    pub(super) fn wants(&self, backend: BackendAddr, now_ns: u64) -> bool {
        self.backends.get(&backend).is_none_or(|waiting| now_ns >= waiting.given_up_until_ns)
    }

    /// The port that has waited longest towards `backend`, if enough of them wait. Report then whether the bind
    /// succeeded: [`Ports::learn`].
    pub(super) fn take(&mut self, backend: BackendAddr, now_ns: u64) -> Option<u16> {
        let ports = &mut self.backends.get_mut(&backend)?.ports;
        while let Some((since_ns, _)) = ports.front()
            && now_ns.saturating_sub(*since_ns) > USEFUL_FOR.as_nanos() as u64
        {
            ports.pop_front();
        }
        if ports.len() < DEPTH {
            return None;
        }
        ports.pop_front().map(|(_, port)| port)
    }

    /// Reports whether the bind to a taken port succeeded.
    pub(super) fn learn(&mut self, backend: BackendAddr, had: bool, now_ns: u64) {
        let waiting = self.backends.entry(backend).or_default();
        waiting.refusals = if had { 0 } else { waiting.refusals + 1 };
        if waiting.refusals == REFUSALS_MAX {
            *waiting =
                WaitingPorts { given_up_until_ns: now_ns + GIVE_UP_FOR.as_nanos() as u64, ..WaitingPorts::default() };
        }
    }

    /// `port` went into TIME_WAIT towards `backend`.
    pub(super) fn give(&mut self, backend: BackendAddr, port: u16, now_ns: u64) {
        let waiting = self.backends.entry(backend).or_default();
        if waiting.ports.len() < DEPTH_MAX && now_ns >= waiting.given_up_until_ns {
            waiting.ports.push_back((now_ns, port));
        }
    }

    /// Forgets backends that `keep` does not want.
    pub(super) fn retain(&mut self, keep: impl Fn(BackendAddr) -> bool) {
        self.backends.retain(|backend, _| keep(*backend));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_go_round_oldest_first_and_not_after_their_minute() {
        let backend = BackendAddr::new("10.0.0.1:6443".parse().unwrap());
        let mut ports = Ports::default();
        for port in 0..DEPTH as u16 - 1 {
            ports.give(backend, port, 1);
        }
        assert_eq!(ports.take(backend, 1), None);
        ports.give(backend, 999, 2);
        assert_eq!(ports.take(backend, 2), Some(0));
        for port in 0..DEPTH as u16 {
            ports.give(backend, port, 61_000_000_000);
        }
        assert_eq!(ports.take(backend, 61_000_000_003), Some(0));
        let other = BackendAddr::new("10.0.0.2:6443".parse().unwrap());
        assert_eq!(ports.take(other, 61_000_000_003), None);
    }

    #[test]
    fn where_no_port_can_be_had_none_is_asked_for_until_the_pause_is_over() {
        let backend = BackendAddr::new("10.0.0.1:6443".parse().unwrap());
        let mut ports = Ports::default();
        for port in 0..2 * DEPTH as u16 {
            ports.give(backend, port, 1);
        }
        for refusal in 1..=REFUSALS_MAX {
            assert!(ports.wants(backend, 2), "after {refusal} refusals");
            assert!(ports.take(backend, 2).is_some());
            // After one success the count begins anew.
            ports.learn(backend, refusal == 5, 2);
        }
        assert!(ports.wants(backend, 2));
        (0..5).for_each(|_| ports.learn(backend, false, 2));
        let over = 2 + GIVE_UP_FOR.as_nanos() as u64;
        assert!(!ports.wants(backend, over - 1));
        ports.give(backend, 7, over - 1);
        assert_eq!(ports.take(backend, over - 1), None);
        assert!(ports.wants(backend, over));
    }
}
