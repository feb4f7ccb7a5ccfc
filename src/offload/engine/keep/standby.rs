//! Offloaded flows of other instances: held here, dropped, inherited, and given away.

use super::super::flows::Flows;
use super::super::offloaded::{OffloadedFlow, Step};
use super::super::quiet::begin_asking;
use super::super::recover::{Pair, offer, offloaded_flow};
use super::super::reset::{look, over, remove, reset, reset_backend_soon, take_out, wake_client};
use super::super::retold::entry;
use super::super::witness::Witnesses;
use super::super::{Outside, note};
use super::room::NoStandby;
use super::standby_flows::StandbyFlow;
use super::{Keep, is_ours};
use crate::model::end_reason::EndReason;
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{AcceptedFlow, FleetId, FlowRecord, Keeping};
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Egress, Entry, Share, Windows};
use crate::offload::probe::EntryChange;
use crate::offload::program::{Program, Unread};
use crate::ports::offload::StandbyAnswer;
use crate::sys::clock::{self, now_ns};
use crate::sys::netlink;

impl Keep {
    pub(super) fn hold(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        witnesses: &mut Witnesses,
        record: &FlowRecord,
    ) -> Result<(), NoStandby> {
        let (id, ends) = (record.fleet_id(), record.ends);
        let Keeping::Passage(passage) = &record.keeping else { return Ok(()) };
        if flows.get(&id.flow).is_some_and(|flow| flow.ends == ends) {
            // Both instances count it as their own, and the failover decides which of them keeps it.
            outside.table.offload.standby.answer(StandbyAnswer::Ours(vec![id]));
            return Ok(());
        }
        if let Some(held) = self.kept.held_mut(id) {
            held.confirmed = true;
            // Once packets have come here, the entry is more recent than its former owner's record.
            if held.packets > 0 {
                return Ok(());
            }
        }
        for key in ends.keys() {
            let accepted = AcceptedFlow { ends, accepted_unix_ms: record.accepted_unix_ms };
            self.give_way(outside, flows, witnesses, &key, Some(id), accepted)?;
        }
        let slot = outside.slots.of(ends.backend).0;
        let [to_backend, to_client] =
            [ends.backend.ip(), ends.client.ip()].map(|ip| self.hops.egress_to(outside, flows, ip));
        if [to_backend, to_client].contains(&Egress::Local) {
            outside.attach_to_lo(flows.len());
        }
        let ways = [
            (FlowDirection::ToBackend, &passage.up, to_backend, to_client),
            (FlowDirection::ToClient, &passage.down, to_client, to_backend),
        ];
        let [up, down] = ways.map(|(direction, way, egress, back)| {
            let windows = match direction {
                FlowDirection::ToBackend => Windows { own: passage.up.window, far: passage.down.window },
                FlowDirection::ToClient => Windows { own: passage.down.window, far: passage.up.window },
            };
            let by_lo = back == Egress::Local;
            (ends.key(direction), Entry { windows, ..entry(record, direction, way, egress, by_lo, slot) })
        });
        for (key, entry) in [up, down] {
            if is_ours(&outside.program, &key)? {
                tracing::debug!(flow = %id, "another instance's flow has the addresses of one of this instance's");
                self.unhold(&outside.program, id, &ends)?;
                return Err(NoStandby::Taken);
            }
            if is_as_told(&outside.program, &key, id, &entry)? {
                continue;
            }
            if let Err(error) = outside.program.hold(&key, &entry) {
                tracing::debug!(flow = %id, %error, "cannot write the standby entries of a peer's flow to the BPF map");
                self.unhold(&outside.program, id, &ends)?;
                return Err(NoStandby::NoRoom);
            }
            self.kept.remove_diverted(key);
        }
        if record.client != ends.client
            && !self.is_named_twice(flows, id)
            && let Err(error) = outside.program.keep_note(id.flow, &note::of(record.client))
        {
            tracing::warn!(flow = %id, %error, "cannot store the client address that a PROXY header gave for a peer's flow");
        }
        self.kept.insert_held(id, StandbyFlow { ends, packets: 0, confirmed: true });
        self.crowded.forget_flow(id);
        Ok(())
    }

    /// One entry alone is of no use, nor is an entry that forwarded while the flow had sockets.
    fn unhold(&mut self, program: &Program, id: FleetId, ends: &Ends) -> Result<(), Unread> {
        take_out_standby(program, id, ends)?;
        self.kept.remove_held(id);
        ends.keys().into_iter().try_for_each(|key| self.forget(program, key))
    }

    pub(super) fn drop_standby(&mut self, program: &Program, flows: &Flows, id: FleetId) -> Result<(), Unread> {
        self.crowded.forget_flow(id);
        self.missing.remove(&id);
        if let Some(ends) = self.kept.held().get(id).map(|held| held.ends) {
            take_out_standby(program, id, &ends)?;
            self.kept.remove_held(id);
            if !self.is_named_twice(flows, id) {
                let _ = program.drop_note(id.flow);
            }
        }
        Ok(())
    }

    /// Whether another flow here has the same flow id: then the note with that id belongs to the other.
    fn is_named_twice(&self, flows: &Flows, id: FleetId) -> bool {
        flows.contains_key(&id.flow) || self.kept.held().with(id.flow).any(|(other, _)| other != id)
    }

    /// Removes the entries of an earlier flow at `key`: its client has begun another one from the same port, on another
    /// host. A flow of this instance at a VIP of this host is an earlier one if it was accepted before: a client cannot
    /// have two connections from one port, so this host did not see the end of the first.
    pub(super) fn give_way(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        witnesses: &mut Witnesses,
        key: &Key,
        to: Option<FleetId>,
        other: AcceptedFlow,
    ) -> Result<(), Unread> {
        let entry = outside.program.entry(key)?;
        let Some(entry) = entry.filter(|entry| matches!(entry.action, Action::Splice | Action::Witness)) else {
            return Ok(());
        };
        if entry.action == Action::Witness {
            witnesses.forget(&outside.program, entry.id);
            return Ok(());
        }
        let id = FleetId::of(entry.id, &entry.ends(*key));
        if Some(id) == to {
            return Ok(());
        }
        if entry.held {
            return self.drop_standby(&outside.program, flows, id);
        }
        let id = id.flow;
        let own = flows.get(&id).filter(|flow| matches!(flow.step, Step::Alone)).map(|flow| flow.ends);
        let Some(ends) = own else { return Ok(()) };
        let [up, down] = ends.keys();
        let began = outside.program.entry(&up)?.map(|entry| entry.share);
        let is_before = |accepted_at_ns| clock::unix_ms_of(accepted_at_ns) < other.accepted_unix_ms;
        // With the same ends it is the same flow under another id.
        let is_earlier =
            ends != other.ends && matches!(began, Some(Share::Up { accepted_at_ns, .. }) if is_before(accepted_at_ns));
        let is_here = netlink::is_local(other.ends.vip.ip()).unwrap_or(false);
        if is_earlier || !is_here {
            if is_here {
                // Its backend did not see its end either.
                let _ = look(&outside.program, flows, id);
                reset_backend_soon(outside, flows, id);
            }
            // Remove this one last: if the other cannot be removed, this one leads to it again.
            take_out(&outside.program, id, if up == *key { &down } else { &up })?;
            take_out(&outside.program, id, key)?;
            tracing::info!(flow = %id, "the client reused its port for a new connection at another instance; Baton \
                                        drops the old entries");
            over(outside, flows, id, EndReason::ClientReset);
            if let Some(flow) = flows.get_mut(&id) {
                flow.step.handle_over();
            }
            remove(outside, flows, id);
        }
        Ok(())
    }

    pub(super) fn inherit_standby(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        held: FleetId,
    ) -> Result<(), Unread> {
        let Some(ends) = self.kept.held().get(held).map(|held| held.ends) else {
            if self.crowded.has_flow(held) {
                outside.table.offload.standby.answer(StandbyAnswer::NoStandby(vec![held]));
            } else if !flows.contains_key(&held.flow) {
                outside.table.offload.standby.answer(StandbyAnswer::Over(vec![held]));
            }
            return Ok(());
        };
        let keys = ends.keys();
        // On an error nothing may change: without its entries the flow would be reset.
        let mut entries = outside.program.entries(keys)?;
        self.kept.remove_held(held);
        self.crowded.forget_flow(held);
        let is_taken = flows.contains_key(&held.flow);
        let id = if is_taken { rename(outside, held, &keys, &mut entries) } else { held.flow };
        let [up, down] = entries;
        if let Err(error) = outside.program.change(id, &keys, EntryChange::Own) {
            tracing::error!(%error, "cannot make this instance the owner of a dead peer's flow in the BPF map");
        }
        if let Some(entry) = &up {
            outside.slots.keep(entry.backend_slot, ends.backend);
        }
        outside.table.offload.reserve(ends.local, ends.backend);
        let pair = Pair { ends: Some(ends), up, down };
        flows.insert(id, OffloadedFlow { inherited_ns: now_ns(), ..offloaded_flow(id, ends, &pair) });
        begin_asking(outside, flows, id);
        let is_covered = outside.surroundings.are_covered(&ends);
        // An end on this host sends to the VIP by `lo`, where the kernel answers with RST if the program does not see it.
        let is_stuck = [ends.backend.ip(), ends.client.ip()]
            .iter()
            .any(|ip| self.hops.egress_to(outside, flows, *ip) == Egress::Local)
            && !outside.attach_to_lo(flows.len());
        match (&pair.up, &pair.down) {
            (Some(up), Some(down)) if !is_stuck && !is_covered => offer(outside, flows, id, Some(up), Some(down)),
            _ => {
                if pair.up.is_none() {
                    // No instance knows a number that its client would answer to.
                    wake_client(outside, &ends);
                }
                reset(outside, flows, id);
            }
        }
        Ok(())
    }

    pub(super) fn release(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        released: FleetId,
    ) -> Result<(), Unread> {
        let id = released.flow;
        let is_it = |flow: &&OffloadedFlow| matches!(flow.step, Step::Alone) && FleetId::of(id, &flow.ends) == released;
        let Some(flow) = flows.get(&id).filter(is_it) else { return Ok(()) };
        let ends = flow.ends;
        look(&outside.program, flows, id)?;
        over(outside, flows, id, EndReason::Moved);
        let Some(flow) = flows.remove(id) else { return Ok(()) };
        outside.table.offload.release(ends.local, ends.backend);
        if let Err(error) = outside.program.change(id, &ends.keys(), EntryChange::Hold) {
            tracing::error!(%error, "cannot turn the entries of a flow that a peer now owns into standby entries");
        }
        self.kept.insert_held(released, StandbyFlow { ends, packets: flow.up.packets, confirmed: true });
        Ok(())
    }

    pub(super) fn settle_standby(
        &mut self,
        outside: &mut Outside,
        flows: &mut Flows,
        claim: bool,
    ) -> Result<(), Unread> {
        let old: Vec<_> = self.kept.held().iter().filter(|(_, held)| !held.confirmed).map(|(id, _)| id).collect();
        for id in old {
            if claim {
                self.inherit_standby(outside, flows, id)?;
                outside.table.fleet_census.inherited.add(1);
            } else {
                self.drop_standby(&outside.program, flows, id)?;
            }
        }
        let old = self.kept.diverted_before();
        old.into_iter().try_for_each(|key| self.forget(&outside.program, key))
    }
}

/// Of what an earlier process held, these flows are not over.
pub(super) fn confirm(keep: &mut Keep, outside: &Outside, flows: &Flows, ids: Vec<FleetId>) {
    for id in ids {
        let answer = match keep.kept.held_mut(id) {
            Some(held) => {
                held.confirmed = true;
                continue;
            }
            None if flows.get(&id.flow).is_some_and(|flow| FleetId::of(id.flow, &flow.ends) == id) => {
                StandbyAnswer::Ours(vec![id])
            }
            // That process ended before it wrote the entries.
            None => {
                keep.missing.insert(id);
                StandbyAnswer::NoStandby(vec![id])
            }
        };
        outside.table.offload.standby.answer(answer);
    }
}

/// Whether this host already holds this direction, and its packets pass here: then its entry knows everything in
/// `told`, and perhaps a FIN that the owner has not seen.
fn is_as_told(program: &Program, key: &Key, id: FleetId, told: &Entry) -> Result<bool, Unread> {
    let known =
        program.entry(key)?.filter(|known| known.held && known.action == Action::Splice && known.seen.packets > 0);
    let is_ahead = |told: u64, known: u64| (told as u32).wrapping_sub(known as u32) as i32 > 0;
    Ok(known.is_some_and(|known| {
        let is_behind = is_ahead(told.seen.sent, known.seen.sent) || is_ahead(told.seen.acked, known.seen.acked);
        FleetId::of(known.id, &known.ends(*key)) == id && !is_behind
    }))
}

/// Removes the entries of a held flow, unless other entries have replaced them.
fn take_out_standby(program: &Program, id: FleetId, ends: &Ends) -> Result<(), Unread> {
    for key in ends.keys() {
        let entry = program.entry(&key)?;
        if entry.is_some_and(|entry| entry.held && FleetId::of(entry.id, &entry.ends(key)) == id) {
            program.take_out(&key)?;
        }
    }
    Ok(())
}

/// An instance's own flows must have distinct ids: another flow has this one's id.
fn rename(outside: &Outside, held: FleetId, keys: &[Key; 2], entries: &mut [Option<Entry>; 2]) -> FlowId {
    let id = outside.table.flows.single_id();
    tracing::info!(flow = %held, to = %id, "an inherited flow has the id of one of this instance's own flows; Baton gives it a new id");
    for (key, entry) in keys.iter().zip(entries) {
        let Some(entry) = entry else { continue };
        entry.id = id;
        if let Err(error) = outside.program.hold(key, entry) {
            tracing::error!(%error, "cannot give a peer's flow its new id in the BPF map");
        }
    }
    id
}
