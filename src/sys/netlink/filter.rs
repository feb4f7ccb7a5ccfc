//! Classifiers at the ingress of an interface (tc-bpf(8)). One that a process has attached stays there without the process, as long as
//! the interface lives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Parseable, parse_u32,
};
use netlink_packet_route::tc::{TcBpfFlags, TcFilterBpfOption, TcHandle, TcHeader};

use super::{ask, attributes};

/// The place before all others: filters run in the order of their preferences, and 0 asks for any.
pub(crate) const FIRST: u16 = 1;

/// Attributes of include/uapi/linux/rtnetlink.h.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
/// All protocols, in network order (include/uapi/linux/if_ether.h).
const ALL_PROTOCOLS: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;

/// One classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// `bpf`, `flower` ...
    pub kind: String,
    pub preference: u16,
    pub handle: u32,
    /// Of a BPF classifier: the program's id.
    pub program: Option<u32>,
    /// Of a BPF classifier: what whoever attached it calls it.
    pub name: String,
}

/// The classifiers at the ingress of an interface, attached through netlink, in the order in which packets meet them.
pub(crate) fn ingress_filters(ifindex: u32) -> io::Result<Vec<Filter>> {
    filters(ifindex, TcHandle::MIN_INGRESS)
}

/// Adds the qdisc that holds classifiers; false: there was one, or its predecessor `ingress`.
pub(crate) fn add_clsact(ifindex: u32) -> io::Result<bool> {
    let kind = DefaultNla::new(TCA_KIND, b"clsact\0".to_vec());
    match ask(None, libc::RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &[&clsact(ifindex), &kind], |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        added => added.map(|()| true),
    }
}

/// Removes the qdisc, unless somebody has a classifier there. Returns whether it did.
pub(crate) fn remove_clsact_if_empty(ifindex: u32) -> io::Result<bool> {
    if !filters(ifindex, TcHandle::MIN_INGRESS)?.is_empty() || !filters(ifindex, TcHandle::MIN_EGRESS)?.is_empty() {
        return Ok(false);
    }
    ask(None, libc::RTM_DELQDISC, NLM_F_ACK, &[&clsact(ifindex)], |_| {}).map(|()| true)
}

/// Attaches a program at preference [`FIRST`] of the ingress; in place of the one with this handle, if there is one, from one packet to the
/// next. Among filters of one preference the newest runs first (net/sched/cls_bpf.c, cls_bpf_change), and one that is replaced keeps its place.
pub(crate) fn set_filter(ifindex: u32, handle: u32, name: &str, program: BorrowedFd<'_>) -> io::Result<()> {
    let options = [
        TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32),
        TcFilterBpfOption::ProgName(name.to_owned()),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    let options = options.as_slice();
    let mut raw = vec![0; options.buffer_len()];
    options.emit(&mut raw);
    let attributes = [DefaultNla::new(TCA_KIND, b"bpf\0".to_vec()), DefaultNla::new(TCA_OPTIONS, raw)];
    let request: &[&dyn Emitable] = &[&filter(ifindex, handle), &attributes.as_slice()];
    ask(None, libc::RTM_NEWTFILTER, NLM_F_ACK | NLM_F_CREATE, request, |_| {})
}

/// Detaches the program with this handle from preference [`FIRST`] of the ingress. Returns whether there was one.
pub(crate) fn remove_filter(ifindex: u32, handle: u32) -> io::Result<bool> {
    match ask(None, libc::RTM_DELTFILTER, NLM_F_ACK, &[&filter(ifindex, handle)], |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn filters(ifindex: u32, minor: u16) -> io::Result<Vec<Filter>> {
    let parent = TcHandle { minor, ..TcHandle::CLSACT };
    let header = TcHeader { index: ifindex as i32, parent, ..TcHeader::default() };
    let mut all = Vec::new();
    ask(None, libc::RTM_GETTFILTER, NLM_F_DUMP, &[&header], |message| all.extend(read(message)))?;
    Ok(all)
}

/// `None`: a message without a classifier (each preference is told of by one), or about a chain that packets meet only if a classifier
/// sends them there.
fn read(message: &[u8]) -> Option<Filter> {
    let header = TcHeader::parse(message).ok()?;
    let mut filter =
        Filter { preference: (header.info >> 16) as u16, handle: header.handle.into(), ..Filter::default() };
    for attribute in attributes(message.get(header.buffer_len()..)?) {
        match attribute.kind() {
            TCA_KIND => filter.kind = String::from_utf8_lossy(attribute.value()).trim_end_matches('\0').to_owned(),
            TCA_CHAIN if parse_u32(attribute.value()).is_ok_and(|chain| chain != 0) => return None,
            TCA_OPTIONS if filter.kind == "bpf" => {
                for option in attributes(attribute.value()).filter_map(|it| TcFilterBpfOption::parse(&it).ok()) {
                    match option {
                        TcFilterBpfOption::ProgId(id) => filter.program = Some(id),
                        TcFilterBpfOption::ProgName(name) => filter.name = name,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (filter.handle != 0).then_some(filter)
}

fn clsact(ifindex: u32) -> TcHeader {
    let handle = TcHandle { minor: 0, ..TcHandle::CLSACT };
    TcHeader { index: ifindex as i32, handle, parent: TcHandle::CLSACT, ..TcHeader::default() }
}

fn filter(ifindex: u32, handle: u32) -> TcHeader {
    let parent = TcHandle { minor: TcHandle::MIN_INGRESS, ..TcHandle::CLSACT };
    TcHeader {
        index: ifindex as i32,
        handle: handle.into(),
        parent,
        info: u32::from(FIRST) << 16 | ALL_PROTOCOLS,
        ..TcHeader::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;

    /// As `tc filter show dev eth0 ingress` reads from the kernel.
    #[test]
    fn a_bpf_filter_is_read_and_a_preference_alone_or_another_chain_is_not_one() {
        let options = [TcFilterBpfOption::ProgName("baton".to_owned()), TcFilterBpfOption::ProgId(7)];
        let mut raw = vec![0; options.as_slice().buffer_len()];
        options.as_slice().emit(&mut raw);
        let message = |handle, chain: u32| {
            let all = [
                DefaultNla::new(TCA_KIND, b"bpf\0".to_vec()),
                DefaultNla::new(TCA_CHAIN, chain.to_ne_bytes().to_vec()),
                DefaultNla::new(TCA_OPTIONS, raw.clone()),
            ];
            bytes(libc::RTM_NEWTFILTER, 0, 0, &[&filter(3, handle), &all.as_slice()]).split_off(16)
        };
        let expected =
            Filter { kind: "bpf".into(), preference: 1, handle: 0xba, program: Some(7), name: "baton".into() };
        assert_eq!(read(&message(0xba, 0)), Some(expected));
        assert_eq!((read(&message(0, 0)), read(&message(0xba, 5))), (None, None));
        let whole = message(0xba, 0);
        for length in 0..whole.len() {
            read(&whole[..length]);
        }
    }

    #[test]
    fn an_interface_without_classifiers_has_none_and_an_unknown_one_takes_none() {
        assert_eq!(ingress_filters(1).unwrap(), []);
        assert!(add_clsact(1 << 30).is_err());
    }
}
