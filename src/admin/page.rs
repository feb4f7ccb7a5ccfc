//! The status page, rendered entirely on the server, so that it works without scripts. The script only gets the
//! changing parts (class `live`) anew, by server-sent events, and shows when the instance does not answer.

pub(crate) mod charts;
mod fleet;
pub(crate) mod html;
mod lists;
mod timeline;

use std::collections::BTreeMap;
use std::time::Duration;

use super::Admin;
use super::control::LastReload;
use super::search::PageLists;
use super::status::{BackendStatus, FrontendStatus, Instance, PeersReport, Status, WorkerCondition};
use super::words;
use crate::model::end_reason::EndReason;
use crate::model::humane::{bytes, count, date_and_time, duration_ms, duration_us, plural, rate};
use crate::model::weight::Weight;
use crate::table::backend::Service;
use crate::table::fleet::MemberView;
use crate::table::flows::FlowState;
use crate::table::journal::Event;
use charts::{TimeAxis, TimeSpan};
use html::{Escaped, Pill, STYLE, icon, tone, write};
pub(crate) use lists::parts as parts_of_lists;

/// What the page shows to all readers alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageView {
    pub title: String,
    /// A URL.
    pub icon: String,
    now: String,
    charts: String,
    past: String,
    foot: String,
}

impl PageView {
    /// It may walk the table: call it on a blocking thread.
    pub(crate) fn gather(admin: &Admin, now_ns: u64) -> Self {
        let status = Status::gather(admin, now_ns);
        let shortfall = words::shortfall(&status);
        let silence = words::silence(&status.nodes);
        let dispute = words::dispute(&status.fleet);
        let notice = dispute.as_ref().or(silence.as_ref());
        let (weight, word) = match (words::instance(&status.instance), &shortfall, notice) {
            ((Weight::Bad, word), ..) => (Weight::Bad, word),
            (_, Some((weight, what)), _) => (*weight, what.as_str()),
            ((Weight::Good, _), None, Some((what, _))) => (Weight::Notice, what.as_str()),
            (well, None, _) => well,
        };
        // In a row of browser tabs only these two are visible.
        let title = match weight {
            Weight::Good => format!("Baton on {}", words::place_of(&status)),
            _ => format!("{word}: Baton on {}", words::place_of(&status)),
        };
        let mut view = Self { title, icon: icon(weight), ..Self::default() };
        let notices = [&dispute, &silence].into_iter().flatten().map(|(_, sentence)| sentence.as_str());
        let notices: Vec<_> = notices.collect();
        view.now.push_str("<div class=\"live\" id=\"now\">\n");
        header(&mut view.now, &status, shortfall.as_ref(), &notices);
        troubles(&mut view.now, &status);
        figures(&mut view.now, &status);
        fleet::render(&mut view.now, &status);
        status.frontends.iter().for_each(|it| frontend(&mut view.now, it));
        peers(&mut view.now, &status.fleet);
        view.now.push_str("</div>\n");
        let history = admin.history();
        let axis = TimeAxis::new(&history, now_ns, status.at_unix_ms);
        let told = admin.events();
        let frontends: Vec<_> = status.frontends.iter().map(|it| it.name.as_str()).collect();
        let has_moves = status.fleet.name.is_some() || status.vip.is_some();
        let span = TimeSpan { title: "The last ten minutes", axis, has_moves };
        charts::render(&mut view.charts, span, &frontends, &history, &told);
        drop(history);
        view.past.push_str("<div class=\"live\" id=\"past\">\n<div class=\"two\">\n");
        events(&mut view.past, &told, axis.from_unix_ms);
        ended(&mut view.past, &status.totals.ended_total);
        view.past.push_str("</div>\n</div>\n");
        footer(&mut view.foot, &status);
        view
    }

    /// The parts that change: the id of each element, and the element.
    pub(crate) fn parts(&self) -> [(&'static str, &str); 4] {
        [("now", &self.now), ("charts", &self.charts), ("past", &self.past), ("foot", &self.foot)]
    }
}

/// The whole page. A reader without server-sent events asks for it anew after `again`.
pub(crate) fn render(view: &PageView, lists: &PageLists, again: Duration) -> String {
    let again_s = again.as_secs() + 1;
    let refresh = format!("<noscript><meta http-equiv=\"refresh\" content=\"{again_s}\"></noscript>\n");
    let (mut page, build) = (html::head(&view.title, &view.icon, &refresh), build());
    page.push_str("<p id=\"lost\" role=\"alert\" hidden></p>\n");
    let again_ms = again.as_millis();
    write(&mut page, format_args!("<main data-again=\"{again_ms}\" data-build=\"{build}\">\n"));
    [&view.now, &view.charts, &view.past].into_iter().for_each(|part| page.push_str(part));
    lists::render(&mut page, lists);
    page.push_str(&view.foot);
    write(&mut page, format_args!("</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"));
    page
}

/// Differs between two versions of the page itself: a page that is open loads itself anew.
pub(crate) fn build() -> String {
    let mut sum = crc32fast::Hasher::new();
    [env!("CARGO_PKG_VERSION"), STYLE, SCRIPT].iter().for_each(|part| sum.update(part.as_bytes()));
    format!("{:08x}", sum.finalize())
}

/// Two facts: whether this host should have the VIP, and whether clients are served. And what else is not well.
fn header(page: &mut String, status: &Status, shortfall: Option<&(Weight, String)>, notices: &[&str]) {
    let instance = &status.instance;
    let (weight, word) = words::instance(instance);
    // A VIP at no instance is a trouble of its own.
    let place = status.vip.as_ref().map(words::vip).filter(|(weight, _)| *weight == Weight::Plain);
    let place = place.map(|(_, place)| format!(" · {place}")).unwrap_or_default();
    let ready = match shortfall {
        _ if weight == Weight::Good && words::barred(status).is_some() => {
            Pill(tone(Weight::Bad), words::BARRED).to_string()
        }
        // Green only if everything is well.
        Some(_) if weight == Weight::Good => Pill("plain", "ready for the VIP").to_string(),
        None if weight == Weight::Good && !notices.is_empty() => Pill("plain", word).to_string(),
        _ => Pill(tone(weight), word).to_string(),
    };
    let served = shortfall.map(|(weight, what)| Pill(tone(*weight), what).to_string()).unwrap_or_default();
    let notices: String = notices.iter().map(|sentence| Pill("notice", sentence).to_string()).collect();
    write(
        page,
        format_args!(
            "<header>\n<h1>Baton</h1><span class=\"host\">{}</span>{ready}{served}{notices}\n<span class=\"facts\">{}{} · version {} · pid {} · \
             up {} · {}</span>\n</header>\n",
            Escaped(words::place_of(status)),
            words::vips(&instance.vips),
            Escaped(place),
            Escaped(&instance.version),
            instance.pid,
            duration_ms(instance.uptime_ms),
            Escaped(workers(instance)),
        ),
    );
}

fn workers(instance: &Instance) -> String {
    let mut text = plural(instance.workers.len() as u64, "worker");
    let paused = instance.workers.iter().filter(|worker| worker.state == WorkerCondition::AcceptPaused).count();
    if paused > 0 {
        text += &format!(", {paused} not accepting: out of file descriptors");
    }
    text
}

fn troubles(page: &mut String, status: &Status) {
    let instance = &status.instance;
    let mut trouble = |tone: &str, what: &str, lines: &[String]| {
        if lines.is_empty() {
            return;
        }
        write(page, format_args!("<section class=\"trouble {tone}\"><h2>{what}</h2><ul>"));
        lines.iter().for_each(|line| write(page, format_args!("<li>{}</li>", Escaped(line))));
        page.push_str("</ul></section>\n");
    };
    for frontend in status.frontends.iter().filter(|it| !it.removed && it.service.state != Service::Ready) {
        let tone = tone(words::of_service(frontend.service.state));
        trouble(tone, &Escaped(&frontend.name).to_string(), std::slice::from_ref(&frontend.service.in_words));
    }
    trouble("bad", "Not live", &instance.not_live);
    trouble(if instance.phase == "serving" { "bad" } else { "notice" }, "Not ready", &instance.not_ready);
    if let Some((Weight::Bad, place)) = status.vip.as_ref().map(words::vip) {
        trouble("bad", "No VIP", &[place]);
    }
    if status.offload.stopped {
        trouble("bad", "Offload has stopped", &[words::STOPPED.to_owned()]);
    }
    if let LastReload::Refused { at_unix_ms, errors } = &instance.config.last_reload {
        let (date, time) = date_and_time(*at_unix_ms);
        let what = format!("The configuration of {date} {time} UTC was refused; the one before it runs");
        trouble("bad", &what, errors);
    }
}

fn figures(page: &mut String, status: &Status) {
    let totals = &status.totals;
    let states = FlowState::ALL.iter().map(|state| (totals.flows.of(*state), state.label()));
    let states = states.chain([(totals.flows.ending, "about to be ended")]).filter(|(flows, _)| *flows > 0);
    let beneath: Vec<_> = states.map(|(flows, state)| format!("{} {state}", count(flows))).collect();
    let beneath = beneath.join(", ");
    page.push_str("<dl class=\"figures\">\n");
    for (name, value, beneath) in [
        ("Flows", count(totals.flows.sum()), beneath),
        (
            "New flows",
            rate(totals.rates.flows_per_s) + " /s",
            format!("{} since the start", count(totals.accepted_total)),
        ),
        (
            "To backends",
            bytes(totals.rates.bytes_to_backend_per_s) + "/s",
            format!("{} since the start", bytes(totals.bytes_to_backend_total as f64)),
        ),
        (
            "To clients",
            bytes(totals.rates.bytes_to_client_per_s) + "/s",
            format!("{} since the start", bytes(totals.bytes_to_client_total as f64)),
        ),
    ] {
        write(page, format_args!("<div><dt>{name}</dt><dd>{value}<small>{beneath}</small></dd></div>\n"));
    }
    page.push_str("</dl>\n");
}

fn frontend(page: &mut String, frontend: &FrontendStatus) {
    let balance = match (&frontend.balance, frontend.removed) {
        (_, true) => "removed; its flows go on until their deadline",
        (Some(balance), false) => balance,
        (None, false) => "",
    };
    write(
        page,
        format_args!(
            "<section>\n<h2>{} <span class=\"mono\">{}</span><span class=\"facts\">{} · {} · {} /s</span></h2>\n",
            Escaped(&frontend.name),
            Escaped(words::listen(frontend, "  ")),
            Escaped(balance),
            words::flows_of_cap(frontend.flows, frontend.max_connections),
            rate(frontend.rates.flows_per_s),
        ),
    );
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>State</th><th>Backend</th><th class=\"why\">Why</th><th class=\"r\">For</th>\
         <th class=\"r\">Flows</th><th>Share</th><th class=\"r\">New /s</th><th class=\"r\">To backend /s</th>\
         <th class=\"r\">To client /s</th><th class=\"r\">Connect</th><th class=\"r\">Failed</th></tr></thead>\n<tbody>\n",
    );
    let flows: u64 = frontend.backends.iter().map(|it| u64::from(it.flows)).sum();
    frontend.backends.iter().for_each(|it| backend(page, it, flows));
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn backend(page: &mut String, it: &BackendStatus, flows_of_all: u64) {
    let percent = u64::from(it.flows) * 100 / flows_of_all.max(1);
    let address = it.address.map_or_else(|| "no address".to_owned(), |address| address.to_string());
    let probe = it.last_probe.as_ref().map(|probe| match it.last_probe_us {
        0 => format!("last probe: {probe}"),
        us => format!("last probe: {probe}, {}", duration_us(us)),
    });
    let failed: u64 = it.connect_failures_total.values().sum();
    let kinds: Vec<_> = it.connect_failures_total.iter().map(|(kind, n)| format!("{kind} {}", count(*n))).collect();
    let tone = tone(Weight::of_health(it.health_state));
    write(
        page,
        format_args!(
            "<tr><td>{}</td><td><b>{}</b><small class=\"mono\">{}</small></td><td class=\"why\">{}<small>{}</small></td>\
             <td class=\"r\" data-of=\"For\">{}</td><td class=\"r\" data-of=\"Flows\">{}</td>\
             <td data-of=\"Share\"><span class=\"bar\" title=\"{percent} % of the frontend's flows; weight {}\">\
             <i class=\"{tone}\" style=\"width:{percent}%\"></i></span></td>\
             <td class=\"r\" data-of=\"New /s\">{}</td><td class=\"r\" data-of=\"To backend /s\">{}</td>\
             <td class=\"r\" data-of=\"To client /s\">{}</td><td class=\"r\" data-of=\"Connect\">{}</td>\
             <td class=\"r\" data-of=\"Failed\" title=\"{}\">{}</td></tr>\n",
            Pill(tone, it.health_state.label()),
            Escaped(&it.name),
            Escaped(address),
            Escaped(words::why(it)),
            Escaped(probe.unwrap_or_default()),
            it.since_ms.map_or_else(|| "–".to_owned(), duration_ms),
            words::of_cap(it.flows, it.max_connections),
            it.weight,
            rate(it.rates.flows_per_s),
            bytes(it.rates.bytes_to_backend_per_s),
            bytes(it.rates.bytes_to_client_per_s),
            it.connect_mean_us.map_or_else(|| "–".to_owned(), duration_us),
            Escaped(kinds.join(", ")),
            count(failed),
        ),
    );
}

fn peers(page: &mut String, fleet: &PeersReport) {
    let Some(name) = &fleet.name else { return };
    let ready = if fleet.ready { "knows its peers' flows" } else { "waits for its peers' flows" };
    let ready = format!("{}, {ready}", words::vips(&fleet.vips));
    write(page, format_args!("<section>\n<h2>Peers of {}<span class=\"facts\">{ready}</span></h2>\n", Escaped(name)));
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>State</th><th>Peer</th><th class=\"why\">Has the VIP</th>\
         <th class=\"r\">Its flows</th><th class=\"r\">Offloaded</th><th>Synced</th><th class=\"r\">Behind</th>\
         <th class=\"r\">Lag</th><th class=\"r\">Round trip</th></tr></thead>\n<tbody>\n",
    );
    fleet.peers.iter().for_each(|it| peer(page, it));
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn peer(page: &mut String, it: &MemberView) {
    let vips: Vec<_> = it.vips.iter().map(ToString::to_string).collect();
    write(
        page,
        format_args!(
            "<tr><td>{}</td><td><b>{}</b><small class=\"mono\">{}</small></td>\
             <td class=\"why\" data-of=\"Has the VIP\"><span class=\"mono\">{}</span><small>{}</small></td>\
             <td class=\"r\" data-of=\"Its flows\">{}</td><td class=\"r\" data-of=\"Offloaded\">{}</td>\
             <td data-of=\"Synced\">{}</td><td class=\"r\" data-of=\"Behind\">{}</td>\
             <td class=\"r\" data-of=\"Lag\">{}</td><td class=\"r\" data-of=\"Round trip\">{}</td></tr>\n",
            Pill(tone(Weight::of_liveness(it.liveness)), it.liveness.label()),
            Escaped(&it.name),
            it.address,
            if vips.is_empty() { "–".to_owned() } else { vips.join(" ") },
            Escaped(it.why_not.as_deref().unwrap_or("")),
            count(it.flows as u64),
            count(it.offloaded as u64),
            if it.synced { Pill("good", "yes") } else { Pill("bad", "no") },
            count(it.behind as u64),
            duration_ms(it.lag_ms),
            if it.round_trip_us > 0 { duration_us(it.round_trip_us) } else { "–".to_owned() },
        ),
    );
}

/// All since `from_unix_ms`, to which the marks of the time line lead, and at least some.
pub(crate) fn events(page: &mut String, events: &[Event], from_unix_ms: u64) {
    page.push_str("<section id=\"events\"><h2>Last events, UTC</h2>\n");
    if events.is_empty() {
        page.push_str("<p class=\"none\">None yet.</p>");
    }
    page.push_str("<ol class=\"events\">\n");
    let shown =
        events.iter().rev().enumerate().take_while(|(number, it)| *number < EVENTS || it.at_unix_ms >= from_unix_ms);
    for (_, event) in shown {
        let (date, time) = date_and_time(event.at_unix_ms);
        write(
            page,
            format_args!(
                "<li id=\"{}\" class=\"{}\"><time datetime=\"{date}T{time}Z\" title=\"{date} {time} UTC\">{time}</time> {}</li>\n",
                event.anchor(),
                tone(event.what.weight()),
                Escaped(event.what.sentence()),
            ),
        );
    }
    page.push_str("</ol></section>\n");
}

/// `ended`: the number of flows by the label of their reason.
pub(crate) fn ended<L: AsRef<str>>(page: &mut String, ended: &BTreeMap<L, u64>) {
    page.push_str("<section><h2>Why flows ended</h2>\n");
    if ended.is_empty() {
        page.push_str("<p class=\"none\">None has ended yet.</p></section>\n");
        return;
    }
    let sum: u64 = ended.values().sum();
    let mut ended: Vec<_> = ended.iter().collect();
    ended.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    page.push_str("<table class=\"ended\"><tbody>\n");
    for (reason, flows) in ended {
        let about = EndReason::ALL.iter().find(|it| it.label() == reason.as_ref()).map_or("", |it| it.about());
        write(
            page,
            format_args!(
                "<tr><td>{}<small>{}</small></td><td><span class=\"bar\"><i style=\"width:{}%\"></i></span></td>\
                 <td class=\"r\">{}</td></tr>\n",
                Escaped(reason.as_ref()),
                Escaped(about),
                flows * 100 / sum.max(1),
                count(*flows),
            ),
        );
    }
    page.push_str("</tbody></table></section>\n");
}

fn footer(page: &mut String, status: &Status) {
    let config = &status.instance.config;
    let reload = match &config.last_reload {
        LastReload::None => "as read at the start".to_owned(),
        LastReload::Taken { at_unix_ms, .. } => format!("reloaded {} UTC", date_and_time(*at_unix_ms).1),
        LastReload::Refused { .. } => "last reload refused".to_owned(),
    };
    let (date, time) = date_and_time(status.at_unix_ms);
    write(
        page,
        format_args!(
            "<footer class=\"live\" id=\"foot\"><span>{date} {time} UTC · rates over 10 s · <span class=\"mono\">{}</span>, {reload}</span>\
             <nav><a href=\"/status.json\">status.json</a><a href=\"/metrics\">metrics</a>\
             <a href=\"/livez\">livez</a><a href=\"/readyz\">readyz</a></nav></footer>\n",
            Escaped(config.path.display()),
        ),
    );
}

const EVENTS: usize = 14;
const SCRIPT: &str = include_str!("page/page.js");
