//! rtnetlink(7): programs that see packets before Baton does, routes, neighbours, and the addresses of this host. The
//! netlink-packet crates write and read the messages; docs/decisions/014-libraries.md says which parts of them.

mod address;
pub(crate) mod conntrack;
pub(crate) mod filter;
mod link;
mod route;
mod translated;
mod watch;
pub(crate) mod xfrm;

pub(crate) use address::{
    added_to_loopback, end_lease, lease, lease_on_loopback, remove_from_loopback, renew_ipv6_routes, secondaries,
};
pub(crate) use link::{carrier_changes, indices, merging};
pub(crate) use route::{Route, is_local, leaves_by, neighbour, neighbours, route};
pub(crate) use translated::is_translated;
pub(crate) use watch::{Changed, Watch};

use std::io;
use std::iter;

use netlink_packet_core::{
    DecodeError, Emitable, ErrorBuffer, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader, NlaBuffer, NlasIterator, Parseable,
};
use netlink_packet_route::link::{LinkXdp, XdpAttached};
use rustix::buffer::spare_capacity;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const IFLA_XDP: u16 = 43;
/// For one recv. The kernel puts at most 32 KiB of a dump's answers together (net/netlink/af_netlink.c,
/// netlink_recvmsg).
const BUFFER_BYTES: usize = 64 * 1024;

/// The id of the XDP program of an interface.
pub(crate) fn xdp_program(ifindex: u32) -> io::Result<Option<u32>> {
    let mut program = None;
    ask(None, libc::RTM_GETLINK, 0, &[&link::header(ifindex)], |message| {
        for xdp in link::attributes(message).filter(|it| it.kind() == IFLA_XDP) {
            let xdp: Vec<_> = attributes(xdp.value()).filter_map(|it| LinkXdp::parse(&it).ok()).collect();
            let attached = xdp.iter().any(|it| matches!(it, LinkXdp::Attached(how) if *how != XdpAttached::None));
            let id = xdp.iter().find_map(|it| if let LinkXdp::ProgId(id) = it { Some(*id) } else { None });
            program = program.or(id.filter(|_| attached));
        }
    })?;
    Ok(program)
}

/// Sends one request and passes the body of each answer to `answer`.
pub(super) fn ask(
    protocol: Option<Protocol>,
    kind: u16,
    flags: u16,
    request: &[&dyn Emitable],
    mut answer: impl FnMut(&[u8]),
) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    sendto(&socket, &bytes(kind, flags, 0, request), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        buffer.clear();
        recv(&socket, spare_capacity(&mut buffer), RecvFlags::empty())?;
        for message in messages(&buffer) {
            let message = message.map_err(invalid)?;
            match message.message_type() {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = ErrorBuffer::new_checked(message.payload()).map_err(invalid)?.code();
                    return code.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(-code.get())));
                }
                _ => answer(message.payload()),
            }
        }
        if flags & NLM_F_DUMP == 0 {
            return Ok(());
        }
    }
}

/// The bytes of a request. Its parts are a header and attributes: with the crates' message types the code for all other
/// messages would be compiled as well.
fn bytes(kind: u16, flags: u16, number: u32, parts: &[&dyn Emitable]) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    let length = parts.iter().fold(header.buffer_len(), |length, part| length + part.buffer_len());
    header.length = length as u32;
    header.message_type = kind;
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = number;
    let mut bytes = vec![0; length];
    let (head, mut rest) = bytes.split_at_mut(header.buffer_len());
    header.emit(head);
    for part in parts {
        let (own, next) = rest.split_at_mut(part.buffer_len());
        part.emit(own);
        rest = next;
    }
    bytes
}

/// The messages of one recv. A truncated message is an error, and the last item.
fn messages(mut raw: &[u8]) -> impl Iterator<Item = Result<NetlinkBuffer<&[u8]>, DecodeError>> {
    iter::from_fn(move || {
        let message = (!raw.is_empty()).then(|| NetlinkBuffer::new_checked(raw))?;
        let length = message.as_ref().map_or(raw.len(), |message| message.length() as usize);
        raw = raw.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `raw`; ends where they do not fit. The crates refuse a whole message if one of its attributes has
/// an unknown form, which a newer kernel may send. So Baton passes them one attribute at a time.
fn attributes(raw: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(raw).map_while(Result::ok)
}

/// Reads `raw` as one recv of the kernel's messages, each as every kind.
#[cfg(fuzzing)]
pub(crate) fn read_any(raw: &[u8]) {
    for message in messages(raw).map_while(Result::ok) {
        let body = message.payload();
        address::read(body);
        route::read(body);
        link::read_any(body);
        for attribute in attributes(body) {
            assert!(attributes(attribute.value()).count() <= attribute.value().len());
        }
    }
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_program_and_a_stranger_is_told() {
        assert_eq!(xdp_program(1).unwrap(), None);
        assert!(xdp_program(1 << 30).is_err());
    }

    #[test]
    fn messages_end_where_one_is_cut_off() {
        let one = bytes(libc::RTM_GETLINK, 0, 7, &[&link::header(1)]);
        let two = [&one[..], &one].concat();
        let numbers = |raw| messages(raw).map(|it| it.map(|it| it.sequence_number()).ok()).collect::<Vec<_>>();
        assert_eq!(numbers(&two), [Some(7), Some(7)]);
        assert_eq!(numbers(&two[..one.len()]), [Some(7)]);
        for length in one.len() + 1..two.len() {
            assert_eq!(numbers(&two[..length]), [Some(7), None]);
        }
        // Its length is shorter than its own header.
        assert_eq!(numbers(&[8, 0, 0, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), [None]);
    }
}
