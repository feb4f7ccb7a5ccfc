//! Decisions about other instances' flows when addresses and instances come and go.
//!
//! ```text
//!   peer link ──Remote─────▶ │            │ ──Standby──▶ hold, forward, refuse, inherit
//!   addresses ─────────────▶ │  Failover  │ ──Send──▶ claim, ask, ping
//!   engine ──StandbyAnswer─▶ │            │ ──Announce, Challenge, Answer──▶ the wire
//! ```
//! A flow of another instance is in one of these states:
//! ```text
//!                 its owner keeps sockets          it has none any more
//!   (told) ──────▶ Forwarded ───────────────────────────▶ Held ──▶ this instance's: its packets come here,
//!                     │  ▲                                          or its owner is dead and the VIP is here
//!    its owner is dead│  │ it lives after all
//!                     ▼  │
//!                   Refused ──▶ forgotten: its client was told
//! ```
//! A peer counts as dead after a long silence, or after a short one if the VIP has just come here. No instance resets
//! flows of a peer that answers on the link.

mod agenda;
mod claims;
mod clients;
mod flows;
mod hands;
mod lives;
mod members;
mod peer;
mod port_ranges;
mod rounds;
mod rules;
mod saved;
#[cfg(test)]
mod tests;
mod timer;
mod unknown_packet;
mod unlisted;
mod untold;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use super::{InstanceName, PeerCommand, Remote, StandbyAnswer, StandbyRequest, Strangeness, UnknownPacket};
use crate::addr::VipAddr;
use crate::model::ends::Ends;

use agenda::Agenda;
use claims::FlowClaims;
pub(crate) use clients::ClientsAtPeers;
use flows::KnownFlows;
pub(crate) use members::Members;
use port_ranges::PortRanges;
use rounds::Rounds;
pub(crate) use rounds::{Challenge, Wake};
use rules::Rules;
pub(crate) use saved::{expect_restore, save};
use timer::Timer;
use unknown_packet::UnknownPackets;
use unlisted::Unlisted;
use untold::UntoldFlows;

/// An operator's choices, and properties of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub me: InstanceName,
    /// The part of `ports` that is this instance's own.
    pub slot: u8,
    /// The address of each peer's link: the next hop towards it.
    pub peers: Vec<(InstanceName, IpAddr)>,
    /// The frontends' listening addresses; port 0 means none.
    pub vips: Vec<VipAddr>,
    /// As `vips`, and those on loopback and on every address of a host.
    pub listens: Vec<VipAddr>,
    /// `BackendEntry::hash_key` of all backends.
    pub backend_keys: HashSet<u64>,
    /// The source addresses that the frontends name for their backend legs.
    pub sources: Vec<IpAddr>,
    /// Whether offload is on, so that flows can be held and forwarded.
    pub carries: bool,
    pub challenge: bool,
    pub guard_ns: u64,
    /// Clients in the first of these networks are told first, then those in the next; all others last.
    pub priority: Vec<IpNet>,
    /// Source ports of this network's hosts. Each instance has a part of them.
    pub ports: RangeInclusive<u16>,
    /// Flows of one peer that are known at a time, those of its last snapshot included.
    pub peer_flows_max: usize,
}

/// Actions to take, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// For the offload engine.
    Standby(StandbyRequest),
    Send(PeerCommand),
    /// Announce the address to all neighbours.
    Announce(IpAddr),
    /// Challenge these ends, paced, in this order; then call `handle_challenged`.
    Challenge {
        round: u64,
        ends: Vec<Challenge>,
    },
    /// These clients have answered neither round, and their network may be down: send the resets again and again.
    WakeOn(Vec<Wake>),
    /// Answer the packet with RST.
    Answer(UnknownPacket),
    /// Count a peer's flow that was not taken.
    Refused(Strangeness),
    /// Whether other live instances have the same VIP, so that packets of one flow may come to several of them.
    Shared(bool),
    Note(Note),
}

/// Events for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The peer tells of flows that no instance of this fleet can have, like this one. They are not taken.
    Strange {
        from: InstanceName,
        ends: Ends,
        why: Strangeness,
    },
    /// So many flows of a live owner are reset: their backend is on this host, and so is the address of their backend
    /// leg; or, if `unforwarded`, their VIP is here, and no program forwards their packets.
    Stuck {
        from: InstanceName,
        flows: usize,
        unforwarded: bool,
    },
    /// The owner is dead: so many of its flows go on here, so many are reset.
    FailedOver {
        from: InstanceName,
        inherited: usize,
        reset: usize,
    },
    /// The result for the flows that were reset. Without offload it is unknown, and all count as silent.
    Told {
        from: InstanceName,
        answered: usize,
        silent: usize,
    },
    Claimed {
        from: InstanceName,
        flows: usize,
    },
    Released {
        to: InstanceName,
        flows: usize,
    },
    AddressCame(IpAddr),
    AddressWent(IpAddr),
}

/// Passes each event to the parts that it concerns, and each result to the next part. No part holds another: if the
/// decision of one part depends on another part, that part is an argument. See the module.
#[derive(Debug)]
pub(crate) struct Failover {
    agenda: Agenda,
    members: Members,
    port_ranges: PortRanges,
    rules: Rules,
    flows: KnownFlows,
    claims: FlowClaims,
    rounds: Rounds,
    unknown: UnknownPackets,
    untold: UntoldFlows,
    unlisted: Unlisted,
    earlier: Earlier,
}

/// The entries that an earlier process of this host held for other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Earlier {
    /// What the process before this one knew of the peers is still on its way. `is_ready`: all else is as in `Ready`.
    Restoring { is_ready: bool },
    /// Some peers are not synced yet, and this instance still waits for them.
    Awaited,
    /// All peers are synced, or were waited for long enough.
    Ready,
    /// This instance has decided on all entries.
    Settled,
}

/// Number of each instance's offloaded flows that this instance would reset if it inherited them, because it has neither their frontend nor
/// their backend any more.
pub(crate) fn unserved(failover: &Failover) -> BTreeMap<InstanceName, usize> {
    failover.flows.unserved(&failover.members)
}

/// Up to this number of flows, debug builds check invariants after every event.
const CHECKED_MAX: usize = 64;

impl Failover {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut flows = KnownFlows::default();
        settings.peers.iter().for_each(|(name, _)| flows.joined(name.clone()));
        Self {
            agenda: Agenda::new(settings.carries),
            members: Members::new(settings),
            port_ranges: PortRanges::default(),
            rules: Rules::default(),
            flows,
            claims: FlowClaims::default(),
            rounds: Rounds::default(),
            unknown: UnknownPackets::default(),
            untold: UntoldFlows::default(),
            unlisted: Unlisted::default(),
            earlier: Earlier::Awaited,
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.agenda.poll()
    }

    /// When to call [`Failover::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.agenda.next_ns()
    }

    pub(crate) fn handle_remote(&mut self, now_ns: u64, remote: Remote) {
        match remote {
            Remote::Joined { owner, link } => self.joined(owner, link),
            Remote::Gone { owner } => self.gone(&owner),
            Remote::Begin { owner, epoch, slot } => self.begin(&owner, epoch, slot),
            Remote::Flow { owner, record } => self.flow(now_ns, owner, *record),
            Remote::Ended { owner, id } => self.ended(now_ns, &owner, id),
            Remote::Moved { owner, id, to } => self.moved(now_ns, &owner, id, &to),
            Remote::Synced { owner } => self.synced(now_ns, &owner),
            Remote::Liveness { owner, liveness } => self.liveness(now_ns, &owner, liveness),
            Remote::Claimed { by, flows } => self.claimed_by(now_ns, &by, flows),
            Remote::Ports { owner, ports } => self.members.tell_ports(&owner, ports, &mut self.agenda),
            Remote::Addresses { owner, vips } => self.peer_addresses(now_ns, &owner, vips),
            Remote::Kept { owner, vips } => self.members.peer_mut(&owner).into_iter().for_each(|it| it.keep(&vips)),
            Remote::RestoredPeer { owner, known } => saved::restore_peer(self, &owner, *known),
            Remote::RestoredFlows { owner, flows } => saved::restore_flows(self, now_ns, &owner, flows),
            Remote::Restored => saved::restored(self),
            // The failover does not send these resets, and the caller saves.
            Remote::Untold(_) | Remote::Save => {}
            Remote::Answer { ends, said } => {
                self.unknown.answered(now_ns, (ends, said), &self.flows, &self.members, &mut self.agenda);
            }
        }
        self.handled(now_ns);
    }

    pub(crate) fn handle_standby(&mut self, now_ns: u64, answer: StandbyAnswer) {
        let Self { flows: known, members, agenda, .. } = self;
        match answer {
            StandbyAnswer::Touched(flows) => self.claims.claim(now_ns, flows, known, members, agenda),
            StandbyAnswer::Ours(flows) => self.claims.also_ours(now_ns, &flows, known, members, agenda),
            StandbyAnswer::NoStandby(flows) => self.no_standby(flows),
            StandbyAnswer::Held(flows) => known.held_after_all(flows),
            StandbyAnswer::Over(flows) => self.claims.over(&flows),
            StandbyAnswer::UnknownPackets(packets) => {
                packets.into_iter().for_each(|packet| self.unknown.handle(now_ns, packet, known, members, agenda));
            }
            StandbyAnswer::Unanswered(keys) => self.rounds.unanswered(now_ns, &keys, known, members, agenda),
            StandbyAnswer::Reached(round) => self.rounds.first(round, members, agenda),
            // Entries of an earlier process are not listed yet.
            StandbyAnswer::Keeps { .. } if self.earlier != Earlier::Settled => {}
            StandbyAnswer::Keeps { flows, keys } => {
                self.unlisted.see_kept(now_ns, (flows, keys), known, &self.unknown, agenda);
            }
        }
        self.handled(now_ns);
    }

    /// Every end of the round has been challenged.
    pub(crate) fn handle_challenged(&mut self, now_ns: u64, round: u64) {
        self.rounds.challenged(now_ns, round, &mut self.agenda);
    }

    #[cfg(test)]
    pub(super) fn inherited(&self) -> impl Iterator<Item = super::FleetId> {
        self.claims.ids()
    }

    /// All addresses of this host.
    pub(crate) fn handle_addresses(&mut self, now_ns: u64, addresses: &[IpAddr]) {
        self.agenda.send(PeerCommand::Addresses(addresses.to_vec()));
        let moved = self.members.move_addresses(addresses);
        moved.went.into_iter().for_each(|ip| self.agenda.note(Note::AddressWent(ip)));
        if !moved.came.is_empty() {
            self.vips_came(now_ns, &moved.came);
        }
        self.see_members();
        self.settle();
        self.handled(now_ns);
    }

    /// The configuration was reloaded. This instance's own name and slot stay; the link reports which members come and
    /// go.
    pub(crate) fn handle_settings(&mut self, now_ns: u64, settings: Settings) {
        let added = self.members.configure(settings);
        // Its flows may be of a frontend that has just been added here.
        self.members.take_lacking().into_iter().for_each(|owner| self.agenda.send(PeerCommand::AskAgain(owner)));
        self.port_ranges.configure(&self.members.vips());
        self.rules.configure(&self.members, &mut self.agenda);
        self.members.dead().into_iter().for_each(|owner| self.fail_over_at(&owner, &added));
        self.port_ranges.see_last_owners(&self.members);
        self.see_members();
        self.settle();
        self.handled(now_ns);
    }

    /// All peers have told their flows, or were waited for long enough.
    pub(crate) fn handle_ready(&mut self) {
        self.earlier = match self.earlier {
            Earlier::Awaited => Earlier::Ready,
            Earlier::Restoring { .. } => Earlier::Restoring { is_ready: true },
            earlier => earlier,
        };
        self.settle();
        self.check();
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(timer) = self.agenda.take_due(now_ns) {
            let Self { flows, members, agenda, .. } = self;
            match timer {
                Timer::Ping => members.take_mute(now_ns).into_iter().for_each(|owner| self.fail_over(&owner)),
                Timer::Forget(id, ends) => flows.forget(id, &ends, agenda),
                Timer::Promised(id, times) => self.claims.promise_due(now_ns, (id, times), flows, members, agenda),
                Timer::Contested(id) => self.claims.contest_due(id, flows, members, agenda),
                Timer::Round(round) => self.rounds.due(now_ns, round, flows, members, agenda),
                Timer::Asked(key) => self.unknown.ask_expired(now_ns, key, agenda),
                Timer::Forwarded(key) => self.unknown.forward_expired(key, flows, agenda),
                Timer::Unsaid(key) => self.unknown.unsaid_expired(key),
                Timer::Guard => {}
                Timer::Left(ip) => {
                    if self.port_ranges.left_for_good(now_ns, ip) {
                        self.port_ranges.show(members, agenda);
                    }
                }
                Timer::Unforwarded(owner) => {
                    members.peer_mut(&owner).into_iter().for_each(|it| it.lose_address());
                    self.end_stuck(&owner);
                }
                Timer::Untold(id) => self.untold.over(id),
                Timer::Late(owner) => {
                    let late = flows.take_late(&owner);
                    if members.is_dead(&owner) {
                        self.inherit_or_refuse(&owner, |ends| late.contains(ends));
                    }
                }
            }
        }
        self.handled(now_ns);
    }

    /// Number of other instances' flows that this instance knows.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.flows.len()
    }

    /// Number of other instances' flows of each client, if that has changed since the last call.
    pub(crate) fn take_clients(&mut self) -> Option<Arc<ClientsAtPeers>> {
        self.flows.take_clients()
    }

    /// The fleet as this instance sees it.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    /// The members or their addresses have changed.
    fn see_members(&mut self) {
        self.members.see_sharing(&mut self.agenda);
        self.port_ranges.show(&self.members, &mut self.agenda);
    }

    /// Decides on the entries that an earlier process of this host held for others. If all peers have told their flows,
    /// entries that nobody named are over. Otherwise they belong to a dead peer, and so to this instance if it has the
    /// VIP.
    fn settle(&mut self) {
        if self.earlier != Earlier::Ready || !self.members.settings().carries {
            return;
        }
        let all_known = self.members.peers().all(|(_, peer)| peer.is_synced());
        let claim = !all_known && self.members.here().next().is_some();
        if all_known || claim {
            self.earlier = Earlier::Settled;
            self.agenda.standby(StandbyRequest::Settle { claim });
        }
    }

    /// The work after every event.
    fn handled(&mut self, now_ns: u64) {
        let guard_until_ns = self.unknown.guard_until_ns(now_ns);
        // Unknown packets of flows for which a full map has no entry are answered from here.
        let is_refusing = self.flows.is_crowded() || !self.rounds.is_empty();
        self.rules.renew(guard_until_ns, is_refusing, &self.members, &mut self.agenda);
        self.check();
    }

    /// In debug builds: checks what must hold after every event.
    fn check(&self) {
        // The check walks through all flows, which is too much work after each of thousands of events.
        if cfg!(debug_assertions) && self.flows.len() < CHECKED_MAX {
            for id in self.claims.ids() {
                debug_assert!(self.flows.get(&id).is_none(), "{id} has two owners");
            }
            self.flows.check();
        }
    }
}
