//! TCP_INFO (tcp(7), include/uapi/linux/tcp.h): what the kernel knows of one connection's other end.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// Signs of life of the far host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSigns {
    /// Doublings of the retransmission timeout since the last acknowledgement.
    pub backoff: u8,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
}

/// `struct tcp_info` as far as Linux 4.1 has it; libc's ends before the byte counters.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    /// State, congestion state, retransmits, probes, backoff, options, window scales, flags.
    bytes: [u8; 8],
    /// `tcpi_rto` to `tcpi_total_retrans`.
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
}

const BACKOFF: usize = 4;
const UNACKED: usize = 4;

/// Reads the signs of life from a connected TCP socket.
pub fn peer_signs(socket: impl AsFd) -> io::Result<PeerSigns> {
    let info = read(socket)?;
    Ok(PeerSigns { backoff: info.bytes[BACKOFF], unacked: info.words[UNACKED] })
}

/// Whether the far end's FIN came, given the bytes that were read from it to the end: the kernel counts a FIN as one byte
/// received (net/ipv4/tcp_input.c, tcp_rcv_nxt_update). It still knows this after a reset, when a read says EOF either
/// way once the error was told to somebody else.
pub fn fin_came(socket: impl AsFd, bytes_read: u64) -> bool {
    read(socket).is_ok_and(|info| info.bytes_received == bytes_read + 1)
}

fn read(socket: impl AsFd) -> io::Result<Info> {
    let mut info = Info::default();
    let mut length = mem::size_of::<Info>() as libc::socklen_t;
    // SAFETY: the pointers are to `info`, plain integers of which any are valid, and to its length, both alive during the
    // call; the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    /// A connection whose far end sent four bytes, then FIN if `fin`, and was then reset by ours writing to it.
    fn reset_after(fin: bool) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(b"four").unwrap();
        if fin {
            far.shutdown(Shutdown::Write).unwrap();
        }
        let mut four = [0; 4];
        near.read_exact(&mut four).unwrap();
        near.write_all(b"unread").unwrap();
        // Closing with bytes unread resets.
        drop(far);
        near
    }

    #[test]
    fn a_fin_before_a_reset_is_known_after_it() {
        for fin in [true, false] {
            let near = reset_after(fin);
            assert_eq!(fin_came(&near, 4), fin);
            let _ = near.take_error();
            assert_eq!(fin_came(&near, 4), fin, "after the error was told");
        }
    }
}
