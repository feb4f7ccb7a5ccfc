//! `baton who`: the client behind an address and port of Baton's, as an apiserver's audit log has them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::living::LivingPlace;
use super::output::{CliError, Output};
use super::recording::{self, RecordingFrom};
use crate::admin::protocol::{FlowFilter, FlowRow};
use crate::model::end_reason::EndReason;
use crate::model::fleet::port_range;
use crate::model::humane::duration_ms;
use crate::model::ids::{FlowId, flow_as_text};
use crate::model::names::named;
use crate::recorder::past::came_here;
use crate::recorder::{Recorded, Recording, TimedRecord};
use crate::sys::clock::unix_ms;
use crate::sys::source::local_port_range;
use crate::table::journal::{Event, What};

#[derive(Debug, Args)]
pub(super) struct WhoArguments {
    /// Baton's end of the connection, as the apiserver sees its client: sourceIPs of the audit log, and the port.
    #[arg(value_name = "ADDRESS:PORT", value_parser = with_port)]
    pub address: SocketAddr,
    /// When it was seen: 03:12:07, 2026-11-25T03:12:07Z, 10m (ago). Without it: now, and ever.
    #[arg(long, value_name = "TIME", value_parser = recording::time)]
    pub at: Option<u64>,
    #[command(flatten)]
    pub from: RecordingFrom,
}

fn with_port(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an address and a port, such as 10.0.0.100:51234 or [fd00::100]:51234".to_owned())
}

/// One client that was behind the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ClientBehind {
    client: SocketAddr,
    node: Option<String>,
    #[serde(serialize_with = "flow_as_text::serialize")]
    flow: FlowId,
    frontend: String,
    backend: Option<String>,
    /// Milliseconds since 1970.
    from_unix_ms: u64,
    /// `None`: the flow goes on.
    until_unix_ms: Option<u64>,
    /// It went on at another instance then: its end is in that one's record.
    moved: bool,
    /// Of a flow that has moved: it had not at this time. `None`: when it moved is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_after_unix_ms: Option<u64>,
    /// The instance that had the VIP when it moved, if that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_to: Option<String>,
    /// When it came here from another instance; `None`: it began here, or nothing tells of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    came_unix_ms: Option<u64>,
}

/// A process finds within this time of its start which flows have moved, and a new owner of the VIP has it.
const START_MS: u64 = 10_000;

/// The clocks of the apiserver and of this host may differ by so much, and a log line is written late.
const SLACK_MS: u64 = 2_000;

pub(super) fn run(
    arguments: &WhoArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    if let Some(at) = arguments.at.filter(|at| *at > unix_ms() + SLACK_MS) {
        return Err(CliError::Usage(format!("--at {} has not come yet", recording::shown(at))));
    }
    let address = arguments.address;
    let place = LivingPlace { from: &arguments.from, socket: named.as_deref(), config };
    let filter = FlowFilter { source: Some(address), ..FlowFilter::default() };
    // The instance finds sources of IPv6, too, which rows lack.
    let is_listed = arguments.from.is_named();
    let is_wanted = |row: &FlowRow| row.source == Some(address) || !is_listed && row.source.is_none();
    let lives = place.flows(filter, is_wanted)?.map(|living| {
        let at_ms = living.at_ms;
        living.rows.into_iter().map(|row| ClientBehind::of(row, at_ms)).collect::<Vec<_>>()
    });
    let (answers, mut found) = (lives.is_some(), lives.unwrap_or_default());
    let recorded = read(arguments, named.clone(), config);
    let covers = match recorded {
        Ok((recording, covers)) => {
            found.extend(recorded_flows(&recording, arguments.address));
            name(&mut found, |client, at_ms| name_at(&recording, client, at_ms));
            // Kubelets' connections live for days.
            let lacks_living = arguments.from.is_named() && !answers;
            covers + if lacks_living { ", without the flows that lived on" } else { "" }
        }
        // What lives answers the question as well.
        Err(error) if answers => format!(" among the flows that live, and {error}"),
        Err(error) => return Err(error),
    };
    found.sort_by_key(|it| std::cmp::Reverse(it.from_unix_ms));
    let mut found = without_former(found);
    found = arguments.at.map_or_else(|| found.clone(), |at| at_time(&found, at));
    if !arguments.from.is_named() {
        name(&mut found, |client, _| name_now(client, place));
    }
    if found.is_empty() {
        let at_peer = at_peer(address.port(), place).unwrap_or_default();
        return Err(CliError::Nobody { address, covers: covers + &at_peer });
    }
    match output.json {
        true => output.document(&found)?,
        false => found.iter().try_for_each(|it| output.line(it.in_words()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The peer that begins its connections from this port, which has the flow unless another took it: a part of a sentence.
fn at_peer(port: u16, place: LivingPlace<'_>) -> Option<String> {
    let ports = local_port_range();
    let is_its = |slot| port_range(ports.clone(), slot).is_some_and(|its| its.contains(port));
    let peer = place.peer(|_, slot| slot.is_some_and(is_its))?;
    Some(format!("; {peer} begins its connections from this port: ask there (`baton who`)"))
}

/// What was recorded, and the time that it covers.
fn read(
    arguments: &WhoArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
) -> Result<(Recording, String), CliError> {
    let source = recording::find(&arguments.from, named, config)?;
    // A flow may have moved long before, and others of its client have its name.
    let recording = source.read(0..=u64::MAX)?;
    recording::say_faults(&recording);
    let from_ms = arguments.at.map_or(0, |at| at.saturating_sub(SLACK_MS));
    let covers = format!("; {}{}", source.covers_in_words(&recording), unrecorded(&recording, from_ms));
    Ok((recording, covers))
}

/// Those flows of the record that had this address.
fn recorded_flows(recording: &Recording, address: SocketAddr) -> Vec<ClientBehind> {
    let ends = recording.records.iter().enumerate().filter_map(|(place, record)| {
        let Recorded::Event(event) = &record.what else { return None };
        let mut its = of_event(&event.what, event.at_unix_ms, address)?;
        its.came_unix_ms = came_here(recording, record.owner, its.flow, event.at_unix_ms);
        if its.moved {
            its.moved_after_unix_ms = had_it_ms(recording, place, its.from_unix_ms);
            its.moved_to = owner_of_vip(recording, event.at_unix_ms).map(str::to_owned);
        }
        Some(its)
    });
    ends.collect()
}

/// When the process before the one of the record at `place` was there last, if this one has found at its start that the flow which began
/// at `from_ms` had moved; ms since 1970.
fn had_it_ms(recording: &Recording, place: usize, from_ms: u64) -> Option<u64> {
    let record = &recording.records[place];
    let is_its = |it: &TimedRecord| recording.owners[it.owner].is_same_process(&recording.owners[record.owner]);
    let first = recording.records.iter().position(is_its)?;
    let begun_ms = recording.records[first].at_unix_ms;
    let at_start = from_ms < begun_ms && record.at_unix_ms <= begun_ms + START_MS;
    at_start.then(|| first.checked_sub(1).map(|before| recording.records[before].at_unix_ms.max(from_ms)))?
}

/// The peer that had the VIP at a time, or got it shortly after.
fn owner_of_vip(recording: &Recording, at_ms: u64) -> Option<&str> {
    let until = recording.records.partition_point(|it| it.at_unix_ms <= at_ms + START_MS);
    recording.records[..until].iter().rev().find_map(|record| match &record.what {
        Recorded::Event(event) => match &event.what {
            What::VipHeld { by, .. } => Some(Some(by.as_str())),
            What::VipGained { .. } if event.at_unix_ms <= at_ms => Some(None),
            _ => None,
        },
        _ => None,
    })?
}

/// The name that this client's address had nearest to that time, by another flow of its own.
fn name_at(recording: &Recording, client: IpAddr, at_ms: u64) -> Option<String> {
    let named =
        recording.records.iter().filter_map(|record| match &record.what {
            Recorded::Event(Event {
                at_unix_ms, what: What::FlowEnded { client: its, node: Some(node), .. }, ..
            }) if its.ip() == client => Some((at_unix_ms.abs_diff(at_ms), node)),
            _ => None,
        });
    named.min_by_key(|(apart_ms, _)| *apart_ms).map(|(_, node)| node.clone())
}

/// The name that the running instance has for this client, if it has a flow of it.
fn name_now(client: IpAddr, place: LivingPlace<'_>) -> Option<String> {
    let filter = FlowFilter { client: Some(client.into()), ..FlowFilter::default() };
    place.flows(filter, |row| row.node.is_some()).ok()??.rows.into_iter().find_map(|row| row.node)
}

/// Names clients whose names were not known when their flows ended, as at the start of a process.
fn name(found: &mut [ClientBehind], name_of: impl Fn(IpAddr, u64) -> Option<String>) {
    for it in found.iter_mut().filter(|it| it.node.is_none()) {
        it.node = name_of(it.client.ip(), it.until_unix_ms.unwrap_or(it.from_unix_ms));
    }
}

/// Leaves out the parts of flows that went to another instance and came back: the later part has all of their time.
fn without_former(found: Vec<ClientBehind>) -> Vec<ClientBehind> {
    let is_former = |it: &ClientBehind| {
        let is_later = |other: &ClientBehind| {
            other.flow == it.flow
                && other.client == it.client
                && other.until_unix_ms.is_none_or(|at| Some(at) > it.until_unix_ms)
        };
        it.moved && found.iter().any(is_later)
    };
    found.iter().filter(|it| !is_former(it)).cloned().collect()
}

/// Those that lived here at `at_ms`; else the last one that had moved by then, and may have lived at the other instance.
fn at_time(found: &[ClientBehind], at_ms: u64) -> Vec<ClientBehind> {
    let here: Vec<_> = found.iter().filter(|it| it.covers(at_ms)).cloned().collect();
    if !here.is_empty() {
        return here;
    }
    let before = found.iter().filter(|it| it.from_unix_ms <= at_ms).max_by_key(|it| it.until_unix_ms);
    before.filter(|it| it.moved).cloned().into_iter().collect()
}

/// What a process had that died since then: a part of a sentence.
fn unrecorded(recording: &Recording, from_ms: u64) -> String {
    let died = |record: &&TimedRecord| match &record.what {
        Recorded::Event(event) => event.at_unix_ms >= from_ms && matches!(event.what, What::ProcessDied { .. }),
        _ => false,
    };
    match recording.records.iter().filter(died).count() as u64 {
        0 => String::new(),
        died => format!(
            ", without the flows of {} that ended without a stop, as by a crash: their ends are not recorded",
            if died == 1 { "a process".to_owned() } else { format!("{died} processes") }
        ),
    }
}

fn of_event(what: &What, at_unix_ms: u64, address: SocketAddr) -> Option<ClientBehind> {
    let What::FlowEnded { flow, frontend, backend, client, node, source, duration_ms, reason, .. } = what else {
        return None;
    };
    (*source == Some(address)).then(|| ClientBehind {
        client: *client,
        node: node.clone(),
        flow: *flow,
        frontend: frontend.clone(),
        backend: backend.clone(),
        from_unix_ms: at_unix_ms.saturating_sub(*duration_ms),
        until_unix_ms: Some(at_unix_ms),
        moved: *reason == EndReason::Moved,
        moved_after_unix_ms: None,
        moved_to: None,
        came_unix_ms: None,
    })
}

impl ClientBehind {
    /// Of a flow that lived at `at_ms`.
    fn of(row: FlowRow, at_ms: u64) -> Self {
        Self {
            client: row.client,
            node: row.node,
            flow: row.id,
            frontend: row.frontend,
            backend: row.backend,
            from_unix_ms: at_ms.saturating_sub(row.age_ms),
            until_unix_ms: None,
            moved: false,
            moved_after_unix_ms: None,
            moved_to: None,
            came_unix_ms: None,
        }
    }

    fn covers(&self, at_ms: u64) -> bool {
        at_ms + SLACK_MS >= self.from_unix_ms && self.until_unix_ms.is_none_or(|until| at_ms <= until + SLACK_MS)
    }

    /// `10.0.0.7:51234 (worker-7), flow 7 to apiserver/cp2, from 2026-11-25 03:10:00Z to 2026-11-25 03:12:07Z`.
    fn in_words(&self) -> String {
        let until = match self.until_unix_ms {
            None => "on; it goes on".to_owned(),
            Some(until) if self.moved => self.moved_in_words(until),
            Some(until) => format!("to {}", recording::shown(until)),
        };
        let came = self.came_unix_ms.map_or_else(String::new, |at_ms| {
            format!("; it came here from another instance at {}", recording::shown(at_ms))
        });
        format!(
            "{}, flow {} to {}/{}, from {} {until}{came}",
            named(self.client, self.node.as_deref()),
            self.flow,
            self.frontend,
            self.backend.as_deref().unwrap_or("-"),
            recording::shown(self.from_unix_ms)
        )
    }

    /// What is known of its time, and who knows the rest. `until_ms`: when this instance knew that it had moved.
    fn moved_in_words(&self, until_ms: u64) -> String {
        let lasted = |at_ms: u64| duration_ms(at_ms.saturating_sub(self.from_unix_ms));
        let when = match self.moved_after_unix_ms {
            Some(after_ms) => {
                let [after, until] = [after_ms, until_ms].map(recording::shown);
                format!("on; between {after} and {until}, after at least {},", lasted(after_ms))
            }
            None => format!("on; at {}, after {},", recording::shown(until_ms), lasted(until_ms)),
        };
        let (to, whose) = match &self.moved_to {
            Some(to) => (format!("to {to}, which had the VIP"), to.as_str()),
            None => ("to another instance".to_owned(), "that one"),
        };
        format!("{when} it moved {to}, and went on there: how long, {whose} knows (`baton who`, there)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::FileOwner;

    const FROM_MS: u64 = 1_795_576_327_000;

    fn behind(until_unix_ms: Option<u64>) -> ClientBehind {
        ClientBehind {
            client: "10.0.0.7:51234".parse().unwrap(),
            node: Some("worker-7".to_owned()),
            flow: FlowId(7),
            frontend: "apiserver".to_owned(),
            backend: Some("cp2".to_owned()),
            from_unix_ms: FROM_MS,
            until_unix_ms,
            moved: false,
            moved_after_unix_ms: None,
            moved_to: None,
            came_unix_ms: None,
        }
    }

    #[test]
    fn a_flow_covers_its_life_and_what_clocks_may_differ_by() {
        let (ended, lives) = (behind(Some(FROM_MS + 60_000)), behind(None));
        let covered = |at_ms| [ended.covers(at_ms), lives.covers(at_ms)];
        assert_eq!(covered(FROM_MS - SLACK_MS), [true, true]);
        assert_eq!(covered(FROM_MS - SLACK_MS - 1), [false, false]);
        assert_eq!(covered(FROM_MS + 60_000 + SLACK_MS), [true, true]);
        assert_eq!(covered(FROM_MS + 60_000 + SLACK_MS + 1), [false, true]);
    }

    #[test]
    fn a_client_is_told_with_its_flow_and_its_time() {
        let it = behind(Some(FROM_MS + 60_000));
        let begin = "10.0.0.7:51234 (worker-7), flow 7 to apiserver/cp2, from 2026-11-";
        assert!(it.in_words().starts_with(begin) && it.in_words().ends_with('Z'), "{}", it.in_words());
        assert!(behind(None).in_words().ends_with("on; it goes on"), "{}", behind(None).in_words());
        let came = ClientBehind { came_unix_ms: Some(FROM_MS + 5_000), ..it }.in_words();
        assert!(came.contains("; it came here from another instance at 2026-11-"), "{came}");
    }

    fn end(client: &str, node: Option<&str>, reason: EndReason, duration_ms: u64) -> What {
        let mut what = crate::table::journal::testing::ended(7);
        let What::FlowEnded { client: its, node: named, source, reason: why, duration_ms: lasted, .. } = &mut what
        else {
            unreachable!()
        };
        (*its, *named, *source) = (client.parse().unwrap(), node.map(str::to_owned), Some(BATON.parse().unwrap()));
        (*why, *lasted) = (reason, duration_ms);
        what
    }

    /// The records of two processes: the first died, and the second found that a peer has its flow.
    fn restarted(duration_ms: u64) -> Recording {
        let process = |pid| FileOwner { pid, ..FileOwner::default() };
        let record = |owner, at_unix_ms, what| {
            let what = Recorded::Event(Event { number: 0, at_unix_ms, what });
            TimedRecord { at_unix_ms, owner, what }
        };
        let mut other = end("10.0.0.7:999", Some("worker-7"), EndReason::ClientClosed, 5);
        let What::FlowEnded { source, .. } = &mut other else { unreachable!() };
        *source = None;
        let start = |at| record(usize::from(at > FROM_MS), at, What::Started { version: "1".to_owned() });
        let held = What::VipHeld { vip: "10.0.0.100".to_owned(), by: "lb-b".to_owned() };
        let moved = end("10.0.0.7:51234", None, EndReason::Moved, duration_ms);
        Recording {
            records: vec![
                start(FROM_MS),
                record(0, FROM_MS + 60_000, other),
                start(FROM_MS + 70_000),
                record(1, FROM_MS + 70_100, held),
                record(1, FROM_MS + 70_200, moved),
            ],
            owners: vec![process(1), process(2)],
            ..Recording::default()
        }
    }

    const BATON: &str = "10.0.0.100:51234";

    /// Regression: a flow that a peer had inherited from a process that died had no node's name, and ended with the restart.
    #[test]
    fn a_flow_that_went_to_a_peer_has_its_node_and_is_not_told_to_end_with_the_restart() {
        let recording = restarted(70_000);
        let mut found = recorded_flows(&recording, BATON.parse().unwrap());
        name(&mut found, |client, at_ms| name_at(&recording, client, at_ms));
        let said = found[0].in_words();
        assert!(said.starts_with("10.0.0.7:51234 (worker-7), flow 7 to "), "{said}");
        let between = [60_000, 70_200].map(|later| recording::shown(FROM_MS + later)).join(" and ");
        assert!(
            said.contains(&format!("on; between {between}, after at least 59 s, it moved to lb-b, which had the VIP")),
            "{said}"
        );
        assert!(said.ends_with("how long, lb-b knows (`baton who`, there)"), "{said}");
        // It may have lived later, too, and at its own time another one did not.
        assert_eq!(at_time(&found, FROM_MS + 3_600_000), found);
        assert!(at_time(&found, FROM_MS - 1_000_000).is_empty());
        // One that came back has all its time in one piece.
        let back = ClientBehind { until_unix_ms: None, moved: false, ..found[0].clone() };
        assert_eq!(without_former(vec![back.clone(), found[0].clone()]), [back]);
        // One that went while a process ran went at that time.
        let young = recorded_flows(&restarted(100), BATON.parse().unwrap());
        assert!(young[0].in_words().contains(", after 100 ms, it moved to lb-b"), "{}", young[0].in_words());
    }
}
