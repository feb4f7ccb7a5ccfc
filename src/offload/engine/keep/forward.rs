//! Unknown packets: forwarded, refused, reported, or left to another program.

use std::net::IpAddr;
use std::time::Duration;

use super::super::Outside;
use super::super::flows::Flows;
use super::super::witness::Witnesses;
use super::{Keep, is_ours};
use crate::addr::VipAddr;
use crate::model::ends::Key;
use crate::model::fleet::{AcceptedFlow, FleetId, Then, Unknown};
use crate::offload::entry::{Action, Entry};
use crate::offload::program::{InstallError, Program, Unread};
use crate::ports::offload::StandbyAnswer;
use crate::sys::clock::now_ns;
use crate::sys::netlink;

/// How long conntrack's answer about a connection that is not Baton's stays valid. Twice FOREIGN_RENEW_NS of
/// bpf/unknown.h.
const FOREIGN_NS: u64 = 60_000_000_000;

/// How often the program may report further unknown packets.
const REFILL_EVERY: Duration = Duration::from_millis(100);

impl Keep {
    /// Lets the program report further packets, if it is time: as many as each rule allows.
    pub(in super::super) fn refill_asks(&mut self, program: &Program, now_ns: u64) {
        if now_ns < self.refill_at_ns {
            return;
        }
        self.refill_at_ns = now_ns + REFILL_EVERY.as_nanos() as u64;
        for (vip, unknown) in &self.asks {
            let _ = program.refill_asks(*vip, unknown);
        }
    }

    pub(super) fn forward_flows(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        witnesses: &mut Witnesses,
        forwarded: &[AcceptedFlow],
        to: IpAddr,
    ) -> Result<(), Unread> {
        if self.hops.owner_at(outside, flows, to).is_ok() {
            for flow in forwarded {
                let [up, down] = flow.ends.keys();
                let named = |entry: Entry, key: &Key| FleetId::of(entry.id, &entry.ends(*key));
                let [at_up, at_down] = outside.program.entries([up, down])?;
                // If both entries are of one flow, it is offloaded; see `is_offloaded`.
                if at_up.map(|entry| named(entry, &up)) != at_down.map(|entry| named(entry, &down)) {
                    self.give_way(outside, flows, witnesses, &up, None, *flow)?;
                    self.give_way(outside, flows, witnesses, &down, None, *flow)?;
                }
            }
        }
        let keys: Vec<_> = forwarded.iter().flat_map(|flow| flow.ends.keys()).collect();
        self.forward(outside, flows, &keys, to, false)
    }

    /// `except_syn`: a SYN is not forwarded, because no record names a flow there, or the flow has ended.
    pub(super) fn forward(
        &mut self,
        outside: &mut Outside,
        flows: &Flows,
        keys: &[Key],
        to: IpAddr,
        except_syn: bool,
    ) -> Result<(), Unread> {
        let owner = match self.hops.owner_at(outside, flows, to) {
            Ok(owner) => owner,
            Err(error) => {
                tracing::warn!(%to, %error, "cannot find the hardware address of a peer; this host does not forward packets of its flows");
                return Ok(());
            }
        };
        for key in keys.iter().copied() {
            if is_offloaded(&outside.program, &key)? {
                self.crowded.forget_packets(&key);
                continue;
            }
            match self.divert(key, outside.program.forward(&key, &owner, except_syn))? {
                true => self.crowded.forget_packets(&key),
                false => self.crowded.add_packets(key, to, except_syn),
            }
        }
        Ok(())
    }

    pub(super) fn refuse_packets(&mut self, program: &Program, key: Key) -> Result<(), Unread> {
        if !is_offloaded(program, &key)? {
            self.crowded.forget_packets(&key);
            self.divert(key, program.refuse(&key))?;
        }
        Ok(())
    }

    /// Returns false if there is no room. Then the program reports each such packet to the failover.
    fn divert(&mut self, key: Key, entered: Result<(), InstallError>) -> Result<bool, Unread> {
        match entered {
            Ok(()) => {
                self.kept.insert_diverted(key);
                Ok(true)
            }
            Err(InstallError::Unread(unread)) => Err(unread),
            Err(error) => {
                tracing::debug!(from = %key.from, %error, "cannot write an entry for packets of another instance's flow; the BPF program reports each such packet");
                Ok(false)
            }
        }
    }

    pub(super) fn forget(&mut self, program: &Program, key: Key) -> Result<(), Unread> {
        self.crowded.forget_packets(&key);
        if self.kept.is_diverted(&key) {
            if !is_ours(program, &key)? {
                program.take_out(&key)?;
            }
            self.kept.remove_diverted(key);
        }
        Ok(())
    }

    pub(super) fn set_unknown(&mut self, program: &Program, vip: VipAddr, unknown: Option<Unknown>) {
        match unknown.filter(|unknown| matches!(unknown.then, Then::Ask { .. })) {
            Some(unknown) => drop(self.asks.insert(vip, unknown)),
            None => drop(self.asks.remove(&vip)),
        }
        if let Err(error) = program.set_unknown(vip, unknown) {
            tracing::error!(%vip, %error, "cannot write the action for unknown packets to the BPF map");
        }
    }
}

/// Whether the program already carries such packets. An offloaded flow never gets sockets again: an instance that
/// reports sockets has just taken the flow over, and is about to report the offload.
fn is_offloaded(program: &Program, key: &Key) -> Result<bool, Unread> {
    let is_offloaded = |entry: Entry| match entry.action {
        Action::Witness => false,
        Action::Splice => true,
        _ => !entry.held,
    };
    Ok(program.entry(key)?.is_some_and(is_offloaded))
}

pub(super) fn find_unanswered(outside: &Outside, keys: &[Key]) -> Result<(), Unread> {
    let mut silent = Vec::new();
    for key in keys {
        // Without an entry, for want of room, there is no answer.
        let entry = outside.program.entry(key)?;
        if !entry.is_some_and(|entry| has_answered(&entry)) {
            silent.push(*key);
        }
    }
    outside.table.offload.standby.answer(StandbyAnswer::Unanswered(silent));
    Ok(())
}

/// Whether an RST went out through the entry since it refuses packets, or its ends have begun another connection.
/// Entries of other flows, with packets from before that, prove nothing.
fn has_answered(entry: &Entry) -> bool {
    let is_refusing = entry.held && entry.action == Action::Reset;
    entry.seen.reused || (is_refusing && entry.seen.last_ns != 0)
}

/// Whether the packet belongs to a connection whose addresses this host's kernel translates. If so, such packets pass
/// from now on, for long enough that conntrack need not be asked about each.
pub(in super::super) fn is_foreign(program: &Program, key: &Key) -> bool {
    let is_foreign = netlink::is_translated(key.from, key.to).unwrap_or(false);
    if is_foreign && let Err(error) = program.leave_alone(key, now_ns() + FOREIGN_NS) {
        tracing::error!(%error, "cannot exempt a connection that this host translates (NAT); Baton asks conntrack again about it");
    }
    is_foreign
}
