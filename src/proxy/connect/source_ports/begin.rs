//! Begins a connection to a backend, from its source address and port.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::{Leg, SourcePorts};
use crate::addr::BackendAddr;
use crate::config::Source;
use crate::proxy::context::WorkerContext;
use crate::proxy::flow::Flow;
use crate::sys::socket::{self, From, NoStart};
use crate::sys::source;

/// Ports that are tried for one connection.
const TRIES: usize = 512;

/// How long the source address that a route chose stays valid.
const ROUTE_KEPT: Duration = Duration::from_secs(2);

impl SourcePorts {
    /// Begins a connection to `address` for `flow`.
    pub(in crate::proxy) fn open(&mut self, cx: &WorkerContext, flow: &Flow, address: BackendAddr) -> io::Result<Leg> {
        let ip = source_for(cx, flow, address);
        let leg = if cx.table.offload.keeps_ports() || cx.table.fleet.is_enabled() {
            self.open_from_own_port(cx, flow, address, ip)
        } else {
            self.open_from_any_port(cx.now_ns(), address, ip)
        };
        match leg {
            // The VIP is not on this host, or no longer: the flow came by another address.
            Err(NoStart::Address(_)) if flow.frontend.settings.source == Source::Auto => {
                let leg = socket::connect(address).map(|socket| Leg { socket, source_port: 0 });
                leg.map_err(|error| NoStart::Other(error).into())
            }
            leg => leg.map_err(io::Error::from),
        }
    }

    fn open_from_any_port(&mut self, now_ns: u64, address: BackendAddr, ip: Option<IpAddr>) -> Result<Leg, NoStart> {
        if let Some(port) = self.waiting.take(address, now_ns) {
            // The bind may fail: without timestamps, or if another program has taken the port meanwhile.
            let socket = socket::connect_from(address, From { ip, port: Some(port), mss: None });
            self.waiting.learn(address, socket.is_ok(), now_ns);
            if let Ok(socket) = socket {
                return Ok(Leg { socket, source_port: port });
            }
        }
        let socket = socket::connect_from(address, From { ip, ..From::default() })?;
        Ok(Leg { socket, source_port: 0 })
    }

    fn open_from_own_port(
        &mut self,
        cx: &WorkerContext,
        flow: &Flow,
        address: BackendAddr,
        ip: Option<IpAddr>,
    ) -> Result<Leg, NoStart> {
        let ip = match ip {
            Some(ip) => ip,
            None => self.route_to(cx.now_ns(), address).map_err(NoStart::Other)?,
        };
        // The backend must not learn of longer segments than the client accepts, or the flow could not be offloaded.
        let mss = flow.client().and_then(|client| socket::segment_max(client).ok());
        let start = self.random.usize(..);
        let mut last = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        for refusals in 0..TRIES.min(self.own.count()) {
            let Some(port) = self.next(ip, address, start, &cx.table.offload) else { break };
            match socket::connect_from(address, From { ip: Some(ip), port: Some(port), mss }) {
                Ok(socket) => return Ok(Leg { socket, source_port: port }),
                Err(NoStart::Port(error)) => {
                    self.refused(ip, address, refusals + 1);
                    last = error;
                }
                Err(other) => return Err(other),
            }
        }
        Err(NoStart::Port(last))
    }

    fn route_to(&mut self, now_ns: u64, address: BackendAddr) -> io::Result<IpAddr> {
        let kept_ns = ROUTE_KEPT.as_nanos() as u64;
        if let Some((at_ns, ip)) = self.routes.get(&address)
            && now_ns.saturating_sub(*at_ns) < kept_ns
        {
            return Ok(*ip);
        }
        let ip = source::by_route(address)?;
        self.routes.insert(address, (now_ns, ip));
        Ok(ip)
    }
}

/// The source address of the leg; `None`: the route's.
fn source_for(cx: &WorkerContext, flow: &Flow, address: BackendAddr) -> Option<IpAddr> {
    let ip = match flow.frontend.settings.source {
        Source::Route => return None,
        Source::Address(ip) => ip,
        Source::Auto if !cx.table.offload.is_open() && !cx.table.fleet.is_enabled() => return None,
        Source::Auto => {
            let asked = socket::local_addr(flow.client()?).ok()?.ip();
            Some(asked).filter(|ip| !ip.is_loopback() && *ip != address.ip())?
        }
    };
    (ip.is_ipv4() == address.ip().is_ipv4()).then_some(ip)
}
