//! The section of the whole fleet: a row per instance, as it sees itself, and each backend as each instance sees it.

use std::collections::BTreeSet;

use super::html::{Escaped, Pill, tone, write};
use crate::admin::status::{FleetMatrix, MatrixColumn, Status};
use crate::admin::words;
use crate::model::fleet::{InstanceSummary, Liveness, MemberView, OffloadBrief};
use crate::model::humane::{count, date_and_time, duration_ms, list, plural, rate};
use crate::model::weight::Weight;

pub(super) fn render(page: &mut String, status: &Status) {
    let matrix = FleetMatrix::of(&status.fleet);
    let columns = &matrix.columns;
    if columns.is_empty() {
        return;
    }
    let versions: BTreeSet<_> =
        columns.iter().map(|it| version(status, it)).filter(|version| !version.is_empty()).collect();
    let versions = match versions.len() {
        0 | 1 => String::new(),
        _ => format!(" · {} run", list(&versions.iter().collect::<Vec<_>>())),
    };
    write(
        page,
        format_args!(
            "<section id=\"fleet\">\n<h2>Fleet<span class=\"facts\">{}{}</span></h2>\n",
            plural(columns.len() as u64, "instance"),
            Escaped(versions),
        ),
    );
    // The headline has the first.
    if status.fleet.disagreements.len() > 1 {
        page.push_str("<ul class=\"dispute notice\">");
        let lines = status.fleet.disagreements.iter().map(words::disagreement);
        lines.for_each(|line| write(page, format_args!("<li>{}</li>", Escaped(line))));
        page.push_str("</ul>\n");
    }
    page.push_str(
        "<div class=\"scroll\"><table class=\"instances\">\n<thead><tr><th>State</th><th>Instance</th><th class=\"why\">Why, and its worst \
         event of the last hour</th><th>Has the VIP</th><th class=\"r\">Flows</th><th class=\"r\">Offloaded</th><th class=\"r\">New /s</th>\
         <th>Offload</th><th class=\"r\">Silent nodes</th></tr></thead>\n<tbody>\n",
    );
    columns.iter().for_each(|it| instance(page, status, it));
    page.push_str("</tbody></table></div>\n");
    backends(page, &matrix);
    page.push_str("</section>\n");
}

/// The release of an instance; empty: not known.
fn version<'a>(status: &'a Status, column: &MatrixColumn<'a>) -> &'a str {
    column.peer.map_or(&status.instance.version, |peer| &peer.version)
}

/// Why an instance is not heard, or says nothing of itself.
fn why_not<'a>(column: &MatrixColumn<'a>) -> &'a str {
    match column.peer {
        Some(MemberView { why_not: Some(why_not), .. }) => why_not,
        Some(peer) if column.summary.is_none() && peer.liveness == Liveness::Alive => {
            "its release says nothing of itself"
        }
        _ => "",
    }
}

fn instance(page: &mut String, status: &Status, it: &MatrixColumn<'_>) {
    let (weight, state) = match (it.peer, it.summary) {
        (Some(peer), _) => words::peer(peer),
        (None, Some(own)) => words::summary(own),
        (None, None) => words::instance(&status.instance),
    };
    let vips = list(it.peer.map_or(&status.fleet.vips, |peer| &peer.vips));
    let none = InstanceSummary::default();
    let said = it.summary.unwrap_or(&none);
    let reasons = words::reasons(said);
    let mut why: Vec<_> = reasons.iter().map(String::as_str).collect();
    if said.reload_refused {
        why.push("it refused its last reload, and runs with the configuration before it");
    }
    if !it.is_present {
        why = vec![why_not(it)];
    }
    let event = said.worst_event.as_ref().map(|event| {
        let time = date_and_time(event.at_unix_ms).1;
        format!("<small class=\"{}\">{time} {}</small>", tone(event_weight(event.is_bad)), Escaped(&event.sentence))
    });
    let age = match it.summary {
        Some(_) if !it.is_present => format!("as it was {} ago", duration_ms(it.age_ms)),
        Some(said) => format!("up {}", duration_ms(said.uptime_ms.saturating_add(it.age_ms))),
        None => String::new(),
    };
    let facts: Vec<_> = [version(status, it), &age].into_iter().filter(|fact| !fact.is_empty()).collect();
    let known = |text: String| if it.summary.is_some() { text } else { "–".to_owned() };
    let offload = match said.offload {
        OffloadBrief::On => Pill("plain", "on").to_string(),
        OffloadBrief::Off => Pill("plain", "off").to_string(),
        OffloadBrief::Stopped => Pill("bad", "stopped").to_string(),
    };
    let silent = said.silent_nodes.map_or_else(|| "–".to_owned(), count);
    write(
        page,
        format_args!(
            "<tr{}><td>{}</td><td><b>{}</b><small>{}</small></td><td class=\"why\">{}{}</td>\
             <td data-of=\"Has the VIP\"><span class=\"mono\">{}</span></td><td class=\"r\" data-of=\"Flows\">{}</td>\
             <td class=\"r\" data-of=\"Offloaded\">{}</td><td class=\"r\" data-of=\"New /s\">{}</td>\
             <td data-of=\"Offload\">{}</td><td class=\"r\" data-of=\"Silent nodes\">{}</td></tr>\n",
            if it.is_present { "" } else { " class=\"old\"" },
            Pill(tone(weight), state),
            Escaped(it.instance),
            Escaped(facts.join(" · ")),
            Escaped(why.join("; ")),
            event.unwrap_or_default(),
            if vips.is_empty() { "–" } else { &vips },
            known(count(said.flows_proxied.saturating_add(said.flows_offloaded))),
            known(count(said.flows_offloaded)),
            known(rate(said.new_flows_per_10_s as f64 / 10.0)),
            known(offload),
            silent,
        ),
    );
}

fn event_weight(is_bad: bool) -> Weight {
    if is_bad { Weight::Bad } else { Weight::Notice }
}

/// Each backend as each instance sees it.
fn backends(page: &mut String, matrix: &FleetMatrix<'_>) {
    let FleetMatrix { columns, rows } = matrix;
    if rows.is_empty() {
        return;
    }
    page.push_str("<div class=\"scroll\"><table class=\"matrix\">\n<thead><tr><th>Backend, as seen by</th>");
    columns.iter().for_each(|it| write(page, format_args!("<th>{}</th>", Escaped(it.instance))));
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let disputed = if row.is_disputed { " class=\"disputed notice\"" } else { "" };
        let (frontend, name) = (Escaped(row.frontend), Escaped(row.backend));
        write(page, format_args!("<tr{disputed}><td><b>{name}</b><small>{frontend}</small></td>"));
        for column in columns {
            let seen = column.sees(row);
            let old = if column.is_present { "" } else { " class=\"old\"" };
            let pill = match seen.state {
                "–" => "–".to_owned(),
                state => Pill(tone(seen.weight), state).to_string(),
            };
            let separator = if seen.why.is_empty() { "" } else { ": " };
            let (instance, about) = (Escaped(column.instance), Escaped([&seen.when, separator, seen.why].concat()));
            write(page, format_args!("<td{old} data-of=\"{instance}\">{pill}<small>{about}</small></td>"));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    for (name, number) in matrix.left_out() {
        let number = plural(number.into(), "backend");
        write(page, format_args!("<p class=\"none\">{} says nothing of {number} more.</p>\n", Escaped(name)));
    }
}
