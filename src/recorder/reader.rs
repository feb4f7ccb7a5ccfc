//! Reads the files of a recorder, of the process that runs or of any before it.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::entry::{self, FileOwner, Recorded};
use super::files::files_of;
use crate::model::recorder_file::{RecordsIn, Unreadable};

/// Why nothing can be read.
#[derive(Debug, Error)]
pub(crate) enum ReadFault {
    #[error("cannot read the recorder's files in {directory}: {source}", directory = .directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("cannot read {file}: {source}")]
    File { file: String, source: io::Error },
    #[error("cannot read {file}: {source}")]
    Content { file: String, source: Unreadable },
    #[error("there is no file of a recorder in {directory}", directory = .0.display())]
    Nothing(PathBuf),
}

/// What was recorded in a time, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub records: Vec<TimedRecord>,
    /// The processes, in the order of their files.
    pub owners: Vec<FileOwner>,
    /// The time from the first record to the last, whichever were asked for; `None`: there is none.
    pub covers: Option<RangeInclusive<u64>>,
    pub skipped_bytes: u64,
    /// Whole records that this version cannot read.
    pub unknown: u64,
}

/// A record, and who wrote it: an index into `owners`.
#[derive(Clone, Debug)]
pub(crate) struct TimedRecord {
    pub at_unix_ms: u64,
    pub owner: usize,
    pub what: Recorded,
}

/// The recorder's files in a directory: name and content.
pub(crate) fn contents(directory: &Path) -> Result<Vec<(String, Vec<u8>)>, ReadFault> {
    let fault = |source| ReadFault::Directory { directory: directory.to_owned(), source };
    let files = files_of(directory, None).map_err(fault)?;
    if files.is_empty() {
        return Err(ReadFault::Nothing(directory.to_owned()));
    }
    let mut contents = Vec::new();
    for (path, _) in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match fs::read(&path) {
            Ok(content) => contents.push((name, content)),
            // The oldest file, which was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(ReadFault::File { file: path.display().to_string(), source }),
        }
    }
    Ok(contents)
}

/// Reads what was recorded and is `wanted`, from files with their names.
pub(crate) fn read_files(
    files: Vec<(String, Vec<u8>)>,
    wanted: impl Fn(&Recorded) -> bool,
) -> Result<Recording, ReadFault> {
    let mut recording = Recording::default();
    for (file, content) in files {
        let mut records = RecordsIn::new(&content).map_err(|source| ReadFault::Content { file, source })?;
        let mut owner = None;
        for (kind, body) in records.by_ref() {
            match entry::parse(kind, body) {
                None => recording.unknown += 1,
                Some(Recorded::Owner(found)) => {
                    let known = recording.owners.iter().position(|it| *it == found);
                    owner = Some(known.unwrap_or_else(|| {
                        recording.owners.push(found);
                        recording.owners.len() - 1
                    }));
                }
                Some(what) => recording.add(what, &mut owner, &wanted),
            }
        }
        recording.skipped_bytes += records.skipped();
    }
    // Stable: records of one moment keep the order of their file.
    recording.records.sort_by_key(|record| (record.at_unix_ms, record.number()));
    Ok(recording)
}

impl Recording {
    fn add(&mut self, what: Recorded, owner: &mut Option<usize>, wanted: impl Fn(&Recorded) -> bool) {
        let Some(at_unix_ms) = what.at_unix_ms() else { return };
        let covers = self.covers.clone().unwrap_or(at_unix_ms..=at_unix_ms);
        self.covers = Some(at_unix_ms.min(*covers.start())..=at_unix_ms.max(*covers.end()));
        if wanted(&what) {
            let owner = *owner.get_or_insert_with(|| {
                // Its first record is damaged.
                self.owners.push(FileOwner::default());
                self.owners.len() - 1
            });
            self.records.push(TimedRecord { at_unix_ms, owner, what });
        }
    }
}

impl TimedRecord {
    fn number(&self) -> u64 {
        match &self.what {
            Recorded::Event(event) => event.number,
            Recorded::Owner(_) | Recorded::Sample(_) => u64::MAX,
        }
    }
}
