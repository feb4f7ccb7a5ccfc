//! A moment as a page: what the status page showed then, as far as it was recorded, in one file that needs no instance.

use std::collections::BTreeMap;
use std::path::Path;

use crate::admin::history::{EVERY_NS, PageHistory, PastMoment, SPAN_NS};
use crate::admin::page;
use crate::admin::page::charts::{self, TimeAxis, TimeSpan};
use crate::admin::page::html::{self, Escaped, Pill, icon, tone, write};
use crate::admin::words;
use crate::app::history::{RecordedMoment, moments};
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::model::health::HealthState;
use crate::model::humane::{count, date_and_time, duration_ms, duration_us, plural, rate};
use crate::model::weight::Weight;
use crate::recorder::past::{Past, ReplayBackend, ReplayMoment};
use crate::table::journal::What;

/// The charts reach so far back.
pub(super) const BACK_MS: u64 = SPAN_NS / 1_000_000;

/// The whole page at `at_ms`, milliseconds since 1970. `source`: where the records are from.
pub(super) fn render(past: &Past, at_ms: u64, source: &Path) -> String {
    let moment = past.at(at_ms);
    let (date, time) = date_and_time(at_ms);
    let process = moment.process.as_ref();
    let place = process.map_or_else(String::new, |it| words::place(it.instance.as_deref(), &it.host));
    let mut frontends: Vec<&str> = moment.backends.iter().map(|it| &*it.frontend).collect();
    frontends.dedup();
    let unserved: Vec<_> = frontends.iter().filter_map(|name| shortfall(&moment, name)).collect();
    let weight = worst(&moment);
    let standing = moment.standing.as_ref().filter(|it| it.weight() != Weight::Good);
    let said = standing.map(|it| &it.headline).or(unserved.first().map(|(_, what)| what));
    let said = said.map_or_else(String::new, |what| format!("{what}, "));
    let mut page = html::head(&format!("{said}{date} {time}Z: Baton on {place}"), &icon(weight), "");
    page.push_str("<main>\n<header>\n<h1>Baton</h1>");
    write(&mut page, format_args!("<span class=\"host\">{}</span>", Escaped(&place)));
    write(&mut page, format_args!("{}", Pill("plain", &format!("as it was at {date} {time} UTC"))));
    if let Some(standing) = &moment.standing {
        write(&mut page, format_args!("{}", Pill(tone(standing.weight()), &standing.headline)));
        let reasons = standing.reasons.iter().map(|reason| Pill(tone(standing.weight()), reason));
        reasons.for_each(|reason| write(&mut page, format_args!("{reason}")));
        if !standing.silence.is_empty() {
            write(&mut page, format_args!("{}", Pill("notice", &standing.silence)));
        }
    }
    unserved.iter().for_each(|(weight, what)| write(&mut page, format_args!("{}", Pill(tone(*weight), what))));
    let facts = match process {
        Some(it) => {
            let unrecorded = moment.unrecorded().map_or_else(String::new, |what| format!(" · {what}"));
            format!("version {} · pid {}{unrecorded}", it.version, it.pid)
        }
        None => moment.gap.unwrap_or_default().in_words(),
    };
    write(&mut page, format_args!("<span class=\"facts\">{}</span>\n</header>\n", Escaped(facts)));
    if process.is_some() {
        figures(&mut page, &moment);
    }
    frontends.iter().for_each(|name| frontend(&mut page, &moment, name));

    let now_ns = at_ms * 1_000_000;
    let history = history(past, &moment);
    let axis = TimeAxis::new(&history, now_ns, at_ms);
    let lately: Vec<_> = past.events(axis.from_unix_ms, at_ms).cloned().collect();
    let span = TimeSpan { title: "The ten minutes before", axis, has_moves: true };
    charts::render(&mut page, span, &frontends, &history, &lately);
    page.push_str("<div class=\"two\">\n");
    page::events(&mut page, &lately, axis.from_unix_ms);
    page::ended(&mut page, &past.ended(axis.from_unix_ms, at_ms));
    page.push_str("</div>\n");
    flows(&mut page, past, &moment);
    let source = Escaped(source.display());
    write(
        &mut page,
        format_args!("<footer><span>from <span class=\"mono\">{source}</span> · rates over 10 s</span></footer>\n"),
    );
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// What new connections of a frontend missed; `None`: a backend was ready.
fn shortfall(moment: &ReplayMoment, frontend: &str) -> Option<(Weight, String)> {
    let states = || moment.backends.iter().filter(|it| it.frontend == frontend).map(ReplayBackend::health_state);
    if states().any(|state| state == Some(HealthState::Ready)) {
        return None;
    }
    match states().any(|state| state == Some(HealthState::Draining)) {
        true => Some((Weight::Notice, format!("{frontend}: only draining backends"))),
        false => Some((Weight::Bad, format!("{frontend}: no backend"))),
    }
}

fn worst(moment: &ReplayMoment) -> Weight {
    if let Some(standing) = &moment.standing {
        let of_nodes = if standing.silence.is_empty() { Weight::Plain } else { Weight::Notice };
        return standing.weight().max(of_nodes);
    }
    let states = moment.backends.iter().map(of_backend);
    states.max().filter(|_| moment.process.is_some()).unwrap_or(Weight::Bad)
}

fn of_backend(it: &ReplayBackend) -> Weight {
    it.health_state().map_or(Weight::Plain, Weight::of_health)
}

/// `–`: it is not known.
fn rate_of(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "–".to_owned(), |per_s| rate(per_s) + " /s")
}

fn figures(page: &mut String, moment: &ReplayMoment) {
    page.push_str("<dl class=\"figures\">\n");
    for (name, value, beneath) in [
        ("Flows", count(moment.flows.into()), String::new()),
        ("New flows", rate_of(moment.new_per_s), String::new()),
        ("Ended flows", rate_of(moment.ended_per_s), moment.ended_in_words()),
    ] {
        write(page, format_args!("<div><dt>{name}</dt><dd>{value}<small>{beneath}</small></dd></div>\n"));
    }
    page.push_str("</dl>\n");
}

fn frontend(page: &mut String, moment: &ReplayMoment, name: &str) {
    let backends = || moment.backends.iter().filter(|it| it.frontend == name);
    let flows = plural(backends().map(|it| u64::from(it.flows)).sum(), "flow");
    write(page, format_args!("<section>\n<h2>{}<span class=\"facts\">{flows}</span></h2>\n", Escaped(name)));
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>State</th><th>Backend</th><th class=\"why\">Why</th><th class=\"r\">For</th>\
         <th class=\"r\">Flows</th><th>Share</th><th class=\"r\">New /s</th><th class=\"r\">Failed /s</th>\
         <th class=\"r\">Last probe</th></tr></thead>\n<tbody>\n",
    );
    for it in backends() {
        let (tone, percent) = (tone(of_backend(it)), it.share_percent);
        let lasting = it.since_unix_ms.map(|since| duration_ms(moment.at_unix_ms.saturating_sub(since)));
        write(
            page,
            format_args!(
                "<tr><td>{}</td><td><b>{}</b></td><td class=\"why\">{}</td><td class=\"r\" data-of=\"For\">{}</td>\
                 <td class=\"r\" data-of=\"Flows\">{}</td><td data-of=\"Share\"><span class=\"bar\" title=\"{percent} % of the \
                 frontend&#39;s flows\"><i class=\"{tone}\" style=\"width:{percent}%\"></i></span></td>\
                 <td class=\"r\" data-of=\"New /s\">{}</td><td class=\"r\" data-of=\"Failed /s\">{}</td>\
                 <td class=\"r\" data-of=\"Last probe\">{}</td></tr>\n",
                Pill(tone, &it.state),
                Escaped(&it.name),
                Escaped(it.why.as_deref().unwrap_or("–")),
                lasting.unwrap_or_else(|| "–".to_owned()),
                count(it.flows.into()),
                it.new_per_s.map_or_else(|| "–".to_owned(), rate),
                it.failed_per_s.map_or_else(|| "–".to_owned(), rate),
                if it.last_probe_us > 0 { duration_us(it.last_probe_us) } else { "–".to_owned() },
            ),
        );
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

/// What the charts draw, from the samples: one of a second, where the page of a running instance has one of two. The last one has the
/// figures of `at`, as the headline.
fn history(past: &Past, at: &ReplayMoment) -> PageHistory {
    let at_ms = at.at_unix_ms;
    let from_ms = at_ms.saturating_sub(BACK_MS);
    let slot_ms = EVERY_NS / 1_000_000;
    let mut ended = BTreeMap::<u64, [f32; EndReason::ALL.len()]>::new();
    for (ended_ms, reason) in past.ends(from_ms, at_ms) {
        let of_slot = ended.entry(ended_ms / slot_ms).or_insert([0.0; EndReason::ALL.len()]);
        of_slot[reason as usize] += 1000.0 / slot_ms as f32;
    }
    let samples: Vec<_> = past.samples(from_ms, at_ms).iter().map(|(process, sample)| (*process, sample)).collect();
    let (mut history, mut last) = (PageHistory::default(), PastMoment::NONE);
    for RecordedMoment { sample, mut moment } in moments(&samples, 0) {
        // To the millisecond, which samples are not.
        if let Some(of_slot) = ended.get(&(sample.at_unix_ms / slot_ms)) {
            moment.ended_per_s = *of_slot;
        }
        last = moment;
        history.put(sample.at_unix_ms * 1_000_000, moment, sample.flows_by_backend());
    }
    if at.process.is_some() {
        let all = at.ended.values().sum::<u64>().max(1) as f64;
        let per_s = |reason: &EndReason| {
            at.ended.get(reason.label()).map_or(0.0, |ends| *ends as f64 / all) * at.ended_per_s.unwrap_or(0.0)
        };
        last.ended_per_s = std::array::from_fn(|reason| per_s(&EndReason::ALL[reason]) as f32);
        (last.flows, last.accepted_per_s) = (at.flows, at.new_per_s.unwrap_or(0.0) as f32);
        let bands = at.backends.iter().map(|it| (&*it.frontend, &*it.name, it.flows));
        history.put(at_ms * 1_000_000, last, bands);
    }
    history
}

/// Those that have ended since; of one that still lives nothing was written.
fn flows(page: &mut String, past: &Past, moment: &ReplayMoment) {
    let at_ms = moment.at_unix_ms;
    let ends: Vec<_> = past.ended_since(at_ms).collect();
    let shown = if ends.len() > FLOWS { format!(", the first {}", count(FLOWS as u64)) } else { String::new() };
    let known = match past.lacks_ends(at_ms) {
        true => "and more: the record has only the youngest ends",
        false => "as far as was recorded",
    };
    write(
        page,
        format_args!(
            "<section>\n<h2>Flows of this moment<span class=\"facts\">{} of {} have ended since, {known}{shown}</span></h2>\n",
            count(ends.len() as u64),
            count(moment.flows.into()),
        ),
    );
    if ends.is_empty() {
        page.push_str(
            "<p class=\"none\">The record has no end of any: a flow is written when it ends, and a process that is killed writes nothing.</p>\n</section>\n",
        );
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Client</th><th>Backend</th><th class=\"r\">Age</th><th class=\"r\">Ends in</th>\
         <th>Reason</th></tr></thead>\n<tbody>\n",
    );
    for event in ends.iter().take(FLOWS) {
        let What::FlowEnded { client, node, backend, reason, duration_ms: lasted_ms, .. } = &event.what else {
            continue;
        };
        let left_ms = event.at_unix_ms - at_ms;
        let weight = if reason.client_saw() == ClientSaw::Rst { Weight::Notice } else { Weight::Plain };
        write(
            page,
            format_args!(
                "<tr><td><b>{}</b><small class=\"mono\">{client}</small></td><td data-of=\"Backend\">{}</td>\
                 <td class=\"r\" data-of=\"Age\">{}</td><td class=\"r\" data-of=\"Ends in\">{}</td><td>{}</td></tr>\n",
                Escaped(node.as_deref().unwrap_or("")),
                Escaped(backend.as_deref().unwrap_or("–")),
                duration_ms(lasted_ms.saturating_sub(left_ms)),
                duration_ms(left_ms),
                Pill(tone(weight), reason.label()),
            ),
        );
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

/// Rows of flows.
const FLOWS: usize = 500;
