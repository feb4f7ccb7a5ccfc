//! The state of one other instance.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::fleet::{Epoch, Farewell, Liveness, Strangeness};

/// Whether another instance lives, and the addresses of its host, according to its last messages.
#[derive(Debug)]
pub(super) struct PeerState {
    /// The address of its link.
    link: IpAddr,
    liveness: Liveness,
    /// Whether this instance has inherited or refused its flows.
    is_dead: bool,
    /// When it was last asked whether it lives, if it has not answered.
    pinged_ns: Option<u64>,
    /// Whether it has answered since a frontend's address last came here: if so, the address did not come because it
    /// died.
    answered: bool,
    synced: bool,
    /// Whether this instance has not taken some of its flows, for it has no frontend of theirs, or no instance such ports.
    lacks_some: bool,
    /// Whether no instance of the fleet can have one of these.
    is_strange: bool,
    /// The frontends' addresses that both hosts have, according to its last messages: none that came here after them.
    shared: BTreeSet<IpAddr>,
    slot: Option<u8>,
    /// Whether it has told ports of its host.
    has_told_ports: bool,
    /// Of the process that was last heard.
    epoch: Option<Epoch>,
    /// Whether that process said that another one continues with all its flows.
    is_succeeded: bool,
    /// Whether another process has begun since the last snapshot, without any socket of the one before.
    is_anew: bool,
    /// All addresses of its host.
    addresses: Vec<IpAddr>,
    /// The frontends' addresses that its host keeps on `lo`, and has nowhere else.
    kept: Vec<IpAddr>,
    /// An address of its flows has been here, and not there, for a while.
    lost_address: bool,
}

/// An owner that does not answer a ping within this time counts as silent.
pub(super) const PING_NS: u64 = 250_000_000;

impl PeerState {
    pub(super) fn new(link: IpAddr) -> Self {
        Self {
            link,
            liveness: Liveness::Unheard,
            is_dead: false,
            pinged_ns: None,
            answered: false,
            synced: false,
            lacks_some: false,
            is_strange: false,
            shared: BTreeSet::new(),
            slot: None,
            has_told_ports: false,
            epoch: None,
            is_succeeded: false,
            is_anew: false,
            addresses: Vec::new(),
            kept: Vec::new(),
            lost_address: false,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// A flow to `vip` was not taken. Returns whether it is the first one that no instance can have; `None`: it may be of a frontend
    /// that this peer alone has.
    pub(super) fn lacks_one(&mut self, vip: IpAddr, why: Strangeness) -> Option<bool> {
        self.lacks_some = true;
        let is_its_own = why == Strangeness::Frontend && self.has(vip);
        (!is_its_own).then(|| !std::mem::replace(&mut self.is_strange, true))
    }

    /// A flow that the process before this one knew was not taken: this one has no such frontend.
    pub(super) fn lacks_one_of_before(&mut self) {
        self.lacks_some = true;
    }

    /// Whether flows of it were not taken since the last call.
    pub(super) fn take_lacks(&mut self) -> bool {
        self.is_strange = false;
        std::mem::take(&mut self.lacks_some)
    }

    pub(super) fn liveness(&self) -> Liveness {
        self.liveness
    }

    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    pub(super) fn has_answered(&self) -> bool {
        self.answered
    }

    pub(super) fn tell_ports(&mut self) {
        self.has_told_ports = true;
    }

    pub(super) fn has_told_ports(&self) -> bool {
        self.has_told_ports
    }

    pub(super) fn slot(&self) -> Option<u8> {
        self.slot
    }

    /// Whether it can still answer a question.
    pub(super) fn can_be_asked(&self) -> bool {
        !self.is_dead && matches!(self.liveness, Liveness::Alive | Liveness::Unlinked | Liveness::Silent)
    }

    /// Alive, and linked.
    pub(super) fn is_heard(&self) -> bool {
        self.liveness == Liveness::Alive
    }

    /// Whether this instance knows all its flows.
    pub(super) fn has_told(&self) -> bool {
        match self.liveness {
            _ if self.is_dead => true,
            Liveness::Alive => self.synced,
            Liveness::Unheard | Liveness::Dead | Liveness::Left(Farewell::Stopped) => true,
            Liveness::Unlinked | Liveness::Silent | Liveness::Left(Farewell::Succeeded) => false,
        }
    }

    /// Whether backend legs from its ports may live. A silent peer that counts as dead may be cut off only from here.
    /// Behind a router it then still gets clients, and this instance does not hear of their flows.
    pub(super) fn may_have_legs(&self) -> bool {
        self.serves()
            || self.shares() && !matches!(self.liveness, Liveness::Unheard | Liveness::Left(Farewell::Stopped))
    }

    pub(super) fn serves(&self) -> bool {
        let left = Liveness::Left(Farewell::Succeeded);
        !self.is_dead
            && (matches!(self.liveness, Liveness::Alive | Liveness::Unlinked | Liveness::Silent)
                || self.liveness == left)
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }

    pub(super) fn keep(&mut self, vips: &[IpAddr]) {
        self.kept = vips.to_vec();
    }

    pub(super) fn keeps(&self, vip: IpAddr) -> bool {
        self.kept.contains(&vip)
    }

    pub(super) fn kept(&self) -> &[IpAddr] {
        &self.kept
    }

    /// The frontends' addresses that both hosts have.
    pub(super) fn shared(&self) -> impl Iterator<Item = IpAddr> {
        self.shared.iter().copied()
    }

    /// The same, as the process before this one knew them.
    pub(super) fn restore_shared(&mut self, shared: Vec<IpAddr>) {
        self.shared = shared.into_iter().collect();
    }

    /// Whether both hosts have one of the frontends' addresses, according to its last messages.
    pub(super) fn shares(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Whether packets of one flow may come both here and there.
    pub(super) fn may_meet(&self, here: &BTreeSet<IpAddr>) -> bool {
        self.serves() && self.addresses.iter().any(|ip| here.contains(ip)) || self.may_have_legs() && self.shares()
    }

    /// Addresses of its host, first that of its link.
    pub(super) fn places(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(&self.link).chain(&self.addresses).copied()
    }

    pub(super) fn link_at(&mut self, link: IpAddr) {
        self.link = link;
    }

    /// Its snapshot begins: up to `synced` it names all its flows.
    pub(super) fn begin(&mut self, epoch: Epoch, slot: u8) {
        self.synced = false;
        self.slot = Some(slot);
        if self.epoch.replace(epoch).is_some_and(|before| before != epoch) {
            self.is_anew |= !std::mem::take(&mut self.is_succeeded);
        }
    }

    /// Its snapshot is complete. Returns whether a new process has begun since the last one, without any socket.
    pub(super) fn synced(&mut self) -> bool {
        self.synced = true;
        std::mem::take(&mut self.is_anew)
    }

    /// Sets its liveness, and returns the one before.
    pub(super) fn hear(&mut self, liveness: Liveness) -> Liveness {
        match liveness {
            Liveness::Alive => (self.pinged_ns, self.answered) = (None, true),
            // Its present actions are unknown, but it keeps the flows that it had.
            Liveness::Unlinked => self.pinged_ns = None,
            Liveness::Left(Farewell::Succeeded) => self.is_succeeded = true,
            Liveness::Dead | Liveness::Left(Farewell::Stopped) | Liveness::Silent | Liveness::Unheard => {}
        }
        std::mem::replace(&mut self.liveness, liveness)
    }

    /// It counts as dead from now on. `false`: it did already.
    pub(super) fn set_dead(&mut self) -> bool {
        if self.is_dead {
            return false;
        }
        (self.is_dead, self.pinged_ns, self.synced) = (true, None, false);
        true
    }

    /// It no longer counts as dead. `false`: it did not.
    pub(super) fn revive(&mut self) -> bool {
        std::mem::take(&mut self.is_dead)
    }

    /// A frontend's address has come here.
    pub(super) fn await_answer(&mut self) {
        self.answered = false;
    }

    /// Whether it must be asked if it lives.
    pub(super) fn ping(&mut self, now_ns: u64) -> bool {
        if self.liveness == Liveness::Alive {
            self.pinged_ns = Some(now_ns);
        }
        self.liveness == Liveness::Alive
    }

    /// Whether it did not answer a ping in time; true only once.
    pub(super) fn take_mute(&mut self, now_ns: u64) -> bool {
        // The answers to a later ping have time left: an address that flaps comes twice within it.
        self.pinged_ns.take_if(|at_ns| now_ns.saturating_sub(*at_ns) >= PING_NS).is_some()
    }

    /// An address that was its own has not gone back.
    pub(super) fn lose_address(&mut self) {
        self.lost_address = true;
    }

    pub(super) fn has_lost_address(&self) -> bool {
        self.lost_address
    }

    pub(super) fn addresses_have_moved(&mut self) {
        self.lost_address = false;
    }

    /// Returns the addresses that it had before.
    pub(super) fn move_addresses(&mut self, addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        self.addresses_have_moved();
        std::mem::replace(&mut self.addresses, addresses)
    }

    /// `here`: the frontends' addresses that are on this host.
    pub(super) fn see_shared(&mut self, here: &BTreeSet<IpAddr>) {
        let both: BTreeSet<_> = self.addresses.iter().filter(|ip| here.contains(ip)).copied().collect();
        self.shared = match self.serves() && self.answered {
            true => both,
            false => self.shared.intersection(&both).copied().collect(),
        };
    }
}
