//! `baton gameday`: faults on a schedule, against a real fleet, with kubelets of its own as judges.
//!
//! ```text
//!   gather ──▶ step ──▶ watch ──▶ undo ──▶ settle ──▶ next step … ──▶ report
//!                │        │                   │
//!                └────────┴───── guard ───────┴──▶ stop: undo the step, report, exit code 1
//! ```
//! The guard is the longest silence of the command's kubelets and of the nodes that `baton nodes` of each instance lists. Nothing
//! interrupts an undo.
//!
//! ```text
//! plan   the file          order   runs its commands      guard   looks at the cluster's nodes
//! day    plays the plan    report  the result as a page   plot    its picture
//! ends   asks why connections ended
//! ```

mod day;
mod ends;
mod guard;
mod order;
mod plan;
mod plot;
mod report;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::drill::{DrillArgs, DrillError};
use crate::model::humane::date_and_time;
use crate::sys::clock::unix_ms;
use plan::{GamedayPlan, PlanError};
use report::GamedayReport;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GamedayArgs {
    /// The steps: docs/gameday.md explains the file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only says what it would do.
    #[arg(long)]
    pub plan: bool,
    /// Writes the report into this Markdown file, and its picture beside it; neither may exist [default: gameday-DATE-TIME.md].
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub drill: DrillArgs,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GamedayError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Drill(#[from] DrillError),
    #[error("--for does not count here: the plan says how long each step takes")]
    For,
    #[error("writing {}: {source}", path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("starting: {0}")]
    Start(#[from] io::Error),
    #[error("the game day has not begun: {0}")]
    NotBegun(String),
}

/// Plays the plan to its end. Exit code 1: it was stopped, or a node would have gone NotReady; 2: it has not begun.
pub(crate) fn run(args: &GamedayArgs, json: bool) -> ExitCode {
    match play(args, json) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("baton gameday: {error}");
            ExitCode::from(EXIT_NOT_BEGUN)
        }
    }
}

const EXIT_NOT_BEGUN: u8 = 2;

/// Returns whether it passed.
fn play(args: &GamedayArgs, json: bool) -> Result<bool, GamedayError> {
    if args.drill.run_for.is_some() {
        return Err(GamedayError::For);
    }
    args.drill.check_server()?;
    let plan = GamedayPlan::read(&args.file, args.drill.every, args.drill.grace)?;
    if args.plan {
        let (kubelets, server) = (args.drill.kubelets, args.drill.server.as_deref());
        match json {
            true => println!("{}", serde_json::to_string(&plan.planned(kubelets, server)).unwrap_or_default()),
            false => print!("{}", plan.in_words(kubelets, server.unwrap_or("the server of the kubeconfig"))),
        }
        return Ok(true);
    }
    let page = args.report.clone().unwrap_or_else(unnamed);
    let picture = page.with_extension("svg");
    // A report that cannot be written is told before the first fault.
    for path in [&page, &picture] {
        std::fs::File::create_new(path).map_err(|source| GamedayError::Report { path: path.clone(), source })?;
    }
    let played = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(GamedayError::from)
        .and_then(|runtime| runtime.block_on(day::play(args, &plan, json)));
    let report = match played {
        Ok(report) => report,
        Err(error) => {
            for path in [&page, &picture] {
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
    };
    let name = picture.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    write(&page, &report.page(&args.file, &name))?;
    write(&picture, &plot::draw(&report))?;
    tell(&report, &page, json);
    Ok(report.passed())
}

fn tell(report: &GamedayReport, page: &Path, json: bool) {
    match json {
        true => println!("{}", serde_json::to_string(report).unwrap_or_default()),
        false => println!("\n{}\nreport: {}", report.verdict(), page.display()),
    }
}

/// In the working directory, with the time in its name.
fn unnamed() -> PathBuf {
    let (date, time) = date_and_time(unix_ms());
    PathBuf::from(format!("gameday-{date}-{}.md", time.replace(':', "-")))
}

fn write(path: &Path, text: &str) -> Result<(), GamedayError> {
    std::fs::write(path, text).map_err(|source| GamedayError::Report { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        gameday: GamedayArgs,
    }

    /// Regression: the plan for a server without a port passed, which no game day could be played against.
    #[test]
    fn a_server_without_a_port_is_refused_before_the_plan_is_read() {
        let refused = |server: &str| {
            let line = Line::parse_from(["gameday", "/nonexistent/plan.toml", server, "--plan"]);
            play(&line.gameday, false).unwrap_err().to_string()
        };
        for wrong in ["10.0.0.100", "10.0.0.100:https", "10.0.0.100:"] {
            assert!(refused(wrong).starts_with(&format!("{wrong} is not HOST:PORT")), "{}", refused(wrong));
        }
        for fits in ["10.0.0.100:6443", "[fd00::1]:6443", "k8s.example.com:6443"] {
            assert!(refused(fits).starts_with("reading /nonexistent/plan.toml"), "{}", refused(fits));
        }
    }
}
