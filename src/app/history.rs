//! The page's charts, its list of events and the fleet's worst event go on across an upgrade and a restart: the time before comes from
//! the recorder. From it this process learns, too, how the one before it ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::admin::Admin;
use crate::admin::history::{EVERY_NS, PastMoment, SPAN_NS};
use crate::admin::summary::EVENTS_WITHIN_MS;
use crate::config::Config;
use crate::essential;
use crate::model::end_reason::EndReason;
use crate::recorder::{self, FileOwner, Recorded, RecordedSample, Recording};
use crate::sys::clock::{now_ns, unix_ms};
use crate::table::journal::{Event, What};

const SLOT_MS: u64 = EVERY_NS / 1_000_000;

/// A moment of the charts, and the sample with its flows.
#[derive(Debug)]
pub(crate) struct RecordedMoment<'r> {
    pub sample: &'r RecordedSample,
    pub moment: PastMoment,
}

/// What one process counted within a moment's time, since its sample before.
#[derive(Debug)]
struct MomentIncrease {
    over_ms: u64,
    accepted: u64,
    ended: [u64; EndReason::ALL.len()],
    connects: u64,
    connect_us: u64,
}

/// Reads the ten minutes before from the recorder's files, on a thread for blocking work. Call it once this process serves: an old
/// process of an upgrade has recorded until then.
pub(super) async fn fill(admin: Arc<Admin>, config: Arc<Config>) {
    if config.recorder.size_mb == 0 {
        return;
    }
    let work = move || {
        let (now_ns, now_unix_ms) = (now_ns(), unix_ms());
        let from_ms = now_unix_ms.saturating_sub(SPAN_NS / 1_000_000);
        let events_from_ms = now_unix_ms.saturating_sub(EVENTS_WITHIN_MS);
        let recording = recorder::history_since(&config.recorder.directory, from_ms, events_from_ms);
        let this = FileOwner::of(&config);
        if let Some(died) = death(&recording, &this).filter(|died| !lives_on(died)) {
            admin.table.journal.record(died);
        }
        torn(&recording, &this).into_iter().for_each(|torn| admin.table.journal.record(torn));
        let (own, events) = told_by(&recording, &this);
        // Two moments of one slot would leave the next one empty.
        let ahead_ms = (now_ns / 1_000_000) % SLOT_MS + SLOT_MS - now_unix_ms % SLOT_MS;
        admin.fill_history(
            now_ns,
            now_unix_ms,
            moments(&own, ahead_ms).map(|it| (it.sample.at_unix_ms, it.moment, it.sample.flows_by_backend())),
        );
        admin.set_earlier(events, from_ms);
    };
    essential::aside(work).await;
}

/// That the process before `this` neither stopped nor was upgraded.
fn death(recording: &Recording, this: &FileOwner) -> Option<What> {
    let last = recording.died_before(this, u64::MAX)?;
    let process = &recording.owners[last.owner];
    let is_its = |(of, _): &(usize, _)| recording.owners[*of].is_same_process(process);
    let flows = recording.samples().rev().find(is_its).map(|(_, sample)| sample.flows());
    let silent_ms = this.began_unix_ms.saturating_sub(last.at_unix_ms);
    Some(What::ProcessDied { pid: process.pid, silent_ms, flows })
}

/// What cannot be read of the files of before `this`, unless a process before it has told the same. Its own file is written meanwhile.
fn torn(recording: &Recording, this: &FileOwner) -> Option<What> {
    let is_own = |owner: usize| recording.owners[owner].is_same_process(this);
    let of_others = recording.torn.iter().filter(|(owner, _)| !owner.is_some_and(is_own));
    let (bytes, files): (u64, _) = (of_others.map(|(_, bytes)| bytes).sum(), recording.unreadable.len() as u64);
    let told = recording.records.iter().rev().find_map(|record| match &record.what {
        Recorded::Event(Event { what: What::RecordsTorn { bytes, files }, .. }) => Some((*bytes, *files)),
        _ => None,
    });
    let (told_bytes, told_files) = told.unwrap_or_default();
    (bytes > told_bytes || files > told_files).then_some(What::RecordsTorn { bytes, files })
}

/// Whether it is an instance without a name beside this one, with the same directory.
fn lives_on(died: &What) -> bool {
    let What::ProcessDied { pid, .. } = died else { return false };
    // The processes of containers may have one number.
    let other = Some(*pid).filter(|pid| *pid != std::process::id());
    let pid = other.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    // Not permitted: there is one.
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH) && !has_ended(pid))
}

/// Whether a process is only left for its parent to see that it has ended (proc_pid_stat(5)).
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X'])))
}

/// The samples of this instance, each with the number of its process, and its events.
fn told_by<'r>(recording: &'r Recording, own: &FileOwner) -> (Vec<(usize, &'r RecordedSample)>, Vec<Event>) {
    let (mut samples, mut events) = (Vec::new(), Vec::new());
    for record in recording.records.iter().filter(|record| recording.owners[record.owner].is_same_instance(own)) {
        match &record.what {
            Recorded::Sample(sample) => samples.push((record.owner, sample)),
            Recorded::Event(event) => events.push(event.clone()),
            Recorded::Owner(_) => {}
        }
    }
    (samples, events)
}

/// The moments of the charts, in the order of time, from samples in the order of time, each with the number of its process. Rates
/// span no two processes, and a time without samples has no moment. `ahead_ms`: of the clock whose slots the moments are for, before UTC.
pub(crate) fn moments<'r>(
    samples: &[(usize, &'r RecordedSample)],
    ahead_ms: u64,
) -> impl Iterator<Item = RecordedMoment<'r>> {
    let mut before = BTreeMap::<usize, &RecordedSample>::new();
    let mut moments = Vec::new();
    let slot = |sample: &RecordedSample| (sample.at_unix_ms + ahead_ms) / SLOT_MS;
    for of_slot in samples.chunk_by(|(_, one), (_, next)| slot(one) == slot(next)) {
        let mut increases = BTreeMap::<usize, MomentIncrease>::new();
        let mut last = BTreeMap::<usize, &RecordedSample>::new();
        for (process, sample) in of_slot {
            let increase = increases.entry(*process).or_insert(MomentIncrease::NONE);
            if let Some(before) = before.insert(*process, sample) {
                increase.add(before, sample);
            }
            last.insert(*process, sample);
        }
        // While an upgrade moves the flows, either process has a part of them.
        let Some(sample) = last.into_values().max_by_key(|sample| sample.flows()) else { continue };
        moments.push(RecordedMoment { sample, moment: moment(sample, increases.values()) });
    }
    moments.into_iter()
}

fn moment<'i>(sample: &RecordedSample, increases: impl Iterator<Item = &'i MomentIncrease>) -> PastMoment {
    let mut moment = PastMoment::NONE;
    moment.flows = sample.flows();
    let probe_us = sample.backends.iter().map(|it| it.last_probe_us).max().unwrap_or(0);
    moment.probe_us = u32::try_from(probe_us).unwrap_or(u32::MAX);
    let (mut connects, mut connect_us) = (0, 0);
    for it in increases.filter(|it| it.over_ms > 0) {
        let per_s = |count: u64| count as f32 * 1e3 / it.over_ms as f32;
        moment.accepted_per_s += per_s(it.accepted);
        moment.ended_per_s.iter_mut().zip(it.ended).for_each(|(sum, ended)| *sum += per_s(ended));
        connects += it.connects;
        connect_us += it.connect_us;
    }
    moment.connect_us = connect_us.checked_div(connects).map_or(0, |mean| mean.try_into().unwrap_or(u32::MAX));
    moment
}

impl MomentIncrease {
    const NONE: Self = Self { over_ms: 0, accepted: 0, ended: [0; EndReason::ALL.len()], connects: 0, connect_us: 0 };

    fn add(&mut self, before: &RecordedSample, sample: &RecordedSample) {
        let accepted = |of: &RecordedSample| -> u64 { of.frontends.iter().map(|it| it.accepted_total).sum() };
        self.over_ms += sample.at_unix_ms.saturating_sub(before.at_unix_ms);
        self.accepted += accepted(sample).saturating_sub(accepted(before));
        for (label, ends) in &sample.increase.ended {
            if let Some(reason) = EndReason::ALL.iter().find(|reason| reason.label() == label) {
                self.ended[*reason as usize] += ends;
            }
        }
        self.connects += sample.increase.connects;
        self.connect_us += sample.increase.connect_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{FrontendSample, SampleIncrease, TimedRecord};

    fn sample(at_ms: u64, flows: u32, accepted_total: u64, ended: u64) -> RecordedSample {
        let name = "api".to_owned();
        RecordedSample {
            at_unix_ms: at_ms,
            frontends: vec![FrontendSample { name, flows, accepted_total, ended_total: 0 }],
            backends: Vec::new(),
            increase: SampleIncrease {
                ended: vec![("killed".to_owned(), ended), ("of another version".to_owned(), 9)],
                connects: 2,
                connect_us: 600,
            },
            standing: None,
        }
    }

    fn drawn(samples: &[(usize, RecordedSample)]) -> Vec<(u64, PastMoment)> {
        let samples: Vec<_> = samples.iter().map(|(process, sample)| (*process, sample)).collect();
        moments(&samples, 0).map(|it| (it.sample.at_unix_ms, it.moment)).collect()
    }

    #[test]
    fn rates_are_those_of_the_samples_and_a_time_without_any_has_no_moment() {
        let drawn = drawn(&[
            (0, sample(10_000, 5, 100, 0)),
            (0, sample(11_000, 6, 110, 4)),
            (0, sample(12_000, 7, 120, 0)),
            (0, sample(13_000, 8, 120, 2)),
            (1, sample(60_000, 1, 0, 0)),
            (1, sample(61_000, 3, 4, 0)),
        ]);
        let killed = |it: &PastMoment| it.ended_per_s[EndReason::Killed as usize];
        let seen: Vec<_> = drawn.iter().map(|(at, it)| (*at, it.flows, it.accepted_per_s, killed(it))).collect();
        assert_eq!(seen, [(11_000, 6, 10.0, 4.0), (13_000, 8, 5.0, 1.0), (61_000, 3, 4.0, 0.0)]);
        assert_eq!(drawn[0].1.connect_us, 300, "the mean of the connects");
    }

    /// Regression: each upgrade would have shown a moment without flows, or with millions of new ones.
    #[test]
    fn while_an_upgrade_moves_the_flows_the_charts_neither_jump_nor_fall() {
        let drawn = drawn(&[
            (0, sample(10_000, 100, 1_000_000, 0)),
            (0, sample(11_000, 100, 1_000_010, 0)),
            (1, sample(11_100, 0, 0, 0)),
            (0, sample(12_000, 100, 1_000_020, 0)),
            (1, sample(12_100, 0, 1_000_020, 0)),
            (1, sample(13_100, 101, 1_000_021, 0)),
        ]);
        let flows: Vec<_> = drawn.iter().map(|(_, it)| it.flows).collect();
        assert_eq!(flows, [100, 101]);
    }

    #[test]
    fn samples_of_another_instance_with_the_same_directory_are_not_this_one_s() {
        let owner = |name: Option<&str>| FileOwner { instance: name.map(str::to_owned), ..FileOwner::default() };
        let record = |owner| TimedRecord {
            at_unix_ms: owner as u64,
            owner,
            what: Recorded::Sample(sample(owner as u64, 1, 0, 0)),
        };
        let recording = Recording {
            records: (0..3).map(record).collect(),
            owners: vec![owner(Some("lb-a")), owner(Some("lb-b")), owner(None)],
            ..Recording::default()
        };
        let of = |name| told_by(&recording, &owner(name)).0.into_iter().map(|(it, _)| it).collect::<Vec<_>>();
        assert_eq!(of(Some("lb-a")), [0, 2]);
        assert_eq!(of(None), [0, 1, 2], "it has had a name since");
    }

    /// Regression: after a crash the page's time line and the fleet's card had a start alone, as after any restart.
    #[test]
    fn a_process_that_recorded_no_stop_and_no_upgrade_has_died() {
        let started = || What::Started { version: "1".to_owned() };
        let begun = || What::UpgradeBegun { binary: String::new(), config: String::new() };
        let failed = || What::UpgradeFailed { why: String::new(), moved: 0 };
        let ended = |events: Vec<What>| {
            let mut recording = Recording::default();
            for (pid, began_unix_ms) in [(7, 1000), (8, 16_000)] {
                recording.owners.push(FileOwner { pid, began_unix_ms, ..FileOwner::default() });
            }
            let mut add = |owner, what| recording.records.push(TimedRecord { at_unix_ms: 10_000, owner, what });
            let event = |what| Recorded::Event(Event { number: 0, at_unix_ms: 10_000, what });
            events.into_iter().for_each(|what| add(0, event(what)));
            add(1, event(started()));
            add(0, Recorded::Sample(sample(10_000, 80, 0, 0)));
            death(&recording, &recording.owners[1].clone())
        };
        let has_died =
            |events| matches!(ended(events), Some(What::ProcessDied { pid: 7, silent_ms: 6000, flows: Some(80) }));
        assert!(has_died(vec![started()]));
        assert!(has_died(vec![begun(), failed()]));
        assert!(ended(vec![started(), begun()]).is_none());
        assert!(ended(vec![started(), What::Stopping { flows: 1, timeout_ms: 0 }]).is_none());
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let ended_pid = Pid::from_raw(ended.id().cast_signed()).unwrap();
        while !has_ended(ended_pid) {
            std::thread::yield_now();
        }
        assert!(
            !lives_on(&What::ProcessDied { pid: ended.id(), silent_ms: 1, flows: None }),
            "nobody has seen its end"
        );
        ended.wait().unwrap();
        let lives = What::ProcessDied { pid: std::os::unix::process::parent_id(), silent_ms: 1, flows: None };
        let ours = What::ProcessDied { pid: std::process::id(), silent_ms: 1, flows: None };
        assert!(lives_on(&lives) && !lives_on(&ours), "a container's processes have one number");
        assert!(death(&Recording::default(), &FileOwner::default()).is_none(), "the first process of all");
    }

    /// Regression: a file that a power cut had torn left no event, only a line for whoever read it.
    #[test]
    fn torn_files_of_before_this_process_are_told_once() {
        let process = |pid| FileOwner { pid, ..FileOwner::default() };
        let event = |number, what| Event { number, at_unix_ms: 10_000 + number, what };
        let stopping = || event(1, What::Stopping { flows: 1, timeout_ms: 0 });
        let read = |pid, events: &[Event], cut| {
            let (name, mut content) = recorder::as_file(&process(pid), events);
            content.truncate(content.len() - cut);
            recorder::read_files(vec![(name.replace("memory", "history"), content)], |_| true).unwrap()
        };
        let said = |recording: &Recording| torn(recording, &process(9));
        let cut = read(7, &[event(0, What::WorkerMoves { worker: 0 }), stopping()], 5);
        let Some(What::RecordsTorn { bytes, files: 0 }) = said(&cut) else { panic!("{:?}", said(&cut)) };
        assert!((20..200).contains(&bytes), "{bytes}");
        assert!(said(&read(7, &[stopping()], 0)).is_none());
        assert!(said(&read(9, &[stopping()], 5)).is_none(), "this process writes it at the moment");
        let again = read(7, &[event(0, What::RecordsTorn { bytes: 4_000, files: 0 }), stopping()], 5);
        assert!(said(&again).is_none(), "the process before has told it");
    }
}
