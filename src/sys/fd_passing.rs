//! SCM_RIGHTS (unix(7)): descriptors from one process to another over a Unix stream socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer};
use rustix::net::{SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt};

/// Limit for descriptors in one message: SCM_MAX_FD (include/net/scm.h).
pub(crate) const FDS_MAX: usize = 253;

const SPACE: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));

/// A connected, non-blocking pair of Unix stream sockets, closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Writes as many of `bytes` as fit; `fds` go with the first of them. After an error nothing was sent.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(bytes)];
    Ok(retry_on_intr(|| net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?)
}

/// Reads the available bytes, and adds the descriptors that came with them. `Ok(0)`: the peer has closed.
pub fn receive(socket: impl AsFd, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let received = retry_on_intr(|| {
        net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            fds.extend(came);
        }
    }
    // The kernel drops descriptors for which our table has no room (recvmsg(2), MSG_CTRUNC).
    if received.flags.contains(net::ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(received.bytes)
}

/// The user of the process that made the other end.
pub(crate) fn peer_uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Asks the kernel for a larger send buffer.
pub(crate) fn set_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size(socket, bytes)?)
}

/// Waits until `fd` can be read (or its peer is gone); false: not within `limit`.
pub fn wait_readable(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
    wait(fd, PollFlags::IN, limit)
}

/// Waits until one of `fds` can be read, but no longer than `limit`.
pub(crate) fn wait_readable_any(fds: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) as _ };
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until `fd` can be written (or its peer is gone); false: not within `limit`.
pub(crate) fn wait_writable(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
    wait(fd, PollFlags::OUT, limit)
}

fn wait(fd: impl AsFd, flags: PollFlags, limit: Duration) -> io::Result<bool> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) as _ };
    match poll(&mut [PollFd::new(&fd, flags)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        // The caller has a deadline, and waits again for the rest of it.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_with_their_bytes_and_work() {
        let (near, far) = pair().unwrap();
        let pipes: Vec<_> = (0..FDS_MAX / 2).map(|_| rustix::pipe::pipe().unwrap()).collect();
        let fds: Vec<_> = pipes.iter().flat_map(|(read, write)| [read.as_fd(), write.as_fd()]).collect();
        assert_eq!(send(&near, b"hello", &fds).unwrap(), 5);
        let (mut bytes, mut came) = ([0; 16], Vec::new());
        assert_eq!(receive(&far, &mut bytes, &mut came).unwrap(), 5);
        assert_eq!((&bytes[..5], came.len()), (&b"hello"[..], fds.len()));
        rustix::io::write(&came[1], b"x").unwrap();
        assert_eq!(rustix::io::read(&pipes[0].0, &mut bytes).unwrap(), 1);
    }

    #[test]
    fn the_peer_is_known_and_its_end_is_noticed() {
        let (near, far) = pair().unwrap();
        assert_eq!(peer_uid(&near).unwrap(), rustix::process::geteuid().as_raw());
        assert!(!wait_readable(&near, Duration::ZERO).unwrap());
        drop(far);
        assert!(wait_readable(&near, Duration::from_secs(5)).unwrap());
        assert_eq!(receive(&near, &mut [0; 1], &mut Vec::new()).unwrap(), 0);
        assert_eq!(send(&near, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
