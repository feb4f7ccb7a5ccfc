//! `allow` and `deny` from `tcp-request connection`, `session` and `content`, in each of which the first rule that matches decides.

use std::net::IpAddr;

use ipnet::IpNet;

use super::networks::NetworkSet;
use super::proxy::Draft;
use super::sections::{Directive, Effective};
use crate::translate::ledger::Ledger;
use crate::translate::toml::array;

/// Limit for the networks of one condition, and of a list that is written.
const NETWORKS_MAX: usize = 256;
/// Limit for what is computed in between.
const PIECES_MAX: usize = 4096;
/// Actions that decide nothing about the connection.
const PASSING: [&str; 6] = ["track-sc", "sc-", "set-var", "unset-var", "set-mark", "set-tos"];
const REACHES_MORE: &str = "the file that is written admits clients that HAProxy rejects, until their networks are in \"allow\" and \"deny\" of the \
                            frontend";

/// What the rules have decided so far.
#[derive(Debug, Default)]
struct Decided {
    accepted: NetworkSet,
    rejected: NetworkSet,
    /// The networks as the rules name them, for lists that read as the file does.
    allow: NetworkSet,
    deny: NetworkSet,
    lines: Vec<usize>,
}

/// The rules of one list, of which the first that matches decides. A client must pass each list.
struct RuleList<'c, 'e> {
    rules: Vec<&'c Directive>,
    /// The section, with its `acl`.
    section: &'e Effective<'c>,
    /// Whether `src` is the address of the connection, not that of a PROXY header.
    sees_proxy: bool,
}

/// Writes the lists into `table`; returns the lines that reject clients whom the lists admit. `backend`: another section than
/// `front`. `has_proxy`: clients begin with a PROXY header.
pub(super) fn access(
    front: &Effective,
    backend: Option<&Effective>,
    has_proxy: bool,
    table: &mut Draft,
    ledger: &mut Ledger,
) -> Vec<usize> {
    let of = |section, kind: &str| RuleList {
        rules: Effective::each(section, "tcp-request").filter(|rule| rule.word(1) == kind).collect(),
        section,
        sees_proxy: has_proxy && kind == "connection",
    };
    let mut lists: Vec<_> = ["connection", "session", "content"].map(|kind| of(front, kind)).into();
    lists.extend(backend.map(|backend| of(backend, "content")));
    let mut lost = Vec::new();
    let mut decided = Decided::default();
    for list in &lists {
        decided = decided.and(decide(list, &mut lost, ledger));
    }
    match decided.lists() {
        Some((allow, deny)) => {
            for (key, set) in [("allow", allow), ("deny", deny)] {
                if set.is_empty() {
                    continue;
                }
                let value = array(&set.networks().iter().map(IpNet::to_string).collect::<Vec<_>>());
                for line in &decided.lines {
                    ledger.translated(*line, format!("[[frontend]] {key} = {value}"));
                }
                table.set(key, value, decided.lines[0], ledger);
            }
            for line in decided.lines {
                if !ledger.has_note(line) {
                    ledger.kept(line, "whoever is not rejected is admitted");
                }
            }
        }
        None => {
            for line in decided.lines {
                ledger.missing(line, format!("its lists would have more than {NETWORKS_MAX} networks: {REACHES_MORE}"));
                lost.push(line);
            }
        }
    }
    for list in &lists {
        for acl in list.section.each("acl") {
            let is_used = |it: &&Directive| it.words.iter().any(|word| word.trim_start_matches('!') == acl.word(1));
            if list.rules.iter().any(is_used) && !ledger.has_note(acl.line) {
                ledger.kept(acl.line, "a condition of the rules for connections");
            }
        }
    }
    lost.sort_unstable();
    lost.dedup();
    lost
}

/// What the rules of `list` decide. `lost` gets the lines that reject clients whom Baton cannot tell.
fn decide(list: &RuleList, lost: &mut Vec<usize>, ledger: &mut Ledger) -> Decided {
    let mut decided = Decided::default();
    // The line of a rule that lets pass nobody knows whom.
    let mut unknown: Option<usize> = None;
    for (at, rule) in list.rules.iter().enumerate() {
        let line = rule.line;
        let is_reject = match rule.word(2) {
            "accept" => false,
            "reject" | "silent-drop" => true,
            action if PASSING.iter().any(|it| action.starts_with(it)) => {
                ledger.missing(line, format!("{action}: Baton keeps no table of clients, and marks no packets"));
                continue;
            }
            action => {
                ledger.missing(line, format!("{action}: Baton decides by the client's own address alone"));
                unknown = unknown.or(Some(line));
                continue;
            }
        };
        let read = match unknown {
            _ if list.sees_proxy => {
                Err("HAProxy looks at the address of the proxy here, and Baton's lists at that of the PROXY header"
                    .to_owned())
            }
            Some(before) => Err(format!("line {} lets pass clients that Baton cannot tell", before + 1)),
            None if rule.word(2) == "silent-drop" => Err("silent-drop: Baton resets what it denies".to_owned()),
            None => condition(rule, 3, list.section),
        };
        match read {
            Ok(clients) => decided.add(is_reject, &clients, line, ledger),
            Err(why) if is_reject => {
                ledger.missing(line, format!("{why}: {REACHES_MORE}"));
                lost.push(line);
            }
            Err(why) if list.rules[at..].iter().any(|rule| rule.word(2) == "reject") => {
                ledger.missing(line, format!("{why}: the rules after it are not kept"));
                unknown = unknown.or(Some(line));
            }
            Err(_) => ledger.kept(line, "no rule after it rejects"),
        }
    }
    decided
}

impl Decided {
    fn add(&mut self, is_reject: bool, clients: &NetworkSet, line: usize, ledger: &mut Ledger) {
        let new = clients.minus(&self.accepted.union(&self.rejected));
        if new.is_empty() {
            return ledger.kept(line, "the rules before it decide");
        }
        self.lines.push(line);
        let others = clients.complement();
        match is_reject {
            true => {
                self.rejected = self.rejected.union(&new);
                // `reject if !office` is `allow` of the office.
                match others.len() <= clients.len() {
                    true => self.allow = self.allow.union(&others),
                    false => self.deny = self.deny.union(clients),
                }
            }
            false => {
                self.accepted = self.accepted.union(&new);
                self.allow = self.allow.union(clients);
            }
        }
    }

    /// Of clients that must pass both lists.
    fn and(mut self, next: Self) -> Self {
        self.rejected = self.rejected.union(&next.rejected);
        self.deny = self.deny.union(&next.deny);
        self.allow = match (self.allow.is_empty(), next.allow.is_empty()) {
            (_, true) => self.allow,
            (true, _) => next.allow,
            _ => self.allow.intersection(&next.allow),
        };
        self.lines.extend(next.lines);
        self
    }

    /// `allow` and `deny` that admit whom the rules admit. `None`: they would be too long.
    fn lists(&self) -> Option<(NetworkSet, NetworkSet)> {
        // Whoever is not rejected, for no rule at the end accepts.
        let admitted = self.rejected.complement();
        let none = NetworkSet::default();
        let rewritten = match admitted.len() < self.rejected.len() && !admitted.is_empty() {
            true => (admitted.clone(), none.clone()),
            false => (none.clone(), self.rejected.clone()),
        };
        let candidates = [(self.allow.clone(), self.deny.clone()), (none, self.deny.clone()), rewritten];
        let admits = |(allow, deny): &(NetworkSet, NetworkSet)| match allow.is_empty() {
            true => deny.complement(),
            false => allow.minus(deny),
        };
        let mut exact = candidates.into_iter().filter(|lists| admits(lists) == admitted);
        exact.find(|(allow, deny)| allow.len() <= NETWORKS_MAX && deny.len() <= NETWORKS_MAX)
    }
}

/// The clients of whom a rule is true, whose condition begins at the word `at`.
pub(super) fn condition(rule: &Directive, at: usize, front: &Effective) -> Result<NetworkSet, String> {
    let words: Vec<_> = rule.words.iter().skip(at).map(String::as_str).collect();
    let (turned, words) = match words.split_first() {
        None => return Ok(NetworkSet::all()),
        Some((&"if", words)) => (false, words),
        Some((&"unless", words)) => (true, words),
        Some((word, _)) => return Err(format!("{word}: `baton import` reads only if and unless here")),
    };
    let mut any = NetworkSet::default();
    for terms in words.split(|word| ["or", "||"].contains(word)) {
        any = bounded(any.union(&conjunction(terms, rule.line, front)?))?;
    }
    bounded(if turned { any.complement() } else { any })
}

/// Of terms that must all be true: names of `acl`, and `{ src ... }`, each with or without `!`.
fn conjunction(terms: &[&str], line: usize, front: &Effective) -> Result<NetworkSet, String> {
    let mut all = NetworkSet::all();
    let mut words = terms.iter();
    let mut is_turned = false;
    let mut is_open = true;
    while let Some(word) = words.next() {
        let term = word.trim_start_matches('!');
        is_turned ^= (word.len() - term.len()) % 2 == 1;
        is_open = term.is_empty();
        let clients = match term {
            "" => continue,
            "{" => {
                let inner: Vec<_> = words.by_ref().take_while(|word| **word != "}").copied().collect();
                sources(&inner)?
            }
            name => named(name, line, front)?,
        };
        all = bounded(all.intersection(&if is_turned { clients.complement() } else { clients }))?;
        is_turned = false;
    }
    if is_open { Err("it has no condition".to_owned()) } else { Ok(all) }
}

fn named(name: &str, line: usize, front: &Effective) -> Result<NetworkSet, String> {
    let lines: Vec<_> = front.each("acl").filter(|acl| acl.word(1) == name).collect();
    match (lines.first(), name) {
        (None, "TRUE") => return Ok(NetworkSet::all()),
        (None, "FALSE") => return Ok(NetworkSet::default()),
        (Some(first), _) if first.line < line => {}
        _ => return Err(format!("there is no acl {name} before it")),
    }
    let mut any = NetworkSet::default();
    for acl in lines {
        let words: Vec<_> = acl.words.iter().skip(2).map(String::as_str).collect();
        any = bounded(any.union(&sources(&words)?))?;
    }
    Ok(any)
}

/// `src` with its networks, or a constant.
fn sources(words: &[&str]) -> Result<NetworkSet, String> {
    match words {
        ["always_true"] => return Ok(NetworkSet::all()),
        ["always_false"] => return Ok(NetworkSet::default()),
        _ => {}
    }
    let Some((&"src", networks)) = words.split_first() else {
        return Err(format!("{}: Baton decides by the client's address alone", words.join(" ")));
    };
    if networks.is_empty() || networks.len() > NETWORKS_MAX {
        return Err(format!("src has from 1 to {NETWORKS_MAX} networks here"));
    }
    let networks: Result<Vec<_>, _> = networks.iter().map(|text| network(text)).collect();
    Ok(NetworkSet::new(&networks?))
}

fn network(text: &str) -> Result<IpNet, String> {
    let with_mask = || {
        let (ip, mask) = text.split_once('/')?;
        IpNet::with_netmask(ip.parse().ok()?, mask.parse().ok()?).ok()
    };
    let read = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).or_else(with_mask);
    // Baton compares the IPv4 address that is in such a one.
    let plain = read.filter(|it| !matches!(it, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some()));
    plain.ok_or_else(|| format!("{text} is no network that `baton import` reads, such as 10.0.0.0/8"))
}

fn bounded(set: NetworkSet) -> Result<NetworkSet, String> {
    if set.len() > PIECES_MAX { Err("it needs too many networks".to_owned()) } else { Ok(set) }
}
