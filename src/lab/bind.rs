//! Listening sockets on loopback: bound at once after a restart, or on a free port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Listens on `address`, even while connections of a killed predecessor are still in TIME_WAIT.
pub(crate) fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// An address on loopback that is free now. Another process may take it before it is used; the caller then fails with
/// "address in use" and can be started again.
///
/// Below the range from which the kernel takes ports for outgoing connections (ip_local_port_range): while a stand-in
/// is dead, its port must not become the source port of another connection, nor of a probe that then connects to
/// itself.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..ADDRESSES_TRIED {
        match std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, fastrand::u16(BELOW_EPHEMERAL))) {
            Ok(listener) => return listener.local_addr(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// `wanted`, or the first free port after it.
pub(crate) fn free_from(wanted: SocketAddr) -> io::Result<SocketAddr> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in wanted.port()..=wanted.port().saturating_add(PORTS_TRIED) {
        match std::net::TcpListener::bind((wanted.ip(), port)) {
            Ok(listener) => return listener.local_addr(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

const PORTS_TRIED: u16 = 50;
const ADDRESSES_TRIED: u32 = 100;
const BELOW_EPHEMERAL: std::ops::Range<u16> = 20_000..32_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_leads_to_the_next() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = taken.local_addr().unwrap();
        assert!(free_from(wanted).unwrap().port() > wanted.port());
    }
}
