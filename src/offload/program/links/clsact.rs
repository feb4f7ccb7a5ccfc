//! By a filter of the qdisc clsact, on kernels without TCX links. The filter lives as long as its interface. A pinned directory
//! `filter-NAME` says that the program belongs there, and `qdisc-INDEX` that Baton made the qdisc.
//!
//! The filter is the first of preference 1, so that it sees a packet before any other classifier does; from one preference to the next the
//! kernel goes on only if a program returns TC_ACT_UNSPEC, as Baton's does with each packet that is not a flow's. A filter that another
//! program adds later at preference 1 would run first and may take the packets: Baton then adds its own again, before that one.

use std::io;
use std::os::fd::AsFd;

use super::super::error::OpenError;
use super::super::pins::Pins;
use crate::sys::bpf;
use crate::sys::netlink::filter::{self, Filter, ingress_filters};
use crate::sys::{netdev, netlink};

/// What `tc filter show` calls it.
const NAME: &str = "baton";

/// Attaches the program, if it is not there as it should be. Returns whether it was missing.
pub(super) fn ensure(pins: &Pins, interface: &str, index: u32) -> Result<bool, OpenError> {
    let fail = |source: io::Error| OpenError::attach(interface, source);
    let marker = pins.filter_path(interface);
    let program = bpf::open_pinned(&pins.path("program"))?;
    let id = bpf::program_id(&program)?;
    let before = ingress_filters(index).map_err(fail)?;
    let is_marked = marker.exists();
    if is_attached(pins, &before, id) && is_marked {
        return Ok(false);
    }
    // First of all: whoever removes what is marked finds all that is attached.
    if !is_marked {
        std::fs::create_dir(&marker)?;
    }
    if filter::add_clsact(index).map_err(fail)? {
        mark_qdisc(pins, index)?;
    }
    let [one, other] = handles(pins);
    let ours: Vec<_> = before.iter().filter(|filter| is_ours(pins, filter)).map(|filter| filter.handle).collect();
    // If another filter is before it, a second one of this program comes before that, and the first one goes then: no packet passes without.
    let handle = match before.first().filter(|first| is_ours(pins, first)) {
        Some(first) => first.handle,
        None if ours.contains(&one) => other,
        None => one,
    };
    filter::set_filter(index, handle, NAME, program.as_fd()).map_err(|error| match before.first() {
        Some(first) if first.preference == filter::FIRST && first.kind != "bpf" => {
            OpenError::Preceded { interface: interface.to_owned(), kind: first.kind.clone() }
        }
        _ => fail(error),
    })?;
    for stale in ours.iter().filter(|its| **its != handle) {
        filter::remove_filter(index, *stale).map_err(fail)?;
    }
    Ok(true)
}

/// Detaches the program from the interface; the qdisc goes as well if Baton made it and it holds no other filter.
pub(super) fn detach(pins: &Pins, interface: &str) -> io::Result<()> {
    let marker = pins.filter_path(interface);
    if !marker.exists() {
        return Ok(());
    }
    if let Ok(interface) = netdev::interface(interface) {
        remove(pins, interface.index)?;
    }
    std::fs::remove_dir(marker)
}

/// Detaches the program from every interface of this network namespace, also from one that has another name by now, or for which nothing
/// is pinned any more. Returns the names of those.
pub(super) fn detach_all(pins: &Pins) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for index in netlink::indices()? {
        if remove(pins, index)? {
            names.extend(netdev::name(index));
        }
    }
    Ok(names)
}

/// The index of the interface if its packets run through the pinned program; otherwise 0. `None`: the program does not belong there.
pub(super) fn state(pins: &Pins, interface: &str) -> io::Result<Option<u32>> {
    if !pins.filter_path(interface).exists() {
        return Ok(None);
    }
    let Ok(interface) = netdev::interface(interface) else { return Ok(Some(0)) };
    let id = bpf::program_id(bpf::open_pinned(&pins.path("program"))?)?;
    let attached = is_attached(pins, &ingress_filters(interface.index)?, id);
    Ok(Some(if attached { interface.index } else { 0 }))
}

/// Makes the filter of `interface` run `program` from the next packet on.
pub(super) fn update(pins: &Pins, interface: &str, program: impl AsFd) -> io::Result<()> {
    let Ok(interface) = netdev::interface(interface) else { return Ok(()) };
    for filter in ingress_filters(interface.index)?.iter().filter(|filter| is_ours(pins, filter)) {
        filter::set_filter(interface.index, filter.handle, NAME, program.as_fd())?;
    }
    Ok(())
}

/// Whether the program is before all others, and there once.
fn is_attached(pins: &Pins, filters: &[Filter], program: u32) -> bool {
    let first = filters.first().is_some_and(|first| is_ours(pins, first) && first.program == Some(program));
    first && filters.iter().filter(|filter| is_ours(pins, filter)).count() == 1
}

/// Two instances on one host have different directories, and different handles. Of the two handles of each one is in use, but for a moment.
fn handles(pins: &Pins) -> [u32; 2] {
    // FNV-1a, 32 bits.
    let bytes = pins.directory().as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let one = 0xba00_0000 | hash & 0x00ff_fffe;
    [one, one | 1]
}

fn is_ours(pins: &Pins, filter: &Filter) -> bool {
    filter.kind == "bpf"
        && filter.preference == filter::FIRST
        && filter.name == NAME
        && handles(pins).contains(&filter.handle)
}

/// Returns whether there was a filter.
fn remove(pins: &Pins, index: u32) -> io::Result<bool> {
    let mut was_there = false;
    for filter in ingress_filters(index)?.iter().filter(|filter| is_ours(pins, filter)) {
        was_there |= filter::remove_filter(index, filter.handle)?;
    }
    let qdisc = pins.qdisc_path(index);
    if qdisc.exists() {
        filter::remove_clsact_if_empty(index)?;
        std::fs::remove_dir(qdisc)?;
    }
    Ok(was_there)
}

fn mark_qdisc(pins: &Pins, index: u32) -> io::Result<()> {
    match std::fs::create_dir(pins.qdisc_path(index)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
