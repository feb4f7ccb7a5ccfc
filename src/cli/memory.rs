//! What the running instance still knows of what its recorder has not written: its last thousand events, and as many ends of flows.

use std::ops::ControlFlow;
use std::path::Path;

use super::socket;
use crate::admin::protocol::{Command, EventFilter, Listed};
use crate::config::FileOwner;
use crate::model::humane::date_and_time;
use crate::table::journal::Event;

/// The memory of an instance at one moment.
#[derive(Clone, Debug)]
pub(super) struct InstanceMemory {
    pub owner: FileOwner,
    /// In the order of their numbers.
    pub events: Vec<Event>,
}

impl InstanceMemory {
    /// `None`: it does not answer, or is of an earlier release.
    pub(super) fn ask(socket: &Path) -> Option<Self> {
        let mut client = socket::connect_briefly(socket).ok()?;
        let owner = client.ask(&Command::Process {}).ok()?;
        let mut events = Vec::new();
        let take = |event| {
            events.push(event);
            ControlFlow::Continue(())
        };
        let all = EventFilter { flows: true, ..EventFilter::default() };
        client.list::<Event, Listed>(&Command::Events(all), take).ok()??;
        Some(Self { owner, events })
    }

    /// `2026-11-25 03:12:00Z`, and since when it has the ends of flows if it has forgotten some since then.
    pub(super) fn since_in_words(&self) -> String {
        let first = |is_end: bool| self.events.iter().find(|event| event.what.is_end() == is_end);
        let Some(oldest) = first(false) else { return "this moment".to_owned() };
        let shown = |event: &Event| {
            let (date, time) = date_and_time(event.at_unix_ms);
            format!("{date} {time}Z")
        };
        let since = shown(oldest);
        let kept = self.events.iter().filter(|event| event.number >= oldest.number).count() as u64;
        let made = self.events.last().map_or(0, |last| last.number + 1 - oldest.number);
        match first(true) {
            Some(end) if kept < made => {
                format!("{since}, and with ends of flows to {}", shown(end))
            }
            _ => since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::journal::What;
    use crate::table::journal::testing::ended;

    #[test]
    fn ends_that_were_forgotten_are_told_and_none_is_missed_where_none_was() {
        let started = || What::Started { version: "1".to_owned() };
        let event = |number, what| Event { number, at_unix_ms: number * 60_000, what };
        let since = |events| InstanceMemory { owner: FileOwner::default(), events }.since_in_words();
        let whole = vec![event(0, started()), event(1, ended(1)), event(2, ended(2)), event(3, started())];
        assert_eq!(since(whole.clone()), "1970-01-01 00:00:00Z");
        let torn = vec![whole[0].clone(), whole[2].clone(), whole[3].clone()];
        assert_eq!(since(torn), "1970-01-01 00:00:00Z, and with ends of flows to 1970-01-01 00:02:00Z");
        assert_eq!(since(whole[2..].to_vec()), "1970-01-01 00:03:00Z", "of the time before nothing is told");
        assert_eq!(since(Vec::new()), "this moment");
    }
}
