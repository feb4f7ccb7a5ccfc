//! `[recorder]`.

use std::path::{Path, PathBuf};

use super::kind::{FilePath, Whole};
use super::section::Section;

/// `[recorder]`: the files with events, ended flows and samples that outlive the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecorderSettings {
    pub directory: PathBuf,
    /// Limit for all its files together. 0: nothing is recorded.
    pub size_mb: u32,
}

impl RecorderSettings {
    /// Whether the file may have left the directory to Baton: then its parent need not exist.
    pub(crate) fn is_in_default_place(&self) -> bool {
        self.directory == Path::new(DIRECTORY)
    }
}

impl Default for RecorderSettings {
    fn default() -> Self {
        Self { directory: PathBuf::from(DIRECTORY), size_mb: SIZE_MB }
    }
}

pub(super) fn read(section: &Section) -> RecorderSettings {
    let directory = section.read("directory", &FilePath).value;
    RecorderSettings {
        directory: directory.map_or_else(|| PathBuf::from(DIRECTORY), |path| section.document.resolve(&path)),
        size_mb: section.read_or("size_mb", &SIZE, SIZE_MB).value,
    }
}

/// Below systemd's StateDirectory of deploy/baton.service.
const DIRECTORY: &str = "/var/lib/baton/recorder";
const SIZE_MB: u32 = 64;
const SIZE: Whole = Whole { min: 1, max: 65_536, zero: Some("nothing is recorded") };
