//! Looks after the addresses that this host serves: whether another host has one too, and whether what moves them still
//! runs. It only tells; whose an address is, is not its to decide.
//!
//! A keepalived that is killed leaves its VIP behind, and the other host takes it as well. Clients then reach either by
//! chance, nothing fails loudly, and each change of an ARP entry costs somebody a connection.
//!
//! ```text
//!   alone ──heard──▶ doubted ──heard again, still ours──▶ shared ──silence──▶ alone
//! ```

mod claims;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::Config;
use crate::metrics::{AddressLabels, Metrics};
use crate::sys::arp::{ArpSocket, Mac};
use crate::sys::clock::now_ns;
use crate::sys::{netdev, process};
use crate::table::Table;
use crate::table::journal::What;
use claims::{Change, Claims};

/// What was heard is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks between two questions for each address.
const LOOKS_PER_PROBE: u32 = 4;
/// Looks between two searches for keepalived.
const LOOKS_PER_SEARCH: u32 = 8;
/// Claims that are read at one look from one interface: a storm of ARP must not hold up anything.
const CLAIMS_MAX: usize = 4096;
const LOOPBACK: &str = "lo";
const MOVER: &str = "keepalived";

/// Opens what it takes at once, and looks for as long as the future is polled.
pub fn keep(
    table: Arc<Table>,
    config: watch::Receiver<Arc<Config>>,
    metrics: Arc<Metrics>,
) -> impl Future<Output = ()> + Send {
    let mut keeper = Keeper {
        table,
        config,
        metrics,
        sockets: BTreeMap::new(),
        claims: Claims::default(),
        mover: Mover::Unseen,
        refused: false,
    };
    keeper.open(&netdev::networks().unwrap_or_default());
    run(keeper)
}

async fn run(mut keeper: Keeper) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for look in 0u32.. {
        ticks.tick().await;
        // It makes system calls that may take a moment, on a thread where that holds up nobody.
        let work = tokio::task::spawn_blocking(move || {
            keeper.look(look);
            keeper
        });
        match work.await {
            Ok(back) => keeper = back,
            Err(error) => return tracing::error!("looking after the VIPs ended: {error}"),
        }
    }
}

struct Keeper {
    table: Arc<Table>,
    config: watch::Receiver<Arc<Config>>,
    metrics: Arc<Metrics>,
    /// By interface.
    sockets: BTreeMap<String, ArpSocket>,
    claims: Claims,
    mover: Mover,
    /// It was said that there is no right to look.
    refused: bool,
}

/// keepalived, as far as it is known here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mover {
    /// Never seen: something else moves the VIPs, or nothing.
    Unseen,
    Runs,
    /// It ran, and left these behind.
    Gone(BTreeSet<Ipv4Addr>),
}

impl Keeper {
    fn look(&mut self, look: u32) {
        let networks = netdev::networks().unwrap_or_default();
        let held = self.held(&networks);
        if look.is_multiple_of(LOOKS_PER_PROBE) {
            self.open(&networks);
            for (name, address) in &held {
                // A cable that is out is no news here.
                let _ = self.sockets.get(name).map(|socket| socket.probe(*address));
            }
        }
        let own: Vec<Mac> = self.sockets.values().map(ArpSocket::mac).collect();
        let now = now_ns();
        let mut changes = Vec::new();
        for (name, socket) in &self.sockets {
            for claim in std::iter::from_fn(|| socket.heard()).take(CLAIMS_MAX) {
                let here = held.contains(&(name.clone(), claim.address));
                if here && !own.contains(&claim.mac) {
                    changes.extend(self.claims.heard(claim.address, claim.mac, now));
                }
            }
        }
        let addresses: BTreeSet<_> = held.iter().map(|(_, address)| *address).collect();
        changes.extend(self.claims.pass(&addresses, now));
        changes.into_iter().for_each(|change| self.tell(change));
        if look.is_multiple_of(LOOKS_PER_SEARCH) {
            self.search(&networks);
        }
    }

    /// A socket for each interface with an IPv4 address, and none for others.
    fn open(&mut self, networks: &[(String, IpNet)]) {
        let names: BTreeSet<_> = networks
            .iter()
            .filter(|(name, network)| name != LOOPBACK && network.addr().is_ipv4())
            .map(|(name, _)| name)
            .collect();
        self.sockets.retain(|name, _| names.contains(name));
        for name in names {
            if self.sockets.contains_key(name) {
                continue;
            }
            match ArpSocket::open(name) {
                Ok(socket) => drop(self.sockets.insert(name.clone(), socket)),
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && !self.refused => {
                    self.refused = true;
                    tracing::info!("an address that two hosts have is not noticed: that takes CAP_NET_RAW");
                }
                Err(_) => {}
            }
        }
    }

    /// Addresses of frontends that are here and that others could claim, with their interfaces.
    fn held(&self, networks: &[(String, IpNet)]) -> BTreeSet<(String, Ipv4Addr)> {
        let config = self.config.borrow().clone();
        let listen: Vec<_> =
            config.frontends.iter().flat_map(|f| &f.listen).map(|vip| vip.socket_addr().ip()).collect();
        let every = listen.iter().any(|ip| ip.is_unspecified() && ip.is_ipv4());
        let here =
            networks.iter().filter(|(name, _)| name != LOOPBACK).filter_map(|(name, network)| match network.addr() {
                IpAddr::V4(address) => Some((name.clone(), address)),
                IpAddr::V6(_) => None,
            });
        here.filter(|(_, address)| every || listen.contains(&IpAddr::V4(*address))).collect()
    }

    fn tell(&self, change: Change) {
        let gauge = |address: Ipv4Addr, value: i64| {
            let labels = AddressLabels { address: address.to_string() };
            self.metrics.vip_duplicate.get_or_create(&labels).set(value);
        };
        match change {
            Change::Shared { address, mac } => {
                gauge(address, 1);
                let by = spelled(mac);
                tracing::error!(%address, by, "another host has this address too: clients reach either by chance");
                self.table.journal.record(What::VipShared { address: address.into(), by });
            }
            Change::Alone { address } => {
                gauge(address, 0);
                tracing::info!(%address, "no other host has this address any more");
                self.table.journal.record(What::VipAlone { address: address.into() });
            }
        }
    }

    /// Whether keepalived has gone and left what it had here.
    fn search(&mut self, networks: &[(String, IpNet)]) {
        let guests = self.guests(networks);
        // Where it was never seen and nothing is here that it could have brought, there is nothing to search for.
        if guests.is_empty() && self.mover == Mover::Unseen {
            return;
        }
        let runs = process::runs_any(MOVER);
        let next = match &self.mover {
            Mover::Unseen if !runs => return,
            _ if runs => Mover::Runs,
            _ => Mover::Gone(guests.clone()),
        };
        let left = |mover: &Mover| match mover {
            Mover::Gone(left) => left.clone(),
            _ => BTreeSet::new(),
        };
        let (before, after) = (left(&self.mover), left(&next));
        for address in after.difference(&before) {
            tracing::error!(%address, "{MOVER} is gone and has left this address behind: another host takes it too");
            self.table.journal.record(What::VipLeftBehind { address: (*address).into() });
        }
        for address in before.union(&guests) {
            let labels = AddressLabels { address: address.to_string() };
            self.metrics.vip_left_behind.get_or_create(&labels).set(after.contains(address).into());
        }
        self.mover = next;
    }

    /// Addresses of frontends here that are of a network of one, as keepalived adds them.
    fn guests(&self, networks: &[(String, IpNet)]) -> BTreeSet<Ipv4Addr> {
        let alone = |address: Ipv4Addr| {
            networks.iter().any(|(_, network)| network.addr() == IpAddr::V4(address) && network.prefix_len() == 32)
        };
        self.held(networks).into_iter().map(|(_, address)| address).filter(|address| alone(*address)).collect()
    }
}

fn spelled(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
