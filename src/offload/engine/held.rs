//! Flows of other instances: those without sockets are held here too, and carried as soon as their packets come; packets
//! of the others are sent to whoever has them, or answered with RST once nobody has.
//!
//! What is held is listed and aged elsewhere. It becomes this instance's when the failover says so, and goes the way that
//! flows of an earlier process go: a worker gets it.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::net::IpAddr;

use super::carried::{Carried, Step};
use super::holding::{Held, Holding};
use super::ports::PortsElsewhere;
use super::quiet::begin_asking;
use super::recover::{Pair, carried, offer};
use super::reset::{look, over, remove, reset, reset_backend_soon, take_out};
use super::retold::entry;
use super::room::{Crowded, NoStandby};
use super::{Engine, note};
use crate::addr::VipAddr;
use crate::model::end_reason::EndReason;
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{AcceptedFlow, FleetId, FlowRecord, Keeping, PortRange, Then, Unknown};
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Egress, Entry, Share, Windows};
use crate::offload::probe::EntryChange;
use crate::offload::program::{InstallError, Owner, Unread};
use crate::sys::clock::{self, now_ns};
use crate::sys::netlink;
use crate::table::offload::{PeerPortRange, StandbyAnswer, StandbyRequest};

/// What conntrack says of a connection that is none of Baton's is good for so long. Twice FOREIGN_RENEW_NS of
/// bpf/unknown.h.
const FOREIGN_NS: u64 = 60_000_000_000;

pub(super) const BOTH: [FlowDirection; 2] = [FlowDirection::ToBackend, FlowDirection::ToClient];

/// What is kept for other instances.
#[derive(Debug, Default)]
pub(super) struct Keep {
    pub held: Holding,
    /// Keys of entries that forward or refuse; true once this process was asked for it.
    pub(super) diverted: HashMap<Key, bool>,
    pub(super) ports_elsewhere: PortsElsewhere,
    /// Where packets to an address leave.
    routes: HashMap<IpAddr, Egress>,
    owners: HashMap<IpAddr, Owner>,
    pub(super) port_ranges: Vec<PeerPortRange>,
    /// What there is no room for.
    pub(super) crowded: Crowded,
    /// Rules whose packets are shown to the failover.
    asks: HashMap<VipAddr, Unknown>,
    /// What is left of a request for which an entry could not be read. The requests behind it wait: they may take it back.
    pub(super) unserved: Option<StandbyRequest>,
}

impl Engine {
    /// Takes note of what an earlier process held for others; it serves on, though nobody here lists it.
    pub(super) fn recall_standby(&mut self, key: Key, entry: &Entry) {
        if entry.action == Action::Splice {
            let packets = if entry.direction == FlowDirection::ToBackend { entry.seen.packets } else { 0 };
            let ends = entry.ends(key);
            let id = FleetId::of(entry.id, &ends);
            if self.keep.held.get(id).is_none() {
                self.insert_held(id, Held { ends, packets: 0, confirmed: false });
            }
            if let Some(held) = self.keep.held.get_mut(id) {
                held.packets = held.packets.max(packets);
            }
        } else {
            let said = self.keep.diverted.get(&key).copied().unwrap_or_default();
            self.insert_diverted(key, said);
        }
    }

    /// Whether what is said of such packets is kept for others.
    pub(super) fn is_diverted(&self, key: &Key) -> bool {
        self.keep.diverted.contains_key(key)
    }

    /// The flow, if the client's packets of a held one have come since the last look.
    pub(super) fn see_standby(&mut self, key: &Key, entry: &Entry) -> Option<FleetId> {
        // Its backend's packets may come another way, and say nothing of where its client's go.
        let is_up = entry.direction == FlowDirection::ToBackend;
        let id = self.keep.held.by_packet(entry.id, entry.direction, key).filter(|_| is_up)?;
        let held = self.keep.held.get_mut(id)?;
        let before = std::mem::replace(&mut held.packets, entry.seen.packets);
        (entry.seen.packets > before).then_some(id)
    }

    /// Lets the program ask again, for as many packets as each rule allows.
    pub(super) fn refill_asks(&self) {
        for (vip, unknown) in &self.keep.asks {
            let _ = self.outside.program.refill_asks(*vip, unknown);
        }
    }

    pub(super) fn hold(&mut self, record: &FlowRecord) -> Result<(), NoStandby> {
        let (id, ends) = (record.fleet_id(), record.ends);
        let Keeping::Passage(passage) = &record.keeping else { return Ok(()) };
        if self.flows.get(&id.flow).is_some_and(|flow| flow.ends == ends) {
            // Both count it as their own, and the failover decides who goes on with it.
            self.outside.table.offload.held.answer(StandbyAnswer::Ours(vec![id]));
            return Ok(());
        }
        if let Some(held) = self.keep.held.get_mut(id) {
            held.confirmed = true;
            // Once packets have come, the entry knows better than its former owner.
            if held.packets > 0 {
                return Ok(());
            }
        }
        for key in BOTH.map(|direction| ends.key(direction)) {
            self.give_way(&key, Some(id), AcceptedFlow { ends, accepted_unix_ms: record.accepted_unix_ms })?;
        }
        let slot = self.outside.slots.of(ends.backend).0;
        let [up, down] = [(FlowDirection::ToBackend, &passage.up), (FlowDirection::ToClient, &passage.down)].map(
            |(direction, way)| {
                let egress = self.egress_to(ends.onward(direction).to.ip());
                let windows = match direction {
                    FlowDirection::ToBackend => Windows { own: passage.up.window, far: passage.down.window },
                    FlowDirection::ToClient => Windows { own: passage.down.window, far: passage.up.window },
                };
                (ends.key(direction), Entry { windows, ..entry(record, direction, way, egress, slot) })
            },
        );
        for (key, entry) in [up, down] {
            if self.is_ours(&key)? {
                tracing::debug!(flow = %id, "another instance's flow has the addresses of one of this instance's");
                self.unhold(id, &ends)?;
                return Err(NoStandby::Taken);
            }
            if self.is_as_told(&key, id, &entry)? {
                continue;
            }
            if let Err(error) = self.outside.program.hold(&key, &entry) {
                tracing::debug!(flow = %id, %error, "a flow of another instance cannot be held");
                self.unhold(id, &ends)?;
                return Err(NoStandby::NoRoom);
            }
            self.remove_diverted(key);
        }
        if record.client != ends.client
            && !self.is_named_twice(id)
            && let Err(error) = self.outside.program.keep_note(id.flow, &note::of(record.client))
        {
            tracing::warn!(flow = %id, %error, "cannot store the client address that a PROXY header gave for a peer's flow");
        }
        self.insert_held(id, Held { ends, packets: 0, confirmed: true });
        self.keep.crowded.flows.remove(&id);
        Ok(())
    }

    /// Whether this direction is held already, and its packets pass here: then its entry knows all that was `told`, and perhaps a FIN
    /// that its owner has not seen.
    fn is_as_told(&self, key: &Key, id: FleetId, told: &Entry) -> Result<bool, Unread> {
        let known = self
            .outside
            .program
            .entry(key)?
            .filter(|known| known.held && known.action == Action::Splice && known.seen.packets > 0);
        let is_ahead = |told: u64, known: u64| (told as u32).wrapping_sub(known as u32) as i32 > 0;
        Ok(known.is_some_and(|known| {
            let is_behind = is_ahead(told.seen.sent, known.seen.sent) || is_ahead(told.seen.acked, known.seen.acked);
            FleetId::of(known.id, &known.ends(*key)) == id && !is_behind
        }))
    }

    /// Half of it is worth nothing, nor is what was forwarded while it had sockets.
    fn unhold(&mut self, id: FleetId, ends: &Ends) -> Result<(), Unread> {
        self.take_out_standby(id, ends)?;
        self.remove_held(id);
        BOTH.map(|direction| ends.key(direction)).into_iter().try_for_each(|key| self.forget(key))
    }

    pub(super) fn drop_standby(&mut self, id: FleetId) -> Result<(), Unread> {
        self.keep.crowded.flows.remove(&id);
        if let Some(ends) = self.keep.held.get(id).map(|held| held.ends) {
            self.take_out_standby(id, &ends)?;
            self.remove_held(id);
            if !self.is_named_twice(id) {
                let _ = self.outside.program.drop_note(id.flow);
            }
        }
        Ok(())
    }

    /// Whether another flow here has the same flow id: the note, which is found by that, is the other's.
    fn is_named_twice(&self, id: FleetId) -> bool {
        self.flows.contains_key(&id.flow) || self.keep.held.with(id.flow).any(|(other, _)| other != id)
    }

    /// Takes out the entries of a held flow, unless something else has come in their place.
    fn take_out_standby(&self, id: FleetId, ends: &Ends) -> Result<(), Unread> {
        for key in BOTH.map(|direction| ends.key(direction)) {
            let entry = self.outside.program.entry(&key)?;
            if entry.is_some_and(|entry| entry.held && FleetId::of(entry.id, &entry.ends(key)) == id) {
                self.outside.program.take_out(&key)?;
            }
        }
        Ok(())
    }

    /// Takes out what an earlier flow left at `key`: a client has begun another one by the same port, elsewhere. What this
    /// instance has at the address of a VIP that is here is an earlier one if it was accepted before: nobody can have two connections by one
    /// port, so the end of the first was not heard here.
    fn give_way(&mut self, key: &Key, to: Option<FleetId>, other: AcceptedFlow) -> Result<(), Unread> {
        let entry = self.outside.program.entry(key)?;
        let Some(entry) = entry.filter(|entry| matches!(entry.action, Action::Splice | Action::Witness)) else {
            return Ok(());
        };
        if entry.action == Action::Witness {
            self.witnesses.forget(&self.outside.program, entry.id);
            return Ok(());
        }
        let id = FleetId::of(entry.id, &entry.ends(*key));
        if Some(id) == to {
            return Ok(());
        }
        if entry.held {
            return self.drop_standby(id);
        }
        let id = id.flow;
        let own = self.flows.get(&id).filter(|flow| matches!(flow.step, Step::Alone)).map(|flow| flow.ends);
        let Some(ends) = own else { return Ok(()) };
        let [up, down] = BOTH.map(|direction| ends.key(direction));
        let began = self.outside.program.entry(&up)?.map(|entry| entry.share);
        let is_before = |accepted_at_ns| clock::unix_ms_of(accepted_at_ns) < other.accepted_unix_ms;
        // With the same ends it is the same flow, under another id.
        let is_earlier =
            ends != other.ends && matches!(began, Some(Share::Up { accepted_at_ns, .. }) if is_before(accepted_at_ns));
        let is_here = netlink::route(other.ends.vip.ip()).is_ok_and(|route| route.is_local);
        if is_earlier || !is_here {
            if is_here {
                // Its backend has not heard of its end either.
                let _ = look(&self.outside.program, &mut self.flows, id);
                reset_backend_soon(&self.outside, &self.flows, id);
            }
            // This one last: what cannot be taken out is found by it again.
            take_out(&self.outside.program, id, if up == *key { &down } else { &up })?;
            take_out(&self.outside.program, id, key)?;
            tracing::info!(flow = %id, "the client reused its port for a new connection at another instance; the old entries are dropped");
            over(&mut self.outside, &self.flows, id, EndReason::ClientReset);
            if let Some(flow) = self.flows.get_mut(&id) {
                flow.step = Step::Over;
            }
            remove(&self.outside, &mut self.flows, id);
        }
        Ok(())
    }

    /// Whether an entry of this instance stands there.
    fn is_ours(&self, key: &Key) -> Result<bool, Unread> {
        let entry = self.outside.program.entry(key)?;
        Ok(entry.is_some_and(|entry| !entry.held && entry.action != Action::Witness))
    }

    /// Whether such packets are passed on. A flow that has no sockets will never have any again: who says that it has some
    /// has just taken it over, and is about to say more.
    fn is_carried(&self, key: &Key) -> Result<bool, Unread> {
        let is_carried = |entry: Entry| match entry.action {
            Action::Witness => false,
            Action::Splice => true,
            _ => !entry.held,
        };
        Ok(self.outside.program.entry(key)?.is_some_and(is_carried))
    }

    pub(super) fn inherit_standby(&mut self, held: FleetId) -> Result<(), Unread> {
        let Some(ends) = self.keep.held.get(held).map(|held| held.ends) else {
            if self.keep.crowded.flows.contains_key(&held) {
                self.outside.table.offload.held.answer(StandbyAnswer::NoStandby(vec![held]));
            } else if !self.flows.contains_key(&held.flow) {
                self.outside.table.offload.held.answer(StandbyAnswer::Over(vec![held]));
            }
            return Ok(());
        };
        let keys = BOTH.map(|direction| ends.key(direction));
        // Without them it would be reset.
        let mut entries = self.outside.program.entries(keys)?;
        self.remove_held(held);
        self.keep.crowded.flows.remove(&held);
        let is_taken = self.flows.contains_key(&held.flow);
        let id = if is_taken { self.rename(held, &keys, &mut entries) } else { held.flow };
        let [up, down] = entries;
        if let Err(error) = self.outside.program.change(&keys, EntryChange::Own) {
            tracing::error!(%error, "cannot make this instance the owner of a dead peer's flow in the BPF map");
        }
        if let Some(entry) = &up {
            self.outside.slots.keep(entry.backend_slot, ends.backend);
        }
        self.outside.table.offload.reserve(ends.local, ends.backend);
        let pair = Pair { ends: Some(ends), up, down };
        self.flows.insert(id, Carried { inherited_ns: now_ns(), ..carried(id, ends, &pair) });
        begin_asking(&self.outside, &mut self.flows, id);
        // From the wire this host's kernel takes nothing that seems to come from itself, nor sends it there.
        let is_covered = self.outside.surroundings.are_covered(&ends);
        let is_stuck = [ends.backend.ip(), ends.local.ip()].iter().all(|ip| self.egress_to(*ip) == Egress::Local);
        match (&pair.up, &pair.down) {
            (Some(up), Some(down)) if !is_stuck && !is_covered => {
                offer(&mut self.outside, &mut self.flows, id, Some(up), Some(down))
            }
            _ => reset(&self.outside, &mut self.flows, id),
        }
        Ok(())
    }

    /// What one instance looks after has ids of its own: another flow has this one's.
    fn rename(&self, held: FleetId, keys: &[Key; 2], entries: &mut [Option<Entry>; 2]) -> FlowId {
        let id = self.outside.table.flows.single_id();
        tracing::info!(flow = %held, to = %id, "an inherited flow has the id of one of this instance's own flows; Baton gives it a new id");
        for (key, entry) in keys.iter().zip(entries) {
            let Some(entry) = entry else { continue };
            entry.id = id;
            if let Err(error) = self.outside.program.hold(key, entry) {
                tracing::error!(%error, "cannot give a peer's flow its new id in the BPF map");
            }
        }
        id
    }

    pub(super) fn release(&mut self, released: FleetId) -> Result<(), Unread> {
        let id = released.flow;
        let is_it = |flow: &&Carried| matches!(flow.step, Step::Alone) && FleetId::of(id, &flow.ends) == released;
        let Some(flow) = self.flows.get(&id).filter(is_it) else { return Ok(()) };
        let ends = flow.ends;
        look(&self.outside.program, &mut self.flows, id)?;
        over(&mut self.outside, &self.flows, id, EndReason::Moved);
        let Some(flow) = self.flows.remove(id) else { return Ok(()) };
        self.outside.table.offload.release(ends.local, ends.backend);
        if let Err(error) = self.outside.program.change(&BOTH.map(|direction| ends.key(direction)), EntryChange::Hold) {
            tracing::error!(%error, "cannot turn the entries of a flow that a peer now owns into standby entries");
        }
        self.insert_held(released, Held { ends, packets: flow.up.packets, confirmed: true });
        Ok(())
    }

    pub(super) fn settle_standby(&mut self, claim: bool) -> Result<(), Unread> {
        let old: Vec<_> = self.keep.held.iter().filter(|(_, held)| !held.confirmed).map(|(id, _)| id).collect();
        for id in old {
            if claim {
                self.inherit_standby(id)?;
                self.outside.table.fleet.census.inherited.add(1);
            } else {
                self.drop_standby(id)?;
            }
        }
        let old: Vec<_> = self.keep.diverted.iter().filter(|(_, said)| !**said).map(|(key, _)| *key).collect();
        old.into_iter().try_for_each(|key| self.forget(key))
    }

    pub(super) fn forward_flows(&mut self, flows: &[AcceptedFlow], to: IpAddr) -> Result<(), Unread> {
        if self.owner_at(to).is_ok() {
            for flow in flows {
                let [up, down] = flow.keys();
                let named = |entry: Entry, key: &Key| FleetId::of(entry.id, &entry.ends(*key));
                let [at_up, at_down] = self.outside.program.entries([up, down])?;
                // Entries of one flow at both: it has no sockets, see `is_carried`.
                if at_up.map(|entry| named(entry, &up)) != at_down.map(|entry| named(entry, &down)) {
                    self.give_way(&up, None, *flow)?;
                    self.give_way(&down, None, *flow)?;
                }
            }
        }
        let keys: Vec<_> = flows.iter().flat_map(AcceptedFlow::keys).collect();
        self.forward(&keys, to, false)
    }

    /// `lent`: nobody has told of a flow there, or it is over.
    pub(super) fn forward(&mut self, keys: &[Key], to: IpAddr, lent: bool) -> Result<(), Unread> {
        let owner = match self.owner_at(to) {
            Ok(owner) => owner,
            Err(error) => {
                tracing::warn!(%to, %error, "cannot find the hardware address of a peer; this host does not forward packets of its flows");
                return Ok(());
            }
        };
        for key in keys.iter().copied() {
            if self.is_carried(&key)? {
                self.keep.crowded.packets.remove(&key);
                continue;
            }
            match self.divert(key, |engine| engine.outside.program.forward(&key, &owner, lent))? {
                true => drop(self.keep.crowded.packets.remove(&key)),
                false => drop(self.keep.crowded.packets.insert(key, (to, lent))),
            }
        }
        Ok(())
    }

    pub(super) fn refuse_packets(&mut self, key: Key) -> Result<(), Unread> {
        if !self.is_carried(&key)? {
            self.keep.crowded.packets.remove(&key);
            self.divert(key, |engine| engine.outside.program.refuse(&key))?;
        }
        Ok(())
    }

    /// False: there is no room. Such packets are shown to the failover each time.
    fn divert(&mut self, key: Key, enter: impl FnOnce(&Self) -> Result<(), InstallError>) -> Result<bool, Unread> {
        match enter(self) {
            Ok(()) => {
                self.insert_diverted(key, true);
                Ok(true)
            }
            Err(InstallError::Unread(unread)) => Err(unread),
            Err(error) => {
                tracing::debug!(from = %key.from, %error, "packets of another instance's flow stay unknown");
                Ok(false)
            }
        }
    }

    pub(super) fn forget(&mut self, key: Key) -> Result<(), Unread> {
        self.keep.crowded.packets.remove(&key);
        if self.keep.diverted.contains_key(&key) {
            if !self.is_ours(&key)? {
                self.outside.program.take_out(&key)?;
            }
            self.remove_diverted(key);
        }
        Ok(())
    }

    pub(super) fn find_unanswered(&self, keys: &[Key]) -> Result<(), Unread> {
        let mut silent = Vec::new();
        for key in keys {
            // Without one, for want of room, nobody knows.
            let entry = self.outside.program.entry(key)?;
            if entry.is_none_or(|entry| entry.action == Action::Reset && entry.seen.last_ns == 0) {
                silent.push(*key);
            }
        }
        self.outside.table.offload.held.answer(StandbyAnswer::Unanswered(silent));
        Ok(())
    }

    pub(super) fn set_unknown(&mut self, vip: VipAddr, unknown: Option<Unknown>) {
        match unknown.filter(|unknown| matches!(unknown.then, Then::Ask { .. })) {
            Some(unknown) => drop(self.keep.asks.insert(vip, unknown)),
            None => drop(self.keep.asks.remove(&vip)),
        }
        if let Err(error) = self.outside.program.set_unknown(vip, unknown) {
            tracing::error!(%vip, %error, "cannot write the action for unknown packets to the BPF map");
        }
    }

    /// Whether a packet belongs to a connection whose addresses this host's kernel translates: it passes from now on, for
    /// long enough that conntrack need not be asked of each.
    pub(super) fn is_foreign(&self, key: &Key) -> bool {
        let is_foreign = netlink::is_translated(key.from, key.to).unwrap_or(false);
        if is_foreign && let Err(error) = self.outside.program.leave_alone(key, now_ns() + FOREIGN_NS) {
            tracing::error!(%error, "cannot exempt a connection that this host translates (NAT); Baton asks conntrack again about it");
        }
        is_foreign
    }

    pub(super) fn show_port_ranges(&mut self) {
        let port_ranges: Vec<(PortRange, Vec<Owner>)> = self
            .keep
            .port_ranges
            .clone()
            .into_iter()
            .map(|port_range| {
                (port_range.ports, port_range.at.iter().filter_map(|ip| self.owner_at(*ip).ok()).collect())
            })
            .collect();
        if let Err(error) = self.outside.program.set_port_ranges(&port_ranges) {
            tracing::error!(%error, "cannot write the peers' port ranges to the BPF map; replies to peers' new connections may be reset");
        }
    }

    /// How the instance at `ip`, on a link that this host is on too, is reached.
    fn owner_at(&mut self, ip: IpAddr) -> std::io::Result<Owner> {
        if let Some(owner) = self.keep.owners.get(&ip).filter(|owner| owner.mac.is_some()) {
            return Ok(*owner);
        }
        let route = netlink::route(ip)?;
        if route.gateway.is_some() || route.is_local {
            return Err(std::io::Error::other("it is not on a link of this host"));
        }
        self.look_at_interface(route.interface);
        let owner = Owner { ip, mac: netlink::neighbour(route.interface, ip)?, interface: route.interface };
        self.keep.owners.insert(ip, owner);
        Ok(owner)
    }

    /// Where packets to `ip` leave. Without a route the entry is made nevertheless, and fixed when there is one.
    fn egress_to(&mut self, ip: IpAddr) -> Egress {
        if let Slot::Occupied(known) = self.keep.routes.entry(ip) {
            return *known.get();
        }
        let egress = by_route(ip);
        self.keep.routes.insert(ip, egress);
        if let Egress::Interface(index) = egress {
            self.look_at_interface(index);
        }
        egress
    }

    /// Has the program on an interface that other instances' flows may come by.
    fn look_at_interface(&mut self, index: u32) {
        if self.outside.interfaces.attach_for_peers(&mut self.outside.program, index) {
            self.outside.show(self.flows.len());
        }
    }

    pub(super) fn routes_moved(&mut self) {
        self.keep.owners.clear();
        self.show_port_ranges();
        let known = std::mem::take(&mut self.keep.routes);
        let mut moved = HashMap::new();
        for (ip, before) in known {
            let now = self.egress_to(ip);
            if now != before {
                moved.insert(ip, now);
            }
        }
        if moved.is_empty() {
            return;
        }
        for ends in self.keep.held.iter().map(|(_, held)| held.ends).collect::<Vec<_>>() {
            for direction in BOTH {
                let change = match moved.get(&ends.onward(direction).to.ip()) {
                    Some(Egress::Interface(index)) => EntryChange::Interface(*index),
                    Some(Egress::Local) => EntryChange::Local,
                    None => continue,
                };
                if let Err(error) = self.outside.program.change(&[ends.key(direction)], change) {
                    tracing::error!(%error, "cannot change the outgoing interface of a standby entry; the flow's packets may leave by the old route");
                }
            }
        }
    }
}

fn by_route(ip: IpAddr) -> Egress {
    match netlink::route(ip) {
        Ok(route) if route.is_local => Egress::Local,
        Ok(route) => Egress::Interface(route.interface),
        Err(_) => Egress::Interface(0),
    }
}
