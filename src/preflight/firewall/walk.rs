//! Walks the chains with a packet; where a rule tests an unknown property, it follows both outcomes.

use std::net::{IpAddr, SocketAddr};

use super::rules::{Act, Base, Chain, Hook, Matched, Rule, RuleWay, Ruleset, Side, Test, Transport};

/// A segment of a client's connection to a VIP or of a peer's, or a datagram of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub transport: Transport,
    pub service: SocketAddr,
    pub towards: Towards,
    /// The conntrack state: `new`, `invalid`, `untracked`.
    pub state: &'static str,
    /// The far end, if it is known.
    pub other: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    Service,
    Client,
}

/// The rule or policy that drops a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    pub table: String,
    /// The base chain, in which a rule that accepts the packet would have to stand.
    pub chain: String,
    /// The rule, or the policy.
    pub rule: String,
    /// Only for some clients, or under conditions that the rules do not show.
    pub perhaps: bool,
    pub way: RuleWay,
}

/// The priority from which on conntrack has seen a packet (NF_IP_PRI_CONNTRACK).
const CONNTRACK: i32 = -200;

/// The kernel's limit for nested chains (NFT_JUMP_STACK_SIZE).
const DEPTH_MAX: u32 = 16;

/// The rule or policy that would drop `packet`; a certain one before a possible one.
pub(super) fn culprit(rules: &Ruleset, packet: Packet) -> Option<Culprit> {
    let hooks = match packet.towards {
        Towards::Service => [Hook::Prerouting, Hook::Input],
        Towards::Client => [Hook::Output, Hook::Postrouting],
    };
    let packet = if is_untracked(rules, packet, hooks[0]) { Packet { state: "untracked", ..packet } } else { packet };
    let mut perhaps = None;
    for (chain, base) in hooks.iter().flat_map(|hook| rules.at(*hook)) {
        match (Walk { rules, packet }).base(chain, base) {
            Some(culprit) if !culprit.perhaps => return Some(culprit),
            found => perhaps = perhaps.or(found),
        }
    }
    perhaps
}

/// Whether a rule before conntrack certainly exempts it from tracking.
fn is_untracked(rules: &Ruleset, packet: Packet, hook: Hook) -> bool {
    let before = rules.at(hook).into_iter().filter(|(_, base)| base.priority < CONNTRACK);
    let walk = Walk { rules, packet };
    before.into_iter().any(|(chain, _)| walk.chain(chain, 0).notrack)
}

struct Walk<'r> {
    rules: &'r Ruleset,
    packet: Packet,
}

/// The possible results of a chain.
#[derive(Default)]
struct Ways {
    accepted: bool,
    /// It returns to the rule that called it.
    returned: bool,
    dropped: Option<(String, RuleWay)>,
    /// A rule has certainly exempted it from tracking.
    notrack: bool,
}

impl Walk<'_> {
    fn base(&self, chain: &Chain, base: Base) -> Option<Culprit> {
        let ways = self.chain(chain, 0);
        let others = ways.accepted;
        let by_policy = (base.drops && ways.returned).then(|| ("policy drop".to_owned(), way_of(chain)));
        // The policy accepts packets that the rules do not drop.
        let passes = others || (ways.returned && !base.drops);
        let (rule, way) = ways.dropped.or(by_policy)?;
        Some(Culprit { table: chain.table.clone(), chain: chain.name.clone(), rule, perhaps: passes, way })
    }

    fn chain(&self, chain: &Chain, depth: u32) -> Ways {
        let mut ways = Ways::default();
        for rule in &chain.rules {
            let Some(certain) = self.meets(rule) else { continue };
            let ends = match &rule.act {
                Act::Pass | Act::Translate(_) => false,
                Act::Notrack => {
                    ways.notrack |= certain;
                    false
                }
                Act::Accept => {
                    ways.accepted = true;
                    true
                }
                // Who begins a connection is told, and has none.
                Act::Reject if self.packet.state == "new" => {
                    ways.dropped.get_or_insert_with(|| (rule.to_string(), rule.way));
                    true
                }
                Act::Drop => {
                    ways.dropped.get_or_insert_with(|| (rule.to_string(), rule.way));
                    true
                }
                // The sender is told, and does not wait.
                Act::Reject => {
                    ways.accepted = true;
                    true
                }
                Act::Return => {
                    ways.returned = true;
                    true
                }
                Act::Jump(name) | Act::Goto(name) => {
                    self.call(chain, name, depth, &mut ways, certain) || matches!(rule.act, Act::Goto(_))
                }
            };
            if ends && certain {
                return ways;
            }
        }
        ways.returned = true;
        ways
    }

    /// Whether the packet never returns from the chain called `name`.
    fn call(&self, from: &Chain, name: &str, depth: u32, ways: &mut Ways, certain: bool) -> bool {
        let called = self.rules.chains.iter().find(|chain| chain.table == from.table && chain.name == name);
        let Some(called) = called.filter(|_| depth < DEPTH_MAX) else { return false };
        let inner = self.chain(called, depth + 1);
        ways.accepted |= inner.accepted;
        ways.notrack |= inner.notrack && certain;
        ways.dropped = ways.dropped.take().or(inner.dropped);
        !inner.returned
    }

    /// `None`: it does not match this rule; otherwise whether that is certain.
    fn meets(&self, rule: &Rule) -> Option<bool> {
        let mut certain = true;
        for test in &rule.tests {
            match self.holds(test) {
                Some(false) => return None,
                Some(true) => {}
                None => certain = false,
            }
        }
        Some(certain)
    }

    /// `None`: unknown.
    fn holds(&self, test: &Test) -> Option<bool> {
        let Packet { transport, service, towards, state, other } = self.packet;
        let own = if towards == Towards::Service { Side::Destination } else { Side::Source };
        let holds = match &test.of {
            Matched::State(states) => states.iter().any(|one| one == state),
            // Of an untracked one nobody can tell.
            Matched::Begins if state == "untracked" => return None,
            Matched::Begins => transport == Transport::Tcp && state == "new",
            // Whatever the port.
            Matched::Port(Some(of), ..) if *of != transport => return Some(false),
            Matched::Port(_, side, ports) if *side == own => ports.iter().any(|range| range.contains(&service.port())),
            Matched::Address(side, of) if *side == own => of.iter().any(|network| network.contains(&service.ip())),
            Matched::Address(_, of) if of.iter().any(|network| network.prefix_len() == 0) => true,
            Matched::Address(_, of) => {
                let other = other?;
                of.iter().any(|network| network.contains(&other))
            }
            Matched::Port(..) => return None,
            Matched::Protocol(protocols) => protocols.iter().any(|one| transport.is_called(one)),
            Matched::Family(family) => (*family == 6) == service.is_ipv6(),
            // A client is never on this host's loopback interface.
            Matched::Interface(names) if names[..] == ["lo"] => false,
            Matched::Interface(_) | Matched::Mark { .. } | Matched::Other(_) => return None,
        };
        Some(holds != test.negated)
    }
}

fn way_of(chain: &Chain) -> RuleWay {
    chain.rules.first().map_or(RuleWay::Nft, |rule| rule.way)
}
