//! TCP_INFO (tcp(7), include/uapi/linux/tcp.h): what the kernel knows of one connection's other end.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};

/// Signs of life of the far host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSigns {
    /// Doublings of the retransmission timeout since the last acknowledgement.
    pub backoff: u8,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
}

/// Reads the signs of life from a connected TCP socket.
pub fn peer_signs(socket: impl AsFd) -> io::Result<PeerSigns> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers are to `info` and to its length, both alive during the call; the kernel writes at most
    // `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a valid `tcp_info`, and the kernel overwrote a prefix of it with plain integers.
    let info = unsafe { info.assume_init() };
    Ok(PeerSigns { backoff: info.tcpi_backoff, unacked: info.tcpi_unacked })
}
