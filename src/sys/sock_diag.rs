//! sock_diag(7): whether this host has a connection, which sockets listen, and the end of connections that have lost their address.

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, Parseable};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_packet_sock_diag::{
    SOCK_DIAG_BY_FAMILY, TCP_CLOSING, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_LAST_ACK, TCP_LISTEN, TCP_TIME_WAIT,
};
use rustix::net::netlink::SOCK_DIAG;

use super::netlink::ask;

const NO_COOKIE: [u8; 8] = [0xff; 8];

/// linux/sock_diag.h
const SOCK_DESTROY: u16 = 21;

/// The state of a connection on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// A process has its socket, or is about to accept it.
    Open,
    /// No process has it any more: the kernel sends the rest of the written bytes, and FIN.
    Closing,
    /// No process has it any more, and all sent bytes were acknowledged (FIN_WAIT2, TIME_WAIT): nobody reads further
    /// bytes.
    Over,
}

/// A TCP socket that listens in this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListeningSocket {
    /// Its address; the unspecified one stands for all of its family, and IPv6's maybe for IPv4's as well.
    pub address: SocketAddr,
    /// Of its file, by which [`super::process::holder`] finds the process.
    pub inode: u32,
    /// As [`super::socket::cookie`] reads it.
    pub cookie: u64,
}

/// Every TCP socket that listens in this thread's network namespace.
pub(crate) fn listeners() -> io::Result<Vec<ListeningSocket>> {
    let mut found = Vec::new();
    for (family, socket_id) in [(libc::AF_INET, SocketId::new_v4()), (libc::AF_INET6, SocketId::new_v6())] {
        let request = InetRequest {
            family: family as u8,
            protocol: libc::IPPROTO_TCP as u8,
            extensions: ExtensionFlags::empty(),
            states: StateFlags::LISTEN,
            socket_id,
        };
        ask(Some(SOCK_DIAG), SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &[&request], |message| {
            let Ok(header) = InetResponseHeader::parse(message) else { return };
            let id = header.socket_id;
            found.push(ListeningSocket {
                address: SocketAddr::new(id.source_address, id.source_port),
                inode: header.inode,
                cookie: u64::from_ne_bytes(id.cookie),
            });
        })?;
    }
    Ok(found)
}

/// Whether a TCP socket of this host has this connection: established, in its handshake, or closing. A listening socket
/// does not count.
pub(crate) fn has_connection(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    Ok(connection(local, remote)?.is_some())
}

/// Ends the connections that clients of this host have from the address of `to` to `to`, and returns how many. Their kernel has no
/// route for these any more once the address has left the host, so nothing else ends them. Each client sees ECONNABORTED.
/// Needs CAP_NET_ADMIN, and a kernel with CONFIG_INET_DIAG_DESTROY.
pub(crate) fn end_connections_of_clients(to: SocketAddr) -> io::Result<usize> {
    let request = InetRequest {
        family: if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all() & !(StateFlags::LISTEN | StateFlags::TIME_WAIT),
        socket_id: SocketId {
            destination_port: to.port(),
            ..if to.is_ipv4() { SocketId::new_v4() } else { SocketId::new_v6() }
        },
    };
    let mut found = Vec::new();
    ask(Some(SOCK_DIAG), SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &[&request], |message| {
        let Ok(header) = InetResponseHeader::parse(message) else { return };
        let id = header.socket_id;
        if (id.source_address, id.destination_address, id.destination_port) == (to.ip(), to.ip(), to.port()) {
            found.push(id);
        }
    })?;
    let mut ended = 0;
    for socket_id in found {
        let request = InetRequest { socket_id, ..request.clone() };
        match ask(Some(SOCK_DIAG), SOCK_DESTROY, NLM_F_ACK, &[&request], |_| {}) {
            Ok(()) => ended += 1,
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ended)
}

/// The state of a connection on this host. `None`: there is no socket, or only a listening one.
pub(crate) fn connection(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Connection>> {
    let request = InetRequest {
        family: if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::from_bits_retain(u32::MAX),
        socket_id: SocketId {
            source_port: local.port(),
            destination_port: remote.port(),
            source_address: local.ip(),
            destination_address: remote.ip(),
            interface_id: 0,
            cookie: NO_COOKIE,
        },
    };
    let mut found = None;
    let asked = ask(Some(SOCK_DIAG), SOCK_DIAG_BY_FAMILY, 0, &[&request], |message| {
        found = InetResponseHeader::parse(message).ok();
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        asked => {
            let found = asked.and(found.ok_or_else(|| io::ErrorKind::InvalidData.into()))?;
            Ok(connection_in(found.state, found.inode))
        }
    }
}

/// A connection that no process has accepted yet has no inode either, but it has sent no FIN (net/ipv4/inet_diag.c,
/// inet_diag_msg_common_fill and inet_twsk_diag_fill).
fn connection_in(state: u8, inode: u32) -> Option<Connection> {
    Some(match (state, inode) {
        (TCP_LISTEN, _) => return None,
        (TCP_FIN_WAIT2 | TCP_TIME_WAIT, 0) => Connection::Over,
        (TCP_FIN_WAIT1 | TCP_LAST_ACK | TCP_CLOSING, 0) => Connection::Closing,
        _ => Connection::Open,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::sys::clock::now_ns;

    #[test]
    fn a_connection_is_known_also_before_it_is_accepted_and_a_listener_is_none() {
        for ip in ["127.0.0.1", "[::1]"] {
            let listener = TcpListener::bind(format!("{ip}:0")).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (vip, from) = (listener.local_addr().unwrap(), client.local_addr().unwrap());
            assert!(has_connection(vip, from).unwrap(), "in the backlog");
            let accepted = listener.accept().unwrap();
            assert!(has_connection(vip, from).unwrap() && has_connection(from, vip).unwrap());
            let other = SocketAddr::new(from.ip(), from.port() ^ 1);
            assert!(!has_connection(vip, other).unwrap(), "only the listener fits");
            drop((accepted, listener, client));
        }
    }

    #[test]
    fn connections_from_an_address_to_itself_are_ended_and_no_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(to).unwrap();
        let mut served = listener.accept().unwrap().0;
        let unrelated = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut other = TcpStream::connect(unrelated.local_addr().unwrap()).unwrap();
        match end_connections_of_clients(to) {
            // Without the capability nothing is left to show.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
            ended => assert_eq!(ended.unwrap(), 1),
        }
        let told = |stream: &mut TcpStream| stream.read(&mut [0]).unwrap_err().kind();
        assert_eq!(told(&mut client), io::ErrorKind::ConnectionAborted);
        assert_eq!(told(&mut served), io::ErrorKind::ConnectionReset);
        other.write_all(b"x").unwrap();
        assert_eq!(unrelated.accept().unwrap().0.read(&mut [0]).unwrap(), 1);
        assert_eq!(end_connections_of_clients(to).unwrap(), 0);
    }

    #[test]
    fn a_listener_is_found_with_the_process_that_has_it() {
        for ip in ["127.0.0.1", "[::1]", "0.0.0.0", "[::]"] {
            let listener = TcpListener::bind(format!("{ip}:0")).unwrap();
            let address = listener.local_addr().unwrap();
            let found: Vec<_> = listeners().unwrap().into_iter().filter(|it| it.address == address).collect();
            assert_eq!(found.len(), 1, "{address}");
            assert_eq!(found[0].cookie, super::super::socket::cookie(&listener).unwrap());
            let holder = super::super::process::holder(found[0].inode).unwrap();
            assert_eq!(holder.pid, std::process::id());
            assert!(!holder.name.is_empty());
            drop(listener);
            assert!(!listeners().unwrap().iter().any(|it| it.address == address));
        }
    }

    #[test]
    fn a_half_closed_connection_is_open_while_a_process_has_it_and_over_when_none_has() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, from) = listener.accept().unwrap();
        let vip = accepted.local_addr().unwrap();
        accepted.shutdown(Shutdown::Write).unwrap();
        assert_eq!(connection(vip, from).unwrap(), Some(Connection::Open));
        assert_eq!(connection(from, vip).unwrap(), Some(Connection::Open));
        drop(accepted);
        let deadline_ns = now_ns() + 10_000_000_000;
        // Its FIN is acknowledged after a moment.
        while connection(vip, from).unwrap() == Some(Connection::Closing) && now_ns() < deadline_ns {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(connection(vip, from).unwrap(), Some(Connection::Over), "FIN_WAIT2");
        drop(client);
        let over = Some(Connection::Over);
        assert!(connection(vip, from).unwrap() == over || connection(from, vip).unwrap() == over, "TIME_WAIT");
    }

    #[test]
    fn a_connection_whose_rest_the_kernel_sends_is_closing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, from) = listener.accept().unwrap();
        let vip = accepted.local_addr().unwrap();
        accepted.set_nonblocking(true).unwrap();
        // More than fits into the client's buffer.
        while accepted.write(&[0; 65536]).is_ok() {}
        drop(accepted);
        assert_eq!(connection(vip, from).unwrap(), Some(Connection::Closing));
        drop(client);
    }
}
