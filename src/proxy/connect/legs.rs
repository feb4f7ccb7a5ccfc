//! Where backend legs come from: which source address, and which port.
//!
//! While flows may be offloaded, ports are chosen here and not by the kernel: it would give the port of an offloaded flow,
//! which has no socket, to another connection with the same backend. Each worker goes round through ports of its own,
//! so that a port rests for long before it is used again; then it may take over its own TIME_WAIT, as `ports` says.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::ports::Ports;
use crate::addr::{BackendAddr, LocalAddr};
use crate::config::Source;
use crate::model::fleet::PortRange;
use crate::proxy::flow::Flow;
use crate::proxy::worker::Worker;
use crate::sys::socket::{self, From, NoStart};
use crate::sys::source;
use crate::table::offload::Offload;

/// Ports that are tried for one connection.
const TRIES: usize = 512;

/// How long the address that routes choose is believed.
const ROUTE_KEPT: Duration = Duration::from_secs(2);

/// A connection that was begun.
#[derive(Debug)]
pub struct Leg {
    pub socket: OwnedFd,
    /// 0: the kernel chose it.
    pub source_port: u16,
}

/// One worker's ports, and how far it has come with each backend.
#[derive(Debug, Default)]
pub struct Legs {
    /// For as long as the kernel chooses the others.
    pub waiting: Ports,
    own: Vec<u16>,
    cursors: HashMap<(IpAddr, BackendAddr), usize>,
    routes: HashMap<BackendAddr, (u64, IpAddr)>,
}

impl Legs {
    /// The ports of worker `number` of `workers`, out of those that are this instance's among its peers'.
    pub fn new(number: usize, workers: usize, port_range: Option<PortRange>) -> Self {
        let ours = |port: &u16| port_range.is_none_or(|port_range| port_range.contains(*port));
        let own = source::local_ports().into_iter().filter(ours).skip(number).step_by(workers).collect();
        Self { own, ..Self::default() }
    }

    /// Forgets backends that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(BackendAddr) -> bool) {
        self.waiting.retain(&keep);
        self.cursors.retain(|(_, backend), _| keep(*backend));
        self.routes.retain(|backend, _| keep(*backend));
    }

    /// The next port from `ip` towards `backend` that no flow without sockets has. `start` is where a new round begins.
    fn next(&mut self, ip: IpAddr, backend: BackendAddr, start: usize, taken: &Offload) -> Option<u16> {
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

impl Worker {
    /// Begins a connection to `address` for `flow`.
    pub(in crate::proxy) fn open_leg(&mut self, flow: &Flow, address: BackendAddr) -> io::Result<Leg> {
        let ip = self.source_for(flow, address);
        let leg = if self.table.offload.keeps_ports() || self.table.fleet.is_enabled() {
            self.open_from_own_port(flow, address, ip)
        } else {
            self.open_from_any_port(address, ip)
        };
        match leg {
            // The VIP is not here, or not any more: the flow came by another address.
            Err(NoStart::Address(_)) if flow.frontend.settings.source == Source::Auto => {
                let leg = socket::connect(address).map(|socket| Leg { socket, source_port: 0 });
                leg.map_err(|error| NoStart::Other(error).into())
            }
            leg => leg.map_err(io::Error::from),
        }
    }

    /// The address that the leg shall come from; `None`: the route's.
    fn source_for(&self, flow: &Flow, address: BackendAddr) -> Option<IpAddr> {
        let ip = match flow.frontend.settings.source {
            Source::Route => return None,
            Source::Address(ip) => ip,
            Source::Auto if !self.table.offload.is_open() && !self.table.fleet.is_enabled() => return None,
            Source::Auto => {
                let asked = socket::local_addr(flow.client()?).ok()?.ip();
                Some(asked).filter(|ip| !ip.is_loopback() && *ip != address.ip())?
            }
        };
        (ip.is_ipv4() == address.ip().is_ipv4()).then_some(ip)
    }

    fn open_from_any_port(&mut self, address: BackendAddr, ip: Option<IpAddr>) -> Result<Leg, NoStart> {
        if let Some(port) = self.legs.waiting.take(address, self.now_ns) {
            // It cannot always be had: without timestamps, or if somebody else has taken it meanwhile.
            let socket = socket::connect_from(address, From { ip, port: Some(port), mss: None });
            self.legs.waiting.learn(address, socket.is_ok(), self.now_ns);
            if let Ok(socket) = socket {
                return Ok(Leg { socket, source_port: port });
            }
        }
        let socket = socket::connect_from(address, From { ip, ..From::default() })?;
        Ok(Leg { socket, source_port: 0 })
    }

    fn open_from_own_port(&mut self, flow: &Flow, address: BackendAddr, ip: Option<IpAddr>) -> Result<Leg, NoStart> {
        let ip = match ip {
            Some(ip) => ip,
            None => self.route_to(address).map_err(NoStart::Other)?,
        };
        // The backend must not be told of longer segments than the client takes, or the flow could not be offloaded.
        let mss = flow.client().and_then(|client| socket::segment_max(client).ok());
        let start = self.random.usize(..);
        let mut last = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        for _ in 0..TRIES.min(self.legs.own.len()) {
            let Some(port) = self.legs.next(ip, address, start, &self.table.offload) else { break };
            match socket::connect_from(address, From { ip: Some(ip), port: Some(port), mss }) {
                Ok(socket) => return Ok(Leg { socket, source_port: port }),
                Err(NoStart::Port(error)) => last = error,
                Err(other) => return Err(other),
            }
        }
        Err(NoStart::Port(last))
    }

    fn route_to(&mut self, address: BackendAddr) -> io::Result<IpAddr> {
        let kept_ns = ROUTE_KEPT.as_nanos() as u64;
        if let Some((at_ns, ip)) = self.legs.routes.get(&address)
            && self.now_ns.saturating_sub(*at_ns) < kept_ns
        {
            return Ok(*ip);
        }
        let ip = source::by_route(address)?;
        self.legs.routes.insert(address, (self.now_ns, ip));
        Ok(ip)
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
        let mut legs = Legs { own: vec![40, 42, 44, 46], ..Legs::default() };
        let reserve = |port: u16| taken.reserve(LocalAddr::new((ip, port).into()), backend);
        reserve(42);
        let mut next = || legs.next(ip, backend, 0, &taken);
        assert_eq!([next(), next(), next(), next()], [Some(44), Some(46), Some(40), Some(44)]);
        [40, 44, 46].into_iter().for_each(reserve);
        assert_eq!(next(), None);
        taken.release(LocalAddr::new((ip, 46).into()), backend);
        assert_eq!(next(), Some(46));
    }
}
