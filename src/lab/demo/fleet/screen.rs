//! Draws the fleet on a terminal of 80 by 24 or more.

pub(super) mod beside;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::host::FleetLink;
use super::layout::VIP;
use super::view::{BalancerState, FleetPicture, HostRow, Losses};
use crate::lab::demo::BUDGET;
use crate::lab::demo::chronicle::ViewLine;
use crate::lab::demo::process::Condition;
use crate::lab::demo::screen::{gap_style, seconds};
use crate::lab::kubelet::Summary;

/// Fills the frame.
pub(super) fn draw(frame: &mut Frame<'_>, view: &FleetPicture) {
    let columns = usize::from(frame.area().width / KUBELET_CELLS).max(1);
    let kubelet_rows = view.kubelets.len().div_ceil(columns).min(KUBELET_ROWS_MAX) as u16;
    let [head, counter, hosts, title, kubelets, lines, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(view.hosts.len() as u16 + 1),
        Constraint::Length(1),
        Constraint::Length(kubelet_rows),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, view);
    draw_counter(frame, counter, view);
    draw_hosts(frame, hosts, view);
    draw_kubelets(frame, title, kubelets, view, columns);
    draw_lines(frame, lines, &view.lines.iter().collect::<Vec<_>>());
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().reversed()), keys);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &FleetPicture) {
    let text = format!("  {}  {}  VIP {VIP}:{}", seconds(view.elapsed), view.layout, view.port);
    frame.render_widget(Paragraph::new(Line::from(vec!["Baton demo".bold(), text.into()])), area);
}

/// The number of reconnects in large, and what it consists of.
fn draw_counter(frame: &mut Frame<'_>, area: Rect, view: &FleetPicture) {
    let Losses { with_apiserver, without_cause, .. } = view.lost;
    let style = if without_cause == 0 { Style::new().green().bold() } else { Style::new().red().bold() };
    let large = large(without_cause);
    let gap = view.longest_gap();
    let beside = [
        Line::from("reconnects of kubelets whose apiserver lived".bold()),
        Line::from(format!("{with_apiserver} more lost their apiserver: nobody can keep these connections")),
        Line::from(vec![
            "longest time without a heartbeat: ".into(),
            Span::from(seconds(gap)).style(gap_style(gap)),
            format!(" of {} allowed", seconds(BUDGET)).into(),
        ]),
        Line::from(view.command.as_str().dim()),
    ];
    let width = large[0].chars().count() as u16 + 3;
    let [left, right] = Layout::horizontal([Constraint::Length(width), Constraint::Min(20)]).areas(area);
    let digits = large.map(|row| Line::from(format!(" {row}")).style(style));
    frame.render_widget(Paragraph::new(digits.to_vec()), left);
    frame.render_widget(Paragraph::new(beside.to_vec()), right);
}

fn draw_hosts(frame: &mut Frame<'_>, area: Rect, view: &FleetPicture) {
    let rows = view.hosts.iter().map(|host| {
        let pulled = host.link == FleetLink::Pulled;
        let row = Row::new([
            Cell::from(host.name).style(Style::new().bold()),
            Cell::from(if host.has_vip { "VIP" } else { "" }).style(Style::new().cyan().bold()),
            balancer_cell(host),
            Cell::from(flows(host)),
            apiserver_cell(host),
            Cell::from(if host.apiserver.is_some() { host.kubelets.to_string() } else { String::new() }),
            Cell::from(if pulled { "pulled" } else { "up" }).style(if pulled { bad() } else { Style::new() }),
            Cell::from(if host.strict { "drops untracked" } else { "" }).style(Style::new().yellow()),
        ]);
        if pulled { row.dim() } else { row }
    });
    let widths = [5, 4, 10, 21, 10, 9, 7, 15].map(Constraint::Length);
    let header = Row::new(["host", "", "Baton", "its flows", "apiserver", "kubelets", "plug", "firewall"]);
    frame.render_widget(Table::new(rows, widths).column_spacing(0).header(header.dim()), area);
}

fn balancer_cell(host: &HostRow) -> Cell<'static> {
    let style = match &host.balancer {
        None | Some(BalancerState::Serves) => Style::new(),
        Some(BalancerState::Does(_)) => Style::new().yellow(),
        Some(BalancerState::Silent) => bad(),
    };
    Cell::from(host.balancer.as_ref().map_or(String::new(), |state| state.label().to_owned())).style(style)
}

fn flows(host: &HostRow) -> String {
    match (&host.balancer, host.offloaded, host.proxied) {
        (None, ..) => String::new(),
        // It does not hear that they are another host's by now.
        _ if host.link == FleetLink::Pulled => String::new(),
        (Some(_), offloaded, 0) => format!("{offloaded} offloaded"),
        (Some(_), offloaded, proxied) => format!("{offloaded} offloaded, {proxied} not"),
    }
}

fn apiserver_cell(host: &HostRow) -> Cell<'static> {
    let Some(condition) = host.apiserver else { return Cell::from("") };
    Cell::from(condition.label()).style(if condition == Condition::Running { Style::new() } else { bad() })
}

/// A cell for each kubelet: number, apiserver, and the time since its last heartbeat.
fn draw_kubelets(frame: &mut Frame<'_>, title: Rect, area: Rect, view: &FleetPicture, columns: usize) {
    let text = "kubelets, the apiservers that answer them, time since the last heartbeat";
    frame.render_widget(Paragraph::new(text.dim()), title);
    let lines: Vec<_> =
        view.kubelets.chunks(columns).map(|row| Line::from(row.iter().flat_map(cells).collect::<Vec<_>>())).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn cells(kubelet: &Summary) -> [Span<'static>; 2] {
    let number = kubelet.name.rsplit('-').next().unwrap_or_default();
    let served_by = kubelet.stand_in.as_deref().unwrap_or("---");
    let last = Duration::from_millis(kubelet.last_renewal_ms);
    let width = usize::from(KUBELET_CELLS) - 7;
    [
        Span::from(format!("{number:>2} {served_by:<3} ")),
        Span::from(format!("{:<width$}", last_seen(last))).style(gap_style(last)),
    ]
}

/// Without tenths where they would fill the cell.
fn last_seen(last: Duration) -> String {
    if last.as_secs() < 10 { seconds(last) } else { format!("{} s", last.as_secs()) }
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, lines: &[&ViewLine]) {
    let [title, area] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new("what happens".dim()), title);
    let width = usize::from(area.width).saturating_sub(PREFIX_CELLS).max(10);
    let lines: Vec<Line<'_>> = lines
        .iter()
        .flat_map(|line| {
            let style = match line.who.as_str() {
                "you" => Style::new().yellow(),
                "haproxy" => Style::new().magenta(),
                who if who.starts_with("node-") || who == "nodes" => Style::new().dim(),
                _ => Style::new().cyan(),
            };
            wrapped(&line.text, width).into_iter().enumerate().map(move |(number, text)| match number {
                0 => Line::from(vec![
                    format!("{:>8} ", seconds(line.at)).dim(),
                    Span::from(format!("{:<8}", line.who)).style(style),
                    text.into(),
                ]),
                _ => Line::from(format!("{:PREFIX_CELLS$}{text}", "")),
            })
        })
        .collect();
    let skip = lines.len().saturating_sub(usize::from(area.height));
    frame.render_widget(Paragraph::new(lines.into_iter().skip(skip).collect::<Vec<_>>()), area);
}

/// `text` in lines of at most `width` characters, cut between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            let space = if used > 0 { " " } else { "" };
            lines[last] += &format!("{space}{word}");
        }
    }
    lines
}

/// A number of three rows.
fn large(number: u64) -> [String; 3] {
    let digits = number.to_string();
    std::array::from_fn(|row| {
        let rows = digits.bytes().map(|digit| DIGITS[usize::from(digit - b'0')][row]);
        rows.collect::<Vec<_>>().join(" ")
    })
}

fn bad() -> Style {
    Style::new().red()
}

const DIGITS: [[&str; 3]; 10] = [
    ["█▀▀█", "█  █", "█▄▄█"],
    ["▄█  ", " █  ", "▄█▄ "],
    ["▀▀▀█", "█▀▀▀", "█▄▄▄"],
    ["▀▀▀█", " ▀▀█", "▄▄▄█"],
    ["█  █", "▀▀▀█", "   █"],
    ["█▀▀▀", "▀▀▀█", "▄▄▄█"],
    ["█▀▀▀", "█▀▀█", "█▄▄█"],
    ["▀▀▀█", "  █ ", " █  "],
    ["█▀▀█", "█▀▀█", "█▄▄█"],
    ["█▀▀█", "▀▀▀█", "▄▄▄█"],
];
/// Of a kubelet.
const KUBELET_CELLS: u16 = 13;
const KUBELET_ROWS_MAX: usize = 4;
/// Of a line's time and of the one who says it.
const PREFIX_CELLS: usize = 17;
/// At most 80 columns.
pub(super) const KEYS: &str = "k/b kill apiserver/Baton│p plug│e evacuate│u upgrade│f firewall│r repair│q quit";

#[cfg(test)]
mod tests;
