//! The demo without a terminal: lines of text.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use tokio::time::interval;

use super::chronicle::ViewLine;
use super::fleet;
use super::screen::seconds;
use super::stage::{DemoStage, StageError};
use super::view::{View, ViewWatcher};

/// Prints events until Baton ends, which is an error: the caller decides how long to poll this.
pub(super) async fn run(stage: &mut DemoStage) -> Result<Infallible, StageError> {
    let mut watcher = ViewWatcher::default();
    print_head(&watcher.view(stage));
    fleet::offer().iter().for_each(|offer| print(offer));
    let mut ticks = interval(PERIOD);
    let mut until_summary = 0;
    loop {
        ticks.tick().await;
        watcher.gather(stage);
        print_lines(&watcher.due());
        if let Some(ended) = stage.baton_ended() {
            return Err(ended);
        }
        if until_summary == 0 {
            until_summary = TICKS_PER_SUMMARY;
            print(&summary(&watcher.view(stage)));
        }
        until_summary -= 1;
    }
}

/// Prints the addresses and the command for another terminal.
pub(super) fn print_head(view: &View) {
    print(&format!("clients connect to {}; apiserver stand-ins behind it:", view.frontend));
    print(&format!("  {}", view.backends.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ")));
    print(&format!("status page: {}", view.page));
    print(&format!("or run: {}", view.command));
}

pub(super) fn print_lines(lines: &[ViewLine]) {
    for line in lines {
        print(&format!("{:>8}  {:<8} {}", seconds(line.at), line.who, line.text));
    }
}

/// The state in one line.
fn summary(view: &View) -> String {
    let mut text = format!("{:>8}  {:<8}", seconds(view.elapsed), "state");
    for row in &view.backends {
        let health_state = row.health_state.map_or("?", |health_state| health_state.label());
        let _ = write!(text, " {} {health_state}, {} flows;", row.name, row.flows);
    }
    let _ = write!(text, " longest gap {}", seconds(view.longest_gap()));
    text
}

/// If the reader is gone, the demo and its exit code go on.
pub(super) fn print(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

const PERIOD: Duration = Duration::from_millis(100);
const TICKS_PER_SUMMARY: u32 = 50;
