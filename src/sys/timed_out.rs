//! Where a connection stood that the kernel has given up: ETIMEDOUT tells this host's side only, and no RST goes out
//! (net/ipv4/tcp_timer.c, tcp_write_err). The numbers stay in the closed socket, for who may use TCP_REPAIR.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::silence::unacknowledged;
use super::{socket, tcp_info};

/// Ends and numbers of such a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut {
    /// Of this host's end; its port is free already.
    pub local: IpAddr,
    pub remote: SocketAddr,
    /// What the far end last acknowledged, and the end of what was written: it expects a number from the first to the
    /// second.
    pub acked: u32,
    pub written: u32,
    /// What this end has received.
    pub received: u32,
}

/// Reads them from a socket that was connected. Needs CAP_NET_ADMIN. An error of the kind `InvalidInput`: the kernel has not
/// given it up.
pub fn timed_out(fd: impl AsFd) -> io::Result<TimedOut> {
    let fd = fd.as_fd();
    if !tcp_info::is_closed(fd)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set(&fd, libc::TCP_REPAIR, 1)?;
    set(&fd, libc::TCP_REPAIR_QUEUE, RECEIVED)?;
    let received = queue_seq(&fd)?;
    set(&fd, libc::TCP_REPAIR_QUEUE, WRITTEN)?;
    let written = queue_seq(&fd)?;
    let local = socket::local_addr(fd)?.ip();
    let acked = written.wrapping_sub(unacknowledged(fd)? as u32);
    Ok(TimedOut { local, remote: peer_name(fd)?, acked, written, received })
}

fn set(socket: &impl AsRawFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the option takes one int, and `value` is one that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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

/// getpeername(2) does not tell it of a closed socket, SO_PEERNAME does (net/ipv4/af_inet.c, inet_getname).
fn peer_name(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // SAFETY: plain integers, of which zeros are valid.
    let mut name: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // The kernel refuses to be asked for more than it has.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_that_lives_has_not_been_given_up() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(ip).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(timed_out(&near).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(peer_name(near.as_fd()).unwrap(), listener.local_addr().unwrap());
        }
    }
}
