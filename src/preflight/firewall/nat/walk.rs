//! Walks the rules with the first packet of a connection: which rule translates it, and whether that is certain.

use super::{FirstPacket, Hit, has_tcp};
use crate::preflight::firewall::rules::{Act, Chain, Hook, Matched, Rule, Ruleset, Side, Transport};

/// The kernel's limit for nested chains (NFT_JUMP_STACK_SIZE).
const DEPTH_MAX: u32 = 16;

/// The rule that would translate `side` of `packet` at `hook`: the first that certainly does, or that names its address
/// or port.
pub(super) fn hit<'r>(rules: &'r Ruleset, hook: Hook, packet: &FirstPacket, side: Side) -> Option<Hit<'r>> {
    for (base, _) in rules.at(hook) {
        let mut walk = NatWalk { rules, packet, side, base, hits: Vec::new() };
        walk.chain(base, 0, Met { certain: true, named: false });
        if let Some(hit) = walk.hits.into_iter().find(|hit| hit.certain || hit.named) {
            return Some(hit);
        }
    }
    None
}

struct NatWalk<'r, 'p> {
    rules: &'r Ruleset,
    packet: &'p FirstPacket,
    side: Side,
    base: &'r Chain,
    hits: Vec<Hit<'r>>,
}

/// How a packet matches a rule.
#[derive(Clone, Copy)]
struct Met {
    certain: bool,
    named: bool,
}

/// Whether a packet returns from a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChainOutcome {
    Passes,
    Perhaps,
    Ends,
}

impl<'r> NatWalk<'r, '_> {
    fn chain(&mut self, chain: &'r Chain, depth: u32, met: Met) -> ChainOutcome {
        let mut certain = met.certain;
        let mut outcome = ChainOutcome::Passes;
        for rule in &chain.rules {
            let Some(this) = self.meets(rule) else { continue };
            let here = Met { certain: certain && this.certain, named: met.named || this.named };
            let ends = match &rule.act {
                Act::Pass | Act::Notrack => continue,
                Act::Translate(translation) => {
                    if translation.side == self.side {
                        let Met { certain, named } = here;
                        self.hits.push(Hit { base: self.base, chain, rule, certain, named });
                    }
                    if translation.is_stateless { continue } else { ChainOutcome::Ends }
                }
                Act::Accept | Act::Drop | Act::Reject => ChainOutcome::Ends,
                Act::Return if this.certain => return outcome,
                Act::Return => {
                    certain = false;
                    continue;
                }
                Act::Jump(name) | Act::Goto(name) => {
                    let called =
                        self.rules.chains.iter().find(|other| other.table == chain.table && other.name == *name);
                    let Some(called) = called.filter(|_| depth < DEPTH_MAX) else { continue };
                    let inner = self.chain(called, depth + 1, here);
                    if this.certain && matches!(rule.act, Act::Goto(_)) {
                        return if inner == ChainOutcome::Passes { outcome } else { inner };
                    }
                    inner
                }
            };
            match (ends, this.certain) {
                (ChainOutcome::Passes, _) => {}
                (ChainOutcome::Ends, true) => return ChainOutcome::Ends,
                _ => (certain, outcome) = (false, ChainOutcome::Perhaps),
            }
        }
        outcome
    }

    /// `None`: it does not match this rule.
    fn meets(&self, rule: &Rule) -> Option<Met> {
        let mut met = Met { certain: true, named: false };
        for test in &rule.tests {
            // Whatever the port.
            if matches!(test.of, Matched::Port(Some(Transport::Udp), ..)) {
                return None;
            }
            match self.holds(&test.of).map(|holds| holds != test.negated) {
                Some(false) => return None,
                Some(true) => met.named |= !test.negated && self.names(&test.of),
                None => met.certain = false,
            }
        }
        Some(met)
    }

    /// `None`: unknown.
    fn holds(&self, of: &Matched) -> Option<bool> {
        let FirstPacket { from, to, interface } = self.packet;
        Some(match of {
            Matched::State(states) => states.iter().any(|one| one == "new"),
            Matched::Begins => true,
            Matched::Port(_, Side::Destination, ports) => ports.iter().any(|range| range.contains(&to.port())),
            Matched::Port(_, Side::Source, _) => return None,
            Matched::Address(_, of) if of.iter().all(|network| network.addr().is_ipv6() != to.is_ipv6()) => false,
            Matched::Address(Side::Destination, of) => of.iter().any(|network| network.contains(&to.ip())),
            Matched::Address(_, of) if of.iter().any(|network| network.prefix_len() == 0) => true,
            Matched::Address(Side::Source, of) => of
                .iter()
                .any(|network| from.is_some_and(|ip| network.contains(&ip)))
                .then_some(true)
                .or(from.map(|_| false))?,
            Matched::Protocol(protocols) => has_tcp(protocols),
            Matched::Family(family) => (*family == 6) == to.is_ipv6(),
            Matched::Interface(names) => {
                // Neither clients nor backends are on this host's loopback interface.
                let is = |name: &String| {
                    interface
                        .as_ref()
                        .map(|interface| matches_name(name, interface))
                        .or((name == "lo").then_some(false))
                };
                let known: Vec<_> = names.iter().map(is).collect();
                match known.contains(&Some(true)) {
                    true => true,
                    false if known.contains(&None) => return None,
                    false => false,
                }
            }
            // Baton sets no mark.
            Matched::Mark { mask: _, value } => *value == 0,
            Matched::Other(_) => return None,
        })
    }

    /// Whether hardly any other packet passes the test.
    fn names(&self, of: &Matched) -> bool {
        match of {
            Matched::Port(_, Side::Destination, ports) => ports.iter().all(|range| range.len() < 100),
            Matched::Address(_, of) => of.iter().all(|network| network.prefix_len() == network.max_prefix_len()),
            _ => false,
        }
    }
}

fn matches_name(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix(['*', '+']) {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}
