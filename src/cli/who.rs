//! `baton who`: the client behind an address and port of Baton's, as an apiserver's audit log has them.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::bundle::{FLOWS, LivingFlows};
use super::output::{CliError, Output};
use super::recording::{self, RecordingFrom};
use super::socket;
use crate::admin::protocol::{Command, FlowFilter, FlowRow, Listed};
use crate::model::end_reason::EndReason;
use crate::model::ids::{FlowId, flow_as_text};
use crate::model::names::named;
use crate::recorder::{Recorded, Recording, TimedRecord};
use crate::sys::clock::unix_ms;
use crate::table::journal::What;

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
    /// It went on at another instance then.
    moved: bool,
}

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
    let lives = match arguments.from.is_named() {
        true => arguments.from.part::<LivingFlows>(FLOWS)?.map(|(part, at_ms)| {
            let its = part.flows.into_iter().filter(|row| row.source == Some(arguments.address));
            its.map(|row| ClientBehind::of(row, at_ms)).collect()
        }),
        false => living(arguments.address, named.as_deref(), config),
    };
    let (answers, mut found) = (lives.is_some(), lives.unwrap_or_default());
    let recorded = ended(arguments, named, config);
    let covers = match recorded {
        Ok((ended, covers)) => {
            found.extend(ended);
            // Kubelets' connections live for days.
            let lacks_living = arguments.from.is_named() && !answers;
            covers + if lacks_living { ", without the flows that lived on" } else { "" }
        }
        // What lives answers the question as well.
        Err(error) if answers => format!(" among the flows that live, and {error}"),
        Err(error) => return Err(error),
    };
    found.retain(|it| arguments.at.is_none_or(|at| it.covers(at)));
    found.sort_by_key(|it| std::cmp::Reverse(it.from_unix_ms));
    if found.is_empty() {
        return Err(CliError::Nobody { address: arguments.address, covers });
    }
    match output.json {
        true => output.document(&found)?,
        false => found.iter().try_for_each(|it| output.line(it.in_words()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Flows that go on; `None`: no instance answers.
fn living(address: SocketAddr, socket: Option<&Path>, config: Option<&Path>) -> Option<Vec<ClientBehind>> {
    let now_ms = unix_ms();
    let mut found = Vec::new();
    let path = socket.map_or_else(|| socket::find(config), |path| Ok(path.to_owned()));
    let mut client = socket::connect_briefly(&path.ok()?).ok()?;
    let filter = FlowFilter { source: Some(address), ..FlowFilter::default() };
    let take = |row: FlowRow| {
        found.push(ClientBehind::of(row, now_ms));
        ControlFlow::Continue(())
    };
    // Without an answer the record is what there is.
    client.list::<FlowRow, Listed>(&Command::Flows(filter), take).ok()?;
    Some(found)
}

/// Flows of the recorder's files, and the time that these cover.
fn ended(
    arguments: &WhoArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
) -> Result<(Vec<ClientBehind>, String), CliError> {
    let source = recording::find(&arguments.from, named, config)?;
    let from_ms = arguments.at.map_or(0, |at| at.saturating_sub(SLACK_MS));
    let recording = source.read(from_ms..=u64::MAX)?;
    recording::say_faults(&recording);
    let covers = format!("; {}{}", source.covers_in_words(&recording), unrecorded(&recording));
    let behind = recording.records.iter().filter_map(|record| match &record.what {
        Recorded::Event(event) => of_event(&event.what, event.at_unix_ms, arguments.address),
        _ => None,
    });
    Ok((behind.collect(), covers))
}

/// What a process had that died: a part of a sentence.
fn unrecorded(recording: &Recording) -> String {
    let died = |record: &&TimedRecord| match &record.what {
        Recorded::Event(event) => matches!(event.what, What::ProcessDied { .. }),
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
        }
    }

    fn covers(&self, at_ms: u64) -> bool {
        at_ms + SLACK_MS >= self.from_unix_ms && self.until_unix_ms.is_none_or(|until| at_ms <= until + SLACK_MS)
    }

    /// `10.0.0.7:51234 (worker-7), flow 7 to apiserver/cp2, from 2026-11-25 03:10:00Z to 2026-11-25 03:12:07Z`.
    fn in_words(&self) -> String {
        let until = self
            .until_unix_ms
            .map_or_else(|| "on; it goes on".to_owned(), |until| format!("to {}", recording::shown(until)));
        let moved = if self.moved { ", when it went on at another instance" } else { "" };
        format!(
            "{}, flow {} to {}/{}, from {} {until}{moved}",
            named(self.client, self.node.as_deref()),
            self.flow,
            self.frontend,
            self.backend.as_deref().unwrap_or("-"),
            recording::shown(self.from_unix_ms)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let moved = ClientBehind { moved: true, ..it }.in_words();
        assert!(moved.ends_with("Z, when it went on at another instance"), "{moved}");
    }
}
