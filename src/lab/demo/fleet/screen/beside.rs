//! Two fleets side by side: Baton on the left, and on the right the balancer that it is compared with.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::{KEYS, KUBELET_CELLS, apiserver_cell, bad, balancer_cell, cells, draw_lines, gap_style, large, seconds};
use crate::lab::demo::BUDGET;
use crate::lab::demo::fleet::host::FleetLink;
use crate::lab::demo::fleet::layout::VIP;
use crate::lab::demo::fleet::view::{FleetPicture, HostRow};

/// Fills the frame.
pub(in crate::lab::demo::fleet) fn draw(frame: &mut Frame<'_>, baton: &FleetPicture, haproxy: &FleetPicture) {
    let half = frame.area().width / 2;
    let columns = usize::from(half / KUBELET_CELLS).max(1);
    let kubelet_rows = baton.kubelets.len().div_ceil(columns).min(KUBELET_ROWS_MAX) as u16;
    let [head, legend, counters, hosts, kubelets, lines, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(baton.hosts.len() as u16 + 1),
        Constraint::Length(kubelet_rows),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let text = format!("  {}  {}, twice  VIP {VIP}", seconds(baton.elapsed), baton.layout);
    frame.render_widget(Paragraph::new(Line::from(vec!["Baton demo".bold(), text.into()])), head);
    let text = format!("reconnects: of kubelets whose apiserver lived; hung: silent for {}", seconds(BUDGET));
    frame.render_widget(Paragraph::new(text.dim()), legend);
    for (side, title, view) in [(0, "Baton", baton), (1, "haproxy and keepalived", haproxy)] {
        let of = |area: Rect| halves(area)[side];
        draw_counter(frame, of(counters), title, view);
        draw_hosts(frame, of(hosts), view);
        let rows = view.kubelets.chunks(columns).map(|row| Line::from(row.iter().flat_map(cells).collect::<Vec<_>>()));
        frame.render_widget(Paragraph::new(rows.collect::<Vec<_>>()), of(kubelets));
    }
    let mut both: Vec<_> = baton.lines.iter().chain(&haproxy.lines).collect();
    both.sort_by_key(|line| line.at);
    draw_lines(frame, lines, &both);
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().reversed()), keys);
}

fn halves(area: Rect) -> [Rect; 2] {
    Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area)
}

/// The number of reconnects in large, and the figures beside and below it.
fn draw_counter(frame: &mut Frame<'_>, area: Rect, title: &str, view: &FleetPicture) {
    let [head, number, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(3), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(title.bold()), head);
    let large = large(view.lost.without_cause);
    let style = |count: u64| if count == 0 { Style::new().green().bold() } else { bad().bold() };
    let gap = view.longest_gap();
    let beside = [
        Line::from("reconnects".bold()),
        Line::from(Span::from(format!("{} hung", view.lost.hung)).style(style(view.lost.hung))),
        Line::from(vec!["longest gap ".into(), Span::from(seconds(gap)).style(gap_style(gap))]),
    ];
    let width = large[0].chars().count() as u16 + 3;
    let [left, right] = Layout::horizontal([Constraint::Length(width), Constraint::Min(10)]).areas(number);
    let digits = large.map(|row| Line::from(format!(" {row}")).style(style(view.lost.without_cause)));
    frame.render_widget(Paragraph::new(digits.to_vec()), left);
    frame.render_widget(Paragraph::new(beside.to_vec()), right);
    let text = format!("{} more lost their apiserver", view.lost.with_apiserver);
    frame.render_widget(Paragraph::new(text.dim()), below);
}

fn draw_hosts(frame: &mut Frame<'_>, area: Rect, view: &FleetPicture) {
    let rows = view.hosts.iter().map(|host| {
        let row = Row::new([
            Cell::from(host.name).style(Style::new().bold()),
            Cell::from(if host.has_vip { "VIP" } else { "" }).style(Style::new().cyan().bold()),
            balancer_cell(host),
            apiserver_cell(host),
            Cell::from(if host.apiserver.is_some() { host.kubelets.to_string() } else { String::new() }),
            network_cell(host),
        ]);
        if host.link == FleetLink::Pulled { row.dim() } else { row }
    });
    let widths = [5, 4, 10, 10, 3, 7].map(Constraint::Length);
    let header = Row::new(["host", "", "balancer", "apiserver", "of", "network"]);
    frame.render_widget(Table::new(rows, widths).column_spacing(0).header(header.dim()), area);
}

fn network_cell(host: &HostRow) -> Cell<'static> {
    match (host.link, host.strict) {
        (FleetLink::Pulled, _) => Cell::from("pulled").style(bad()),
        (FleetLink::Up, true) => Cell::from("strict").style(Style::new().yellow()),
        (FleetLink::Up, false) => Cell::from("up"),
    }
}

const KUBELET_ROWS_MAX: usize = 4;
