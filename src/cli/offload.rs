//! `baton offload`: shows the pinned objects in the kernel, with or without an instance, and removes them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::grid::{Align::*, Grid};
use super::output::{CliError, Output};
use crate::config;
use crate::model::humane::{count, plural};
use crate::model::weight::Weight;
use crate::offload::pins_lock::{PinsLock, PinsLockError};
use crate::offload::program::{self, Attachment, ProgramStatus};
use crate::offload::settings::DIRECTORY_DEFAULT;
use crate::proxy;

#[derive(Debug, Args)]
pub(super) struct OffloadArguments {
    /// Directory in which the program is pinned [default: the path in -c FILE, /sys/fs/bpf/baton].
    #[arg(long, global = true, value_name = "PATH")]
    pins: Option<PathBuf>,
    #[command(subcommand)]
    command: OffloadCommand,
}

#[derive(Debug, Subcommand)]
enum OffloadCommand {
    /// Shows the program, its interfaces, its flows and its counters of packets.
    #[command(after_help = "\
Example, also while no instance runs:
  baton offload status")]
    Status,
    /// Resets the offloaded flows on both sides, then removes the program and its maps from the kernel, and the program that
    /// shares ports. It leaves what a running instance uses.
    #[command(after_help = "\
Example, before Baton leaves a host for good:
  systemctl disable --now baton && baton offload remove --yes")]
    Remove {
        /// Confirms that the command resets these flows.
        #[arg(long)]
        yes: bool,
    },
}

pub(super) fn run(arguments: OffloadArguments, config: Option<&Path>, output: &Output) -> Result<ExitCode, CliError> {
    let pins = match (arguments.pins, config) {
        (Some(pins), _) => pins,
        (None, Some(path)) => pins_of(path)?,
        (None, None) => DIRECTORY_DEFAULT.into(),
    };
    match arguments.command {
        OffloadCommand::Status => status(&pins, output),
        OffloadCommand::Remove { yes } => remove(&pins, yes, output),
    }
}

/// The directory from the configuration file at `path`.
fn pins_of(path: &Path) -> Result<PathBuf, CliError> {
    let loaded = config::load(path).map_err(|rejected| CliError::Config {
        path: path.to_path_buf(),
        reason: rejected
            .errors
            .first()
            .map(|it| format!("line {}: {}; {}", it.line, it.message, it.help))
            .unwrap_or_default(),
    })?;
    Ok(loaded.config.offload.pins)
}

fn status(pins: &Path, output: &Output) -> Result<ExitCode, CliError> {
    let found = program::status(pins).map_err(|error| CliError::path(pins, error))?;
    if output.json {
        output.document(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(status) = found else {
        output.line(format!("no BPF program of Baton: nothing is pinned in {}", pins.display()))?;
        return Ok(ExitCode::SUCCESS);
    };
    output.line(format!("{}  {}", output.bold(&status.directory.display().to_string()), version(&status, output)))?;
    let flows = match status.entries {
        Some(entries) => format!("{} of at most {}", count(entries.div_ceil(2).into()), count(status.flows_max.into())),
        None => format!("at most {}", count(status.flows_max.into())),
    };
    output.line(format!("flows       {flows}"))?;
    for link in &status.links {
        let state = match link.attached {
            true if link.by == Some(Attachment::Clsact) => output.paint(Weight::Good, "attached by a filter of clsact"),
            true => output.paint(Weight::Good, "attached"),
            false => output
                .paint(Weight::Bad, "detached: packets of its flows get RST; a running instance attaches it again"),
        };
        output.line(format!("interface   {}  {state}", link.interface))?;
    }
    let mut grid = Grid::new(&[("PACKETS", Left), ("", Right)]);
    for (label, number) in status.counters.iter().flat_map(|counters| counters.labelled()) {
        grid.row([label.to_owned().into(), count(number).into()]);
    }
    output.text(&grid.render(output))?;
    Ok(ExitCode::SUCCESS)
}

fn version(status: &ProgramStatus, output: &Output) -> String {
    match (status.recoverable, status.current) {
        (true, true) => output.paint(Weight::Good, "of this version"),
        (true, false) => {
            output.paint(Weight::Notice, "of another version; an instance of this version recovers its flows")
        }
        (false, _) => {
            let text = format!("of another layout ({}); no instance of this version can recover it", status.layout);
            output.paint(Weight::Bad, &text)
        }
    }
}

fn remove(pins: &Path, yes: bool, output: &Output) -> Result<ExitCode, CliError> {
    let fail = |error| CliError::path(pins, error);
    let lock = unused(pins)?;
    if !yes {
        let status = program::status(pins).map_err(|source| CliError::Unread { path: pins.to_owned(), source })?;
        if let Some(entries) = status.and_then(|status| status.entries).filter(|entries| *entries > 0) {
            return Err(CliError::FlowsInPath(plural(entries.div_ceil(2).into(), "flow")));
        }
    }
    // It must be possible to remove a broken directory too, but with a message: the ends of its flows are not told
    // then.
    if let Err(error) = program::dismiss(pins) {
        eprintln!("baton: cannot reset the flows; each of them ends at its next packet: {error}");
    }
    let removal = program::remove(pins).map_err(fail)?;
    lock.map_or(Ok(()), |lock| lock.remove(pins)).map_err(|error| CliError::path(&PinsLock::path(pins), error))?;
    let ports = proxy::remove_shared_ports();
    if output.json {
        output.document(&removal)?;
        return Ok(ExitCode::SUCCESS);
    }
    match removal {
        None => output.line(format!("nothing is pinned in {}", pins.display()))?,
        Some(removal) => {
            let flows = removal.flows.map(|flows| format!(", {} in it", plural(flows.into(), "flow")));
            output.line(format!(
                "removed: {}, {}{}",
                removal.directory.display(),
                plural(removal.interfaces.len() as u64, "interface"),
                flows.unwrap_or_default()
            ))?;
        }
    }
    match ports {
        Ok(None) => {}
        Ok(Some(places)) => {
            let addresses = if places == 1 { "1 address".to_owned() } else { format!("{places} addresses") };
            output.line(format!(
                "removed: the program that shares ports, with {addresses}: a process that listens on all addresses gets their \
                 connections from now on"
            ))?;
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            output.line("not removed: the program that shares ports, because a running instance uses it")?;
        }
        Err(error) => eprintln!("baton: cannot remove the program that shares ports: {error}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps instances from `pins` until it is dropped. A process that was killed a moment ago still holds them.
fn unused(pins: &Path) -> Result<Option<PinsLock>, CliError> {
    for _ in 0..LOOKS {
        match PinsLock::take_if_there(pins) {
            Err(PinsLockError::InUse) => std::thread::sleep(LOOK_EVERY),
            Ok(lock) => return Ok(lock),
            Err(PinsLockError::Io(error)) => return Err(CliError::path(&PinsLock::path(pins), error)),
        }
    }
    Err(CliError::PinsInUse(pins.to_owned()))
}

const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKS: u32 = 20;
