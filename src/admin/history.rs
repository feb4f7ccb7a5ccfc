//! Ten minutes of figures for the page's charts, in rings of a fixed size: 300 samples of 150 bytes, and 1.2 kB for each backend.
//!
//! A sample's place in the rings follows from its time, so a time in which no process ran is a gap without further work. The time
//! before this process comes from the recorder's samples, if it is on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::model::end_reason::EndReason;
use crate::model::histogram::LatencySnapshot;
use crate::table::backend::{BackendEntry, Registry};

/// Samples that are kept.
pub(crate) const POINTS: usize = 300;
pub(crate) const EVERY_NS: u64 = 2_000_000_000;
/// Time from the first sample to the last.
pub(crate) const SPAN_NS: u64 = (POINTS as u64 - 1) * EVERY_NS;

/// Backends with a ring of their own. Flows of further ones are in no band, but in all other figures.
const BANDS_MAX: usize = 256;

/// A clock's beginning has so many slots before it: those of an earlier start of the machine.
const LEAD_NS: u64 = POINTS as u64 * EVERY_NS;

const REASONS: usize = EndReason::ALL.len();

/// The figures of one moment; rates are averages since the sample before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastMoment {
    /// Its time, as [`slot_at`] counts it; 0: there is no sample here.
    slot: u64,
    pub flows: u32,
    pub accepted_per_s: f32,
    /// In the order of [`EndReason::ALL`].
    pub ended_per_s: [f32; REASONS],
    /// Mean of the connects since the sample before; 0: there was none.
    pub connect_us: u32,
    /// The longest last probe of a backend; 0: none has ended.
    pub probe_us: u32,
}

impl PastMoment {
    pub(crate) const NONE: Self =
        Self { slot: 0, flows: 0, accepted_per_s: 0.0, ended_per_s: [0.0; REASONS], connect_us: 0, probe_us: 0 };
}

/// The flows of one backend, whatever its addresses.
#[derive(Clone, Debug)]
pub(crate) struct FlowBand {
    pub frontend: Arc<str>,
    pub backend: Arc<str>,
    key: u64,
    /// As the moments.
    flows: Box<[u32]>,
}

/// Counters at the last sample.
#[derive(Clone, Copy, Debug)]
struct PastCounters {
    at_ns: u64,
    accepted: u64,
    ended: [u64; REASONS],
    connects: u64,
    connect_s: f64,
}

/// The figures of the last ten minutes.
#[derive(Debug)]
pub(crate) struct PageHistory {
    moments: Box<[PastMoment]>,
    bands: Vec<FlowBand>,
    before: Option<PastCounters>,
    last_slot: u64,
}

impl Default for PageHistory {
    fn default() -> Self {
        Self { moments: vec![PastMoment::NONE; POINTS].into(), bands: Vec::new(), before: None, last_slot: 0 }
    }
}

impl PageHistory {
    /// Takes a sample, if the last one is old enough; call it more often than each [`EVERY_NS`].
    pub(crate) fn sample(&mut self, registry: &Registry, now_ns: u64) {
        let slot = slot_at(now_ns);
        if slot <= self.last_slot {
            return;
        }
        let (now, mut moment) = look(registry, now_ns);
        if let Some(before) = &self.before {
            let span_s = now_ns.saturating_sub(before.at_ns).max(1) as f32 / 1e9;
            // A counter falls when a backend or frontend is forgotten.
            let per_s = |before: u64, now: u64| now.saturating_sub(before) as f32 / span_s;
            moment.accepted_per_s = per_s(before.accepted, now.accepted);
            moment.ended_per_s = std::array::from_fn(|reason| per_s(before.ended[reason], now.ended[reason]));
            let (connects, connect_s) =
                (now.connects.saturating_sub(before.connects), now.connect_s - before.connect_s);
            if connects > 0 {
                moment.connect_us = (connect_s * 1e6 / connects as f64).round().max(0.0) as u32;
            }
        }
        self.before = Some(now);
        self.last_slot = slot;
        self.moments[place(slot)] = moment;
        self.sample_bands(registry, slot);
    }

    /// Takes a moment that was recorded, and the flows of each backend, by its frontend and name. `at_ns`: of any clock that all
    /// moments share.
    pub(crate) fn put<'a>(
        &mut self,
        at_ns: u64,
        moment: PastMoment,
        flows: impl IntoIterator<Item = (&'a str, &'a str, u32)>,
    ) {
        self.put_at(slot_at(at_ns), moment, flows, |_, _| 0);
    }

    /// Takes a moment of `ago_ns` before `now_ns` that an earlier process recorded, and the flows of each backend, unless this
    /// process has a sample of then, or it is too long ago.
    pub(crate) fn fill<'a>(
        &mut self,
        registry: &Registry,
        now_ns: u64,
        ago_ns: u64,
        moment: PastMoment,
        flows: impl IntoIterator<Item = (&'a str, &'a str, u32)>,
    ) {
        if ago_ns > SPAN_NS {
            return;
        }
        // Of a machine that has just started, it is before the beginning of its clock.
        let slot = (now_ns + LEAD_NS - ago_ns) / EVERY_NS;
        if self.moment(slot).is_some() || slot + POINTS as u64 <= self.last_slot {
            return;
        }
        let backends = registry.backends();
        let key = |frontend: &str, backend: &str| {
            let is_it = |it: &&Arc<BackendEntry>| (&*it.frontend.name, &*it.name) == (frontend, backend);
            backends.iter().find(is_it).map_or(0, |it| it.hash_key)
        };
        self.put_at(slot, moment, flows, key);
    }

    /// `key`: that of a backend, by its frontend and name.
    fn put_at<'a>(
        &mut self,
        slot: u64,
        moment: PastMoment,
        flows: impl IntoIterator<Item = (&'a str, &'a str, u32)>,
        key: impl Fn(&str, &str) -> u64,
    ) {
        self.last_slot = self.last_slot.max(slot);
        self.moments[place(slot)] = PastMoment { slot, ..moment };
        for band in &mut self.bands {
            band.flows[place(slot)] = 0;
        }
        for (frontend, backend, flows) in flows {
            let is_it = |band: &FlowBand| (&*band.frontend, &*band.backend) == (frontend, backend);
            let found = self.bands.iter().position(is_it);
            if found.is_none() && self.bands.len() == BANDS_MAX {
                continue;
            }
            let found = found.unwrap_or_else(|| {
                let (frontend, backend, key) = (frontend.into(), backend.into(), key(frontend, backend));
                self.bands.push(FlowBand { frontend, backend, key, flows: vec![0; POINTS].into() });
                self.bands.len() - 1
            });
            self.bands[found].flows[place(slot)] = flows;
        }
    }

    fn sample_bands(&mut self, registry: &Registry, slot: u64) {
        for band in &mut self.bands {
            band.flows[place(slot)] = 0;
        }
        let backends = registry.backends();
        for entry in &backends {
            let flows = entry.active.load(Relaxed);
            if let Some(band) = self.band_of(entry) {
                band.flows[place(slot)] += flows;
            }
        }
        // A backend that was removed stays as long as its flows are in sight.
        let moments = &self.moments;
        self.bands.retain(|band| {
            let is_seen = |place: usize| moments[place].slot + POINTS as u64 > slot && band.flows[place] > 0;
            (0..POINTS).any(is_seen) || backends.iter().any(|entry| band.is_of(entry))
        });
    }

    /// `None`: there are too many.
    fn band_of(&mut self, entry: &BackendEntry) -> Option<&mut FlowBand> {
        let place = match self.bands.iter().position(|band| band.is_of(entry)) {
            Some(place) => place,
            None if self.bands.len() == BANDS_MAX => return None,
            None => {
                let (frontend, backend, key) = (entry.frontend.name.clone(), entry.name.clone(), entry.hash_key);
                self.bands.push(FlowBand { frontend, backend, key, flows: vec![0; POINTS].into() });
                self.bands.len() - 1
            }
        };
        Some(&mut self.bands[place])
    }

    /// The slot at the right edge of a chart that is drawn at `now_ns`: the last sample's, unless that is missing.
    pub(crate) fn last_slot(&self, now_ns: u64) -> u64 {
        let now = slot_at(now_ns);
        if now - self.last_slot.min(now) <= 1 { self.last_slot } else { now }
    }

    /// The [`POINTS`] moments up to `last_slot`, oldest first; `None`: a gap.
    pub(crate) fn moments(&self, last_slot: u64) -> impl Iterator<Item = Option<&PastMoment>> {
        slots(last_slot).map(|slot| self.moment(slot))
    }

    /// The bands of one frontend, in the order in which their backends came.
    pub(crate) fn bands(&self, frontend: &str) -> impl Iterator<Item = &FlowBand> {
        self.bands.iter().filter(move |band| *band.frontend == *frontend)
    }

    /// The flows of `band`, as [`PageHistory::moments`].
    pub(crate) fn flows_of(&self, band: &FlowBand, last_slot: u64) -> impl Iterator<Item = Option<u32>> {
        slots(last_slot).map(|slot| self.moment(slot).map(|_| band.flows[place(slot)]))
    }

    fn moment(&self, slot: u64) -> Option<&PastMoment> {
        let moment = &self.moments[place(slot)];
        (slot > 0 && moment.slot == slot).then_some(moment)
    }
}

impl FlowBand {
    fn is_of(&self, entry: &BackendEntry) -> bool {
        self.key == entry.hash_key && self.frontend == entry.frontend.name
    }
}

/// The counters at `now_ns`, and a moment without rates.
fn look(registry: &Registry, now_ns: u64) -> (PastCounters, PastMoment) {
    let mut now = PastCounters { at_ns: now_ns, accepted: 0, ended: [0; REASONS], connects: 0, connect_s: 0.0 };
    let mut moment = PastMoment { slot: slot_at(now_ns), ..PastMoment::NONE };
    for frontend in registry.frontends() {
        moment.flows += frontend.active.load(Relaxed);
        for lane in &frontend.lanes {
            now.accepted += lane.accepted.value();
            now.ended.iter_mut().zip(&lane.ended).for_each(|(sum, count)| *sum += count.value());
        }
    }
    let mut connects = LatencySnapshot::default();
    for backend in registry.backends().iter().filter(|it| !it.is_former()) {
        connects.add(&backend.connect_latency());
        let probe_us = u32::try_from(backend.health().last_probe_us).unwrap_or(u32::MAX);
        moment.probe_us = moment.probe_us.max(probe_us);
    }
    (now.connects, now.connect_s) = (connects.count(), connects.sum_s);
    (now, moment)
}

/// The number of the slot at a time of a monotonic clock.
fn slot_at(at_ns: u64) -> u64 {
    (at_ns + LEAD_NS) / EVERY_NS
}

/// The time since the beginning of a slot.
pub(crate) fn since_slot_ns(slot: u64, now_ns: u64) -> u64 {
    (now_ns + LEAD_NS).saturating_sub(slot * EVERY_NS)
}

fn slots(last: u64) -> impl Iterator<Item = u64> {
    (0..POINTS as u64).rev().map(move |back| last.saturating_sub(back))
}

fn place(slot: u64) -> usize {
    (slot % POINTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    const S: u64 = 1_000_000_000;

    fn flows(history: &PageHistory, now_ns: u64) -> Vec<Option<u32>> {
        history.moments(history.last_slot(now_ns)).map(|it| it.map(|moment| moment.flows)).collect()
    }

    #[test]
    fn a_ring_keeps_ten_minutes_and_a_time_without_samples_is_a_gap() {
        let table = Table::new(1);
        let frontend = table.registry.frontend(&"apiserver".into());
        let mut history = PageHistory::default();
        assert!(flows(&history, 5000 * S).iter().all(Option::is_none));
        for second in (0..700).chain(720..1000) {
            frontend.active.store(second as u32, Relaxed);
            history.sample(&table.registry, (10_000 + second) * S);
        }
        let seen = flows(&history, 10_999 * S);
        assert_eq!((seen.len(), seen[POINTS - 1], seen[0]), (POINTS, Some(998), Some(400)));
        assert_eq!(seen.iter().filter(|it| it.is_none()).count(), 10);
        assert_eq!((seen[149], seen[150], seen[160]), (Some(698), None, Some(720)));
        // The process has stood still until now.
        let later = flows(&history, 11_100 * S);
        assert_eq!((later[POINTS - 1], later[POINTS - 52]), (None, Some(998)));
    }

    #[test]
    fn what_an_earlier_process_recorded_is_before_the_samples_of_this_one_and_in_the_same_bands() {
        let table = Table::new(1);
        let frontend = table.registry.frontend(&"apiserver".into());
        let one = table.registry.backend(&frontend, &"cp1".into());
        let mut history = PageHistory::default();
        // The machine has started 20 s ago, and its earlier processes ran before that.
        let now_ns = 20 * S;
        one.active.store(7, Relaxed);
        frontend.active.store(7, Relaxed);
        history.sample(&table.registry, now_ns);
        for (ago, flows) in [(0, 1), (2, 2), (30, 3), (32, 4), (598, 5), (602, 6), (u64::MAX / S, 6)] {
            let moment = PastMoment { flows, ..PastMoment::NONE };
            let bands = [("apiserver", "cp1", flows), ("apiserver", "cp2", 1)];
            history.fill(&table.registry, now_ns, ago * S, moment, bands);
        }
        let seen = flows(&history, now_ns);
        assert_eq!(seen[POINTS - 2..], [Some(2), Some(7)], "its own sample stays");
        assert_eq!(seen[POINTS - 17..POINTS - 14], [Some(4), Some(3), None], "a gap stays one");
        assert_eq!((seen[0], seen.iter().flatten().count()), (Some(5), 5));
        let last_slot = history.last_slot(now_ns);
        let bands: Vec<_> = history.bands("apiserver").map(|band| (&*band.backend, band)).collect();
        assert_eq!(bands.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["cp1", "cp2"]);
        let of_cp1: Vec<_> = history.flows_of(bands[0].1, last_slot).flatten().collect();
        assert_eq!(of_cp1, [5, 4, 3, 2, 7]);
        history.sample(&table.registry, now_ns + 2 * S);
        assert_eq!(flows(&history, now_ns + 2 * S)[POINTS - 3..], [Some(2), Some(7), Some(7)]);
        // One of a time that a ring has no room for any more replaces nothing.
        history.fill(&table.registry, now_ns, 598 * S, PastMoment { flows: 9, ..PastMoment::NONE }, []);
        assert_eq!(flows(&history, now_ns + 2 * S)[POINTS - 1], Some(7));
    }

    #[test]
    fn rates_are_averages_and_never_negative() {
        let table = Table::new(1);
        let frontend = table.registry.frontend(&"apiserver".into());
        let backend = table.registry.backend(&frontend, &"cp1".into());
        let mut history = PageHistory::default();
        history.sample(&table.registry, 100 * S);
        frontend.lanes[0].accepted.add(40);
        frontend.lanes[0].ended[EndReason::Killed as usize].add(8);
        for us in [300, 500] {
            backend.lanes[0].connect.record(std::time::Duration::from_micros(us));
        }
        history.sample(&table.registry, 104 * S);
        history.sample(&table.registry, 106 * S);
        let seen: Vec<_> = history.moments(slot_at(106 * S)).flatten().collect();
        assert_eq!(seen.len(), 3);
        let rates =
            seen.iter().map(|it| (it.accepted_per_s, it.ended_per_s[EndReason::Killed as usize], it.connect_us));
        assert_eq!(rates.collect::<Vec<_>>(), [(0.0, 0.0, 0), (10.0, 2.0, 400), (0.0, 0.0, 0)]);
        history.before.as_mut().unwrap().accepted = 1000;
        history.sample(&table.registry, 108 * S);
        assert_eq!(history.moments(slot_at(108 * S)).flatten().last().unwrap().accepted_per_s, 0.0);
    }

    #[test]
    fn a_backend_keeps_its_band_until_its_flows_are_out_of_sight() {
        let table = Table::new(1);
        let frontend = table.registry.frontend(&"apiserver".into());
        let [one, two] = ["cp1", "cp2"].map(|name| table.registry.backend(&frontend, &name.into()));
        let mut history = PageHistory::default();
        one.active.store(5, Relaxed);
        two.active.store(7, Relaxed);
        history.sample(&table.registry, 100 * S);
        two.active.store(0, Relaxed);
        history.sample(&table.registry, 102 * S);
        let two_s: Vec<_> = history.flows_of(&history.bands[1], slot_at(102 * S)).flatten().collect();
        assert_eq!((&*history.bands[1].backend, two_s), ("cp2", vec![7, 0]));
        let other = Table::new(1);
        history.sample(&other.registry, 104 * S);
        assert_eq!(history.bands("apiserver").count(), 2);
        history.sample(&other.registry, (100 + 2 * POINTS as u64) * S);
        assert_eq!(history.bands.iter().map(|band| &*band.backend).collect::<Vec<_>>(), ["cp1"], "its second sample");
        history.sample(&other.registry, (102 + 2 * POINTS as u64) * S);
        assert!(history.bands.is_empty());
    }
}
