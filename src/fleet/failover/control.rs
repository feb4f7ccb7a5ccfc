//! The control task: passes events to the machine `Failover`, asks it for actions, and carries them out.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::watch;

use super::addresses::{self, Addresses};
use super::beyond::{BeyondReach, end_answers_to_peers};
use super::firewall::{Firewall, MARK};
use super::handed::HandedFlows;
use super::untold::UntoldQueue;
use super::wire::{ChallengeBatch, Wire};
use super::{FailoverParts, Links, intake};
use crate::config::{Config, FailoverSettings};
use crate::model::ends::Key;
use crate::model::fleet::evacuate::Places;
use crate::model::fleet::failover::{self, Action, Failover, Note, Settings};
use crate::model::fleet::{PeerCommand, Remote, StandbyRequest};
use crate::sys::clock::now_ns;
use crate::sys::netlink::{self, Changed, Watch};
use crate::sys::sock_diag;
use crate::table::journal::What;

/// How often the task checks whether kept addresses are needed and whether all peers are known.
const TICK: Duration = Duration::from_millis(200);

/// How often the task publishes the clients of the peers' flows: the next change after that copies the whole list.
const CLIENTS_EVERY: Duration = Duration::from_secs(1);

/// The task waits this long after a change of routes, because many routes change at a time.
const ROUTES_SETTLE: Duration = Duration::from_millis(50);

pub(super) struct FailoverControl {
    table: FailoverParts,
    machine: Failover,
    settings: Settings,
    addresses: Addresses,
    watch: AsyncFd<Watch>,
    wire: Wire,
    firewall: Firewall,
    untold: UntoldQueue,
    handed: HandedFlows,
    beyond: BeyondReach,
    challenged: mpsc::UnboundedReceiver<u64>,
    /// Whether an evacuation is about to remove addresses.
    keeping: watch::Receiver<bool>,
    /// Whether the VIP's holder is about to remove addresses.
    vip_leaving: watch::Receiver<bool>,
    config: watch::Receiver<Arc<Config>>,
    links: Links,
    /// The addresses that the peers know to be kept on `lo` here.
    told_kept: Vec<IpAddr>,
    /// Commands that the link has no room for yet.
    backlog: VecDeque<PeerCommand>,
    routes_moved: bool,
    /// IPv6 addresses that came, or that are kept on `lo`: this host's sockets may still have other routes to them.
    came: BTreeSet<IpAddr>,
    told_ready: bool,
    /// Whether the last look at the addresses failed.
    unseen: bool,
    /// When the task looks again at what sends no notifications, in monotonic ns.
    look_at_ns: u64,
    /// When the task publishes the clients of the peers' flows again.
    clients_at_ns: u64,
    unserved_at_ns: u64,
}

enum ControlHeard {
    Remotes,
    Answers,
    Network,
    Challenged(u64),
    Keeping,
    Reloaded,
    Time,
    Gone,
}

impl FailoverControl {
    pub(super) fn new(
        table: FailoverParts,
        settings: Settings,
        config: watch::Receiver<Arc<Config>>,
        wanted: &FailoverSettings,
        links: Links,
    ) -> io::Result<Self> {
        let (done, challenged) = mpsc::unbounded_channel();
        let mut machine = Failover::new(settings.clone());
        if links.restores {
            failover::expect_restore(&mut machine);
        }
        Ok(Self {
            machine,
            addresses: Addresses::new(settings.vips.iter().map(|vip| vip.ip()), now_ns()),
            watch: Watch::open()?.register()?,
            wire: Wire::open(table.fleet_census.clone(), wanted.resets_per_second, MARK, done)?,
            firewall: Firewall::open(),
            untold: UntoldQueue::default(),
            handed: HandedFlows::default(),
            beyond: BeyondReach::default(),
            challenged,
            keeping: table.fleet.keeping(),
            vip_leaving: table.vip.leaving(),
            config,
            links,
            told_kept: Vec::new(),
            backlog: VecDeque::new(),
            routes_moved: false,
            came: BTreeSet::new(),
            told_ready: false,
            unseen: false,
            look_at_ns: 0,
            clients_at_ns: 0,
            unserved_at_ns: 0,
            settings,
            table,
        })
    }

    pub(super) async fn run(mut self) {
        self.table.late_resets.share_with_peers();
        // First of all: an address may leave at any time, and Baton only notices the leave of an address that it has
        // seen.
        self.look_at_addresses();
        self.firewall.raise(&self.settings.vips, self.settings.carries);
        self.table.fleet_view.show_clients(Arc::default());
        let mut remotes = Vec::with_capacity(intake::BURST);
        let beat = self.table.beats.begin("failover");
        loop {
            beat.turn();
            match self.hear(&mut remotes).await {
                ControlHeard::Gone => break,
                ControlHeard::Remotes => {
                    let now_ns = now_ns();
                    for remote in remotes.drain(..) {
                        match remote {
                            Remote::Untold(mut all) => {
                                all.retain(|one| self.machine.members().is_vip(one.from.ip()));
                                self.untold.hear(&self.table.late_resets, &all, now_ns);
                            }
                            Remote::Save => self.table.fleet.tell_known(|| failover::save(&self.machine)),
                            remote => self.machine.handle_remote(now_ns, remote),
                        }
                    }
                }
                ControlHeard::Answers => {
                    while let Some(answer) = self.table.offload.standby.next_answer() {
                        self.machine.handle_standby(now_ns(), answer);
                    }
                }
                ControlHeard::Network => self.network_changed(),
                ControlHeard::Challenged(round) => self.machine.handle_challenged(now_ns(), round),
                ControlHeard::Keeping => {
                    let keeping = [&mut self.keeping, &mut self.vip_leaving].map(|it| *it.borrow_and_update());
                    self.addresses.keep_ahead(keeping.contains(&true));
                    self.look_at_addresses();
                }
                ControlHeard::Reloaded => self.follow(),
                ControlHeard::Time => self.tick(),
            }
            // Busy peers always have another event: do not wait for a quiet moment.
            if now_ns() >= self.look_at_ns {
                self.tick();
            }
            self.act();
        }
        self.handed.take().into_iter().for_each(|what| self.table.journal.record(what));
    }

    /// Applies a reload of the configuration.
    fn follow(&mut self) {
        let config = self.config.borrow_and_update().clone();
        let Some(settings) = super::settings(&config, &self.table.offload.standby) else { return };
        self.wire.set_pace(config.failover.resets_per_second);
        let before = std::mem::replace(&mut self.settings, settings.clone());
        self.addresses.set_vips(settings.vips.iter().map(|vip| vip.ip()));
        self.machine.handle_settings(now_ns(), settings);
        self.table.fleet_view.show_unserved(failover::unserved(&self.machine));
        if before.vips != self.settings.vips {
            self.firewall.raise(&self.settings.vips, self.settings.carries);
        }
        self.look_at_addresses();
    }

    async fn hear(&mut self, remotes: &mut Vec<Remote>) -> ControlHeard {
        let due =
            self.machine.poll_timeout().map_or(TICK, |at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns())));
        let wait = if self.routes_moved { ROUTES_SETTLE } else { TICK };
        tokio::select! {
            // An address that arrives comes before everything that has to wait for its ARP.
            biased;
            ready = self.watch.readable() => {
                match ready {
                    // Everything is read after this; a later event makes the socket ready again.
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return ControlHeard::Gone,
                }
                ControlHeard::Network
            }
            count = intake::take(&mut self.links.remotes, &self.table.offload.standby, remotes) => match count {
                0 => ControlHeard::Gone,
                _ => ControlHeard::Remotes,
            },
            () = self.table.offload.standby.answered() => ControlHeard::Answers,
            Some(round) = self.challenged.recv() => ControlHeard::Challenged(round),
            Ok(()) = self.config.changed() => ControlHeard::Reloaded,
            Ok(()) = self.keeping.changed() => ControlHeard::Keeping,
            Ok(()) = self.vip_leaving.changed() => ControlHeard::Keeping,
            () = tokio::time::sleep(due.min(wait)) => ControlHeard::Time,
        }
    }

    fn tick(&mut self) {
        let now_ns = now_ns();
        self.look_at_ns = now_ns + TICK.as_nanos() as u64;
        if self.machine.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.machine.handle_timeout(now_ns);
        }
        if std::mem::take(&mut self.routes_moved) && self.settings.carries {
            self.table.offload.ask_standby(StandbyRequest::RoutesMoved);
        }
        if now_ns >= self.clients_at_ns
            && let Some(clients) = self.machine.take_clients()
        {
            self.table.fleet_view.show_clients(clients);
            self.clients_at_ns = now_ns + CLIENTS_EVERY.as_nanos() as u64;
        }
        if now_ns >= self.unserved_at_ns {
            self.table.fleet_view.show_unserved(failover::unserved(&self.machine));
            self.unserved_at_ns = now_ns + CLIENTS_EVERY.as_nanos() as u64;
        }
        self.renew_routes();
        self.handed.take_due(now_ns).into_iter().for_each(|what| self.table.journal.record(what));
        let vips: Vec<_> = self.settings.vips.iter().map(|vip| vip.ip()).collect();
        let untold = self.untold.take_own(&self.table.late_resets, &vips, self.machine.members().hears_all(), now_ns);
        if !untold.is_empty() {
            self.backlog.push_back(PeerCommand::Untold(untold));
        }
        if !self.told_ready && self.table.fleet.is_ready() {
            self.told_ready = true;
            self.machine.handle_ready();
        }
        if self.unseen || self.addresses.lacks_one(&self.table.flows, now_ns) {
            self.look_at_addresses();
        }
        self.end_what_is_beyond_reach();
        for ip in self.addresses.tidy(&self.table.flows, &self.table.fleet) {
            tracing::info!(%ip, "removed the address from lo: no flow needs it here any more");
            self.end_connections_of_clients(ip);
        }
    }

    fn end_what_is_beyond_reach(&mut self) {
        if !self.settings.carries || self.unseen {
            return;
        }
        end_answers_to_peers(&self.table, self.machine.members());
        let config = self.config.borrow().clone();
        let places = self.table.fleet_view.places();
        let ended = self.beyond.end(&self.table, self.machine.members(), &config, &places, now_ns());
        if ended > 0 {
            tracing::warn!(
                flows = ended,
                "the VIP is on the host of an end of these flows, which takes no packets from it: Baton resets their clients"
            );
        }
    }

    /// A client of this host may have connected at the moment when `ip` left `lo`, and no packet reaches it any more.
    fn end_connections_of_clients(&self, ip: IpAddr) {
        for vip in self.settings.vips.iter().filter(|vip| vip.ip() == ip && vip.port() != 0 && !addresses::is_local(ip))
        {
            match sock_diag::end_connections_of_clients(vip.socket_addr()) {
                Ok(0) => {}
                Ok(count) => {
                    tracing::info!(%vip, count, "ended connections of this host's own clients, which had just begun")
                }
                Err(error) => {
                    tracing::warn!(%vip, %error, "cannot end connections of this host's own clients; they may wait for an answer")
                }
            }
        }
    }

    fn network_changed(&mut self) {
        let mut addresses = false;
        loop {
            match self.watch.get_ref().take() {
                Ok(changes) => {
                    addresses |= changes.iter().any(|change| *change != Changed::Routes);
                    self.routes_moved |= changes.iter().any(|change| matches!(change, Changed::Routes | Changed::Lost));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::error!(%error, "cannot read changes of this host's addresses from the kernel");
                    break;
                }
            }
        }
        if addresses {
            self.look_at_addresses();
        }
    }

    fn look_at_addresses(&mut self) {
        let looked = self.addresses.look(&self.table.flows, now_ns());
        let failed_before = std::mem::replace(&mut self.unseen, looked.is_err());
        match looked {
            Ok(seen) => {
                for ip in &seen.newly_kept {
                    tracing::info!(%ip, "the address leaves this host; Baton keeps it on lo until its flows have ended");
                }
                self.came.extend(seen.newly_kept.iter().filter(|ip| ip.is_ipv6()));
                self.renew_routes();
                self.tell_kept(&seen.places);
                self.table.fleet_view.show_places(seen.places);
                self.machine.handle_addresses(now_ns(), &seen.all);
            }
            Err(_) if failed_before => {}
            Err(error) => tracing::error!(%error, "cannot read this host's addresses; Baton tries again"),
        }
    }

    /// Tells the peers which addresses this host has on `lo` alone.
    fn tell_kept(&mut self, places: &Places) {
        let kept: Vec<_> = places.kept_alone().collect();
        if kept != self.told_kept {
            self.told_kept.clone_from(&kept);
            self.backlog.push_back(PeerCommand::Kept(kept));
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Standby(request) => self.table.offload.ask_standby(request),
                Action::Send(command) => {
                    self.backlog.push_back(command);
                    self.send();
                }
                Action::Announce(ip) => self.wire.announce(ip),
                Action::Challenge { round, ends } => self.wire.challenge(ChallengeBatch { round, ends }),
                Action::WakeOn(all) => all.into_iter().for_each(|wake| self.table.late_resets.wake(wake)),
                Action::Answer(packet) => {
                    let Key { from, to } = packet.key;
                    tracing::debug!(%from, %to, flags = packet.flags, length = packet.length, "no instance knows this packet's flow: RST");
                    let census = &self.table.fleet_census;
                    let counted = if self.wire.answer(&packet) { &census.reset } else { &census.dropped };
                    counted.add(1);
                }
                Action::Refused(why) => self.table.fleet_census.refused(why).add(1),
                Action::Shared(shared) => self.table.fleet.set_shared(shared),
                Action::Note(note) => self.note(note),
            }
        }
        self.send();
    }

    /// Sends as many commands as the link takes.
    fn send(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            if let Err(TrySendError::Full(command)) = self.links.commands.try_send(command) {
                self.backlog.push_front(command);
                break;
            }
        }
    }

    /// Has this host's own apiserver and clients send to an IPv6 address here from now on: when it comes, the kernel leaves
    /// connected sockets the route that they have (net/ipv6/route.c, rt6_check), as it does not for IPv4. It has a local route
    /// only after duplicate address detection.
    fn renew_routes(&mut self) {
        let before = self.came.len();
        self.came.retain(|ip| !addresses::is_local(*ip));
        if self.came.len() < before
            && let Err(error) = netlink::renew_ipv6_routes()
        {
            tracing::warn!(%error, "cannot renew this host's IPv6 routes; flows with an end on this host may stall for seconds");
        }
    }

    fn note(&mut self, note: Note) {
        let census = &self.table.fleet_census;
        let what = match note {
            Note::FailedOver { from, inherited, reset } => {
                census.failovers.add(1);
                census.inherited.add(inherited as u64);
                What::FailedOver { instance: from, inherited, reset }
            }
            Note::Strange { from, ends, why } => What::FlowsStrange {
                instance: from,
                client: ends.client.socket_addr(),
                vip: ends.vip.socket_addr(),
                local: ends.local.socket_addr(),
                why,
            },
            Note::Stuck { from, flows, unforwarded } => What::FlowsStuck { instance: from, flows, unforwarded },
            Note::Told { from, answered, silent } => What::ClientsTold { instance: from, answered, silent },
            Note::Claimed { from, flows } => {
                census.inherited.add(flows as u64);
                return self.handed.claimed(from, flows, now_ns());
            }
            Note::Released { to, flows } => return self.handed.released(to, flows, now_ns()),
            Note::AddressCame(address) => {
                self.untold.came(&self.table.late_resets, address, now_ns());
                self.came.extend(Some(address).filter(IpAddr::is_ipv6));
                self.renew_routes();
                What::AddressCame { address }
            }
            Note::AddressWent(address) => {
                self.came.remove(&address);
                What::AddressWent { address }
            }
        };
        self.table.journal.record(what);
    }
}
