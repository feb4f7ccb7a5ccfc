//! Reading small files that an operator named.

use std::fs::Metadata;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::model::entries::LineFault;
use crate::sys::broker::{BrokerSilence, open_named_file};

/// No configuration or certificate bundle is near this size; a larger file was named by mistake.
pub(super) const SIZE_MAX_BYTES: u64 = 1024 * 1024;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    #[error("no such file")]
    Missing,
    #[error("not permitted")]
    NotPermitted,
    #[error("a directory")]
    Directory,
    /// A device, a socket, a FIFO.
    #[error("something that is not a regular file")]
    NotRegular,
    #[error("a file of more than 1 MiB")]
    TooLarge,
    /// The file itself may be well.
    #[error(transparent)]
    Unanswered(BrokerSilence),
    #[error("unreadable: {0}")]
    Unreadable(#[source] io::Error),
}

/// A file that was not read because the broker gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} was not read: {silence}; {}", .path.display(), .silence.advice())]
pub struct UnreadFile {
    pub(super) path: PathBuf,
    pub(super) silence: BrokerSilence,
}

/// Reads a regular file of at most 1 MiB.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileFault> {
    let file = open_named_file(path).map_err(fault)?;
    let kind = file.metadata().map_err(fault)?.file_type();
    if kind.is_dir() {
        return Err(FileFault::Directory);
    }
    if !kind.is_file() {
        return Err(FileFault::NotRegular);
    }
    let mut bytes = Vec::new();
    file.take(SIZE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > SIZE_MAX_BYTES {
        return Err(FileFault::TooLarge);
    }
    Ok(bytes)
}

/// As fstat(2) has it.
pub(super) fn metadata(path: &Path) -> io::Result<Metadata> {
    open_named_file(path)?.metadata()
}

/// Reads a file of an entry a line by `parse`.
///
/// # Errors
/// A sentence that names the file, and the line if one is wrong.
pub(super) fn read_entries<T>(path: &Path, parse: fn(&str) -> Result<T, LineFault>) -> Result<T, String> {
    let shown = path.display();
    let bytes = read(path).map_err(|fault| format!("cannot read {shown}: {fault}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8"))?;
    parse(&text).map_err(|fault| format!("{shown}:{fault}"))
}

fn fault(error: io::Error) -> FileFault {
    if let Some(silence) = BrokerSilence::of(&error) {
        return FileFault::Unanswered(silence);
    }
    match error.kind() {
        io::ErrorKind::NotFound => FileFault::Missing,
        io::ErrorKind::PermissionDenied => FileFault::NotPermitted,
        io::ErrorKind::IsADirectory => FileFault::Directory,
        _ => FileFault::Unreadable(error),
    }
}
