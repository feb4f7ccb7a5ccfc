//! `baton reload`, `rebalance` and `version`.

use std::path::Path;
use std::process::ExitCode;

use super::follow::follow;
use super::grid::{Align::*, Grid};
use super::output::{CliError, Output};
use super::socket;
use crate::admin::client::Client;
use crate::admin::control::{PlannedMove, RebalancePlan, StayingFlows};
use crate::admin::protocol::{About, Command, LoadedBefore, Rebalance, Reloaded};
use crate::model::humane::{count, date_and_time, duration_ms, plural};

pub(super) fn reload(client: &mut Client, output: &Output) -> Result<ExitCode, CliError> {
    let reloaded: Reloaded = client.ask(&Command::Reload {})?;
    if output.json {
        output.document(&reloaded)?;
    } else {
        output.text(&in_words(&reloaded))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A line of what happened, and one for each change.
fn in_words(reloaded: &Reloaded) -> String {
    let listed = |changes: &[String]| changes.iter().map(|change| format!("  {change}\n")).collect::<String>();
    match &reloaded.loaded_before {
        Some(LoadedBefore { at_unix_ms, changes }) => {
            let (date, time) = date_and_time(*at_unix_ms);
            let before = "reloaded: nothing changed since Baton saw that the file had changed, and loaded it";
            format!("{before} at {date} {time}Z:\n{}", listed(changes))
        }
        None if reloaded.changes.is_empty() => "reloaded: nothing changed\n".to_owned(),
        None => format!("reloaded:\n{}", listed(&reloaded.changes)),
    }
}

pub(super) fn rebalance(client: &mut Client, dry_run: bool, output: &Output) -> Result<ExitCode, CliError> {
    let show = |begun: Rebalance| match output.json {
        true => Ok(()),
        false => show_plan(&begun.plan, !dry_run, output),
    };
    let rebalance: Rebalance = follow(client, &Command::Rebalance { dry_run }, output, show)?;
    if output.json {
        output.document(&rebalance)?;
        return Ok(ExitCode::SUCCESS);
    }
    if dry_run {
        show_plan(&rebalance.plan, false, output)?;
        if !rebalance.plan.moves.is_empty() {
            output.line("Baton has moved no flow")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    for it in rebalance.done.iter().filter(|it| it.moved > 0 || !it.left.is_empty()) {
        let left: u32 = it.left.iter().map(|left| left.planned.moves).sum();
        let all = plural(u64::from(it.moved + left), "flow");
        output.line(format!("{}: {} of {all} moved in {}", it.frontend, it.moved, duration_ms(it.took_ms)))?;
        for left in &it.left {
            output.line(format!("  {}", staying(left)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why flows stay at a backend that has more than its share.
fn staying(StayingFlows { planned, moved_before, never_quiet }: &StayingFlows) -> String {
    let PlannedMove { frontend, backend, moves, .. } = planned;
    let stay = if *moves == 1 { "stays" } else { "stay" };
    let above = format!("{frontend}/{backend}: {} above its share {stay}", plural((*moves).into(), "flow"));
    let was = |count: u32| if count == 1 { "was" } else { "were" };
    let busy = format!("{} {} never quiet", count((*never_quiet).into()), was(*never_quiet));
    let moved = format!("{} {} of clients that had moved already", count((*moved_before).into()), was(*moved_before));
    let why = match (never_quiet, moved_before) {
        (0, 0) => return format!("{above}, until a quiet moment"),
        (_, 0) => busy,
        (0, _) => moved,
        _ => format!("{busy}, {moved}"),
    };
    format!("{above}: of its {}, {why}", plural((never_quiet + moved_before).into(), "flow"))
}

/// `waits`: the flows move, and this is told before.
fn show_plan(plan: &RebalancePlan, waits: bool, output: &Output) -> Result<(), CliError> {
    for it in &plan.returning {
        let (name, whole_in) = (format!("{}/{}", it.frontend, it.backend), duration_ms(it.whole_in_ms));
        output.line(format!(
            "{name} returns slowly: it has {} % of its share, and all in {whole_in}",
            it.share_percent
        ))?;
    }
    for frontend in &plan.hashed {
        output.line(format!(
            "{frontend}: no flow moves, as balance = \"source_hash\" would send its client to the same backend again"
        ))?;
    }
    if plan.moves.is_empty() {
        let more = match (plan.returning.is_empty(), waits) {
            (true, _) => "",
            (false, false) => " of now",
            (false, true) => " of now; what is too much as shares grow moves meanwhile",
        };
        return output.line(format!("balanced: no backend has more than its share{more}"));
    }
    let mut grid = Grid::new(&[("BACKEND", Left), ("FLOWS", Right), ("FAIR SHARE", Right), ("TO MOVE", Right)]);
    for it in &plan.moves {
        grid.row([
            format!("{}/{}", it.frontend, it.backend).into(),
            count(it.flows.into()).into(),
            count(it.fair_share.into()).into(),
            count(it.moves.into()).into(),
        ]);
    }
    output.text(&grid.render(output))
}

/// Prints the own version even if no instance can be reached. Scripts of the packages read the socket's path from the output.
pub(super) fn version(socket: &Path, output: &Output) -> Result<ExitCode, CliError> {
    let own = env!("CARGO_PKG_VERSION");
    let about = socket::connect(socket).and_then(|mut client| client.ask::<About>(&Command::Version {}));
    if output.json {
        output.document(&serde_json::json!({ "command": own, "socket": socket, "instance": about.as_ref().ok() }))?;
    } else {
        output.line(format!("this command  {own}"))?;
        if let Ok(about) = &about {
            output.line(format!(
                "the instance  {}  pid {}, admin protocol {}",
                about.version, about.pid, about.protocol
            ))?;
            output.line(format!("its socket    {}", socket.display()))?;
        }
    }
    match about {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: directly after an edit, "nothing changed" was all that was said: Baton had loaded the file by itself.
    #[test]
    fn a_reload_without_changes_tells_those_that_baton_loaded_by_itself_a_moment_before() {
        let changes = vec!["frontend apiserver: backend cp4 added".to_owned()];
        let loaded_before = LoadedBefore { at_unix_ms: 1_795_576_327_412, changes: changes.clone() };
        let said = |changes, loaded_before| in_words(&Reloaded { changes, loaded_before });
        assert_eq!(
            said(Vec::new(), Some(loaded_before)),
            "reloaded: nothing changed since Baton saw that the file had changed, and loaded it at 2026-11-25 03:12:07Z:\n  \
             frontend apiserver: backend cp4 added\n"
        );
        assert_eq!(said(changes, None), "reloaded:\n  frontend apiserver: backend cp4 added\n");
        assert_eq!(said(Vec::new(), None), "reloaded: nothing changed\n");
    }

    #[test]
    fn what_stays_after_a_rebalance_has_its_reason() {
        let said = |moves, never_quiet, moved_before| {
            let (frontend, backend) = ("apiserver".to_owned(), "cp1".to_owned());
            let planned = PlannedMove { frontend, backend, flows: 9, fair_share: 9 - moves, moves };
            staying(&StayingFlows { planned, moved_before, never_quiet })
        };
        let both = "apiserver/cp1: 4 flows above its share stay: of its 9 flows, 7 were never quiet, 2 were of clients that had moved already";
        assert_eq!(said(4, 7, 2), both);
        assert_eq!(said(4, 9, 0), "apiserver/cp1: 4 flows above its share stay: of its 9 flows, 9 were never quiet");
        assert_eq!(
            said(1, 0, 1),
            "apiserver/cp1: 1 flow above its share stays: of its 1 flow, 1 was of clients that had moved already"
        );
        assert_eq!(said(1, 0, 0), "apiserver/cp1: 1 flow above its share stays, until a quiet moment");
    }
}
