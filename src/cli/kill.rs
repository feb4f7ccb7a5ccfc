//! `baton kill`.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use ipnet::IpNet;

use super::network;
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::{BackendName, Command, KillCheck, KillReport, KillTarget};
use crate::model::humane::{count, duration_ms, plural};
use crate::model::ids::FlowId;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("target").required(true)))]
pub(super) struct KillArguments {
    /// One flow, by the number that `baton flows` shows.
    #[arg(value_name = "FLOW", group = "target")]
    pub flow: Option<FlowId>,
    /// All flows of one backend: NAME or FRONTEND/NAME.
    #[arg(long, value_name = "BACKEND", group = "target", add = super::shell::backend_names())]
    pub backend: Option<String>,
    /// All flows from one network or address.
    #[arg(long, value_name = "CIDR", group = "target", value_parser = network::parse)]
    pub client: Option<IpNet>,
    /// Every flow of the instance; needs --yes.
    #[arg(long, requires = "sure", group = "target")]
    pub all: bool,
    /// Confirms --all.
    #[arg(long, group = "sure")]
    pub yes: bool,
    /// Only says how many flows of how many clients would be reset, and in which time.
    #[arg(long, group = "sure")]
    pub check: bool,
}

pub(super) fn kill(client: &mut Client, arguments: KillArguments, output: &Output) -> Result<ExitCode, CliError> {
    let is_check = arguments.check;
    let target = match arguments {
        KillArguments { flow: Some(flow), .. } => KillTarget::Flow(flow),
        KillArguments { backend: Some(backend), .. } => KillTarget::Backend(BackendName(backend)),
        KillArguments { client: Some(network), .. } => KillTarget::Client(network),
        // The arguments' group allows no other case.
        _ => KillTarget::All,
    };
    if is_check {
        let check: KillCheck = client.ask(&Command::CheckKill { target })?;
        match output.json {
            true => output.document(&check)?,
            false => output.line(format!("{}; Baton has reset none", reach(&check)))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let report: KillReport = client.ask(&Command::Kill { target: target.clone() })?;
    if output.json {
        output.document(&report)?;
    }
    match target {
        KillTarget::Flow(flow) if report.gone == 0 => return Err(CliError::StillThere(flow)),
        _ if output.json => {}
        KillTarget::Flow(flow) => output.line(format!("flow {flow} is gone"))?,
        _ => output.line(in_words(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `212 flows, 41 clients, resets over 250 ms`.
pub(super) fn reach(check: &KillCheck) -> String {
    let both = number(check);
    match (check.flows, check.over_ms) {
        (0, _) => "no flow matches".to_owned(),
        (1, 0) => format!("{both}, reset at once"),
        (_, 0) => format!("{both}, resets at once"),
        (_, ms) => format!("{both}, resets over {}", duration_ms(ms)),
    }
}

/// `212 flows, 41 nodes`, or `212 flows, 41 clients` if one has no name.
pub(super) fn number(check: &KillCheck) -> String {
    let clients = check.nodes.map_or_else(|| plural(check.clients, "client"), |nodes| plural(nodes, "node"));
    format!("{}, {clients}", plural(check.flows, "flow"))
}

pub(super) fn in_words(report: &KillReport) -> String {
    match (report.flows, report.flows - report.gone) {
        (0, _) => "no flow matches".to_owned(),
        (flows, 0) => format!("{} gone", plural(flows, "flow")),
        (flows, left) => {
            format!(
                "{} to end; {} go on until their turn at the configured pace of resets",
                plural(flows, "flow"),
                count(left)
            )
        }
    }
}
