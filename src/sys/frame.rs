//! Whole Ethernet frames (packet(7)): what no IP socket may send, ARP above all. Needs CAP_NET_RAW.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Sends frames; it receives nothing.
#[derive(Debug)]
pub struct FrameSender(OwnedFd);

impl FrameSender {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Self(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?))
    }

    /// Sends `frame`, with its Ethernet header, through the interface with this index.
    pub fn send(&self, interface: u32, frame: &[u8]) -> io::Result<()> {
        // SAFETY: all-zero is a valid `sockaddr_ll`: plain integers and an array of them.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = interface as i32;
        // SAFETY: `frame` and `to` are valid for their lengths and outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
