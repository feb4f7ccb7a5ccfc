//! Settings that the offload engine needs to open.

use std::path::PathBuf;

/// Default directory of the pinned program.
pub(crate) const DIRECTORY_DEFAULT: &str = "/sys/fs/bpf/baton";

/// Default limit for flows in the map; an empty map takes 32 bytes for each.
pub(crate) const FLOWS_MAX_DEFAULT: u32 = 131_072;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadSettings {
    /// A directory of a BPF file system; made if it is absent.
    pub directory: PathBuf,
    /// Interfaces at whose ingress the program runs. Empty: those that it is attached to later, or was.
    pub interfaces: Vec<String>,
    /// Flows that can be offloaded at once; each takes two entries. A recovered map keeps its size.
    pub flows_max: u32,
}

impl Default for OffloadSettings {
    fn default() -> Self {
        Self { directory: DIRECTORY_DEFAULT.into(), interfaces: Vec::new(), flows_max: FLOWS_MAX_DEFAULT }
    }
}
