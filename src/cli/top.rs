//! `baton top`: an instance on a terminal, live, with orders by keys.
//!
//! ```text
//!   feed (a thread: asks once a second, connects again) ──┐
//!   orders (a thread each: ask for the reach, or order)  ─┼─▶ board (state; keys become wishes) ──▶ screen
//!   keys, signals ────────────────────────────────────────┘
//! ```

mod board;
mod feed;
mod fleet_pane;
mod keys;
mod node_rows;
mod orders;
mod rows;
mod screen;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::network;
use super::output::{CliError, Output};
use super::panes;
use super::terminal::{self, Terminal, TerminalInput};
use crate::admin::protocol::{BackendName, FlowFilter};
use crate::sys::clock::now_ns;
use board::Board;
use feed::{Feed, FeedReport};
use keys::BoardWish;

#[derive(Debug, clap::Args)]
pub(super) struct TopArguments {
    /// Only flows of one backend: NAME or FRONTEND/NAME.
    #[arg(long, value_name = "BACKEND", add = super::shell::backend_names())]
    backend: Option<String>,
    /// Only flows of one frontend.
    #[arg(long, value_name = "NAME")]
    frontend: Option<String>,
    /// Only flows of clients in one network, or of one address.
    #[arg(long, value_name = "CIDR", value_parser = network::parse)]
    client: Option<IpNet>,
    /// Prints one frame as text, a second after it has begun to look, and ends.
    #[arg(long)]
    once: bool,
}

/// Shows the instance at `socket` until `q`, Ctrl-C or a signal that asks it to end.
pub(super) fn top(socket: &Path, arguments: TopArguments, output: &Output) -> Result<ExitCode, CliError> {
    if output.json {
        let why = "--json is for programs, which `baton status --json` and `baton flows --json` serve";
        return Err(CliError::NoTerminal { command: "top", why });
    }
    if !arguments.once {
        terminal::check("top")?;
    }
    let filter = FlowFilter {
        frontend: arguments.frontend,
        backend: arguments.backend.map(BackendName),
        client: arguments.client,
        limit: Some(FLOWS_MAX),
        ..FlowFilter::default()
    };
    // What cannot be reached or is refused now is told as any command tells it, before the screen is taken.
    let (sender, reports) = unbounded_channel();
    let (feed, first) = Feed::start(socket, filter, sender)?;
    let board = Board::new(first);
    if arguments.once {
        output.text(&once(board, reports, output)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Terminal)?;
    runtime.block_on(show(board, feed, reports)).map_err(CliError::Terminal)?;
    Ok(ExitCode::SUCCESS)
}

/// The frame of the second look: the first one knows no rates.
fn once(mut board: Board, mut reports: UnboundedReceiver<FeedReport>, output: &Output) -> Result<String, CliError> {
    match reports.blocking_recv() {
        Some(report) => board.take(report),
        None => return Err(CliError::Terminal(feed_ended())),
    }
    let (width, height) = terminal::size(output);
    Ok(panes::text(width, height, |frame| screen::draw_all(frame, &mut board, now_ns())))
}

fn feed_ended() -> io::Error {
    io::Error::other("the thread that looks at the instance has ended")
}

async fn show(mut board: Board, feed: Feed, mut reports: UnboundedReceiver<FeedReport>) -> io::Result<()> {
    // Hooked before the screen is taken: none of them may leave a terminal behind that shows nothing that is typed.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut terminal = Terminal::take()?;
    let mut inputs = terminal::read_inputs();
    loop {
        terminal.draw(|frame| screen::draw(frame, &mut board, now_ns()))?;
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            report = reports.recv() => match report {
                Some(report) => board.take(report),
                None => return Err(feed_ended()),
            },
            input = inputs.recv() => match input {
                // The terminal is gone, so no more keys can come.
                None => return Ok(()),
                Some(TerminalInput::Resized) => {}
                Some(TerminalInput::Key(key)) => match board.press(key) {
                    Some(BoardWish::Quit) => return Ok(()),
                    Some(BoardWish::Ask(order)) => feed.ask(order),
                    Some(BoardWish::Give(order)) => feed.give(order),
                    Some(BoardWish::LookAtNodes(looks)) => feed.look_at_nodes(looks),
                    None => {}
                },
            },
            // The age of what is shown.
            () = tokio::time::sleep(feed::LOOK_EVERY) => {}
        }
    }
}

/// Flows beyond this number are only counted: two megabytes a second are enough.
const FLOWS_MAX: u64 = 20_000;
