//! `baton events`.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;

use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::{Command, EventFilter, Listed};
use crate::model::humane::date_and_time;
use crate::table::journal::Event;

#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    /// Prints new events as they come.
    #[arg(long, short)]
    pub follow: bool,
    /// Lists the end of each flow as well.
    #[arg(long)]
    pub flows: bool,
    /// Only events with this number or a higher one.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub since: u64,
}

pub(super) fn list(client: Client, arguments: &EventsArguments, output: &Output) -> Result<ExitCode, CliError> {
    let mut client = if arguments.follow { client.without_limit()? } else { client };
    let EventsArguments { since, flows, follow } = *arguments;
    let mut written = Ok(());
    client.list::<Event, Listed>(&Command::Events(EventFilter { since, flows, follow }), |event| {
        written = if output.json { output.json_line(&event) } else { output.line(in_words(&event, output)) };
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written.map(|()| ExitCode::SUCCESS)
}

fn in_words(event: &Event, output: &Output) -> String {
    let (date, time) = date_and_time(event.at_unix_ms);
    let what = output.paint(event.what.weight(), &event.what.sentence());
    format!("{}  {what}", output.faint(&format!("{:>6}  {date} {time}Z", event.number)))
}
