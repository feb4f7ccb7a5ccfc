//! TCP_INFO (tcp(7), include/uapi/linux/tcp.h): the kernel's knowledge of a connection's far end.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Signs of life of the far host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSigns {
    /// Doublings of the retransmission timeout since the last acknowledgement.
    pub backoff: u8,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Time since the last segment with bytes, in whole milliseconds; the bytes may still be unread in the socket.
    pub since_data: Duration,
}

/// Whether the far end accepts the bytes sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// All was acknowledged.
    Done,
    /// Bytes are in flight, without any sign of a fault. Bytes acknowledged so far.
    UnderWay { acked: u64 },
    /// Bytes wait for a far end that does not accept them.
    Stuck(Stuck),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub by: StuckBy,
    /// Time since the last segment from the far host.
    pub silence: Duration,
    /// Bytes acknowledged so far.
    pub acked: u64,
}

/// What keeps the bytes in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StuckBy {
    /// The far host has no room: it has left so many window probes in a row unanswered.
    Probes(u8),
    /// It has no room, and the kernel repeats a segment in flight instead of window probes, next after at most this time.
    ClosedWindow { backoff: Duration },
    /// Segments were lost, or are not acknowledged, and are repeated.
    Loss,
}

/// `struct tcp_info` as of Linux 5.4; libc's ends before the byte counters.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelInfo {
    /// State, congestion state, retransmits, probes, backoff, options, window scales, flags.
    bytes: [u8; 8],
    /// `tcpi_rto` to `tcpi_total_retrans`.
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    /// `tcpi_segs_out` to `tcpi_data_segs_out`.
    counts: [u32; 6],
    /// `tcpi_delivery_rate` to `tcpi_sndbuf_limited`.
    rates: [u64; 4],
    delivered: [u32; 2],
    bytes_sent: [u64; 2],
    reordering: [u32; 3],
    send_window: u32,
}

const STATE: usize = 0;
const CONGESTION_STATE: usize = 1;
const RETRANSMITS: usize = 2;
const PROBES: usize = 3;
const BACKOFF: usize = 4;
const RTO_US: usize = 0;
const UNACKED: usize = 4;
const LAST_DATA_CAME: usize = 11;
const LAST_ACK_CAME: usize = 12;
const SEGMENTS_IN: usize = 1;
const UNSENT_BYTES: usize = 2;

/// include/net/tcp_states.h.
const TCP_CLOSE: u8 = 7;

/// TCP_CA_Recovery; after it comes TCP_CA_Loss.
const RECOVERY: u8 = 3;

/// Reads the signs of life from a connected TCP socket.
pub(crate) fn peer_signs(socket: impl AsFd) -> io::Result<PeerSigns> {
    let info = read(socket)?;
    let since_data = Duration::from_millis(info.words[LAST_DATA_CAME].into());
    Ok(PeerSigns { backoff: info.bytes[BACKOFF], unacked: info.words[UNACKED], since_data })
}

/// Reads the state of the bytes written to a connected TCP socket.
pub(crate) fn delivery(socket: impl AsFd) -> io::Result<Delivery> {
    let info = read(socket)?;
    let (unacked, unsent) = (info.words[UNACKED], info.counts[UNSENT_BYTES]);
    let is_lossy = info.bytes[CONGESTION_STATE] >= RECOVERY || info.bytes[RETRANSMITS] > 0 || info.bytes[BACKOFF] > 0;
    let by = match (unacked, unsent, info.send_window) {
        (0, 0, _) => return Ok(Delivery::Done),
        (0, _, _) => StuckBy::Probes(info.bytes[PROBES]),
        (_, _, 0) => StuckBy::ClosedWindow { backoff: Duration::from_micros(info.words[RTO_US].into()) },
        _ if is_lossy => StuckBy::Loss,
        _ => return Ok(Delivery::UnderWay { acked: info.bytes_acked }),
    };
    let silence = Duration::from_millis(info.words[LAST_DATA_CAME].min(info.words[LAST_ACK_CAME]).into());
    Ok(Delivery::Stuck(Stuck { by, silence, acked: info.bytes_acked }))
}

/// Probes in a row, of keepalive or of a closed window, that the far end has left unanswered.
pub(crate) fn unanswered_probes(socket: impl AsFd) -> io::Result<u8> {
    Ok(read(socket)?.bytes[PROBES])
}

/// Bytes that were written and never sent; FIN counts as one.
pub(crate) fn unsent(socket: impl AsFd) -> io::Result<u32> {
    Ok(read(socket)?.counts[UNSENT_BYTES])
}

/// Bytes that were received and acknowledged; FIN counts as one.
pub(crate) fn bytes_received(socket: impl AsFd) -> io::Result<u64> {
    Ok(read(socket)?.bytes_received)
}

/// Number of received segments.
pub(crate) fn segments_in(socket: impl AsFd) -> io::Result<u32> {
    Ok(read(socket)?.counts[SEGMENTS_IN])
}

/// Whether the far end's FIN has arrived, given the number of bytes read until the end: the kernel counts a FIN as one
/// received byte (net/ipv4/tcp_input.c, tcp_rcv_nxt_update). It still knows this after a reset, when a read returns EOF
/// in both cases once another call has taken the error.
pub(crate) fn fin_came(socket: impl AsFd, bytes_read: u64) -> bool {
    read(socket).is_ok_and(|info| info.bytes_received == bytes_read + 1)
}

/// Whether the connection is over, so that its socket can only be read and closed.
pub(crate) fn is_closed(socket: impl AsFd) -> io::Result<bool> {
    Ok(read(socket)?.bytes[STATE] == TCP_CLOSE)
}

fn read(socket: impl AsFd) -> io::Result<KernelInfo> {
    // A kernel that does not report the window leaves this value unchanged.
    let mut info = KernelInfo { send_window: u32::MAX, ..KernelInfo::default() };
    let mut length = mem::size_of::<KernelInfo>() as libc::socklen_t;
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
    use crate::sys::clock::now_ns;
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
        // Closing with unread bytes resets.
        drop(far);
        near
    }

    #[test]
    fn a_reader_without_room_is_told_from_one_that_has_read_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut written = 0;
        let deadline_ns = now_ns() + 30_000_000_000;
        let pause = loop {
            while let Ok(count) = near.write(&[7; 65536]) {
                written += count;
            }
            match delivery(&near).unwrap() {
                Delivery::Stuck(stuck) if matches!(stuck.by, StuckBy::Probes(_)) => break stuck,
                other => assert!(now_ns() < deadline_ns, "{other:?}"),
            }
            std::thread::yield_now();
        };
        assert!(pause.acked > 0 && pause.acked < written as u64, "{pause:?} of {written}");
        assert!(pause.silence < Duration::from_secs(30), "{pause:?}");
        far.read_exact(&mut vec![0; written]).unwrap();
        while delivery(&near).unwrap() != Delivery::Done {
            assert!(now_ns() < deadline_ns, "{:?}", delivery(&near));
            std::thread::yield_now();
        }
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
