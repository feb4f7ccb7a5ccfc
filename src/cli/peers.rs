//! `baton peers`.

use std::process::ExitCode;
use std::time::Duration;

use super::grid::{Align::*, Cell, Grid};
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::Command;
use crate::admin::status::PeersReport;
use crate::admin::words;
use crate::model::fleet::{Disagreement, InstanceName, InstanceSummary, OffloadBrief};
use crate::model::health::HealthState;
use crate::model::humane::{count, duration_ms, duration_us, rate};
use crate::model::weight::Weight;
use crate::table::fleet::MemberView;

/// Between two looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args, Clone, Debug)]
pub(super) struct PeersArguments {
    /// Shows the list again every second.
    #[arg(long, short)]
    watch: bool,
}

pub(super) fn peers(client: &mut Client, arguments: &PeersArguments, output: &Output) -> Result<ExitCode, CliError> {
    loop {
        let report: PeersReport = client.ask(&Command::Peers {})?;
        match output.json {
            true if arguments.watch => output.json_line(&report)?,
            true => output.document(&report)?,
            false => output.text(&in_words(&report, output))?,
        }
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

fn in_words(report: &PeersReport, output: &Output) -> String {
    let Some(name) = &report.name else {
        return "this instance has no peers: there is no [peers] in its configuration\n".to_owned();
    };
    let ready = match (report.ready, &report.barred) {
        (true, None) => output.paint(Weight::Good, "ready for the VIP"),
        (true, Some(why)) => output.paint(Weight::Bad, &format!("{}: {why}", words::BARRED)),
        (false, _) => output.paint(Weight::Bad, "not ready for the VIP: it waits for its peers' flows"),
    };
    let slot = report.slot.map_or_else(String::new, |slot| format!(", slot {slot}"));
    let vips = words::vips(&report.vips);
    let mut text = format!("{}{slot}: {ready}; it {vips}\n", output.bold(&name.to_string()));
    let mut grid = Grid::new(&[
        ("PEER", Left),
        ("STATE", Left),
        ("ADDRESS", Left),
        ("SLOT", Right),
        ("ITS FLOWS", Right),
        ("OFFLOADED", Right),
        ("SYNCED", Left),
        ("BEHIND", Right),
        ("LAG", Right),
        ("RTT", Right),
        ("RESYNCS", Right),
        ("VERSION", Left),
        ("VIPS", Left),
        ("", Left),
    ])
    .spare(&["RESYNCS", "RTT", "LAG", "SLOT", "VERSION", "OFFLOADED", "ADDRESS", "BEHIND", "VIPS"]);
    for it in &report.peers {
        grid.row(row(it));
    }
    text += &grid.render(output);
    if let Some(grid) = instances(report) {
        text += "\n";
        text += &grid.render(output);
    }
    text += &disagreements(&report.disagreements, output);
    text
}

/// What each instance says of itself. `None`: this one says nothing yet, or has no peers.
pub(super) fn instances(report: &PeersReport) -> Option<Grid> {
    let (name, own) = report.name.as_ref().zip(report.own.as_ref())?;
    let mut grid = Grid::new(&[
        ("INSTANCE", Left),
        ("SAYS", Left),
        ("UP", Right),
        ("FLOWS", Right),
        ("NEW/S", Right),
        ("OFFLOAD", Left),
        ("SILENT NODES", Right),
        ("BACKENDS", Left),
        ("", Left),
    ])
    .spare(&["SILENT NODES", "OFFLOAD", "NEW/S", "UP"]);
    let (weight, word) = words::summary(own);
    grid.row(says(name, Cell::painted(weight, word), own, 0, true));
    for it in &report.peers {
        let (weight, word) = words::peer(it);
        let state = Cell::painted(weight, word);
        match &it.summary {
            Some(said) => grid.row(says(&it.name, state, &said.summary, said.age_ms, said.is_present)),
            None => grid.row(says(&it.name, state, &InstanceSummary::default(), 0, false)),
        }
    }
    Some(grid)
}

/// A line for each.
pub(super) fn disagreements(all: &[Disagreement], output: &Output) -> String {
    let line = |it| output.paint(Weight::Notice, &format!("Disagreement: {}", words::disagreement(it))) + "\n";
    all.iter().map(line).collect()
}

/// What an instance said of itself `age_ms` ago. `is_present`: it still holds.
fn says(name: &InstanceName, state: Cell, said: &InstanceSummary, age_ms: u64, is_present: bool) -> [Cell; 9] {
    let known = |text: String| if said.phase.is_empty() { "-".to_owned() } else { text };
    let offload = match said.offload {
        OffloadBrief::On => Cell::from("on"),
        OffloadBrief::Off => Cell::from(known("off".to_owned())),
        OffloadBrief::Stopped => Cell::painted(Weight::Bad, "stopped"),
    };
    let ready = said.backends.iter().filter(|it| it.health_state == Some(HealthState::Ready)).count();
    let mut backends = vec![format!("{ready} ready")];
    for it in said.backends.iter().filter(|it| it.health_state != Some(HealthState::Ready)) {
        let label = it.health_state.map_or("not probed", HealthState::label);
        backends.push(format!("{}/{} {label}", it.frontend, it.name));
    }
    let mut why = words::reasons(said);
    if said.phase.is_empty() {
        why = vec!["it says nothing of itself".to_owned()];
    } else if !is_present {
        why = vec![format!("as it was {} ago", duration_ms(age_ms))];
    }
    let up_ms = said.uptime_ms.saturating_add(if is_present { age_ms } else { 0 });
    [
        name.to_string().into(),
        state,
        known(duration_ms(up_ms)).into(),
        known(count(said.flows_proxied.saturating_add(said.flows_offloaded))).into(),
        known(rate(said.new_flows_per_10_s as f64 / 10.0)).into(),
        offload,
        said.silent_nodes.map_or_else(|| "-".to_owned(), count).into(),
        known(backends.join(", ")).into(),
        why.join("; ").into(),
    ]
}

fn row(it: &MemberView) -> [Cell; 14] {
    let vips: Vec<_> = it.vips.iter().map(ToString::to_string).collect();
    let synced = if it.synced { Cell::painted(Weight::Plain, "yes") } else { Cell::painted(Weight::Bad, "no") };
    [
        it.name.to_string().into(),
        Cell::painted(Weight::of_liveness(it.liveness), it.liveness.label()),
        it.address.to_string().into(),
        it.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string()).into(),
        count(it.flows as u64).into(),
        count(it.offloaded as u64).into(),
        synced,
        count(it.behind as u64).into(),
        duration_ms(it.lag_ms).into(),
        if it.round_trip_us > 0 { duration_us(it.round_trip_us) } else { "-".to_owned() }.into(),
        count(it.resyncs).into(),
        if it.version.is_empty() { "-".to_owned() } else { it.version.clone() }.into(),
        if vips.is_empty() { "-".to_owned() } else { vips.join(" ") }.into(),
        it.why_not.as_deref().unwrap_or("").into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;
    use crate::model::fleet::{BackendSummary, Opinion, PeerSummary};

    #[test]
    fn the_documents_show_what_is_printed_of_peers() {
        let backend = |name: &str, health_state| BackendSummary {
            frontend: "apiserver".to_owned(),
            name: name.to_owned(),
            health_state: Some(health_state),
            for_ms: 12_000,
            why: String::new(),
        };
        let summary = |flows_offloaded, cp_2| InstanceSummary {
            phase: "serving".to_owned(),
            uptime_ms: 93_600_000,
            flows_proxied: 112,
            flows_offloaded,
            new_flows_per_10_s: 7,
            offload: OffloadBrief::On,
            silent_nodes: Some(0),
            backends: vec![backend("cp-1", HealthState::Ready), backend("cp-2", cp_2)],
            ..InstanceSummary::default()
        };
        let (own, of_b) = (summary(0, HealthState::Ready), summary(1092, HealthState::Ejected));
        let opinion = |instance: &str, health_state, why: &str| Opinion {
            instance: InstanceName(instance.into()),
            health_state,
            why: why.to_owned(),
        };
        let disagreement = Disagreement {
            frontend: "apiserver".to_owned(),
            backend: "cp-2".to_owned(),
            for_ms: 12_000,
            opinions: vec![
                opinion("lb-a", HealthState::Ready, ""),
                opinion("lb-b", HealthState::Ejected, "no answer within 500 ms"),
            ],
        };
        let peer = MemberView {
            summary: Some(PeerSummary { age_ms: 300, is_present: true, summary: of_b.into() }),
            ..samples::peer()
        };
        let name = Some(InstanceName("lb-a".into()));
        let (own, disagreements) = (Some(own.into()), vec![disagreement]);
        let report = PeersReport {
            name,
            slot: Some(0),
            ready: true,
            barred: None,
            vips: vec![],
            own,
            peers: vec![peer],
            disagreements,
        };
        assert_eq!(samples::shown("docs/fleet.md", "baton peers"), in_words(&report, &Output::new(false)));
    }
}
