use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::watch;

use super::files::{RecordFiles, begun_ms, files_of};
use super::*;
use crate::addr::BackendAddr;
use crate::config::tests::minimal;
use crate::model::end_reason::EndReason;
use crate::table::Table;
use crate::table::journal::testing::ended;
use crate::table::standing::InstanceStanding;

fn read(directory: &Path, times: std::ops::RangeInclusive<u64>) -> Result<Recording, ReadFault> {
    read_files(contents(directory)?, |what| what.at_unix_ms().is_some_and(|at| times.contains(&at)))
}

const NO_WAIT: Duration = Duration::ZERO;

fn config(directory: &Path, size_mb: u32) -> Arc<Config> {
    Arc::new(Config { recorder: RecorderSettings { directory: directory.to_owned(), size_mb }, ..minimal() })
}

fn parts() -> RecorderParts {
    let table = Table::new(1);
    let frontend = table.registry.frontend(&"apiserver".into());
    table.registry.backend(&frontend, &"cp1".into());
    RecorderParts { journal: table.part(), registry: table.part(), standing: table.part(), census: table.part() }
}

fn recorder(directory: &Path) -> (Recorder, RecorderParts, watch::Sender<Arc<Config>>) {
    let sender = watch::Sender::new(config(directory, 1));
    let parts = parts();
    (Recorder::new(parts.clone(), sender.subscribe()), parts, sender)
}

/// The sentences of all events, in the order in which the files have them.
fn sentences(directory: &Path) -> Vec<String> {
    let recording = read(directory, 0..=u64::MAX).unwrap();
    let event = |record: TimedRecord| match record.what {
        Recorded::Event(event) => Some(event.what.sentence()),
        _ => None,
    };
    recording.records.into_iter().filter_map(event).collect()
}

#[test]
fn what_a_killed_process_recorded_is_read_word_for_word_with_its_samples_and_settings() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("recorder");
    let (mut recorder, parts, _config) = recorder(&directory);
    let events =
        [ended(u64::MAX), What::Started { version: "1".to_owned() }, What::Reloaded { changes: vec!["a".into()] }];
    let said = events.each_ref().map(What::sentence);
    events.into_iter().for_each(|event| parts.journal.record(event));
    parts.standing.show(InstanceStanding::default());
    assert!(recorder.turn(NO_WAIT));
    // As after SIGKILL: nothing is closed or flushed.
    std::mem::forget(recorder);
    assert_eq!(sentences(&directory), said);
    let recording = read(&directory, 0..=u64::MAX).unwrap();
    let [owner] = &recording.owners[..] else { panic!("{:?}", recording.owners) };
    assert_eq!((owner.pid, owner.frontends[0].fall), (std::process::id(), minimal().frontends[0].health.fall));
    let sample = recording.records.iter().find_map(|record| match &record.what {
        Recorded::Sample(sample) => Some(sample),
        _ => None,
    });
    let sample = sample.unwrap();
    assert_eq!((&*sample.backends[0].name, &sample.standing), ("cp1", &Some(InstanceStanding::default())));
    let at = recording.records[0].at_unix_ms;
    assert!(read(&directory, 0..=at - 1).unwrap().records.is_empty(), "none is before the first");
    assert_eq!(recording.skipped_bytes + recording.unknown, 0);
}

#[test]
fn the_ring_keeps_its_size_and_the_newest_events() {
    let folder = tempfile::tempdir().unwrap();
    let (mut recorder, parts, _config) = recorder(folder.path());
    let flows = 30_000;
    for first in (0..flows).step_by(5000) {
        (first..first + 5000).for_each(|flow| parts.journal.record(ended(flow)));
        assert!(recorder.turn(NO_WAIT));
    }
    let bytes: u64 = files_of(folder.path(), None).unwrap().iter().map(|(_, bytes)| bytes).sum();
    assert!((300_000..=1024 * 1024).contains(&bytes), "{bytes}");
    assert!(parts.census.written.value() > 2 * 1024 * 1024, "the ring went round: {}", parts.census.written.value());
    let kept = sentences(folder.path());
    assert!(kept.last().unwrap().starts_with(&format!("flow {} ", flows - 1)), "{:?}", kept.last());
    assert!(kept.len() < flows as usize);
    assert_eq!(parts.census.dropped.value(), 0);
}

/// Regression: what a host recorded before its clock was set right had the newest names for years, so that of a full ring the true newest
/// went first.
#[test]
fn files_from_before_the_clock_was_set_back_are_the_first_to_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = RecordFiles::new(folder.path(), FLOWS, 80_000, Vec::new());
    let (wrong_ms, right_ms) = (2_100_000_000_000, 1_800_000_000_000);
    let times = (0..8).map(|at| wrong_ms + at).chain((0..8).map(|at| right_ms + at));
    for at_unix_ms in times {
        files.write(&[0; 9_000], at_unix_ms).unwrap();
    }
    let kept = files_of(folder.path(), Some(FLOWS)).unwrap();
    let kept: Vec<_> = kept.iter().filter_map(|(path, _)| begun_ms(path)).collect();
    assert!(kept.iter().all(|at_unix_ms| *at_unix_ms < wrong_ms), "{kept:?}");
    assert_eq!(kept.last(), Some(&(right_ms + 7)), "{kept:?}");
}

/// Regression: the recorder wrote into a directory that had been moved away, for as long as the process lived.
#[test]
fn records_go_to_the_directory_that_has_the_name_now() {
    let folder = tempfile::tempdir().unwrap();
    let [directory, moved] = ["recorder", "moved"].map(|name| folder.path().join(name));
    let (mut recorder, parts, _config) = recorder(&directory);
    let mut record = |version: &str| {
        parts.journal.record(What::Started { version: version.to_owned() });
        recorder.sample_at_ns = 0;
        assert!(recorder.turn(NO_WAIT));
    };
    record("1");
    fs::rename(&directory, &moved).unwrap();
    record("2");
    let said = ["1", "2"].map(|version| What::Started { version: version.to_owned() }.sentence());
    assert_eq!(sentences(&moved), said[..1]);
    assert_eq!(sentences(&directory), said[1..]);
    assert_eq!(parts.census.fault(), None);
    // Another host's directory is there instead of it: the files have the same names, and are others.
    fs::rename(&directory, folder.path().join("away")).unwrap();
    fs::create_dir(&directory).unwrap();
    record("3");
    assert_eq!(sentences(&directory).len(), 1);
}

/// Regression: what was written after an operator's `> file`, or after logrotate's copytruncate, stood in a file without a header, and nobody
/// could read it.
#[test]
fn a_file_that_was_cut_to_nothing_loses_what_was_cut_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut recorder, parts, _config) = recorder(folder.path());
    let mut record = |version: &str| {
        parts.journal.record(What::Started { version: version.to_owned() });
        assert!(recorder.turn(NO_WAIT));
    };
    record("1");
    for (path, _) in files_of(folder.path(), None).unwrap() {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    }
    record("2");
    record("3");
    let said = ["2", "3"].map(|version| What::Started { version: version.to_owned() }.sentence());
    assert_eq!(sentences(folder.path()), said);
    assert!(read(folder.path(), 0..=u64::MAX).unwrap().unreadable.is_empty());
}

/// A file that was begun and last written to at these times, in s since 1970, by a process, with a record of each of these times;
/// no time: the file is none of a recorder.
fn file_of(directory: &Path, pid: u32, begun_s: u64, written_s: u64, recorded_s: &[u64]) {
    let mut content = crate::model::recorder_file::header();
    for at_s in recorded_s {
        let event = Event { number: 1, at_unix_ms: at_s * 1000, what: What::Started { version: format!("at {at_s}") } };
        assert!(append_event(&mut content, &event));
        append_sample(&mut content, &RecordedSample { at_unix_ms: at_s * 1000, ..RecordedSample::default() });
    }
    if recorded_s.is_empty() {
        content = b"something else".to_vec();
    }
    let path = directory.join(format!("history-{:013}-{pid}.rec", begun_s * 1000));
    fs::write(&path, content).unwrap();
    let written = std::time::UNIX_EPOCH + Duration::from_secs(written_s);
    fs::File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
}

/// The times in s of the events that are found.
fn read_s(directory: &Path, times_s: std::ops::RangeInclusive<u64>) -> Result<Vec<u64>, ReadFault> {
    let times = times_s.start() * 1000..=times_s.end().saturating_mul(1000);
    let is_event =
        |what: &Recorded| matches!(what, Recorded::Event(_)) && what.at_unix_ms().is_some_and(|at| times.contains(&at));
    let recording = read_times(directory, &times, is_event)?;
    Ok(recording.records.iter().map(|record| record.at_unix_ms / 1000).collect())
}

/// Regression: each command read all 64 MB for the last minute.
#[test]
fn only_the_files_that_reach_into_the_time_that_is_asked_for_are_read() {
    let folder = tempfile::tempdir().unwrap();
    // To read one of these is noted.
    file_of(folder.path(), 1, 1_000, 2_000, &[]);
    file_of(folder.path(), 1, 90_000, 91_000, &[]);
    file_of(folder.path(), 1, 2_000, 3_000, &[2_000, 3_000]);
    file_of(folder.path(), 1, 3_000, 5_000, &[3_001, 4_999]);
    assert_eq!(read_s(folder.path(), 3_000..=4_000).unwrap(), [3_000, 3_001]);
    assert_eq!(read_s(folder.path(), 4_000..=80_000).unwrap(), [4_999]);
    let noted = |times| read_times(folder.path(), &times, |_| true).unwrap().unreadable.len();
    assert_eq!((noted(1_500_000..=4_000_000), noted(4_000_000..=95_000_000)), (1, 1));
    assert_eq!(noted(3_000_000..=80_000_000), 0);
    let covers = read_times(folder.path(), &(4_000_000..=5_000_000), |_| true).unwrap().covers.unwrap();
    assert_eq!(covers, 1_000_000..=91_000_000, "also of what is not read");
}

/// Regression: one file whose beginning a power cut had filled with zeros hid what all others had.
#[test]
fn a_file_of_which_nothing_can_be_read_is_passed_over_and_named() {
    let folder = tempfile::tempdir().unwrap();
    file_of(folder.path(), 1, 2_000, 3_000, &[2_000, 3_000]);
    fs::write(folder.path().join("flows-0000002500000-1.rec"), [0; 4096]).unwrap();
    assert_eq!(read_s(folder.path(), 1_000..=4_000).unwrap(), [2_000, 3_000]);
    let recording = read(folder.path(), 0..=u64::MAX).unwrap();
    assert_eq!(recording.records.len(), 4, "with two samples");
    let said = in_words(&recording).unwrap();
    assert_eq!(said, "cannot read flows-0000002500000-1.rec: this is no file of a recorder");
    // Where there is no other, that is the answer.
    fs::remove_file(folder.path().join("history-0000002000000-1.rec")).unwrap();
    assert!(matches!(read(folder.path(), 0..=u64::MAX), Err(ReadFault::Content { .. })));
}

/// The files' names alone are in another order.
#[test]
fn after_an_upgrade_that_failed_the_records_of_the_process_that_went_on_are_found() {
    let folder = tempfile::tempdir().unwrap();
    file_of(folder.path(), 1, 1_000, 9_000, &[1_000, 5_001, 9_000]);
    file_of(folder.path(), 2, 5_000, 5_001, &[5_000]);
    assert_eq!(read_s(folder.path(), 8_000..=u64::MAX).unwrap(), [9_000]);
    assert_eq!(read_s(folder.path(), 4_000..=6_000).unwrap(), [5_000, 5_001]);
}

#[test]
fn a_copy_that_lost_the_time_of_its_last_record_is_read() {
    let folder = tempfile::tempdir().unwrap();
    file_of(folder.path(), 1, 1_000, 0, &[1_000, 5_000]);
    assert_eq!(read_s(folder.path(), 4_000..=6_000).unwrap(), [5_000]);
}

#[test]
fn samples_and_events_for_the_page_are_read_beside_torn_ones_and_a_file_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    file_of(folder.path(), 1, 1_000, 5_000, &[1_000, 4_000, 4_001, 4_002]);
    file_of(folder.path(), 2, 5_000, 6_000, &[]);
    file_of(folder.path(), 3, 6_000, 7_000, &[6_000, 6_001]);
    let torn = folder.path().join("history-0000001000000-1.rec");
    let mut content = fs::read(&torn).unwrap();
    content.truncate(content.len() - 1);
    // Of the first record of 4001.
    let third = content.windows(7).position(|bytes| bytes == b"at 4001").unwrap();
    content[third] ^= 1;
    fs::write(&torn, content).unwrap();
    let recording = history_since(folder.path(), 4_000_000, 4_000_000);
    let found = |wanted: fn(&Recorded) -> bool| {
        let records = recording.records.iter().filter(|record| wanted(&record.what));
        records.map(|record| record.at_unix_ms / 1000).collect::<Vec<_>>()
    };
    assert_eq!(found(|what| matches!(what, Recorded::Sample(_))), [4_000, 4_001, 6_000, 6_001]);
    assert_eq!(found(|what| matches!(what, Recorded::Event(_))), [4_000, 4_002, 6_000, 6_001]);
    assert!(history_since(Path::new("/proc/none"), 0, 0).records.is_empty());
}

#[test]
fn a_sample_has_what_was_counted_since_the_one_before_and_is_read_without_it() {
    let table = Table::new(1);
    let frontend = table.registry.frontend(&"apiserver".into());
    let backend = table.registry.backend(&frontend, &"cp1".into());
    let count = |ends| {
        frontend.lanes[0].ended[EndReason::Killed as usize].add(ends);
        [300, 500].into_iter().for_each(|us| backend.lanes[0].connect.record(Duration::from_micros(us)));
    };
    let mut before = None;
    count(1_000);
    let first = RecordedSample::take(&table.registry, 1_000, &mut before);
    assert_eq!(first.increase, SampleIncrease::default(), "an upgrade passes the counters on");
    count(3);
    let second = RecordedSample::take(&table.registry, 2_000, &mut before);
    let ended = vec![("killed".to_owned(), 3)];
    assert_eq!(second.increase, SampleIncrease { ended, connects: 2, connect_us: 800 });
    let mut file = Vec::new();
    append_sample(&mut file, &second);
    let whole = [crate::model::recorder_file::header(), file].concat();
    let (kind, body) = crate::model::recorder_file::RecordsIn::new(&whole).unwrap().next().unwrap();
    let Some(Recorded::Sample(read)) = entry::parse(kind, body) else { panic!("not read") };
    assert_eq!(read, second);
    let without = postcard::to_stdvec(&second).unwrap();
    let Some(Recorded::Sample(read)) = entry::parse(kind, &without) else { panic!("not read") };
    assert_eq!(read, RecordedSample { increase: SampleIncrease::default(), ..second });
}

/// Regression: flows at an address that its name no longer has were in no backend's figure, and the sums did not agree.
#[test]
fn a_sample_has_the_flows_of_a_backend_at_all_its_addresses() {
    let table = Table::new(1);
    let (frontend, name) = (table.registry.frontend(&"apiserver".into()), "cp1".into());
    let at = |address: &str| BackendAddr::new(address.parse().unwrap());
    table.registry.backend_at(&frontend, &name, at("10.0.0.11:6443")).count_in();
    (0..2).for_each(|_| drop(table.registry.hold_at(&frontend, &name, 1, at("10.0.0.12:6443"))));
    let sample = RecordedSample::take(&table.registry, 1_000, &mut None);
    assert_eq!(sample.flows_by_backend().collect::<Vec<_>>(), [("apiserver", "cp1", 3)]);
}

#[test]
fn ended_flows_push_no_event_out() {
    let folder = tempfile::tempdir().unwrap();
    let (mut recorder, parts, _config) = recorder(folder.path());
    parts.journal.record(What::Started { version: "1".to_owned() });
    for _ in 0..6 {
        (0..5000).for_each(|flow| parts.journal.record(ended(flow)));
        assert!(recorder.turn(NO_WAIT));
    }
    assert_eq!(sentences(folder.path())[0], "Baton 1 starts");
}

#[test]
fn the_two_processes_of_an_upgrade_tear_no_record_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    // The same number, as two containers may have it, and the same moment.
    let write = |process: usize| {
        let mut files = RecordFiles::new(folder.path(), HISTORY, 1 << 20, Vec::new());
        for worker in 0..500 {
            let event =
                Event { number: 0, at_unix_ms: 1, what: What::AcceptResumed { worker, paused_ms: process as u64 } };
            let mut record = Vec::new();
            assert!(append_event(&mut record, &event));
            files.write(&record, 1).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let write = &write;
        (0..2).for_each(|process| drop(scope.spawn(move || write(process))));
    });
    let recording = read(folder.path(), 0..=u64::MAX).unwrap();
    assert_eq!((recording.records.len(), recording.skipped_bytes), (1000, 0));
}

#[test]
fn a_file_that_another_process_removed_is_not_written_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut recorder, parts, _config) = recorder(folder.path());
    parts.journal.record(What::Started { version: "1".to_owned() });
    recorder.turn(NO_WAIT);
    files_of(folder.path(), None).unwrap().iter().for_each(|(file, _)| fs::remove_file(file).unwrap());
    recorder.sample_at_ns = 0;
    parts.journal.record(What::Started { version: "2".to_owned() });
    recorder.turn(NO_WAIT);
    assert_eq!(sentences(folder.path()), ["Baton 2 starts"]);
}

#[test]
fn another_directory_and_size_of_a_reload_count_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let (mut recorder, parts, latest) = recorder(&one);
    let mut say = |version: &str| {
        parts.journal.record(What::Started { version: version.to_owned() });
        assert!(recorder.turn(NO_WAIT));
    };
    say("1");
    latest.send_replace(config(&other, 1));
    say("2");
    latest.send_replace(config(&other, 0));
    // The recorder learns of it after this one, and has taken it away.
    say("3");
    say("4");
    latest.send_replace(config(&one, 1));
    assert!(recorder.turn(NO_WAIT));
    parts.journal.record(What::Started { version: "5".to_owned() });
    assert!(recorder.turn(NO_WAIT));
    assert_eq!(sentences(&one), ["Baton 1 starts", "Baton 5 starts"]);
    assert_eq!(sentences(&other), ["Baton 2 starts"]);
    parts.journal.unrecorded.end();
    assert!(!recorder.turn(Duration::from_secs(60)), "it ends when it is told to");
}

#[test]
fn a_directory_that_cannot_be_written_costs_events_that_are_counted_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("not/there");
    let (mut recorder, parts, _config) = recorder(&directory);
    for _ in 0..3 {
        parts.journal.record(What::Started { version: "1".to_owned() });
        assert!(recorder.turn(NO_WAIT));
        recorder.retry_at_ns = 0;
    }
    assert!(parts.census.fault().unwrap().contains("No such file"), "{:?}", parts.census.fault());
    let failed = |event: &Event| matches!(event.what, What::RecorderFailed { .. });
    assert_eq!(parts.journal.since(0, false).into_iter().filter(failed).count(), 1, "it is said once");
    fs::create_dir(folder.path().join("not")).unwrap();
    assert!(recorder.turn(NO_WAIT) && recorder.turn(NO_WAIT));
    assert_eq!(parts.census.fault(), None);
    let dropped = parts.census.dropped.value();
    assert!(dropped >= 3, "{dropped}");
    let said = sentences(&directory);
    assert_eq!(said, [What::RecordsDropped { records: dropped }.sentence()]);
}

#[test]
fn a_directory_without_a_recorder_is_said_to_have_none_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("history-of-rome.rec");
    fs::write(&other, "x").unwrap();
    let said = read(folder.path(), 0..=u64::MAX).unwrap_err().to_string();
    assert!(said.starts_with("there is no file of a recorder in "), "{said}");
    let mut files = RecordFiles::new(folder.path(), HISTORY, 0, Vec::new());
    files.write(b"x", 1).unwrap();
    files.write(b"x", 1).unwrap();
    assert!(other.exists());
    let said = read(&PathBuf::from("/proc/none"), 0..=u64::MAX).unwrap_err().to_string();
    assert!(said.contains("/proc/none: No such file"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn files_cut_anywhere_give_their_first_events_and_no_others(flows in 1..40u64, at in any::<prop::sample::Index>()) {
        let folder = tempfile::tempdir().unwrap();
        let (mut recorder, parts, _config) = recorder(folder.path());
        (0..flows).for_each(|flow| parts.journal.record(ended(flow)));
        recorder.turn(NO_WAIT);
        let all = sentences(folder.path());
        prop_assert_eq!(all.len() as u64, flows);
        let [(file, bytes)] = &files_of(folder.path(), Some(FLOWS)).unwrap()[..] else { panic!("one file") };
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(at.index(*bytes as usize + 1) as u64).unwrap();
        let kept = sentences(folder.path());
        prop_assert_eq!(&kept[..], &all[..kept.len()]);
    }
}

/// Regression: after a disk that had been full was free again, `explain` told of a backend as ejected that was ready again in the events of
/// the gap, which the running instance still knew.
#[test]
fn events_that_a_full_disk_did_not_take_are_told_from_the_memory_of_the_process() {
    let started = || What::Started { version: "1".to_owned() };
    let event = |number: u64, what| Event { number, at_unix_ms: 1_000 + number, what };
    let all = vec![
        event(0, started()),
        event(1, What::Reloaded { changes: Vec::new() }),
        event(2, ended(2)),
        event(3, What::RecordsDropped { records: 2 }),
        event(4, ended(4)),
    ];
    let owner = FileOwner { pid: 7, began_unix_ms: 1, ..FileOwner::default() };
    let file = |number: &[usize]| as_file(&owner, &number.iter().map(|at| all[*at].clone()).collect::<Vec<_>>()).1;
    let recorded = || ("history-1-7.rec".to_owned(), file(&[0, 3, 4]));
    let numbers =
        |recording: &Recording| -> Vec<_> { recording.records.iter().map(|it| it.at_unix_ms - 1_000).collect() };
    let filled = |recording: &Recording| recording.records.iter().any(|it| recording.is_filled(it));
    let with = |memory: &[usize]| {
        let mut recording = read_files(vec![recorded()], |_| true).unwrap();
        let events = memory.iter().map(|at| all[*at].clone()).collect();
        let added = recording.remember(owner.clone(), events, 2_000, |_| true);
        (added, numbers(&recording), filled(&recording))
    };
    assert_eq!(with(&[0, 1, 2, 3, 4]), (2, vec![0, 1, 2, 3, 4], true));
    assert_eq!(with(&[2, 3, 4]), (1, vec![0, 2, 3, 4], false), "a part is forgotten");
    assert_eq!(with(&[3, 4]), (0, vec![0, 3, 4], false));
    let bundle = read_files(vec![recorded(), as_file(&owner, &all)], |_| true).unwrap();
    assert_eq!((numbers(&bundle), filled(&bundle)), (vec![0, 1, 2, 3, 4], true), "of a bundle");
}
