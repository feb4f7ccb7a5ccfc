//! `baton status` and `baton backends`.

use std::process::ExitCode;

use super::grid::{Align::*, Cell, Grid};
use super::output::{CliError, Output};
use super::peers::disagreements;
use crate::admin::client::Client;
use crate::admin::control::LastReload;
use crate::admin::protocol::{BackendName, Command};
use crate::admin::status::{BackendStatus, FrontendStatus, OffloadStatus, PeersReport, Status, WorkerCondition};
use crate::admin::words;
use crate::model::humane::{bytes, count, date_and_time, duration_ms, duration_us, plural, rate};
use crate::model::weight::Weight;
use crate::table::backend::Service;
use crate::table::fleet::MemberView;

/// Events at the end of `baton status`.
const EVENTS: usize = 8;

pub(super) fn status(client: &mut Client, output: &Output) -> Result<ExitCode, CliError> {
    let status: Status = client.ask(&Command::Status {})?;
    if output.json {
        output.document(&status)?;
    } else {
        output.wrapped(&in_words(&status, output))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn backends(
    client: &mut Client,
    backend: Option<BackendName>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let backends: Vec<BackendStatus> = client.ask(&Command::Backends { backend })?;
    if output.json {
        output.document(&backends)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut grid = Grid::new(&[
        ("STATE", Left),
        ("BACKEND", Left),
        ("ADDRESS", Left),
        ("FOR", Right),
        ("WEIGHT", Right),
        ("FLOWS", Right),
        ("CONNECTED", Right),
        ("HEDGED", Right),
        ("FAILED", Right),
        ("CONNECT", Right),
        ("TO BACKENDS", Right),
        ("TO CLIENTS", Right),
        ("PROBE", Right),
        ("LAST PROBE AND WHY", Left),
    ])
    .spare(&[
        "HEDGED",
        "CONNECT",
        "TO CLIENTS",
        "TO BACKENDS",
        "CONNECTED",
        "PROBE",
        "WEIGHT",
        "FAILED",
        "ADDRESS",
        "FOR",
    ]);
    for it in &backends {
        let probe = it.last_probe.as_ref().map_or(String::new(), |probe| format!("{probe}; "));
        grid.row([
            state(it),
            format!("{}/{}", it.frontend, it.name).into(),
            address(it),
            since(it),
            it.weight.to_string().into(),
            words::of_cap(it.flows, it.max_connections).into(),
            count(it.connected_total).into(),
            count(it.hedged_total).into(),
            count(it.connect_failures_total.values().sum()).into(),
            it.connect_mean_us.map_or_else(|| "-".to_owned(), duration_us).into(),
            bytes(it.bytes_to_backend_total as f64).into(),
            bytes(it.bytes_to_client_total as f64).into(),
            if it.last_probe_us > 0 { duration_us(it.last_probe_us) } else { "-".to_owned() }.into(),
            (probe + &words::why(it)).into(),
        ]);
    }
    output.text(&grid.render(output))?;
    Ok(ExitCode::SUCCESS)
}

fn in_words(status: &Status, output: &Output) -> String {
    let mut text = instance(status, output);
    let totals = &status.totals;
    text += &format!(
        "{} now, {} new/s, {}/s to backends, {}/s to clients; {} accepted since the start\n",
        output.bold(&plural(totals.flows.sum(), "flow")),
        rate(totals.rates.flows_per_s),
        bytes(totals.rates.bytes_to_backend_per_s),
        bytes(totals.rates.bytes_to_client_per_s),
        count(totals.accepted_total),
    );
    text += &offload(&status.offload, totals.flows.offloaded);
    text += &fleet(&status.fleet, output);
    text += &disagreements(&status.fleet.disagreements, output);
    if let Some((_, silence)) = words::silence(&status.nodes) {
        text += &format!("{}\n", output.paint(Weight::Notice, &silence));
    }
    for frontend in &status.frontends {
        text += "\n";
        text += &frontend_in_words(frontend, output);
    }
    let mut ended: Vec<_> = totals.ended_total.iter().collect();
    if !ended.is_empty() {
        ended.sort_by_key(|(_, flows)| std::cmp::Reverse(**flows));
        let ended: Vec<_> = ended.iter().map(|(reason, flows)| format!("{reason} {}", count(**flows))).collect();
        text += &format!("\n{} {}\n", output.bold("Flows ended:"), ended.join(", "));
    }
    if !status.events.is_empty() {
        text += &format!("\n{}\n", output.bold("Last events"));
        for event in &status.events[status.events.len().saturating_sub(EVENTS)..] {
            let (_, time) = date_and_time(event.at_unix_ms);
            let what = output.paint(event.what.weight(), &event.what.sentence());
            text += &format!("  {}  {what}\n", output.faint(&format!("{time}Z")));
        }
    }
    text
}

/// Only a summary; `baton peers` shows more.
fn fleet(fleet: &PeersReport, output: &Output) -> String {
    let peer = |it: &MemberView| {
        let synced = if it.synced { "" } else { ", not synced" };
        format!("{} {}{synced}", it.name, output.paint(Weight::of_liveness(it.liveness), it.liveness.label()))
    };
    let peers: Vec<_> = fleet.peers.iter().map(peer).collect();
    match &fleet.name {
        Some(name) => format!("Peers of {name}: {}\n", peers.join("; ")),
        None => String::new(),
    }
}

fn offload(offload: &OffloadStatus, offloaded: u64) -> String {
    match &offload.why_not {
        Some(why) => format!("Baton offloads no flow: {why}\n"),
        None if offload.stopped => format!("{} offloaded; {}\n", plural(offloaded, "flow"), words::STOPPED),
        None => format!(
            "{} offloaded, room for {}; by {}\n",
            plural(offloaded, "flow"),
            count(offload.flows_max),
            if offload.interfaces.is_empty() { "no interface yet".to_owned() } else { offload.interfaces.join(", ") },
        ),
    }
}

fn instance(status: &Status, output: &Output) -> String {
    let instance = &status.instance;
    let (weight, word) = words::headline(status);
    let mut text = format!(
        "{} on {}: {}, up {}, pid {}, {}\n",
        output.bold(&format!("Baton {}", instance.version)),
        words::place_of(status),
        output.paint(weight, &word),
        duration_ms(instance.uptime_ms),
        instance.pid,
        plural(instance.workers.len() as u64, "worker"),
    );
    for reason in instance.not_live.iter().chain(&instance.not_ready) {
        text += &format!("  {}\n", output.paint(weight, reason));
    }
    for frontend in status.frontends.iter().filter(|it| !it.removed && it.service.state != Service::Ready) {
        let weight = words::of_service(frontend.service.state);
        text += &format!("  {}\n", output.paint(weight, &format!("{}: {}", frontend.name, frontend.service.in_words)));
    }
    if let Some(why) = &instance.unfiltered {
        let unfiltered = format!("No filter of system calls: {why}");
        text += &format!("{}\n", output.paint(Weight::Notice, &unfiltered));
    }
    if let Some(fault) = &instance.rights {
        text += &format!("{}\n", output.paint(Weight::Notice, fault));
    }
    if let Some(fault) = words::recorder_fault(status) {
        text += &format!("{}\n", output.paint(Weight::Notice, &fault));
    }
    text += &format!("This host {}\n", words::vips(&instance.vips));
    if let Some((weight, place)) = status.vip.as_ref().map(words::vip) {
        text += &format!("{}\n", output.paint(weight, &place));
    }
    for (number, worker) in instance.workers.iter().enumerate() {
        if worker.state == WorkerCondition::AcceptPaused {
            let reason = format!("worker {number} accepts nothing: out of file descriptors");
            text += &format!("  {}\n", output.paint(Weight::Bad, &reason));
        }
    }
    let path = instance.config.path.display();
    match &instance.config.last_reload {
        LastReload::None => text += &format!("Configuration {path}, as read at the start\n"),
        LastReload::Taken { at_unix_ms, .. } => {
            let (date, time) = date_and_time(*at_unix_ms);
            text += &format!("Configuration {path}, reloaded {date} {time} UTC\n");
        }
        LastReload::Refused { at_unix_ms, errors } => {
            let (date, time) = date_and_time(*at_unix_ms);
            let refused = format!("refused {date} {time} UTC, the one before it runs:");
            text += &format!("Configuration {path}: {}\n", output.paint(Weight::Bad, &refused));
            errors.iter().for_each(|error| text += &format!("  {error}\n"));
        }
    }
    text
}

fn frontend_in_words(frontend: &FrontendStatus, output: &Output) -> String {
    let kind = match (&frontend.balance, frontend.removed) {
        (_, true) => "removed",
        (Some(balance), false) => balance,
        (None, false) => "",
    };
    let mut text = format!(
        "{}  {}  {}\n",
        output.bold(&frontend.name),
        words::listen(frontend, " "),
        output.faint(&format!(
            "{kind}, {}, {} new/s",
            words::flows_of_cap(frontend.flows, frontend.max_connections),
            rate(frontend.rates.flows_per_s)
        )),
    );
    let mut grid = Grid::new(&[
        ("STATE", Left),
        ("BACKEND", Left),
        ("ADDRESS", Left),
        ("FOR", Right),
        ("FLOWS", Right),
        ("SHARE", Right),
        ("NEW/S", Right),
        ("TO BACKEND/S", Right),
        ("TO CLIENT/S", Right),
        ("WHY", Left),
    ])
    .indented()
    .spare(&["TO CLIENT/S", "TO BACKEND/S", "NEW/S", "ADDRESS", "FOR", "SHARE"]);
    let flows: u64 = frontend.backends.iter().map(|it| u64::from(it.flows)).sum();
    for it in &frontend.backends {
        grid.row([
            state(it),
            it.name.as_str().into(),
            address(it),
            since(it),
            words::of_cap(it.flows, it.max_connections).into(),
            format!("{} %", u64::from(it.flows) * 100 / flows.max(1)).into(),
            rate(it.rates.flows_per_s).into(),
            bytes(it.rates.bytes_to_backend_per_s).into(),
            bytes(it.rates.bytes_to_client_per_s).into(),
            words::why(it).into(),
        ]);
    }
    text += &grid.render(output);
    text
}

fn state(it: &BackendStatus) -> Cell {
    Cell::painted(Weight::of_health(it.health_state), it.health_state.label())
}

fn address(it: &BackendStatus) -> Cell {
    it.address.map_or_else(|| "unresolved".to_owned(), |address| address.to_string()).into()
}

fn since(it: &BackendStatus) -> Cell {
    it.since_ms.map_or_else(|| "-".to_owned(), duration_ms).into()
}
