//! The sequence numbers of a connection, for parts that may have to reset it after its socket is gone. The kernel
//! resets it at most once: for a connection that it has given up, ETIMEDOUT tells only this host's side
//! (net/ipv4/tcp_timer.c, tcp_write_err), and an end that has sent its FIN and closes sends no RST (net/ipv4/tcp.c,
//! tcp_need_reset). A closed socket keeps the numbers. Needs CAP_NET_ADMIN, for TCP_REPAIR.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::silence::unacknowledged;
use super::{int_option, socket, tcp_info};

/// The addresses and sequence numbers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceNumbers {
    /// The port of a closed socket is 0.
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The far end's last acknowledgement, and the end of the sent bytes: the far end expects a number between the two.
    pub acked: u32,
    pub sent: u32,
    /// The end of the received bytes.
    pub received: u32,
}

/// Reads the numbers from a socket that is, or was, connected. The connection goes on.
pub fn sequence_numbers(fd: impl AsFd) -> io::Result<SequenceNumbers> {
    let fd = fd.as_fd();
    let (written, received) = numbers(fd)?;
    let acked = written.wrapping_sub(unacknowledged(fd)? as u32);
    let sent = written.wrapping_sub(tcp_info::unsent(fd)?);
    Ok(SequenceNumbers { local: socket::local_addr(fd)?.socket_addr(), remote: peer_name(fd)?, acked, sent, received })
}

/// As [`sequence_numbers`], with half the calls, for a connection with these addresses that has sent nothing yet.
pub(crate) fn beginning(fd: impl AsFd, local: SocketAddr, remote: SocketAddr) -> io::Result<SequenceNumbers> {
    let (sent, received) = numbers(fd.as_fd())?;
    Ok(SequenceNumbers { local, remote, acked: sent, sent, received })
}

/// The ends of the written and of the received bytes.
fn numbers(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let set = |option, value| int_option::set(fd, libc::IPPROTO_TCP, option, value);
    set(libc::TCP_REPAIR, 1)?;
    let read = |queue| {
        set(libc::TCP_REPAIR_QUEUE, queue)?;
        queue_seq(&fd)
    };
    let numbers = read(WRITTEN).and_then(|written| Ok((written, read(RECEIVED)?)));
    // This value suppresses the window probe that TCP_REPAIR_OFF sends; while TCP_REPAIR is on, closing sends nothing.
    set(libc::TCP_REPAIR, REPAIR_OFF_NO_PROBE)?;
    numbers
}

fn queue_seq(socket: &impl AsRawFd) -> io::Result<u32> {
    let mut seq = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option gives one int, and `seq` has room for it; both outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, (&raw mut seq).cast(), &mut length)
    };
    if result == 0 { Ok(seq) } else { Err(io::Error::last_os_error()) }
}

/// For a closed socket getpeername(2) fails, but SO_PEERNAME works (net/ipv4/af_inet.c, inet_getname).
fn peer_name(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // SAFETY: plain integers, of which zeros are valid.
    let mut name: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // The kernel refuses a longer buffer than it fills.
    if rustix::net::sockopt::socket_domain(socket)? == rustix::net::AddressFamily::INET {
        length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    }
    // SAFETY: the kernel writes at most `length` bytes, and `name` has as many; both outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERNAME, (&raw mut name).cast(), &mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let port = u16::from_be(name.sin6_port);
    match libc::c_int::from(name.sin6_family) {
        libc::AF_INET => {
            // struct sockaddr_in: family, port, address.
            let ip = name.sin6_flowinfo.to_ne_bytes();
            Ok(SocketAddr::new(IpAddr::from(ip), port))
        }
        libc::AF_INET6 => Ok(SocketAddr::new(IpAddr::from(name.sin6_addr.s6_addr), port)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// TCP_RECV_QUEUE and TCP_SEND_QUEUE (include/uapi/linux/tcp.h).
const RECEIVED: libc::c_int = 1;
const WRITTEN: libc::c_int = 2;

/// TCP_REPAIR_OFF_NO_WP, since Linux 4.19.
const REPAIR_OFF_NO_PROBE: libc::c_int = -1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_goes_on_after_its_numbers_were_read_and_what_one_end_sends_the_other_receives() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(ip).unwrap();
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            let [local, remote] = [far.local_addr().unwrap(), far.peer_addr().unwrap()];
            match (beginning(&far, local, remote), sequence_numbers(&far)) {
                (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => return,
                (beginning, numbers) => assert_eq!(beginning.unwrap(), numbers.unwrap()),
            }
            for round in 0..3 {
                near.write_all(b"four").unwrap();
                far.read_exact(&mut [0; 4]).unwrap();
                let (here, there) = match (sequence_numbers(&near), sequence_numbers(&far)) {
                    (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => return,
                    (here, there) => (here.unwrap(), there.unwrap()),
                };
                assert_eq!((here.local, here.remote), (there.remote, there.local));
                assert_eq!((here.sent, here.received), (there.received, there.sent), "{round}");
                assert!(here.sent.wrapping_sub(here.acked) <= 4, "{here:?}");
            }
            assert_eq!(peer_name(near.as_fd()).unwrap(), listener.local_addr().unwrap());
        }
    }
}
