//! `[names]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::file;
use super::kind::{FilePath, ProbePlace, Truth};
use super::section::Section;
use crate::model::humane::plural;
use crate::model::names::{NameMap, parse_names};

/// `[names]`: names of clients, to be shown beside their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesSettings {
    /// An address and its name on each line. `None`: there is no such file.
    pub file: Option<PathBuf>,
    /// Whether those that neither the file nor the cluster names are looked up.
    pub reverse_dns: bool,
    /// None: those of /etc/resolv.conf.
    pub reverse_dns_servers: Vec<SocketAddr>,
}

/// What a file has.
#[derive(Debug)]
pub(crate) struct NamesInFile {
    pub names: NameMap,
    /// What of it is no name: the first such line, and the number of further ones.
    pub skipped: Option<String>,
}

pub(super) fn read(section: &Section) -> NamesSettings {
    let path = section.read("file", &FilePath).value.map(|path| section.document.resolve(&path));
    let name = section.name("file");
    let message = match path.as_deref().map(read_names) {
        Some(Err(fault)) => Some(format!("{name} gives no valid names: {fault}")),
        Some(Ok(NamesInFile { skipped: Some(skipped), .. })) => {
            Some(format!("{name} has lines that are no names: {skipped}"))
        }
        _ => None,
    };
    if let Some(message) = message {
        section.warn("file", message, "write an address and its name on each line, such as 10.0.0.7 worker-7");
    }
    let servers = section.list("reverse_dns_servers", &ProbePlace).into_iter();
    let reverse_dns_servers = servers.map(|server| server.value.socket_addr()).collect();
    NamesSettings { file: path, reverse_dns: section.read_or("reverse_dns", &Truth, false).value, reverse_dns_servers }
}

/// Reads a file with names, an address a line.
///
/// # Errors
/// A sentence that names the file, and the line if it is half written, or none is a name.
pub(crate) fn read_names(path: &Path) -> Result<NamesInFile, String> {
    let read = file::read_entries(path, parse_names)?;
    let skipped = read.faults.split_first().map(|(first, others)| {
        let others = match others.len() {
            0 => String::new(),
            more => format!("; and {}", plural(more as u64, "more line")),
        };
        format!("{}:{first}{others}", path.display())
    });
    Ok(NamesInFile { names: read.names, skipped })
}
