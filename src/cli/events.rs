//! `baton events`: those that the instance still has, or with a time those in the recorder's files.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::output::{CliError, Output};
use super::recording::{self, RecordingFrom};
use super::socket;
use crate::admin::client::ClientError;
use crate::admin::protocol::{Command, EventFilter, Listed};
use crate::model::duration;
use crate::model::moment;
use crate::recorder::{FileOwner, Recorded};
use crate::table::journal::Event;

#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    /// Prints new events as they come.
    #[arg(long, short, conflicts_with_all = ["at", "from"])]
    pub follow: bool,
    /// Lists the end of each flow as well.
    #[arg(long)]
    pub flows: bool,
    /// Only events with this number or a higher one; or, from the recorder's files, since this time: 03:12, 2026-11-25T03:12Z, 10m (ago).
    #[arg(long, value_name = "NUMBER|TIME", default_value = "0", value_parser = since)]
    pub since: EventsSince,
    /// From the recorder's files, also if no instance runs: events from this time on, UTC unless the time has a zone (03:12+02:00).
    #[arg(long, value_name = "TIME", value_parser = recording::time, conflicts_with = "since")]
    pub at: Option<u64>,
    /// How much of the time after --at or --since, such as 5m [default for --at: 5m, for --since: up to now].
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub for_: Option<Duration>,
    #[command(flatten)]
    pub from: RecordingFrom,
}

/// The beginning of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventsSince {
    Number(u64),
    /// Milliseconds since 1970.
    Time(u64),
}

/// An event of the recorder's files, as `--json` prints it, with the process that numbered it.
#[derive(Serialize)]
struct RecordedEvent<'r> {
    #[serde(flatten)]
    event: &'r Event,
    process: RecordedProcess<'r>,
}

#[derive(Serialize)]
struct RecordedProcess<'r> {
    pid: u32,
    host: &'r str,
    instance: Option<&'r str>,
}

/// How much is listed after `--at`.
const AT_FOR: Duration = Duration::from_secs(300);

pub(super) fn run(
    arguments: &EventsArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let from_ms = match (arguments.at, arguments.since) {
        (Some(at), _) => Some(at),
        (None, EventsSince::Time(at)) => Some(at),
        (None, EventsSince::Number(0)) => arguments.from.is_named().then_some(0),
        (None, EventsSince::Number(_)) if arguments.from.is_named() => {
            return Err(CliError::Usage(
                "--since takes a time with --from: each process numbers its events anew".to_owned(),
            ));
        }
        (None, EventsSince::Number(_)) => None,
    };
    match from_ms {
        None if arguments.for_.is_some() => Err(CliError::Usage("--for needs --at TIME or --since TIME".to_owned())),
        Some(_) if arguments.follow => Err(CliError::Usage("--follow takes --since NUMBER, not a time".to_owned())),
        Some(from_ms) => {
            let length = arguments.for_.or(arguments.at.map(|_| AT_FOR));
            let until_ms = length.map_or(u64::MAX, |it| from_ms.saturating_add(it.as_millis() as u64));
            list_recorded(arguments, from_ms, until_ms, named, config, output)
        }
        None => {
            let socket = named.map_or_else(|| socket::find(config), Ok)?;
            list(arguments, &socket, output)
        }
    }
}

fn list(arguments: &EventsArguments, socket: &Path, output: &Output) -> Result<ExitCode, CliError> {
    let EventsSince::Number(since) = arguments.since else { unreachable!("a time is looked up in the files") };
    let EventsArguments { flows, follow, .. } = *arguments;
    let filter = EventFilter { since, flows, follow };
    let mut written = Ok(());
    let take = |event: Event| {
        written = write(&event, &format!("{:>6}", event.number), output);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match follow {
        true => follow_events(socket, filter, take)?,
        false => {
            socket::connect(socket)?.list::<Event, Listed>(&Command::Events(filter), take)?;
        }
    }
    written.map(|()| ExitCode::SUCCESS)
}

/// Gives `take` each event, also those of the process that replaces this one in an upgrade, until it breaks.
fn follow_events(
    socket: &Path,
    mut filter: EventFilter,
    mut take: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<(), ClientError> {
    let (mut client, mut process) = socket::connect_and_ask(socket)?;
    loop {
        let asked = Command::Events(filter.clone());
        let note = |event: Event| {
            filter.since = event.number + 1;
            take(event)
        };
        let listed = client.without_limit().and_then(|mut it| it.list::<Event, Listed>(&asked, note));
        let lost = match listed {
            Ok(_) => return Ok(()),
            Err(lost) => lost,
        };
        let (again, now) = socket::connect_again(socket, lost)?;
        if (now.pid, now.started_at_ns) != (process.pid, process.started_at_ns) {
            // Each process numbers its events anew.
            filter.since = 0;
        }
        (client, process) = (again, now);
    }
}

fn list_recorded(
    arguments: &EventsArguments,
    from_ms: u64,
    until_ms: u64,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let source = recording::find(&arguments.from, named, config)?;
    let found = source.read(from_ms..=until_ms)?;
    let mut listed = 0;
    let mut process = None;
    for record in &found.records {
        let Recorded::Event(event) = &record.what else { continue };
        if event.what.is_end() && !arguments.flows {
            continue;
        }
        listed += 1;
        let owner = &found.owners[record.owner];
        let is_another = process.replace(owner).is_none_or(|before: &FileOwner| !before.is_same_process(owner));
        if !output.json && is_another && found.owners.len() > 1 {
            output.line(output.faint(&recording::owner_in_words(owner)))?;
        }
        match output.json {
            true => {
                let FileOwner { pid, host, instance, .. } = owner;
                let process = RecordedProcess { pid: *pid, host, instance: instance.as_deref() };
                output.json_line(&RecordedEvent { event, process })?;
            }
            false => write(event, &format!("{:>6}", event.number), output)?,
        }
    }
    // Standard output has the events alone.
    if listed == 0 {
        eprintln!(
            "baton: no event was recorded {}; {}",
            recording::times_in_words(from_ms, until_ms),
            source.covers_in_words(&found)
        );
    }
    recording::say_faults(&found);
    Ok(ExitCode::SUCCESS)
}

fn write(event: &Event, number: &str, output: &Output) -> Result<(), CliError> {
    if output.json {
        return output.json_line(event);
    }
    let at = recording::shown(event.at_unix_ms);
    let what = output.paint(event.what.weight(), &event.what.sentence());
    let line = format!("{}  {what}", output.faint(&format!("{number}  {at}")));
    output.wrapped(&(line + "\n"))
}

fn since(text: &str) -> Result<EventsSince, moment::MomentFault> {
    match text.parse() {
        Ok(number) => Ok(EventsSince::Number(number)),
        Err(_) => recording::time(text).map(EventsSince::Time),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::table::journal::What;

    /// A process at the socket: it tells its pid and when it began, is asked for events from `since` on, has those with `numbers`, and ends.
    fn serve_once(listener: &UnixListener, (pid, began): (u32, u32), since: u64, numbers: &[u64]) {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(&stream);
        let mut answer = |asked: &str, lines: String| {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert!(line.contains(asked), "{line}");
            (&stream).write_all(lines.as_bytes()).unwrap();
        };
        answer(
            "version",
            format!("{{\"ok\":{{\"version\":\"1\",\"protocol\":1,\"pid\":{pid},\"started_at_ns\":{began}}}}}\n"),
        );
        let event = |number: &u64| {
            let event = Event { number: *number, at_unix_ms: 1, what: What::Started { version: began.to_string() } };
            format!("{{\"item\":{}}}\n", serde_json::to_string(&event).unwrap())
        };
        answer(&format!("\"since\":{since},"), numbers.iter().map(event).collect());
    }

    /// Regression: `--follow` ended with exit code 1 at each upgrade of the instance.
    #[test]
    fn an_upgrade_does_not_end_the_following_and_each_event_comes_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let processes = std::thread::spawn(move || {
            serve_once(&listener, (7, 7), 5, &[5, 6]);
            // The connection broke, and the process goes on.
            serve_once(&listener, (7, 7), 7, &[7]);
            // Containers number their processes anew.
            serve_once(&listener, (7, 8), 0, &[1, 8]);
            serve_once(&listener, (9, 9), 0, &[1, 9]);
        });
        let mut seen = Vec::new();
        let filter = EventFilter { since: 5, flows: false, follow: true };
        let followed = follow_events(&path, filter, |event| {
            seen.push((event.number, event.what.sentence()));
            if event.number == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        followed.unwrap();
        processes.join().unwrap();
        let expected = [(5, 7), (6, 7), (7, 7), (1, 8), (8, 8), (1, 9), (9, 9)];
        let sentence = |pid: u32| What::Started { version: pid.to_string() }.sentence();
        assert_eq!(seen, expected.map(|(number, pid)| (number, sentence(pid))));
    }

    #[test]
    fn a_number_is_a_number_and_all_else_a_time() {
        assert_eq!(since("120"), Ok(EventsSince::Number(120)));
        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(EventsSince::Time(1000)));
        assert!(matches!(since("03:12+02:00"), Ok(EventsSince::Time(_))));
        assert!(since("-1").unwrap_err().to_string().contains("allowed"));
    }
}
