//! The events of the charts' ten minutes on the charts' time axis: a row for each kind, a mark for each event, whose sentence a
//! reader finds under the mouse, or by a tap in the list of events.

use super::charts::TimeAxis;
use super::html::{Escaped, tone, write};
use crate::model::humane::date_and_time;
use crate::model::weight::Weight;
use crate::table::journal::{Event, What};

/// Screens from this width on, for which events that are too near to each other share a mark. `page.css` shows the marks of one of them.
#[derive(Clone, Copy, Debug)]
struct TimelineScreen {
    class: &'static str,
    /// Least width of the time axis on it, in px.
    axis_px: f64,
}

/// More than 860 px wide; from 480 px on, where the axis has the whole width; and from 320 px on.
const SCREENS: [TimelineScreen; 3] = [
    TimelineScreen { class: "wide", axis_px: 550.0 },
    TimelineScreen { class: "medium", axis_px: 400.0 },
    TimelineScreen { class: "narrow", axis_px: 240.0 },
];

/// Width of a mark without a number or with one digit, and of each further digit, in px.
const MARK_PX: f64 = 13.5;
const DIGIT_PX: f64 = 7.0;

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
            What::PeerLinked { .. }
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
            _ if what.is_of_vip() => Self::Fleet,
            _ => Self::Instance,
        }
    }
}

/// The marks of `events`, which are in the order of time.
fn marks_on(events: &[Event], axis: TimeAxis, screen: TimelineScreen) -> Vec<TimelineMark> {
    let mut marks: Vec<TimelineMark> = Vec::new();
    for event in events.iter().filter(|it| it.at_unix_ms >= axis.from_unix_ms) {
        let (row, weight, place) = (TimelineRow::of(&event.what), event.what.weight(), axis.place(event.at_unix_ms));
        let last = marks.iter_mut().rev().find(|mark| mark.row == row);
        let last = last.filter(|mark| (place - mark.place) * screen.axis_px < mark.width_px());
        let mark = match last {
            Some(mark) => mark,
            None => {
                let (worst, sentences) = (event.anchor(), Vec::new());
                marks.push(TimelineMark { row, weight, place, worst, events: 0, sentences });
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

/// `events`: in the order of time. `has_fleet`: there may be events of peers and of the VIP. Returns the marks on a wide screen.
pub(super) fn render(page: &mut String, events: &[Event], axis: TimeAxis, has_fleet: bool) -> Vec<TimelineMark> {
    let on_screens = SCREENS.map(|screen| (screen, marks_on(events, axis, screen)));
    page.push_str("<div class=\"timeline\" id=\"timeline\">\n");
    for row in TimelineRow::ALL {
        let of_row = on_screens.each_ref().map(|(screen, marks)| {
            (screen.class.to_owned(), marks.iter().filter(|mark| mark.row == row).collect::<Vec<_>>())
        });
        if row == TimelineRow::Fleet && !has_fleet && of_row[0].1.is_empty() {
            continue;
        }
        write(page, format_args!("<div class=\"chart\"><span>{}</span><div class=\"plot\">", row.title()));
        // Mostly there are few events, and one set of marks does for all screens.
        let alike = of_row
            .chunk_by(|(_, one), (_, next)| one.iter().map(|mark| mark.events).eq(next.iter().map(|mark| mark.events)));
        for screens in alike {
            let classes: Vec<_> = screens.iter().map(|(class, _)| class.as_str()).collect();
            let [first, ..] = classes[..] else { continue };
            write(page, format_args!("<span class=\"marks {}\">", classes.join(" ")));
            screens[0].1.iter().for_each(|mark| mark.render(page, first));
            page.push_str("</span>");
        }
        page.push_str("</div></div>\n");
    }
    page.push_str("</div>\n");
    let [(_, wide), ..] = on_screens;
    wide
}

impl TimelineMark {
    /// On the screen.
    fn width_px(&self) -> f64 {
        let further_digits = self.events.max(1).ilog10();
        MARK_PX + DIGIT_PX * f64::from(further_digits)
    }

    /// `screen`: tells its ids from those of the marks for other screens.
    fn render(&self, page: &mut String, screen: &str) {
        let mut text = self.sentences.join("\n");
        if let Some(more) = self.events.checked_sub(self.sentences.len()).filter(|more| *more > 0) {
            text += &format!("\nand {more} more");
        }
        let (percent, worst) = (100.0 * self.place, &self.worst);
        let text = Escaped(&text);
        write(
            page,
            format_args!(
                "<a class=\"mark {}\" id=\"mark-{screen}-{worst}\" href=\"#{worst}\" style=\"left:{percent:.2}%\" title=\"{text}\" \
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
        events.push(at(12, 1_330_000, moves()));
        let marks = marks_on(&events, axis, SCREENS[0]);
        let seen: Vec<_> = marks.iter().map(|it| (it.row, &*it.worst, it.events, it.place)).collect();
        let row = TimelineRow::Instance;
        assert_eq!(
            seen[..2],
            [(row, "event-1300000-3", 10, 0.5), (TimelineRow::Ended, "event-1299100-2", 1, axis.place(1_299_100))]
        );
        assert_eq!((marks.len(), seen[2].1, marks[0].sentences.len()), (3, "event-1330000-12", SENTENCES));
        let mut page = String::new();
        render(&mut page, &events, axis, false);
        assert!(
            page.contains("and 4 more") && page.contains("href=\"#event-1300000-3\"") && !page.contains("VIP"),
            "{page}"
        );
    }

    /// Regression: on a phone marks lay upon each other, since all that were twelve seconds apart had their own: 7 px there, and a mark has 12.
    #[test]
    fn no_mark_lies_upon_another_on_a_narrow_screen() {
        let axis = TimeAxis { last_slot: 300, from_unix_ms: 1_000_000, to_unix_ms: 1_598_000 };
        let event = |number: u64| {
            let at_unix_ms = 1_000_000 + number * number * 150;
            Event { number, at_unix_ms, what: What::WorkerMoves { worker: 1 } }
        };
        let events: Vec<_> = (0..63).map(event).collect();
        for screen in SCREENS {
            let marks = marks_on(&events, axis, screen);
            assert_eq!(marks.iter().map(|mark| mark.events).sum::<usize>(), events.len());
            for pair in marks.windows(2) {
                let apart = (pair[1].place - pair[0].place) * screen.axis_px;
                assert!(apart >= pair[0].width_px(), "{apart} px on a {} screen: {pair:?}", screen.class);
            }
        }
        let mut page = String::new();
        render(&mut page, &events, axis, false);
        assert!(
            page.contains("<span class=\"marks wide\">") && page.contains("<span class=\"marks narrow\">"),
            "{page}"
        );
        page.clear();
        render(&mut page, &events[..1], axis, false);
        assert_eq!(page.matches("class=\"mark ").count(), 1, "one set does for all: {page}");
    }
}
