//! `baton diff`: what a reload of a file would change, and the flows that it would end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::grid::{Align::*, Grid};
use super::output::{CliError, Output};
use super::socket;
use crate::admin::diff::{AffectedFlows, FlowEffect, ReloadDiff};
use crate::admin::protocol::Command;
use crate::model::humane::{count, duration_ms, printable};
use crate::model::weight::Weight;

/// There are differences, as diff(1) and `kubectl diff` have it.
const EXIT_DIFFERENT: u8 = 1;
const EXIT_TROUBLE: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct DiffArguments {
    /// The file to compare with the running configuration. The instance reads it, and relative paths in it begin at its directory.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(
    arguments: DiffArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> ExitCode {
    match diff(&arguments.file, named, config, output) {
        Ok(code) => code,
        Err(error) => {
            // It prints the error; the code is diff(1)'s.
            let _ = output.fail(&error);
            EXIT_TROUBLE.into()
        }
    }
}

fn diff(file: &Path, named: Option<PathBuf>, config: Option<&Path>, output: &Output) -> Result<ExitCode, CliError> {
    let socket = named.map_or_else(|| socket::find(config), Ok)?;
    let path = std::path::absolute(file).map_err(|source| CliError::path(file, source))?;
    let diff: ReloadDiff = socket::connect(&socket)?.ask(&Command::Diff { path })?;
    if output.json {
        output.document(&diff)?;
    } else {
        output.wrapped(&in_words(&diff, output))?;
    }
    let is_same = diff.changes.is_empty() && diff.refused.is_empty();
    Ok(if is_same { ExitCode::SUCCESS } else { EXIT_DIFFERENT.into() })
}

fn in_words(diff: &ReloadDiff, output: &Output) -> String {
    let ReloadDiff { path, changes, refused, affected } = diff;
    if changes.is_empty() && refused.is_empty() {
        let path = path.display().to_string();
        return format!("no difference: {} has the running configuration\n", printable(&path));
    }
    let mut text: String = changes.iter().map(|change| format!("{}\n", printable(&change.words))).collect();
    if !refused.is_empty() {
        text += &format!("\n{} a reload would be refused as a whole:\n", output.paint(Weight::Bad, "refused:"));
        refused.iter().for_each(|line| text += &format!("  {}\n", printable(line)));
        return text + "\nso nothing changes, and no flow would be reset\n";
    }
    if affected.is_empty() {
        return text + "\nno flow would be reset\n";
    }
    let mut grid = Grid::new(&[("FLOWS", Right), ("BACKEND", Left), ("EFFECT OF A RELOAD", Left), ("WHY", Left)]);
    for it in affected {
        let backend = format!("{}/{}", it.frontend, it.backend);
        grid.row([count(it.flows).into(), backend.into(), effect(it).into(), it.why.clone().into()]);
    }
    text + "\n" + &grid.render(output)
}

fn effect(AffectedFlows { effect, within_ms, reason, .. }: &AffectedFlows) -> String {
    match (effect, within_ms) {
        (FlowEffect::Drain, _) => format!("go on; reset after {} ({reason})", duration_ms(*within_ms)),
        (FlowEffect::Reset, 0) => format!("reset at once ({reason})"),
        (FlowEffect::Reset, _) => format!("reset within {} ({reason})", duration_ms(*within_ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::diff::ConfigChange;
    use crate::cli::samples;

    #[test]
    fn the_page_shows_what_is_printed() {
        let change = |words: &str| ConfigChange { words: words.to_owned(), ..ConfigChange::default() };
        let affected = AffectedFlows {
            frontend: "apiserver".to_owned(),
            backend: "cp3".to_owned(),
            flows: 1200,
            effect: FlowEffect::Drain,
            within_ms: 150_000,
            reason: "drain_deadline".to_owned(),
            why: "the file has no such backend".to_owned(),
        };
        let changes =
            ["frontend apiserver: drain_timeout 150s becomes 1m", "backend apiserver/cp3 removed: its flows drain"];
        let diff =
            ReloadDiff { changes: changes.map(change).to_vec(), affected: vec![affected], ..ReloadDiff::default() };
        assert_eq!(in_words(&diff, &Output::new(false)), samples::shown("docs/haproxy.md", "baton diff new.toml"));
        let refused = ReloadDiff { refused: vec!["instance.slot".to_owned()], ..diff };
        let said = in_words(&refused, &Output::new(false));
        assert!(
            said.contains("refused as a whole:\n  instance.slot\n\nso nothing changes") && !said.contains("EFFECT"),
            "{said}"
        );
    }
}
