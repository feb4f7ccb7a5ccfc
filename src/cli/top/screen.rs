//! Draws the board: the service, the backends, the flows, and the line of keys.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::board::{Board, LowerTable, Mode, Selectable, full};
use super::keys;
use super::rows::Column;
use crate::admin::status::Status;
use crate::admin::words;
use crate::cli::grid::{Align::*, Cell, Grid};
use crate::cli::nodes;
use crate::cli::panes::{CutRows, beside_corner, draw_help, keys_line, lines, painted};
use crate::model::humane::{bytes, count, date_and_time, duration_ms, duration_us, plural, rate};
use crate::model::weight::Weight;
use crate::table::backend::Service;
use crate::table::flows::FlowState;

/// Fills the frame.
pub(super) fn draw(frame: &mut Frame<'_>, board: &mut Board, now_ns: u64) {
    let area = frame.area();
    let foot = foot(board, area.width);
    let foot_rows = rows(&foot, area.width);
    let [body, bottom] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(foot_rows.min(FOOT_MAX))]).areas(area);
    draw_body(frame, body, board, now_ns);
    frame.render_widget(Paragraph::new(foot).wrap(Wrap { trim: true }), bottom);
    if board.mode == Mode::Help {
        draw_help(frame, body, &keys::HELP);
    }
}

/// The rows that `lines` take, broken between words, which are less than full.
fn rows(lines: &[Line<'_>], width: u16) -> u16 {
    let of_line = |line: &Line<'_>| match line.width() {
        its if its <= width.into() => 1,
        its => 1 + (its as u16 + 10) / width.max(1),
    };
    lines.iter().map(of_line).sum()
}

/// Fills the frame, without the line of keys.
pub(super) fn draw_all(frame: &mut Frame<'_>, board: &mut Board, now_ns: u64) {
    let area = frame.area();
    draw_body(frame, area, board, now_ns);
}

fn draw_body(frame: &mut Frame<'_>, area: Rect, board: &mut Board, now_ns: u64) {
    let time = time(board);
    let head = head(board, now_ns, |line| beside_corner(line, time.width(), area.width));
    // A narrow terminal breaks long sentences; the tables keep half of a low one.
    let head_rows = rows(&head, area.width).min((area.height / 2).max(2));
    let backends = board.status.backends().count();
    // The flows get at least as many rows as the backends.
    let room = usize::from(area.height).saturating_sub(usize::from(head_rows) + 5);
    let backend_rows = backends.min((room / 2).max(1));
    // The number of those that are not shown takes the row of the space between.
    let is_cut = u16::from(backend_rows < backends);
    let [at_head, _, at_backends, at_more, at_why, at_title, at_flows] = Layout::vertical([
        Constraint::Length(head_rows),
        Constraint::Length(1 - is_cut),
        Constraint::Length(backend_rows as u16 + 1),
        Constraint::Length(is_cut),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head).wrap(Wrap { trim: true }), at_head);
    // The age of what is shown, and what this socket is for, in the corner.
    let corner = Rect { height: at_head.height.min(1), ..at_head };
    frame.render_widget(Paragraph::new(Line::from(time).alignment(Alignment::Right)), corner);
    let (rows, more) = backend_lines(board, at_backends.width, backend_rows);
    frame.render_widget(Paragraph::new(rows), at_backends);
    frame.render_widget(Paragraph::new(more.unwrap_or_default()), at_more);
    // The table may have cut it.
    if let Some((_, backend)) = board.backend().filter(|_| board.table == Selectable::Backends) {
        let why = format!("{}: {}", backend.name, words::why(backend));
        frame.render_widget(Paragraph::new(painted(Weight::of_health(backend.health_state), why)), at_why);
    }
    let room = usize::from(at_flows.height).saturating_sub(1);
    let (lines, cut) = match board.lower {
        LowerTable::Flows => flow_lines(board, at_flows.width, room),
        LowerTable::Nodes => node_lines(board, at_flows.width, room),
        // It has no head of its own that stays, and says itself what is below.
        LowerTable::Fleet => (board.fleet.window(&board.status.fleet, at_flows.width, room + 1), CutRows::default()),
    };
    frame.render_widget(Paragraph::new(lines), at_flows);
    let mut title = match board.lower {
        LowerTable::Flows => flows_title(board),
        LowerTable::Nodes => nodes_title(board),
        LowerTable::Fleet => fleet_title(&board.status),
    };
    title.push_span(cut.beside_title());
    title.spans.extend(unlisted(board));
    frame.render_widget(Paragraph::new(title), at_title);
}

/// Flows that the instance has not listed.
fn unlisted(board: &Board) -> Option<Span<'static>> {
    let are_shown = board.lower == LowerTable::Flows && board.more > 0;
    are_shown.then(|| format!("; {} more are not listed", count(board.more)).into())
}

fn time(board: &Board) -> Span<'static> {
    let (_, time) = date_and_time(board.status.at_unix_ms);
    let what = if board.takes_orders { "" } else { "read-only  " };
    Span::from(format!(" {what}{time}Z")).dim()
}

/// `first_rows`: breaks the first line.
fn head(
    board: &Board,
    now_ns: u64,
    first_rows: impl FnOnce(Line<'static>) -> Vec<Line<'static>>,
) -> Vec<Line<'static>> {
    let status = &board.status;
    let instance = &status.instance;
    let (weight, word) = words::headline(status);
    let mut lines = first_rows(Line::from(vec![
        format!("Baton {}", instance.version).bold(),
        format!(" on {}: ", words::place_of(status)).into(),
        painted(weight, word).bold(),
        format!(", up {}", duration_ms(instance.uptime_ms)).into(),
    ]));
    if let Some(why) = &board.lost {
        let age = duration_ms(now_ns.saturating_sub(board.at_ns) / 1_000_000);
        let said = format!("This is {age} old: {why}");
        lines.push(painted(Weight::Bad, said).bold().into());
    }
    let totals = &status.totals;
    lines.push(Line::from(vec![
        plural(totals.flows.sum(), "flow").bold(),
        format!(
            ", {} offloaded, {} new/s; {}/s to backends, {}/s to clients",
            count(totals.flows.offloaded),
            rate(totals.rates.flows_per_s),
            bytes(totals.rates.bytes_to_backend_per_s),
            bytes(totals.rates.bytes_to_client_per_s),
        )
        .into(),
    ]));
    lines.extend(place(status));
    let reasons = instance.not_live.iter().chain(&instance.not_ready).cloned();
    let unserved = status.frontends.iter().filter(|it| !it.removed && it.service.state != Service::Ready);
    let unserved = unserved.map(|it| format!("{}: {}", it.name, it.service.in_words));
    lines.extend(reasons.chain(unserved).take(REASONS).map(|reason| Line::from(painted(weight, reason))));
    lines.extend(words::recorder_fault(status).map(|fault| Line::from(painted(Weight::Notice, fault))));
    if let Some((_, sentence)) = words::silence(&status.nodes) {
        lines.push(Line::from(painted(Weight::Notice, sentence)));
    }
    if let Some((_, sentence)) = words::dispute(&status.fleet) {
        lines.push(Line::from(painted(Weight::Notice, sentence)));
    }
    if let Some(event) = status.events.last() {
        let (_, time) = date_and_time(event.at_unix_ms);
        let what = painted(event.what.weight(), event.what.sentence());
        lines.push(Line::from(vec![format!("{time}Z ").dim(), what]));
    }
    lines
}

/// The VIP and the peers, in a line.
fn place(status: &Status) -> Option<Line<'static>> {
    let mut spans: Vec<Span<'_>> = Vec::new();
    match &status.vip {
        Some(vip) => {
            let (weight, place) = words::vip(vip);
            spans.push(painted(weight, place));
        }
        None if status.fleet.name.is_some() => {
            spans.push(format!("This host {}", words::vips(&status.fleet.vips)).into())
        }
        None => {}
    }
    for peer in &status.fleet.peers {
        let synced =
            if peer.synced { format!(", {}", plural(peer.flows as u64, "flow")) } else { ", not synced".to_owned() };
        let behind = if peer.lag_ms > 0 { format!(", lag {}", duration_ms(peer.lag_ms)) } else { String::new() };
        spans.push(format!("; peer {} ", peer.name).into());
        spans.push(painted(Weight::of_liveness(peer.liveness), peer.liveness.label().to_owned()));
        spans.push(format!("{synced}{behind}").into());
    }
    (!spans.is_empty()).then(|| Line::from(spans))
}

/// The table, and the number of backends that it has no room for.
fn backend_lines(board: &Board, width: u16, room: usize) -> (Vec<Line<'static>>, Option<Span<'static>>) {
    let mut grid = Grid::new(&[
        ("STATE", Left),
        ("BACKEND", Left),
        ("ADDRESS", Left),
        ("FOR", Right),
        ("FLOWS", Right),
        ("SHARE", Right),
        ("NEW/S", Right),
        ("TO BACKEND/S", Right),
        ("TO CLIENT/S", Right),
        ("PROBE", Right),
        ("WHY", Left),
    ])
    .spare(&["TO BACKEND/S", "TO CLIENT/S", "PROBE", "NEW/S", "ADDRESS", "SHARE", "FOR"]);
    let is_alone = board.status.frontends.len() == 1;
    let place = board.backend().map_or(0, |(place, _)| place);
    let first = (place + 1).saturating_sub(room);
    let flows = |frontend: &str| -> u64 {
        board.status.backends().filter(|it| it.frontend == frontend).map(|it| u64::from(it.flows)).sum()
    };
    for it in board.status.backends().skip(first).take(room) {
        grid.row([
            Cell::painted(Weight::of_health(it.health_state), it.health_state.label()),
            if is_alone { it.name.clone() } else { full(it) }.into(),
            it.address.map_or_else(|| "unresolved".to_owned(), |address| address.to_string()).into(),
            it.since_ms.map_or_else(|| "-".to_owned(), duration_ms).into(),
            words::of_cap(it.flows, it.max_connections).into(),
            format!("{} %", u64::from(it.flows) * 100 / flows(&it.frontend).max(1)).into(),
            rate(it.rates.flows_per_s).into(),
            bytes(it.rates.bytes_to_backend_per_s).into(),
            bytes(it.rates.bytes_to_client_per_s).into(),
            if it.last_probe_us > 0 { duration_us(it.last_probe_us) } else { "-".to_owned() }.into(),
            words::why(it).into(),
        ]);
    }
    let marked = board.backend().map(|(place, _)| place - first);
    // As bad as the worst of them.
    let (all, is_shown) = (board.status.backends().enumerate(), first..first + room);
    let hidden = all.filter(|(place, _)| !is_shown.contains(place)).map(|(_, it)| Weight::of_health(it.health_state));
    let weight = hidden.max().unwrap_or(Weight::Plain);
    let more = CutRows::new(board.status.backends().count(), first, room).line("backend");
    (lines(&grid, width, board.table == Selectable::Backends, marked), more.map(|more| painted(weight, more)))
}

fn flows_title(board: &Board) -> Line<'static> {
    let (shown, rows) = (board.rows.len() as u64, &board.rows);
    let nodes = rows.nodes().map_or_else(String::new, |nodes| format!(", {}", plural(nodes as u64, "node")));
    let mut spans = vec![(plural(shown, "flow") + &nodes).bold()];
    if let Some(backend) = rows.of_backend() {
        spans.push(format!(" of {backend}").into());
    }
    spans.extend(filter(board));
    Line::from(spans)
}

fn nodes_title(board: &Board) -> Line<'static> {
    let mut spans = vec![plural(board.nodes.len() as u64, "node").bold()];
    if let Some((report, source)) = board.nodes.report().and_then(|report| Some((report, report.source?))) {
        let weight = if report.silent > 0 { Weight::Bad } else { Weight::Plain };
        spans.push(format!(" by {}, ", source.in_words()).into());
        spans.push(painted(weight, format!("{} silent", count(report.silent))));
    }
    spans.extend(filter(board));
    Line::from(spans)
}

fn fleet_title(status: &Status) -> Line<'static> {
    let fleet = &status.fleet;
    let instances = fleet.peers.len() + usize::from(fleet.name.is_some());
    if instances == 0 {
        return Line::default();
    }
    let mut spans = vec![plural(instances as u64, "instance").bold()];
    if !fleet.disagreements.is_empty() {
        let number = plural(fleet.disagreements.len() as u64, "disagreement");
        spans.extend([", ".into(), painted(Weight::Notice, number)]);
    }
    Line::from(spans)
}

/// The filter of the lower table, which may just be typed.
fn filter(board: &Board) -> Option<Span<'static>> {
    match (&board.mode, board.filter()) {
        (Mode::Filter(_), filter) => Some(format!(" with: {filter}█").yellow()),
        (_, "") => None,
        (_, filter) => Some(format!(" with: {filter}").yellow()),
    }
}

/// The table, and what of it has no room.
fn node_lines(board: &mut Board, width: u16, room: usize) -> (Vec<Line<'static>>, CutRows) {
    let none = |why: Span<'static>| (vec![why.into()], CutRows::default());
    let Some(report) = board.nodes.report() else { return none("asks the instance for its nodes ...".dim()) };
    if report.source.is_none() {
        return none("this instance knows no nodes; `baton nodes` says what it needs".yellow());
    }
    let blind = report.sees_not_all.as_deref().map(words::sees_not_all);
    let lease_renew_ms = report.lease_renew_ms;
    let focused = board.table == Selectable::Lower;
    let (all, room) = (board.nodes.len(), room - usize::from(blind.is_some()).min(room));
    let (rows, first, marked) = board.nodes.window(room);
    let mut lines = lines(&nodes::grid(rows, lease_renew_ms), width, focused, marked);
    lines.extend(blind.map(|why| Line::from(painted(Weight::Notice, why))));
    (lines, CutRows::new(all, first, room))
}

/// The table, and what of it has no room.
fn flow_lines(board: &mut Board, width: u16, room: usize) -> (Vec<Line<'static>>, CutRows) {
    let (by, from_the_highest) = board.rows.order();
    let title = |column: Column| match column == by {
        false => column.titles()[0],
        true => column.titles()[if from_the_highest { 1 } else { 2 }],
    };
    let head = Column::ALL.map(|column| {
        let is_word = matches!(column, Column::Client | Column::Backend | Column::State);
        (title(column), if is_word { Left } else { Right })
    });
    // Whatever the flows are ordered by is shown.
    let spare = [Column::Connect, Column::ToBackend, Column::Flow, Column::ToClient, Column::Age, Column::Idle];
    let spare: Vec<_> = spare.into_iter().filter(|column| *column != by).map(title).collect();
    let mut grid = Grid::new(&head).spare(&spare);
    let is_alone = board.status.frontends.len() == 1;
    let focused = board.table == Selectable::Lower;
    let all = board.rows.len();
    let (rows, first, marked) = board.rows.window(room);
    for row in rows {
        let it = &row.flow;
        let weight = match it.state {
            _ if it.ending => Weight::Bad,
            FlowState::Proxied | FlowState::Offloaded => Weight::Plain,
            FlowState::Accepted | FlowState::Connecting => Weight::Notice,
        };
        let backend = it.backend.as_deref().unwrap_or("-");
        grid.row([
            it.node
                .as_ref()
                .map_or_else(|| it.client.to_string(), |node| format!("{node}:{}", it.client.port()))
                .into(),
            if is_alone { backend.to_owned() } else { format!("{}/{backend}", it.frontend) }.into(),
            duration_ms(it.age_ms).into(),
            duration_ms(it.idle_ms).into(),
            bytes(row.bytes_per_s).into(),
            bytes(it.bytes_to_backend as f64).into(),
            bytes(it.bytes_to_client as f64).into(),
            if it.connect_us > 0 { duration_us(it.connect_us) } else { "-".to_owned() }.into(),
            it.id.to_string().into(),
            Cell::painted(weight, if it.ending { "ending" } else { it.state.label() }),
        ]);
    }
    (lines(&grid, width, focused, marked), CutRows::new(all, first, room))
}

/// The question, what was told, or the keys.
fn foot(board: &Board, width: u16) -> Vec<Line<'static>> {
    let line = match (&board.mode, &board.told) {
        (Mode::Confirm(_, question), _) => {
            let question = question.clone().yellow().bold();
            let answers = "y: yes, any other key: no";
            if question.width() + 2 + answers.len() > width.into() {
                return vec![Line::from(question), Line::from(answers)];
            }
            Line::from(vec![question, "  ".into(), answers.into()])
        }
        (Mode::Asking(_), _) => Line::from("asks the instance for the effects ...  Esc: back".dim()),
        (Mode::Filter(_), _) => Line::from("words in a flow's columns; Enter: keep, Esc: as before".dim()),
        (_, Some((weight, told))) => Line::from(painted(*weight, told.clone())),
        (_, None) => {
            let keys = if board.takes_orders { &keys::LINE[..] } else { &keys::READ_ONLY_LINE[..] };
            Line::from(keys_line(keys, width).dim())
        }
    };
    vec![line]
}

/// Lines of reasons why clients are not served, or why this host should not have the VIP.
const REASONS: usize = 3;
/// Lines of a question.
const FOOT_MAX: u16 = 4;

#[cfg(test)]
mod tests;
