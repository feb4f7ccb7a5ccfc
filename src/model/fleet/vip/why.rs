//! The reasons why an instance has the VIP or does not have it, as sentences.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::addr::Mac;
use crate::model::fleet::InstanceName;
use crate::model::humane::duration_ms;

/// Why this instance must not have the VIP, also if no other instance has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VipBar {
    /// This instance does not know its peers' flows yet, or has not probed its backends.
    Starting,
    Stopping,
    Evacuated {
        /// The instance that shall take the VIP, if the operator names one.
        to: Option<InstanceName>,
    },
    /// This host could not add the addresses a moment ago.
    Failed {
        error: String,
    },
}

/// Why this instance does not have the VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VipWhy {
    /// The machine has had no look yet.
    Unseen,
    Barred(VipBar),
    /// The interface has no carrier, or is down.
    NoCarrier,
    /// The interface has lost all its other addresses, or those of IPv4 if the VIP has one.
    NoAddress,
    /// The peer link does not run at the moment.
    Blind,
    HeldBy(InstanceName),
    /// The peer `by` hears `holder`, which this instance does not hear.
    HeldAsToldBy {
        by: InstanceName,
        holder: Option<InstanceName>,
    },
    /// This peer is better and could take the VIP.
    After(InstanceName),
    /// Another host has one of the addresses, and no peer says so. `address`: that one. `None`: it only asks for them, too.
    Answered {
        by: Mac,
        address: Option<IpAddr>,
    },
    /// This host heard neither its gateway nor a backend nor a client while it asked for the addresses.
    Deaf,
    /// This host could not ask for the addresses, or could not hear an answer.
    Mute {
        error: String,
    },
    /// This instance asks for the addresses now.
    Taking,
    /// This instance gave the VIP up a moment ago.
    GaveUp,
    /// The interface is not there: it was removed, renamed or never there.
    NoInterface {
        name: String,
    },
}

/// Why an instance took the VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VipGain {
    /// No instance had the VIP.
    Vacant,
    /// This peer had the VIP and has fallen silent.
    Silent(InstanceName),
    /// This peer gave the VIP up, or left.
    GivenUp(InstanceName),
    /// The addresses were on this host at the first look: an earlier process, or keepalived, had added them.
    Found,
}

/// Why an instance gave the VIP up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VipLoss {
    Barred(VipBar),
    NoCarrier,
    /// The interface has lost all its other addresses, or those of IPv4 if the VIP has one.
    NoAddress,
    /// A peer asks for the addresses by ARP, and no IP packet of a peer, a backend or a client comes in.
    Deaf,
    /// This instance is not ready, and that one is.
    NotReady {
        heir: InstanceName,
    },
    /// No backend can be used here, and one can at `heir`.
    NoBackend {
        heir: InstanceName,
    },
    /// The peer `to` holds the VIP by a later claim.
    Yielded {
        to: InstanceName,
    },
    /// This process did not run for so long that the kernel removed the addresses.
    Late {
        for_ms: u64,
    },
    /// An earlier process had left the addresses on this host, and `holder` has the VIP.
    LeftOver {
        holder: InstanceName,
    },
    /// Another program added the addresses to this host while this instance did not hold the VIP.
    Strange,
    /// The interface is not there any more: it was removed or renamed.
    NoInterface {
        name: String,
    },
}

impl fmt::Display for VipBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("this instance is starting"),
            Self::Stopping => f.write_str("this instance is stopping"),
            Self::Evacuated { to: None } => f.write_str("`baton evacuate` empties this host"),
            Self::Evacuated { to: Some(to) } => write!(f, "`baton evacuate --to {to}` empties this host"),
            Self::Failed { error } => write!(f, "this host cannot have the addresses: {error}"),
        }
    }
}

impl fmt::Display for VipWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen => f.write_str("this instance has not looked at its host yet"),
            Self::Barred(bar) => bar.fmt(f),
            Self::NoCarrier => f.write_str("the interface has no carrier"),
            Self::NoAddress => f.write_str("the interface has lost all its other addresses, or those of IPv4"),
            Self::Blind => f.write_str("the peer link does not hear its peers at the moment"),
            Self::HeldBy(name) => write!(f, "{name} has it"),
            Self::HeldAsToldBy { by, holder: Some(holder) } => write!(f, "{by} hears that {holder} has it"),
            Self::HeldAsToldBy { by, holder: None } => write!(f, "{by} hears that another instance has it"),
            Self::After(name) => write!(f, "{name} comes first"),
            Self::Answered { by, address } => f.write_str(&answered(&spelled(*by), *address)),
            Self::Deaf => f.write_str("this host hears neither its gateway nor a backend nor a client"),
            Self::Mute { error } => {
                write!(f, "this host could not ask whether another host has the addresses: {error}")
            }
            Self::Taking => f.write_str("this instance asks whether another host has the addresses"),
            Self::GaveUp => f.write_str("this instance gave it up a moment ago"),
            Self::NoInterface { name } => write_missing(f, name),
        }
    }
}

impl VipWhy {
    /// As it is displayed, with the name of a host of which it has the Ethernet address alone.
    pub(crate) fn told(&self, name_of: impl FnOnce(Mac) -> String) -> String {
        match self {
            Self::Answered { by, address } => answered(&name_of(*by), *address),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for VipGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vacant => f.write_str("no instance had it"),
            // It may be back by the time somebody reads this.
            Self::Silent(name) => write!(f, "{name} had it and was silent"),
            Self::GivenUp(name) => write!(f, "{name} gave it up"),
            Self::Found => f.write_str("its addresses were on this host already"),
        }
    }
}

impl fmt::Display for VipLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barred(bar) => bar.fmt(f),
            Self::NoCarrier => f.write_str("the interface has no carrier"),
            Self::NoAddress => f.write_str("the interface has lost all its other addresses, or those of IPv4"),
            Self::Deaf => {
                f.write_str("another host asks for it, and no socket of this host hears a peer, a backend or a client")
            }
            Self::NotReady { heir } => write!(f, "this instance is not ready, and {heir} is"),
            Self::NoBackend { heir } => write!(f, "no backend can be used here, and {heir} can use one"),
            Self::Yielded { to } => write!(f, "{to} took it later"),
            Self::Late { for_ms } => {
                write!(
                    f,
                    "this process did not run for up to {}, so that the kernel removed the addresses",
                    duration_ms(*for_ms)
                )
            }
            Self::Strange => f.write_str("another program had added it to this host, and no host was asked for it"),
            Self::NoInterface { name } => write_missing(f, name),
            Self::LeftOver { holder } => write!(f, "they were left over here, and {holder} has the VIP"),
        }
    }
}

fn write_missing(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    write!(f, "interface {name} is not there")
}

/// That a host, by these words for it, has this address of the VIP.
fn answered(host: &str, address: Option<IpAddr>) -> String {
    match address {
        Some(address) => format!("another host ({host}) answers for {address}"),
        None => format!("another host ({host}) asks for the addresses, too"),
    }
}

fn spelled(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
