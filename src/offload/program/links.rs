//! The program on its interfaces, where it stays attached without a process: by TCX links, or on kernels without these by filters of the
//! qdisc clsact.

mod clsact;
mod tcx;

use std::fmt;
use std::io;

use aya::programs::SchedClassifier;
use serde::{Deserialize, Serialize};

use super::error::OpenError;
use super::pins::Pins;
use crate::sys::bpf;
use crate::sys::netdev::{self, HARDWARE_ETHERNET, HARDWARE_LOOPBACK};

/// How the program is attached to interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attachment {
    /// By links, in the order of TCX (since Linux 6.6, or backported).
    Tcx,
    /// By filters of the qdisc clsact, before all other filters.
    Clsact,
}

/// The program on one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    /// 0: packets of the interface do not run through it.
    pub ifindex: u32,
    pub by: Attachment,
}

impl fmt::Display for Attachment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcx => "TCX links",
            Self::Clsact => "filters of clsact",
        })
    }
}

impl Attachment {
    /// What this kernel can do. A process that may not ask gets the better one, and its refusal.
    pub(crate) fn of_kernel() -> Self {
        match bpf::knows_tcx(LOOPBACK) {
            Ok(false) => Self::Clsact,
            Ok(true) | Err(_) => Self::Tcx,
        }
    }
}

/// Attaches the pinned program to each of `interfaces` that lacks it, and detaches it from all others. Returns the
/// interfaces that are new.
pub(super) fn ensure(pins: &Pins, interfaces: &[String], by: Attachment) -> Result<Vec<String>, OpenError> {
    for stale in pins.links()?.iter().filter(|name| !interfaces.contains(name)) {
        tcx::detach(pins, stale)?;
        clsact::detach(pins, stale)?;
    }
    let mut attached = Vec::new();
    for name in interfaces {
        let interface =
            netdev::interface(name).map_err(|source| OpenError::Interface { interface: name.clone(), source })?;
        if ![HARDWARE_ETHERNET, HARDWARE_LOOPBACK].contains(&interface.hardware) {
            return Err(OpenError::Hardware { interface: name.clone(), hardware: interface.hardware });
        }
        // Should an earlier process have attached it in the other way, that attachment goes once this one sees all packets: of the two only the
        // first sees the packets of flows, because it consumes them.
        let was_missing = match by {
            Attachment::Tcx => {
                let was_missing = tcx::ensure(pins, name, interface.index)?;
                clsact::detach(pins, name)?;
                was_missing
            }
            Attachment::Clsact => {
                let was_missing = clsact::ensure(pins, name, interface.index)?;
                tcx::detach(pins, name)?;
                was_missing
            }
        };
        if was_missing {
            attached.push(name.clone());
        }
    }
    Ok(attached)
}

/// Lets the pins and `interfaces` follow interfaces that have another name by now. Their links never ceased to run.
pub(super) fn follow_names(pins: &Pins, interfaces: &mut [String]) -> io::Result<()> {
    for old in pins.links()?.iter().filter(|name| netdev::interface(name).is_err()) {
        let Some(index) = tcx::state(pins, old)?.filter(|index| *index != 0) else { continue };
        let Ok(new) = netdev::name(index) else { continue };
        if tcx::state(pins, &new)?.is_none() {
            std::fs::rename(pins.link_path(old), pins.link_path(&new))?;
            interfaces.iter_mut().filter(|name| *name == old).for_each(|name| name.clone_from(&new));
        }
    }
    Ok(())
}

/// The program that sees the interface's packets before this one, whose number is `id`, by TCX.
pub(super) fn ahead(pins: &Pins, interface: &str, id: u32) -> io::Result<Option<u32>> {
    let Some(index) = tcx::state(pins, interface)?.filter(|index| *index != 0) else { return Ok(None) };
    Ok(bpf::first_of_tcx(index)?.filter(|first| *first != id))
}

/// Detaches the program from all interfaces of this network namespace; returns the names of those.
pub(super) fn detach_all(pins: &Pins) -> io::Result<Vec<String>> {
    let mut names = pins.links()?;
    for name in &names {
        tcx::detach(pins, name)?;
        clsact::detach(pins, name)?;
    }
    names.extend(clsact::detach_all(pins)?);
    names.sort();
    names.dedup();
    Ok(names)
}

/// Interfaces with a pinned link that still exist.
pub(super) fn alive(pins: &Pins) -> io::Result<Vec<String>> {
    let mut links = pins.links()?;
    links.retain(|name| netdev::interface(name).is_ok());
    Ok(links)
}

/// Indices of the `interfaces` that the program runs on.
pub(super) fn indices(pins: &Pins, interfaces: &[String]) -> io::Result<Vec<u32>> {
    let mut indices = Vec::new();
    for interface in interfaces {
        indices.extend(state(pins, interface)?.map(|link| link.ifindex).filter(|index| *index != 0));
    }
    Ok(indices)
}

/// The kernel's state of the program on `interface`; `None`: it does not belong there.
pub(super) fn state(pins: &Pins, interface: &str) -> io::Result<Option<Attached>> {
    if let Some(ifindex) = tcx::state(pins, interface)? {
        return Ok(Some(Attached { ifindex, by: Attachment::Tcx }));
    }
    Ok(clsact::state(pins, interface)?.map(|ifindex| Attached { ifindex, by: Attachment::Clsact }))
}

/// Makes the pinned link, or the filter, of `interface` run `program` from the next packet on.
pub(super) fn update(pins: &Pins, interface: &str, program: &mut SchedClassifier) -> Result<(), OpenError> {
    match state(pins, interface)? {
        Some(Attached { by: Attachment::Clsact, .. }) => {
            let program = program.fd().map_err(OpenError::program)?;
            clsact::update(pins, interface, program).map_err(|error| OpenError::attach(interface, error))
        }
        Some(Attached { by: Attachment::Tcx, ifindex }) if ifindex != 0 => tcx::update(pins, interface, program),
        _ => Ok(()),
    }
}

/// The first interface of each network namespace.
const LOOPBACK: u32 = 1;
