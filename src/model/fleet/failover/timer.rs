//! What is to be looked at later.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::ends::{Ends, Key};
use crate::model::fleet::{FleetId, InstanceName};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Owners have had their time to answer.
    Ping,
    /// Packets of this flow, which is over, are nobody's from now on.
    Forget(FleetId, Ends),
    /// Its new owner has had time to tell of it, so many times.
    Promised(FleetId, u32),
    /// Whoever has claimed it from its owner has had time to say so here.
    Contested(FleetId),
    Round(u64),
    /// Nobody has said whose packets these are.
    Asked(Key),
    /// They are sent to whom a peer has named, and no record has come.
    Lent(Key),
    /// What could not be learnt of these packets is asked for anew.
    Unsaid(Key),
    /// Unknown packets are not dropped any more.
    Guard,
    /// The last packets of a handshake that began at the address's last owner have come.
    Left(IpAddr),
    /// Whoever waits to hear of the end of this flow has found out by itself.
    Untold(FleetId),
    /// This owner has told of flows after it was buried.
    Late(InstanceName),
}

/// In the order of time, and of setting.
#[derive(Debug, Default)]
pub(super) struct FailoverTimers {
    set: BTreeMap<(u64, u64), Timer>,
    next: u64,
}

impl FailoverTimers {
    pub(super) fn set(&mut self, at_ns: u64, timer: Timer) {
        self.set.insert((at_ns, self.next), timer);
        self.next += 1;
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.set.keys().next().map(|(at_ns, _)| *at_ns)
    }

    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Timer> {
        let first = self.set.first_entry().filter(|first| first.key().0 <= now_ns)?;
        Some(first.remove())
    }
}
