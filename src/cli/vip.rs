//! `baton vip` shows the holder of the VIP.

use std::process::ExitCode;

use super::grid::{Align::*, Cell, Grid};
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::Command;
use crate::admin::status::VipReport;
use crate::model::fleet::vip::{VipGain, VipPart, VipPeerView, VipView};
use crate::model::humane::{date_and_time, duration_ms, list};
use crate::model::weight::Weight;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct VipArguments {
    /// Also shows why the VIP is on its host, which events would move it, and why it moved before.
    #[arg(long)]
    why: bool,
}

pub(super) fn vip(client: &mut Client, arguments: &VipArguments, output: &Output) -> Result<ExitCode, CliError> {
    let report: VipReport = client.ask(&Command::Vip {})?;
    match output.json {
        true => output.document(&report)?,
        false => output.wrapped(&in_words(&report, arguments.why, output))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(report: &VipReport, why: bool, output: &Output) -> String {
    let Some(view) = &report.view else {
        return match report.addresses.is_empty() {
            true => "Baton does not move the VIP itself: there is no [vip] in its configuration, or its mode is \
                     \"external\"\n"
                .to_owned(),
            false => "Baton has not looked at the VIP yet\n".to_owned(),
        };
    };
    let addresses = list(&report.addresses);
    let holder = match &view.holder {
        Some(holder) => output.paint(Weight::Good, &holder.to_string()),
        None => output.paint(Weight::Bad, "no instance that this one hears"),
    };
    let mut text = format!("{} on {}: {holder}\n", output.bold(&addresses), report.interface);
    let mut grid = Grid::new(&[
        ("INSTANCE", Left),
        ("VIP", Left),
        ("SERVES", Left),
        ("SYNCED", Left),
        ("NETWORK", Left),
        ("PRIORITY", Right),
        ("", Left),
    ]);
    grid.row(own(report, view));
    view.peers.iter().for_each(|peer| grid.row(row(peer)));
    text += &grid.render(output);
    if why {
        text += &reasons(report, view);
    }
    text
}

fn reasons(report: &VipReport, view: &VipView) -> String {
    let mut text = why_now(view) + "\n";
    text += "these events would move the VIP:\n";
    view.would_move.iter().for_each(|reason| text += &format!("  {reason}\n"));
    if report.moves.is_empty() {
        return text + "the VIP has not come to this host or left it since this process began\n";
    }
    text += "the VIP moved for these reasons:\n";
    for event in &report.moves {
        let (date, time) = date_and_time(event.at_unix_ms);
        text += &format!("  {date} {time}Z  {}\n", event.what.sentence());
    }
    text
}

/// Why this instance has the VIP or not: what is so now, or how it was when the VIP came, and how it is since.
fn why_now(view: &VipView) -> String {
    let since = duration_ms(view.for_ms);
    if view.part != VipPart::Holds {
        return format!("why: {} (for {since})", view.why);
    }
    let Some(VipGain::Silent(name)) = &view.gain else {
        return format!("why: {} ({since} ago)", view.why);
    };
    let is_heard = view.peers.iter().any(|peer| peer.name == *name && peer.heard);
    let now = if is_heard { "is heard again" } else { "is not heard now" };
    format!("why: {} ({since} ago); {name} {now}", view.why)
}

fn yes(is: bool) -> Cell {
    if is { Cell::painted(Weight::Plain, "yes") } else { Cell::painted(Weight::Bad, "no") }
}

fn own(report: &VipReport, view: &VipView) -> [Cell; 7] {
    [
        report.name.as_ref().map_or_else(|| "this instance".to_owned(), ToString::to_string).into(),
        view.part.label().into(),
        yes(view.ready),
        yes(view.synced),
        yes(view.hears),
        view.priority.to_string().into(),
        if view.damped { "held back: it has moved too often" } else { "" }.into(),
    ]
}

fn row(peer: &VipPeerView) -> [Cell; 7] {
    let note = match peer {
        VipPeerView { heard: false, part: Some(VipPart::Holds), .. } => {
            "silent; it held the VIP when it was heard last"
        }
        VipPeerView { heard: false, .. } => "silent",
        VipPeerView { other_vip: true, .. } => "its [vip] has other addresses",
        VipPeerView { part: None, has_address: true, .. } => "has an address; another program moves its VIP",
        VipPeerView { part: None, .. } => "says nothing about the VIP",
        VipPeerView { damped: true, .. } => "held back: it has moved too often",
        _ => "",
    };
    // What it said last may be so no longer.
    let part = peer.part.filter(|_| peer.heard);
    let said = |cell: Cell| if part.is_some() { cell } else { "-".into() };
    [
        peer.name.to_string().into(),
        part.map_or("-", VipPart::label).into(),
        said(yes(peer.ready)),
        said(yes(peer.synced)),
        said(yes(peer.hears)),
        said(peer.priority.to_string().into()),
        note.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;
    use crate::model::fleet::InstanceName;
    use crate::table::journal::{Event, What};

    #[test]
    fn the_documents_show_what_is_printed_of_the_vip() {
        let addresses = vec!["10.0.0.100".parse().unwrap(), "fd00::100".parse().unwrap()];
        let [own, other] = ["lb-a", "lb-b"].map(|name| InstanceName(name.into()));
        let peer = VipPeerView {
            name: other,
            part: Some(VipPart::Stands),
            ready: true,
            synced: true,
            hears: true,
            damped: false,
            priority: 100,
            flows_here: 0,
            heard: true,
            has_address: false,
            other_vip: false,
        };
        let view = VipView {
            part: VipPart::Holds,
            for_ms: 754_000,
            why: "lb-b had it and was silent".to_owned(),
            gain: Some(VipGain::Silent(InstanceName("lb-b".into()))),
            holder: Some(own.clone()),
            claim: 4,
            ready: true,
            synced: true,
            hears: true,
            damped: false,
            priority: 100,
            peers: vec![peer],
            would_move: vec![
                "lb-b takes it when this host, its network or this process stops, and on `baton evacuate`".to_owned(),
                "it goes to lb-b when this instance is not ready and lb-b is".to_owned(),
            ],
            next: None,
        };
        let what = What::VipGained {
            vip: "10.0.0.100, fd00::100".to_owned(),
            why: "lb-b had it and was silent".to_owned(),
            gain: None,
            silent: None,
        };
        let report = VipReport {
            name: Some(own),
            addresses,
            interface: "eth0".to_owned(),
            view: Some(view),
            moves: vec![Event { number: 7, at_unix_ms: 1_767_261_600_000, what }],
        };
        let output = Output::new(false);
        assert_eq!(samples::shown("docs/vip.md", "baton vip --why"), in_words(&report, true, &output));
        // Regression: minutes after lb-b was back, this said that it is silent.
        let mut now = report.view.clone().unwrap();
        assert_eq!(why_now(&now), "why: lb-b had it and was silent (12 m 34 s ago); lb-b is heard again");
        now.peers[0].heard = false;
        assert_eq!(why_now(&now), "why: lb-b had it and was silent (12 m 34 s ago); lb-b is not heard now");
        (now.part, now.why) = (VipPart::Stands, "lb-b has it".to_owned());
        assert_eq!(why_now(&now), "why: lb-b has it (for 12 m 34 s)");
        let external = VipReport { view: None, addresses: Vec::new(), ..report };
        assert!(in_words(&external, true, &output).starts_with("Baton does not move the VIP itself"));
    }
}
