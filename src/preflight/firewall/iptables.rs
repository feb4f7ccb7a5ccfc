//! What iptables-save(8) prints, as [`Ruleset`].

use std::ops::RangeInclusive;

use super::rules::{Act, Base, Chain, Hook, Matched, Rule, Ruleset, Side, Test, Way, network};

/// `family`: `ip` or `ip6`.
pub fn read(text: &str, family: &str) -> Ruleset {
    let mut rules = Ruleset::default();
    let mut table = String::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            [name, ..] if name.starts_with('*') => table = name[1..].to_owned(),
            [name, policy, ..] if name.starts_with(':') => {
                let base = Hook::named(&name[1..]).map(|hook| Base {
                    hook,
                    priority: priority(&table, hook),
                    drops: *policy == "DROP",
                });
                let table = format!("{family} {table}");
                rules.chains.push(Chain { table, name: name[1..].to_owned(), base, rules: Vec::new() });
            }
            ["-A", name, rest @ ..] => {
                let of = format!("{family} {table}");
                let chain = rules.chains.iter_mut().find(|chain| chain.table == of && chain.name == *name);
                if let Some(chain) = chain {
                    chain.rules.push(rule(rest, family));
                }
            }
            _ => {}
        }
    }
    rules
}

/// include/uapi/linux/netfilter_ipv4.h
fn priority(table: &str, hook: Hook) -> i32 {
    match table {
        "raw" => -300,
        "mangle" => -150,
        "nat" if hook == Hook::Prerouting || hook == Hook::Output => -100,
        "nat" => 100,
        "security" => 50,
        _ => 0,
    }
}

fn rule(words: &[&str], family: &str) -> Rule {
    let mut tests = vec![Test::new(Matched::Family(if family == "ip6" { 6 } else { 4 }))];
    let mut act = Act::Pass;
    let mut negated = false;
    let mut words = words.iter().copied().peekable();
    while let Some(word) = words.next() {
        if word == "!" {
            negated = true;
            continue;
        }
        let of = match word {
            // What it loads shows in the options that follow; those that have none ask for something else.
            "-m" => {
                let module = words.next().unwrap_or_default();
                (!KNOWN.contains(&module)).then(|| Matched::Other(module.to_owned()))
            }
            "-p" => words.next().map(|name| Matched::Protocol(vec![name.to_owned()])),
            "-s" | "-d" => {
                let side = if word == "-s" { Side::Source } else { Side::Destination };
                words.next().map(|text| match network(text) {
                    Some(network) => Matched::Address(side, vec![network]),
                    None => Matched::Other(text.to_owned()),
                })
            }
            "--dport" | "--dports" => words.next().map(|text| ports(Side::Destination, text)),
            "--sport" | "--sports" => words.next().map(|text| ports(Side::Source, text)),
            "-i" | "-o" => words.next().map(|name| Matched::Interface(name.to_owned())),
            "--ctstate" | "--state" => {
                words.next().map(|states| Matched::State(states.split(',').map(str::to_ascii_lowercase).collect()))
            }
            "-j" | "-g" => {
                let target = words.next().unwrap_or_default();
                act = match target {
                    "ACCEPT" => Act::Accept,
                    "DROP" => Act::Drop,
                    "REJECT" => Act::Reject,
                    "RETURN" => Act::Return,
                    "NOTRACK" => Act::Notrack,
                    "CT" if words.peek() == Some(&"--notrack") => Act::Notrack,
                    other if other.chars().all(|c| c.is_ascii_uppercase()) && BUILT_IN.contains(&other) => Act::Pass,
                    other if word == "-g" => Act::Goto(other.to_owned()),
                    other => Act::Jump(other.to_owned()),
                };
                // What follows belongs to the target.
                break;
            }
            "--comment" => {
                skip_quoted(&mut words);
                None
            }
            other if other.starts_with('-') => {
                let value = words.next_if(|next| !next.starts_with('-') && *next != "!").unwrap_or_default();
                Some(Matched::Other(format!("{other} {value}")))
            }
            _ => None,
        };
        if let Some(of) = of {
            tests.push(Test { of, negated: std::mem::take(&mut negated) });
        }
    }
    Rule { tests, act, way: Way::Iptables }
}

fn skip_quoted<'w>(words: &mut impl Iterator<Item = &'w str>) {
    let Some(first) = words.next() else { return };
    if first.starts_with('"') && !(first.len() > 1 && first.ends_with('"')) {
        let _ = words.find(|word| word.ends_with('"'));
    }
}

fn ports(side: Side, text: &str) -> Matched {
    let range = |part: &str| -> Option<RangeInclusive<u16>> {
        let (first, last) = part.split_once(':').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    match text.split(',').map(range).collect::<Option<Vec<_>>>() {
        Some(ranges) => Matched::Port(None, side, ranges),
        None => Matched::Other(text.to_owned()),
    }
}

/// Matches whose every question is read above.
const KNOWN: [&str; 6] = ["conntrack", "state", "tcp", "udp", "multiport", "comment"];
/// Targets that decide nothing.
const BUILT_IN: [&str; 7] = ["LOG", "MARK", "CONNMARK", "TCPMSS", "CT", "NFLOG", "TRACE"];
