//! The program on its interfaces: a TCX link for each, pinned, so that it stays attached without a process.

use std::io;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use super::error::OpenError;
use super::pins::Pins;
use crate::sys::netdev::{self, HARDWARE_ETHERNET, HARDWARE_LOOPBACK};
use crate::sys::{bpf, bpf::TcxLinkInfo};

/// Attaches the pinned program to each of `interfaces` that lacks it, and detaches it from all others. Returns the
/// interfaces that are new.
pub(super) fn ensure(pins: &Pins, interfaces: &[String]) -> Result<Vec<String>, OpenError> {
    for stale in pins.links()?.iter().filter(|name| !interfaces.contains(name)) {
        std::fs::remove_file(pins.link_path(stale))?;
    }
    let mut attached = Vec::new();
    for name in interfaces {
        let interface =
            netdev::interface(name).map_err(|source| OpenError::Interface { interface: name.clone(), source })?;
        if ![HARDWARE_ETHERNET, HARDWARE_LOOPBACK].contains(&interface.hardware) {
            return Err(OpenError::Hardware { interface: name.clone(), hardware: interface.hardware });
        }
        match state(pins, name)? {
            Some(link) if link.ifindex == interface.index => continue,
            // Its interface was made anew, or somebody detached it: the pinned link is dead.
            Some(_) => std::fs::remove_file(pins.link_path(name))?,
            None => {}
        }
        attach(pins, name)?;
        attached.push(name.clone());
    }
    Ok(attached)
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

/// The kernel's state of the pinned link of `interface`.
pub(super) fn state(pins: &Pins, interface: &str) -> io::Result<Option<TcxLinkInfo>> {
    match bpf::open_pinned(&pins.link_path(interface)) {
        Ok(link) => bpf::tcx_link_info(link).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Attaches it before all other programs: packets that only pass through are no matter for this host's firewall or
/// policies.
fn attach(pins: &Pins, interface: &str) -> Result<(), OpenError> {
    let mut program = SchedClassifier::from_pin(pins.path("program")).map_err(OpenError::program)?;
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program
        .attach_with_options(interface, TcAttachType::Ingress, options)
        .map_err(|error| OpenError::attach(interface, error))?;
    let link = program.take_link(id).map_err(|error| OpenError::attach(interface, error))?;
    let link = FdLink::try_from(link).expect("TCX links have descriptors");
    link.pin(pins.link_path(interface)).map_err(OpenError::pin)?;
    Ok(())
}

/// Makes the pinned link of `interface` run `program` from the next packet on.
pub(super) fn update(pins: &Pins, interface: &str, program: &mut SchedClassifier) -> Result<(), OpenError> {
    if state(pins, interface)?.is_none_or(|link| link.ifindex == 0) {
        return Ok(());
    }
    let pinned =
        PinnedLink::from_pin(pins.link_path(interface)).map_err(|error| OpenError::attach(interface, error))?;
    let link =
        SchedClassifierLink::try_from(FdLink::from(pinned)).map_err(|error| OpenError::attach(interface, error))?;
    let id = program.attach_to_link(link).map_err(|error| OpenError::attach(interface, error))?;
    // Dropping our descriptor leaves the pin in place.
    program.take_link(id).map_err(|error| OpenError::attach(interface, error))?;
    Ok(())
}
