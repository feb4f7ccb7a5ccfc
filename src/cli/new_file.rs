//! Writes a file whole or not at all, whatever happens: a full disk, a crash, a kill.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file on disk that has no place yet. Dropped without one, it is removed.
#[derive(Debug)]
pub(super) struct NewFile {
    at: PathBuf,
    target: PathBuf,
    is_placed: bool,
}

impl NewFile {
    /// Writes `bytes` beside `target`. `mode`: before the umask.
    pub(super) fn write(target: &Path, bytes: &[u8], mode: u32) -> io::Result<Self> {
        // The kubelet ignores a file that begins with a dot, and systemd one without its suffix.
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".baton-{}", std::process::id()));
        let at = target.with_file_name(name);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&at)?;
        let new = Self { at, target: target.to_owned(), is_placed: false };
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(new)
    }

    pub(super) fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        std::fs::set_permissions(&self.at, permissions)
    }

    /// Takes the place that no file has. Fails with [`io::ErrorKind::AlreadyExists`] if one has it.
    pub(super) fn place_new(self) -> io::Result<()> {
        // The dropped name was the first one of the same file.
        std::fs::hard_link(&self.at, &self.target)
    }

    /// Takes the place of the target.
    pub(super) fn place(mut self) -> io::Result<()> {
        std::fs::rename(&self.at, &self.target)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = std::fs::remove_file(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_takes_no_place_that_another_has() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        let [one, two] =
            ["one", "two"].map(|text| NewFile::write(&target.with_file_name(text), text.as_bytes(), 0o600));
        let at_target = |file: io::Result<NewFile>| {
            let mut file = file.unwrap();
            file.target.clone_from(&target);
            file
        };
        at_target(one).place_new().unwrap();
        assert_eq!(at_target(two).place_new().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "one");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_gets_no_place_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        NewFile::write(&target, b"one", 0o600).unwrap().place().unwrap();
        drop(NewFile::write(&target, b"two", 0o600).unwrap());
        std::fs::create_dir_all(directory.path().join("taken/by")).unwrap();
        NewFile::write(&directory.path().join("taken"), b"", 0o600).unwrap().place().unwrap_err();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "one");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
