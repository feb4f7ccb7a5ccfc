//! The lock of an instance on what it has pinned, for as long as it uses it. Two instances with the same pins would take each
//! other's flows for those of a dead process; and an instance whose pins are removed loses each flow that it offloads from then on.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
        let path = Self::path(pins);
        loop {
            let file = options().create(true).open(&path)?;
            if let Some(lock) = Self::of(file, &path)? {
                return Ok(lock);
            }
        }
    }

    /// For a command that needs no instance; `None`: no instance has ever used the pins since the host's boot.
    pub(crate) fn take_if_there(pins: &Path) -> Result<Option<Self>, PinsLockError> {
        let path = Self::path(pins);
        loop {
            let lock = match options().open(&path) {
                Ok(file) => Self::of(file, &path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if lock.is_some() {
                return Ok(lock);
            }
        }
    }

    /// Frees the pins, which have been removed, and removes the file: an instance that begins now makes another one.
    pub(crate) fn remove(self, pins: &Path) -> io::Result<()> {
        std::fs::remove_file(Self::path(pins))
    }

    /// `None`: whoever had the lock has removed the file since it was opened, and somebody else may have the lock of the file that is at
    /// `path` now.
    fn of(file: File, path: &Path) -> Result<Option<Self>, PinsLockError> {
        if !file.metadata()?.is_file() {
            return Err(PinsLockError::Io(io::Error::other("it is no regular file")));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(PinsLockError::InUse),
            Err(error) => return Err(PinsLockError::Io(error.into())),
        }
        let own = file.metadata()?;
        let is_it = |at: &Metadata| (at.dev(), at.ino()) == (own.dev(), own.ino());
        Ok(std::fs::metadata(path).is_ok_and(|at| is_it(&at)).then_some(Self(file)))
    }
}

/// Baton's user may write in the folder: root's command follows no link there, and waits for no reader of a FIFO.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.append(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_and_no_fifo_is_a_lock() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let pins = PathBuf::from(format!("/nowhere/baton-no-lock-{}", std::process::id()));
        let path = PinsLock::path(&pins);
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::create_dir_all(LOCKS).unwrap();
        let refused = || [PinsLock::take(&pins).is_err(), PinsLock::take_if_there(&pins).is_err()];
        std::os::unix::fs::symlink(other.path(), &path).unwrap();
        let of_link = refused();
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        // A reader: without one a FIFO cannot be opened for writing at once.
        let reader = rustix::fs::open(&path, rustix::fs::OFlags::NONBLOCK, rustix::fs::Mode::empty()).unwrap();
        let of_fifo = refused();
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        assert_eq!((of_link, of_fifo), ([true; 2], [true; 2]));
    }

    /// Regression: `baton offload remove` left the file of its lock behind.
    #[test]
    fn a_removed_lock_leaves_no_file_and_nobody_holds_the_lock_of_a_removed_one() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let pins = PathBuf::from(format!("/nowhere/baton-unlock-{}", std::process::id()));
        let path = PinsLock::path(&pins);
        let removes = PinsLock::take(&pins).unwrap();
        // Another process has opened the file, and has not asked for the lock yet.
        let late = File::options().append(true).open(&path).unwrap();
        removes.remove(&pins).unwrap();
        assert!(!path.exists());
        let begins = PinsLock::take(&pins).unwrap();
        assert!(PinsLock::of(late, &path).unwrap().is_none(), "two processes would have the pins");
        assert!(matches!(PinsLock::take(&pins), Err(PinsLockError::InUse)));
        begins.remove(&pins).unwrap();
        assert!(PinsLock::take_if_there(&pins).unwrap().is_none() && !path.exists());
    }

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
