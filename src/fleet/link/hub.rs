//! The hub: the one task that decides which messages go to which peer.

mod leave;
mod lines;
mod strangers;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::beats::{self, Beats, FormerBeats};
use super::connection::{Admitted, Input, Site};
use super::credentials::{Credentials, Proof};
use crate::config::{self, Config};
use crate::essential;
use crate::model::ends::Key;
use crate::model::fleet::vip::{VipStanding, address_set};
use crate::model::fleet::{
    BeatSecret, Epoch, Exchange, Farewell, Hello, InstanceName, KnowsQuery, Liveness, Member, Message, Notice, Own,
    PeerCommand, Remote, SavedFleet, SavedPeer,
};
use crate::ports::fleet::Fleet;
use crate::ports::offload::StandbyQueues;
use crate::ports::vip::VipPort;
use crate::sys::clock::{now_ns, unix_ns};
use crate::sys::sock_diag::Connection;
use crate::sys::{netlink, random, sock_diag};
use crate::table::Part;
use crate::table::beats::LoopBeats;
use crate::table::fleet::FleetView;
use crate::table::flows::FlowTable;
use crate::table::journal::{Journal, What};
use lines::Lines;

/// How often the hub takes its own flows' changes and sends beats that are due: half the time that a change may take.
const TICK: Duration = Duration::from_millis(10);
/// How often the hub renews the views for `baton peers` and the metrics.
const SHOW_EVERY_NS: u64 = 100_000_000;

/// Own changes that the hub takes before it serves its other inputs.
const LOCALS_MAX: usize = 4096;
const INPUTS_MAX: usize = 256;
const INPUTS_ROUND: usize = 64;
/// Events that may wait for the failover. When they are so many, the hub reads nothing more from the peers.
const REMOTES_MAX: usize = 4096;
/// Messages that wait for one link's socket.
const MESSAGES_MAX: usize = 8;

/// Recovery of an earlier process's flows ends within this time; a flow that is recovered later is reported alone.
const RECOVERY_MAX_NS: u64 = 10_000_000_000;

/// Tries to bind the beats' port before the hub logs a failure: a process that is being replaced holds it a moment
/// longer.
const BEATS_REFUSED_MAX: u32 = 20;

/// The parts of the table that the peer link may touch.
#[derive(Debug)]
pub(crate) struct PeerLinkParts {
    pub fleet: Part<Fleet>,
    pub fleet_view: Part<FleetView>,
    /// To avoid ids that a peer still knows.
    pub flows: Part<FlowTable>,
    /// The other instances' flows in the offload engine.
    pub standby: Part<StandbyQueues>,
    pub journal: Part<Journal>,
    pub beats: Part<LoopBeats>,
    pub vip: Part<VipPort>,
}

/// The running link. Dropping it leaves it running until the runtime ends.
#[derive(Clone, Debug)]
pub(crate) struct PeerHub {
    orders: mpsc::Sender<HubOrder>,
}

#[derive(Debug)]
enum HubOrder {
    Leave { farewell: Farewell, done: oneshot::Sender<Vec<SavedPeer>> },
    Return,
}

/// Links up with the peers of `config`, which must have a `[peers]` section, and follows its reloads. `saved`: what the process before this
/// one knew of them. Needs a tokio runtime.
pub(crate) fn start(
    table: PeerLinkParts,
    mut config: watch::Receiver<Arc<Config>>,
    remotes: mpsc::Sender<Remote>,
    commands: mpsc::Receiver<PeerCommand>,
    saved: Option<SavedFleet>,
) -> Option<PeerHub> {
    let running = config.borrow_and_update().clone();
    let settings = running.peers.clone()?;
    let own = Own {
        name: settings.name.clone(),
        epoch: Epoch(unix_ns()),
        slot: settings.slot,
        ports: table.fleet.ports(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sync_deadline_ns: settings.sync_deadline.as_nanos() as u64,
        vips: vips(&running, settings.listen.ip()),
        beat_secret: BeatSecret(random::secret().unwrap_or_else(|_| std::array::from_fn(|_| fastrand::u8(..)))),
    };
    let (inputs_sender, inputs) = mpsc::channel(INPUTS_MAX);
    let (orders, orders_receiver) = mpsc::channel(4);
    let now_ns = now_ns();
    let room = Arc::new(Notify::new());
    let mut exchange = Exchange::new(own, &members(&settings), now_ns);
    let (credentials, mut proven) = (Credentials::of(&settings), HashMap::new());
    if let Some(mut saved) = saved {
        proven = leave::restore_proofs(&mut saved, &credentials);
        exchange.restore(saved, now_ns);
    }
    if let Some(vip) = &running.vip {
        // The standing goes out with the first message: else peers would take an address that an earlier process left here for one that
        // another program moves.
        let (priority, addresses) = (vip.priority, address_set(&vip.addresses));
        exchange.set_vip(VipStanding { priority, addresses, ..VipStanding::default() }, now_ns);
    }
    let site = Site { credentials, hello: exchange.hello(), inputs: inputs_sender, room };
    let mut hub = Hub {
        table,
        lines: Lines::open(&site, &settings),
        beats: None,
        former_beats: None,
        open_beats_ns: now_ns,
        beats_refused: 0,
        exchange,
        site,
        settings,
        links: HashMap::new(),
        proven,
        next_link: 1,
        remotes,
        started_ns: now_ns,
        show_at_ns: 0,
        away: false,
        unwell: HashSet::new(),
        complained: HashMap::new(),
    };
    // Essential: without the hub, peers would take this process for dead and reset its flows while it serves them.
    let run = async move { hub.run(config, inputs, commands, orders_receiver).await };
    tokio::spawn(essential::task("peer link", run));
    Some(PeerHub { orders })
}

/// A link that the hub has admitted.
#[derive(Debug)]
struct LiveLink {
    number: u64,
    messages: mpsc::Sender<Message>,
    /// Its drop ends the link at once.
    ended: DropGuard,
}

struct Hub {
    table: PeerLinkParts,
    exchange: Exchange,
    site: Site,
    settings: config::Peers,
    lines: Lines,
    /// `None`: the port could not be bound yet.
    beats: Option<Beats>,
    /// The ports from before a reload: peers may not have been reloaded yet.
    former_beats: Option<FormerBeats>,
    open_beats_ns: u64,
    /// Failed tries to bind the beats' port, in a row.
    beats_refused: u32,
    links: HashMap<InstanceName, LiveLink>,
    /// By what each peer proved itself last: for the link, if there is one, and for what it has told.
    proven: HashMap<InstanceName, Proof>,
    next_link: u64,
    remotes: mpsc::Sender<Remote>,
    started_ns: u64,
    show_at_ns: u64,
    /// Whether this instance has said farewell.
    away: bool,
    /// Peers of which something bad was told last.
    unwell: HashSet<InstanceName>,
    /// Per address, when the hub last logged a complaint about strangers.
    complained: HashMap<IpAddr, u64>,
}

impl Hub {
    async fn run(
        &mut self,
        mut config: watch::Receiver<Arc<Config>>,
        mut inputs: mpsc::Receiver<Input>,
        mut commands: mpsc::Receiver<PeerCommand>,
        mut orders: mpsc::Receiver<HubOrder>,
    ) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let room = self.site.room.clone();
        let beat = self.table.beats.begin("peer link");
        loop {
            beat.turn();
            let takes_inputs = self.exchange.remotes() < REMOTES_MAX;
            tokio::select! {
                _ = ticks.tick() => {
                    // A claim must leave before the records of the claimed flows.
                    while let Ok(command) = commands.try_recv() {
                        self.exchange.handle_command(command, now_ns());
                    }
                    self.take_locals();
                }
                () = room.notified() => {}
                Some(input) = inputs.recv(), if takes_inputs => {
                    self.take_input(input);
                    for _ in 1..INPUTS_ROUND {
                        match inputs.try_recv() {
                            Ok(input) if self.exchange.remotes() < REMOTES_MAX => self.take_input(input),
                            Ok(input) => { self.take_input(input); break }
                            Err(_) => break,
                        }
                    }
                }
                Some(command) = commands.recv() => {
                    self.exchange.handle_command(command, now_ns());
                    while let Ok(command) = commands.try_recv() {
                        self.exchange.handle_command(command, now_ns());
                    }
                }
                Ok(()) = config.changed() => {
                    let config = config.borrow_and_update().clone();
                    self.follow(&config);
                }
                order = orders.recv() => match order {
                    Some(HubOrder::Leave { farewell, done }) => {
                        let saved = self.leave(farewell, &mut inputs).await;
                        let _ = done.send(saved);
                    }
                    Some(HubOrder::Return) => self.come_back(),
                    None => return,
                },
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now_ns = now_ns();
        if self.exchange.remotes() >= REMOTES_MAX {
            self.exchange.is_deaf(now_ns);
        }
        if let Some(standing) = self.table.vip.take_untold() {
            self.exchange.set_vip(standing, now_ns);
        }
        if let Some(summary) = self.table.fleet.take_summary() {
            self.exchange.set_summary(summary, now_ns);
        }
        self.take_beats(now_ns);
        self.exchange.handle_time(now_ns);
        let vip = self.table.vip.addresses();
        // Whoever has left hears nobody.
        if !vip.is_empty() && !self.away {
            self.table.vip.show_peers(now_ns, self.exchange.vip_peers(&vip, now_ns));
        }
        self.answer_queries();
        while let Some((peer, why)) = self.exchange.poll_drop() {
            self.links.remove(&peer);
            self.exchange.handle_loss(&peer, &why, now_ns);
        }
        self.pump(now_ns);
        while let Ok(permit) = self.remotes.try_reserve() {
            match self.exchange.poll_remote() {
                Some(remote) => permit.send(remote),
                None => break,
            }
        }
        if self.remotes.is_closed() {
            while self.exchange.poll_remote().is_some() {}
        }
        while let Some(notice) = self.exchange.poll_notice() {
            self.tell(notice);
        }
        self.table.flows.keep_ids_above(self.exchange.own_ids_told());
        self.table.fleet.set_ready(self.exchange.is_ready());
        if now_ns >= self.show_at_ns {
            self.show_at_ns = now_ns + SHOW_EVERY_NS;
            self.table.fleet_view.show_members(self.exchange.members(now_ns), now_ns);
        }
    }

    /// Sends and receives beats.
    fn take_beats(&mut self, now_ns: u64) {
        if self.away {
            return;
        }
        if self.beats.is_none() && now_ns >= self.open_beats_ns {
            self.open_beats(now_ns);
        }
        self.former_beats.take_if(|former| former.is_over(now_ns));
        let keys = || self.exchange.beat_keys();
        let mut all = self.beats.as_ref().map(|beats| beats.receive(keys())).unwrap_or_default();
        if let Some(former) = &mut self.former_beats {
            all.iter().for_each(|(from, _)| former.handle_moved(from));
            all.extend(former.receive(keys()));
        }
        for (from, beat) in all {
            self.exchange.handle_beat(&from, beat, now_ns);
        }
        let former = self.former_beats.as_ref();
        // While another process holds the new port, beats leave by the old one.
        let Some(beats) = self.beats.as_ref().or(former.and_then(FormerBeats::beats)) else { return };
        if let Some(beat) = self.exchange.poll_beat(now_ns) {
            let (secret, own) = (self.exchange.own_beat_secret(), &self.settings.name);
            beats.send(secret, own, &beat, &self.settings.beat_ports().collect());
            if let Some(former) = former {
                beats.send(secret, own, &beat, former.ports());
            }
        }
    }

    fn open_beats(&mut self, now_ns: u64) {
        self.open_beats_ns = now_ns + beats::AGAIN_NS;
        let place = self.settings.beat_place();
        match Beats::open(place) {
            Ok(beats) => (self.beats, self.beats_refused) = (Some(beats), 0),
            Err(error) => {
                self.beats_refused += 1;
                if self.beats_refused == BEATS_REFUSED_MAX {
                    tracing::warn!(
                        port = place.port(),
                        "cannot bind the port for beats: {error}; if the link to a peer is cut, the peer may consider this host dead"
                    );
                }
            }
        }
    }

    fn take_locals(&mut self) {
        let now_ns = now_ns();
        let fleet = &self.table.fleet;
        loop {
            let locals: Vec<_> = std::iter::from_fn(|| fleet.next_local()).take(LOCALS_MAX).collect();
            let more = locals.len() == LOCALS_MAX;
            self.exchange.handle_local(locals, now_ns);
            if !more {
                break;
            }
        }
        if fleet.is_whole() || now_ns.saturating_sub(self.started_ns) > RECOVERY_MAX_NS {
            self.exchange.set_whole();
        }
    }

    /// Gives messages to every link that has room.
    fn pump(&mut self, now_ns: u64) {
        for (peer, link) in &self.links {
            while let Ok(permit) = link.messages.try_reserve() {
                match self.exchange.poll_message(peer, now_ns) {
                    Some(message) => permit.send(message),
                    None => break,
                }
            }
        }
    }

    fn take_input(&mut self, input: Input) {
        let now_ns = now_ns();
        match input {
            Input::Greeted { hello, proof, version, reply } => {
                let admitted = self.greeted(&hello, proof, now_ns);
                if admitted.is_ok() && version.has_summaries() {
                    self.exchange.tell_summaries(&hello.name, now_ns);
                }
                if admitted.is_ok() && version.has_ports() {
                    self.exchange.tell_ports(&hello.name);
                }
                let _ = reply.send(admitted);
            }
            Input::Message { peer, link, message } if self.is_current(&peer, link) => {
                if matches!(message, Message::Ask { .. }) {
                    // The question may be about a flow that began after the last look.
                    self.take_locals();
                }
                self.exchange.handle_message(&peer, message, now_ns);
            }
            Input::Lost { peer, link, why } if self.is_current(&peer, link) => {
                self.links.remove(&peer);
                self.exchange.handle_loss(&peer, &why, now_ns);
            }
            // A message of a link that a newer one has replaced.
            Input::Message { .. } | Input::Lost { .. } => {}
            Input::Failed { peer, why } => self.exchange.handle_failure(&peer, &why),
            Input::Stranger { from, why, said_nothing } => self.stranger(from.ip(), &why, said_nothing, now_ns),
        }
    }

    fn greeted(&mut self, hello: &Hello, proof: Proof, now_ns: u64) -> Result<Admitted, String> {
        if self.away {
            return Err("this process is being replaced or stopped".to_owned());
        }
        if !self.site.credentials.still_hold(&proof) {
            return Err("its key is no longer valid".to_owned());
        }
        if let Err(why) = self.exchange.handle_link(hello, now_ns) {
            self.exchange.handle_failure(&hello.name, &why);
            return Err(why);
        }
        let number = self.next_link;
        self.next_link += 1;
        let (messages, receiver) = mpsc::channel(MESSAGES_MAX);
        let ended = CancellationToken::new();
        if let Some(why) = self.site.credentials.why_shared(&proof, &hello.name) {
            tracing::warn!(peer = %hello.name, "{why}");
        }
        self.proven.insert(hello.name.clone(), proof);
        // This ends an older link to the same peer.
        self.links.insert(hello.name.clone(), LiveLink { number, messages, ended: ended.clone().drop_guard() });
        Ok(Admitted { link: number, messages: receiver, ended })
    }

    fn is_current(&self, peer: &InstanceName, link: u64) -> bool {
        self.links.get(peer).is_some_and(|current| current.number == link)
    }

    /// Whether this host can take such a packet: a socket or an entry of the BPF program exists, whichever instance
    /// owns the flow. True when in doubt: on false, the peer that asks resets the flow. Asking the kernel for one
    /// connection takes 10 µs, for one route 9 µs (medians).
    fn is_here(&self, query: &KnowsQuery) -> bool {
        let (from, to) = (query.packet.from, query.packet.to);
        if self.table.standby.carries(&Key { from, to }).unwrap_or(true) {
            return true;
        }
        match sock_diag::connection(to, from) {
            Ok(Some(Connection::Open)) | Err(_) => true,
            // The kernel sends no more packets from an address that has left (net/ipv4/route.c,
            // ip_route_output_key_hash_rcu).
            Ok(Some(Connection::Closing)) => netlink::is_local(to.ip()).unwrap_or(true),
            Ok(Some(Connection::Over) | None) => false,
        }
    }

    fn answer_queries(&mut self) {
        while let Some(query) = self.exchange.poll_query() {
            let known = self.is_here(&query);
            self.exchange.handle_known(&query, known);
        }
    }

    /// Applies a reload of the configuration.
    fn follow(&mut self, config: &Config) {
        let Some(settings) = &config.peers else { return };
        let sync_deadline_ns = settings.sync_deadline.as_nanos() as u64;
        self.exchange.set_vips(vips(config, settings.listen.ip()));
        self.exchange.set_sync_deadline(sync_deadline_ns);
        // The name and the slot stay the same for the life of the process.
        let settings = config::Peers { name: self.settings.name.clone(), slot: self.settings.slot, ..settings.clone() };
        if settings == self.settings {
            return;
        }
        let now_ns = now_ns();
        // Keep a link while its key is still valid.
        let credentials = Credentials::of(&settings);
        let still_holds =
            |peer: &InstanceName| self.proven.get(peer).is_some_and(|proof| credentials.still_hold(proof));
        for (peer, _) in self.links.extract_if(|peer, _| !still_holds(peer)) {
            self.exchange.handle_loss(&peer, "the peer settings were reloaded", now_ns);
        }
        self.move_beats(&settings, now_ns);
        self.exchange.set_members(&members(&settings), now_ns);
        for (peer, _) in self.proven.extract_if(|_, proof| credentials.disown(proof)) {
            self.exchange.forget(&peer, now_ns);
        }
        self.site.credentials = credentials;
        self.settings = settings;
        if !self.away {
            self.lines.open_anew(&self.site, &self.settings);
        }
    }

    /// A fleet is reloaded one instance after the other, and no instance may be taken for dead meanwhile. So the hub
    /// receives beats at the old port too, and sends to the old ports too, until all peers have moved.
    fn move_beats(&mut self, settings: &config::Peers, now_ns: u64) {
        let moves = settings.beat_place() != self.settings.beat_place();
        let now: HashMap<_, _> = settings.beat_ports().collect();
        let before = self.settings.beat_ports();
        let ports: HashMap<_, _> = before.filter(|(name, port)| now.get(name).is_some_and(|new| new != port)).collect();
        if !moves && ports.is_empty() {
            return;
        }
        let beats = moves.then(|| self.beats.take()).flatten();
        let peers = settings.peers.iter().map(|peer| peer.name.clone()).collect();
        self.former_beats = Some(FormerBeats::new(beats, ports, peers, now_ns));
        (self.open_beats_ns, self.beats_refused) = (now_ns, 0);
    }

    fn tell(&mut self, notice: Notice) {
        let what = match notice {
            Notice::Linked { peer, version } => {
                self.unwell.remove(&peer);
                What::PeerLinked { peer: peer.to_string(), version }
            }
            Notice::Lost { peer, why } => What::PeerLost { peer: peer.to_string(), why },
            Notice::Synced { peer, flows } => What::PeerSynced { peer: peer.to_string(), flows },
            Notice::PortsOverlap { peer, theirs, own } => What::PortsOverlap { peer: peer.to_string(), theirs, own },
            Notice::Gap { peer } => What::PeerGap { peer: peer.to_string() },
            Notice::Unreachable { peer, why } => What::PeerUnreachable { peer: peer.to_string(), why },
            Notice::Liveness { peer, liveness } => {
                let is_new = match liveness {
                    // A new link says so, too.
                    Liveness::Alive => self.unwell.remove(&peer),
                    Liveness::Unheard => false,
                    _ => {
                        self.unwell.insert(peer.clone());
                        true
                    }
                };
                if !is_new {
                    return tracing::debug!(%peer, liveness = liveness.label(), "the liveness of a peer has changed");
                }
                let stuck_ms = self.stuck_ms(&peer).filter(|_| matches!(liveness, Liveness::Silent | Liveness::Dead));
                What::PeerLiveness { peer: peer.to_string(), liveness, stuck_ms }
            }
        };
        self.table.journal.record(what);
    }

    fn stuck_ms(&self, peer: &InstanceName) -> Option<u64> {
        let members = self.exchange.members(now_ns());
        members.into_iter().find(|it| it.name == *peer)?.summary?.stuck_ms()
    }
}

fn members(settings: &config::Peers) -> Vec<Member> {
    let member = |peer: &config::Peer| Member { name: peer.name.clone(), address: peer.address };
    settings.peers.iter().map(member).collect()
}

/// The frontends' addresses that may move between hosts: all but `own`, which stays on this host.
fn vips(config: &Config, own: IpAddr) -> Vec<IpAddr> {
    let listen = config.frontends.iter().flat_map(|frontend| &frontend.listen).map(|address| address.ip());
    let mut vips: Vec<_> = listen.filter(|ip| *ip != own && !ip.is_unspecified() && !ip.is_loopback()).collect();
    vips.sort();
    vips.dedup();
    vips
}
