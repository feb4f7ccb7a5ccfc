//! `baton upgrade`: replaces the running process and shows how its flows move.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::follow::follow;
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::Command;
use crate::admin::upgrade::{NotMoved, UpgradeCheck, UpgradeProgress, UpgradeRequest, Upgraded};
use crate::model::humane::{bytes, count, duration_us, plural};
use crate::model::weight::Weight;
use crate::offload::program::LAYOUT;
use crate::sys::process;
use crate::upgrade::message::{Hello, ProgramReader};

#[derive(Debug, Args)]
pub(super) struct UpgradeArguments {
    /// The binary to upgrade to [default: the file now at the path from which the running process was started].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Only reports whether the upgrade can succeed.
    #[arg(long)]
    check: bool,
}

pub(super) fn upgrade(
    client: &mut Client,
    arguments: UpgradeArguments,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(CliError::Output);
    let asked = UpgradeRequest {
        binary: arguments.binary.as_deref().map(absolute).transpose()?,
        config: config.map(absolute).transpose()?,
    };
    match arguments.check {
        true => check(client, asked, output),
        false => begin(client, asked, output),
    }
}

/// The answer of this binary to `baton upgrade --check` of another release.
pub(super) fn upgrade_version() -> ExitCode {
    process::keep_memory_private();
    let hello = Hello::here().reading(ProgramReader { layout: LAYOUT, pins: None });
    println!("{}", serde_json::to_string(&hello).expect("it is plain data"));
    ExitCode::SUCCESS
}

fn begin(client: &mut Client, asked: UpgradeRequest, output: &Output) -> Result<ExitCode, CliError> {
    let mut last_step = String::new();
    let show = |progress: UpgradeProgress| show(&progress, &mut last_step, output);
    let upgraded: Upgraded = follow(client, &Command::Upgrade(asked), output, show)?;
    if output.json {
        output.document(&upgraded)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Upgraded {
        old_pid,
        new_pid,
        old_version,
        new_version,
        moved,
        held_bytes,
        longest_pause_us,
        took_us,
        not_moved,
    } = upgraded;
    output.line(format!(
        "{} process {new_pid} (Baton {new_version}) has replaced process {old_pid} (Baton {old_version})",
        output.paint(Weight::Good, "done:")
    ))?;
    output.line(format!("  {} moved in {}", plural(moved, "flow"), duration_us(took_us)))?;
    output.line(format!("  {} were undelivered; the new process delivers them", bytes(held_bytes as f64)))?;
    output.line(format!("  {} was the longest pause of a flow", duration_us(longest_pause_us)))?;
    if !not_moved.is_empty() {
        let lost = plural(not_moved.len() as u64, "flow");
        output.line(output.paint(Weight::Bad, &format!("  {lost} could not be moved and were reset:")))?;
        for NotMoved { flow, why } in not_moved {
            output.line(format!("    flow {flow}: {why}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(client: &mut Client, asked: UpgradeRequest, output: &Output) -> Result<ExitCode, CliError> {
    let check: UpgradeCheck = client.ask(&Command::CheckUpgrade(asked))?;
    let code = if check.obstacles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if output.json {
        output.document(&check)?;
        return Ok(code);
    }
    let version = check.version.map_or(String::new(), |version| format!(" (Baton {version})"));
    let (binary, config) = (check.binary.display(), check.config.display());
    match check.obstacles.as_slice() {
        [] => output.line(format!("{binary}{version} can replace the running process, with {config}"))?,
        obstacles => {
            let verdict = format!("{binary}{version} cannot replace the running process, with {config}:");
            output.line(output.paint(Weight::Bad, &verdict))?;
            obstacles.iter().try_for_each(|obstacle| output.line(format!("  {obstacle}")))?;
        }
    }
    Ok(code)
}

/// A bar on a terminal, a line per step in a file or pipe.
fn show(progress: &UpgradeProgress, last_step: &mut String, output: &Output) -> Result<(), CliError> {
    if output.json {
        return output.json_line(progress);
    }
    let UpgradeProgress { step, flows, moved, held_bytes, longest_pause_us } = progress;
    if output.terminal {
        let filled = if *flows == 0 { 0 } else { (*moved as usize * BAR / *flows as usize).min(BAR) };
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        let numbers = format!("{} of {}", count(*moved), plural(*flows, "flow"));
        let pause = duration_us(*longest_pause_us);
        return output
            .text(&format!("\r\x1b[K{bar} {numbers}, {}, longest pause {pause}: {step}", bytes(*held_bytes as f64)));
    }
    if last_step != step {
        last_step.clone_from(step);
        output.line(format!("{step} ({} of {} moved)", count(*moved), plural(*flows, "flow")))?;
    }
    Ok(())
}

const BAR: usize = 24;
