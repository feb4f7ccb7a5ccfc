//! Closes a connected socket without any segment. For that: the bytes that are still in it, and a wait until no packet
//! is on its way into it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::int_option;

/// Bytes that were written and not acknowledged: SIOCOUTQ (tcp(7)).
pub(crate) fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int, and `bytes` is one that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if result == 0 { Ok(bytes.max(0) as usize) } else { Err(io::Error::last_os_error()) }
}

/// Bytes that have arrived and were not read: SIOCINQ (tcp(7)).
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    Ok(rustix::io::ioctl_fionread(socket)? as usize)
}

/// Waits until every CPU has passed through a quiescent state (membarrier(2), MEMBARRIER_CMD_GLOBAL): every packet that
/// was looked up in a BPF map before this call has reached its socket when it returns. Takes milliseconds.
pub fn wait_for_all_cpus() -> io::Result<()> {
    // SAFETY: membarrier(2) takes no pointer.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes a connected TCP socket without a packet: TCP_REPAIR (net/ipv4/tcp.c, tcp_close). Needs CAP_NET_ADMIN. Other
/// descriptors of the same socket keep it open. If it fails, it returns the socket unchanged.
pub fn close_silently(socket: OwnedFd) -> Result<(), (OwnedFd, io::Error)> {
    match int_option::set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1) {
        Ok(()) => {
            drop(socket);
            Ok(())
        }
        Err(error) => Err((socket, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_under_way_are_counted_on_both_sides() {
        let (mut near, far) = pair();
        near.write_all(&[0; 1000]).unwrap();
        far.peek(&mut [0; 1000]).unwrap();
        assert_eq!(unread(&far).unwrap(), 1000);
        // Loopback acknowledges at once or after its delay, at the latest within the deadline of the read below.
        assert!(unacknowledged(&near).unwrap() <= 1000);
    }

    #[test]
    fn a_socket_closed_in_silence_tells_its_peer_nothing() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let (near, mut far) = pair();
        near.set_nodelay(true).unwrap();
        close_silently(near.into()).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(far.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn every_cpu_is_waited_for() {
        wait_for_all_cpus().unwrap();
    }
}
