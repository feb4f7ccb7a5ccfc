//! Whom this host hears while a backend is silent.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::watcher::Watcher;
use crate::model::fleet::Pulse;
use crate::model::health::Cause;
use crate::model::health::doubt::Surroundings;
use crate::model::health::machine::Outcome;
use crate::sys::clock::now_ns;
use crate::sys::{netdev, netlink};
use crate::table::Table;
use crate::table::backend::{BackendEntry, Suspicion};

/// How often it is looked for somebody while nobody is heard.
const LOOK_EVERY_NS: u64 = 50_000_000;

const LOOPBACK: &str = "lo";

impl Watcher {
    /// Takes note of how a probe ended. True: it says nothing, and what was counted before does not count either.
    pub(super) fn hear(&mut self, outcome: &Outcome, flows_moved: bool, began_ns: u64) -> bool {
        let was_deaf = self.doubt.is_deaf();
        let anew = match outcome {
            Outcome::Inconclusive { .. } => false,
            Outcome::Failed(Cause::TimedOut { .. } | Cause::Unreachable { .. }) if !flows_moved => {
                let around = self.surroundings();
                if around.are_dark {
                    self.ask_around();
                }
                self.doubt.handle_silence(began_ns, around)
            }
            Outcome::Failed(Cause::Unresolved { .. }) => false,
            _ => {
                self.entry.answered_ns.store(now_ns(), Relaxed);
                self.doubt.handle_answer();
                false
            }
        };
        if self.doubt.is_deaf() && !was_deaf {
            let backend = &*self.entry.name;
            tracing::warn!(
                backend,
                "nobody is heard, so its silence may be this host's fault: its flows are left alone"
            );
        }
        anew
    }

    /// While nobody is heard: looks whether somebody is by now.
    pub(super) fn look_around(&mut self) {
        let now = now_ns();
        if !self.doubt.is_deaf() || now < self.look_at_ns {
            return;
        }
        self.shared.table.hearing.is_deaf(now);
        self.look_at_ns = now + LOOK_EVERY_NS;
        if self.doubt.look(self.surroundings()) {
            tracing::info!(backend = &*self.entry.name, "others are heard: counting begins anew");
            self.begin_anew();
        }
    }

    fn surroundings(&self) -> Surroundings {
        let to = self.target();
        Surroundings { are_dark: to.is_some_and(|to| self.are_dark(to)), heard_ns: self.heard_ns(to) }
    }

    fn are_dark(&self, to: IpAddr) -> bool {
        let route = netlink::route(to);
        if route.as_ref().is_ok_and(|route| route.is_local) {
            return false;
        }
        let members = self.shared.table.fleet.members();
        let is_heard = |pulse, synced| (pulse == Pulse::Alive && synced) || pulse == Pulse::Unlinked;
        // Whoever said goodbye, or never said anything, is no evidence.
        let mut awaited = members
            .iter()
            .filter(|it| matches!(it.pulse, Pulse::Alive | Pulse::Unlinked | Pulse::Silent | Pulse::Dead));
        match awaited.next() {
            Some(_) => !members.iter().any(|member| is_heard(member.pulse, member.synced)),
            // Alone, only the wire tells: if nothing can come by it, no client waits for an RST either.
            None => {
                let name = route.and_then(|route| netdev::name(route.interface));
                !name.is_ok_and(|name| has_carrier(&name)) && !self.clients_can_come()
            }
        }
    }

    /// Whether one of the interfaces that clients come by has a wire.
    fn clients_can_come(&self) -> bool {
        let all: Vec<_> = netdev::addresses().unwrap_or_default();
        let is_asked = |ip: &IpAddr| self.spec.listens.iter().any(|listen| listen == ip);
        let anywhere = self.spec.listens.iter().any(IpAddr::is_unspecified)
            || all.iter().any(|(name, ip)| name == LOOPBACK && is_asked(ip));
        let by = all.iter().filter(|(name, ip)| name != LOOPBACK && (anywhere || is_asked(ip)));
        by.map(|(name, _)| name).any(|name| has_carrier(name))
    }

    /// When a client was last heard, or a backend that is on another host and has another address.
    fn heard_ns(&self, but: Option<IpAddr>) -> u64 {
        let table = &self.shared.table;
        others(table, but).fold(table.hearing.client_ns(), |latest, (entry, ip)| {
            let heard = entry.answered_ns.load(Relaxed).max(entry.heard_ns.load(Relaxed));
            // What is on this host answers without any network.
            let counts = heard > latest && !netlink::route(ip).is_ok_and(|route| route.is_local);
            if counts { heard } else { latest }
        })
    }

    /// Makes whoever is there show it.
    fn ask_around(&self) {
        let table = &self.shared.table;
        table.hearing.want_clients();
        table.graduation.wake();
        others(table, self.target()).for_each(|(entry, _)| entry.suspicion.raise(Suspicion::OTHERS_SILENT));
    }

    fn target(&self) -> Option<IpAddr> {
        let address = self.spec.backend.health_address.or_else(|| self.entry.address())?;
        Some(address.ip())
    }
}

fn others(table: &Table, but: Option<IpAddr>) -> impl Iterator<Item = (Arc<BackendEntry>, IpAddr)> {
    let entries = table.registry.backends();
    entries.into_iter().filter_map(move |entry| {
        let ip = entry.address()?.ip();
        (Some(ip) != but).then_some((entry, ip))
    })
}

fn has_carrier(interface: &str) -> bool {
    netdev::has_carrier(interface).unwrap_or(false)
}
