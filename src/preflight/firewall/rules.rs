//! The common model of nftables and iptables, as far as it decides about a VIP's packets.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// Every chain that packets of this host's own connections may pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ruleset {
    pub chains: Vec<Chain>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Such as `inet filter`: chains call only those of their own table.
    pub table: String,
    pub name: String,
    /// `None`: only other chains call it.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// The hook at which the kernel enters a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub hook: Hook,
    pub priority: i32,
    pub drops: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Prerouting,
    Input,
    Output,
    Postrouting,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// All must hold.
    pub tests: Vec<Test>,
    pub act: Act,
    pub way: RuleWay,
    /// The command that removes it.
    pub delete: String,
}

/// The program that can change a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleWay {
    Nft,
    Iptables,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub of: Matched,
    pub negated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matched {
    /// Any of these conntrack states.
    State(Vec<String>),
    /// A SYN without ACK: it begins a connection.
    Begins,
    /// A port in any of these ranges, of the source or the destination; of this protocol, or of any.
    Port(Option<Transport>, Side, Vec<RangeInclusive<u16>>),
    Address(Side, Vec<IpNet>),
    /// Any of these protocols above IP, as nft(8) names them.
    Protocol(Vec<String>),
    /// 4 or 6.
    Family(u8),
    /// Any of these incoming or outgoing interfaces; one may end in `*` or `+`, which stand for any suffix.
    Interface(Vec<String>),
    /// Its mark, masked.
    Mark {
        mask: u32,
        value: u32,
    },
    /// Another test, as text.
    Other(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "tcp" => Some(Self::Tcp),
            "udp" => Some(Self::Udp),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Whether `name`, or a number in it, means this protocol.
    pub(super) fn is_called(self, name: &str) -> bool {
        let number = if self == Self::Tcp { "6" } else { "17" };
        name == self.name() || name == number || name == "all"
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Accept,
    Drop,
    /// Drops it, and tells the sender.
    Reject,
    Jump(String),
    Goto(String),
    Return,
    Notrack,
    Translate(Translation),
    /// No verdict.
    Pass,
}

/// New addresses or ports for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translation {
    /// The side whose address or port changes.
    pub side: Side,
    pub to: RuleTarget,
    pub ports: Option<RangeInclusive<u16>>,
    /// Whether the rule changes only its own packets, without conntrack.
    pub is_stateless: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleTarget {
    Address(IpAddr),
    /// An address of this host that the kernel chooses.
    Own,
    /// The packet's own address, or one that the rule does not show.
    Same,
}

impl Test {
    pub(super) fn new(of: Matched) -> Self {
        Self { of, negated: false }
    }

    pub(super) fn other(text: impl Into<String>) -> Self {
        Self::new(Matched::Other(text.into()))
    }
}

impl Ruleset {
    /// The base chains at `hook`, in the order in which packets pass them.
    pub(super) fn at(&self, hook: Hook) -> Vec<(&Chain, Base)> {
        let bases = self.chains.iter().filter_map(|chain| Some((chain, chain.base?)));
        let mut at: Vec<_> = bases.filter(|(_, base)| base.hook == hook).collect();
        at.sort_by_key(|(_, base)| base.priority);
        at
    }
}

impl Hook {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "prerouting" => Self::Prerouting,
            "input" => Self::Input,
            "output" => Self::Output,
            "postrouting" => Self::Postrouting,
            _ => return None,
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The table's name shows the family, or the family does not matter to the reader.
        let shown = self.tests.iter().filter(|test| !matches!(test.of, Matched::Family(_)));
        shown.into_iter().try_for_each(|test| write!(f, "{test} "))?;
        match &self.act {
            Act::Accept => write!(f, "accept"),
            Act::Drop => write!(f, "drop"),
            Act::Reject => write!(f, "reject"),
            Act::Jump(chain) => write!(f, "jump {chain}"),
            Act::Goto(chain) => write!(f, "goto {chain}"),
            Act::Return => write!(f, "return"),
            Act::Notrack => write!(f, "notrack"),
            Act::Translate(translation) => translation.fmt(f),
            Act::Pass => write!(f, "..."),
        }
    }
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.ports.as_ref().map(|ports| format!(":{}", show_range(ports))).unwrap_or_default();
        match (self.side, self.to) {
            (Side::Source, RuleTarget::Own) => write!(f, "masquerade"),
            (Side::Destination, RuleTarget::Own) => write!(f, "redirect to {port}"),
            (Side::Source, RuleTarget::Address(ip)) => write!(f, "snat to {}{port}", shown(ip)),
            (Side::Destination, RuleTarget::Address(ip)) => write!(f, "dnat to {}{port}", shown(ip)),
            (Side::Source, RuleTarget::Same) => write!(f, "snat {port}"),
            (Side::Destination, RuleTarget::Same) => write!(f, "dnat {port}"),
        }
    }
}

fn shown(ip: IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.negated { "!= " } else { "" };
        let end = |side: &Side, what: &str| format!("{}{what}", if *side == Side::Source { "s" } else { "d" });
        match &self.of {
            Matched::State(states) => write!(f, "ct state {not}{}", states.join(",")),
            Matched::Begins => write!(f, "tcp flags {not}syn"),
            Matched::Port(of, side, ports) => {
                let of = of.map(|of| format!("{} ", of.name())).unwrap_or_default();
                write!(f, "{of}{} {not}{}", end(side, "port"), joined(ports, show_range))
            }
            Matched::Address(side, of) => write!(f, "ip {} {not}{}", end(side, "addr"), joined(of, IpNet::to_string)),
            Matched::Protocol(protocols) => write!(f, "protocol {not}{}", protocols.join(",")),
            Matched::Family(family) => write!(f, "family {not}{family}"),
            Matched::Interface(names) => write!(f, "interface {not}{}", names.join(",")),
            Matched::Mark { mask, value } => write!(f, "mark {not}{value:#x}/{mask:#x}"),
            Matched::Other(text) => write!(f, "{not}({text})"),
        }
    }
}

fn show_range(range: &RangeInclusive<u16>) -> String {
    if range.start() == range.end() { range.start().to_string() } else { format!("{}-{}", range.start(), range.end()) }
}

fn joined<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    items.iter().map(show).collect::<Vec<_>>().join(",")
}

/// An address or a network.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}
