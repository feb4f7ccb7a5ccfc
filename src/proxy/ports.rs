//! Source ports of backend legs that ended with our FIN first, to be used again.
//!
//! The side that sends FIN first keeps the connection's four-tuple in TIME_WAIT for a minute (RFC 9293 section 3.6.1).
//! For a balancer that passes its clients' FINs on, those pile up towards few backends: at some ten thousand the
//! kernel's search for a free port costs milliseconds per connect, and then there is none left. But a socket that is
//! bound to a port by name may take over its own TIME_WAIT if the connection had timestamps (RFC 6191;
//! net/ipv4/tcp_ipv4.c, tcp_twsk_unique with no twp). So the ports go round, TIME_WAIT stays short, and no sysctl
//! needs to be set.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::addr::BackendAddr;

/// Ports are used again only when this many wait: at low rates the kernel's own choice costs nothing, and a backend
/// that has not yet seen our last ACK gets time.
const DEPTH: usize = 64;

/// More than this many are left to the kernel.
const DEPTH_MAX: usize = 8192;

/// TIME_WAIT lasts a minute (TCP_TIMEWAIT_LEN); after that the port is as good as any other.
const USEFUL_FOR: Duration = Duration::from_secs(60);

/// One worker's ports in TIME_WAIT, oldest first, by backend.
#[derive(Debug, Default)]
pub struct Ports {
    waiting: HashMap<BackendAddr, VecDeque<(u64, u16)>>,
}

impl Ports {
    /// The port that has waited longest towards `backend`, if enough of them wait.
    pub fn take(&mut self, backend: BackendAddr, now_ns: u64) -> Option<u16> {
        let waiting = self.waiting.get_mut(&backend)?;
        while let Some((since_ns, _)) = waiting.front()
            && now_ns.saturating_sub(*since_ns) > USEFUL_FOR.as_nanos() as u64
        {
            waiting.pop_front();
        }
        if waiting.len() < DEPTH {
            return None;
        }
        waiting.pop_front().map(|(_, port)| port)
    }

    /// `port` went into TIME_WAIT towards `backend`.
    pub fn give(&mut self, backend: BackendAddr, port: u16, now_ns: u64) {
        let waiting = self.waiting.entry(backend).or_default();
        if waiting.len() < DEPTH_MAX {
            waiting.push_back((now_ns, port));
        }
    }

    /// Forgets backends that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(BackendAddr) -> bool) {
        self.waiting.retain(|backend, _| keep(*backend));
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
}
