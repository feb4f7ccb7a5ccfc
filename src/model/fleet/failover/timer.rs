//! Timers: decisions to take later.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::ends::{Ends, Key};
use crate::model::fleet::{FleetId, InstanceName};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Owners had time to answer the ping.
    Ping,
    /// This flow has ended, and its packets belong to nobody from now on.
    Forget(FleetId, Ends),
    /// The new owner had time to tell of this flow, so many times.
    Promised(FleetId, u32),
    /// The claimant of this flow had time to tell this instance of its claim.
    Contested(FleetId),
    Round(u64),
    /// No peer has answered the question about these packets.
    Asked(Key),
    /// These packets go to a peer that an answer named, but no record has come.
    Forwarded(Key),
    /// A question about these packets had no result: ask again.
    Unsaid(Key),
    /// Unknown packets are no longer dropped.
    Guard,
    /// The last packets of handshakes that began at the address's last owner have come.
    Left(IpAddr),
    /// The client of this flow has given up by itself.
    Untold(FleetId),
    /// An address has been away from this live owner for a while, and nothing forwards the packets of its flows.
    Unforwarded(InstanceName),
    /// This owner told of flows after it was taken for dead.
    Late(InstanceName),
}

/// Sorted by time, then by the order in which they were set.
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
