//! The hosts, and the network between them.

mod rules;

use std::cmp::Reverse;
use std::sync::OnceLock;

use super::*;

pub(super) struct HostVip {
    is_up: bool,
    /// When the kernel removes the address; `None`: the host does not have it.
    pub(super) lease_ns: Option<u64>,
    has_carrier: bool,
    hears_gateway: bool,
    /// Only ARP passes to and from it.
    is_filtered: bool,
    pub(super) process: Option<Process>,
    /// When the next process starts.
    starts_ns: Option<u64>,
    priority: u8,
    /// The offloaded flows of each other host's instance whose backend is on this host.
    flows_here: Vec<u32>,
}

pub(super) struct Process {
    pub(super) machine: VipMachine,
    started_ns: u64,
    /// The process does not run before this time.
    asleep_until_ns: u64,
    looked_ns: u64,
    /// One for each peer.
    heard: Vec<Option<(u64, VipStanding)>>,
    heard_ns: u64,
    socket_ns: u64,
    says: VipStanding,
    beat_ns: u64,
    ready: bool,
    has_backend: bool,
    /// Since when it holds the VIP and should give it up to a peer, and whether only for want of a backend.
    unfit_ns: Option<(u64, bool)>,
    /// When it may give the VIP up for such a reason again.
    again_ns: u64,
    /// Since when it holds the VIP behind a filter while a peer could take it.
    filtered_ns: Option<u64>,
    stops_ns: Option<u64>,
    is_evacuated: bool,
    evacuated_to: Option<usize>,
    /// Since when the host has the address that it must not have, or lacks the address that its machine holds.
    wrong_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Says(VipStanding),
    Goodbye,
    Asks,
    Answers,
    GatewayAnswers,
}

pub(super) struct VipWorld {
    wrongs: Wrongs,
    now_ns: u64,
    pub(super) chance: Chance,
    pub(super) hosts: Vec<HostVip>,
    /// From the first host to the second no packet passes.
    cut: Vec<Vec<bool>>,
    /// From the first host to the second only ARP passes.
    link_cut: Vec<Vec<bool>>,
    /// Since when each pair of hosts can exchange all packets in both directions.
    steady_ns: Vec<Vec<u64>>,
    one_lost_in: u64,
    packets: Vec<(u64, usize, usize, Packet)>,
    /// When the last mishap began or ended.
    mishap_ns: u64,
    /// Since when no host serves, and whether a host's death caused this while all else was well.
    unserved_ns: Option<(u64, bool)>,
    both_ns: Option<u64>,
    /// The host that must be the next holder.
    next: Option<usize>,
    pub(super) moves: usize,
    /// The number of questions so far.
    pub(super) asks: usize,
    pub(super) log: Vec<String>,
    pub(super) fault: Option<String>,
}

fn named(host: usize) -> InstanceName {
    static NAMES: OnceLock<[InstanceName; 4]> = OnceLock::new();
    NAMES.get_or_init(|| ["lb-a", "lb-b", "lb-c", "lb-d"].map(|name| InstanceName(name.into())))[host].clone()
}

fn mac(host: usize) -> Mac {
    [2, 0, 0, 0, 0, host as u8]
}

impl VipWorld {
    pub(super) fn new(seed: u64, wrongs: Wrongs) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9));
        let count = 2 + chance.roll(3) as usize;
        let now_ns = 1000 * SECOND_NS;
        let hosts = (0..count).map(|_| HostVip {
            is_up: true,
            lease_ns: None,
            has_carrier: true,
            hears_gateway: true,
            is_filtered: false,
            process: None,
            starts_ns: Some(now_ns + chance.roll(3000) * MS),
            priority: chance.roll(3) as u8,
            flows_here: (0..count).map(|_| chance.roll(3) as u32).collect(),
        });
        let hosts = hosts.collect();
        Self {
            wrongs,
            now_ns,
            chance,
            hosts,
            cut: vec![vec![false; count]; count],
            link_cut: vec![vec![false; count]; count],
            steady_ns: vec![vec![now_ns; count]; count],
            one_lost_in: u64::MAX,
            packets: Vec::new(),
            mishap_ns: now_ns,
            unserved_ns: None,
            both_ns: None,
            next: None,
            moves: 0,
            asks: 0,
            log: vec![format!("seed {seed}: {count} hosts")],
            fault: None,
        }
    }

    fn note(&mut self, what: String) {
        if self.fault.is_none() {
            self.log.push(format!("{:>7} ms  {what}", (self.now_ns / MS).saturating_sub(1_000_000)));
        }
    }

    pub(super) fn fail(&mut self, what: String) {
        if self.fault.is_none() {
            self.note(what.clone());
            self.fault = Some(what);
        }
    }

    fn send(&mut self, from: usize, to: usize, packet: Packet) {
        let is_lost = self.one_lost_in != u64::MAX && self.chance.one_in(self.one_lost_in);
        let is_link = matches!(packet, Packet::Says(_) | Packet::Goodbye);
        let is_filtered = is_link && (self.hosts[from].is_filtered || self.hosts[to].is_filtered);
        let is_cut = self.cut[from][to] || is_link && self.link_cut[from][to] || is_filtered;
        if !is_lost && !is_cut && self.hosts[to].is_up {
            let at_ns = self.now_ns + (1 + self.chance.roll(8)) * MS;
            self.packets.push((at_ns, from, to, packet));
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        let now_ns = self.now_ns;
        for host in 0..self.hosts.len() {
            let it = &mut self.hosts[host];
            if it.lease_ns.is_some_and(|lease_ns| now_ns >= lease_ns) {
                it.lease_ns = None;
                self.note(format!("{}: the kernel removes the address", named(host)));
            }
            if self.hosts[host].is_up && self.hosts[host].starts_ns.is_some_and(|at_ns| now_ns >= at_ns) {
                self.start(host);
            }
        }
        self.deliver();
        for host in 0..self.hosts.len() {
            self.run(host);
        }
        self.judge();
    }

    fn start(&mut self, host: usize) {
        let (count, now_ns) = (self.hosts.len(), self.now_ns);
        let it = &mut self.hosts[host];
        let settings = VipTerms {
            me: named(host),
            priority: it.priority,
            interface: "eth0".to_owned(),
            addresses: 7,
            has_peers: true,
            had_it: false,
        };
        it.starts_ns = None;
        it.process = Some(Process {
            machine: VipMachine::new(settings),
            started_ns: now_ns,
            asleep_until_ns: 0,
            looked_ns: now_ns,
            heard: vec![None; count],
            heard_ns: 0,
            socket_ns: 0,
            says: VipStanding { addresses: 7, ..VipStanding::default() },
            beat_ns: now_ns,
            ready: true,
            has_backend: true,
            unfit_ns: None,
            again_ns: 0,
            filtered_ns: None,
            stops_ns: None,
            is_evacuated: false,
            evacuated_to: None,
            wrong_ns: None,
        });
        self.note(format!("{} starts", named(host)));
    }

    fn deliver(&mut self) {
        let now_ns = self.now_ns;
        let due: Vec<_> = self.packets.extract_if(.., |(at_ns, ..)| *at_ns <= now_ns).collect();
        for (_, from, to, packet) in due {
            if !self.hosts[to].is_up {
                continue;
            }
            let answers = self.hosts[to].lease_ns.is_some() && !self.wrongs.unanswered;
            if answers && matches!(packet, Packet::Asks) {
                self.send(to, from, Packet::Answers);
            }
            let rivals_unheard = self.wrongs.rivals_unheard;
            let Some(process) = &mut self.hosts[to].process else { continue };
            match packet {
                Packet::Says(standing) => process.heard[from] = Some((now_ns, standing)),
                Packet::Goodbye => process.heard[from] = None,
                Packet::GatewayAnswers => process.heard_ns = now_ns,
                // A hanging process reads them later.
                _ if now_ns < process.asleep_until_ns => {}
                Packet::Answers => process.machine.handle_answer((mac(from), [10, 0, 0, 100].into()), now_ns),
                Packet::Asks if rivals_unheard => {}
                Packet::Asks => process.machine.handle_rival(mac(from), mac(to), now_ns),
            }
        }
    }

    fn run(&mut self, host: usize) {
        let (now_ns, wrongs) = (self.now_ns, self.wrongs);
        let it = &mut self.hosts[host];
        let Some(process) = it.process.as_mut().filter(|process| now_ns >= process.asleep_until_ns) else { return };
        let absence_ns = now_ns - process.looked_ns;
        process.looked_ns = now_ns;
        if absence_ns > 100 * MS && !wrongs.sleeps_count {
            process.heard.iter_mut().flatten().for_each(|(heard_ns, _)| *heard_ns = now_ns.min(*heard_ns + absence_ns));
        }
        if wrongs.never_deaf {
            process.heard_ns = now_ns;
        }
        let flows_here = &it.flows_here;
        let peers = process.heard.iter().enumerate().filter(|(peer, _)| *peer != host).map(|(peer, heard)| PeerVip {
            name: named(peer),
            silence_ns: heard.map(|(heard_ns, _)| now_ns - heard_ns),
            standing: heard.map(|(_, standing)| standing),
            has_address: false,
            flows_here: flows_here[peer],
        });
        let peers: Vec<_> = peers.collect();
        let is_synced = now_ns - process.started_ns > SECOND_NS || process.heard.iter().flatten().count() > 0;
        let is_starting = now_ns - process.started_ns < 100 * MS || !is_synced;
        let bar = match process {
            _ if wrongs.bars_unheard => None,
            _ if process.stops_ns.is_some() => Some(VipBar::Stopping),
            _ if process.is_evacuated => Some(VipBar::Evacuated { to: process.evacuated_to.map(named) }),
            _ if is_starting => Some(VipBar::Starting),
            _ => None,
        };
        let seen = it.lease_ns.is_some() || wrongs.removal_unseen && process.machine.holds();
        let look = VipLook {
            now_ns,
            peers: Some(&peers),
            bar,
            ready: (process.ready || wrongs.unready_unseen) && !is_starting,
            has_backend: process.has_backend || wrongs.backends_unseen,
            synced: is_synced,
            heard_ns: process.heard_ns,
            socket_ns: if wrongs.filters_unseen { now_ns } else { process.socket_ns },
            interface: if it.has_carrier { InterfaceState::Running } else { InterfaceState::NoCarrier },
            is_bare: false,
            here: if seen { VipPresence::Whole } else { VipPresence::Absent },
        };
        process.machine.handle_look(&look);
        if now_ns % SECOND_NS == 0 {
            let _ = process.machine.view(&look, |mac| format!("{mac:?}"));
        }
        if now_ns % PROBE_NS == 0 && it.hears_gateway && it.has_carrier {
            process.heard_ns = now_ns;
            if !it.is_filtered {
                process.socket_ns = now_ns;
            }
        }
        self.act(host);
        self.speak(host);
    }

    fn act(&mut self, host: usize) {
        while let Some(order) = self.hosts[host].process.as_mut().and_then(|process| process.machine.poll_order()) {
            let now_ns = self.now_ns;
            let lease_ns = match self.wrongs.no_lease {
                true => u64::MAX,
                false => now_ns + LEASE_NS + self.chance.roll(250) * MS,
            };
            match order {
                VipOrder::Tell(standing) => {
                    if let Some(process) = &mut self.hosts[host].process {
                        (process.says, process.beat_ns) = (standing, now_ns);
                    }
                }
                VipOrder::Ask => {
                    self.asks += 1;
                    for other in (0..self.hosts.len()).filter(|other| *other != host) {
                        self.send(host, other, Packet::Asks);
                    }
                    let it = &self.hosts[host];
                    let lost = self.one_lost_in != u64::MAX && self.chance.one_in(self.one_lost_in);
                    if it.hears_gateway && it.has_carrier && !lost {
                        self.packets.push((now_ns + 2 * MS, host, host, Packet::GatewayAnswers));
                    }
                }
                VipOrder::Add | VipOrder::Renew => self.hosts[host].lease_ns = Some(lease_ns),
                VipOrder::Remove { .. } => self.hosts[host].lease_ns = None,
                VipOrder::Announce => {}
                VipOrder::Rouse => {
                    let it = &mut self.hosts[host];
                    if let Some(process) =
                        it.process.as_mut().filter(|_| it.has_carrier && it.hears_gateway && !it.is_filtered)
                    {
                        process.socket_ns = now_ns;
                    }
                }
                VipOrder::Note(note) => {
                    self.note(format!("{}: {note:?}", named(host)));
                    if let VipNote::Lost(VipLoss::NotReady { .. } | VipLoss::NoBackend { .. }) = note
                        && let Some(process) = &mut self.hosts[host].process
                    {
                        process.again_ns = now_ns + UNREADY_AGAIN_NS + UNREADY_MAX_NS;
                    }
                    match note {
                        VipNote::Gained(VipGain::Found) | VipNote::Kept => {}
                        VipNote::Gained(_) => self.judge_gain(host),
                        _ => {}
                    }
                }
            }
        }
    }

    fn speak(&mut self, host: usize) {
        let now_ns = self.now_ns;
        let Some(process) = &mut self.hosts[host].process else { return };
        if now_ns >= process.beat_ns {
            process.beat_ns = now_ns + BEAT_NS;
            let mut says = process.says;
            if self.wrongs.claims_alike {
                says.claim = 0;
            }
            if self.wrongs.counts_untold {
                says.flows_here = 0;
            }
            if self.wrongs.heirs_untold {
                says.heir = None;
            }
            if self.wrongs.silent_takers && says.part == VipPart::Takes {
                says.part = VipPart::Stands;
            }
            for other in (0..self.hosts.len()).filter(|other| *other != host) {
                self.send(host, other, Packet::Says(says));
            }
        }
        let process = self.hosts[host].process.as_ref();
        if process.is_some_and(|process| process.stops_ns.is_some_and(|at_ns| now_ns >= at_ns)) {
            for other in (0..self.hosts.len()).filter(|other| *other != host) {
                self.send(host, other, Packet::Goodbye);
            }
            self.note(format!("{} has stopped", named(host)));
            self.hosts[host].process = None;
            self.hosts[host].starts_ns = Some(now_ns + self.chance.roll(3000) * MS);
        }
    }

    fn steadiness_ends(&mut self, host: usize) {
        for other in 0..self.hosts.len() {
            for (one, other) in [(host, other), (other, host)] {
                if !self.cut[one][other] {
                    self.steady_ns[one][other] = self.now_ns;
                }
            }
        }
    }

    /// Cuts the path from `one` to `other`, or joins it again.
    fn set_cut(&mut self, one: usize, other: usize, is_cut: bool) {
        self.cut[one][other] = is_cut;
        self.steady_ns[one][other] = if is_cut { u64::MAX } else { self.now_ns };
    }

    pub(super) fn mishap(&mut self, kinds: &[Mishap]) {
        let kind = kinds[self.chance.roll(kinds.len() as u64) as usize];
        let (host, other) = {
            let count = self.hosts.len() as u64;
            let host = self.chance.roll(count) as usize;
            (host, (host + 1 + self.chance.roll(count - 1) as usize) % count as usize)
        };
        // Most mishaps hit the holder.
        let owner = (0..self.hosts.len()).find(|host| self.serves(*host));
        let host = owner.filter(|owner| *owner != other && !self.chance.one_in(3)).unwrap_or(host);
        let now_ns = self.now_ns;
        let was_well = self.is_whole() && now_ns - self.mishap_ns > 3 * SECOND_NS;
        let all_able = (0..self.hosts.len()).all(|host| self.is_able(host));
        self.mishap_ns = now_ns;
        self.next = None;
        let owned = self.serves(host);
        self.note(format!("{kind:?} {} {}", named(host), named(other)));
        match kind {
            Mishap::Die => {
                let it = &mut self.hosts[host];
                (it.is_up, it.lease_ns, it.process) = (false, None, None);
                it.starts_ns = Some(now_ns + (1000 + self.chance.roll(6000)) * MS);
                if owned && was_well && all_able {
                    self.unserved_ns = Some((now_ns, true));
                    self.next = self.best_but(host);
                }
                self.steadiness_ends(host);
            }
            Mishap::Kill => {
                self.hosts[host].process = None;
                self.hosts[host].starts_ns = Some(now_ns + self.chance.roll(5000) * MS);
            }
            Mishap::Hang => {
                let until_ns = now_ns + (50 + self.chance.roll(5000)) * MS;
                if let Some(process) = &mut self.hosts[host].process {
                    process.asleep_until_ns = until_ns;
                }
            }
            Mishap::Stop => {
                let at_ns = now_ns + self.chance.roll(500) * MS;
                if let Some(process) = &mut self.hosts[host].process {
                    process.stops_ns = Some(at_ns);
                }
            }
            Mishap::Isolate | Mishap::Unplug => {
                self.hosts[host].hears_gateway = false;
                self.hosts[host].has_carrier = kind != Mishap::Unplug;
                for other in (0..self.hosts.len()).filter(|other| *other != host) {
                    self.set_cut(host, other, true);
                    self.set_cut(other, host, true);
                }
            }
            Mishap::Part => {
                let side: Vec<_> = (0..self.hosts.len()).map(|_| self.chance.one_in(2)).collect();
                for one in 0..side.len() {
                    for other in (0..side.len()).filter(|other| side[*other] != side[one]) {
                        self.set_cut(one, other, true);
                    }
                }
            }
            Mishap::OneWay => self.set_cut(host, other, true),
            Mishap::CutLink => {
                (self.link_cut[host][other], self.link_cut[other][host]) = (true, true);
            }
            Mishap::Filter => {
                self.hosts[host].is_filtered = true;
                self.steadiness_ends(host);
            }
            Mishap::Unready => {
                if let Some(process) = &mut self.hosts[host].process {
                    process.ready = !process.ready;
                }
            }
            Mishap::NoBackend => {
                if let Some(process) = &mut self.hosts[host].process {
                    process.has_backend = !process.has_backend;
                }
            }
            Mishap::Evacuate => {
                let to = self.chance.one_in(2).then_some(other);
                let Some(process) = &mut self.hosts[host].process else { return };
                (process.is_evacuated, process.evacuated_to) = (!process.is_evacuated, to);
                if process.is_evacuated && owned && was_well && all_able {
                    self.next = self.best_but(host).map(|best| to.unwrap_or(best));
                }
            }
            Mishap::Remove => self.hosts[host].lease_ns = None,
            Mishap::Lose => self.one_lost_in = 50,
        }
    }

    /// The host that is to take the VIP from `holder`; `None`: the others are not alike in all but their priorities and the holder's flows.
    fn best_but(&self, holder: usize) -> Option<usize> {
        let others = (0..self.hosts.len()).filter(|host| *host != holder);
        let is_well = |host: &usize| {
            let process = self.hosts[*host].process.as_ref();
            process.is_some_and(|it| it.ready && it.says.ready && it.says.synced && it.says.hears && !it.says.damped)
        };
        let rank =
            |host: &usize| (self.hosts[*host].priority, Reverse(self.hosts[*host].flows_here[holder]), Reverse(*host));
        others.clone().all(|host| is_well(&host)).then(|| others.max_by_key(rank)).flatten()
    }

    /// Ends one mishap.
    pub(super) fn repair(&mut self, all: bool) {
        let now_ns = self.now_ns;
        self.mishap_ns = now_ns;
        self.next = None;
        let counts = self.hosts.iter_mut().flat_map(|it| &mut it.flows_here);
        counts.for_each(|count| *count = self.chance.roll(3) as u32);
        for host in 0..self.hosts.len() {
            if !self.hosts[host].is_up && (all || self.chance.one_in(2)) {
                self.hosts[host].is_up = true;
            }
        }
        if all || self.chance.one_in(2) {
            self.one_lost_in = u64::MAX;
            for one in 0..self.hosts.len() {
                (self.hosts[one].hears_gateway, self.hosts[one].has_carrier) = (true, true);
                self.hosts[one].is_filtered = false;
                for other in 0..self.hosts.len() {
                    if self.cut[one][other] {
                        self.set_cut(one, other, false);
                    }
                    self.link_cut[one][other] = false;
                }
            }
            self.note("the network is whole".to_owned());
        }
        for it in &mut self.hosts {
            if let Some(process) = &mut it.process
                && all
            {
                (process.ready, process.has_backend) = (true, true);
                (process.is_evacuated, process.evacuated_to) = (false, None);
            }
        }
    }

    pub(super) fn steps(&mut self, ms: u64) {
        for _ in 0..ms * MS / STEP_NS {
            if self.fault.is_some() {
                return;
            }
            self.step();
        }
    }
}
