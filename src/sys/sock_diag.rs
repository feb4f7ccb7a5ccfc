//! sock_diag(7): whether this host has a connection.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
/// struct inet_diag_req_v2.
const REQUEST_BYTES: usize = 56;
const IPPROTO_TCP: u8 = 6;
/// include/net/tcp_states.h.
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_TIME_WAIT: u8 = 6;
const TCP_LAST_ACK: u8 = 9;
const TCP_LISTEN: u8 = 10;
const TCP_CLOSING: u8 = 11;
/// Where struct inet_diag_msg has its inode.
const INODE_AT: usize = 68;
const ANY_STATE: u32 = u32::MAX;
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// What a host still does for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A process has its socket, or is about to accept it.
    Open,
    /// No process has it any more: the kernel sends the rest of what was written, and FIN.
    Closing,
    /// No process has it any more, and all that it sent was acknowledged (FIN_WAIT2, TIME_WAIT): nobody takes what comes.
    Over,
}

/// Whether a TCP socket of this host has this connection: one that is established, about to be, or on its way out. A
/// listening socket is none.
pub fn has_connection(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    Ok(connection(local, remote)?.is_some())
}

/// What this host has of a connection. `None`: nothing, or a listening socket.
pub fn connection(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Connection>> {
    let mut message = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    message.extend((HEADER_BYTES as u32 + REQUEST_BYTES as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    message.extend([family as u8, IPPROTO_TCP, 0, 0]);
    message.extend(ANY_STATE.to_ne_bytes());
    // struct inet_diag_sockid: the ports, both addresses in 16 bytes, the interface, the cookie.
    message.extend(local.port().to_be_bytes());
    message.extend(remote.port().to_be_bytes());
    message.extend(sixteen(local.ip()));
    message.extend(sixteen(remote.ip()));
    message.extend(0_u32.to_ne_bytes());
    message.extend(NO_COOKIE);

    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = [0; 4096];
    let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    let answer = &buffer[..length];
    let (Some(kind), Some(body)) = (answer.get(4..6), answer.get(HEADER_BYTES..)) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if u16::from_ne_bytes([kind[0], kind[1]]) != NLMSG_ERROR {
        // struct inet_diag_msg: family, state ...
        let state = *body.get(1).ok_or(io::ErrorKind::InvalidData)?;
        let inode = body.get(INODE_AT..).and_then(<[u8]>::first_chunk).ok_or(io::ErrorKind::InvalidData)?;
        return Ok(connection_in(state, u32::from_ne_bytes(*inode)));
    }
    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    match -code {
        libc::ENOENT => Ok(None),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A connection that nobody has accepted yet has no inode either, but it has sent no FIN (net/ipv4/inet_diag.c,
/// inet_diag_msg_common_fill and inet_twsk_diag_fill).
fn connection_in(state: u8, inode: u32) -> Option<Connection> {
    Some(match (state, inode) {
        (TCP_LISTEN, _) => return None,
        (TCP_FIN_WAIT2 | TCP_TIME_WAIT, 0) => Connection::Over,
        (TCP_FIN_WAIT1 | TCP_LAST_ACK | TCP_CLOSING, 0) => Connection::Closing,
        _ => Connection::Open,
    })
}

/// An address in network order, IPv4 in the first four bytes.
fn sixteen(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
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
        // More than the client's buffer takes.
        while accepted.write(&[0; 65536]).is_ok() {}
        drop(accepted);
        assert_eq!(connection(vip, from).unwrap(), Some(Connection::Closing));
        drop(client);
    }
}
