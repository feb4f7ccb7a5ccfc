//! Why the VIP is where it is, in words.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::Mac;
use crate::model::fleet::InstanceName;

/// Why this instance must not have the VIP, whoever else has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VipBar {
    /// It does not know the flows of its peers yet, or has not probed its backends.
    Starting,
    Stopping,
    Evacuated,
    /// The addresses could not be added a moment ago.
    Failed {
        error: String,
    },
}

/// Why this instance has not got the VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VipWhy {
    /// The first look is still to come.
    Unseen,
    Barred(VipBar),
    /// The interface has no carrier, or is down.
    NoCarrier,
    /// The peer link does not look at its peers at the moment.
    Blind,
    HeldBy(InstanceName),
    /// `by` hears that `holder` has it; this instance does not hear `holder`.
    HeldAsToldBy {
        by: InstanceName,
        holder: Option<InstanceName>,
    },
    /// It comes first, and could take the VIP.
    After(InstanceName),
    /// Another host has one of the addresses, and no peer says so.
    Answered {
        by: Mac,
    },
    /// Neither the gateway nor a backend nor a client was heard while the VIP was to be taken.
    Deaf,
    /// It is asking for the addresses now.
    Taking,
    /// It has given the VIP up a moment ago.
    GaveUp,
}

/// Why it took the VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VipGain {
    /// No instance had it.
    Vacant,
    /// This one had it and is not heard any more.
    Silent(InstanceName),
    /// This one has given it up, or has said goodbye.
    GivenUp(InstanceName),
    /// The addresses were on this host when this process looked first: an earlier process, or keepalived, had added them.
    Found,
}

/// Why it gave the VIP up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VipLoss {
    Barred(VipBar),
    NoCarrier,
    /// This instance is not ready, and that one is.
    NotReady {
        heir: InstanceName,
    },
    /// That one holds the VIP by a later claim.
    Yielded {
        to: InstanceName,
    },
    /// This process did not run for so long that the kernel has removed the addresses.
    Late,
    /// The addresses were left over here, and that one has the VIP.
    LeftOver {
        holder: InstanceName,
    },
}

impl fmt::Display for VipBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("this instance is starting"),
            Self::Stopping => f.write_str("this instance is stopping"),
            Self::Evacuated => f.write_str("`baton evacuate` empties this host"),
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
            Self::Blind => f.write_str("the peer link does not hear its peers at the moment"),
            Self::HeldBy(name) => write!(f, "{name} has it"),
            Self::HeldAsToldBy { by, holder: Some(holder) } => write!(f, "{by} hears that {holder} has it"),
            Self::HeldAsToldBy { by, holder: None } => write!(f, "{by} hears that another instance has it"),
            Self::After(name) => write!(f, "{name} comes first"),
            Self::Answered { by } => write!(f, "another host ({}) has one of the addresses", spelled(*by)),
            Self::Deaf => f.write_str("this host hears neither its gateway nor a backend nor a client"),
            Self::Taking => f.write_str("this instance asks whether another host has the addresses"),
            Self::GaveUp => f.write_str("this instance gave it up a moment ago"),
        }
    }
}

impl fmt::Display for VipGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vacant => f.write_str("no instance had it"),
            Self::Silent(name) => write!(f, "{name} had it and is silent"),
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
            Self::NotReady { heir } => write!(f, "this instance is not ready, and {heir} is"),
            Self::Yielded { to } => write!(f, "{to} took it later"),
            Self::Late => f.write_str("this process did not run for so long that the kernel removed the addresses"),
            Self::LeftOver { holder } => write!(f, "they were left over here, and {holder} has the VIP"),
        }
    }
}

fn spelled(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
