//! Draws a view on a terminal.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};

use super::BUDGET;
use super::process::Condition;
use super::view::{BackendRow, View};
use crate::lab::kubelet::Summary;
use crate::model::health::HealthState;

/// Fills the frame. `selected`: the index of the backend that keys act on.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, selected: usize) {
    // Without sides and floors, 24 lines have room for a cause and what follows from it.
    let borders = if frame.area().height < ROOMY { Borders::TOP } else { Borders::ALL };
    let around = if borders == Borders::ALL { 2 } else { 1 };
    let backend_rows = view.backends.len() as u16 + 1 + around;
    let kubelet_rows = view.kubelets.len() as u16 + 1 + around;
    let [head, backends, kubelets, lines, keys] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(backend_rows),
        Constraint::Max(kubelet_rows),
        Constraint::Min(5),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, view);
    draw_backends(frame, backends, borders, view, selected);
    draw_kubelets(frame, kubelets, borders, view);
    draw_lines(frame, lines, borders, view);
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().reversed()), keys);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let gap = view.longest_gap();
    let verdict = Span::from(format!("longest gap {} of {} allowed", seconds(gap), seconds(BUDGET)))
        .style(if gap > BUDGET { Style::new().red().bold() } else { Style::new().green() });
    let text = vec![
        Line::from(vec!["Baton demo".bold(), format!("  {}  {}  ", seconds(view.elapsed), view.phase).into(), verdict]),
        Line::from(format!("clients connect to {}  status page {}", view.frontend, view.page)),
        Line::from(format!("or run: {}", view.command).dim()),
    ];
    frame.render_widget(Paragraph::new(text), area);
}

fn draw_backends(frame: &mut Frame<'_>, area: Rect, borders: Borders, view: &View, selected: usize) {
    let most = view.backends.iter().map(|row| row.flows).max().unwrap_or(0);
    // On a terminal of 80 columns a reason needs the room.
    let bar_cells = if area.width < 100 { 3 } else { 12 };
    let rows = view.backends.iter().enumerate().map(|(place, row)| {
        let cells = [
            Cell::from(format!("{}{}", if place == selected { ">" } else { " " }, place + 1)),
            Cell::from(row.name.clone()),
            Cell::from(row.condition.label()).style(condition_style(row.condition)),
            Cell::from(row.health_state.map_or("?", HealthState::label)).style(health_style(row.health_state)),
            Cell::from(row.since.map_or_else(|| "-".to_owned(), seconds)),
            Cell::from(bar(row.flows, most, bar_cells)),
            Cell::from(why(row)),
        ];
        Row::new(cells).style(if place == selected { Style::new().bold() } else { Style::new() })
    });
    let widths = [
        Constraint::Length(2),
        Constraint::Length(4),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(bar_cells as u16 + 3),
        Constraint::Min(10),
    ];
    let header = Row::new(["", "name", "process", "Baton", "for", "flows", "why"]).style(Style::new().dim());
    let block = Block::new().borders(borders).title(" apiserver stand-ins ");
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn draw_kubelets(frame: &mut Frame<'_>, area: Rect, borders: Borders, view: &View) {
    let rows = view.kubelets.iter().map(|kubelet| {
        let last = Duration::from_millis(kubelet.last_renewal_ms);
        let longest = Duration::from_millis(kubelet.longest_gap_ms);
        Row::new([
            Cell::from(kubelet.name.clone()),
            Cell::from(served_by(kubelet)),
            Cell::from(seconds(last)).style(gap_style(last)),
            Cell::from(seconds(longest)).style(gap_style(longest)),
            Cell::from(kubelet.renewals.to_string()),
            Cell::from(kubelet.failures.to_string()),
            Cell::from(kubelet.connections.to_string()),
        ])
    });
    let widths = [
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(14),
        Constraint::Length(12),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Min(11),
    ];
    let header = Row::new(["node", "served by", "last renewal", "longest gap", "renewals", "failures", "connections"])
        .style(Style::new().dim());
    let block = Block::new().borders(borders).title(" kubelets: each renews its lease every second ");
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, borders: Borders, view: &View) {
    let block = Block::new().borders(borders).title(" what happens ");
    let room = block.inner(area).height as usize;
    let skip = view.lines.len().saturating_sub(room);
    let lines: Vec<Line<'_>> = view
        .lines
        .iter()
        .skip(skip)
        .map(|line| {
            let who = Span::from(format!("{:<8}", line.who)).style(match line.who.as_str() {
                "you" => Style::new().yellow(),
                "baton" => Style::new().cyan(),
                _ => Style::new().dim(),
            });
            Line::from(vec![format!("{:>8} ", seconds(line.at)).dim(), who, line.text.as_str().into()])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn why(row: &BackendRow) -> String {
    match row.drain_deadline {
        Some(deadline) => format!("{}; reset in {}", row.why, seconds(deadline)),
        None => row.why.clone(),
    }
}

fn served_by(kubelet: &Summary) -> String {
    kubelet.stand_in.clone().unwrap_or_else(|| "none".to_owned())
}

/// A bar, which is `full` cells long for `most`, and the number.
fn bar(flows: u32, most: u32, full: usize) -> String {
    let cells = (flows as usize * full).checked_div(most as usize).unwrap_or(0);
    format!("{:<full$} {flows}", "█".repeat(cells))
}

fn condition_style(condition: Condition) -> Style {
    match condition {
        Condition::Running => Style::new(),
        Condition::NotReady | Condition::Terminating => Style::new().yellow(),
        Condition::Hung { .. } | Condition::Killed => Style::new().red(),
    }
}

fn health_style(health_state: Option<HealthState>) -> Style {
    match health_state {
        Some(HealthState::Ready) => Style::new().green(),
        Some(HealthState::Draining) => Style::new().yellow(),
        Some(HealthState::Ejected) => Style::new().red(),
        None => Style::new().dim(),
    }
}

pub(super) fn gap_style(gap: Duration) -> Style {
    let color = match gap {
        gap if gap > BUDGET => Color::Red,
        gap if gap > NOTICEABLE => Color::Yellow,
        _ => Color::Green,
    };
    Style::new().fg(color)
}

/// `12.3 s`.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Twice the interval of renewals: less is not a gap.
const NOTICEABLE: Duration = Duration::from_secs(2);
/// Lines of a terminal with room for frames.
const ROOMY: u16 = 32;
/// At most 80 columns.
const KEYS: &str = "1-3 pick│k kill│t end│h hang│c cont.│u unready│d drain│n undrain│r fix│q quit";

#[cfg(test)]
mod tests;
