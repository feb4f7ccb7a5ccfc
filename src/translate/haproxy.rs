//! haproxy.cfg.

mod access;
mod names;
mod networks;
mod notes;
mod probe;
mod proxy;
mod sections;
mod server;
mod trust;
mod value;
mod words;

use std::net::SocketAddr;
use std::time::Duration;

use super::ForeignFile;
use super::ledger::Ledger;
use super::toml::Toml;
use super::variable;
use access::condition;
use notes::{Meaning, has_directive, is_unlimited, meaning, of_resolvers, other_section};
use probe::GlobalProbes;
use proxy::{ProxyPair, TranslatedProxies};
use sections::{CfgSection, Directive, Effective, SectionKind, sections};
use value::{bounded, duration, listening, time};
pub(super) use words::words;

/// What keepalived.conf may ask for, and where Baton listens in HAProxy's place.
pub(super) struct HaproxyAddresses {
    /// The frontends that are written, each with its name.
    pub frontends: Vec<(String, Vec<SocketAddr>)>,
    /// All ports of the file, also those of its servers and of its pages.
    pub ports: Vec<u16>,
}

impl HaproxyAddresses {
    fn read(sections: &[CfgSection], frontends: Vec<(String, Vec<SocketAddr>)>) -> Self {
        let of = |keyword: &'static str| sections.iter().flat_map(move |section| section.own(keyword));
        let binds = of("bind").filter_map(|bind| listening(bind.word(1), false).ok()).flatten().map(|it| it.port());
        let servers = of("server").filter_map(|server| value::server(server.word(2)).ok()?.1);
        Self { frontends, ports: binds.chain(servers).collect() }
    }
}

/// Writes the keys of whole tables into `toml`, the frontends into `proxies`, and into `steps` what is to do by hand.
pub(super) fn translate(
    file: &ForeignFile,
    toml: &mut Toml,
    proxies: &mut Toml,
    steps: &mut Vec<String>,
) -> (Ledger, HaproxyAddresses) {
    let mut ledger = Ledger::new(file);
    let sections = sections(&file.text, &mut ledger);
    let global = global(&sections, toml, &mut ledger);
    let mut shared = TranslatedProxies {
        sections: &sections,
        global,
        names: Vec::new(),
        listening: Vec::new(),
        written: Vec::new(),
        steps: Vec::new(),
    };
    let mut used = Vec::new();
    for section in &sections {
        if [SectionKind::Frontend, SectionKind::Listen].contains(&section.kind)
            && let Some(backend) = lead(section, &sections, &mut ledger)
        {
            let pair = ProxyPair { frontend: section, backend };
            let before = (ledger.clone(), shared.listening.clone());
            if proxy::write(&pair, &mut shared, proxies, &mut ledger) {
                used.extend([section.line, backend.line]);
            } else {
                // Nothing was written, so nothing was translated.
                ledger.withdraw(before.0);
                shared.listening = before.1;
            }
        }
    }
    steps.append(&mut shared.steps);
    for section in &sections {
        note(section, &sections, used.contains(&section.line), &mut ledger);
    }
    for section in &sections {
        let words = section.directives.iter().map(|it| (it.line, &it.words[..]));
        let of_heading = (section.line, std::slice::from_ref(&section.name));
        for (line, words) in words.chain([of_heading]) {
            if let Some(name) = words.iter().find_map(|word| variable(word)) {
                ledger.unknown_variable(line, &name, "Baton reads no environment, and so not");
            }
        }
    }
    (ledger, HaproxyAddresses::read(&sections, shared.written))
}

/// The section with the servers of `frontend`. `None`: no frontend is written, and the ledger says why.
fn lead<'c>(frontend: &'c CfgSection, all: &'c [CfgSection], ledger: &mut Ledger) -> Option<&'c CfgSection> {
    let effective = frontend.effective(all);
    if effective.mode() != "tcp" {
        http(frontend, effective.mode(), ledger);
        return None;
    }
    if let Some(directive) = frontend.own("disabled").next() {
        ledger.kept(directive.line, "no frontend is written: it is disabled");
        ledger.kept(frontend.line, "no frontend is written: it is disabled");
        return None;
    }
    let name = backend_name(frontend, &effective, ledger).or_else(|| effective.find("default_backend"));
    let has_servers = frontend.kind == SectionKind::Listen
        && ["server", "server-template"].iter().any(|keyword| frontend.own(keyword).next().is_some());
    let Some(directive) = name.filter(|_| !has_servers) else {
        if !has_servers {
            ledger.missing(frontend.line, "no frontend is written: it leads to no backend");
        }
        return Some(frontend).filter(|_| has_servers);
    };
    let is_it = |section: &&CfgSection| {
        [SectionKind::Backend, SectionKind::Listen].contains(&section.kind) && section.name == directive.word(1)
    };
    let Some(backend) = all.iter().find(is_it) else {
        ledger.missing(directive.line, format!("there is no backend {}, so no frontend is written", directive.word(1)));
        ledger.missing(frontend.line, "no frontend is written: its backend is not in the file");
        return None;
    };
    match ["server", "server-template"].iter().any(|keyword| backend.own(keyword).next().is_some()) {
        true => ledger.translated(directive.line, format!("the [[frontend.backend]] of backend {}", backend.name)),
        false => ledger.no_equal(directive.line, format!("backend {} has no server", backend.name)),
    }
    Some(backend)
}

/// The first `use_backend` that applies to every connection; those that apply to some have no equal.
fn backend_name<'c>(frontend: &'c CfgSection, effective: &Effective, ledger: &mut Ledger) -> Option<&'c Directive> {
    let mut found = None;
    for directive in frontend.own("use_backend") {
        match condition(directive, 2, effective) {
            _ if found.is_some() => ledger.kept(directive.line, "the rule before it applies to every connection"),
            Ok(clients) if clients.is_all() => found = Some(directive),
            Ok(clients) if clients.is_empty() => ledger.kept(directive.line, "it applies to no connection"),
            _ => ledger.missing(
                directive.line,
                "Baton reads no bytes of a connection: all connections of the frontend go to the same backends",
            ),
        }
    }
    found
}

/// A section of another mode than tcp.
fn http(section: &CfgSection, mode: &str, ledger: &mut Ledger) {
    let has = |keyword: &str| section.own(keyword).next().is_some();
    let leads = has("server") || has("default_backend") || has("use_backend");
    match () {
        () if has("stats") && !leads => {
            ledger.no_equal(section.line, "Baton shows its state at admin.http and by `baton status`");
        }
        () if has("monitor-uri") && !leads => {
            ledger.no_equal(section.line, "Baton answers /livez and /readyz at admin.http: point that monitor there");
        }
        () => ledger.missing(
            section.line,
            format!("no frontend is written: its mode is {mode}, and Baton passes TCP through and reads no HTTP"),
        ),
    }
    for directive in &section.directives {
        ledger.no_equal(
            directive.line,
            format!("it is a line of the {} {}, which is not written", section.keyword, section.name),
        );
    }
}

/// Notes each line that has none yet.
fn note(section: &CfgSection, all: &[CfgSection], is_used: bool, ledger: &mut Ledger) {
    let kind = section.kind;
    if kind == SectionKind::Other {
        for directive in section.directives.iter().filter(|it| !has_directive(&section.keyword, it)) {
            let why = format!(
                "`baton import` does not know {:?} in {}, nor a section that begins so",
                directive.word(0),
                section.keyword
            );
            ledger.missing(directive.line, why);
        }
    }
    if kind == SectionKind::Other && section.keyword == "resolvers" {
        for directive in section.directives.iter().filter(|it| !ledger.has_note(it.line)).collect::<Vec<_>>() {
            say(directive.line, of_resolvers(directive), ledger);
        }
        return ledger.kept(section.line, "a heading");
    }
    if kind == SectionKind::Other {
        let meaning = other_section(&section.keyword);
        let known = section.directives.iter().filter(|it| has_directive(&section.keyword, it));
        for line in known.map(|it| it.line).chain([section.line]) {
            say(line, meaning, ledger);
        }
        return;
    }
    let is_backend = [SectionKind::Backend, SectionKind::Frontend, SectionKind::Listen].contains(&kind);
    if is_backend && !is_used && !ledger.has_note(section.line) {
        match section.effective(all).mode() {
            "tcp" => ledger.no_equal(section.line, "no frontend that is written leads here"),
            mode => http(section, mode, ledger),
        }
    }
    for directive in &section.directives {
        let line = directive.line;
        if is_backend && !is_used {
            if !ledger.has_note(line) {
                ledger.no_equal(line, "its section is not written");
            }
            continue;
        }
        // A part of a line may be translated while another part is only known here.
        match meaning(directive, kind) {
            None if !ledger.has_note(line) => {
                let why = format!("`baton import` does not know {:?} in {}", directive.word(0), section.keyword);
                ledger.missing(line, why);
            }
            None => {}
            Some(_) if is_unlimited(directive) => ledger.kept(line, format!("{}: 0 is no limit", directive.word(0))),
            Some(_) if directive.word(0) == "acl" && ledger.has_note(line) => {}
            Some(_) if directive.is_off => ledger.kept(line, "it turns off what Baton has no key for"),
            Some(Meaning::Setting) => setting(directive, kind, ledger),
            Some(meaning) => say(line, meaning, ledger),
        }
    }
    if !ledger.has_note(section.line) {
        ledger.kept(section.line, "a heading");
    }
}

fn setting(directive: &Directive, kind: SectionKind, ledger: &mut Ledger) {
    let line = directive.line;
    match (directive.word(0), directive.word(1)) {
        ("mode", "tcp") => ledger.kept(line, "Baton passes TCP through"),
        ("mode", _) if kind == SectionKind::Defaults => {
            ledger.kept(line, "a section that does not set its own mode is named at its heading");
        }
        _ if ledger.has_note(line) => {}
        _ if kind == SectionKind::Defaults => ledger.kept(line, "no section that is written uses it"),
        _ => ledger.kept(line, "it has no effect here, or another line decides"),
    }
}

fn say(line: usize, meaning: Meaning, ledger: &mut Ledger) {
    match meaning {
        Meaning::Setting => {}
        Meaning::Kept(why) => ledger.kept(line, why),
        Meaning::NoEqual(why) => ledger.no_equal(line, why),
        Meaning::Missing(why) => ledger.missing(line, why),
    }
}

/// The section `global`, several of which count as one.
fn global(sections: &[CfgSection], toml: &mut Toml, ledger: &mut Ledger) -> GlobalProbes {
    let mut global = GlobalProbes::default();
    let mut process: Vec<(&str, String, usize)> = Vec::new();
    let lines = sections.iter().filter(|section| section.kind == SectionKind::Global).flat_map(|it| &it.directives);
    for directive in lines.filter(|directive| !directive.is_off) {
        let (line, value) = (directive.line, directive.word(1));
        let number = value.parse::<u32>().ok();
        match (directive.word(0), number) {
            ("maxconn", Some(0)) => ledger.kept(line, unset(&directive.words.join(" "))),
            ("maxconn", Some(max)) => process.push(("max_connections", max.to_string(), line)),
            ("nbthread", Some(threads @ 1..=1024)) => process.push(("workers", threads.to_string(), line)),
            ("spread-checks", Some(percent)) => global.spread = Some((line, percent)),
            ("maxconn" | "nbthread" | "spread-checks", _) => {
                ledger.missing(line, format!("{value:?} is no number that Baton takes"))
            }
            ("hard-stop-after", _) => match time(value) {
                Some(Duration::ZERO) => ledger.kept(line, unset(&directive.words.join(" "))),
                Some(time) => {
                    let time = bounded(time, STOP, &directive.words.join(" "), line, ledger);
                    process.push(("stop_timeout", duration(time), line));
                }
                None => ledger.missing(line, format!("{value:?} is no time")),
            },
            ("ssl-server-verify", _) if value == "none" => global.verify_none = Some(line),
            ("ca-base", _) => global.ca_base = Some((line, value.to_owned())),
            _ => {}
        }
    }
    let mut last: Vec<(&str, String, usize)> = Vec::new();
    for entry in process {
        last.retain(|(key, ..)| *key != entry.0);
        last.push(entry);
    }
    if !last.is_empty() {
        toml.table("[process]");
    }
    for (key, value, line) in last {
        toml.key(key, &value, &ledger.place(line));
        ledger.translated(line, format!("[process] {key} = {value}"));
    }
    global
}

/// Why a line with 0 sets no key.
fn unset(words: &str) -> String {
    format!("{words} is not set to HAProxy: Baton's default is used")
}

/// The bounds of `stop_timeout`.
const STOP: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(24 * 3600));
