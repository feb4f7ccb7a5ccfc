//! `[frontend.health]` from the checks of a backend's servers.

use std::time::Duration;

use super::proxy::Draft;
use super::sections::{Directive, Effective};
use super::server::{CfgServer, ServerOption};
use super::trust::trust;
use super::unset;
use super::value::{bounded, duration, time};
use crate::translate::ledger::Ledger;
use crate::translate::toml::quoted;

/// The bounds of `interval`, `fast_interval` and `timeout`.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));
const SLOW_START: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));
const JITTER_PERCENT_MAX: u32 = 50;
/// Baton's defaults.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
const FAST_DEFAULT: Duration = Duration::from_millis(250);
const TIMEOUT_DEFAULT: Duration = Duration::from_millis(500);

/// What `global` says for all backends.
#[derive(Clone, Debug, Default)]
pub(super) struct GlobalProbes {
    /// The line of `ssl-server-verify none`.
    pub verify_none: Option<usize>,
    /// The line and the value of `ca-base`.
    pub ca_base: Option<(usize, String)>,
    /// The line and the value of `spread-checks`.
    pub spread: Option<(usize, u32)>,
}

/// The keys of `[frontend.health]`; empty: Baton's defaults.
pub(super) fn health(backend: &Effective, servers: &[CfgServer], global: &GlobalProbes, ledger: &mut Ledger) -> Draft {
    let mut draft = Draft::new("[frontend.health]");
    let checked: Vec<_> = servers.iter().filter(|server| server.has("check")).collect();
    for server in servers.iter().filter(|server| !server.has("check")) {
        ledger.kept(server.line, "HAProxy does not check it, and Baton probes every backend");
    }
    if checked.is_empty() {
        return draft;
    }
    let option = checked.iter().find_map(|server| server.option("check-ssl").or_else(|| server.option("ssl")));
    let everywhere = connects_by_tls(backend);
    let tls = option.map(|option| option.line).or(everywhere);
    kind(backend, tls, &mut draft, ledger);
    let hello = backend.find("option ssl-hello-chk").map(|it| it.line);
    if let Some(line) = tls.or(hello)
        && draft.has_tls()
    {
        trust(&checked, line, everywhere, global, &mut draft, ledger);
    }
    times(backend, &checked, &mut draft, ledger);
    if let Some((line, percent)) = global.spread {
        let percent = bounded(percent, (0, JITTER_PERCENT_MAX), &format!("spread-checks {percent}"), line, ledger);
        draft.set("jitter_percent", percent.to_string(), line, ledger);
    }
    for name in ["inter", "fastinter", "fall", "rise", "slowstart"] {
        let value = |server: &CfgServer| server.option(name).map(|it| it.value.clone());
        let Some(chosen) = checked.iter().find(|server| server.has(name)) else { continue };
        for other in checked.iter().filter(|server| value(server) != value(chosen)) {
            let why = format!("{name}: Baton probes all backends of a frontend alike, as {}", chosen.name);
            ledger.missing(other.option(name).map_or(other.line, |it| it.line), why);
        }
    }
    draft
}

/// Words of `http-check connect` with which it goes to another place than the server's.
const OTHER_PLACE: [&str; 5] = ["port", "addr", "sni", "via-socks4", "proto"];

/// The line of `http-check connect ssl` or `tcp-check connect ssl`.
fn connects_by_tls(backend: &Effective) -> Option<usize> {
    let steps = backend.each("http-check").chain(backend.each("tcp-check"));
    let mut connects = steps.filter(|step| step.word(1) == "connect" && step.words.iter().any(|word| word == "ssl"));
    connects.next().map(|step| step.line)
}

fn kind(backend: &Effective, tls: Option<usize>, draft: &mut Draft, ledger: &mut Ledger) {
    let checks = ["option httpchk", "option tcp-check", "option ssl-hello-chk"];
    // The last of them counts.
    let chosen = checks.iter().filter_map(|check| backend.find(check)).max_by_key(|directive| directive.line);
    match chosen.map(|directive| directive.word(1)) {
        Some("httpchk") => {
            let line = chosen.map_or(0, |it| it.line);
            match tls {
                Some(tls) => {
                    draft.set("kind", quoted("https"), line, ledger);
                    ledger.translated(tls, "[frontend.health] kind = \"https\"");
                }
                None => draft.set("kind", quoted("http"), line, ledger),
            }
            http(backend, draft, ledger);
        }
        Some("ssl-hello-chk") => draft.set("kind", quoted("tls"), chosen.map_or(0, |it| it.line), ledger),
        other => {
            if let (Some("tcp-check"), Some(directive)) = (other, chosen) {
                ledger.translated(
                    directive.line,
                    if tls.is_some() {
                        "[frontend.health] kind = \"tls\""
                    } else {
                        "[frontend.health] kind = \"tcp\", the default"
                    },
                );
            }
            if let Some(line) = tls {
                draft.set("kind", quoted("tls"), line, ledger);
            }
            tcp_checks(backend, ledger);
        }
    }
}

fn tcp_checks(backend: &Effective, ledger: &mut Ledger) {
    for directive in backend.each("tcp-check") {
        match directive.word(1) {
            "connect" if directive.words[2..].iter().all(|word| word == "ssl") => {
                ledger.kept(directive.line, "Baton's probe connects")
            }
            "comment" => ledger.no_equal(directive.line, "only a comment"),
            _ => ledger.missing(
                directive.line,
                "a probe of kind \"tcp\" or \"tls\" sends and expects nothing: kind = \"https\" does",
            ),
        }
    }
}

fn http(backend: &Effective, draft: &mut Draft, ledger: &mut Ledger) {
    let Some(check) = backend.find("option httpchk") else { return };
    // option httpchk [METHOD] [PATH] [VERSION and headers]
    let (method, path) = match (check.word(2), check.word(3)) {
        ("", _) => ("OPTIONS", "/"),
        (path, "") => ("OPTIONS", path),
        (method, path) => (method, path),
    };
    let mut request = (method.to_owned(), path.to_owned(), check.line);
    let mut host = header_of(check.word(4)).map(|host| (host, check.line));
    for directive in backend.each("http-check") {
        match directive.word(1) {
            "send" => send(directive, &mut request, &mut host, ledger),
            "expect" => expect(directive, ledger),
            "disable-on-404" => ledger.kept(
                directive.line,
                "a backend that answers with any status but 2xx gets no new flows, and keeps what it has",
            ),
            "connect" if directive.words[2..].iter().any(|word| OTHER_PLACE.contains(&&**word)) => ledger.missing(
                directive.line,
                "Baton's probe goes to the backend's own address and port, by its own name: health_address of a backend and server_name name \
                 others",
            ),
            "connect" | "comment" => {
                ledger.no_equal(directive.line, "Baton's probe is one connection with one request")
            }
            _ => ledger.missing(directive.line, "Baton's probe is one request, and looks at its status only"),
        }
    }
    let (method, path, line) = request;
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        draft.set("path", quoted(&path), line, ledger);
    } else {
        ledger.missing(line, format!("{path} is no path that Baton can ask for"));
    }
    if method != "GET" {
        ledger.no_equal(line, format!("{method}: Baton's probe asks with GET"));
    }
    if let Some((host, line)) = host {
        match host.contains([':', ' ']) {
            true => ledger.missing(line, format!("Host: {host}: \"host\" is a name or an address without a port")),
            false => draft.set("host", quoted(&host), line, ledger),
        }
    }
}

fn send(
    directive: &Directive,
    request: &mut (String, String, usize),
    host: &mut Option<(String, usize)>,
    ledger: &mut Ledger,
) {
    let mut words = directive.words.iter().skip(2).map(String::as_str);
    while let Some(word) = words.next() {
        match (word, words.next().unwrap_or_default()) {
            ("meth", method) => (request.0, request.2) = (method.to_owned(), directive.line),
            ("uri", path) => (request.1, request.2) = (path.to_owned(), directive.line),
            ("ver", _) => ledger.kept(directive.line, "Baton's probe speaks HTTP/1.1"),
            ("hdr", name) => match words.next().unwrap_or_default() {
                value if name.eq_ignore_ascii_case("host") => *host = Some((value.to_owned(), directive.line)),
                _ => ledger
                    .missing(directive.line, format!("{name}: Baton's probe sends no header of your own but Host")),
            },
            (other, _) => {
                ledger.missing(directive.line, format!("{other}: Baton's probe sends a path and a Host header only"))
            }
        }
    }
}

fn expect(directive: &Directive, ledger: &mut Ledger) {
    let words: Vec<_> = directive.words.iter().skip(2).map(String::as_str).collect();
    match words[..] {
        ["status", status] if status.starts_with('2') && !status.contains([',', '-']) => {
            ledger.kept(directive.line, "a status of 2xx is ready; with any other a backend drains");
        }
        ["status", "200-299"] | ["rstatus", "^2" | "2.." | "^2.." | "(2)[0-9][0-9]" | "2[0-9][0-9]"] => {
            ledger.kept(directive.line, "a status of 2xx is ready; with any other a backend drains");
        }
        _ => ledger.missing(directive.line, "a status of 2xx is ready, and Baton looks at nothing else of the answer"),
    }
}

/// The Host header after the version, where older files have it.
fn header_of(version: &str) -> Option<String> {
    let mut lines = version.lines().skip(1);
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
    })
}

fn times(backend: &Effective, servers: &[&CfgServer], draft: &mut Draft, ledger: &mut Ledger) {
    let first = |name: &str| servers.iter().find_map(|server| server.option(name));
    let read = |option: Option<&ServerOption>, name: &str, (min, max): (Duration, Duration), ledger: &mut Ledger| {
        let option = option?;
        let Some(value) = time(&option.value) else {
            ledger.missing(option.line, format!("{name} {} is no time", option.value));
            return None;
        };
        if value.is_zero() {
            match name {
                "timeout check" => ledger.kept(option.line, unset(&format!("{name} 0"))),
                _ => ledger.missing(option.line, format!("{name} 0: HAProxy takes none of 0: Baton's default is used")),
            }
            return None;
        }
        let words = format!("{name} {}", option.value);
        Some((bounded(value, (min, max), &words, option.line, ledger), option.line))
    };
    let inter = read(first("inter"), "inter", INTERVAL, ledger);
    let fast = read(first("fastinter"), "fastinter", INTERVAL, ledger);
    let check = backend.find("timeout check");
    let check = check.map(|it| ServerOption { value: it.word(2).to_owned(), line: it.line });
    let check = read(check.as_ref(), "timeout check", INTERVAL, ledger);
    let interval = inter.map_or(INTERVAL_DEFAULT, |(interval, _)| interval);
    if let Some((interval, line)) = inter {
        draft.set("interval", duration(interval), line, ledger);
    }
    // Neither is longer than the interval.
    let mut shorter = |key, given: Option<(Duration, usize)>, default: Duration| {
        let wanted = given.map_or(default, |(value, _)| value).min(interval);
        if let Some((value, line)) = given.or(inter.filter(|_| default > interval)) {
            draft.set(key, duration(wanted), line, ledger);
            if given.is_some() && value > wanted {
                ledger.kept(line, format!("Baton's {key} is at most its interval"));
            }
        }
    };
    shorter("fast_interval", fast, FAST_DEFAULT);
    shorter("timeout", check, TIMEOUT_DEFAULT);
    for name in ["rise", "fall"] {
        let Some(option) = first(name) else { continue };
        match option.value.parse::<u32>() {
            Ok(number) if (1..=100).contains(&number) => draft.set(name, number.to_string(), option.line, ledger),
            _ => ledger.missing(option.line, format!("{name} {}: Baton counts from 1 to 100", option.value)),
        }
    }
    if let Some(option) = first("slowstart").filter(|option| time(&option.value) == Some(Duration::ZERO)) {
        draft.set("slow_start", quoted("0s"), option.line, ledger);
    } else if let Some((value, line)) = read(first("slowstart"), "slowstart", SLOW_START, ledger) {
        draft.set("slow_start", duration(value), line, ledger);
    }
}
