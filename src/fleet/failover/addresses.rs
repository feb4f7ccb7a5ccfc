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
use crate::ports::fleet::Fleet;
use crate::sys::{netdev, netlink};
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
    /// What was on an interface at the last look; a flow may need an address that no file names any more.
    last_on: BTreeSet<IpAddr>,
    /// What has left lately.
    left: HashMap<IpAddr, Leave>,
    /// They are kept before they leave, and until this is taken back: packets of flows must never find them missing.
    ahead: bool,
}

#[derive(Clone, Copy, Debug)]
struct Leave {
    /// False: it was gone when this process looked first, if it ever was here.
    was_seen: bool,
    /// Until then (monotonic ns) it is looked whether a flow needs it.
    until_ns: u64,
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
        let leave = Leave { was_seen: false, until_ns: now_ns + BACKLOGS_LAST_NS };
        let left = vips.iter().map(|ip| (*ip, leave)).collect();
        let kept = netlink::added_to_loopback().unwrap_or_default().into_iter().collect();
        Self { kept, vips, left, ..Self::default() }
    }

    /// These are the frontends' from now on. Look again after this.
    pub(super) fn set_vips(&mut self, vips: impl Iterator<Item = IpAddr>) {
        self.vips = vips.collect();
    }

    /// Looks at what is there, and keeps what flows need.
    pub(super) fn look(&mut self, flows: &FlowTable, now_ns: u64) -> io::Result<SeenAddresses> {
        let there = netdev::addresses()?;
        let mut seen = SeenAddresses::default();
        let mut now_on = BTreeSet::new();
        let others: BTreeSet<_> =
            there.iter().map(|(interface, _)| interface.clone()).filter(|it| it != LOOPBACK).collect();
        for (interface, ip) in there.into_iter().filter(|(_, ip)| is_global(*ip)) {
            let is_kept = interface == LOOPBACK && self.kept.contains(&ip);
            if !is_kept && !seen.all.contains(&ip) {
                seen.all.push(ip);
            }
            if interface != LOOPBACK {
                now_on.insert(ip);
            }
        }
        let leave = Leave { was_seen: true, until_ns: now_ns + BACKLOGS_LAST_NS };
        let gone = std::mem::replace(&mut self.last_on, now_on.clone()).into_iter().filter(|ip| !now_on.contains(ip));
        self.left.extend(gone.map(|ip| (ip, leave)));
        self.left.retain(|ip, leave| !seen.all.contains(ip) && now_ns < leave.until_ns);
        let left = self.left.keys().copied().filter(|ip| self.is_needed(*ip, flows, now_ns));
        let leaving = now_on.iter().copied().filter(|ip| self.ahead && self.vips.contains(ip));
        for ip in left.chain(leaving).collect::<Vec<_>>() {
            // A route can make an address this host's, too, and then nothing has left.
            let stays = self.left.get(&ip).is_some_and(|leave| !leave.was_seen) && is_local(ip);
            if self.kept.contains(&ip) || stays {
                continue;
            }
            match keep(ip, &others) {
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
            for ip in now_on.iter().filter(|ip| self.kept.contains(ip)) {
                let _ = netlink::remove_from_loopback(*ip);
            }
            self.kept.retain(|ip| !now_on.contains(ip));
        }
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
        self.left.keys().any(|ip| !self.kept.contains(ip) && self.is_needed(*ip, flows, now_ns))
    }

    /// Gives up what no flow needs any more; returns that.
    pub(super) fn tidy(&mut self, flows: &FlowTable, fleet: &Fleet) -> Vec<IpAddr> {
        if self.ahead || fleet.is_succeeded() {
            return Vec::new();
        }
        let idle: Vec<_> = self.kept.iter().copied().filter(|ip| !self.is_asked_for(*ip, true, flows)).collect();
        for ip in &idle {
            let _ = netlink::remove_from_loopback(*ip);
            self.kept.remove(ip);
        }
        idle
    }

    /// Whether a flow needs an address that has left.
    fn is_needed(&self, ip: IpAddr, flows: &FlowTable, now_ns: u64) -> bool {
        self.left.get(&ip).is_some_and(|leave| now_ns < leave.until_ns && self.is_asked_for(ip, leave.was_seen, flows))
    }

    /// Whether the client of a flow in sockets has asked for this address, or (`or_any`) may have: it is said to have asked for any, or, by
    /// whoever spoke the PROXY protocol, for one that was never here.
    fn is_asked_for(&self, ip: IpAddr, or_any: bool, flows: &FlowTable) -> bool {
        let is_known = |asked: &IpAddr| {
            let of_this_host =
                self.last_on.contains(asked) || self.left.contains_key(asked) || self.kept.contains(asked);
            of_this_host || self.vips.contains(asked)
        };
        let or_any = or_any && self.vips.contains(&ip);
        let in_sockets = flows.iter().filter(|flow| flow.state != FlowState::Offloaded);
        in_sockets.map(|flow| flow.origin.vip.ip()).any(|asked| asked == ip || or_any && !is_known(&asked))
    }

    /// Interfaces that `ip` is on, without `lo`: index, and Ethernet address.
    pub(super) fn places(ip: IpAddr) -> io::Result<Vec<(u32, [u8; 6])>> {
        let all = netdev::addresses()?.into_iter();
        let on = all.filter(|(interface, its)| *its == ip && interface != LOOPBACK);
        on.map(|(name, _)| Ok((netdev::interface(&name)?.index, netdev::hardware_address(&name)?))).collect()
    }
}

/// Whether the kernel takes packets to it for this host's.
pub(super) fn is_local(ip: IpAddr) -> bool {
    netlink::is_local(ip).unwrap_or(false)
}

/// Gives up what a process that has ended kept, or is about to.
pub(super) fn give_up_all() {
    for ip in netlink::added_to_loopback().unwrap_or_default() {
        let _ = netlink::remove_from_loopback(ip);
    }
}

/// False: one of these interfaces would answer ARP, or it cannot be added.
fn keep(ip: IpAddr, interfaces: &BTreeSet<String>) -> bool {
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
        if !std::fs::exists(path(interface))? {
            // It has gone meanwhile.
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
