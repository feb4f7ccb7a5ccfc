//! Carries out the decisions of `model::fleet::vip`: asks for the VIP's addresses, adds them, renews them, announces them and removes them.
//!
//! ```text
//!   peer link ──peers──▶ │        │ ────own standing────────────▶ peer link
//!   ARP, ND ────answers─▶ │ holder │ ──questions, announcements──▶ the wire
//!   netlink ──addresses─▶ │        │ ──leases──▶ this host's addresses
//! ```
//! The holder has a thread of its own, because it must renew an address within its lease, however busy the process is. A process that does
//! not run renews nothing, and its kernel removes the address.

mod addresses;
mod built_in;
mod guard;
mod hooks;
mod reachability;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::runtime;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::ears::Ears;
use super::strangers;
use crate::addr::Mac;
use crate::config::{Config, VipSettings};
use crate::drain::{DrainWatch, LifePhase};
use crate::essential;
use crate::metrics::{AddressLabels, Metrics};
use crate::model::balance::Preference;
use crate::model::fleet::InstanceName;
use crate::model::fleet::vip::{
    InterfaceState, LEASE_NS, LEASE_SAFE_NS, PeerVip, VipBar, VipGain, VipLook, VipLoss, VipMachine, VipNote, VipOrder,
    VipPresence, VipStanding, VipTerms, address_set,
};
use crate::model::humane::list;
use crate::model::neighbour;
use crate::ports::fleet::Fleet;
use crate::ports::offload::EngineWake;
use crate::ports::reachability::Reachability;
use crate::ports::vip::VipPort;
use crate::sys::arp::Overheard;
use crate::sys::clock::now_ns;
use crate::sys::frame::FrameSender;
use crate::sys::netdev;
use crate::sys::netlink::Watch;
use crate::table::Part;
use crate::table::backend::Registry;
use crate::table::beats::LoopBeats;
use crate::table::fleet::FleetView;
use crate::table::flows::FlowTable;
use crate::table::journal::{Journal, What};
use crate::table::names::ClientNames;
use built_in::BuiltInVip;
use guard::HangGuard;
use hooks::Hooks;
use reachability::VipReachability;

/// Interval between two looks with a VIP, and without one.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const IDLE_EVERY: Duration = Duration::from_millis(250);
/// Interval between two looks at states that send no notifications.
const CHECK_EVERY_NS: u64 = 100_000_000;
const SHOW_EVERY_NS: u64 = 100_000_000;
/// Interval between two attempts to remove entries with another mask.
const TIDY_EVERY_NS: u64 = 1_000_000_000;
/// How long a peer that could take the VIP counts as such.
const HEIR_SEEN_NS: u64 = 1_000_000_000;
/// The peer link looks at the peers every few milliseconds; if its last look is older than this, the link itself does not run.
const LINK_LOOKS_NS: u64 = 100_000_000;
/// For this long the new process of an upgrade counts as ready while it starts, as the old process was.
const SUCCESSION_NS: u64 = 10_000_000_000;
/// Limit for the wait until the failover has added the leaving addresses to `lo`, and how long they stay there at least.
const KEPT_WITHIN: Duration = Duration::from_millis(150);
const KEEP_NS: u64 = 5_000_000_000;
const LEASE_SECONDS: u32 = (LEASE_NS / 1_000_000_000) as u32;
/// Limit for one run of an operator's program.
const HOOK_MAX: Duration = Duration::from_secs(30);
/// Frames that one look reads.
const FRAMES_MAX: usize = 1024;

/// The parts of the state and the ports that the holder uses.
#[derive(Debug)]
pub(crate) struct HolderParts {
    pub vip: Part<VipPort>,
    pub fleet: Part<Fleet>,
    pub fleet_view: Part<FleetView>,
    pub registry: Part<Registry>,
    /// Of the hosts that claim its addresses.
    pub names: Part<ClientNames>,
    /// To find clients on other hosts.
    pub flows: Part<FlowTable>,
    pub reachability: Part<Reachability>,
    /// Wakes the engine, which listens for clients.
    pub engine: Part<EngineWake>,
    pub journal: Part<Journal>,
    pub beats: Part<LoopBeats>,
}

/// The holder's view of its instance.
pub(crate) struct HolderHost {
    pub config: watch::Receiver<Arc<Config>>,
    pub phase: DrainWatch,
    /// Whether no thread of this process hangs.
    pub is_live: Box<dyn Fn() -> bool + Send>,
    /// Whether an upgrade started this process: it gets the old process's VIP.
    pub is_successor: bool,
    pub metrics: Arc<Metrics>,
}

/// Starts the holder's thread, also without a VIP, because a reload may add one.
pub(crate) fn start(parts: HolderParts, host: HolderHost) -> io::Result<()> {
    essential::thread("vip", move || {
        let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let error = error.to_string();
                return parts.journal.record(What::VipRefused { error });
            }
        };
        runtime.block_on(async move { VipHolder::new(parts, host).run().await });
    })?;
    Ok(())
}

struct VipHolder {
    parts: HolderParts,
    host: HolderHost,
    hooks: Hooks,
    watch: Option<Watch>,
    frames: Option<FrameSender>,
    began_ns: u64,
    /// `None`: Baton does not move the VIP.
    built_in: Option<BuiltInVip>,
    /// The failover keeps addresses on `lo` for the holder until then.
    keeps_until_ns: Option<u64>,
    check_at_ns: u64,
    show_at_ns: u64,
    is_live: bool,
    is_following: bool,
    /// Started with the first VIP that needs it; an error if that failed.
    guard: Option<Result<HangGuard, ()>>,
    heir_seen_ns: u64,
}

impl VipHolder {
    fn new(parts: HolderParts, host: HolderHost) -> Self {
        Self {
            hooks: Hooks::start(parts.journal.clone(), parts.vip.clone(), HOOK_MAX),
            watch: Watch::open().ok(),
            frames: FrameSender::open().ok(),
            began_ns: now_ns(),
            built_in: None,
            keeps_until_ns: None,
            check_at_ns: 0,
            show_at_ns: 0,
            is_live: true,
            is_following: false,
            guard: None,
            heir_seen_ns: 0,
            parts,
            host,
        }
    }

    async fn run(mut self) {
        let beat = self.parts.beats.begin("vip");
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.turn();
            if !std::mem::replace(&mut self.is_following, true) || self.host.config.has_changed().unwrap_or(false) {
                self.follow();
            }
            match self.built_in.is_some() {
                true => drop(ticks.tick().await),
                false => tokio::time::sleep(IDLE_EVERY).await,
            }
            self.turn();
        }
    }

    /// Follows a changed configuration.
    fn follow(&mut self) {
        let config = self.host.config.borrow_and_update().clone();
        let is_same =
            |vip: &BuiltInVip| Some(&vip.settings) == config.vip.as_ref() && vip.has_peers == config.peers.is_some();
        if self.built_in.as_ref().is_some_and(is_same) {
            return;
        }
        let before = self.built_in.take();
        let had_vip = before.is_some();
        let had_it = match before {
            Some(before) => self.end(before, config.vip.as_ref()),
            None => self.is_succession(now_ns()),
        };
        let addresses = config.vip.as_ref().map(|settings| settings.addresses.clone()).unwrap_or_default();
        self.parts.vip.set_addresses(addresses);
        self.parts.fleet_view.show_vip(None);
        let Some(settings) = config.vip.clone() else {
            if had_vip {
                // Peers would go on believing the last standing.
                self.parts.vip.tell(VipStanding::default());
            }
            return;
        };
        let terms = VipTerms {
            me: config.name().cloned().unwrap_or_else(|| InstanceName("this instance".into())),
            priority: settings.priority,
            interface: settings.interface.to_string(),
            addresses: address_set(&settings.addresses),
            has_peers: config.peers.is_some(),
            had_it,
        };
        (self.check_at_ns, self.show_at_ns) = (0, 0);
        for ip in &settings.addresses {
            self.host.metrics.vip_held.get_or_create(&AddressLabels { address: ip.to_string() }).set(0);
        }
        self.built_in = Some(BuiltInVip {
            has_peers: terms.has_peers,
            machine: VipMachine::new(terms),
            ears: Ears::default(),
            reachability: VipReachability::default(),
            here: Vec::new(),
            interface: InterfaceState::NoCarrier,
            had_others: [false; 2],
            is_bare: false,
            renewed_ns: 0,
            refused: None,
            tidy_at_ns: 0,
            stuck: None,
            settings,
        });
    }

    /// Ends a VIP that the file no longer has. Addresses that the next VIP has too stay on the host, and its machine finds them. Returns whether
    /// the host has the VIP, and it has lost nothing.
    fn end(&mut self, before: BuiltInVip, next: Option<&VipSettings>) -> bool {
        let stays = |ip: &IpAddr| {
            next.is_some_and(|next| next.interface == before.settings.interface && next.addresses.contains(ip))
        };
        if !before.machine.holds() {
            return false;
        }
        let goes: Vec<_> = before.settings.addresses.iter().copied().filter(|ip| !stays(ip)).collect();
        if goes.is_empty() {
            return true;
        }
        self.keep(&goes);
        let entries = addresses::on(&before.settings.interface, &goes).unwrap_or_default().0;
        if let Err((network, error)) = addresses::remove(&before.settings.interface, &entries) {
            let (address, error) = (network.to_string(), error.to_string());
            self.parts.journal.record(What::VipNotRemoved { address, error });
        }
        let why = "the configuration no longer has it".to_owned();
        let vip = before.label();
        self.parts.journal.record(What::VipGivenUp { vip, why, loss: None, late_ms: None, cut_off: false });
        for ip in goes {
            self.host.metrics.vip_held.remove(&AddressLabels { address: ip.to_string() });
        }
        self.hooks.run(&before.settings.on_loss, "loss", &before.settings.addresses);
        self.parts.vip.set_held(false);
        false
    }

    /// Whether this process has just got everything from the one before it.
    fn is_succession(&self, now_ns: u64) -> bool {
        self.host.is_successor && now_ns.saturating_sub(self.began_ns) < SUCCESSION_NS
    }

    fn turn(&mut self) {
        let now_ns = now_ns();
        if self.keeps_until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            self.keeps_until_ns = None;
            self.parts.vip.set_leaving(false);
        }
        let Some(mut vip) = self.built_in.take() else { return self.disarm() };
        let has_changed = self.watch.as_ref().is_none_or(Watch::has_changed);
        let is_due = now_ns >= self.check_at_ns;
        if is_due {
            self.check_at_ns = now_ns + CHECK_EVERY_NS;
            self.is_live = (self.host.is_live)();
        }
        if has_changed || is_due {
            self.listen(&mut vip);
            vip.see();
        }
        // An upgrade may last for seconds, and the VIP's holder may die meanwhile: until this process leaves the fleet, and hears nobody any
        // more, it may take the VIP. After that the next process would find addresses that it has not added.
        let leaves = self.parts.vip.leaves_to_next();
        match leaves || self.parts.fleet.is_succeeded() && vip.machine.holds() {
            true => {
                self.disarm();
                self.renew_only(&mut vip, now_ns);
            }
            false => self.look(&mut vip),
        }
        self.built_in = Some(vip);
    }

    /// Keeps the addresses until the new process of an upgrade renews them.
    fn renew_only(&self, vip: &mut BuiltInVip, now_ns: u64) {
        if vip.machine.holds() && vip.presence() == VipPresence::Whole && now_ns >= vip.renewed_ns + LEASE_NS / 4 {
            vip.renewed_ns = now_ns;
            vip.machine.handle_renewed(now_ns);
            let _ = addresses::add(&vip.settings);
        }
    }

    fn listen(&self, vip: &mut BuiltInVip) {
        let has = |is_ipv4: bool| vip.settings.addresses.iter().any(|ip| ip.is_ipv4() == is_ipv4);
        let (ipv4, ipv6) = (has(true), has(false));
        let before = vip.ears.mac();
        let opened = vip.ears.listen(&vip.settings.interface, ipv4, ipv6);
        if before.is_some() && vip.ears.mac().is_some_and(|mac| before != Some(mac)) {
            // The kernel tells neighbours only with net.ipv4.conf.*.arp_notify.
            let own = netdev::networks()
                .unwrap_or_default()
                .into_iter()
                .filter(|(name, _)| **name == *vip.settings.interface);
            let own: Vec<_> =
                own.map(|(_, network)| network.addr()).filter(|ip| !vip.settings.addresses.contains(ip)).collect();
            self.announce(vip, &own);
        }
        if let Ok(true) = opened {
            let error = format!("{} is new", vip.settings.interface);
            vip.machine.handle_unasked(error, now_ns());
            vip.machine.handle_new_link(now_ns());
        }
        let opened = opened.and_then(|_| vip.ears.hear_questions(&vip.settings.addresses));
        if let Err(error) = opened
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            self.refuse(vip, format!("it may not ask its neighbours for the addresses (CAP_NET_RAW): {error}"));
        }
    }

    fn refuse(&self, vip: &mut BuiltInVip, error: String) {
        vip.machine.handle_failed(error.clone(), now_ns());
        if vip.refused.as_ref() != Some(&error) {
            vip.refused = Some(error.clone());
            self.parts.journal.record(What::VipRefused { error });
        }
    }

    fn look(&mut self, vip: &mut BuiltInVip) {
        let now_ns = now_ns();
        self.overhear(vip, now_ns);
        let bar = self.bar();
        let is_succession = self.is_succession(now_ns);
        let shown = self.parts.vip.peers().filter(|(at_ns, _)| now_ns.saturating_sub(*at_ns) < LINK_LOOKS_NS);
        let peers: Option<Vec<PeerVip>> = if vip.has_peers { shown.map(|(_, peers)| peers) } else { Some(Vec::new()) };
        let members = self.parts.fleet_view.members();
        let heard_ns = vip.reachability.heard_ns(&self.parts, now_ns, vip.machine.takes());
        let look = VipLook {
            now_ns,
            peers: peers.as_deref(),
            ready: (bar.is_none() || is_succession && bar == Some(VipBar::Starting)) && self.is_live,
            bar,
            has_backend: self
                .parts
                .registry
                .backends()
                .iter()
                .any(|it| it.preference() != Preference::Never && it.gets_connections()),
            synced: members.iter().all(|it| it.synced),
            heard_ns,
            socket_ns: vip.reachability.socket_ns(),
            interface: vip.interface,
            is_bare: vip.is_bare,
            here: vip.presence(),
        };
        vip.machine.handle_look(&look);
        let mut has_acted = false;
        while let Some(order) = vip.machine.poll_order() {
            has_acted |= !matches!(order, VipOrder::Tell(_) | VipOrder::Ask | VipOrder::Rouse | VipOrder::Renew);
            self.carry_out(vip, order);
        }
        self.guard(vip, &look, now_ns);
        self.parts.vip.set_held(vip.machine.holds());
        if has_acted || now_ns >= self.show_at_ns {
            self.show_at_ns = now_ns + SHOW_EVERY_NS;
            let view = vip.machine.view(&look, |mac| self.named_host(vip, mac));
            self.parts.fleet_view.show_vip(Some(view));
        }
        if has_acted {
            vip.see();
        }
        self.tidy(vip, now_ns);
    }

    /// While this instance holds the VIP: removes entries of its addresses with another mask, which would stay if this process were killed.
    fn tidy(&self, vip: &mut BuiltInVip, now_ns: u64) {
        vip.stuck.take_if(|(network, _)| !vip.here.contains(network));
        let others: Vec<_> = vip.here.iter().copied().filter(|network| !addresses::is_alone(network)).collect();
        if others.is_empty() || !vip.machine.holds() || now_ns < vip.tidy_at_ns {
            return;
        }
        vip.tidy_at_ns = now_ns + TIDY_EVERY_NS;
        // An IPv4 address stays on the host throughout. IPv6 has one entry for an address, so it is away for a moment.
        let _ = addresses::add(&vip.settings);
        if self.remove(vip, &others) {
            let address = list(&others);
            self.parts.journal.record(What::VipOtherMask { address });
        }
        if let Err(error) = addresses::add(&vip.settings) {
            self.refuse(vip, error);
        }
        vip.see();
    }

    /// Returns whether all of them have gone. Each failure is an event once.
    fn remove(&self, vip: &mut BuiltInVip, entries: &[IpNet]) -> bool {
        let Err((network, error)) = addresses::remove(&vip.settings.interface, entries) else { return true };
        let failure = Some((network, error.to_string()));
        if vip.stuck != failure {
            vip.stuck = failure;
            let (address, error) = (network.to_string(), error.to_string());
            self.parts.journal.record(What::VipNotRemoved { address, error });
        }
        false
    }

    /// Has the kernel kill this process if it hangs until its addresses go, and a peer can serve its clients, be it one that has given them the
    /// VIP by an evacuation. Without such a peer, a process that only pauses had better go on.
    fn guard(&mut self, vip: &BuiltInVip, look: &VipLook<'_>, now_ns: u64) {
        if !vip.machine.holds() {
            return self.disarm();
        }
        if vip.machine.has_heir(look) {
            self.heir_seen_ns = now_ns;
        }
        if now_ns.saturating_sub(self.heir_seen_ns) > HEIR_SEEN_NS || vip.renewed_ns == 0 {
            return self.disarm();
        }
        let guard = self.guard.get_or_insert_with(|| {
            HangGuard::start().map_err(|error| {
                tracing::warn!(%error, "cannot set a timer: if this process hangs, clients that it has just accepted wait for their own timeouts");
            })
        });
        if let Ok(guard) = guard {
            guard.arm(vip.renewed_ns + LEASE_SAFE_NS);
        }
    }

    fn disarm(&self) {
        if let Some(Ok(guard)) = &self.guard {
            guard.disarm();
        }
    }

    /// Why this instance must not have the VIP; `None`: it may.
    fn bar(&self) -> Option<VipBar> {
        match self.host.phase.phase() {
            LifePhase::Starting => Some(VipBar::Starting),
            LifePhase::Serving => {
                let starting = (!self.parts.fleet.is_ready()).then_some(VipBar::Starting);
                self.parts.vip.evacuated().or(starting)
            }
            _ => Some(VipBar::Stopping),
        }
    }

    /// Reads other hosts' claims to the addresses and their questions for them.
    fn overhear(&self, vip: &mut BuiltInVip, now_ns: u64) {
        let Some(own) = vip.ears.mac() else { return };
        let mut own_macs = None;
        for heard in vip.ears.overheard(FRAMES_MAX) {
            let by = heard.by();
            if by.mac == own {
                continue;
            }
            let is_vip = |address| vip.settings.addresses.contains(&address);
            // Another interface of this host may ask, and may answer for its addresses (arp_ignore 0).
            let mut is_own =
                || own_macs.get_or_insert_with(|| netdev::hardware_addresses().unwrap_or_default()).contains(&by.mac);
            match heard {
                Overheard::Question(_) if is_vip(by.address) => vip.machine.handle_rival(by.mac, own, now_ns),
                Overheard::Question(_) => {}
                Overheard::Claim(_) | Overheard::Search { .. } if is_vip(by.address) => {
                    if !(vip.machine.holds() && is_own()) {
                        vip.machine.handle_answer((by.mac, by.address), now_ns);
                    }
                }
                Overheard::Search { target, .. } if is_vip(target) && !vip.machine.holds() && !is_own() => {
                    vip.reachability.hear_client(now_ns);
                }
                Overheard::Claim(_) | Overheard::Search { .. } => vip.reachability.hear(by.address, now_ns),
            }
        }
    }

    fn carry_out(&mut self, vip: &mut BuiltInVip, order: VipOrder) {
        match order {
            VipOrder::Tell(standing) => self.parts.vip.tell(standing),
            VipOrder::Ask => {
                let asked = vip.settings.addresses.iter().try_for_each(|ip| vip.ears.ask(*ip));
                if let Err(error) = asked {
                    vip.machine.handle_unasked(error.to_string(), now_ns());
                }
                vip.reachability.ask(&self.parts, &vip.ears, &vip.settings);
            }
            VipOrder::Rouse => {
                vip.reachability.ask(&self.parts, &vip.ears, &vip.settings);
                vip.reachability.look_for_clients(&self.parts);
            }
            VipOrder::Add | VipOrder::Renew => match addresses::add(&vip.settings) {
                Ok(()) => (vip.renewed_ns, vip.refused) = (now_ns(), None),
                Err(error) => self.refuse(vip, error),
            },
            VipOrder::Announce => self.announce(vip, &vip.settings.addresses),
            VipOrder::Remove { serves } => {
                if serves && vip.has_peers {
                    self.keep(&vip.here());
                }
                // Addresses that were added a moment ago count, too.
                vip.see();
                let entries = vip.here.clone();
                self.remove(vip, &entries);
            }
            VipOrder::Note(note) => self.note(vip, note),
        }
    }

    /// Has the failover add the addresses to `lo` before they leave the interface: flows of this process may need them.
    fn keep(&mut self, addresses: &[IpAddr]) {
        self.parts.vip.set_leaving(true);
        self.keeps_until_ns = Some(now_ns() + KEEP_NS);
        let until_ns = now_ns() + KEPT_WITHIN.as_nanos() as u64;
        let are_kept = || {
            let places = self.parts.fleet_view.places();
            addresses.iter().all(|ip| places.kept.contains(ip) || !places.frontends.contains(ip))
        };
        while !are_kept() && now_ns() < until_ns {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn announce(&self, vip: &BuiltInVip, addresses: &[IpAddr]) {
        let Some(frames) = &self.frames else { return };
        let interface = &vip.settings.interface;
        let place = netdev::interface(interface).and_then(|it| Ok((it.index, netdev::hardware_address(interface)?)));
        let sent = place.and_then(|(index, mac)| {
            let all = addresses.iter().flat_map(|ip| neighbour::announcement(*ip, mac));
            all.into_iter().try_for_each(|frame| frames.send(index, &frame))
        });
        if let Err(error) = sent {
            tracing::warn!(%interface, %error, "cannot announce addresses to neighbours");
        }
    }

    fn named_host(&self, vip: &BuiltInVip, mac: Mac) -> String {
        let known = (&*self.parts.registry, &*self.parts.names);
        strangers::named_host(&vip.settings.interface, mac, &self.host.config.borrow(), known)
    }

    fn note(&self, vip: &BuiltInVip, note: VipNote) {
        let label = vip.label();
        let gauge = |value: i64| {
            for ip in &vip.settings.addresses {
                self.host.metrics.vip_held.get_or_create(&AddressLabels { address: ip.to_string() }).set(value);
            }
        };
        let what = match note {
            VipNote::Kept => return gauge(1),
            VipNote::Gained(why) => {
                gauge(1);
                self.host.metrics.vip_gains.inc();
                self.hooks.run(&vip.settings.on_gain, "gain", &vip.settings.addresses);
                let silent = if let VipGain::Silent(peer) = &why { Some(peer.to_string()) } else { None };
                What::VipGained { vip: label, why: why.to_string(), gain: Some(why), silent }
            }
            VipNote::Lost(why) => {
                gauge(0);
                // The program of an earlier event must not end after this one's, when this process can no longer see to it.
                let is_last = matches!(why, VipLoss::Barred(VipBar::Stopping));
                self.hooks.run_next(&vip.settings.on_loss, "loss", &vip.settings.addresses, is_last);
                let late_ms = if let VipLoss::Late { for_ms } = &why { Some(*for_ms) } else { None };
                let cut_off = matches!(
                    why,
                    VipLoss::NoCarrier | VipLoss::NoInterface { .. } | VipLoss::NoAddress | VipLoss::Deaf
                );
                What::VipGivenUp { vip: label, why: why.to_string(), loss: Some(why), late_ms, cut_off }
            }
            VipNote::CutOff(why) => What::VipHostCutOff { why: why.to_string(), cause: Some(why) },
            VipNote::HeldBy(by) => What::VipHeld { vip: label, by: by.to_string() },
            VipNote::Restored => What::VipRestored { vip: label },
            VipNote::Defended(by) => What::VipDefended { by: self.named_host(vip, by) },
            VipNote::Answered { by, address } => {
                What::VipAnswered { by: self.named_host(vip, by), address: Some(address) }
            }
        };
        self.parts.journal.record(what);
    }
}
