//! The events of the charts' ten minutes on the charts' time axis: a row for each kind, a mark for each event, whose sentence a
//! reader finds under the mouse, or by a tap in the list of events.

use super::charts::TimeAxis;
use super::html::{Escaped, tone, write};
use crate::model::humane::date_and_time;
use crate::model::weight::Weight;
use crate::table::journal::{Event, What};

/// Events nearer than this to the first of a mark share the mark, if they are in one row: about the width of a mark.
const TOGETHER_MS: u64 = 12_000;

/// Sentences at one mark.
const SENTENCES: usize = 6;

/// The rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimelineRow {
    Backends,
    /// Flows that Baton ended.
    Ended,
    Fleet,
    /// This process: its start, reloads, upgrades.
    Instance,
}

/// One or more events.
#[derive(Clone, Debug)]
pub(super) struct TimelineMark {
    pub row: TimelineRow,
    /// Of its worst event.
    pub weight: Weight,
    /// As [`TimeAxis::place`].
    pub place: f64,
    from_unix_ms: u64,
    /// Names its worst event.
    worst: String,
    events: usize,
    sentences: Vec<String>,
}

impl TimelineRow {
    const ALL: [TimelineRow; 4] = [Self::Backends, Self::Ended, Self::Fleet, Self::Instance];

    fn title(self) -> &'static str {
        match self {
            Self::Backends => "Backends",
            Self::Ended => "Flows ended",
            Self::Fleet => "VIP and peers",
            Self::Instance => "This instance",
        }
    }

    fn of(what: &What) -> Self {
        match what {
            What::BackendChanged { .. }
            | What::BackendAdded { .. }
            | What::BackendRemoved { .. }
            | What::BackendResolved { .. }
            | What::BackendsDiscovered { .. }
            | What::DiscoveryFailed { .. }
            | What::DiscoveryRecovered { .. }
            | What::DiscoveryUnwatched { .. }
            | What::DiscoveryWatched { .. } => Self::Backends,
            What::FlowsOrdered { .. }
            | What::FlowsStuck { .. }
            | What::RefusalsBegun { .. }
            | What::RefusalsOver { .. }
            | What::RebalancePlanned { .. }
            | What::Rebalanced { .. }
            | What::FlowEnded { .. } => Self::Ended,
            What::VipShared { .. }
            | What::VipAlone { .. }
            | What::VipLeftBehind { .. }
            | What::VipGained { .. }
            | What::VipGivenUp { .. }
            | What::VipHeld { .. }
            | What::VipHostCutOff { .. }
            | What::VipRestored { .. }
            | What::VipOtherMask { .. }
            | What::VipNotRemoved { .. }
            | What::VipAnswered { .. }
            | What::VipDefended { .. }
            | What::VipRefused { .. }
            | What::VipHookFailed { .. }
            | What::PeerLinked { .. }
            | What::PeerLost { .. }
            | What::PeerUnreachable { .. }
            | What::PeerSynced { .. }
            | What::PeerGap { .. }
            | What::PortsOverlap { .. }
            | What::PeerLiveness { .. }
            | What::FlowsStrange { .. }
            | What::FailedOver { .. }
            | What::ClientsTold { .. }
            | What::FlowsClaimed { .. }
            | What::FlowsReleased { .. }
            | What::AddressCame { .. }
            | What::AddressWent { .. }
            | What::EvacuationBegun { .. }
            | What::Evacuated { .. }
            | What::EvacuationCancelled { .. } => Self::Fleet,
            _ => Self::Instance,
        }
    }
}

/// The marks of `events`, which are in the order of time.
pub(super) fn marks(events: &[Event], axis: TimeAxis) -> Vec<TimelineMark> {
    let mut marks: Vec<TimelineMark> = Vec::new();
    for event in events.iter().filter(|it| it.at_unix_ms >= axis.from_unix_ms) {
        let (row, weight) = (TimelineRow::of(&event.what), event.what.weight());
        let last = marks.iter_mut().rev().find(|mark| mark.row == row);
        let last = last.filter(|mark| event.at_unix_ms.saturating_sub(mark.from_unix_ms) < TOGETHER_MS);
        let mark = match last {
            Some(mark) => mark,
            None => {
                let (place, from_unix_ms) = (axis.place(event.at_unix_ms), event.at_unix_ms);
                let (worst, sentences) = (event.anchor(), Vec::new());
                marks.push(TimelineMark { row, weight, place, from_unix_ms, worst, events: 0, sentences });
                marks.last_mut().expect("it was added")
            }
        };
        mark.events += 1;
        if weight > mark.weight {
            (mark.weight, mark.worst) = (weight, event.anchor());
        }
        if mark.sentences.len() < SENTENCES {
            let (_, time) = date_and_time(event.at_unix_ms);
            mark.sentences.push(format!("{time} {}", event.what.sentence()));
        }
    }
    marks
}

/// `has_fleet`: there may be events of peers and of the VIP.
pub(super) fn render(page: &mut String, marks: &[TimelineMark], has_fleet: bool) {
    page.push_str("<div class=\"timeline\" id=\"timeline\">\n");
    for row in TimelineRow::ALL {
        let mut of_row = marks.iter().filter(|mark| mark.row == row).peekable();
        if row == TimelineRow::Fleet && !has_fleet && of_row.peek().is_none() {
            continue;
        }
        write(page, format_args!("<div class=\"chart\"><span>{}</span><div class=\"plot\">", row.title()));
        of_row.for_each(|mark| mark.render(page));
        page.push_str("</div></div>\n");
    }
    page.push_str("</div>\n");
}

impl TimelineMark {
    fn render(&self, page: &mut String) {
        let mut text = self.sentences.join("\n");
        if let Some(more) = self.events.checked_sub(self.sentences.len()).filter(|more| *more > 0) {
            text += &format!("\nand {more} more");
        }
        let (percent, worst) = (100.0 * self.place, &self.worst);
        let text = Escaped(&text);
        write(
            page,
            format_args!(
                "<a class=\"mark {}\" id=\"mark-{worst}\" href=\"#{worst}\" style=\"left:{percent:.2}%\" title=\"{text}\" \
                 aria-label=\"{text}\">",
                tone(self.weight)
            ),
        );
        if self.events > 1 {
            write(page, format_args!("{}", self.events));
        }
        page.push_str("</a>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::end_reason::EndReason;

    #[test]
    fn events_of_one_moment_share_a_mark_that_shows_the_worst_and_old_ones_have_none() {
        let axis = TimeAxis { last_slot: 300, from_unix_ms: 1_000_000, to_unix_ms: 1_598_000 };
        let at = |number, at_unix_ms, what| Event { number, at_unix_ms, what };
        let moves = || What::WorkerMoves { worker: 1 };
        let stuck = || What::WorkerStuck { worker: 1, for_ms: 9 };
        let ordered = What::FlowsOrdered {
            frontend: "apiserver".to_owned(),
            backend: "cp1".to_owned(),
            flows: 7,
            reason: EndReason::BackendEjected,
        };
        let mut events = vec![at(0, 999_000, moves()), at(1, 1_299_000, moves()), at(2, 1_299_100, ordered)];
        events.extend((3..12).map(|number| at(number, 1_300_000, stuck())));
        events.push(at(12, 1_312_000, moves()));
        let marks = marks(&events, axis);
        let seen: Vec<_> = marks.iter().map(|it| (it.row, &*it.worst, it.events, it.place)).collect();
        let row = TimelineRow::Instance;
        assert_eq!(
            seen[..2],
            [(row, "event-1300000-3", 10, 0.5), (TimelineRow::Ended, "event-1299100-2", 1, axis.place(1_299_100))]
        );
        assert_eq!((marks.len(), seen[2].1, marks[0].sentences.len()), (3, "event-1312000-12", SENTENCES));
        let mut page = String::new();
        render(&mut page, &marks, false);
        assert!(
            page.contains("and 4 more") && page.contains("href=\"#event-1300000-3\"") && !page.contains("VIP"),
            "{page}"
        );
    }
}
