//! Puts the program into the kernel and onto its interfaces. Only this needs the rights to load programs: whoever has the maps of the
//! installed program, and the tools, uses them without.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::error::OpenError;
use super::links::{self, Attachment};
use super::load;
use super::pins::{LAYOUT, Pins};
use super::{OffloadSettings, ProgramOrigin};

/// What is in the kernel.
#[derive(Debug)]
pub(crate) struct InstalledProgram {
    pub facts: InstalledFacts,
    /// The programs that a process runs directly: probe and amend.
    pub tools: [OwnedFd; 2],
}

/// What there is to tell of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InstalledFacts {
    pub origin: ProgramOrigin,
    pub attachment: Attachment,
    pub interfaces: Vec<String>,
}

/// Each network namespace has it.
const LOOPBACK_NAME: &str = "lo";

impl InstalledProgram {
    /// Loads the program, or finds the pinned one, and attaches it to its interfaces in this thread's network namespace.
    pub(crate) fn install(settings: &OffloadSettings, attachment: Attachment) -> Result<Self, OpenError> {
        let pins = Pins::prepare(&settings.directory)?;
        let _lock = pins.lock()?;
        let origin = match pins.meta()? {
            None => {
                // A process that died while it pinned left this: no interface runs it.
                links::detach_all(&pins)?;
                pins.clear()?;
                load::fresh(&pins, settings.flows_max)?;
                ProgramOrigin::Fresh
            }
            Some(meta) if meta.layout != LAYOUT => {
                let path = settings.directory.clone();
                return Err(OpenError::Layout { path, found: meta.layout, wanted: LAYOUT });
            }
            Some(meta) if meta.digest != load::digest() => {
                load::replace(&pins, meta)?;
                ProgramOrigin::Replaced
            }
            Some(_) => ProgramOrigin::Recovered,
        };
        links::follow_names(&pins, &mut [])?;
        let mut interfaces = links::alive(&pins)?;
        if !settings.interfaces.is_empty() {
            // Flows with an end on this host need the program on lo, whichever ways from outside the file names.
            interfaces.retain(|name| name == LOOPBACK_NAME && !settings.interfaces.contains(name));
            interfaces.extend_from_slice(&settings.interfaces);
        }
        links::ensure(&pins, &interfaces, attachment)?;
        Ok(Self { tools: load::tools(&pins)?, facts: InstalledFacts { origin, attachment, interfaces } })
    }
}
