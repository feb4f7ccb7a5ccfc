//! The addresses of this host, and those that it keeps on `lo` after they have left.
//!
//! A flow in sockets needs its VIP to be local: packets that the new owner forwards would be nobody's otherwise. So while
//! such flows live, an address that leaves its interface stays on `lo`. That must not answer ARP, or the address would be
//! here and there: arp_ignore = 1 and arp_announce = 2 (Documentation/networking/ip-sysctl.rst).
//!
//! Such a flow may begin after the address has left: a process that hung, or got its listeners from the one before, finds connections
//! in its backlog.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;

use super::is_global;
use crate::model::fleet::evacuate::Places;
use crate::sys::{netdev, netlink};
use crate::table::fleet::Fleet;
use crate::table::flows::{FlowState, FlowTable};

const LOOPBACK: &str = "lo";

/// How long after it was seen that an address has left the backlogs may hold connections to it: they are emptied within
/// milliseconds, or a second where there are no descriptors, but the host may be busy.
const BACKLOGS_LAST_NS: u64 = 10_000_000_000;

/// What this host has, and what it only keeps.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    vips: BTreeSet<IpAddr>,
    /// Added to `lo` here, for flows whose address has moved.
    kept: BTreeSet<IpAddr>,
    /// The interface that each VIP was last seen on.
    last_on: HashMap<IpAddr, String>,
    /// The VIPs that have left lately.
    left: HashMap<IpAddr, Leave>,
    /// They are kept before they leave, and until this is taken back: packets of flows must never find them missing.
    ahead: bool,
}

#[derive(Clone, Debug)]
struct Leave {
    /// Where it was; `None`: it was gone when this process looked first, if it ever was here.
    interface: Option<String>,
    /// Until then (monotonic ns) it is looked whether a flow needs it.
    until_ns: u64,
}

impl Leave {
    fn is_needed(&self, ip: IpAddr, flows: &FlowTable, now_ns: u64) -> bool {
        // That an address was asked for which is said to be any tells nothing of one that nobody has seen here.
        now_ns < self.until_ns
            && flows_in_sockets(flows).any(|vip| vip == ip || vip.is_unspecified() && self.interface.is_some())
    }
}

/// What a look has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenAddresses {
    /// Addresses that are this host's, those left out that are only kept.
    pub all: Vec<IpAddr>,
    /// Kept from now on.
    pub newly_kept: Vec<IpAddr>,
    /// The frontends' among them, and those that are kept.
    pub places: Places,
}

impl Addresses {
    /// What the process before this one kept is kept on for the flows that came from it, and else given up.
    pub(super) fn new(vips: impl Iterator<Item = IpAddr>, now_ns: u64) -> Self {
        let vips: BTreeSet<_> = vips.collect();
        let before = netlink::added_to_loopback().unwrap_or_default();
        let leave = Leave { interface: None, until_ns: now_ns + BACKLOGS_LAST_NS };
        let left = vips.iter().map(|ip| (*ip, leave.clone())).collect();
        Self { kept: before.into_iter().filter(|ip| vips.contains(ip)).collect(), vips, left, ..Self::default() }
    }

    /// These are the frontends' from now on. Look again after this.
    pub(super) fn set_vips(&mut self, vips: impl Iterator<Item = IpAddr>) {
        self.vips = vips.collect();
    }

    /// Looks at what is there, and keeps what flows need.
    pub(super) fn look(&mut self, flows: &FlowTable, now_ns: u64) -> io::Result<SeenAddresses> {
        let there = netdev::addresses()?;
        let mut seen = SeenAddresses::default();
        let mut now_on = HashMap::new();
        let mut others: Vec<_> =
            there.iter().map(|(interface, _)| interface.clone()).filter(|it| it != LOOPBACK).collect();
        others.sort();
        others.dedup();
        for (interface, ip) in there.into_iter().filter(|(_, ip)| is_global(*ip)) {
            let is_kept = interface == LOOPBACK && self.kept.contains(&ip);
            if !is_kept && !seen.all.contains(&ip) {
                seen.all.push(ip);
            }
            if interface != LOOPBACK && self.vips.contains(&ip) {
                now_on.insert(ip, interface);
            }
        }
        let until_ns = now_ns + BACKLOGS_LAST_NS;
        let leave = |interface| Leave { interface: Some(interface), until_ns };
        self.left.extend(self.last_on.drain().map(|(ip, interface)| (ip, leave(interface))));
        self.left.retain(|ip, leave| !seen.all.contains(ip) && now_ns < leave.until_ns);
        let left = self.left.iter().filter(|(ip, leave)| leave.is_needed(**ip, flows, now_ns));
        let left = left.map(|(ip, leave)| (*ip, leave.interface.clone()));
        let leaving = now_on.iter().filter(|_| self.ahead).map(|(ip, interface)| (*ip, Some(interface.clone())));
        for (ip, interface) in left.chain(leaving).collect::<Vec<_>>() {
            if self.kept.contains(&ip) {
                continue;
            }
            let kept = match interface {
                Some(interface) => keep(ip, &[interface]),
                // A route can make an address this host's, too, and then nothing has left.
                None if is_local(ip) => continue,
                None => keep(ip, &others),
            };
            match kept {
                true => {
                    self.kept.insert(ip);
                    seen.newly_kept.push(ip);
                }
                // It would fail again.
                false => drop(self.left.remove(&ip)),
            }
        }
        // Back on an interface: the other is not needed, and would outlive the next leave.
        if !self.ahead {
            for ip in now_on.keys().filter(|ip| self.kept.contains(ip)) {
                let _ = netlink::remove_from_loopback(*ip);
            }
            self.kept.retain(|ip| !now_on.contains_key(ip));
        }
        self.last_on = now_on;
        let here = seen.all.iter().copied().filter(|ip| self.vips.contains(ip)).collect();
        let all = |set: &BTreeSet<IpAddr>| set.iter().copied().collect();
        seen.places = Places { frontends: all(&self.vips), here, kept: all(&self.kept) };
        Ok(seen)
    }

    /// Whether addresses are kept before they leave. Look again after this.
    pub(super) fn keep_ahead(&mut self, ahead: bool) {
        self.ahead = ahead;
    }

    /// Whether a flow needs an address that has left and is not kept. Look again then.
    pub(super) fn lacks_one(&self, flows: &FlowTable, now_ns: u64) -> bool {
        self.left.iter().any(|(ip, leave)| !self.kept.contains(ip) && leave.is_needed(*ip, flows, now_ns))
    }

    /// Gives up what no flow needs any more; returns that.
    pub(super) fn tidy(&mut self, flows: &FlowTable, fleet: &Fleet) -> Vec<IpAddr> {
        if self.ahead || fleet.is_succeeded() {
            return Vec::new();
        }
        let idle: Vec<_> = self.kept.iter().copied().filter(|ip| !has_sockets(flows, *ip)).collect();
        for ip in &idle {
            let _ = netlink::remove_from_loopback(*ip);
            self.kept.remove(ip);
        }
        idle
    }

    /// Interfaces that `ip` is on, without `lo`: index, and Ethernet address.
    pub(super) fn places(ip: IpAddr) -> io::Result<Vec<(u32, [u8; 6])>> {
        let all = netdev::addresses()?.into_iter();
        let on = all.filter(|(interface, its)| *its == ip && interface != LOOPBACK);
        on.map(|(name, _)| Ok((netdev::interface(&name)?.index, netdev::hardware_address(&name)?))).collect()
    }
}

fn has_sockets(flows: &FlowTable, vip: IpAddr) -> bool {
    flows_in_sockets(flows).any(|asked| asked == vip || asked.is_unspecified())
}

/// Whether the kernel takes packets to it for this host's.
pub(super) fn is_local(ip: IpAddr) -> bool {
    netlink::route(ip).is_ok_and(|route| route.is_local)
}

/// The addresses that the clients of flows in sockets have asked for.
fn flows_in_sockets(flows: &FlowTable) -> impl Iterator<Item = IpAddr> {
    flows.iter().filter(|flow| flow.state != FlowState::Offloaded).map(|flow| flow.origin.vip.ip())
}

/// False: one of these interfaces would answer ARP, or it cannot be added.
fn keep(ip: IpAddr, interfaces: &[String]) -> bool {
    if ip.is_ipv4()
        && let Err(error) = interfaces.iter().try_for_each(|interface| silence_arp(interface))
    {
        tracing::error!(%ip, %error, "cannot keep the address on lo for its flows: net.ipv4.conf.all.arp_ignore is 0");
        return false;
    }
    match netlink::add_to_loopback(ip) {
        Ok(_) => true,
        Err(error) => {
            tracing::error!(%ip, %error, "cannot keep the address on lo for its flows");
            false
        }
    }
}

/// The kernel takes the highest of `all` and the interface's own.
fn silence_arp(interface: &str) -> io::Result<()> {
    for (name, least) in [("arp_ignore", 1), ("arp_announce", 2)] {
        let path = |of: &str| format!("/proc/sys/net/ipv4/conf/{of}/{name}");
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
