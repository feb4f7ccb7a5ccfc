//! The lock of an instance on what it has pinned, for as long as it uses it. Two instances with the same pins would take each
//! other's flows for those of a dead process; and an instance whose pins are removed loses each flow that it offloads from then on.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The folder of lock files: a BPF file system holds no files.
const LOCKS: &str = "/run/baton";

/// Dropping it, or the end of the process, frees the pins.
#[derive(Debug)]
pub(crate) struct PinsLock(#[allow(dead_code, reason = "held")] File);

/// Why a process has no lock on its pins.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PinsLockError {
    #[error("another instance uses them")]
    InUse,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PinsLock {
    /// The lock of the pins in this directory, however it is spelled.
    pub(crate) fn path(pins: &Path) -> PathBuf {
        let absolute = std::path::absolute(pins).unwrap_or_else(|_| pins.to_owned());
        let pins: PathBuf = absolute.components().collect();
        PathBuf::from(format!("{LOCKS}/baton{}.lock", pins.display().to_string().replace('/', "-")))
    }

    /// For an instance that uses the pins.
    pub(crate) fn take(pins: &Path) -> Result<Self, PinsLockError> {
        std::fs::create_dir_all(LOCKS)?;
        Self::of(File::options().create(true).append(true).open(Self::path(pins))?)
    }

    /// For a command that needs no instance; `None`: no instance has ever used the pins since the host's boot.
    pub(crate) fn take_if_there(pins: &Path) -> Result<Option<Self>, PinsLockError> {
        match File::options().append(true).open(Self::path(pins)) {
            Ok(file) => Self::of(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn of(file: File) -> Result<Self, PinsLockError> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::WOULDBLOCK) => Err(PinsLockError::InUse),
            Err(error) => Err(PinsLockError::Io(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_named_with_another_spelling_passed_for_unused() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let pins = PathBuf::from(format!("/nowhere/baton-lock-{}", std::process::id()));
        assert!(PinsLock::take_if_there(&pins).unwrap().is_none(), "no instance has used them");
        let first = PinsLock::take(&pins).unwrap();
        let spelled = PathBuf::from(format!("/nowhere//./baton-lock-{}/", std::process::id()));
        for again in [PinsLock::take(&pins).map(Some), PinsLock::take_if_there(&spelled)] {
            assert!(matches!(again, Err(PinsLockError::InUse)), "{again:?}");
        }
        drop(first);
        assert!(PinsLock::take_if_there(&pins).unwrap().is_some());
        std::fs::remove_file(PinsLock::path(&pins)).unwrap();
    }
}
