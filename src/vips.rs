//! Checks the addresses that this host serves: whether another host has one of them too, and whether keepalived still
//! runs. It only reports; it does not decide which host gets an address.
//!
//! A keepalived that is killed leaves its VIP behind, and the other host takes the VIP as well. Then each client
//! reaches either host by chance, no error shows, and each change of an ARP or neighbour entry breaks connections.
//!
//! ```text
//!   alone ──heard──▶ doubted ──heard again, still ours──▶ shared ──silence──▶ alone
//! ```

mod claims;
mod ears;
pub(crate) mod holder;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::addr::Mac;
use crate::config::Config;
use crate::essential;
use crate::metrics::{AddressLabels, Metrics};
use crate::sys::clock::now_ns;
use crate::sys::{netdev, process};
use crate::table::Part;
use crate::table::journal::{Journal, What};
use claims::{ClaimChange, Claims};
use ears::Ears;

/// Interval between two looks at the received claims.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks between two probes of each address.
const LOOKS_PER_PROBE: u32 = 4;
/// Looks between two searches for keepalived.
const LOOKS_PER_SEARCH: u32 = 8;
/// Claims of one family that one look reads from one interface: a flood of them must not delay the other work.
const CLAIMS_MAX: usize = 4096;
const LOOPBACK: &str = "lo";
const MOVER: &str = "keepalived";

/// Opens the sockets at once, and looks for as long as the future is polled.
pub(crate) fn keep(
    journal: Part<Journal>,
    config: watch::Receiver<Arc<Config>>,
    metrics: Arc<Metrics>,
) -> impl Future<Output = ()> + Send {
    let mut keeper = Keeper {
        journal,
        config,
        metrics,
        ears: BTreeMap::new(),
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
        // Its system calls may take a moment, so it runs on a blocking thread.
        let work = move || {
            keeper.look(look);
            keeper
        };
        let Some(back) = essential::aside(work).await else { return };
        keeper = back;
    }
}

struct Keeper {
    journal: Part<Journal>,
    config: watch::Receiver<Arc<Config>>,
    metrics: Arc<Metrics>,
    /// By interface.
    ears: BTreeMap<String, Ears>,
    claims: Claims,
    mover: Mover,
    /// Whether the missing right to look was logged.
    refused: bool,
}

/// The state of keepalived on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mover {
    /// Never seen: another program moves the VIPs, or none does.
    Unseen,
    Runs,
    /// It ran, and left these addresses behind.
    Gone(BTreeSet<IpAddr>),
}

impl Keeper {
    fn look(&mut self, look: u32) {
        let networks = netdev::networks().unwrap_or_default();
        let held = self.held(&networks);
        if look.is_multiple_of(LOOKS_PER_PROBE) {
            self.open(&networks);
            for (name, address) in &held {
                // It fails without a carrier, which `health::surroundings` watches.
                let _ = self.ears.get(name).map(|ears| ears.ask(*address));
            }
        }
        let own: Vec<Mac> = self.ears.values().filter_map(Ears::mac).collect();
        let now = now_ns();
        let mut changes = Vec::new();
        for (name, ears) in &self.ears {
            for claim in ears.heard(CLAIMS_MAX) {
                let here = held.contains(&(name.clone(), claim.address));
                if here && !own.contains(&claim.mac) {
                    changes.extend(self.claims.heard(claim.address, claim.mac, now));
                }
            }
        }
        let addresses: BTreeSet<_> = held.iter().map(|(_, address)| *address).collect();
        for address in &addresses {
            // Exported from the first look on: a missing metric would look like a healthy address.
            let labels = AddressLabels { address: address.to_string() };
            drop(self.metrics.vip_duplicate.get_or_create(&labels));
        }
        changes.extend(self.claims.pass(&addresses, now));
        changes.into_iter().for_each(|change| self.tell(change));
        if look.is_multiple_of(LOOKS_PER_SEARCH) {
            self.search(&networks);
        }
    }

    /// Listens on each interface for the families that it has addresses of, and on no other.
    fn open(&mut self, networks: &[(String, IpNet)]) {
        let mut families = BTreeMap::<&String, (bool, bool)>::new();
        for (name, network) in networks.iter().filter(|(name, _)| name != LOOPBACK) {
            let (ipv4, ipv6) = families.entry(name).or_default();
            *ipv4 |= network.addr().is_ipv4();
            *ipv6 |= is_global_v6(network.addr());
        }
        self.ears.retain(|name, _| families.contains_key(name));
        for (name, (ipv4, ipv6)) in families {
            let listening = self.ears.entry(name.clone()).or_default().listen(name, ipv4, ipv6);
            if listening.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) && !self.refused {
                self.refused = true;
                tracing::info!("Baton cannot detect another host with the same VIP: that needs CAP_NET_RAW");
            }
        }
    }

    /// Addresses of frontends that are here and that other hosts could claim, with their interfaces.
    fn held(&self, networks: &[(String, IpNet)]) -> BTreeSet<(String, IpAddr)> {
        let config = self.config.borrow().clone();
        let listen: Vec<_> =
            config.frontends.iter().flat_map(|f| &f.listen).map(|vip| vip.socket_addr().ip()).collect();
        let every = |address: IpAddr| listen.iter().any(|ip| ip.is_unspecified() && ip.is_ipv6() == address.is_ipv6());
        let here = networks.iter().filter(|(name, _)| name != LOOPBACK);
        let here = here.map(|(name, network)| (name.clone(), network.addr()));
        here.filter(|(_, address)| address.is_ipv4() || is_global_v6(*address))
            .filter(|(_, address)| every(*address) || listen.contains(address))
            .collect()
    }

    fn tell(&self, change: ClaimChange) {
        let gauge = |address: IpAddr, value: i64| {
            let labels = AddressLabels { address: address.to_string() };
            self.metrics.vip_duplicate.get_or_create(&labels).set(value);
        };
        match change {
            ClaimChange::Shared { address, mac } => {
                gauge(address, 1);
                let by = spelled(mac);
                self.journal.record(What::VipShared { address, by });
            }
            ClaimChange::Alone { address } => {
                gauge(address, 0);
                self.journal.record(What::VipAlone { address });
            }
        }
    }

    /// Checks whether keepalived has ended and left its addresses here.
    fn search(&mut self, networks: &[(String, IpNet)]) {
        let guests = self.guests(networks);
        // If keepalived was never seen, and no address here can be one of its own, there is nothing to search for.
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
            self.journal.record(What::VipLeftBehind { address: *address });
        }
        for address in before.union(&guests) {
            let labels = AddressLabels { address: address.to_string() };
            self.metrics.vip_left_behind.get_or_create(&labels).set(after.contains(address).into());
        }
        self.mover = next;
    }

    /// Addresses of frontends here with a prefix of a single address, as keepalived adds them, without those that Baton adds itself.
    fn guests(&self, networks: &[(String, IpNet)]) -> BTreeSet<IpAddr> {
        let own = self.config.borrow().vip.as_ref().map(|vip| vip.addresses.clone()).unwrap_or_default();
        let alone = |address: IpAddr| {
            let is = |network: &IpNet| network.addr() == address && network.prefix_len() == network.max_prefix_len();
            networks.iter().any(|(_, network)| is(network))
        };
        let held = self.held(networks).into_iter().map(|(_, address)| address);
        held.filter(|address| alone(*address) && !own.contains(address)).collect()
    }
}

/// Each interface has link-local addresses of its own, and none is a VIP.
fn is_global_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if !address.is_unicast_link_local())
}

fn spelled(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
