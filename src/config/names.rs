//! `[names]`.

use std::path::{Path, PathBuf};

use super::file;
use super::kind::FilePath;
use super::section::Section;
use crate::model::names::{NameMap, parse_names};

/// `[names]`: names of clients, to be shown beside their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesSettings {
    /// An address and its name on each line. `None`: there is no such file.
    pub file: Option<PathBuf>,
}

pub(super) fn read(section: &Section) -> NamesSettings {
    let path = section.read("file", &FilePath).value.map(|path| section.document.resolve(&path));
    if let Some(Err(fault)) = path.as_deref().map(read_names) {
        let message = format!("{} gives no valid names: {fault}", section.name("file"));
        section.warn("file", message, "write an address and its name on each line, such as 10.0.0.7 worker-7");
    }
    NamesSettings { file: path }
}

/// Reads a file with names, an address a line.
///
/// # Errors
/// A sentence that names the file, and the line if one is wrong.
pub(crate) fn read_names(path: &Path) -> Result<NameMap, String> {
    file::read_entries(path, parse_names)
}
