//! The picture of a game day: the longest silence of a kubelet over time, with the steps as bands.

use std::fmt::Write;

use super::report::GamedayReport;
use crate::model::humane::duration_ms;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 300.0;
/// Room for the labels of the axes, left, above, right and below the curve.
const LEFT: f64 = 60.0;
const TOP: f64 = 26.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 34.0;

/// An SVG that is readable on a light and on a dark page: it has a background of its own.
pub(super) fn draw(report: &GamedayReport) -> String {
    let end_ms =
        report.samples.last().map_or(1, |it| it.at_ms).max(report.steps.last().map_or(1, |it| it.ended_ms)).max(1);
    let top_ms = report.samples.iter().map(|it| it.silent_ms).max().unwrap_or(0).max(report.silent_max_ms) * 11 / 10;
    let x = |at_ms: u64| LEFT + (WIDTH - LEFT - RIGHT) * at_ms as f64 / end_ms as f64;
    let y = |ms: u64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ms as f64 / top_ms.max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Longest time since a heartbeat, of {} kubelets</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n",
        report.kubelets
    );
    let mut put = |line: String| writeln!(svg, "{line}").expect("a string takes all");
    for (number, step) in report.steps.iter().enumerate() {
        let (from, to) = (x(step.began_ms), x(step.undone_ms.unwrap_or(step.ended_ms)));
        put(format!(
            "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#dbe7f5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1b1f24\">{}</text>",
            (to - from).max(1.0),
            HEIGHT - TOP - BOTTOM,
            from + 3.0,
            TOP - 8.0,
            number + 1
        ));
    }
    for (ms, colour, dashes) in
        [(report.silent_max_ms, "#b3261e", "6 4"), (report.every_ms, "#6e7781", "2 4"), (0, "#1b1f24", "none")]
    {
        put(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
            WIDTH - RIGHT,
            y(ms),
            y(ms),
            LEFT - 6.0,
            y(ms) + 4.0,
            if ms == 0 { "0".to_owned() } else { duration_ms(ms) }
        ));
    }
    let points: Vec<_> = report.samples.iter().map(|it| format!("{:.1},{:.1}", x(it.at_ms), y(it.silent_ms))).collect();
    put(format!("<polyline fill=\"none\" stroke=\"#0550ae\" stroke-width=\"1.5\" points=\"{}\"/>", points.join(" ")));
    for pair in report.samples.windows(2).filter(|pair| pair[1].lost > pair[0].lost) {
        put(format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#b3261e\"><title>{} connections lost</title></circle>",
            x(pair[1].at_ms),
            y(0),
            pair[1].lost - pair[0].lost
        ));
    }
    let says = "longest time since a heartbeat; bands: steps; red dots: connections lost; red line: the game day stops";
    put(format!("<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#1b1f24\">{says}</text>", HEIGHT - 8.0));
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#1b1f24\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 8.0,
        duration_ms(end_ms)
    ));
    svg + "</svg>\n"
}
