//! Reads the pinned objects for `baton offload status`, and removes them for `baton offload remove`: neither needs an
//! instance.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::links::{self, Attachment};
use super::load;
use super::pins::{LAYOUT, MAPS, Pins};
use crate::offload::counters::Counters;
use crate::offload::entry::{Action, ENTRY_SIZE, Entry, KEY_SIZE};
use crate::sys::bpf::Map;
use crate::sys::netdev;

/// The state of a pinned program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramStatus {
    pub directory: PathBuf,
    pub layout: u32,
    /// Whether an instance of this binary's version can recover it.
    pub recoverable: bool,
    /// Whether the program is this binary's own; otherwise an instance would replace it.
    pub current: bool,
    pub flows_max: u32,
    /// Directions: two for each flow. `None`: of another layout.
    pub entries: Option<u32>,
    /// Entries with another action than splice.
    pub other_actions: u32,
    pub links: Vec<AttachedLink>,
    /// `None`: of another layout.
    pub counters: Option<Counters>,
}

/// The program on one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachedLink {
    pub interface: String,
    /// Whether packets of that interface run through the program.
    pub attached: bool,
    pub by: Option<Attachment>,
}

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removal {
    pub directory: PathBuf,
    pub interfaces: Vec<String>,
    /// Flows that were in the map. The kernel answers the next packet of each with RST, unless [`super::dismiss()`] has
    /// reset it before. `None`: not known.
    pub flows: Option<u32>,
}

/// Reads the objects pinned in `directory`; `None`: there are none.
pub fn status(directory: &Path) -> io::Result<Option<ProgramStatus>> {
    let pins = Pins::at(directory);
    let Some(meta) = pins.meta()? else { return Ok(None) };
    let mut status = ProgramStatus {
        directory: directory.to_path_buf(),
        layout: meta.layout,
        recoverable: meta.layout == LAYOUT,
        current: meta.digest == load::digest(),
        flows_max: pins.map("flows")?.max_entries() / 2,
        entries: None,
        other_actions: 0,
        links: Vec::new(),
        counters: None,
    };
    for interface in pins.links()? {
        let link = links::state(&pins, &interface)?;
        let index = netdev::interface(&interface).map(|interface| interface.index).ok();
        let attached = link.is_some_and(|link| link.ifindex != 0 && Some(link.ifindex) == index);
        status.links.push(AttachedLink { interface, attached, by: link.map(|link| link.by) });
    }
    if status.recoverable {
        let (entries, other) = count(&pins.map("flows")?)?;
        (status.entries, status.other_actions) = (Some(entries), other);
        status.counters = Some(Counters::read(&pins.map("counters")?)?);
    }
    Ok(Some(status))
}

/// Removes all objects pinned in `directory`, and the directory; `None`: there was nothing. It removes only Baton's own
/// objects: `InvalidInput` if there is anything else.
pub fn remove(directory: &Path) -> io::Result<Option<Removal>> {
    let pins = Pins::at(directory);
    if !directory.exists() {
        // Pins that were removed by hand take links with them, and no filters.
        let interfaces = links::detach_all(&pins).unwrap_or_default();
        let removal = Removal { directory: directory.to_path_buf(), interfaces, flows: None };
        return Ok(Some(removal).filter(|removal| !removal.interfaces.is_empty()));
    }
    let lock = pins.lock()?;
    let strangers = pins.strangers()?;
    if !strangers.is_empty() {
        let text = format!("{} is not Baton's: Baton has removed nothing", strangers[0].display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // An estimate: it must be possible to remove a broken set, too.
    let entries = pins.map("flows").and_then(|flows| count(&flows)).ok();
    let is_empty = pins.links()?.is_empty() && MAPS.iter().all(|name| !pins.path(name).exists());
    let interfaces = links::detach_all(&pins)?;
    pins.clear()?;
    drop(lock);
    std::fs::remove_dir(directory)?;
    if is_empty && interfaces.is_empty() {
        return Ok(None);
    }
    let flows = entries.map(|(entries, _)| entries / 2);
    Ok(Some(Removal { directory: directory.to_path_buf(), interfaces, flows }))
}

/// Entries, and how many of them are not spliced.
fn count(flows: &Map) -> io::Result<(u32, u32)> {
    let (mut keys, mut values) = (vec![0; BATCH * KEY_SIZE], vec![0; BATCH * ENTRY_SIZE]);
    let (mut entries, mut other, mut mark) = (0, 0, None);
    if (flows.key_size(), flows.value_size()) != (KEY_SIZE, ENTRY_SIZE) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    loop {
        let (count, next) = flows.look_up_batch(mark, &mut keys, &mut values)?;
        let values = values.as_chunks::<ENTRY_SIZE>().0.iter().take(count);
        other += values.filter(|raw| Entry::decode(raw).action != Action::Splice).count() as u32;
        entries += count as u32;
        mark = next;
        if mark.is_none() {
            return Ok((entries, other));
        }
    }
}

const BATCH: usize = 1024;
