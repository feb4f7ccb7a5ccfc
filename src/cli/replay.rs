//! `baton replay`: an instance as it was, from the recorder's files, with the time under keys.
//!
//! ```text
//!   the recorder's files, a bundle ──▶ Past ─┬─▶ player (the moment; keys move it) ──▶ view
//!                                            └─▶ page (one moment, as a file)
//! ```

mod page;
mod player;
mod view;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::output::{CliError, Output};
use super::panes;
use super::recording::{self, RecordingFrom};
use super::terminal::{self, Terminal, TerminalInput};
use crate::model::duration;
use crate::model::humane::date_and_time;
use crate::recorder::past::{Past, ReplayMoment};
use crate::table::journal::Event;
use player::Player;

#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// The first moment, UTC unless the time has a zone: 03:12, 2026-11-25T03:12Z, 10m (ago) [default: --for before the last record; with
    /// --once, --page or --json the last record].
    #[arg(long, value_name = "TIME", value_parser = recording::time)]
    at: Option<u64>,
    /// How much of the time after it, such as 30m.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse, default_value = "10m")]
    for_: Duration,
    /// Prints the moment as text, with the chart of all of --for, and ends.
    #[arg(long)]
    once: bool,
    /// Writes the status page as it was at the first moment to FILE, which must not exist (- for the standard output), with the ten
    /// minutes before.
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    page: Option<PathBuf>,
    #[command(flatten)]
    from: RecordingFrom,
}

/// A moment for programs, with what had just happened.
#[derive(Serialize)]
struct MomentDocument<'a> {
    #[serde(flatten)]
    moment: ReplayMoment,
    /// Of the minute before, oldest first; ends of flows left out.
    events: Vec<&'a Event>,
}

pub(super) fn run(
    arguments: &ReplayArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let is_for_people = !arguments.once && arguments.page.is_none() && !output.json;
    if is_for_people {
        terminal::check("replay")?;
    }
    let source = recording::find(&arguments.from, named, config)?;
    source.say_fault();
    let length_ms = (arguments.for_.as_millis() as u64).max(1000);
    let (from_ms, at_ms) = match arguments.at {
        Some(at_ms) => (at_ms, at_ms),
        None => {
            let end_ms = source.read_past(0, 0)?.covers.map_or(0, |covers| *covers.end());
            let has_chart = is_for_people || arguments.once;
            let from_ms = if has_chart { end_ms.saturating_sub(length_ms) } else { end_ms };
            (from_ms, if is_for_people { from_ms } else { end_ms })
        }
    };
    let until_ms = from_ms.saturating_add(length_ms);
    let before_ms = if arguments.page.is_some() { page::BACK_MS } else { EVENTS_BEFORE_MS };
    let recording = source.read_past(from_ms.saturating_sub(before_ms), until_ms)?;
    recording::say_faults(&recording);
    // A page has the time before, and nothing after it.
    let (first_ms, last_ms) = match arguments.page {
        Some(_) => (from_ms.saturating_sub(before_ms), from_ms),
        None => (from_ms, until_ms),
    };
    let covers = recording.covers.clone().filter(|it| *it.start() <= last_ms && *it.end() >= first_ms);
    let Some(covers) = covers else {
        let subject = format!("nothing {}", recording::times_in_words(first_ms, last_ms));
        return Err(CliError::NotExplained { subject, covers: source.covers_in_words(&recording) });
    };
    let past = Past::new(recording);
    if let Some(path) = &arguments.page {
        return write_page(path, &page::render(&past, from_ms, source.place()?), from_ms, output);
    }
    if output.json {
        let events = past.events(at_ms.saturating_sub(EVENTS_BEFORE_MS), at_ms).collect();
        output.document(&MomentDocument { moment: past.at(at_ms), events })?;
        return Ok(ExitCode::SUCCESS);
    }
    // What has not come yet is not on the scale.
    let until_ms = until_ms.min((*covers.end()).max(from_ms + 1000));
    let mut player = Player::new(past, from_ms, until_ms);
    player.at_ms = at_ms;
    if arguments.once {
        let (width, height) = terminal::size(output);
        output.text(&panes::text(width, height, |frame| view::draw_body(frame, frame.area(), &mut player)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Terminal)?;
    runtime.block_on(show(player)).map_err(CliError::Terminal)?;
    Ok(ExitCode::SUCCESS)
}

fn write_page(path: &Path, page: &str, at_ms: u64, output: &Output) -> Result<ExitCode, CliError> {
    if path == Path::new("-") {
        output.text(page)?;
        return Ok(ExitCode::SUCCESS);
    }
    // It has the addresses of clients.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(page.as_bytes())).map_err(|error| CliError::path(path, error))?;
    let (date, time) = date_and_time(at_ms);
    output.line(format!("{} has the page as it was at {date} {time}Z", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

async fn show(mut player: Player) -> io::Result<()> {
    // Hooked before the screen is taken, so that each of them gives it back.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut terminal = Terminal::take()?;
    let mut inputs = terminal::read_inputs();
    let mut last = Instant::now();
    loop {
        let now = Instant::now();
        player.advance(now - last);
        last = now;
        terminal.draw(|frame| view::draw(frame, &mut player))?;
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            input = inputs.recv() => match input {
                // The terminal is gone, so no more keys can come.
                None => return Ok(()),
                Some(TerminalInput::Resized) => {}
                Some(TerminalInput::Key(key)) => {
                    if player.press(key) {
                        return Ok(());
                    }
                }
            },
            () = tokio::time::sleep(FRAME), if player.is_playing() => {}
        }
    }
}

/// Between two frames while the time runs.
const FRAME: Duration = Duration::from_millis(200);
/// What had just happened at the first moment is listed, too.
const EVENTS_BEFORE_MS: u64 = 60_000;
