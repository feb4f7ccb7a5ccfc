//! Begins a connection to a backend, from the address and the port that it shall come from.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::legs::Leg;
use crate::addr::BackendAddr;
use crate::config::Source;
use crate::proxy::flow::Flow;
use crate::proxy::worker::Worker;
use crate::sys::socket::{self, From, NoStart};
use crate::sys::source;

/// Ports that are tried for one connection.
const TRIES: usize = 512;

/// How long the address that routes choose is believed.
const ROUTE_KEPT: Duration = Duration::from_secs(2);

impl Worker {
    /// Begins a connection to `address` for `flow`.
    pub(in crate::proxy) fn open_leg(&mut self, flow: &Flow, address: BackendAddr) -> io::Result<Leg> {
        let ip = self.source_for(flow, address);
        let leg = if self.cx.table.offload.keeps_ports() || self.cx.table.fleet.is_enabled() {
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
            Source::Auto if !self.cx.table.offload.is_open() && !self.cx.table.fleet.is_enabled() => return None,
            Source::Auto => {
                let asked = socket::local_addr(flow.client()?).ok()?.ip();
                Some(asked).filter(|ip| !ip.is_loopback() && *ip != address.ip())?
            }
        };
        (ip.is_ipv4() == address.ip().is_ipv4()).then_some(ip)
    }

    fn open_from_any_port(&mut self, address: BackendAddr, ip: Option<IpAddr>) -> Result<Leg, NoStart> {
        if let Some(port) = self.legs.waiting.take(address, self.cx.now_ns) {
            // It cannot always be had: without timestamps, or if somebody else has taken it meanwhile.
            let socket = socket::connect_from(address, From { ip, port: Some(port), mss: None });
            self.legs.waiting.learn(address, socket.is_ok(), self.cx.now_ns);
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
        let start = self.cx.random.usize(..);
        let mut last = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        for _ in 0..TRIES.min(self.legs.own.len()) {
            let Some(port) = self.legs.next(ip, address, start, &self.cx.table.offload) else { break };
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
            && self.cx.now_ns.saturating_sub(*at_ns) < kept_ns
        {
            return Ok(*ip);
        }
        let ip = source::by_route(address)?;
        self.legs.routes.insert(address, (self.cx.now_ns, ip));
        Ok(ip)
    }
}
