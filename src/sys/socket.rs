//! TCP sockets: listeners, accepted and connecting ones, and how they are closed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{self, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::liveness::{SocketTimeouts, set_timeouts};
use super::{broker, source};
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};

/// Connections that the kernel may hold for one listener; net.core.somaxconn caps it.
const BACKLOG: i32 = 65_535;

/// The longest segment that TCP_MAXSEG accepts (include/net/tcp.h, MAX_TCP_WINDOW). Loopback has longer ones, and there it does not matter.
const MSS_MAX: u32 = 32_767;

/// Length of the TCP option with its padding.
const TIMESTAMPS_LENGTH: u32 = 12;

/// Dummy addresses, which no host may have and no packet may go to (RFC 7600 section 4.8; RFC 9780): a listener there is known to
/// the kernel, and nobody reaches it by its own address.
const NOWHERE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const NOWHERE_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 8);

/// A listener of one worker; the workers' listeners for one address form a SO_REUSEPORT group (socket(7)).
///
/// Accepted sockets inherit TCP_NODELAY and `timeouts` from it, which saves each of them six calls.
pub fn listen(address: VipAddr, timeouts: &SocketTimeouts) -> io::Result<OwnedFd> {
    listen_group(address, timeouts, 1).map(|mut group| group.remove(0))
}

/// The listeners of all `workers` for one address, each as [`listen`].
pub(crate) fn listen_group(address: VipAddr, timeouts: &SocketTimeouts, workers: usize) -> io::Result<Vec<OwnedFd>> {
    let of_worker = |_| {
        let socket = unbound(address)?;
        socket.set_reuse_port(true)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        set_timeouts(&socket, timeouts)?;
        Ok(socket)
    };
    let group = (0..workers).map(of_worker).collect::<io::Result<Vec<_>>>()?;
    broker::bind(&group, address.socket_addr())?;
    group.into_iter().map(|socket| socket.listen(BACKLOG).map(|()| socket.into())).collect()
}

/// A listener for an address of which this process has no second one.
pub(crate) fn listen_alone(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = stream_socket(address)?;
    // A restart need not wait for connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    broker::bind(&[&socket], address)?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// A non-blocking socket for datagrams to `address`.
pub(crate) fn receive_datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    broker::bind(&[&socket], address)?;
    Ok(socket.into())
}

/// As [`listen`], but leaves the port of `address` to others: the sockets of all `workers` listen on a dummy address, at a port that
/// the kernel chooses, and get connections only by a BPF program that names one of them (bpf_sk_assign, bpf-helpers(7)).
pub(crate) fn listen_nowhere(address: VipAddr, timeouts: &SocketTimeouts, workers: usize) -> io::Result<Vec<OwnedFd>> {
    let nowhere: IpAddr = if address.ip().is_ipv4() { NOWHERE_V4.into() } else { NOWHERE_V6.into() };
    let mut place = VipAddr::new(SocketAddr::new(nowhere, 0));
    let mut group = Vec::new();
    for _ in 0..workers {
        let socket = listen(place, timeouts)?;
        // The kernel gives the first one a port of its own, and the others join its group there.
        place = VipAddr::new(local_addr(&socket)?.socket_addr());
        group.push(socket);
    }
    Ok(group)
}

/// Whether [`listen_nowhere`] made this listening socket.
pub(crate) fn listens_nowhere(socket: impl AsFd) -> bool {
    let nowhere = [IpAddr::V4(NOWHERE_V4), IpAddr::V6(NOWHERE_V6)];
    listening_address(socket).is_some_and(|address| nowhere.contains(&address.ip()))
}

/// Fails with `AddrInUse` if another process serves `address`. SO_REUSEPORT alone would let two instances of one user
/// share it unnoticed, each with half of the connections.
pub(crate) fn ensure_unused(address: VipAddr) -> io::Result<()> {
    broker::bind(&[unbound(address)?], address.socket_addr())
}

fn unbound(address: VipAddr) -> io::Result<Socket> {
    let socket = stream_socket(address.socket_addr())?;
    socket.set_reuse_address(true)?;
    // A VIP may arrive later than the listener: IP_FREEBIND (ip(7)).
    if address.socket_addr().is_ipv6() {
        socket.set_only_v6(true)?;
        socket.set_freebind_v6(true)?;
    } else {
        socket.set_freebind_v4(true)?;
    }
    Ok(socket)
}

/// Takes the next connection, non-blocking. `WouldBlock`: there is none.
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, ClientAddr)> {
    let (socket, address) = net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
    Ok((socket, ClientAddr::new(plain(address)?)))
}

/// Starts a non-blocking connect. The socket is writable without error once connected. The last ACK of the handshake
/// then waits for the first bytes, so write some or call [`acknowledge_now`].
pub fn connect(address: BackendAddr) -> io::Result<OwnedFd> {
    connect_from(address, From::default()).map_err(io::Error::from)
}

/// The requested near end of a connection; `None` leaves the choice to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct From {
    pub ip: Option<IpAddr>,
    pub port: Option<u16>,
    /// The longest segment that the far end shall send (TCP_MAXSEG), if the route does not limit it to less anyway.
    pub mss: Option<u32>,
}

/// Why a connect could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStart {
    /// The port is not available; others may be.
    #[error("the source port cannot be had: {0}")]
    Port(#[source] io::Error),
    /// The address is not on this host.
    #[error("the source address cannot be had: {0}")]
    Address(#[source] io::Error),
    #[error(transparent)]
    Other(io::Error),
}

impl std::convert::From<NoStart> for io::Error {
    fn from(no_start: NoStart) -> Self {
        match no_start {
            NoStart::Port(error) | NoStart::Address(error) | NoStart::Other(error) => error,
        }
    }
}

/// As [`connect`], but from the requested near end, even if that is in TIME_WAIT towards `address`.
pub(crate) fn connect_from(address: BackendAddr, from: From) -> Result<OwnedFd, NoStart> {
    let address = address.socket_addr();
    let socket = leg_socket(address, from).map_err(NoStart::Other)?;
    if from.ip.is_some() || from.port.is_some() {
        let any: IpAddr = if address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let near = SocketAddr::new(from.ip.unwrap_or(any), from.port.unwrap_or(0));
        net::bind(&socket, &near).map_err(|error| match error {
            rustix::io::Errno::ADDRINUSE => NoStart::Port(error.into()),
            rustix::io::Errno::ADDRNOTAVAIL => NoStart::Address(error.into()),
            other => NoStart::Other(other.into()),
        })?;
    }
    match net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error @ (rustix::io::Errno::ADDRINUSE | rustix::io::Errno::ADDRNOTAVAIL)) => {
            Err(NoStart::Port(error.into()))
        }
        Err(error) => Err(NoStart::Other(error.into())),
    }
}

fn leg_socket(address: SocketAddr, from: From) -> io::Result<OwnedFd> {
    let domain = if address.is_ipv6() { net::AddressFamily::INET6 } else { net::AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(domain, net::SocketType::STREAM, flags, Some(net::ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    // This saves a packet per connection. The ACK then waits for TCP_DELACK_MAX, 200 ms (net/ipv4/tcp_input.c,
    // tcp_rcv_synsent_state_process).
    sockopt::set_tcp_quickack(&socket, false)?;
    if let Some(mss) = from.mss.filter(|mss| *mss <= MSS_MAX) {
        // Refused below 88 (TCP_MIN_MSS): the flow is served all the same.
        let _ = socket2::SockRef::from(&socket).set_tcp_mss(mss);
    }
    match (from.ip, from.port) {
        (_, Some(_)) => sockopt::set_socket_reuseaddr(&socket, true)?,
        (Some(_), None) => source::leave_port_to_connect(&socket)?,
        (None, None) => {}
    }
    Ok(socket)
}

/// The longest segment that the far end of a connection accepts, by its own announcement or by the path's limit.
pub(crate) fn segment_max(socket: impl AsFd) -> io::Result<u32> {
    // The kernel has subtracted the length of timestamps (net/ipv4/tcp_output.c, tcp_current_mss).
    Ok(socket2::SockRef::from(&socket.as_fd()).tcp_mss()? + TIMESTAMPS_LENGTH)
}

/// Sends a delayed ACK now.
pub(crate) fn acknowledge_now(socket: impl AsFd) {
    let _ = sockopt::set_tcp_quickack(socket, true);
}

/// Returns and clears the pending error of a socket: SO_ERROR.
pub(crate) fn take_error(socket: impl AsFd) -> Option<io::Error> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => None,
        Ok(Err(error)) | Err(error) => Some(error.into()),
    }
}

/// The local end of a connected socket.
pub(crate) fn local_addr(socket: impl AsFd) -> io::Result<LocalAddr> {
    Ok(LocalAddr::new(plain(net::getsockname(socket)?)?))
}

/// The far end of a connected socket.
pub(crate) fn peer_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    plain(address)
}

/// Identifies a socket, however many descriptors it has.
pub(crate) fn identity(socket: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(socket)?.st_ino)
}

/// The kernel's number of a socket, which no other socket of this boot has (SO_COOKIE, socket(7)).
pub(crate) fn cookie(socket: impl AsFd) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// The address on which a TCP socket listens; `None` if `fd` is something else.
pub(crate) fn listening_address(fd: impl AsFd) -> Option<VipAddr> {
    let is_stream = sockopt::socket_type(&fd).ok()? == net::SocketType::STREAM;
    if !is_stream || !sockopt::socket_acceptconn(&fd).ok()? {
        return None;
    }
    Some(VipAddr::new(plain(net::getsockname(fd).ok()?).ok()?))
}

/// Lets another socket bind the source port while this connection is in TIME_WAIT: both sockets must set SO_REUSEADDR.
/// Returns the port.
pub(crate) fn share_port(socket: impl AsFd) -> io::Result<u16> {
    let socket = socket.as_fd();
    sockopt::set_socket_reuseaddr(socket, true)?;
    Ok(local_addr(socket)?.port())
}

/// Reads the available bytes. `Ok(0)`: EOF.
pub fn read(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let (read, _) = retry_on_intr(|| net::recv(&socket, &mut *into, RecvFlags::empty()))?;
    Ok(read)
}

/// As [`read`], but leaves the bytes in the socket.
pub fn peek(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let (read, _) = retry_on_intr(|| net::recv(&socket, &mut *into, RecvFlags::PEEK))?;
    Ok(read)
}

/// Writes as many bytes as fit.
pub fn write(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| net::send(&socket, bytes, SendFlags::NOSIGNAL))?)
}

/// Sends FIN after the written bytes; reading goes on.
pub(crate) fn finish_writing(socket: impl AsFd) -> io::Result<()> {
    Ok(net::shutdown(socket, net::Shutdown::Write)?)
}

/// Closes with RST (SO_LINGER with time 0, socket(7)): the far end learns at once that the connection is gone. Unsent
/// bytes are dropped. A socket still in SYN_SENT is closed without a segment.
pub fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}

/// Resets the connection even if other processes have descriptors of it: connect(2) with AF_UNSPEC, for which the
/// kernel sends RST where one is due (net/ipv4/tcp.c, tcp_disconnect).
pub(crate) fn disconnect(socket: impl AsFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    let _ = net::connect_unspec(&socket);
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))
}

fn plain(address: SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(address).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const TIMEOUTS: SocketTimeouts = SocketTimeouts {
        keepalive_idle: Duration::from_secs(11),
        keepalive_interval: Duration::from_secs(3),
        user_timeout: Duration::from_millis(22_500),
    };

    fn wait_for(socket: impl AsFd, flags: PollFlags) {
        let five_seconds = Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&socket, flags)], Some(&five_seconds)).unwrap(), 1);
    }

    /// A connected pair: (accepted, connecting end).
    fn pair(ip: &str) -> (OwnedFd, OwnedFd) {
        let listener = listen(VipAddr::new(format!("{ip}:0").parse().unwrap()), &TIMEOUTS).unwrap();
        let place = local_addr(&listener).unwrap().socket_addr();
        let near = connect(BackendAddr::new(place)).unwrap();
        wait_for(&near, PollFlags::OUT);
        wait_for(&listener, PollFlags::IN);
        (accept(&listener).unwrap().0, near)
    }

    #[test]
    fn accepted_sockets_inherit_the_listeners_options() {
        for ip in ["127.0.0.1", "[::1]"] {
            let (accepted, _near) = pair(ip);
            assert!(sockopt::tcp_nodelay(&accepted).unwrap());
            assert!(sockopt::socket_keepalive(&accepted).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), TIMEOUTS.keepalive_idle);
            assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap(), TIMEOUTS.keepalive_interval);
            assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), 4);
            assert_eq!(sockopt::tcp_user_timeout(&accepted).unwrap(), 0);
        }
    }

    #[test]
    fn reset_is_seen_as_a_reset_and_finish_writing_as_an_eof() {
        let (accepted, near) = pair("127.0.0.1");
        reset(accepted);
        wait_for(&near, PollFlags::HUP);
        assert_eq!(take_error(&near).unwrap().kind(), io::ErrorKind::ConnectionReset);

        let (accepted, near) = pair("127.0.0.1");
        finish_writing(&accepted).unwrap();
        wait_for(&near, PollFlags::IN);
        assert_eq!(read(&near, &mut [0; 8]).unwrap(), 0);
        reset(accepted);
        wait_for(&near, PollFlags::HUP);
        // In CLOSE_WAIT the kernel reports the same RST as EPIPE (net/ipv4/tcp_input.c, tcp_reset).
        assert_eq!(take_error(&near).unwrap().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_socket_that_another_process_has_too_can_be_reset() {
        let (accepted, near) = pair("127.0.0.1");
        let _copy = accepted.try_clone().unwrap();
        disconnect(&accepted);
        drop(accepted);
        wait_for(&near, PollFlags::HUP);
        assert_eq!(take_error(&near).unwrap().kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn an_address_that_is_not_here_yet_can_be_listened_on() {
        listen(VipAddr::new("192.0.2.77:0".parse().unwrap()), &TIMEOUTS).unwrap();
        listen(VipAddr::new("[2001:db8::77]:0".parse().unwrap()), &TIMEOUTS).unwrap();
    }

    #[test]
    fn listeners_that_leave_their_port_to_others_form_one_group_which_nobody_reaches() {
        for ip in ["192.0.2.77", "[2001:db8::77]"] {
            let vip = VipAddr::new(format!("{ip}:6443").parse().unwrap());
            let group = listen_nowhere(vip, &TIMEOUTS, 3).unwrap();
            let places: Vec<_> = group.iter().map(|socket| listening_address(socket).unwrap()).collect();
            assert!(places.iter().all(|place| *place == places[0] && place.port() != 0 && place.port() != 6443));
            let other = listen_nowhere(vip, &TIMEOUTS, 1).unwrap();
            assert_ne!(listening_address(&other[0]), Some(places[0]), "a group of its own");
            assert!(group.iter().chain(&other).all(listens_nowhere));
            let cookies: std::collections::BTreeSet<_> = group.iter().map(|socket| cookie(socket).unwrap()).collect();
            assert_eq!(cookies.len(), 3);
        }
        assert!(!listens_nowhere(listen(VipAddr::new("127.0.0.1:0".parse().unwrap()), &TIMEOUTS).unwrap()));
    }

    #[test]
    fn a_second_instance_on_one_address_is_noticed() {
        let first = listen(VipAddr::new("127.0.0.1:0".parse().unwrap()), &TIMEOUTS).unwrap();
        let taken = VipAddr::new(local_addr(&first).unwrap().socket_addr());
        assert_eq!(ensure_unused(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        ensure_unused(taken).unwrap();
    }

    #[test]
    fn a_healthy_connection_shows_no_backoff() {
        let (accepted, _near) = pair("127.0.0.1");
        assert_eq!(crate::sys::tcp_info::peer_signs(&accepted).unwrap().backoff, 0);
    }
}
