//! `baton reload`, `rebalance` and `version`.

use std::process::ExitCode;

use super::grid::{Align::*, Grid};
use super::output::{CliError, Output};
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::{About, Command, Rebalance, Reloaded};
use crate::model::humane::count;

pub(super) fn reload(client: &mut Client, output: &Output) -> Result<ExitCode, CliError> {
    let reloaded: Reloaded = client.ask(&Command::Reload {})?;
    if output.json {
        output.document(&reloaded)?;
    } else if reloaded.changes.is_empty() {
        output.line("reloaded: nothing changed")?;
    } else {
        output.line("reloaded:")?;
        reloaded.changes.iter().try_for_each(|change| output.line(format!("  {change}")))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rebalance(client: &mut Client, dry_run: bool, output: &Output) -> Result<ExitCode, CliError> {
    let rebalance: Rebalance = client.ask(&Command::Rebalance { dry_run })?;
    if output.json {
        output.document(&rebalance)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rebalance.moves.is_empty() {
        output.line("balanced: no backend has more than its share")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut grid = Grid::new(&[("BACKEND", Left), ("FLOWS", Right), ("FAIR SHARE", Right), ("TO MOVE", Right)]);
    for it in &rebalance.moves {
        grid.row([
            format!("{}/{}", it.frontend, it.backend).into(),
            count(it.flows.into()).into(),
            count(it.fair_share.into()).into(),
            count(it.moves.into()).into(),
        ]);
    }
    output.text(&grid.render(output))?;
    output.line(if dry_run { "Baton has moved no flow" } else { "Baton closes idle flows at the configured pace" })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the own version even if no instance can be reached.
pub(super) fn version(client: Result<Client, ClientError>, output: &Output) -> Result<ExitCode, CliError> {
    let own = env!("CARGO_PKG_VERSION");
    let about = client.and_then(|mut client| client.ask::<About>(&Command::Version {}));
    if output.json {
        output.document(&serde_json::json!({ "command": own, "instance": about.as_ref().ok() }))?;
    } else {
        output.line(format!("this command  {own}"))?;
        if let Ok(about) = &about {
            output.line(format!(
                "the instance  {}  pid {}, admin protocol {}",
                about.version, about.pid, about.protocol
            ))?;
        }
    }
    match about {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    }
}
