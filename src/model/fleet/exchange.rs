//! The protocol between an instance and its peers: events in, messages and events out. No clock and no socket.
//!
//! ```text
//!   handle_local  own flows            ┐            ┌ poll_message  what to say to a peer
//!   handle_link, handle_loss  links    │            │ poll_remote   for the failover
//!   handle_message  what a peer says   ├─ Exchange ─┤ poll_notice   for the journal
//!   handle_command  the failover's     │            │ poll_query    what only the kernel knows
//!   handle_beat  beside the link       │            │ poll_beat     beside the link
//!   handle_time                        ┘            └ poll_drop     links that must end
//! ```

mod beats;
mod notice;
mod ports;
mod saved;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(crate) use notice::Notice;
use ports::PortsBeyond;

use super::message::{CLAIM_MAX, Hello, Message};
use super::mirror::Mirror;
use super::session::{Heard, PeerReport, Session};
use super::summary::{InstanceSummary, SummariesTold};
use super::vip::VipStanding;
use super::{
    Asked, BeatSecret, Epoch, Farewell, InstanceName, Liveness, Local, MemberView, PeerCommand, PortRange, Remembered,
    Remote, SLOTS, Said,
};

/// Limit for the answers to a question, while the asked peers are heard. A peer on a loaded host or behind a slow link
/// answers after hundreds of milliseconds, and until then the failover resets nothing.
pub(super) const ASK_WITHIN_NS: u64 = 1_000_000_000;
/// A longer pause between two calls means that this instance itself did not run.
const ABSENCE_NS: u64 = 100_000_000;
/// Limit for open questions: to further ones the answer is `Nothing`.
const ASKS_MAX: usize = 4096;
/// Limit for the addresses of one peer that beats go to.
const PLACES_MAX: usize = 8;

/// This instance.
#[derive(Clone, Debug)]
pub struct Own {
    pub name: InstanceName,
    pub epoch: Epoch,
    pub slot: u8,
    /// Its source ports. `None`: this host has too few for a part of its own.
    pub ports: Option<PortRange>,
    pub version: String,
    /// How long readiness waits for a peer that cannot be reached.
    pub sync_deadline_ns: u64,
    /// The addresses that may move between the instances.
    pub vips: Vec<IpAddr>,
    /// Random. The keys that seal this process's beats come from it.
    pub beat_secret: BeatSecret,
}

/// A peer as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: InstanceName,
    pub address: SocketAddr,
}

/// A packet that belongs to no flow of `mirror`. A peer asks whether this host could take it all the same, which only
/// the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnowsQuery {
    pub peer: InstanceName,
    pub number: u32,
    pub packet: Asked,
}

#[derive(Debug)]
pub struct Exchange {
    own: Own,
    mirror: Mirror,
    own_ids_told: u64,
    beyond: PortsBeyond,
    /// Whether `mirror` holds all own flows, those of an earlier process included.
    whole: bool,
    sessions: BTreeMap<InstanceName, Session>,
    asks: HashMap<u32, PendingAsk>,
    /// Numbers of asks in the order of their deadlines.
    ask_order: VecDeque<u32>,
    next_ask: u32,
    /// All addresses of this host.
    addresses: Vec<IpAddr>,
    /// The frontends' addresses that this host keeps on `lo`, and has nowhere else.
    kept: Vec<IpAddr>,
    remotes: VecDeque<Remote>,
    notices: VecDeque<Notice>,
    queries: VecDeque<KnowsQuery>,
    /// Own clients that this instance has reported to its peers: a peer that links up later receives the report then.
    untold: Remembered,
    drops: VecDeque<(InstanceName, String)>,
    /// The time of the last call.
    looked_ns: u64,
    /// When the next beats are due, and how many there were.
    beat_due_ns: u64,
    beats: u64,
    /// This instance's standing to the VIP. `None`: its file has none.
    vip: Option<VipStanding>,
    /// This instance's own summary. `None`: none was gathered yet.
    summary: Option<Arc<InstanceSummary>>,
    /// It has said farewell, hears nobody, and decides nothing.
    away: bool,
}

#[derive(Debug)]
struct PendingAsk {
    packet: Asked,
    deadline_ns: u64,
    waits_for: HashSet<InstanceName>,
    /// Whether all live peers were asked.
    is_complete: bool,
}

impl Exchange {
    pub fn new(own: Own, members: &[Member], now_ns: u64) -> Self {
        let mut exchange = Self {
            own,
            mirror: Mirror::default(),
            beyond: PortsBeyond::default(),
            whole: false,
            sessions: BTreeMap::new(),
            asks: HashMap::new(),
            ask_order: VecDeque::new(),
            next_ask: 0,
            addresses: Vec::new(),
            kept: Vec::new(),
            remotes: VecDeque::new(),
            notices: VecDeque::new(),
            queries: VecDeque::new(),
            untold: Remembered::default(),
            drops: VecDeque::new(),
            looked_ns: now_ns,
            own_ids_told: 0,
            beat_due_ns: now_ns,
            beats: 0,
            vip: None,
            summary: None,
            away: false,
        };
        exchange.join(members, PeerReport::Awaited { since_ns: now_ns });
        exchange
    }

    /// Sets the members of the fleet besides this instance. A peer that is no longer a member is forgotten with its
    /// flows.
    pub(crate) fn set_members(&mut self, members: &[Member], now_ns: u64) {
        // A reload reaches all instances: if all of them waited for a new peer before they are ready, no instance would
        // serve.
        let health_state = if self.is_ready() { PeerReport::Settled } else { PeerReport::Awaited { since_ns: now_ns } };
        let gone: Vec<_> = self
            .sessions
            .values()
            .filter(|session| {
                !members.iter().any(|it| it.name == session.name && it.address.ip() == session.address.ip())
            })
            .map(|session| session.name.clone())
            .collect();
        for name in gone {
            self.drops.push_back((name.clone(), "it is no longer in the configuration".to_owned()));
            self.remove(name, now_ns);
        }
        self.join(members, health_state);
    }

    /// What `peer` has told counts no more, nor do its beats: whoever told it had a key that is no longer this peer's.
    pub(crate) fn forget(&mut self, peer: &InstanceName, now_ns: u64) {
        let Some(address) = self.sessions.get(peer).map(|session| session.address) else { return };
        self.remove(peer.clone(), now_ns);
        self.join(&[Member { name: peer.clone(), address }], PeerReport::Settled);
    }

    fn remove(&mut self, name: InstanceName, now_ns: u64) {
        if let Some(session) = self.sessions.remove(&name).filter(|session| session.vitals.epoch != Epoch::default()) {
            let slot = session.view(&self.mirror, now_ns).slot.unwrap_or_default();
            self.remotes.push_back(Remote::Begin { owner: name.clone(), epoch: session.vitals.epoch, slot });
            self.remotes.push_back(Remote::Synced { owner: name.clone() });
            let liveness = Liveness::Left(Farewell::Stopped);
            self.remotes.push_back(Remote::Liveness { owner: name.clone(), liveness });
        }
        self.remotes.push_back(Remote::Gone { owner: name });
    }

    fn join(&mut self, members: &[Member], health_state: PeerReport) {
        for Member { name, address } in members.iter().filter(|member| member.name != self.own.name) {
            let why_not = match self.dials(name) {
                true => "not reached yet",
                false => "it has not connected yet",
            };
            if let Some(session) = self.sessions.get_mut(name) {
                // Its host is the same, so its flows are too.
                session.address = *address;
            } else {
                // The first event about this peer.
                self.remotes.push_back(Remote::Joined { owner: name.clone(), link: address.ip() });
                self.sessions.insert(name.clone(), Session::new(name.clone(), *address, why_not, health_state));
            }
        }
    }

    /// Of two instances the one with the lower name connects.
    pub(crate) fn dials(&self, name: &InstanceName) -> bool {
        self.own.name < *name
    }

    pub(crate) fn hello(&self) -> Hello {
        let Own { name, epoch, slot, version, .. } = &self.own;
        Hello { name: name.clone(), epoch: *epoch, slot: *slot, version: version.clone() }
    }

    /// Takes in changes of own flows.
    pub(crate) fn handle_local(&mut self, locals: impl IntoIterator<Item = Local>, now_ns: u64) {
        let Self { own, beyond, mirror, sessions, .. } = self;
        mirror.apply(locals.into_iter().inspect(|local| beyond.see(own, local)), now_ns);
        beyond.tell_news(sessions.values_mut());
    }

    /// All own flows are in `mirror`, those of an earlier process included: peers may receive the snapshot.
    pub fn set_whole(&mut self) {
        self.whole = true;
    }

    /// A link has come up whose other end sent `hello`. It replaces an older link to the same peer.
    ///
    /// # Errors
    /// Why this instance refuses the link, in words for both ends.
    pub fn handle_link(&mut self, hello: &Hello, now_ns: u64) -> Result<(), String> {
        let own = &self.own.name;
        if hello.name == *own {
            return Err(format!("both instances are named {own}; instance.name must differ"));
        }
        let Some(session) = self.sessions.get(&hello.name) else {
            return Err(format!("{own} does not know the peer {}: add it to [[peers.peer]] of {own}", hello.name));
        };
        if hello.name.tag() == own.tag() {
            return Err(format!("the names {} and {own} give the same numbers to flows; rename one", hello.name));
        }
        if session.link.is_some() && session.vitals.liveness == Liveness::Alive && hello.epoch < session.vitals.epoch {
            return Err(format!("a later process of {} is linked already", hello.name));
        }
        if hello.slot >= SLOTS {
            return Err(format!(
                "{} uses slot {} of the source ports; there are 0 to {}",
                hello.name,
                hello.slot,
                SLOTS - 1
            ));
        }
        let others = self.sessions.values().filter(|other| other.name != hello.name && other.link.is_some());
        let taken = others.filter_map(|other| Some((other.name.clone(), other.view(&self.mirror, now_ns).slot?)));
        let taken = taken.chain([(own.clone(), self.own.slot)]).find(|(_, slot)| *slot == hello.slot);
        if let Some((name, slot)) = taken {
            let peer = &hello.name;
            return Err(format!("{peer} and {name} both use slot {slot} of the source ports; set instance.slot"));
        }
        // With a VIP here, even a moment of failing readiness would move the VIP for nothing.
        let wait = !self.own.vips.iter().any(|vip| self.addresses.contains(vip));
        let addresses = self.addresses.clone();
        let Some(session) = self.sessions.get_mut(&hello.name) else { return Ok(()) };
        let liveness = session.linked(hello, wait, now_ns);
        session.say(Message::BeatKey(self.own.beat_secret.toward(&hello.name)));
        session.say(Message::Addresses(addresses));
        session.say(Message::Kept(self.kept.clone()));
        if let Some(standing) = self.vip {
            session.say(Message::Vip(standing));
        }
        let untold: Vec<_> = self.untold.all(now_ns).collect();
        session.say_untold(&untold);
        let peer = hello.name.clone();
        self.notices.push_back(Notice::Linked { peer: peer.clone(), version: hello.version.clone() });
        liveness.into_iter().for_each(|liveness| self.liveness_changed(peer.clone(), liveness));
        Ok(())
    }

    /// The link to this peer, which has just come up, carries summaries.
    pub fn tell_summaries(&mut self, peer: &InstanceName, now_ns: u64) {
        let Some(link) = self.sessions.get_mut(peer).and_then(|session| session.link.as_mut()) else { return };
        let told = link.summaries.insert(SummariesTold::default());
        self.summary.iter().for_each(|summary| told.offer(summary, now_ns));
    }

    /// The link to this peer, which has just come up, carries source ports.
    pub(crate) fn tell_ports(&mut self, peer: &InstanceName) {
        self.sessions.get_mut(peer).into_iter().for_each(|session| self.beyond.tell_all(&self.own, session));
    }

    /// Takes in this instance's own summary; call it about once a second. The peers get it if it is news to them, or if
    /// they have heard none for some seconds.
    pub fn set_summary(&mut self, summary: Arc<InstanceSummary>, now_ns: u64) {
        let links = self.sessions.values_mut().filter_map(|session| session.link.as_mut());
        links.filter_map(|link| link.summaries.as_mut()).for_each(|told| told.offer(&summary, now_ns));
        self.summary = Some(summary);
    }

    /// A link has ended.
    pub fn handle_loss(&mut self, peer: &InstanceName, why: &str, now_ns: u64) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        if session.link.is_some() {
            session.lost(why);
            let liveness = session.liveness_now(now_ns);
            self.notices.push_back(Notice::Lost { peer: peer.clone(), why: why.to_owned() });
            // It was late before, while beats came.
            if session.vitals.liveness == Liveness::Unlinked && liveness.is_none() {
                self.notices.push_back(Notice::Liveness { peer: peer.clone(), liveness: Liveness::Unlinked });
            }
            liveness.into_iter().for_each(|liveness| self.liveness_changed(peer.clone(), liveness));
            self.answers_no_more(peer);
        }
    }

    /// A link could not be made.
    pub(crate) fn handle_failure(&mut self, peer: &InstanceName, why: &str) {
        let Some(session) = self.sessions.get_mut(peer).filter(|session| session.link.is_none()) else { return };
        if session.has_no_link(why) {
            self.notices.push_back(Notice::Unreachable { peer: peer.clone(), why: why.to_owned() });
        }
    }

    /// Takes in one message of a peer.
    pub fn handle_message(&mut self, peer: &InstanceName, message: Message, now_ns: u64) {
        let Some(session) = self.sessions.get_mut(peer).filter(|session| session.link.is_some()) else { return };
        let liveness = session.heard(now_ns);
        let before = self.remotes.len();
        let heard = session.handle(message, now_ns, &mut self.remotes, &mut self.notices);
        let tag = self.own.name.tag();
        for remote in self.remotes.range(before..) {
            if let Remote::Flow { record, .. } = remote
                && record.id.tag() == tag
            {
                self.own_ids_told = self.own_ids_told.max(record.id.count());
            }
        }
        liveness.into_iter().for_each(|liveness| self.liveness_changed(peer.clone(), liveness));
        match heard {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Ports(theirs)) => {
                let own = self.own.ports.filter(|own| own.overlaps(theirs));
                self.notices.extend(own.map(|own| Notice::PortsOverlap { peer: peer.clone(), theirs, own }));
            }
            Ok(Heard::Asked { number, packet }) => match self.mirror.knows(&packet) {
                true => self.handle_known(&KnowsQuery { peer: peer.clone(), number, packet }, true),
                false if self.queries.len() < ASKS_MAX => {
                    self.queries.push_back(KnowsQuery { peer: peer.clone(), number, packet });
                }
                false => {}
            },
            Ok(Heard::Claimed(flows)) => {
                let flows = flows.into_iter().map(|id| (id, self.mirror.claimed_by(peer, id, now_ns))).collect();
                self.remotes.push_back(Remote::Claimed { by: peer.clone(), flows });
            }
            Ok(Heard::Answered { number, known }) => self.answered(number, peer, known),
            Err(fault) => self.drops.push_back((peer.clone(), fault.to_string())),
        }
    }

    /// The kernel's answer to `query`: whether this host can take packets of the flow.
    pub fn handle_known(&mut self, query: &KnowsQuery, known: bool) {
        if let Some(session) = self.sessions.get_mut(&query.peer) {
            session.say(Message::Answer { number: query.number, known });
        }
    }

    pub(crate) fn handle_command(&mut self, command: PeerCommand, now_ns: u64) {
        match command {
            PeerCommand::Claim { owner, flows } => {
                self.mirror.claims(&flows, now_ns);
                if let Some(session) = self.sessions.get_mut(&owner) {
                    flows.chunks(CLAIM_MAX).for_each(|flows| {
                        session.say(Message::Claim(flows.to_vec()));
                    });
                }
            }
            PeerCommand::Leave { to, flow } => drop(self.mirror.claimed_by(&to, flow, now_ns)),
            PeerCommand::Ask(packet) => self.ask(packet, now_ns),
            PeerCommand::Addresses(addresses) => {
                for session in self.sessions.values_mut() {
                    session.say(Message::Addresses(addresses.clone()));
                }
                self.addresses = addresses;
            }
            PeerCommand::Kept(kept) => {
                for session in self.sessions.values_mut() {
                    session.say(Message::Kept(kept.clone()));
                }
                self.kept = kept;
            }
            PeerCommand::Untold(all) => {
                self.sessions.values_mut().for_each(|session| session.say_untold(&all));
                all.into_iter().for_each(|one| {
                    self.untold.remember(one, now_ns);
                });
            }
            PeerCommand::AskAgain(owner) => {
                self.sessions.get_mut(&owner).into_iter().for_each(Session::ask_again);
            }
            PeerCommand::Ping => self.sessions.values_mut().for_each(|session| session.ping(now_ns)),
        }
    }

    /// Call it every few milliseconds, after the inputs. A peer's silence counts only while this instance listened:
    /// otherwise an instance that was stopped for seconds would take all others for dead when it continues.
    pub fn handle_time(&mut self, now_ns: u64) {
        if self.away {
            return;
        }
        let absence_ns = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        if absence_ns > ABSENCE_NS {
            self.sessions.values_mut().for_each(|session| session.was_not_listened_to(absence_ns));
        }
        let moves_vip = self.vip.is_some_and(|standing| standing.addresses != 0);
        let names: Vec<_> = self.sessions.keys().cloned().collect();
        for name in names {
            let Some(session) = self.sessions.get_mut(&name) else { continue };
            let liveness = session.liveness_now(now_ns);
            session.stop_waiting(self.own.sync_deadline_ns, moves_vip, now_ns);
            if session.is_stale(now_ns) {
                self.drops.push_back((name.clone(), "this instance has not heard it for a second".to_owned()));
            }
            if liveness.is_some_and(|liveness| liveness != Liveness::Alive) {
                self.answers_no_more(&name);
            }
            liveness.into_iter().for_each(|liveness| self.liveness_changed(name.clone(), liveness));
        }
        while let Some(number) = self.ask_order.front().copied() {
            match self.asks.get(&number) {
                Some(ask) if ask.deadline_ns > now_ns => break,
                Some(_) => {
                    self.ask_order.pop_front();
                    self.conclude(number, Said::Nothing);
                }
                None => drop(self.ask_order.pop_front()),
            }
        }
    }

    /// This instance takes in no messages at the moment, so the peers' silence proves nothing.
    pub(crate) fn is_deaf(&mut self, now_ns: u64) {
        let absence_ns = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        self.sessions.values_mut().for_each(|session| session.was_not_listened_to(absence_ns));
    }

    /// The next message for `peer`.
    pub fn poll_message(&mut self, peer: &InstanceName, now_ns: u64) -> Option<Message> {
        self.sessions.get_mut(peer)?.poll(&self.mirror, self.whole, now_ns)
    }

    pub fn poll_remote(&mut self) -> Option<Remote> {
        self.remotes.pop_front()
    }

    /// Number of events that [`Exchange::poll_remote`] would return.
    pub(crate) fn remotes(&self) -> usize {
        self.remotes.len()
    }

    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    pub fn poll_query(&mut self) -> Option<KnowsQuery> {
        self.queries.pop_front()
    }

    /// A link that the hub must end, and why.
    pub fn poll_drop(&mut self) -> Option<(InstanceName, String)> {
        self.drops.pop_front()
    }

    /// Limits the log, so that peers fall out of it.
    #[cfg(test)]
    pub(crate) fn keep_changes(&mut self, max: usize) {
        self.mirror.log_max = max;
    }

    /// Whether this instance may take a VIP.
    pub(crate) fn is_ready(&self) -> bool {
        self.sessions.values().all(|session| session.health_state == PeerReport::Settled)
    }

    /// Whether every linked peer has all changes up to now.
    #[cfg(test)]
    pub(crate) fn all_is_told(&self) -> bool {
        self.sessions.values().all(|session| session.link.is_none() || session.has_all(self.mirror.end()))
    }

    /// The highest of this instance's own flow ids, without tag, that any peer has reported: the peer holds such a
    /// flow, and this instance may have forgotten it.
    pub(crate) fn own_ids_told(&self) -> u64 {
        self.own_ids_told
    }

    pub fn members(&self, now_ns: u64) -> Vec<MemberView> {
        let view = |session: &Session| {
            let mut view = session.view(&self.mirror, now_ns);
            view.vips.retain(|address| self.own.vips.contains(address));
            view
        };
        self.sessions.values().map(view).collect()
    }

    /// The addresses that may move between the instances, as a reload has them.
    pub(crate) fn set_vips(&mut self, vips: Vec<IpAddr>) {
        self.own.vips = vips;
    }

    /// How long readiness waits for each, as a reload has it.
    pub(crate) fn set_sync_deadline(&mut self, sync_deadline_ns: u64) {
        self.own.sync_deadline_ns = sync_deadline_ns;
    }

    fn liveness_changed(&mut self, peer: InstanceName, liveness: Liveness) {
        if self.away {
            return;
        }
        self.remotes.push_back(Remote::Liveness { owner: peer.clone(), liveness });
        // A link that is late is not down: on a busy host it is that every few seconds.
        let is_late = self.sessions.get(&peer).is_some_and(|it| it.link.is_some() && liveness == Liveness::Unlinked);
        if !is_late {
            self.notices.push_back(Notice::Liveness { peer, liveness });
        }
    }

    fn ask(&mut self, packet: Asked, now_ns: u64) {
        let number = self.next_ask;
        self.next_ask = number.wrapping_add(1);
        let mut waits_for = HashSet::new();
        let mut is_complete = true;
        let has_room = self.asks.len() < ASKS_MAX;
        for session in self.sessions.values_mut() {
            match session.vitals.liveness {
                Liveness::Alive => match has_room && session.say(Message::Ask { number, packet }) {
                    true => drop(waits_for.insert(session.name.clone())),
                    false => is_complete = false,
                },
                // A peer that is silent for a moment may know the packet.
                Liveness::Silent => is_complete = false,
                // These peers have nothing, or the peer that asks knows that this instance could not ask them.
                Liveness::Unheard | Liveness::Unlinked | Liveness::Dead | Liveness::Left(_) => {}
            }
        }
        let nobody = waits_for.is_empty();
        self.asks.insert(number, PendingAsk { packet, deadline_ns: now_ns + ASK_WITHIN_NS, waits_for, is_complete });
        match (nobody, is_complete) {
            (true, true) => self.conclude(number, Said::Unknown),
            (true, false) => self.conclude(number, Said::Nothing),
            (false, _) => self.ask_order.push_back(number),
        }
    }

    fn answered(&mut self, number: u32, peer: &InstanceName, known: bool) {
        let Some(ask) = self.asks.get_mut(&number) else { return };
        if !ask.waits_for.remove(peer) {
            return;
        }
        let is_last = ask.waits_for.is_empty();
        let said = if ask.is_complete { Said::Unknown } else { Said::Nothing };
        match known {
            true => self.conclude(number, Said::Known(peer.clone())),
            false if is_last => self.conclude(number, said),
            false => {}
        }
    }

    /// `peer` will not answer its open questions, though it may have known the packets.
    fn answers_no_more(&mut self, peer: &InstanceName) {
        let mut numbers = Vec::new();
        for (number, ask) in self.asks.iter_mut().filter(|(_, ask)| ask.waits_for.contains(peer)) {
            ask.is_complete = false;
            numbers.push(*number);
        }
        numbers.into_iter().for_each(|number| self.answered(number, peer, false));
    }

    fn conclude(&mut self, number: u32, said: Said) {
        if let Some(ask) = self.asks.remove(&number) {
            self.remotes.push_back(Remote::Answer { ends: ask.packet, said });
        }
    }
}

#[cfg(test)]
mod tests;
