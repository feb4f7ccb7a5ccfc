//! What keepalived watches besides VRRP: scripts, processes, files and interfaces. Baton gives the VIP up when it is not ready, and
//! when the VIP's interface has no carrier. Whatever asks for the balancer or for an apiserver asks for no more than that.

use super::{KeepalivedLine, VrrpSettings};
use crate::model::keepalived::asks_baton;
use crate::translate::ledger::Ledger;

/// Names of programs whose state Baton's own stands for: load balancers, and what they balance here.
const BALANCED: [&str; 7] = ["haproxy", "nginx", "envoy", "traefik", "apiserver", "kube-api", "baton"];
/// They ask a host, not a port of it.
const PINGS: [&str; 4] = ["ping", "ping6", "arping", "fping"];
/// They run the program that is named after their options, as the words of a shell do.
const WRAPPERS: [&str; 14] =
    ["sh", "bash", "dash", "env", "sudo", "nice", "timeout", "python3", "perl", "if", "then", "else", "fi", "!"];
/// They only pass on what another part of a command has found.
const NEUTRAL: [&str; 6] = ["exit", "true", "false", "echo", "sleep", "logger"];
/// Where programs of the distribution are: their name says what they do.
const PROGRAMS: [&str; 4] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"];
/// The apiserver's, also where haproxy.cfg has another one.
const APISERVER: u16 = 6443;

const KEPT: &str = "Baton itself gives the VIP up when it is not ready while a peer is";
const GIVEN_UP: &str =
    "Baton gives the VIP up when it is not ready while a peer is, or when the VIP's interface has no carrier";

/// What a command or a process is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConditionSubject {
    /// The balancer, or an apiserver.
    Balancer,
    /// A file whose text is not here, and whose name does not say.
    Unread,
    Other,
}

/// A block `vrrp_script`, `vrrp_track_process` or `vrrp_track_file`.
struct Definition<'a> {
    kind: &'static str,
    name: &'a str,
    /// The line that says what it asks for.
    asking: Option<&'a KeepalivedLine>,
}

/// Whether `item` is a line of a block with conditions, or such a line itself.
pub(super) fn is_condition(item: &KeepalivedLine) -> bool {
    item.blocks.first().map_or_else(|| kind_of(item).is_some(), |block| kind(&block[..]).is_some())
        || item.blocks.iter().skip(1).any(|block| tracked_kind(block).is_some())
        || !item.blocks.is_empty() && tracked_kind(&item.words).is_some()
}

/// Notes each condition. `ports`: those of HAProxy and its servers.
pub(super) fn note(items: &[KeepalivedLine], vrrp: &VrrpSettings, ports: &[u16], ledger: &mut Ledger) {
    let definitions = definitions(items);
    let of_instance = |item: &&KeepalivedLine| counts(item, vrrp);
    let tracked: Vec<_> = items.iter().filter(of_instance).filter_map(named).collect();
    for definition in &definitions {
        let Some(asking) = definition.asking else { continue };
        let is_tracked = tracked.iter().any(|(kind, name, _)| (*kind, *name) == (definition.kind, definition.name));
        match (definition.subject(ports), &asking.words[..]) {
            _ if !is_tracked => ledger.kept(asking.line, "the vrrp_instance that is written does not track it"),
            (ConditionSubject::Balancer, _) => ledger.kept(asking.line, KEPT),
            (ConditionSubject::Unread, words) => ledger.missing(
                asking.line,
                format!("if {} asks more than the balancer, which its name does not say: {GIVEN_UP}", shown(words)),
            ),
            (ConditionSubject::Other, words) => ledger.missing(
                asking.line,
                format!("{}: {GIVEN_UP}, and a host that fails this check keeps the VIP", shown(words)),
            ),
        }
    }
    for (kind, name, line) in tracked {
        let found = definitions.iter().find(|it| (it.kind, it.name) == (kind, name));
        match (kind, found.and_then(|it| it.asking)) {
            ("interface", _) if vrrp.interface.as_ref().is_some_and(|(_, own)| own == name) => {
                ledger.kept(line, "Baton itself gives the VIP up when its interface has no carrier");
            }
            ("interface", _) => ledger.missing(
                line,
                format!("{name} is not the VIP's interface: {GIVEN_UP}, and a host whose {name} is down keeps it"),
            ),
            (_, None) => ledger.missing(line, format!("{name}: this file does not say what it asks for. {GIVEN_UP}")),
            (_, Some(asking)) => ledger.kept(line, format!("line {} says what becomes of it", asking.line + 1)),
        }
    }
    for item in items.iter().filter(|item| is_condition(item) && !ledger.has_note(item.line)).collect::<Vec<_>>() {
        ledger.kept(item.line, "a part of a condition: its other lines say what becomes of it");
    }
}

/// The definitions of a file, each with the line that counts.
fn definitions(items: &[KeepalivedLine]) -> Vec<Definition<'_>> {
    let mut all: Vec<Definition> = Vec::new();
    for item in items {
        let Some(block) = item.blocks.first() else {
            if let Some(kind) = kind_of(item) {
                all.push(Definition { kind, name: item.words.get(1).map_or("", String::as_str), asking: None });
            }
            continue;
        };
        let asks = ["script", "process", "file"].contains(&item.words.first().map_or("", String::as_str));
        if let (Some(kind), true) = (kind(block), asks && item.blocks.len() == 1) {
            let name = block.get(1).map_or("", String::as_str);
            let of_block = all.iter_mut().rev().find(|it| (it.kind, it.name) == (kind, name));
            of_block.into_iter().for_each(|it| it.asking = Some(item));
        }
    }
    all
}

/// What a line of `track_script`, `track_process`, `track_file` or `track_interface` names, and its line.
fn named(item: &KeepalivedLine) -> Option<(&'static str, &str, usize)> {
    let own = item.words.first().filter(|word| !word.is_empty())?;
    match item.blocks.get(1) {
        Some(block) => Some((tracked_kind(block)?, own, item.line)),
        // Without braces the names follow.
        None if !item.opens => Some((tracked_kind(&item.words)?, item.words.get(1)?, item.line)),
        None => None,
    }
}

/// Whether `item` is of the `vrrp_instance` that is written, or of a group.
fn counts(item: &KeepalivedLine, vrrp: &VrrpSettings) -> bool {
    let Some(block) = item.blocks.first() else { return false };
    match block.first().map(String::as_str) {
        Some("vrrp_instance") => block.get(1) == vrrp.name.as_ref(),
        Some("vrrp_sync_group") => true,
        _ => false,
    }
}

fn kind_of(item: &KeepalivedLine) -> Option<&'static str> {
    if item.blocks.is_empty() { kind(&item.words) } else { None }
}

fn kind(block: &[String]) -> Option<&'static str> {
    match block.first().map(String::as_str) {
        Some("vrrp_script") => Some("script"),
        Some("vrrp_track_process") => Some("process"),
        Some("vrrp_track_file" | "track_file") => Some("file"),
        _ => None,
    }
}

fn tracked_kind(words: &[String]) -> Option<&'static str> {
    match words.first().map(String::as_str) {
        Some("track_script") => Some("script"),
        Some("track_process") => Some("process"),
        Some("track_file") => Some("file"),
        Some("track_interface") => Some("interface"),
        _ => None,
    }
}

/// The command or process as it is written, without its keyword.
fn shown(words: &[String]) -> String {
    words.get(1..).unwrap_or_default().join(" ")
}

impl Definition<'_> {
    fn subject(&self, ports: &[u16]) -> ConditionSubject {
        let Some(asking) = self.asking else { return ConditionSubject::Other };
        let text = shown(&asking.words).replace(['\'', '"'], " ");
        match self.kind {
            "script" if asks_baton(&asking.words) => ConditionSubject::Balancer,
            "script" => command(&text, ports),
            "process" | "file" if is_balanced(&text) => ConditionSubject::Balancer,
            _ => ConditionSubject::Other,
        }
    }
}

/// What a command asks for: that of its least known part.
fn command(text: &str, ports: &[u16]) -> ConditionSubject {
    let parts = text.replace("&&", ";").replace("||", ";");
    let subjects: Vec<_> = parts.split(';').filter_map(|part| part_of(part, ports)).collect();
    match &subjects[..] {
        [] => ConditionSubject::Other,
        all if all.contains(&ConditionSubject::Other) => ConditionSubject::Other,
        all if all.contains(&ConditionSubject::Unread) => ConditionSubject::Unread,
        _ => ConditionSubject::Balancer,
    }
}

/// `None`: it asks for nothing.
fn part_of(text: &str, ports: &[u16]) -> Option<ConditionSubject> {
    let is_passed = |word: &&str| {
        let is_option = word.starts_with('-') || word.contains('=') && !word.contains('/');
        is_option || word.parse::<f64>().is_ok() || WRAPPERS.contains(&file_name(word))
    };
    let program = text.split_whitespace().find(|word| !is_passed(word))?;
    let name = file_name(program);
    let asks_port = || {
        let words = text.split(|letter: char| letter.is_whitespace() || ":/[]".contains(letter));
        words.filter_map(|word| word.parse::<u16>().ok()).any(|port| port == APISERVER || ports.contains(&port))
    };
    match () {
        () if NEUTRAL.contains(&name) => None,
        () if PINGS.contains(&name) => Some(ConditionSubject::Other),
        () if is_balanced(text) || asks_port() => Some(ConditionSubject::Balancer),
        () if is_file(program) => Some(ConditionSubject::Unread),
        () => Some(ConditionSubject::Other),
    }
}

/// Whether its text is in a file of somebody's own.
fn is_file(program: &str) -> bool {
    let own_folder = |(folder, _): (&str, &str)| !PROGRAMS.contains(&folder);
    program.rsplit_once('/').is_some_and(own_folder) || file_name(program).contains('.')
}

fn is_balanced(text: &str) -> bool {
    BALANCED.iter().any(|name| text.contains(name))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use crate::translate::{ForeignFile, ForeignTranslation, LineOutcome, translate};

    fn read(definitions: &str, tracking: &str) -> ForeignTranslation {
        let text = format!(
            "{definitions}vrrp_instance V {{\n{tracking}interface eth0\nunicast_src_ip 10.0.0.21\nunicast_peer {{\n10.0.0.22\n}}\n\
             virtual_ipaddress {{\n10.0.0.100\n}}\n}}\n"
        );
        let haproxy = "listen a\nbind :8443\nserver a 10.0.0.1:6444\n";
        let [haproxy, keepalived] =
            [haproxy, &text].map(|text| ForeignFile { name: "f".to_owned(), text: text.to_owned() });
        translate(&haproxy, Some(&keepalived))
    }

    /// The numbers and notes of the lines whose loss changes something.
    fn lost(translation: &ForeignTranslation) -> Vec<(usize, String)> {
        let lines = translation.ledgers[1].lines().iter().filter(|line| line.changes_behaviour());
        lines.map(|line| (line.number, line.notes[0].words.clone())).collect()
    }

    /// Regression: "Baton itself gives the VIP up" was said of an interface, a process and a gateway that Baton does not watch.
    #[test]
    fn what_baton_does_not_watch_has_no_equal() {
        let definitions = "vrrp_script gw {\nscript \"/usr/bin/ping -c1 -W1 10.99.0.1\"\ninterval 2\n}\n\
                           vrrp_track_process etcd {\nprocess etcd\n}\nvrrp_track_file f {\nfile /run/x\n}\n";
        let tracking = "track_interface {\neth0\neth1 weight -10\n}\ntrack_process {\netcd\n}\ntrack_script {\ngw\n}\n\
                        track_file { f }\n";
        let translation = read(definitions, tracking);
        let gone = lost(&translation);
        assert_eq!(gone.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 6, 9, 14], "{gone:#?}");
        assert!(gone[0].1.starts_with("/usr/bin/ping -c1 -W1 10.99.0.1: Baton gives the VIP up when"), "{gone:#?}");
        assert!(gone[3].1.starts_with("eth1 is not the VIP's interface"), "{gone:#?}");
        let said = |number: usize| &translation.ledgers[1].lines()[number - 1].notes;
        assert_eq!((said(13).len(), said(13)[0].outcome), (1, LineOutcome::Kept), "the VIP's own interface");
        let written = translation.ledgers[1].lines().iter().filter(|line| !line.is_silent()).count();
        assert_eq!(written, translation.ledgers[1].lines().len(), "each line has its fate");
        // Of a group, on one line, and defined in another file.
        let group = "vrrp_sync_group G {\ngroup {\nV\n}\ntrack_interface {\neth2\n}\n}\n";
        assert_eq!(lost(&read(group, ""))[0].0, 6);
        assert_eq!(lost(&read("", "track_script { other_file }\n"))[0].0, 2);
        // Nothing asks it.
        assert_eq!(lost(&read("vrrp_script gw {\nscript \"ping 10.0.0.1\"\n}\n", "")), []);
    }

    #[test]
    fn what_asks_the_balancer_is_kept() {
        let with = |kind: &str, asking: &str| {
            let definition = format!("vrrp_{kind} c {{\n{asking}\n}}\n");
            let tracking = kind.replace("track_", "");
            lost(&read(&definition, &format!("track_{tracking} {{\nc\n}}\n")))
        };
        for script in [
            "\"killall -0 haproxy\"",
            "'pidof haproxy'",
            "\"/usr/bin/systemctl is-active --quiet haproxy || exit 1\"",
            "/etc/keepalived/check_apiserver.sh",
            "\"/bin/sh -c 'if pgrep nginx; then exit 0; else exit 1; fi'\"",
            "\"/usr/bin/curl -sfk https://localhost:6443/healthz -o /dev/null\"",
            "\"nc -z localhost 6443\"",
            "\"timeout 2 bash -c '</dev/tcp/127.0.0.1/8443'\"",
            "\"curl -k https://10.0.0.1:6444/readyz\"",
            "\"/usr/bin/baton ready --within 500ms\"",
        ] {
            assert_eq!(with("script", &format!("script {script}")), [], "{script}");
        }
        assert_eq!(
            (with("track_process", "process haproxy"), with("track_process", "process nginx")),
            (vec![], vec![])
        );
        for script in
            ["\"pidof haproxy && ping -c1 10.0.0.1\"", "\"curl http://10.0.0.1:2379/health\"", "\"test -f /run/x\""]
        {
            let [(2, why)] = &with("script", &format!("script {script}"))[..] else { panic!("{script}") };
            assert!(why.contains("a host that fails this check keeps the VIP"), "{why}");
        }
        for script in ["/etc/keepalived/check.sh", "\"/bin/bash /usr/local/bin/health\""] {
            let [(2, why)] = &with("script", &format!("script {script}"))[..] else { panic!("{script}") };
            assert!(why.starts_with("if /") && why.contains("asks more than the balancer"), "{why}");
        }
    }
}
