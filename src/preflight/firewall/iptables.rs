//! Converts the output of iptables-save(8) to [`Ruleset`].

use std::ops::RangeInclusive;

use super::rules::{
    Act, Base, Chain, Hook, Matched, Rule, RuleTarget, RuleWay, Ruleset, Side, Test, Translation, network,
};

/// `command`: the command that changes these rules, such as `iptables-legacy`; for IPv6 it begins with `ip6`.
pub(super) fn read(text: &str, command: &str) -> Ruleset {
    let family = if command.starts_with("ip6") { "ip6" } else { "ip" };
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
                    let delete = format!("{command} -t {table} -D {name} {}", rest.join(" "));
                    chain.rules.push(Rule { delete, ..rule(rest, family) });
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
            // The options that follow show the match; a match without options tests something else.
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
            "-i" | "-o" => words.next().map(|name| Matched::Interface(vec![name.to_owned()])),
            "--mark" => words.next().map(mark),
            "--ctstate" | "--state" => {
                words.next().map(|states| Matched::State(states.split(',').map(str::to_ascii_lowercase).collect()))
            }
            "--syn" => Some(Matched::Begins),
            "--tcp-flags" => {
                let (mask, set) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                Some(match mask.contains("SYN") && set == "SYN" {
                    true => Matched::Begins,
                    false => Matched::Other(format!("tcp flags {mask} {set}")),
                })
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
                    "MASQUERADE" | "SNAT" | "REDIRECT" | "DNAT" => {
                        Act::Translate(translation(target, &words.by_ref().collect::<Vec<_>>()))
                    }
                    other if other.chars().all(|c| c.is_ascii_uppercase()) && BUILT_IN.contains(&other) => Act::Pass,
                    other if word == "-g" => Act::Goto(other.to_owned()),
                    other => Act::Jump(other.to_owned()),
                };
                // The other options belong to the target.
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
    Rule { tests, act, way: RuleWay::Iptables, delete: String::new() }
}

/// `0x4000/0x4000`
fn mark(text: &str) -> Matched {
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    match (number(value), number(mask)) {
        (Some(value), Some(mask)) => Matched::Mark { mask, value },
        _ => Matched::Other(format!("mark {text}")),
    }
}

/// `options`: those of the target.
fn translation(target: &str, options: &[&str]) -> Translation {
    let of = |name: &str| options.iter().position(|word| *word == name).and_then(|at| options.get(at + 1)).copied();
    let side = if ["MASQUERADE", "SNAT"].contains(&target) { Side::Source } else { Side::Destination };
    let (mut to, mut ports) = (RuleTarget::Same, of("--to-ports").and_then(|text| port_range(text, '-')));
    if let Some(text) = of("--to-destination").or_else(|| of("--to-source")) {
        // `10.0.0.1-10.0.0.9:1-9`, `[fd00::1]:6443`
        let (address, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            Some((address, port)) => (address, port.strip_prefix(':')),
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(address, port)| (address, Some(port))),
        };
        to = address.parse().map_or(RuleTarget::Same, RuleTarget::Address);
        ports = port.and_then(|text| port_range(text, '-'));
    } else if ["MASQUERADE", "REDIRECT"].contains(&target) {
        to = RuleTarget::Own;
    }
    Translation { side, to, ports, is_stateless: false }
}

fn skip_quoted<'w>(words: &mut impl Iterator<Item = &'w str>) {
    let Some(first) = words.next() else { return };
    if first.starts_with('"') && !(first.len() > 1 && first.ends_with('"')) {
        let _ = words.find(|word| word.ends_with('"'));
    }
}

fn ports(side: Side, text: &str) -> Matched {
    match text.split(',').map(|part| port_range(part, ':')).collect::<Option<Vec<_>>>() {
        Some(ranges) => Matched::Port(None, side, ranges),
        None => Matched::Other(text.to_owned()),
    }
}

fn port_range(text: &str, between: char) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once(between).unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Matches whose options are all parsed above.
const KNOWN: [&str; 7] = ["conntrack", "state", "tcp", "udp", "multiport", "comment", "mark"];
/// Targets without a verdict.
const BUILT_IN: [&str; 7] = ["LOG", "MARK", "CONNMARK", "TCPMSS", "CT", "NFLOG", "TRACE"];
