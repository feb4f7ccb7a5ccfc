//! The addresses of this host, and those that Baton keeps on `lo` after they have left their interface.
//!
//! A proxied flow needs its VIP to be local: otherwise no socket takes the packets that the VIP's new owner forwards.
//! So does an offloaded flow to a backend on this host: the program sees the backend's packets on `lo` only. So while such
//! flows exist, an address that leaves its interface stays on `lo`. The host must not answer ARP for it
//! there, or two hosts would claim the address: arp_ignore = 1 and arp_announce = 2
//! (Documentation/networking/ip-sysctl.rst).
//!
//! The kernel removes such an address from `lo` once no process renews it: after a process that was killed or hangs, peers reset its flows, and the
//! address would make this host drop the packets of the VIP's new owner.
//!
//! Such a flow may begin after the address has left: a process that hung, or that inherited its listeners, finds
//! connections in its backlog.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;

use super::is_global;
use super::kept::KeptAddresses;
use crate::model::fleet::evacuate::Places;
use crate::ports::fleet::Fleet;
use crate::sys::{netdev, netlink};
use crate::table::flows::{FlowState, FlowTable};

const LOOPBACK: &str = "lo";

/// How long after an address has left the backlogs may still hold connections to it. The workers empty them within
/// milliseconds, or within a second when descriptors are short, but the host may be busy.
const BACKLOGS_LAST_NS: u64 = 10_000_000_000;

/// The addresses on this host's interfaces, and those that it only keeps.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    vips: BTreeSet<IpAddr>,
    /// Addresses that Baton added to `lo`, for flows whose address has moved.
    kept: KeptAddresses,
    /// The addresses on interfaces at the last look; a flow may need one that the configuration no longer names.
    last_on: BTreeSet<IpAddr>,
    /// Addresses that have left lately.
    left: HashMap<IpAddr, Leave>,
    /// Whether addresses are kept before they leave, until `keep_ahead(false)`: no packet of a flow may find its
    /// address missing.
    ahead: bool,
}

#[derive(Clone, Copy, Debug)]
struct Leave {
    /// False: the address was gone when this process first looked, if it ever was here.
    was_seen: bool,
    /// Until this time (monotonic ns) Baton checks whether a flow needs the address.
    until_ns: u64,
}

/// The result of one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenAddresses {
    /// This host's addresses, without those that it only keeps.
    pub all: Vec<IpAddr>,
    /// Addresses that are kept from this look on.
    pub newly_kept: Vec<IpAddr>,
    /// The places of the frontends' addresses, and of those that are kept.
    pub places: Places,
}

impl Addresses {
    /// Keeps the addresses that the process before this one kept only while flows that came from it need them.
    pub(super) fn new(vips: impl Iterator<Item = IpAddr>, now_ns: u64) -> Self {
        let vips: BTreeSet<_> = vips.collect();
        let leave = Leave { was_seen: false, until_ns: now_ns + BACKLOGS_LAST_NS };
        let left = vips.iter().map(|ip| (*ip, leave)).collect();
        Self { kept: KeptAddresses::of_this_host(), vips, left, ..Self::default() }
    }

    /// Sets the frontends' addresses. Call `look` after this.
    pub(super) fn set_vips(&mut self, vips: impl Iterator<Item = IpAddr>) {
        self.vips = vips.collect();
    }

    /// Reads the addresses of this host, and keeps those that flows need.
    pub(super) fn look(&mut self, flows: &FlowTable, now_ns: u64) -> io::Result<SeenAddresses> {
        let there = netdev::addresses()?;
        let mut seen = SeenAddresses::default();
        let (mut now_on, mut on_lo) = (BTreeSet::new(), BTreeSet::new());
        let others: BTreeSet<_> =
            there.iter().map(|(interface, _)| interface.clone()).filter(|it| it != LOOPBACK).collect();
        for (interface, ip) in there.into_iter().filter(|(_, ip)| is_global(*ip)) {
            let is_kept = interface == LOOPBACK && self.kept.contains(&ip);
            if !is_kept && !seen.all.contains(&ip) {
                seen.all.push(ip);
            }
            match interface == LOOPBACK {
                true => on_lo.insert(ip),
                false => now_on.insert(ip),
            };
        }
        // The kernel has removed them because this process did not run.
        for ip in self.kept.all() {
            if !on_lo.contains(&ip) && self.is_asked_for(ip, true, flows) {
                self.keep(ip, &others);
            }
        }
        let leave = Leave { was_seen: true, until_ns: now_ns + BACKLOGS_LAST_NS };
        let gone = std::mem::replace(&mut self.last_on, now_on.clone()).into_iter().filter(|ip| !now_on.contains(ip));
        self.left.extend(gone.map(|ip| (ip, leave)));
        self.left.retain(|ip, leave| !seen.all.contains(ip) && now_ns < leave.until_ns);
        let left = self.left.keys().copied().filter(|ip| self.is_needed(*ip, flows, now_ns));
        let leaving = now_on.iter().copied().filter(|ip| self.ahead && self.vips.contains(ip));
        for ip in left.chain(leaving).collect::<Vec<_>>() {
            // A local route can also make an address this host's; then no address has left.
            let stays = self.left.get(&ip).is_some_and(|leave| !leave.was_seen) && is_local(ip);
            if self.kept.contains(&ip) || stays {
                continue;
            }
            match self.keep(ip, &others) {
                true => seen.newly_kept.push(ip),
                // A second try would fail too.
                false => drop(self.left.remove(&ip)),
            }
        }
        // The address is on an interface again: its copy on `lo` is not needed, and would outlive the address's next
        // leave.
        if !self.ahead {
            now_on.iter().filter(|ip| self.kept.contains(ip)).for_each(|ip| self.kept.give_up(*ip));
        }
        let here = seen.all.iter().copied().filter(|ip| self.vips.contains(ip)).collect();
        let all = |set: &BTreeSet<IpAddr>| set.iter().copied().collect();
        seen.places = Places { frontends: all(&self.vips), here, kept: self.kept.all() };
        Ok(seen)
    }

    /// Sets whether addresses are kept before they leave. Call `look` after this.
    pub(super) fn keep_ahead(&mut self, ahead: bool) {
        self.ahead = ahead;
    }

    /// Whether a flow needs an address that has left and that is not kept. If so, call `look`.
    pub(super) fn lacks_one(&self, flows: &FlowTable, now_ns: u64) -> bool {
        self.left.keys().any(|ip| !self.kept.contains(ip) && self.is_needed(*ip, flows, now_ns))
    }

    /// Removes the kept addresses that no flow needs any more, and returns them.
    pub(super) fn tidy(&mut self, flows: &FlowTable, fleet: &Fleet) -> Vec<IpAddr> {
        // Flows of the process before this one may need them, and are listed only once all are recovered.
        if self.ahead || fleet.is_succeeded() || !fleet.is_whole() {
            return Vec::new();
        }
        let mut idle = self.kept.all();
        idle.retain(|ip| !self.is_asked_for(*ip, true, flows));
        idle.iter().for_each(|ip| self.kept.give_up(*ip));
        idle
    }

    /// Adds `ip` to `lo`. False: one of these interfaces would answer ARP for it, or the kernel refused.
    fn keep(&mut self, ip: IpAddr, interfaces: &BTreeSet<String>) -> bool {
        if ip.is_ipv4()
            && let Err(error) = interfaces.iter().try_for_each(|interface| silence_arp(interface))
        {
            tracing::error!(%ip, %error, "cannot keep the address on lo for its flows: net.ipv4.conf.all.arp_ignore is 0");
            return false;
        }
        let kept = self.kept.keep(ip);
        if let Err(error) = &kept {
            tracing::error!(%ip, %error, "cannot keep the address on lo for its flows");
        }
        kept.is_ok()
    }

    /// Whether a flow needs an address that has left.
    fn is_needed(&self, ip: IpAddr, flows: &FlowTable, now_ns: u64) -> bool {
        self.left.get(&ip).is_some_and(|leave| now_ns < leave.until_ns && self.is_asked_for(ip, leave.was_seen, flows))
    }

    /// Whether the client of such a flow asked for this address. If this process saw it here, also whether it may have: the flow's
    /// recorded address may be the unspecified one, or one that was never here, as the sender of a PROXY header stated
    /// it.
    fn is_asked_for(&self, ip: IpAddr, was_seen: bool, flows: &FlowTable) -> bool {
        let is_known = |asked: &IpAddr| {
            let of_this_host =
                self.last_on.contains(asked) || self.left.contains_key(asked) || self.kept.contains(asked);
            of_this_host || self.vips.contains(asked)
        };
        // The address of recovered flows left while no process ran. Another host has it since, and its kernel may reach the
        // backend here by this address: on `lo`, it would make this host drop the packets of those connections.
        let bound_to_it = flows.iter().filter(|flow| flow.state != FlowState::Offloaded || flow.stays_here && was_seen);
        let or_any = was_seen && self.vips.contains(&ip);
        bound_to_it.map(|flow| flow.origin.vip.ip()).any(|asked| asked == ip || or_any && !is_known(&asked))
    }

    /// Index and Ethernet address of each interface with the address `ip`, without `lo`.
    pub(super) fn places(ip: IpAddr) -> io::Result<Vec<(u32, [u8; 6])>> {
        let all = netdev::addresses()?.into_iter();
        let on = all.filter(|(interface, its)| *its == ip && interface != LOOPBACK);
        on.map(|(name, _)| Ok((netdev::interface(&name)?.index, netdev::hardware_address(&name)?))).collect()
    }
}

/// Whether the kernel delivers packets to `ip` on this host. False also if it does not say.
pub(super) fn is_local(ip: IpAddr) -> bool {
    netlink::is_local(ip).unwrap_or(false)
}

/// Removes the addresses on `lo` that an earlier process kept, or that this process keeps, before it ends.
pub(super) fn give_up_all() {
    for ip in netlink::added_to_loopback().unwrap_or_default() {
        let _ = netlink::remove_from_loopback(ip);
    }
}

/// The kernel uses the higher value of `all` and the interface's own.
fn silence_arp(interface: &str) -> io::Result<()> {
    for (name, least) in [("arp_ignore", 1), ("arp_announce", 2)] {
        let path = |of: &str| format!("/proc/sys/net/ipv4/conf/{of}/{name}");
        if !std::fs::exists(path(interface))? {
            // The interface has gone meanwhile.
            continue;
        }
        let read = |of: &str| std::fs::read_to_string(path(of)).ok().and_then(|text| text.trim().parse().ok());
        let now: i32 = ["all", interface].into_iter().filter_map(read).max().unwrap_or(0);
        if now < least {
            std::fs::write(path(interface), least.to_string())?;
            tracing::warn!(
                interface,
                "Baton has set {name} from {now} to {least}, because it keeps an address on lo while its flows live"
            );
        }
    }
    Ok(())
}
