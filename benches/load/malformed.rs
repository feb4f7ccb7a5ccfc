//! Clients that are none: what they send where a PROXY header and a request are expected, and how they leave.

use std::net::Shutdown;
use std::os::fd::OwnedFd;

use baton::sys::socket;
use socket2::SockRef;

/// Version 1 of the PROXY protocol, as a load balancer before this one sends it.
pub const HEADER: &[u8] = b"PROXY TCP4 192.0.2.7 10.77.0.1 51234 6443\r\n";

/// Version 2 begins so.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    ResetAtOnce,
    EndAtOnce,
    Garbage,
    EndWithinHeader,
    EndlessHeader,
    ImpossibleLength,
    ResetAfterHeader,
}

impl Malformed {
    const ALL: [Self; 7] = [
        Self::ResetAtOnce,
        Self::EndAtOnce,
        Self::Garbage,
        Self::EndWithinHeader,
        Self::EndlessHeader,
        Self::ImpossibleLength,
        Self::ResetAfterHeader,
    ];

    /// One kind after the other.
    pub fn of(number: u64) -> Self {
        Self::ALL[(number % Self::ALL.len() as u64) as usize]
    }

    /// Sends what it sends, and leaves, or waits for the end from the other side. Returns its socket if it waits.
    pub fn act(self, socket: OwnedFd) -> Option<OwnedFd> {
        let bytes = match self {
            Self::ResetAtOnce | Self::EndAtOnce => Vec::new(),
            Self::Garbage => vec![0xa5; 300],
            Self::EndWithinHeader => HEADER[..26].to_vec(),
            // Longer than version 1 allows, which is 107 bytes.
            Self::EndlessHeader => HEADER[..HEADER.len() - 2].repeat(4),
            Self::ImpossibleLength => [SIGNATURE, b"\x21\x11\xff\xff", &[0xa5; 300]].concat(),
            Self::ResetAfterHeader => HEADER.to_vec(),
        };
        // The other side may be quicker.
        let _ = if bytes.is_empty() { Ok(0) } else { socket::write(&socket, &bytes) };
        match self {
            Self::ResetAtOnce | Self::ResetAfterHeader => {
                socket::reset(socket);
                None
            }
            Self::EndAtOnce | Self::EndWithinHeader => {
                let _ = SockRef::from(&socket).shutdown(Shutdown::Write);
                Some(socket)
            }
            Self::Garbage | Self::EndlessHeader | Self::ImpossibleLength => Some(socket),
        }
    }
}
