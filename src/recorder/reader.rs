//! Reads the files of a recorder, of the process that runs or of any before it.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use thiserror::Error;

use super::entry::{self, Recorded, RecordedSample};
use super::files::{begun_ms, files_of, series_of};
use super::{FLOWS, MEMORY};
use crate::config::FileOwner;
use crate::model::recorder_file::{RecordsIn, Unreadable};
use crate::table::journal::{Event, What};

/// Why nothing can be read.
#[derive(Debug, Error)]
pub(crate) enum ReadFault {
    #[error("cannot read the recorder's files in {directory}: {source}{}", whose(source), directory = .directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("cannot read {file}: {source}")]
    File { file: String, source: io::Error },
    #[error("cannot read {file}: {source}")]
    Content { file: String, source: Unreadable },
    #[error("there is no file of a recorder in {directory}", directory = .0.display())]
    Nothing(PathBuf),
}

/// Why a user may not.
fn whose(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; only root and Baton's user may: they have the addresses of all clients",
        _ => "",
    }
}

/// A record was made at most so long before it was written: events wait while a disk hangs.
const WAITED_MS: u64 = 60_000;

/// The counters of a sample may be ahead of the ends as events by so much.
const COUNTED_EARLIER_MS: u64 = 1_000;

/// What was recorded in a time, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub records: Vec<TimedRecord>,
    /// The processes, in the order of their files.
    pub owners: Vec<FileOwner>,
    /// The time from the first record to the last, whichever were asked for; `None`: there is none.
    pub covers: Option<RangeInclusive<u64>>,
    /// Of the first end of a flow in the files, whichever were asked for; `None`: there is none. The ends have files of their own,
    /// of which the oldest go: of earlier ones the samples alone tell how many there were.
    pub ends_from_ms: Option<u64>,
    /// Whether a part of it is from the memory of the running process.
    pub is_remembered: bool,
    /// The events that tell of records which the disk did not take, and which are here from a process's memory: owner and number.
    pub filled: HashSet<(usize, u64)>,
    pub skipped_bytes: u64,
    /// The same by the process that wrote them; `None`: the file does not tell.
    pub torn: Vec<(Option<usize>, u64)>,
    /// Whole records that this version cannot read.
    pub unknown: u64,
    /// Files of which nothing can be read: a power cut has torn their beginning, another version wrote them, or this user may not.
    pub unreadable: Vec<ReadFault>,
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
    let files = listed(directory, None)?;
    files.iter().filter_map(|path| content(path).transpose()).collect()
}

/// The files of one series, or of all, the oldest first.
fn listed(directory: &Path, series: Option<&str>) -> Result<Vec<PathBuf>, ReadFault> {
    let fault = |source| ReadFault::Directory { directory: directory.to_owned(), source };
    let files = files_of(directory, series).map_err(fault)?;
    match files.is_empty() {
        true => Err(ReadFault::Nothing(directory.to_owned())),
        false => Ok(files.into_iter().map(|(path, _)| path).collect()),
    }
}

/// A file's name and content. `None`: it was the oldest one, and was removed meanwhile.
fn content(path: &Path) -> Result<Option<(String, Vec<u8>)>, ReadFault> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match read_regular(path) {
        Ok(content) => Ok(Some((name, content))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReadFault::File { file: path.display().to_string(), source }),
    }
}

/// Whatever Baton's user has put in the file's place since the directory was listed: a link to a file of root's, or a FIFO.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// Reads what was recorded and is `wanted`, from files with their names.
pub(crate) fn read_files(
    files: Vec<(String, Vec<u8>)>,
    wanted: impl Fn(&Recorded) -> bool,
) -> Result<Recording, ReadFault> {
    let mut recording = Recording::default();
    for (file, content) in files {
        let read = recording.add_file(file, &content, &wanted);
        recording.unreadable.extend(read.err());
    }
    recording.sort();
    recording.if_any()
}

/// Reads what was recorded within `times`, ms since 1970, and is `wanted`: only from those files in `directory` that reach into
/// them, from the newest on, and one after the other.
///
/// # Errors
/// As [`contents`] and [`read_files`], for the files that are read: one that cannot be read is passed over if there are others.
pub(crate) fn read_times(
    directory: &Path,
    times: &RangeInclusive<u64>,
    wanted: impl Fn(&Recorded) -> bool,
) -> Result<Recording, ReadFault> {
    read_series(directory, None, times, wanted)?.if_any()
}

/// [`read_times`] of one series, or of all, also if no file can be read.
pub(super) fn read_series(
    directory: &Path,
    series: Option<&str>,
    times: &RangeInclusive<u64>,
    wanted: impl Fn(&Recorded) -> bool,
) -> Result<Recording, ReadFault> {
    let mut recording = Recording::default();
    for path in listed(directory, series)?.iter().rev() {
        let (begun_ms, written_ms) = (begun_ms(path), written_ms(path));
        if !reaches_into(begun_ms, written_ms, times) {
            // What is not read is covered nevertheless.
            [begun_ms, written_ms].into_iter().flatten().for_each(|at_unix_ms| recording.cover(at_unix_ms));
            if let (Some(begun_ms), true) = (begun_ms, is_of_ends(path)) {
                recording.cover_end(begun_ms);
            }
            continue;
        }
        let read = content(path).and_then(|read| match read {
            Some((name, content)) => recording.add_file(name, &content, &wanted),
            None => Ok(()),
        });
        recording.unreadable.extend(read.err());
    }
    recording.sort();
    Ok(recording)
}

fn is_of_ends(path: &Path) -> bool {
    path.file_name().and_then(|name| series_of(name.to_str()?)) == Some(FLOWS)
}

/// When a file was last written to, ms since 1970.
fn written_ms(path: &Path) -> Option<u64> {
    let written = fs::metadata(path).and_then(|it| it.modified()).ok()?;
    written.duration_since(UNIX_EPOCH).ok().map(|since| since.as_millis() as u64)
}

/// Whether a file may have records of `times`. It begins at the time in its name, and the kernel knows when it was last written
/// to. The names alone do not tell: the new process of an upgrade that failed has begun a file that is newer and ends earlier than
/// that of the process that goes on.
fn reaches_into(begun_ms: Option<u64>, written_ms: Option<u64>, times: &RangeInclusive<u64>) -> bool {
    let (Some(begun_ms), Some(written_ms)) = (begun_ms, written_ms) else { return true };
    // It is a copy, whose time says nothing, or the clock was set back.
    let is_unknown = written_ms + WAITED_MS < begun_ms;
    is_unknown || begun_ms <= times.end().saturating_add(WAITED_MS) && written_ms + WAITED_MS >= *times.start()
}

impl Recording {
    /// The first fault, if no file could be read.
    fn if_any(mut self) -> Result<Self, ReadFault> {
        match self.covers {
            None if !self.unreadable.is_empty() => Err(self.unreadable.swap_remove(0)),
            _ => Ok(self),
        }
    }

    /// The last record of the process before `this`, if that one recorded neither a stop nor an upgrade that went on without it.
    /// `until_ms`: of before this time, ms since 1970.
    pub(crate) fn died_before(&self, this: &FileOwner, until_ms: u64) -> Option<&TimedRecord> {
        let owner = |record: &TimedRecord| &self.owners[record.owner];
        let before = || self.records.iter().rev().filter(move |record| record.at_unix_ms < until_ms);
        let is_other = |it: &FileOwner| it.is_same_instance(this) && !it.is_same_process(this);
        let last = before().find(|record| is_other(owner(record)))?;
        let its = before().filter(|record| owner(record).is_same_process(owner(last)));
        (!has_left_in_order(its)).then_some(last)
    }

    /// The last record, if its process recorded neither a stop nor an upgrade that went on without it: then it runs, or has died.
    pub(crate) fn never_left(&self) -> Option<&TimedRecord> {
        let last = self.records.last()?;
        let owner = &self.owners[last.owner];
        let its = self.records.iter().rev().filter(|record| self.owners[record.owner].is_same_process(owner));
        (!has_left_in_order(its)).then_some(last)
    }

    /// The samples in the order of time, each with its process.
    pub(crate) fn samples(&self) -> impl DoubleEndedIterator<Item = (usize, &RecordedSample)> {
        self.records.iter().filter_map(|record| match &record.what {
            Recorded::Sample(sample) => Some((record.owner, sample)),
            _ => None,
        })
    }

    /// Until when ends that were counted are not in the record, as far as there were any; ms since 1970.
    pub(crate) fn ends_lost_until_ms(&self) -> u64 {
        self.ends_from_ms.unwrap_or(u64::MAX).saturating_sub(COUNTED_EARLIER_MS)
    }

    /// Adds what the process `owner` knows at `now_ms`, of which a part may be in the files. Returns how many events these lacked.
    pub(crate) fn remember(
        &mut self,
        owner: FileOwner,
        events: Vec<Event>,
        now_ms: u64,
        wanted: impl Fn(&Recorded) -> bool,
    ) -> usize {
        let read_nothing = self.covers.is_none();
        self.cover(now_ms);
        let added = self.add_remembered(owner, events, wanted);
        self.is_remembered |= added > 0 || read_nothing;
        self.sort();
        added
    }

    /// Adds those events of `owner` that are not here yet, and returns their number.
    fn add_remembered(&mut self, owner: FileOwner, events: Vec<Event>, wanted: impl Fn(&Recorded) -> bool) -> usize {
        let of_owner = |record: &&TimedRecord| self.owners[record.owner].is_same_process(&owner);
        let found = self.records.iter().filter(of_owner).filter_map(TimedRecord::event);
        let known: HashSet<_> = found.map(|event| (event.number, event.at_unix_ms)).collect();
        let owner = self.owner(owner);
        let before = self.records.len();
        for event in events.into_iter().filter(|event| !known.contains(&(event.number, event.at_unix_ms))) {
            self.add(Recorded::Event(event), &mut Some(owner), &wanted);
        }
        let mut added: Vec<_> = self.records[before..].iter().filter_map(TimedRecord::event).collect();
        added.sort_by_key(|event| event.number);
        let this = &self.owners[owner];
        let of_this = self.records.iter().filter(|record| self.owners[record.owner].is_same_process(this));
        let dropped = of_this.filter_map(|record| match record.event()? {
            Event { number, what: What::RecordsDropped { records }, .. } => Some((record.owner, *number, *records)),
            _ => None,
        });
        let mut dropped: Vec<_> = dropped.collect();
        dropped.sort_by_key(|(_, number, _)| *number);
        let mut since = 0;
        for (its, number, records) in dropped {
            let until = added.partition_point(|event| event.number < number);
            if (until - since) as u64 >= records {
                self.filled.insert((its, number));
            }
            since = until;
        }
        added.len()
    }

    /// Whether it tells of events that the files lack, all of which are here from the memory of their process.
    pub(crate) fn is_filled(&self, record: &TimedRecord) -> bool {
        record.event().is_some_and(|event| self.filled.contains(&(record.owner, event.number)))
    }

    fn sort(&mut self) {
        // Stable: records of one moment keep the order of their file.
        self.records.sort_by_key(|record| (record.at_unix_ms, record.number()));
    }

    /// The index of a process.
    fn owner(&mut self, found: FileOwner) -> usize {
        let known = self.owners.iter().position(|it| *it == found);
        known.unwrap_or_else(|| {
            self.owners.push(found);
            self.owners.len() - 1
        })
    }

    fn add_file(&mut self, file: String, content: &[u8], wanted: impl Fn(&Recorded) -> bool) -> Result<(), ReadFault> {
        // A bundle has it after the files.
        let is_memory = series_of(&file) == Some(MEMORY);
        let mut records = RecordsIn::new(content).map_err(|source| ReadFault::Content { file, source })?;
        let mut owner = None;
        let mut remembered = Vec::new();
        for (kind, body) in records.by_ref() {
            match entry::parse(kind, body) {
                None => self.unknown += 1,
                Some(Recorded::Owner(found)) => owner = Some(self.owner(found)),
                Some(Recorded::Event(event)) if is_memory => remembered.push(event),
                Some(what) => self.add(what, &mut owner, &wanted),
            }
        }
        if is_memory {
            let owner = owner.map_or_else(FileOwner::default, |owner| self.owners[owner].clone());
            self.add_remembered(owner, remembered, wanted);
        }
        self.is_remembered |= is_memory;
        self.skipped_bytes += records.skipped();
        self.torn.extend((records.skipped() > 0).then_some((owner, records.skipped())));
        Ok(())
    }

    fn cover(&mut self, at_unix_ms: u64) {
        let covers = self.covers.clone().unwrap_or(at_unix_ms..=at_unix_ms);
        self.covers = Some(at_unix_ms.min(*covers.start())..=at_unix_ms.max(*covers.end()));
    }

    fn cover_end(&mut self, at_unix_ms: u64) {
        self.ends_from_ms = Some(self.ends_from_ms.map_or(at_unix_ms, |it| it.min(at_unix_ms)));
    }

    fn add(&mut self, what: Recorded, owner: &mut Option<usize>, wanted: impl Fn(&Recorded) -> bool) {
        let Some(at_unix_ms) = what.at_unix_ms() else { return };
        self.cover(at_unix_ms);
        if what.is_end() {
            self.cover_end(at_unix_ms);
        }
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
    fn event(&self) -> Option<&Event> {
        match &self.what {
            Recorded::Event(event) => Some(event),
            Recorded::Owner(_) | Recorded::Sample(_) => None,
        }
    }

    fn number(&self) -> u64 {
        self.event().map_or(u64::MAX, |event| event.number)
    }
}

/// Whether a process has stopped, or was upgraded, by its records: the youngest first.
fn has_left_in_order<'r>(mut records: impl Iterator<Item = &'r TimedRecord>) -> bool {
    let has_left = |record: &TimedRecord| match &record.what {
        Recorded::Event(event) => match event.what {
            What::Stopping { .. } | What::UpgradeBegun { .. } => Some(true),
            What::UpgradeFailed { .. } | What::Started { .. } => Some(false),
            _ => None,
        },
        _ => None,
    };
    records.find_map(has_left) == Some(true)
}
