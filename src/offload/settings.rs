//! What the offload engine needs to know to open.

use std::path::PathBuf;

/// Where the program is pinned unless told otherwise.
pub const DIRECTORY_DEFAULT: &str = "/sys/fs/bpf/baton";

/// Flows that the map can hold unless told otherwise; an empty map takes 32 bytes for each.
pub const FLOWS_MAX_DEFAULT: u32 = 131_072;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadSettings {
    /// A directory of a BPF file system; made if it is absent.
    pub directory: PathBuf,
    /// Names of the interfaces at whose ingress the program runs. None: those that it is attached to later, or was.
    pub interfaces: Vec<String>,
    /// Flows that can be offloaded at once; two entries each. A map that is recovered keeps the size it has.
    pub flows_max: u32,
}

impl Default for OffloadSettings {
    fn default() -> Self {
        Self { directory: DIRECTORY_DEFAULT.into(), interfaces: Vec::new(), flows_max: FLOWS_MAX_DEFAULT }
    }
}
