//! The flight recorder: writes events, ended flows and a sample each second to files that outlive the process.
//!
//! ```text
//!   whoever records ──▶ Journal ── a bounded queue ──▶ this thread ──▶ history-*.rec, flows-*.rec ──▶ read()
//! ```
//! Nobody waits for it: events for which the queue has no room are counted, and a record says how many are missing. A process
//! writes to files of its own only, so that the two processes of an upgrade cannot tear each other's records.

mod entry;
mod files;
pub(crate) mod past;
mod reader;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::{Config, RecorderSettings};
pub(crate) use crate::config::{FileOwner, FrontendSettings};
use crate::essential;
use crate::model::humane::plural;
use crate::model::recorder_file::header;
use crate::sys::clock::{now_ns, unix_ms};
use crate::table::Part;
use crate::table::backend::Registry;
use crate::table::journal::{Event, Journal, What};
use crate::table::recorder::RecorderCensus;
use crate::table::standing::StandingBoard;
#[cfg(test)]
pub(crate) use entry::{BackendSample, FrontendSample, SampleIncrease};
pub(crate) use entry::{Recorded, RecordedSample, ends_counted};
use entry::{SampledTotals, append_event, append_sample};
use files::RecordFiles;
pub(crate) use reader::{ReadFault, Recording, TimedRecord, contents, read_files, read_times};

/// Ended flows wait no longer than this for the disk; other events do not wait.
const TAKE_EVERY: Duration = Duration::from_millis(200);

const SAMPLE_EVERY_NS: u64 = 1_000_000_000;

/// Records are written in pieces of about this size.
const WRITE_AT: usize = 16 * 1024;

/// The parts that the recorder may touch.
#[derive(Clone, Debug)]
pub(crate) struct RecorderParts {
    pub journal: Part<Journal>,
    /// For the samples.
    pub registry: Part<Registry>,
    pub standing: Part<StandingBoard>,
    pub census: Part<RecorderCensus>,
}

/// Starts the recorder's thread, which ends after `Unrecorded::end`.
pub(crate) fn start(parts: RecorderParts, config: watch::Receiver<Arc<Config>>) -> io::Result<JoinHandle<()>> {
    let mut recorder = Recorder::new(parts, config);
    // By then it has the flows of the process before it.
    recorder.sample_at_ns = now_ns() + SAMPLE_EVERY_NS;
    essential::thread("recorder", move || while recorder.turn(TAKE_EVERY) {})
}

struct Recorder {
    parts: RecorderParts,
    config: watch::Receiver<Arc<Config>>,
    settings: RecorderSettings,
    history: RecordFiles,
    flows: RecordFiles,
    /// Monotonic ns.
    sample_at_ns: u64,
    retry_at_ns: u64,
    is_failing: bool,
    /// Events that are missing, and that no record says so of yet.
    missing: u64,
    /// At the last sample.
    sampled: Option<SampledTotals>,
}

impl Recorder {
    fn new(parts: RecorderParts, mut config: watch::Receiver<Arc<Config>>) -> Self {
        let now = config.borrow_and_update().clone();
        let settings = now.recorder.clone();
        let (history, flows) = open(&now);
        parts.journal.unrecorded.turn(settings.size_mb > 0);
        Self {
            parts,
            config,
            settings,
            history,
            flows,
            sample_at_ns: 0,
            retry_at_ns: 0,
            is_failing: false,
            missing: 0,
            sampled: None,
        }
    }

    /// Writes what there is. False: there will be no more.
    fn turn(&mut self, wait: Duration) -> bool {
        self.follow_config();
        let taken = self.parts.journal.unrecorded.take(wait);
        let now_ns = now_ns();
        if self.settings.size_mb == 0 {
            return !taken.has_ended;
        }
        self.missing += taken.dropped;
        self.parts.census.dropped.add(taken.dropped);
        // A sample shows whether the disk takes anything again.
        let sample = now_ns >= self.sample_at_ns || self.is_failing;
        if sample {
            self.sample_at_ns = now_ns + SAMPLE_EVERY_NS;
            self.history.forget_if_removed();
            self.flows.forget_if_removed();
        }
        let events = taken.events.len() as u64;
        let has_room = now_ns >= self.retry_at_ns;
        match has_room.then(|| self.write(&taken.events, sample)) {
            Some(Ok(())) => self.works(),
            Some(Err(error)) => {
                self.lose(events);
                self.retry_at_ns = now_ns + SAMPLE_EVERY_NS;
                self.fails(&error);
            }
            None => self.lose(events),
        }
        !taken.has_ended
    }

    fn lose(&mut self, events: u64) {
        self.missing += events;
        self.parts.census.dropped.add(events);
    }

    fn write(&mut self, events: &[Event], sample: bool) -> io::Result<()> {
        let at_unix_ms = unix_ms();
        let mut too_long = 0;
        let (mut history, mut flows) = (Vec::new(), Vec::new());
        let mut written = 0;
        for event in events {
            let is_flow = event.what.is_end();
            let (bytes, files) =
                if is_flow { (&mut flows, &mut self.flows) } else { (&mut history, &mut self.history) };
            too_long += u64::from(!append_event(bytes, event));
            if bytes.len() >= WRITE_AT {
                written += files.write(bytes, at_unix_ms)?;
                bytes.clear();
            }
        }
        if sample {
            let sample = RecordedSample::take(&self.parts.registry, at_unix_ms, &mut self.sampled);
            let standing = self.parts.standing.last().as_deref().cloned();
            append_sample(&mut history, &RecordedSample { standing, ..sample });
        }
        written += self.flows.write(&flows, at_unix_ms)?;
        written += self.history.write(&history, at_unix_ms)?;
        self.parts.census.written.add(written);
        self.lose(too_long);
        Ok(())
    }

    fn works(&mut self) {
        self.is_failing = false;
        self.parts.census.set_fault(None);
        let records = std::mem::take(&mut self.missing);
        if records > 0 {
            self.parts.journal.record(What::RecordsDropped { records });
        }
    }

    /// Says it once, not each second.
    fn fails(&mut self, error: &io::Error) {
        self.is_failing = true;
        let directory = self.settings.directory.display().to_string();
        let is_new = self.parts.census.set_fault(Some(error.to_string()));
        let nothing_there = error.kind() == io::ErrorKind::NotFound && self.settings.is_in_default_place();
        match (is_new, nothing_there) {
            (false, _) => {}
            // Baton runs by hand, not as a service.
            (true, true) => {
                tracing::info!(directory, "the recorder keeps nothing: the directory around this one is not there")
            }
            (true, false) => self.parts.journal.record(What::RecorderFailed { directory, error: error.to_string() }),
        }
    }

    fn follow_config(&mut self) {
        if !self.config.has_changed().unwrap_or(false) {
            return;
        }
        let now = self.config.borrow_and_update().clone();
        if now.recorder != self.settings {
            self.settings = now.recorder.clone();
            (self.history, self.flows) = open(&now);
            self.retry_at_ns = 0;
            self.missing = 0;
            self.parts.census.set_fault(None);
            self.parts.journal.unrecorded.turn(self.settings.size_mb > 0);
        }
        let opening = entry::opening(&now);
        self.history.set_opening(opening.clone());
        self.flows.set_opening(opening);
    }
}

/// The files for the history and for ended flows, which share the size.
fn open(config: &Config) -> (RecordFiles, RecordFiles) {
    let RecorderSettings { directory, size_mb } = &config.recorder;
    let each = u64::from(*size_mb) * 1024 * 1024 / 2;
    let opening = entry::opening(config);
    let [history, flows] = [HISTORY, FLOWS].map(|name| RecordFiles::new(directory, name, each, opening.clone()));
    (history, flows)
}

/// The samples since `from_ms` and the events but ends of flows since `events_from_ms`, milliseconds since 1970, with the processes that
/// wrote them: from the newest files, as [`read_times`] chooses them. What cannot be read is passed over: these are for charts, which show
/// a gap there.
pub(crate) fn history_since(directory: &Path, from_ms: u64, events_from_ms: u64) -> Recording {
    let is_since = |what: &Recorded| match what {
        Recorded::Owner(_) => false,
        Recorded::Sample(sample) => sample.at_unix_ms >= from_ms,
        Recorded::Event(event) => event.at_unix_ms >= events_from_ms,
    };
    let times = from_ms.min(events_from_ms)..=u64::MAX;
    let read = reader::read_series(directory, Some(HISTORY), &times, is_since);
    let read = read.unwrap_or_default();
    read.unreadable.iter().for_each(|fault| tracing::debug!(%fault, "the charts have a gap here"));
    read
}

const HISTORY: &str = "history";
const FLOWS: &str = "flows";
/// What a process remembered, in a bundle.
const MEMORY: &str = "memory";

/// What a process remembers, as a file of its recorder: name and content.
pub(crate) fn as_file(owner: &FileOwner, events: &[Event]) -> (String, Vec<u8>) {
    let begun_ms = events.first().map_or(0, |event| event.at_unix_ms);
    let mut content = [header(), entry::opening_of(owner)].concat();
    events.iter().for_each(|event| {
        append_event(&mut content, event);
    });
    (files::file_name(MEMORY, begun_ms, owner.pid), content)
}

/// What of the files was not read, for people: `3 torn bytes; cannot read flows-…: this is no file of a recorder`.
pub(crate) fn in_words(recording: &Recording) -> Option<String> {
    let faults = [(recording.skipped_bytes, "torn byte"), (recording.unknown, "unknown record")];
    let counted = faults.iter().filter(|(count, _)| *count > 0).map(|(count, what)| plural(*count, what));
    let said: Vec<_> = counted.chain(recording.unreadable.iter().map(ToString::to_string)).collect();
    (!said.is_empty()).then(|| said.join("; "))
}
