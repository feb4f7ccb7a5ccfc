//! The bodies of records. What is many (ended flows, samples) is packed; the rest is JSON, which later versions read too.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{Config, FileOwner};
use crate::model::end_reason::EndReason;
use crate::model::histogram::LatencySnapshot;
use crate::model::humane::printable;
use crate::model::ids::FlowId;
use crate::model::recorder_file::append;
use crate::table::backend::Registry;
use crate::table::journal::{Event, What};
use crate::table::standing::InstanceStanding;

/// One thing that was recorded.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    /// What follows in this file is of this process.
    Owner(FileOwner),
    Event(Event),
    Sample(RecordedSample),
}

/// The counters at one moment; those that end in `total` never fall while a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedSample {
    pub at_unix_ms: u64,
    pub frontends: Vec<FrontendSample>,
    pub backends: Vec<BackendSample>,
    /// A part of the record of its own, which earlier versions did not write, and pass over.
    #[serde(skip)]
    pub increase: SampleIncrease,
    /// Behind it, as it. `None`: an earlier version wrote the sample, or the process had just begun.
    #[serde(skip)]
    pub standing: Option<InstanceStanding>,
}

/// What was counted since the sample before of the same process; nothing in its first sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SampleIncrease {
    /// Ends of flows by the label of their reason, those reasons alone that had some: other versions have other reasons.
    pub ended: Vec<(String, u64)>,
    pub connects: u64,
    /// The sum of all connects.
    pub connect_us: u64,
}

/// The counters at the last sample of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledTotals {
    ended: [u64; EndReason::ALL.len()],
    connects: u64,
    connect_s: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FrontendSample {
    pub name: String,
    pub flows: u32,
    pub accepted_total: u64,
    pub ended_total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackendSample {
    pub frontend: String,
    pub name: String,
    /// Its health state.
    pub state: String,
    pub flows: u32,
    pub connected_total: u64,
    pub failed_total: u64,
    pub last_probe_us: u64,
}

/// An ended flow.
#[derive(Serialize, Deserialize)]
struct EndedRecord<'r> {
    number: u64,
    at_unix_ms: u64,
    flow: FlowId,
    frontend: &'r str,
    backend: Option<&'r str>,
    backend_address: Option<SocketAddr>,
    client: SocketAddr,
    /// Its label: other versions have other reasons.
    reason: &'r str,
    duration_ms: u64,
    connect_us: u64,
    bytes_to_backend: u64,
    bytes_to_client: u64,
    error: Option<&'r str>,
}

/// What follows an [`EndedRecord`] in its record. Earlier versions wrote nothing there, and pass over it.
#[derive(Default, Serialize, Deserialize)]
struct EndedMore<'r> {
    #[serde(borrow)]
    node: Option<&'r str>,
    source: Option<SocketAddr>,
}

/// The kinds of records, as files have them.
const OWNER: u8 = 1;
const EVENT: u8 = 2;
const FLOW: u8 = 3;
const SAMPLE: u8 = 4;

/// Adds a record of `event`. False: it is too long.
pub(super) fn append_event(file: &mut Vec<u8>, event: &Event) -> bool {
    let What::FlowEnded {
        flow,
        frontend,
        backend,
        backend_address,
        source,
        client,
        node,
        reason,
        duration_ms,
        connect_us,
        bytes_to_backend,
        bytes_to_client,
        error,
    } = &event.what
    else {
        return append(file, EVENT, &serde_json::to_vec(event).expect("an event is plain data"));
    };
    let record = EndedRecord {
        number: event.number,
        at_unix_ms: event.at_unix_ms,
        flow: *flow,
        frontend,
        backend: backend.as_deref(),
        backend_address: *backend_address,
        client: *client,
        reason: reason.label(),
        duration_ms: *duration_ms,
        connect_us: *connect_us,
        bytes_to_backend: *bytes_to_backend,
        bytes_to_client: *bytes_to_client,
        error: error.as_deref(),
    };
    let more = EndedMore { node: node.as_deref(), source: *source };
    append(file, FLOW, &postcard::to_stdvec(&(record, more)).expect("a record is plain data"))
}

/// Adds a record of `sample`, unless it is too long: with thousands of backends.
pub(super) fn append_sample(file: &mut Vec<u8>, sample: &RecordedSample) {
    let parts = (sample, &sample.increase, &sample.standing);
    append(file, SAMPLE, &postcard::to_stdvec(&parts).expect("a sample is plain data"));
}

/// The record at the beginning of each file of a process with this configuration.
pub(super) fn opening(config: &Config) -> Vec<u8> {
    opening_of(&FileOwner::of(config))
}

pub(super) fn opening_of(owner: &FileOwner) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, OWNER, &serde_json::to_vec(owner).expect("plain data"));
    bytes
}

/// `None`: another version has written it. What text steers a terminal is written out: a bundle may come from anybody.
pub(super) fn parse(kind: u8, body: &[u8]) -> Option<Recorded> {
    match kind {
        OWNER => from_json(body).map(Recorded::Owner),
        EVENT => from_json(body).map(Recorded::Event),
        FLOW => ended(body).map(Recorded::Event),
        SAMPLE => sample(body).map(Recorded::Sample),
        _ => None,
    }
}

fn sample(body: &[u8]) -> Option<RecordedSample> {
    let (mut sample, more) = postcard::take_from_bytes::<RecordedSample>(body).ok()?;
    let (mut increase, more): (SampleIncrease, _) = or_absent(more)?;
    let (mut standing, _): (Option<InstanceStanding>, _) = or_absent(more)?;
    sample.frontends.iter_mut().for_each(|it| write_out(&mut it.name));
    sample.backends.iter_mut().flat_map(|it| [&mut it.frontend, &mut it.name, &mut it.state]).for_each(write_out);
    increase.ended.iter_mut().for_each(|(reason, _)| write_out(reason));
    standing.iter_mut().flat_map(InstanceStanding::texts).for_each(write_out);
    Some(RecordedSample { increase, standing, ..sample })
}

/// A part of a record that earlier versions did not write, and what follows it.
fn or_absent<'b, T: Default + Deserialize<'b>>(bytes: &'b [u8]) -> Option<(T, &'b [u8])> {
    if bytes.is_empty() { Some((T::default(), bytes)) } else { postcard::take_from_bytes(bytes).ok() }
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let mut value = serde_json::from_slice(body).ok()?;
    write_out_all(&mut value);
    serde_json::from_value(value).ok()
}

fn write_out_all(value: &mut Value) {
    match value {
        Value::String(text) => write_out(text),
        Value::Array(items) => items.iter_mut().for_each(write_out_all),
        Value::Object(fields) => fields.values_mut().for_each(write_out_all),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn write_out(text: &mut String) {
    if let Cow::Owned(printable) = printable(text) {
        *text = printable;
    }
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(|text| printable(text).into_owned())
}

fn ended(body: &[u8]) -> Option<Event> {
    let (record, more) = postcard::take_from_bytes::<EndedRecord<'_>>(body).ok()?;
    let (more, _): (EndedMore<'_>, _) = or_absent(more)?;
    let what = What::FlowEnded {
        flow: record.flow,
        frontend: printable(record.frontend).into_owned(),
        backend: owned(record.backend),
        backend_address: record.backend_address,
        source: more.source,
        client: record.client,
        node: owned(more.node),
        reason: *EndReason::ALL.iter().find(|reason| reason.label() == record.reason)?,
        duration_ms: record.duration_ms,
        connect_us: record.connect_us,
        bytes_to_backend: record.bytes_to_backend,
        bytes_to_client: record.bytes_to_client,
        error: owned(record.error),
    };
    Some(Event { number: record.number, at_unix_ms: record.at_unix_ms, what })
}

impl Recorded {
    /// Whether it is the end of a flow.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::Event(event) if event.what.is_end())
    }

    /// Milliseconds since 1970; `None`: it belongs to all that follows.
    pub(crate) fn at_unix_ms(&self) -> Option<u64> {
        match self {
            Self::Owner(_) => None,
            Self::Event(event) => Some(event.at_unix_ms),
            Self::Sample(sample) => Some(sample.at_unix_ms),
        }
    }
}

/// The ends within `times`, ms since 1970, that were counted in samples, by reason.
pub(crate) fn ends_counted<'s>(
    samples: impl Iterator<Item = &'s RecordedSample>,
    times: &RangeInclusive<u64>,
) -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    for (label, ends) in samples.filter(|it| times.contains(&it.at_unix_ms)).flat_map(|it| &it.increase.ended) {
        if let Some(reason) = EndReason::ALL.iter().find(|reason| reason.label() == label) {
            *counted.entry(reason.label()).or_default() += ends;
        }
    }
    counted
}

impl RecordedSample {
    /// `before`: the counters at the sample before, which those of this one replace.
    pub(super) fn take(registry: &Registry, at_unix_ms: u64, before: &mut Option<SampledTotals>) -> Self {
        let totals = SampledTotals::of(registry);
        let increase = before.replace(totals).map(|before| totals.since(&before)).unwrap_or_default();
        let frontends = registry.frontends().into_iter().map(|it| FrontendSample {
            name: it.name.to_string(),
            flows: it.active.load(Relaxed),
            accepted_total: it.lanes.iter().map(|lane| lane.accepted.value()).sum(),
            ended_total: it.lanes.iter().flat_map(|lane| &lane.ended).map(|count| count.value()).sum(),
        });
        let all = registry.backends();
        let mut flows = HashMap::<_, u32>::new();
        for it in &all {
            *flows.entry((it.frontend.id, it.name.clone())).or_default() += it.active.load(Relaxed);
        }
        let backends = all.iter().filter(|it| !it.is_former()).map(|it| {
            let health = it.health();
            BackendSample {
                frontend: it.frontend.name.to_string(),
                name: it.name.to_string(),
                state: health.health_state.label().to_owned(),
                flows: flows[&(it.frontend.id, it.name.clone())],
                connected_total: it.lanes.iter().map(|lane| lane.connected.value()).sum(),
                failed_total: it.lanes.iter().flat_map(|lane| &lane.failures).map(|count| count.value()).sum(),
                last_probe_us: health.last_probe_us,
            }
        });
        Self { at_unix_ms, frontends: frontends.collect(), backends: backends.collect(), increase, standing: None }
    }
}

impl RecordedSample {
    /// Of all frontends.
    pub(crate) fn flows(&self) -> u32 {
        self.frontends.iter().map(|it| it.flows).sum()
    }

    /// Those of each backend, by its frontend and name.
    pub(crate) fn flows_by_backend(&self) -> impl Iterator<Item = (&str, &str, u32)> {
        self.backends.iter().map(|it| (&*it.frontend, &*it.name, it.flows))
    }
}

impl SampledTotals {
    fn of(registry: &Registry) -> Self {
        let mut ended = [0; EndReason::ALL.len()];
        for lane in registry.frontends().iter().flat_map(|it| &it.lanes) {
            ended.iter_mut().zip(&lane.ended).for_each(|(sum, count)| *sum += count.value());
        }
        let mut connects = LatencySnapshot::default();
        registry.backends().iter().filter(|it| !it.is_former()).for_each(|it| connects.add(&it.connect_latency()));
        Self { ended, connects: connects.count(), connect_s: connects.sum_s }
    }

    /// A counter falls when a backend or frontend is forgotten: then it has counted nothing.
    fn since(&self, before: &Self) -> SampleIncrease {
        let ended = EndReason::ALL.iter().zip(self.ended.iter().zip(before.ended));
        let ended = ended.map(|(reason, (now, before))| (reason.label().to_owned(), now.saturating_sub(before)));
        let connects = self.connects.saturating_sub(before.connects);
        let connect_s = if connects > 0 { self.connect_s - before.connect_s } else { 0.0 };
        SampleIncrease {
            ended: ended.filter(|(_, ends)| *ends > 0).collect(),
            connects,
            connect_us: (connect_s * 1e6).round().max(0.0) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::recorder_file::{RecordsIn, header};
    use crate::table::journal::testing::ended as ended_flow;

    /// Regression: a host that was upgraded, and one that went back, read the other version's files.
    #[test]
    fn ends_of_flows_are_read_without_what_another_version_did_not_write_or_does_not_know() {
        let event = Event { number: 7, at_unix_ms: 8, what: ended_flow(9) };
        let mut file = Vec::new();
        assert!(append_event(&mut file, &event));
        let What::FlowEnded { frontend, client, reason, .. } = &event.what else { unreachable!() };
        let record = EndedRecord {
            number: 7,
            at_unix_ms: 8,
            flow: FlowId(9),
            frontend,
            backend: None,
            backend_address: None,
            client: *client,
            reason: reason.label(),
            duration_ms: 5,
            connect_us: 0,
            bytes_to_backend: 0,
            bytes_to_client: 0,
            error: None,
        };
        let before = postcard::to_stdvec(&record).unwrap();
        let Some(Recorded::Event(read)) = parse(FLOW, &before) else { panic!("not read") };
        assert!(matches!(read.what, What::FlowEnded { node: None, flow: FlowId(9), .. }), "{read:?}");
        let now = postcard::to_stdvec(&(record, EndedMore { node: Some("worker-7"), source: None })).unwrap();
        assert!(postcard::from_bytes::<EndedRecord<'_>>(&now).is_ok(), "an earlier version reads it");
        let Some(Recorded::Event(read)) = parse(FLOW, &now) else { panic!("not read") };
        assert!(matches!(&read.what, What::FlowEnded { node: Some(node), .. } if node == "worker-7"), "{read:?}");
    }

    /// Regression: a sample had neither the service state nor the silent nodes.
    #[test]
    fn a_sample_has_what_the_instance_said_of_itself_and_other_versions_read_the_rest() {
        let standing = InstanceStanding {
            headline: "ready".to_owned(),
            weight: "good".to_owned(),
            silent_nodes: Some(0),
            ..InstanceStanding::default()
        };
        let increase = SampleIncrease { ended: vec![("killed".to_owned(), 3)], connects: 2, connect_us: 9 };
        let sample = RecordedSample { at_unix_ms: 8, increase, standing: Some(standing), ..RecordedSample::default() };
        let mut file = header();
        append_sample(&mut file, &sample);
        let (kind, body) = RecordsIn::new(&file).unwrap().next().unwrap();
        let Some(Recorded::Sample(read)) = parse(kind, body) else { panic!("not read") };
        assert_eq!(read, sample);
        let (before, increase): (RecordedSample, SampleIncrease) =
            postcard::from_bytes(body).expect("by the version before");
        assert_eq!((before.at_unix_ms, &increase), (8, &sample.increase));
        let written_before = postcard::to_stdvec(&(&sample, &sample.increase)).unwrap();
        let Some(Recorded::Sample(read)) = parse(SAMPLE, &written_before) else { panic!("not read") };
        assert_eq!((read.standing, read.increase), (None, increase));
    }

    /// Regression: a bundle of a stranger's steered the terminal of whoever looked into it.
    #[test]
    fn what_steers_a_terminal_is_written_out_in_each_record() {
        const STEERS: &str = "\u{1b}[31m\u{7}\r";
        let is_harmless = |recorded: Recorded| {
            // A text with a backslash has two of them here, a control character one.
            let shown = format!("{recorded:?}");
            let [all, written_out] = ["u{1b}", "\\\\u{1b}"].map(|code| shown.matches(code).count());
            assert!(all > 0 && all == written_out, "{shown}");
        };
        let mut flow = ended_flow(9);
        let What::FlowEnded { frontend, backend, node, error, .. } = &mut flow else { unreachable!() };
        *frontend += STEERS;
        [backend, node, error].into_iter().flatten().for_each(|text| *text += STEERS);
        let order = What::OrderReceived { uid: 0, pid: 1, order: STEERS.to_owned() };
        for what in [flow, order] {
            let mut file = Vec::new();
            assert!(append_event(&mut file, &Event { number: 7, at_unix_ms: 8, what }));
            let file = [header(), file].concat();
            let (kind, body) = RecordsIn::new(&file).unwrap().next().unwrap();
            is_harmless(parse(kind, body).expect("it is read"));
        }
        let backend = BackendSample {
            frontend: STEERS.to_owned(),
            name: STEERS.to_owned(),
            state: STEERS.to_owned(),
            flows: 0,
            connected_total: 0,
            failed_total: 0,
            last_probe_us: 0,
        };
        let mut file = Vec::new();
        append_sample(&mut file, &RecordedSample { backends: vec![backend], ..RecordedSample::default() });
        let file = [header(), file].concat();
        let (kind, body) = RecordsIn::new(&file).unwrap().next().unwrap();
        is_harmless(parse(kind, body).expect("it is read"));
    }
}
