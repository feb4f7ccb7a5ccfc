//! Finds what was recorded: the files of the instance, of one that has ended, or of another host; or what the instance knows itself.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::memory::InstanceMemory;
use super::output::CliError;
use super::socket;
use crate::admin::protocol::Command;
use crate::config::{self, FileFault, RecorderSettings};
use crate::model::humane::{date_and_time, plural, printable};
use crate::model::moment::{self, MomentFault};
use crate::recorder::{self, FileOwner, ReadFault, Recorded, Recording, past};
use crate::sys::clock::unix_ms;

#[derive(Clone, Debug, Default, Args)]
pub(super) struct RecordingFrom {
    /// A bundle of `baton bundle`, or the directory of a recorder, such as a copy of another host's [default: the directory of the instance, or that in -c FILE].
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
}

/// A place with what was recorded.
#[derive(Clone, Debug)]
pub(super) struct RecordingSource {
    /// A directory, or a bundle. `None`: the running instance records nothing.
    place: Option<PathBuf>,
    /// Whose records they are, if it runs.
    instance: Option<RecordingInstance>,
}

#[derive(Clone, Debug)]
struct RecordingInstance {
    socket: PathBuf,
    /// Why it writes nothing at present.
    fault: Option<String>,
    /// Events that it could not write.
    dropped: u64,
}

/// Why the running instance is asked beside the files.
enum MemoryNeed {
    /// They cannot be read, or it writes none at present.
    NoFiles(String),
    /// They lack events.
    Gaps,
}

/// The needed part of the status.
#[derive(Deserialize)]
struct StatusWithRecorder {
    #[serde(default)]
    recorder: crate::admin::status::RecorderStatus,
}

impl RecordingFrom {
    pub(super) fn named(path: PathBuf) -> Self {
        Self { from: Some(path) }
    }

    pub(super) fn is_named(&self) -> bool {
        self.from.is_some()
    }

    pub(super) fn is_bundle(&self) -> bool {
        self.from.as_ref().is_some_and(|path| path.is_file())
    }

    /// The named bundle's part `name`, in JSON, with the time at which it was made, ms since 1970. `None`: no bundle is named, or it has no such part.
    pub(super) fn part<T: DeserializeOwned>(&self, name: &str) -> Result<Option<(T, u64)>, CliError> {
        let Some(path) = self.from.as_ref().filter(|path| path.is_file()) else { return Ok(None) };
        let fault = |source: io::Error| no_bundle(path, &source);
        let mut archive = tar::Archive::new(BufReader::new(File::open(path).map_err(fault)?));
        for entry in archive.entries().map_err(fault)? {
            let entry = entry.map_err(fault)?;
            if entry.path().map_err(fault)?.as_os_str() == name {
                let at_ms = entry.header().mtime().map_err(fault)? * 1000;
                let part = serde_json::from_reader(entry).map_err(|error| fault(error.into()))?;
                return Ok(Some((part, at_ms)));
            }
        }
        Ok(None)
    }
}

/// The named place; or the directory that the running instance names; or that of the configuration file, which needs no
/// instance.
pub(super) fn find(
    from: &RecordingFrom,
    named: Option<PathBuf>,
    config: Option<&Path>,
) -> Result<RecordingSource, CliError> {
    if let Some(path) = &from.from {
        return Ok(RecordingSource { place: Some(path.clone()), instance: None });
    }
    let socket = match named {
        Some(socket) => Ok(socket),
        None => socket::find(config),
    };
    let running = socket.ok().and_then(|socket| {
        let status = socket::connect_briefly(&socket).ok()?.ask::<StatusWithRecorder>(&Command::Status {}).ok()?;
        Some((socket, status.recorder))
    });
    if let Some((socket, recorder)) = running {
        let instance = RecordingInstance { socket, fault: recorder.fault, dropped: recorder.dropped_total };
        return Ok(RecordingSource { place: recorder.directory, instance: Some(instance) });
    }
    let path = config.map_or_else(|| PathBuf::from(socket::DEFAULT_CONFIG), Path::to_owned);
    Ok(RecordingSource { place: Some(configured(&path, config.is_some())?), instance: None })
}

/// The directory that the file at `path` names: only this key, so that a file with errors is enough. `must_be`: the user has named it.
fn configured(path: &Path, must_be: bool) -> Result<PathBuf, CliError> {
    let unusable = |reason: String| CliError::Config { path: path.to_owned(), reason };
    let text = match config::read_file(path) {
        Err(FileFault::Missing) if !must_be => return Ok(RecorderSettings::default().directory),
        read => String::from_utf8(read.map_err(|fault| unusable(fault.to_string()))?)
            .map_err(|_| unusable("it is not UTF-8".to_owned()))?,
    };
    let file: toml::Table = text.parse().map_err(|error: toml::de::Error| unusable(error.message().to_owned()))?;
    match file.get("recorder").and_then(|recorder| recorder.get("directory")) {
        None => Ok(RecorderSettings::default().directory),
        Some(toml::Value::String(directory)) => Ok(path.parent().unwrap_or(Path::new("")).join(directory)),
        Some(_) => Err(unusable("recorder.directory is not a string".to_owned())),
    }
}

impl RecordingSource {
    /// What is in the files; and what the running instance knows, if these are of no use or lack events, or it writes none at present.
    /// Then it says so on standard error.
    pub(super) fn read(&self, times: RangeInclusive<u64>) -> Result<Recording, CliError> {
        let is_within = |what: &Recorded| what.at_unix_ms().is_some_and(|at| times.contains(&at));
        let recorded = self.place().and_then(|place| match place.is_file() {
            true => Ok(recorder::read_files(of_bundle(place)?, is_within)?),
            false => Ok(recorder::read_times(place, &times, is_within)?),
        });
        let Some((memory, need)) = self.remembered(recorded.as_ref().err()) else { return recorded };
        let beside = if recorded.is_ok() { "beside its recorder's files" } else { "alone" };
        let since = memory.since_in_words();
        let mut recording = recorded.unwrap_or_default();
        let added = recording.remember(memory.owner, memory.events, unix_ms(), is_within);
        let why = match need {
            MemoryNeed::NoFiles(why) => why,
            MemoryNeed::Gaps if added == 0 => return Ok(recording),
            MemoryNeed::Gaps => format!("they lack {} that it knows", plural(added as u64, "event")),
        };
        eprintln!("baton: the running instance answers from its memory {beside}, which goes back to {since}: {why}");
        Ok(recording)
    }

    /// All in the files that tells of the time from `from_ms` to `until_ms`.
    pub(super) fn read_past(&self, from_ms: u64, until_ms: u64) -> Result<Recording, CliError> {
        let read = || Ok(recorder::read_files(self.recorded()?, |what| past::tells_of(what, from_ms, until_ms))?);
        let is_running = self.instance.is_some();
        read().map_err(|error| if is_running { CliError::NotReplayed(Box::new(error)) } else { error })
    }

    /// Says on standard error that the files end where the disk took nothing more.
    pub(super) fn say_fault(&self) {
        if let Some(RecordingInstance { fault: Some(fault), .. }) = &self.instance {
            eprintln!("baton: the recorder keeps nothing at present: {fault}");
        }
    }

    /// A directory or a bundle.
    pub(super) fn place(&self) -> Result<&Path, CliError> {
        self.place.as_deref().ok_or(CliError::NotRecorded)
    }

    /// The recorder's files there, name and content, and what the running instance knows beside them.
    pub(super) fn files(&self) -> Result<Vec<(String, Vec<u8>)>, CliError> {
        let recorded = self.recorded();
        let Some((memory, _)) = self.remembered(recorded.as_ref().err()) else { return recorded };
        let mut files = recorded.unwrap_or_default();
        files.push(recorder::as_file(&memory.owner, &memory.events));
        Ok(files)
    }

    fn recorded(&self) -> Result<Vec<(String, Vec<u8>)>, CliError> {
        let place = self.place()?;
        match place.is_file() {
            true => of_bundle(place),
            false => Ok(recorder::contents(place)?),
        }
    }

    /// What the running instance knows, and why it is asked. `fault`: why its files cannot be read.
    fn remembered(&self, fault: Option<&CliError>) -> Option<(InstanceMemory, MemoryNeed)> {
        let RecordingInstance { socket, fault: writes_nothing, dropped } = self.instance.as_ref()?;
        let need = match (fault, writes_nothing) {
            (Some(fault), _) => MemoryNeed::NoFiles(fault.to_string()),
            (None, Some(why)) => MemoryNeed::NoFiles(format!("it writes nothing at present, {why}")),
            (None, None) if *dropped > 0 => MemoryNeed::Gaps,
            (None, None) => return None,
        };
        Some((InstanceMemory::ask(socket)?, need))
    }

    /// The time that the files cover.
    pub(super) fn covers_in_words(&self, recording: &Recording) -> String {
        let place = match &self.place {
            Some(place) if self.instance.is_none() || !recording.is_remembered => place.display().to_string(),
            _ => "the running instance's memory".to_owned(),
        };
        match &recording.covers {
            None => format!("{place} has no record"),
            Some(covers) => format!("{place} covers {}", times_in_words(*covers.start(), *covers.end())),
        }
    }
}

/// Says on standard error what of the files was not read.
pub(super) fn say_faults(recording: &Recording) {
    if let Some(faults) = recorder::in_words(recording) {
        eprintln!("baton: the recorder's files also have this: {faults}");
    }
}

fn of_bundle(path: &Path) -> Result<Vec<(String, Vec<u8>)>, CliError> {
    let read = || {
        let mut file = BufReader::new(File::open(path)?);
        if file.fill_buf()?.starts_with(GZIP) {
            return Err(io::Error::other("it is compressed: unpack it with gunzip first"));
        }
        let mut files = Vec::new();
        for entry in tar::Archive::new(file).entries()? {
            match entry.and_then(|entry| add_record(entry, &mut files)) {
                Ok(()) => {}
                Err(error) if files.is_empty() => return Err(error),
                Err(_) => {
                    let (place, read) = (path.display(), plural(files.len() as u64, "file"));
                    eprintln!(
                        "baton: {place} is cut off: it has {read} of the recorder, and the last one may not be whole"
                    );
                    break;
                }
            }
        }
        Ok(files)
    };
    let files = read().map_err(|source| no_bundle(path, &source))?;
    if files.is_empty() { Err(ReadFault::Nothing(path.to_owned()).into()) } else { Ok(files) }
}

/// The library quotes what it reads, which may be anything.
fn no_bundle(path: &Path, source: &io::Error) -> CliError {
    let why = printable(&source.to_string()).chars().take(WHY_MAX).collect();
    CliError::NoBundle { path: path.to_owned(), why }
}

/// Letters of a reason.
const WHY_MAX: usize = 120;

/// Adds the file that `entry` is, if it is one of the recorder's.
fn add_record(mut entry: tar::Entry<'_, impl Read>, files: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    if let Ok(name) = entry.path()?.strip_prefix(RECORDS).map(|name| name.display().to_string()) {
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.push((name, content));
    }
    Ok(())
}

/// The first bytes of a compressed file (RFC 1952, section 2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The folder with the recorder's files in a bundle.
pub(super) const RECORDS: &str = "recorder";

/// A time on the command line, in ms since 1970.
pub(super) fn time(text: &str) -> Result<u64, MomentFault> {
    moment::parse(text, unix_ms())
}

/// `2026-11-25 03:12:00Z`.
pub(super) fn shown(at_ms: u64) -> String {
    let (date, time) = date_and_time(at_ms);
    format!("{date} {time}Z")
}

/// `from 2026-11-25 03:12:00Z to 2026-11-25 03:17:00Z`.
pub(super) fn times_in_words(from_ms: u64, until_ms: u64) -> String {
    match until_ms {
        u64::MAX => format!("since {}", shown(from_ms)),
        _ => format!("from {} to {}", shown(from_ms), shown(until_ms)),
    }
}

/// A line above the events of a process.
pub(super) fn owner_in_words(owner: &FileOwner) -> String {
    let name = owner.instance.as_ref().unwrap_or(&owner.host);
    format!("process {} of {name} (Baton {}):", owner.pid, owner.version)
}
