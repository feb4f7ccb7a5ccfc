//! By a pinned TCX link.

use std::io;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use super::super::error::OpenError;
use super::super::pins::Pins;
use crate::sys::bpf;

/// Attaches the program, if it is not there. Returns whether it was missing.
pub(super) fn ensure(pins: &Pins, interface: &str, index: u32) -> Result<bool, OpenError> {
    match state(pins, interface)? {
        Some(linked) if linked == index => return Ok(false),
        // Its interface was made anew, or somebody detached it: the pinned link is dead.
        Some(_) => std::fs::remove_file(pins.link_path(interface))?,
        None => {}
    }
    attach(pins, interface)?;
    Ok(true)
}

/// Detaches the program from the interface.
pub(super) fn detach(pins: &Pins, interface: &str) -> io::Result<()> {
    match std::fs::remove_file(pins.link_path(interface)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The index of the interface that the pinned link is attached to; 0: none. `None`: there is no link.
pub(super) fn state(pins: &Pins, interface: &str) -> io::Result<Option<u32>> {
    match bpf::open_pinned(&pins.link_path(interface)) {
        Ok(link) => bpf::tcx_link_info(link).map(|link| Some(link.ifindex)),
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
    let pinned =
        PinnedLink::from_pin(pins.link_path(interface)).map_err(|error| OpenError::attach(interface, error))?;
    let link =
        SchedClassifierLink::try_from(FdLink::from(pinned)).map_err(|error| OpenError::attach(interface, error))?;
    let id = program.attach_to_link(link).map_err(|error| OpenError::attach(interface, error))?;
    // Dropping our descriptor leaves the pin in place.
    program.take_link(id).map_err(|error| OpenError::attach(interface, error))?;
    Ok(())
}
