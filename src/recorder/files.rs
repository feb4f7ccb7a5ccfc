//! The files of one series: a process appends to a file of its own, begins the next one in time, and removes the oldest.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::model::recorder_file::header;

/// Files of a series: the oldest of them goes at a time.
const PARTS: u64 = 8;

/// Each start of the process begins a file: a limit for a process that crashes again and again.
const FILES_MAX: usize = 1024;

pub(super) const SUFFIX: &str = ".rec";

/// The series called `name` in a directory.
#[derive(Debug)]
pub(super) struct RecordFiles {
    directory: PathBuf,
    name: &'static str,
    bytes_max: u64,
    /// Records at the beginning of each file.
    opening: Vec<u8>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Current {
    fn is_in_its_place(&self) -> bool {
        let [own, there] =
            [self.file.metadata(), fs::symlink_metadata(&self.path)].map(|it| it.map(|it| (it.dev(), it.ino())).ok());
        own.is_some() && own == there
    }
}

/// Whether somebody has cut the file: what is appended to it now has no header before it.
fn is_cut(current: &Current) -> bool {
    let is_cut = current.file.metadata().is_ok_and(|it| it.len() < current.bytes);
    if is_cut {
        tracing::warn!(file = %current.path.display(), "another program has cut this file of the recorder, which goes on in a new one");
    }
    is_cut
}

impl RecordFiles {
    /// Touches no file before the first write.
    pub(super) fn new(directory: &Path, name: &'static str, bytes_max: u64, opening: Vec<u8>) -> Self {
        Self { directory: directory.to_owned(), name, bytes_max, opening, current: None }
    }

    /// Sets the records at the beginning of each file. A file with other ones is continued in a new file.
    pub(super) fn set_opening(&mut self, opening: Vec<u8>) {
        if opening != self.opening {
            self.current = None;
        }
        self.opening = opening;
    }

    /// Appends whole records, and returns the number of bytes written. It does not wait for the disk itself: the kernel keeps
    /// what a killed process has written, and a host that loses power loses some seconds.
    ///
    /// # Errors
    /// Nothing, or a part of `records`, is in the file; the next call begins another. A file that was begun for them is gone: on a full disk
    /// each call would leave one.
    pub(super) fn write(&mut self, records: &[u8], at_unix_ms: u64) -> io::Result<u64> {
        if records.is_empty() {
            return Ok(0);
        }
        let part = self.bytes_max / PARTS;
        let mut written = records.len() as u64;
        let (mut current, is_new) = match self.current.take() {
            Some(current) if current.bytes + written <= part && !is_cut(&current) => (current, false),
            _ => {
                let current = self.begin(at_unix_ms, part)?;
                written += current.bytes;
                (current, true)
            }
        };
        if let Err(error) = current.file.write_all(records) {
            if is_new {
                discard(&current.path);
            }
            return Err(error);
        }
        current.bytes += records.len() as u64;
        self.current = Some(current);
        Ok(written)
    }

    /// Goes on in a new file if the present one was removed: by an operator, or by another process of an upgrade for which it
    /// was the oldest; or if its path leads there no more, because a directory was moved away or another is mounted over it.
    pub(super) fn forget_if_removed(&mut self) {
        self.current = self.current.take().filter(Current::is_in_its_place);
    }

    fn begin(&self, at_unix_ms: u64, part: u64) -> io::Result<Current> {
        match DirBuilder::new().mode(0o750).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.make_room(part, at_unix_ms)?,
        }
        let mut at = at_unix_ms;
        let (path, mut file) = loop {
            let path = self.directory.join(file_name(self.name, at, std::process::id()));
            match OpenOptions::new().append(true).create_new(true).mode(0o640).open(&path) {
                // Processes of two containers may have one number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => at += 1,
                other => break (path, other?),
            }
        };
        let opening = [header(), self.opening.clone()].concat();
        if let Err(error) = file.write_all(&opening) {
            discard(&path);
            return Err(error);
        }
        Ok(Current { file, path, bytes: opening.len() as u64 })
    }

    /// Removes the oldest files, until a whole part has room beside the others. One from the future, by more than a clock in the
    /// wrong time zone is ahead, is from before the clock was set right: it is among the oldest, whatever its name says.
    fn make_room(&self, part: u64, at_unix_ms: u64) -> io::Result<()> {
        const AHEAD_MS: u64 = 24 * 60 * 60 * 1000;
        let mut files = files_of(&self.directory, Some(self.name))?;
        files.sort_by_key(|(path, _)| begun_ms(path) <= Some(at_unix_ms.saturating_add(AHEAD_MS)));
        let mut bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        files.reverse();
        while bytes + part > self.bytes_max || files.len() >= FILES_MAX {
            let Some((oldest, its)) = files.pop() else { break };
            match fs::remove_file(&oldest) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => bytes -= its,
            }
        }
        Ok(())
    }
}

/// Removes a file that has no whole record, if that can be.
fn discard(path: &Path) {
    let _ = fs::remove_file(path);
}

/// The files of a series, or of all, in the order of their beginning, each with its size.
pub(super) fn files_of(directory: &Path, name: Option<&str>) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let Some(series) = file_name.to_str().and_then(series_of) else { continue };
        if name.is_none_or(|name| name == series) {
            // Another process may have removed it.
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => files.push((entry.path(), metadata.len())),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The name of a file of a series, which a process began at this time, ms since 1970.
pub(super) fn file_name(series: &str, begun_ms: u64, pid: u32) -> String {
    format!("{series}-{begun_ms:013}-{pid}{SUFFIX}")
}

/// The time at which a recorder's file was begun, ms since 1970, as its name has it.
pub(super) fn begun_ms(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    series_of(name)?;
    name.split('-').nth(1)?.parse().ok()
}

/// The series of a file with this name; `None`: it is no file of a recorder.
pub(super) fn series_of(file_name: &str) -> Option<&str> {
    let mut parts = file_name.strip_suffix(SUFFIX)?.split('-');
    let (series, begun, pid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (parts.next().is_none() && is_number(begun) && begun.len() == 13 && is_number(pid)).then_some(series)
}
