//! Loads the program into the kernel: the first time, or in place of another version's.

use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};

use std::os::fd::{AsFd, OwnedFd};

use super::error::OpenError;
use super::pins::{LAYOUT, MAPS, Meta, Pins};

static PATH_OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/offload.o");
static TOOLS_OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/tools.o");

/// Distinguishes this program from another version's.
pub(super) fn digest() -> u128 {
    // FNV-1a, 128 bits.
    PATH_OBJECT.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |digest, byte| {
        (digest ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Makes the maps and the program and pins them. If the process dies in the middle, there is no `meta`.
pub(super) fn fresh(pins: &Pins, flows_max: u32) -> Result<(), OpenError> {
    let mut program = load(pins, Some(flows_max))?;
    classifier(&mut program, "offload")?.pin(pins.path("program")).map_err(OpenError::pin)?;
    let meta = Meta { layout: LAYOUT, services: 0, digest: digest() };
    meta.write(&pins.map("meta")?)?;
    Ok(())
}

/// Replaces the pinned program by this version's, on each link in one step; the maps stay.
pub(super) fn replace(pins: &Pins, meta: Meta) -> Result<(), OpenError> {
    let mut program = load(pins, None)?;
    let program = classifier(&mut program, "offload")?;
    let next = pins.path("program-next");
    // A process that died here left it.
    let _ = std::fs::remove_file(&next);
    program.pin(&next).map_err(OpenError::pin)?;
    for interface in pins.links()? {
        super::links::update(pins, &interface, program)?;
    }
    std::fs::rename(&next, pins.path("program"))?;
    Meta { digest: digest(), ..meta }.write(&pins.map("meta")?)?;
    Ok(())
}

/// The programs that this process runs directly: probe and amend.
pub(super) fn tools(pins: &Pins) -> Result<[OwnedFd; 2], OpenError> {
    let mut loader = EbpfLoader::new();
    for name in MAPS {
        loader.map_pin_path(name, pins.path(name));
    }
    let mut tools = loader.load(TOOLS_OBJECT).map_err(OpenError::load)?;
    let mut fd = |name| {
        let program = classifier(&mut tools, name)?;
        Ok::<_, OpenError>(program.fd().map_err(OpenError::program)?.as_fd().try_clone_to_owned()?)
    };
    Ok([fd("probe")?, fd("amend")?])
}

/// Has the kernel check both objects and unloads them, with maps of their own that nobody else sees.
pub(crate) fn try_out() -> Result<(), OpenError> {
    for (object, names) in [(PATH_OBJECT, &["offload"][..]), (TOOLS_OBJECT, &["probe", "amend"])] {
        let mut object = EbpfLoader::new().load(object).map_err(OpenError::load)?;
        for name in names {
            classifier(&mut object, name)?;
        }
    }
    Ok(())
}

/// Loads the object. It uses maps that are pinned, and makes and pins the others.
fn load(pins: &Pins, flows_max: Option<u32>) -> Result<Ebpf, OpenError> {
    let mut loader = EbpfLoader::new();
    for name in MAPS {
        loader.map_pin_path(name, pins.path(name));
    }
    if let Some(flows_max) = flows_max {
        loader.map_max_entries("flows", flows_max.saturating_mul(2)).map_max_entries("notes", flows_max);
    }
    loader.load(PATH_OBJECT).map_err(OpenError::load)
}

fn classifier<'p>(object: &'p mut Ebpf, name: &str) -> Result<&'p mut SchedClassifier, OpenError> {
    let program = object.program_mut(name).expect("the object has it");
    let program: &mut SchedClassifier = program.try_into().expect("it is a classifier");
    program.load().map_err(OpenError::program)?;
    Ok(program)
}
