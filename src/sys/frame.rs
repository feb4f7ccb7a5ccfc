//! Whole Ethernet frames (packet(7)): frames that an IP socket neither sends nor receives, above all ARP. Needs
//! CAP_NET_RAW.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use super::netdev::{self, HARDWARE_ETHERNET};
use crate::addr::Mac;

const LENGTH: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

/// Sends frames; it receives nothing.
#[derive(Debug)]
pub struct FrameSender(OwnedFd);

/// Frames of one protocol on one interface, both ways.
#[derive(Debug)]
pub(crate) struct FrameSocket {
    socket: FrameSender,
    index: u32,
    mac: Mac,
}

impl FrameSender {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Self(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?))
    }

    /// Sends `frame`, with its Ethernet header, through the interface with this index.
    pub fn send(&self, interface: u32, frame: &[u8]) -> io::Result<()> {
        let to = address(interface, 0);
        // SAFETY: `frame` and `to` are valid for their lengths and outlive the call.
        let sent = unsafe {
            libc::sendto(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), LENGTH)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl FrameSocket {
    /// For frames of `protocol` (an EtherType) on the interface called `name`; `Unsupported` if it is not Ethernet.
    /// `prepare` gets the socket before the first frame.
    pub(crate) fn open(
        name: &str,
        protocol: u16,
        prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let interface = netdev::interface(name)?;
        if interface.hardware != HARDWARE_ETHERNET {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mac = netdev::hardware_address(name)?;
        // Without a protocol until it is bound: otherwise it would receive all interfaces' frames meanwhile.
        let socket = FrameSender::open()?;
        prepare(&socket.0)?;
        let at = address(interface.index, protocol);
        // SAFETY: `at` is a `sockaddr_ll` of this length that outlives the call.
        if unsafe { libc::bind(socket.0.as_raw_fd(), (&raw const at).cast(), LENGTH) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, index: interface.index, mac })
    }

    /// The interface's own Ethernet address.
    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }

    /// Whether the socket still receives the frames of the interface called `name`: the interface may have been made anew since, or have
    /// another Ethernet address.
    pub(crate) fn is_bound_to(&self, name: &str) -> bool {
        let is_same = |interface: netdev::Interface| interface.index == self.index;
        let is_current =
            netdev::interface(name).is_ok_and(is_same) && netdev::hardware_address(name).is_ok_and(|it| it == self.mac);
        is_current && self.bound_index().is_ok_and(|index| index == self.index)
    }

    /// The kernel unbinds the socket for good when the interface goes, also if an interface with the same index comes back.
    fn bound_index(&self) -> io::Result<u32> {
        let mut at = address(0, 0);
        let mut length = LENGTH;
        // SAFETY: `at` and `length` are valid for writes and outlive the call, and `length` is the size of `at`.
        let got = unsafe { libc::getsockname(self.socket.0.as_raw_fd(), (&raw mut at).cast(), &raw mut length) };
        if got != 0 { Err(io::Error::last_os_error()) } else { Ok(at.sll_ifindex as u32) }
    }

    /// Has the interface receive frames to this multicast address as long as the socket is open.
    pub(crate) fn join(&self, group: Mac) -> io::Result<()> {
        let mut address = [0; 8];
        address[..group.len()].copy_from_slice(&group);
        let join = libc::packet_mreq {
            mr_ifindex: self.index as libc::c_int,
            mr_type: libc::PACKET_MR_MULTICAST as libc::c_ushort,
            mr_alen: group.len() as libc::c_ushort,
            mr_address: address,
        };
        // SAFETY: `join` is a `packet_mreq` of this length that outlives the call.
        let joined = unsafe {
            libc::setsockopt(
                self.socket.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const join).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        };
        if joined != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(self.index, frame)
    }

    /// The result of `read` for the next frame for which it returns one; `None`: no more for now. `read` gets only the
    /// beginning of a longer frame.
    pub(crate) fn heard<T>(&self, read: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let mut buffer = [0; 256];
        loop {
            let (length, _) = recv(&self.socket.0, &mut buffer[..], RecvFlags::empty()).ok()?;
            if let Some(found) = buffer.get(..length).and_then(&read) {
                return Some(found);
            }
        }
    }
}

fn address(interface: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: all-zero is a valid `sockaddr_ll`: plain integers and an array of them.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::AF_PACKET as u16;
    at.sll_protocol = protocol.to_be();
    at.sll_ifindex = interface as i32;
    at
}
