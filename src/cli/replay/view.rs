//! Draws a moment: the time line with the flows and the events, the backends, and what had happened.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, SparklineBar};

use super::player::{HELP, LINE, LowerList, Player};
use crate::admin::words;
use crate::cli::grid::{Align::*, Cell, Grid};
use crate::cli::panes::{CutRows, beside_corner, draw_help, keys_line, lines, painted};
use crate::cli::wrap::wrap;
use crate::model::end_reason::ClientSaw;
use crate::model::humane::{count, date_and_time, duration_ms, duration_us, plural, rate};
use crate::model::weight::Weight;
use crate::recorder::past::{ReplayBackend, ReplayMoment};
use crate::table::journal::{Event, What};

/// Fills the frame.
pub(super) fn draw(frame: &mut Frame<'_>, player: &mut Player) {
    let [at_body, at_keys] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    draw_body(frame, at_body, player);
    frame.render_widget(Paragraph::new(keys_line(&LINE, at_keys.width).dim()), at_keys);
    if player.helps {
        draw_help(frame, at_body, &HELP);
    }
}

/// Fills `area`, without the line of keys.
pub(super) fn draw_body(frame: &mut Frame<'_>, area: Rect, player: &mut Player) {
    let moment = player.past.at(player.at_ms);
    let backends = (moment.backends.len() as u16).min(area.height / 3);
    let clock = Line::from(clock(player));
    let head = head(&moment, area.width, clock.width());
    let [at_head, at_chart, at_marks, at_scale, _, at_backends, _, at_title, at_list] = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Length(CHART),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(backends + 1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head), at_head);
    let corner = Rect { height: 1, ..at_head };
    frame.render_widget(Paragraph::new(clock.alignment(Alignment::Right)), corner);
    draw_scale(frame, [at_chart, at_marks, at_scale], player);
    let mut rows = lines(&backend_rows(&moment, player.at_ms), area.width, false, None);
    let cut = CutRows::new(moment.backends.len(), 0, usize::from(at_backends.height).saturating_sub(1));
    if cut.below > 0 {
        // In the last row.
        let shown = usize::from(at_backends.height).saturating_sub(2);
        rows.truncate(1 + shown);
        let hidden = moment.backends.iter().skip(shown).filter_map(ReplayBackend::health_state).map(Weight::of_health);
        let more = CutRows::new(moment.backends.len(), 0, shown).line("backend").unwrap_or_default();
        rows.push(painted(hidden.max().unwrap_or(Weight::Plain), more).into());
    }
    frame.render_widget(Paragraph::new(rows), at_backends);
    let room = usize::from(at_list.height);
    let (title, rows) = match player.lower {
        LowerList::Events => event_rows(player, area.width, room),
        LowerList::Flows => flow_rows(player, &moment, area.width, room),
    };
    frame.render_widget(Paragraph::new(Line::from(title.bold())), at_title);
    frame.render_widget(Paragraph::new(rows), at_list);
}

fn clock(player: &Player) -> Vec<Span<'static>> {
    let (date, time) = date_and_time(player.at_ms);
    let pace = match (player.is_playing(), player.speed()) {
        (false, 1) => String::new(),
        (false, speed) => format!("{speed}x  "),
        (true, speed) => format!("▶ {speed}x  "),
    };
    vec![format!(" {pace}{date} ").into(), format!("{time}Z").bold()]
}

/// `corner`: columns of the clock.
fn head(moment: &ReplayMoment, width: u16, corner: usize) -> Vec<Line<'static>> {
    let Some(process) = &moment.process else {
        let nothing = moment.gap.unwrap_or_default().in_words();
        let nothing = wrap(&format!("No figures: {nothing}."), Some(width.into()));
        let lines = nothing.lines().map(|line| Line::from(painted(Weight::Bad, line.to_owned()).bold()));
        return std::iter::once(Line::from("")).chain(lines).collect();
    };
    let name = words::place(process.instance.as_deref(), &process.host);
    let ended = moment.ended_in_words();
    let mut first = vec![format!("Baton {}", process.version).bold(), format!(" on {name}").into()];
    if let Some(standing) = &moment.standing {
        first.extend([": ".into(), painted(standing.weight(), standing.headline.clone()).bold()]);
    }
    first.push(format!(", pid {}", process.pid).into());
    let mut lines = beside_corner(Line::from(first), corner, width);
    lines.push(Line::from(vec![
        plural(moment.flows.into(), "flow").bold(),
        format!(", {} new/s, {} ended/s", rate_of(moment.new_per_s), rate_of(moment.ended_per_s)).into(),
    ]));
    let mut say = |weight: Weight, text: &str| {
        let text = wrap(text, Some(width.into()));
        lines.extend(text.lines().map(|line| Line::from(painted(weight, line))));
    };
    if let Some(standing) = &moment.standing {
        standing.reasons.iter().for_each(|reason| say(standing.weight(), reason));
        say(Weight::Notice, &standing.silence);
    }
    say(Weight::Plain, moment.unrecorded().unwrap_or_default());
    if !ended.is_empty() {
        let ended = wrap(&format!("ended in 10 s: {ended}"), Some(width.into()));
        lines.extend(ended.lines().take(ENDED_MAX).map(|line| Line::from(line.to_owned())));
    }
    lines
}

/// The flows as bars, the events beneath as marks, and the moment.
fn draw_scale(frame: &mut Frame<'_>, [at_chart, at_marks, at_scale]: [Rect; 3], player: &Player) {
    let columns = usize::from(at_chart.width);
    if columns == 0 {
        // A serial console that does not know its width.
        return;
    }
    let (from_ms, until_ms) = (player.from_ms, player.until_ms);
    let column = |at_ms: u64| -> usize {
        let part = at_ms.saturating_sub(from_ms) as f64 / (until_ms - from_ms).max(1) as f64;
        ((part * columns as f64) as usize).min(columns.saturating_sub(1))
    };
    let here = column(player.at_ms);
    let flows = player.past.flows_over(from_ms, until_ms, columns);
    let most = flows.iter().flatten().copied().max().unwrap_or(0);
    let bars = flows.into_iter().enumerate().map(|(place, flows)| {
        let style = if place > here { Style::new().dark_gray() } else { Style::new().cyan() };
        SparklineBar::from(flows.map(u64::from)).style(Some(style))
    });
    let chart =
        Sparkline::default().data(bars.collect::<Vec<_>>()).max(u64::from(most.max(1))).absent_value_symbol("·");
    frame.render_widget(chart, at_chart);
    let mut marks = vec![Span::from(" "); columns];
    let mut worst = vec![None; columns];
    for event in player.past.events(from_ms, until_ms) {
        let (place, weight) = (column(event.at_unix_ms), event.what.weight());
        if worst[place].is_none_or(|before| before < weight) {
            worst[place] = Some(weight);
            marks[place] = painted(weight, "●");
        }
    }
    if let Some(mark) = marks.get_mut(here) {
        *mark = if worst[here].is_some() { mark.clone().reversed() } else { Span::from("▲").bold() };
    }
    frame.render_widget(Paragraph::new(Line::from(marks)), at_marks);
    let [(_, first), (_, last)] = [from_ms, until_ms].map(date_and_time);
    let middle = format!("flows, at most {}; ● events", count(most.into()));
    frame.render_widget(Paragraph::new(format!("{first}Z").dim()), at_scale);
    frame.render_widget(Paragraph::new(middle.dim()).alignment(Alignment::Center), at_scale);
    frame.render_widget(Paragraph::new(format!("{last}Z").dim()).alignment(Alignment::Right), at_scale);
}

fn backend_rows(moment: &ReplayMoment, at_ms: u64) -> Grid {
    let mut grid = Grid::new(&[
        ("STATE", Left),
        ("BACKEND", Left),
        ("FOR", Right),
        ("FLOWS", Right),
        ("SHARE", Right),
        ("NEW/S", Right),
        ("FAILED/S", Right),
        ("PROBE", Right),
        ("WHY", Left),
    ])
    .spare(&["PROBE", "FAILED/S", "NEW/S", "SHARE"]);
    let is_alone = moment.backends.iter().all(|it| it.frontend == moment.backends[0].frontend);
    for it in &moment.backends {
        let ReplayBackend { frontend, name, state, .. } = it;
        let weight = it.health_state().map_or(Weight::Plain, Weight::of_health);
        grid.row([
            Cell::painted(weight, state.clone()),
            if is_alone { name.clone() } else { format!("{frontend}/{name}") }.into(),
            it.since_unix_ms.map_or_else(|| "-".to_owned(), |since| duration_ms(at_ms.saturating_sub(since))).into(),
            count(it.flows.into()).into(),
            format!("{} %", it.share_percent).into(),
            rate_of(it.new_per_s).into(),
            rate_of(it.failed_per_s).into(),
            if it.last_probe_us > 0 { duration_us(it.last_probe_us) } else { "-".to_owned() }.into(),
            it.why.clone().unwrap_or_else(|| "-".to_owned()).into(),
        ]);
    }
    grid
}

/// `-`: it is not known.
fn rate_of(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "-".to_owned(), rate)
}

/// The events up to the moment, the last one first, and how many have no room.
fn event_rows(player: &mut Player, width: u16, room: usize) -> (String, Vec<Line<'static>>) {
    let events: Vec<_> = player.past.events(0, player.at_ms).rev().collect();
    player.top = player.top.min(events.len().saturating_sub(1));
    let in_lines = |event: &Event| -> Vec<Line<'static>> {
        let (_, time) = date_and_time(event.at_unix_ms);
        let text = wrap(&format!("{time}Z {}", event.what.sentence()), Some(width.into()));
        let weight = event.what.weight();
        let mut parts = text.lines();
        let first = parts.next().and_then(|first| first.strip_prefix(&format!("{time}Z "))).unwrap_or_default();
        let first = Line::from(vec![format!("{time}Z ").dim(), painted(weight, first.to_owned())]);
        std::iter::once(first).chain(parts.map(|part| painted(weight, part.to_owned()).into())).collect()
    };
    let (mut rows, mut shown) = (Vec::new(), 0);
    for event in events.iter().skip(player.top) {
        let lines = in_lines(event);
        // The beginning of one that is too long is better than nothing.
        if rows.len() + lines.len() > room && !rows.is_empty() || room == 0 {
            break;
        }
        rows.extend(lines);
        shown += 1;
    }
    let more = CutRows::new(events.len(), player.top, shown).beside_title();
    (format!("Events up to this moment{more}, the last one first"), rows)
}

/// The flows of the moment that have ended since, in the order of their ends.
fn flow_rows(player: &mut Player, moment: &ReplayMoment, width: u16, room: usize) -> (String, Vec<Line<'static>>) {
    let mut grid =
        Grid::new(&[("CLIENT", Left), ("BACKEND", Left), ("AGE", Right), ("ENDS IN", Right), ("REASON", Left)]);
    let ends: Vec<_> = player.past.ended_since(player.at_ms).collect();
    let known = ends.len();
    player.top = player.top.min(known.saturating_sub(1));
    // The head has a row.
    let room = room.saturating_sub(1);
    for event in ends.into_iter().skip(player.top).take(room) {
        let What::FlowEnded { client, node, backend, reason, duration_ms: lasted_ms, .. } = &event.what else {
            continue;
        };
        let left_ms = event.at_unix_ms - player.at_ms;
        let weight = if reason.client_saw() == ClientSaw::Rst { Weight::Notice } else { Weight::Plain };
        grid.row([
            node.as_ref().map_or_else(|| client.to_string(), |node| format!("{node}:{}", client.port())).into(),
            backend.clone().unwrap_or_else(|| "-".to_owned()).into(),
            duration_ms(lasted_ms.saturating_sub(left_ms)).into(),
            duration_ms(left_ms).into(),
            Cell::painted(weight, reason.label()),
        ]);
    }
    let more = CutRows::new(known, player.top, room).beside_title();
    let (lived, known) = (plural(moment.flows.into(), "flow"), count(known as u64));
    let title = match player.past.lacks_ends(player.at_ms) {
        true => format!(
            "{lived} of this moment, at least {known} of which have ended since{more}: the record has only the youngest ends"
        ),
        false => format!("{lived} of this moment, {known} of which have ended since{more}"),
    };
    (title, lines(&grid, width, false, None))
}

/// Lines of the reasons of ends.
const ENDED_MAX: usize = 3;
/// Rows of the bars.
const CHART: u16 = 3;

#[cfg(test)]
mod tests;
