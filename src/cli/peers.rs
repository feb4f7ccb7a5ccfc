//! `baton peers`.

use std::process::ExitCode;
use std::time::Duration;

use super::grid::{Align::*, Cell, Grid};
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::Command;
use crate::admin::status::PeersReport;
use crate::admin::words;
use crate::model::humane::{count, duration_ms, duration_us};
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
    let ready = match report.ready {
        true => output.paint(Weight::Good, "ready for the VIP"),
        false => output.paint(Weight::Bad, "not ready for the VIP: it waits for its peers' flows"),
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
    text
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
    use crate::model::fleet::{Epoch, InstanceName, Liveness};

    #[test]
    fn the_documents_show_what_is_printed_of_peers() {
        let vip = "10.0.0.100".parse().unwrap();
        let peer = MemberView {
            name: InstanceName("lb-b".into()),
            address: "10.0.0.22:9471".parse().unwrap(),
            liveness: Liveness::Alive,
            epoch: Epoch::default(),
            slot: Some(1),
            version: "0.1.0".to_owned(),
            synced: true,
            flows: 1204,
            offloaded: 1092,
            told: true,
            behind: 0,
            lag_ms: 0,
            resyncs: 0,
            round_trip_us: 180,
            vips: vec![vip],
            why_not: None,
        };
        let name = Some(InstanceName("lb-a".into()));
        let report = PeersReport { name, slot: Some(0), ready: true, vips: vec![], peers: vec![peer] };
        assert_eq!(samples::shown("docs/fleet.md", "baton peers"), in_words(&report, &Output::new(false)));
    }
}
