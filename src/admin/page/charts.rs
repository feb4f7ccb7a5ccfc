//! Ten minutes of charts on one time axis, as SVG, and the bands: the flows of each backend, one upon the other.
//!
//! The drawing of a chart is stretched to the width of the page, so that its coordinates are whole numbers: one unit across is one
//! sample, and [`HEIGHT`] units down are the whole axis. Words and numbers beside it are HTML, and keep their size.

use std::fmt::{self, Display};

use super::html::{Escaped, write};
use super::timeline::{self, TimelineMark};
use crate::admin::history::{POINTS, PageHistory, PastMoment, SPAN_NS, since_slot_ns};
use crate::model::axis::{end_of_axis, ticks};
use crate::model::end_reason::EndReason;
use crate::model::humane::{count, date_and_time, duration_us, plural, rate};
use crate::model::weight::Weight;
use crate::table::journal::Event;

const HEIGHT: f64 = 1000.0;

/// Reasons, and backends of a frontend, with an area of their own; the colours are as many.
const REASONS: usize = 5;
const BANDS: usize = 8;
const FRONTENDS: usize = 8;

const TICK_MS: u64 = 120_000;

/// The time axis that all charts share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeAxis {
    pub last_slot: u64,
    /// UTC milliseconds since 1970 of its ends.
    pub from_unix_ms: u64,
    pub to_unix_ms: u64,
}

/// One value for each sample, oldest first; `None`: a gap.
type Series = Vec<Option<f64>>;

/// What a chart shows by one colour.
struct ChartSeries {
    name: String,
    colour: usize,
    values: Series,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChartKind {
    Lines,
    /// Each upon the one before.
    Stack,
}

struct Chart<'a> {
    id: &'a str,
    title: &'a str,
    kind: ChartKind,
    /// The axis ends here or beyond.
    least: f64,
    in_words: fn(f64) -> String,
    series: Vec<ChartSeries>,
}

impl TimeAxis {
    /// `at_unix_ms`: the UTC time of `now_ns`.
    pub(crate) fn new(history: &PageHistory, now_ns: u64, at_unix_ms: u64) -> Self {
        let last_slot = history.last_slot(now_ns);
        let to_unix_ms = at_unix_ms.saturating_sub(since_slot_ns(last_slot, now_ns) / 1_000_000);
        Self { last_slot, from_unix_ms: to_unix_ms.saturating_sub(SPAN_NS / 1_000_000), to_unix_ms }
    }

    /// The place of a time, from 0 at the left to 1 at the right.
    pub(super) fn place(&self, at_unix_ms: u64) -> f64 {
        let since = at_unix_ms.saturating_sub(self.from_unix_ms).min(self.to_unix_ms - self.from_unix_ms);
        since as f64 / (self.to_unix_ms - self.from_unix_ms).max(1) as f64
    }
}

/// What the charts are about.
#[derive(Clone, Copy)]
pub(crate) struct TimeSpan<'a> {
    pub title: &'a str,
    pub axis: TimeAxis,
    /// Whether a VIP can move, so that the time line has a row for that.
    pub has_moves: bool,
}

/// `frontends`: their names. `events`: in the order of time; those before [`TimeAxis::from_unix_ms`] have no mark.
pub(crate) fn render(
    page: &mut String,
    span: TimeSpan<'_>,
    frontends: &[&str],
    history: &PageHistory,
    events: &[Event],
) {
    let axis = span.axis;
    write(page, format_args!("<section class=\"live charts\" id=\"charts\">\n<h2>{}", Escaped(span.title)));
    page.push_str("<span class=\"facts\">UTC, a sample every two seconds</span></h2>\n");
    let marks = timeline::render(page, events, axis, span.has_moves);
    times(page, axis);
    let moments = |value: fn(&PastMoment) -> Option<f64>| -> Series {
        history.moments(axis.last_slot).map(|it| it.and_then(value)).collect()
    };
    let one = |name: &str, colour, values| ChartSeries { name: name.to_owned(), colour, values };
    let flows = moments(|it| Some(it.flows.into()));
    let new = moments(|it| Some(it.accepted_per_s.into()));
    let latencies = [
        ("connect, mean", moments(|it| (it.connect_us > 0).then_some(it.connect_us.into()))),
        ("slowest last probe", moments(|it| (it.probe_us > 0).then_some(it.probe_us.into()))),
    ];
    let latencies = latencies.into_iter().enumerate().map(|(colour, (name, values))| one(name, colour, values));
    let plain = |id, title, in_words, series| Chart { id, title, kind: ChartKind::Lines, least: 2.0, in_words, series };
    let in_flows = |flows: f64| count(flows.round() as u64);
    for chart in [
        plain("chart-flows", "Flows", in_flows, vec![one("", 0, flows)]),
        plain("chart-new", "New flows /s", rate, vec![one("", 0, new)]),
        Chart {
            id: "chart-ends",
            title: "Ends /s, by reason",
            kind: ChartKind::Stack,
            least: 2.0,
            in_words: rate,
            series: ends(history, axis),
        },
        Chart {
            id: "chart-latency",
            title: "Latency",
            kind: ChartKind::Lines,
            least: 1000.0,
            in_words: |us| duration_us(us.round() as u64),
            series: latencies.collect(),
        },
    ] {
        chart.render(page, axis, &marks);
    }
    for (number, frontend) in frontends.iter().take(FRONTENDS).enumerate() {
        let series = bands(history, axis, frontend);
        let (id, title) = (format!("bands-{number}"), format!("{frontend} by backend"));
        let chart = Chart { id: &id, title: &title, kind: ChartKind::Stack, least: 2.0, in_words: in_flows, series };
        chart.render(page, axis, &marks);
    }
    times(page, axis);
    if let Some(more) = frontends.len().checked_sub(FRONTENDS).filter(|more| *more > 0) {
        let more = plural(more as u64, "frontend");
        write(page, format_args!("<p class=\"none\">The bands of {more} more are not drawn.</p>\n"));
    }
    page.push_str("</section>\n");
}

/// The reasons with the most ends, in the order of [`EndReason::ALL`], and the sum of the others.
fn ends(history: &PageHistory, axis: TimeAxis) -> Vec<ChartSeries> {
    let mut sums = vec![0.0f32; EndReason::ALL.len()];
    for moment in history.moments(axis.last_slot).flatten() {
        sums.iter_mut().zip(moment.ended_per_s).for_each(|(sum, ended)| *sum += ended);
    }
    let mut reasons: Vec<_> = EndReason::ALL.iter().map(|it| *it as usize).filter(|it| sums[*it] > 0.0).collect();
    reasons.sort_by(|one, other| sums[*other].total_cmp(&sums[*one]));
    let mut others = reasons.split_off(reasons.len().min(REASONS));
    // One more is no sum.
    if others.len() == 1 {
        reasons.append(&mut others);
    }
    reasons.sort_unstable();
    let of = |reasons: &[usize]| -> Series {
        let sum = |it: &PastMoment| reasons.iter().map(|reason| f64::from(it.ended_per_s[*reason])).sum();
        history.moments(axis.last_slot).map(|it| it.map(sum)).collect()
    };
    let mut series: Vec<_> = reasons
        .iter()
        .enumerate()
        .map(|(colour, reason)| ChartSeries {
            name: EndReason::ALL[*reason].label().to_owned(),
            colour,
            values: of(&[*reason]),
        })
        .collect();
    if !others.is_empty() {
        series.push(ChartSeries { name: format!("{} others", others.len()), colour: BANDS, values: of(&others) });
    }
    series
}

/// The backends with the most flows, in their order, and the sum of the others.
fn bands(history: &PageHistory, axis: TimeAxis, frontend: &str) -> Vec<ChartSeries> {
    let flows = |band| -> Series { history.flows_of(band, axis.last_slot).map(|it| it.map(f64::from)).collect() };
    let mut all: Vec<_> = history.bands(frontend).map(|band| (&*band.backend, flows(band))).collect();
    let mut others: Option<Series> = None;
    let mut left_out = 0u64;
    while all.len() > BANDS {
        let area = |series: &Series| series.iter().flatten().sum::<f64>();
        let least = (0..all.len()).min_by(|one, other| area(&all[*one].1).total_cmp(&area(&all[*other].1)));
        let (_, least) = all.remove(least.unwrap_or(0));
        left_out += 1;
        others = Some(match others {
            None => least,
            Some(sum) => sum.iter().zip(least).map(|(one, other)| Some(one.as_ref()? + other?)).collect(),
        });
    }
    let mut series: Vec<_> = all
        .into_iter()
        .enumerate()
        .map(|(colour, (name, values))| ChartSeries { name: name.to_owned(), colour, values })
        .collect();
    if let Some(values) = others {
        series.push(ChartSeries { name: plural(left_out, "other"), colour: BANDS, values });
    }
    series
}

/// The times beneath the charts.
fn times(page: &mut String, axis: TimeAxis) {
    page.push_str("<div class=\"times\" aria-hidden=\"true\">");
    for at_unix_ms in ticks(axis.from_unix_ms, axis.to_unix_ms, TICK_MS) {
        let (percent, (_, time)) = (100.0 * axis.place(at_unix_ms), date_and_time(at_unix_ms));
        // A label in the middle of its tick would not have room at an edge.
        let edge = match percent {
            ..4.0 => " class=\"first\"",
            96.0.. => " class=\"last\"",
            _ => "",
        };
        write(page, format_args!("<i{edge} style=\"left:{percent:.1}%\">{}</i>", &time[..5]));
    }
    page.push_str("</div>\n");
}

impl Chart<'_> {
    fn render(&self, page: &mut String, axis: TimeAxis, marks: &[TimelineMark]) {
        let totals = self.totals();
        let seen = || totals.iter().flatten().copied();
        let max = seen().fold(0.0, f64::max);
        let end = end_of_axis(max, self.least);
        let words = self.in_words;
        let now = totals.last().copied().flatten().map_or_else(|| "–".to_owned(), words);
        let (id, title) = (self.id, Escaped(self.title));
        write(page, format_args!("<figure class=\"chart\" id=\"{id}\">\n<figcaption>{title} <b>"));
        match self.kind == ChartKind::Lines && self.series.len() > 1 {
            // A sum of latencies is nothing.
            true => page.push_str("</b>"),
            false => write(page, format_args!("{now}</b>")),
        }
        self.legend(page);
        write(
            page,
            format_args!(
                "</figcaption>\n<div class=\"plot\">\n<svg viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
                 aria-labelledby=\"{id}-title {id}-desc\">\n<title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-desc\">",
                POINTS - 1,
            ),
        );
        match seen().reduce(f64::min) {
            Some(min) => {
                write(page, format_args!("{now} now, {} to {} in the last ten minutes", words(min), words(max)))
            }
            None => page.push_str("No sample yet"),
        }
        page.push_str("</desc>\n<path class=\"grid\" d=\"");
        for at_unix_ms in ticks(axis.from_unix_ms, axis.to_unix_ms, TICK_MS) {
            write(page, format_args!("M{} 0v{HEIGHT}", across(axis.place(at_unix_ms))));
        }
        [0.0, 500.0, 1000.0].iter().for_each(|y| write(page, format_args!("M0 {y}h{}", POINTS - 1)));
        page.push_str("\"/>\n");
        self.draw(page, end);
        for (weight, tone) in [(Weight::Notice, "notice"), (Weight::Bad, "bad")] {
            let lines = marks.iter().filter(|mark| mark.weight == weight).map(|mark| VerticalLine(mark.place));
            let lines: String = lines.map(|line| line.to_string()).collect();
            if !lines.is_empty() {
                write(page, format_args!("<path class=\"when {tone}\" d=\"{lines}\"/>\n"));
            }
        }
        write(
            page,
            format_args!(
                "</svg>\n<i class=\"y\">{}</i><i class=\"y middle\">{}</i>\n</div>\n</figure>\n",
                words(end),
                words(end / 2.0)
            ),
        );
    }

    /// The highest value at each moment.
    fn totals(&self) -> Series {
        let at = |moment: usize| self.series.iter().filter_map(move |it| it.values[moment]);
        let total = |moment: usize| match self.kind {
            ChartKind::Lines => at(moment).reduce(f64::max),
            ChartKind::Stack => at(moment).reduce(|one, other| one + other),
        };
        (0..POINTS).map(total).collect()
    }

    fn legend(&self, page: &mut String) {
        page.push_str("<span class=\"legend\">");
        // As the bands lie upon each other.
        let upper_first: Vec<_> = match self.kind {
            ChartKind::Lines => self.series.iter().collect(),
            ChartKind::Stack => self.series.iter().rev().collect(),
        };
        for series in upper_first.into_iter().filter(|it| !it.name.is_empty()) {
            let now = series.values.last().copied().flatten().map_or_else(|| "–".to_owned(), self.in_words);
            let (colour, name) = (series.colour, Escaped(&series.name));
            write(page, format_args!("<span class=\"c{colour}\"><span>{name}</span> <em>{now}</em></span>"));
        }
        page.push_str("</span>");
    }

    fn draw(&self, page: &mut String, end: f64) {
        let mut path = |class: &str, colour: usize, drawn: String| {
            if !drawn.is_empty() {
                write(page, format_args!("<path class=\"{class} c{colour}\" d=\"{drawn}\"/>\n"));
            }
        };
        match self.kind {
            ChartKind::Lines => {
                for it in &self.series {
                    path("line", it.colour, line_path(&it.values, end));
                    path("dot", it.colour, dots_path(&it.values, end));
                }
            }
            ChartKind::Stack => {
                let mut lower = vec![0.0; POINTS];
                for it in &self.series {
                    let upper: Series =
                        lower.iter().zip(&it.values).map(|(lower, value)| Some(lower + (*value)?)).collect();
                    path("area", it.colour, area_path(&lower, &upper, end));
                    lower = lower.iter().zip(upper).map(|(lower, upper)| upper.unwrap_or(*lower)).collect();
                }
            }
        }
    }
}

/// A line through all values, broken at gaps.
fn line_path(values: &[Option<f64>], end: f64) -> String {
    let mut path = String::new();
    for run in runs(values).filter(|run| run.len() > 1) {
        let points: Vec<_> = run.map(|moment| (moment, down(values[moment].unwrap_or(0.0), end))).collect();
        path.push('M');
        along(&mut path, &points);
    }
    path
}

/// The values between two gaps, of which no line can be drawn.
fn dots_path(values: &[Option<f64>], end: f64) -> String {
    let mut path = String::new();
    for run in runs(values).filter(|run| run.len() == 1) {
        let y = down(values[run.start].unwrap_or(0.0), end);
        write(&mut path, format_args!("M{} {y}h0", run.start));
    }
    path
}

/// The area between `lower` and `upper`, broken at gaps and where it is empty: there its edge would be a line.
fn area_path(lower: &[f64], upper: &[Option<f64>], end: f64) -> String {
    let mut path = String::new();
    let is_some = |moment: usize| upper.get(moment).copied().flatten().is_some_and(|upper| upper > lower[moment]);
    let is_near = |moment: usize| (moment.saturating_sub(1)..=moment + 1).any(is_some);
    let drawn: Series = (0..upper.len()).map(|moment| upper[moment].filter(|_| is_near(moment))).collect();
    for run in runs(&drawn) {
        let above: Vec<_> = run.clone().map(|it| (it, down(upper[it].unwrap_or(0.0), end))).collect();
        let beneath: Vec<_> = run.rev().map(|it| (it, down(lower[it], end))).collect();
        if above.iter().rev().eq(&beneath) {
            continue;
        }
        path.push('M');
        along(&mut path, &above);
        path.push('L');
        along(&mut path, &beneath);
        path.push('Z');
    }
    path
}

/// The longest ranges without a gap.
fn runs(values: &[Option<f64>]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + values[at..].iter().position(Option::is_some)?;
        let length = values[begin..].iter().position(Option::is_none).unwrap_or(values.len() - begin);
        at = begin + length;
        Some(begin..at)
    })
}

/// Adds the points to `path`, without those in the middle of a level line.
fn along(path: &mut String, points: &[(usize, i64)]) {
    for (number, (x, y)) in points.iter().enumerate() {
        let is_level = |other: Option<usize>| other.and_then(|at| points.get(at)).is_some_and(|(_, of)| of == y);
        if !(is_level(number.checked_sub(1)) && is_level(Some(number + 1))) {
            let space = if number > 0 { " " } else { "" };
            write(path, format_args!("{space}{x} {y}"));
        }
    }
}

fn down(value: f64, end: f64) -> i64 {
    (HEIGHT - value / end * HEIGHT).round() as i64
}

fn across(place: f64) -> i64 {
    (place * (POINTS - 1) as f64).round() as i64
}

/// From the top of a chart to its bottom.
struct VerticalLine(f64);

impl Display for VerticalLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "M{} 0v{HEIGHT}", across(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_where_there_is_no_sample_and_level_parts_are_two_points() {
        let some = |values: &[f64]| values.iter().map(|it| Some(*it)).collect::<Series>();
        assert_eq!(line_path(&some(&[5.0, 5.0, 5.0, 5.0, 10.0]), 10.0), "M0 500 3 500 4 0");
        let gap = [some(&[0.0, 2.0]), vec![None, None], some(&[4.0]), vec![None]].concat();
        assert_eq!((&*line_path(&gap, 4.0), &*dots_path(&gap, 4.0)), ("M0 1000 1 500", "M4 0h0"));
        assert_eq!(line_path(&[None, None], 4.0), "");
    }

    #[test]
    fn an_area_lies_upon_the_one_before_and_is_left_out_where_it_is_empty() {
        let lower = [2.0, 2.0, 2.0, 2.0];
        let upper = [Some(4.0), Some(2.0), None, Some(2.0)];
        assert_eq!(area_path(&lower, &upper, 4.0), "M0 0 1 500L1 500 0 500Z");
        let upper = [Some(3.0), Some(2.0), Some(2.0), Some(2.0)];
        assert_eq!(area_path(&lower, &upper, 4.0), "M0 250 1 500L1 500 0 500Z");
    }

    #[test]
    fn a_time_has_its_place_on_the_axis() {
        let axis = TimeAxis { last_slot: 300, from_unix_ms: 1_000_000, to_unix_ms: 1_598_000 };
        let places = [0, 1_000_000, 1_299_000, 1_598_000, 2_000_000].map(|at| axis.place(at));
        assert_eq!(places, [0.0, 0.0, 0.5, 1.0, 1.0]);
    }
}
