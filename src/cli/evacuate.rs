//! `baton evacuate`: gives the VIP to another instance and shows how this host is emptied.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;

use super::follow::follow;
use super::grid::{Align::*, Grid};
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::evacuate::{
    EvacuateStep, EvacuationCheck, EvacuationFlows, EvacuationOutcome, EvacuationProgress, EvacuationReport,
    EvacuationRequest, VipPlace,
};
use crate::admin::protocol::Command;
use crate::model::fleet::InstanceName;
use crate::model::humane::{count, duration_ms, plural};
use crate::model::weight::Weight;

/// 128 and the number of SIGINT, as shells have it.
const EXIT_INTERRUPTED: i32 = 130;

#[derive(Debug, Args)]
pub(super) struct EvacuationArguments {
    /// The peer to get the VIP. Where Baton itself moves the VIP, this peer gets it; otherwise keepalived or the router
    /// decides which host gets it [default: any live peer].
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// Baton resets the proxied flows that are still here after this time.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::model::duration::parse)]
    deadline: Duration,
    /// Only reports whether Baton can empty this host, and each obstacle.
    #[arg(long, conflicts_with = "cancel")]
    check: bool,
    /// Cancels the evacuation: this host may have the VIP again.
    #[arg(long, conflicts_with_all = ["to", "deadline"])]
    cancel: bool,
}

/// Exit code 0: an operator may switch the host off, and no flow was reset.
pub(super) fn run(client: &mut Client, arguments: EvacuationArguments, output: &Output) -> Result<ExitCode, CliError> {
    let asked = EvacuationRequest {
        to: arguments.to.map(|name| InstanceName(name.into())),
        deadline_ms: u64::try_from(arguments.deadline.as_millis()).unwrap_or(u64::MAX / 1_000_000),
    };
    match (arguments.check, arguments.cancel) {
        (true, _) => check(client, asked, output),
        (_, true) => cancel(client, output),
        _ => begin(client, asked, output),
    }
}

fn begin(client: &mut Client, asked: EvacuationRequest, output: &Output) -> Result<ExitCode, CliError> {
    let last = Arc::new(Mutex::new(None));
    say_on_interrupt(last.clone(), *output);
    let mut last_step = None;
    let take = |progress: EvacuationProgress| {
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress.clone());
        show(&progress, &mut last_step, output)
    };
    finish(&follow(client, &Command::Evacuate(asked), output, take)?, output)
}

fn cancel(client: &mut Client, output: &Output) -> Result<ExitCode, CliError> {
    let report: EvacuationReport = client.ask(&Command::CancelEvacuation {})?;
    if output.json {
        output.document(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.line("this host may have the VIP again")?;
    output.text(&in_words(&report, output))?;
    Ok(ExitCode::SUCCESS)
}

fn finish(report: &EvacuationReport, output: &Output) -> Result<ExitCode, CliError> {
    let code = if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    match output.json {
        // After lines of progress the report is a line, too.
        true => output.json_line(report)?,
        false => output.text(&in_words(report, output))?,
    }
    Ok(code)
}

fn in_words(report: &EvacuationReport, output: &Output) -> String {
    let EvacuationReport { outcome, vips, flows, took_ms, unconfirmed } = report;
    let took = duration_ms(*took_ms);
    let mut text = match outcome {
        EvacuationOutcome::Away if report.is_clean() => {
            format!("{} this host may be switched off, after {took}\n", output.paint(Weight::Good, "done:"))
        }
        EvacuationOutcome::Away => {
            format!(
                "{} this host may be switched off, after {took}\n",
                output.paint(Weight::Bad, "done, but not cleanly:")
            )
        }
        EvacuationOutcome::Failed(why) => {
            format!("{} this host may have the VIP, after {took}: {why}\n", output.paint(Weight::Bad, "failed:"))
        }
        EvacuationOutcome::Cancelled => format!("{} after {took}\n", output.paint(Weight::Notice, "cancelled")),
    };
    vips.iter().for_each(|vip| text += &format!("  {}\n", place(vip)));
    if !unconfirmed.is_empty() {
        let names: Vec<_> = unconfirmed.iter().map(ToString::to_string).collect();
        let warning =
            format!("  peers that have not confirmed that they know all offloaded flows: {}\n", names.join(", "));
        text += &output.paint(Weight::Bad, &warning);
    }
    text + &table(flows).render(output)
}

fn place(VipPlace { address, here, at }: &VipPlace) -> String {
    let at: Vec<_> = at.iter().map(ToString::to_string).collect();
    match (here, at.is_empty()) {
        (true, true) => format!("{address} is here"),
        (true, false) => format!("{address} is here and at {}", at.join(", ")),
        (false, true) => format!("{address} is at no instance that this instance hears"),
        (false, false) => format!("{address} is at {}", at.join(", ")),
    }
}

fn table(flows: &EvacuationFlows) -> Grid {
    let EvacuationFlows {
        proxied_before,
        offloaded_before,
        accepted,
        offloaded,
        moved,
        ended,
        reset,
        proxied_left,
        offloaded_left,
        to_own_backend,
    } = *flows;
    let mut grid = Grid::new(&[("FLOWS", Right), ("", Left)]).indented();
    for (number, what) in [
        (offloaded_before, "flows had been offloaded before"),
        (proxied_before, "flows were proxied"),
        (accepted, "connections have come since"),
        (offloaded, "flows were offloaded since"),
        (moved, "offloaded flows now belong to another instance, and go on"),
        (offloaded_left, "offloaded flows are still listed here, and go on"),
        (ended, "flows have ended since"),
        (reset, "flows were reset"),
        (proxied_left, "flows are still proxied here"),
        (to_own_backend, "flows to a backend on this host are left, and end with it"),
    ] {
        grid.row([count(number).into(), what.into()]);
    }
    grid
}

fn check(client: &mut Client, asked: EvacuationRequest, output: &Output) -> Result<ExitCode, CliError> {
    let check: EvacuationCheck = client.ask(&Command::CheckEvacuation(asked))?;
    let code = match check.obstacles.is_empty() && check.unmoved.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    };
    if output.json {
        output.document(&check)?;
        return Ok(code);
    }
    let EvacuationCheck { obstacles, unmoved, vips, offloaded, proxied, to_own_backend, stays } = check;
    let (weight, verdict) = match (obstacles.is_empty(), unmoved.is_empty()) {
        (true, true) => (Weight::Good, "Baton can empty this host:"),
        (true, false) => (Weight::Bad, "Baton cannot empty this host, because no program would move the VIP:"),
        (false, _) => (Weight::Bad, "Baton cannot empty this host:"),
    };
    output.line(output.paint(weight, verdict))?;
    obstacles.iter().chain(&unmoved).try_for_each(|obstacle| output.line(format!("  {obstacle}")))?;
    vips.iter().try_for_each(|vip| output.line(format!("  {}", place(vip))))?;
    output.line(format!("  {} are offloaded and go on", plural(offloaded, "flow")))?;
    output.line(format!(
        "  {} are proxied: Baton offloads them, waits for their end, or resets them at the deadline",
        plural(proxied, "flow")
    ))?;
    for (why, flows) in stays {
        let why = match why.is_empty() {
            true => "not tried yet".to_owned(),
            false => format!("stayed proxied at the last attempt: {why}"),
        };
        output.line(format!("    {}: {why}", count(flows)))?;
    }
    if to_own_backend > 0 {
        output.line(format!(
            "  {} to a backend on this host: Baton waits for their end, or resets them at the deadline",
            plural(to_own_backend, "flow")
        ))?;
    }
    Ok(code)
}

/// One changing line on a terminal, a line per step in a file or pipe.
fn show(progress: &EvacuationProgress, last: &mut Option<EvacuateStep>, output: &Output) -> Result<(), CliError> {
    if output.json {
        return output.json_line(progress);
    }
    let text = step(progress);
    if output.terminal {
        let EvacuationFlows { offloaded, ended, reset, .. } = progress.flows;
        let flows = format!("{} offloaded, {} ended, {} reset", count(offloaded), count(ended), count(reset));
        return output.text(&format!("\r\x1b[K{text} ({flows})"));
    }
    if *last != Some(progress.step) {
        *last = Some(progress.step);
        output.line(text)?;
    }
    Ok(())
}

fn step(progress: &EvacuationProgress) -> String {
    let EvacuationProgress { step, vips, flows, deadline_in_ms } = progress;
    let vips: Vec<_> = vips.iter().map(ToString::to_string).collect();
    let vips = if vips.is_empty() { "nothing".to_owned() } else { vips.join(", ") };
    let left = plural(flows.proxied_left, "flow");
    match step {
        EvacuateStep::Telling => "telling the peers of all flows".to_owned(),
        EvacuateStep::MovingVip => format!("giving {vips} to another instance"),
        EvacuateStep::Emptying => {
            let own = match flows.to_own_backend {
                0 => String::new(),
                own => format!("for {} to a backend on this host to end, ", plural(own, "flow")),
            };
            format!("waiting {own}for {left} to be offloaded or to end, for {} at most", duration_ms(*deadline_in_ms))
        }
        EvacuateStep::Resetting => format!("the deadline has passed: resetting {left}"),
        EvacuateStep::Confirming => "telling the peers of the last changes".to_owned(),
        // The result says how.
        EvacuateStep::Away | EvacuateStep::Here => "the evacuation is over".to_owned(),
    }
}

/// On Ctrl-C the operator must learn that the evacuation goes on.
fn say_on_interrupt(last: Arc<Mutex<Option<EvacuationProgress>>>, output: Output) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_err() {
            return;
        }
        let last = last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let state = last.map_or_else(|| "it has just begun".to_owned(), |progress| step(&progress));
        let new_line = if output.terminal { "\n" } else { "" };
        eprintln!(
            "{new_line}The evacuation goes on without this command: {state}.\n\
             `baton evacuate` shows it again; `baton evacuate --cancel` ends it, and this host may have the VIP."
        );
        std::process::exit(EXIT_INTERRUPTED);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;

    #[test]
    fn the_documents_show_what_an_evacuation_prints() {
        let vip = "10.0.0.100".parse().unwrap();
        let flows = EvacuationFlows {
            offloaded_before: 1092,
            proxied_before: 84,
            accepted: 9,
            offloaded: 72,
            moved: 1164,
            ended: 21,
            ..EvacuationFlows::default()
        };
        let steps = [EvacuateStep::Telling, EvacuateStep::MovingVip, EvacuateStep::Emptying, EvacuateStep::Confirming];
        let mut text = String::new();
        for it in steps {
            let flows = EvacuationFlows { proxied_left: 12, ..flows };
            text += &step(&EvacuationProgress { step: it, vips: vec![vip], flows, deadline_in_ms: 29_900 });
            text += "\n";
        }
        let report = EvacuationReport {
            outcome: EvacuationOutcome::Away,
            vips: vec![VipPlace { address: vip, here: false, at: vec![InstanceName("lb-b".into())] }],
            flows,
            took_ms: 7_600,
            unconfirmed: vec![],
        };
        text += &in_words(&report, &Output::new(false));
        assert_eq!(samples::shown("docs/evacuate.md", "baton evacuate"), text);
    }
}
