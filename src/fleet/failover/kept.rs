//! The addresses that Baton keeps on `lo`, as leases of the kernel.
//!
//! A thread of its own renews them: the control task may wait for a slow nft, and the addresses must not go meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::essential;
use crate::sys::netlink;

/// The kernel removes an address so long after the last renewal: time to start Baton again.
const LEASE_S: u32 = 5;
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// A set of addresses that is renewed as long as it lives.
#[derive(Debug, Default)]
pub(super) struct KeptAddresses {
    all: Arc<Mutex<BTreeSet<IpAddr>>>,
    is_renewed: bool,
}

impl KeptAddresses {
    /// The addresses that an earlier process has kept, from now on kept by this one.
    pub(super) fn of_this_host() -> Self {
        let found = netlink::added_to_loopback().unwrap_or_default();
        let mut kept = Self { all: Arc::new(Mutex::new(found.iter().copied().collect())), is_renewed: false };
        if !found.is_empty() {
            kept.begin();
        }
        kept
    }

    pub(super) fn contains(&self, ip: &IpAddr) -> bool {
        lock(&self.all).contains(ip)
    }

    pub(super) fn all(&self) -> Vec<IpAddr> {
        lock(&self.all).iter().copied().collect()
    }

    /// Adds the address to `lo`, also if the kernel has removed it because this process did not run.
    pub(super) fn keep(&mut self, ip: IpAddr) -> io::Result<()> {
        self.begin();
        let mut all = lock(&self.all);
        netlink::lease_on_loopback(ip, LEASE_S)?;
        all.insert(ip);
        Ok(())
    }

    /// Removes it from `lo`.
    pub(super) fn give_up(&self, ip: IpAddr) {
        let mut all = lock(&self.all);
        let _ = netlink::remove_from_loopback(ip);
        all.remove(&ip);
    }

    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_renewed, true) {
            return;
        }
        let all = Arc::downgrade(&self.all);
        if let Err(error) = essential::thread("kept addresses", move || renew(&all)) {
            self.is_renewed = false;
            tracing::error!(%error, "cannot start the thread that keeps addresses on lo: the kernel removes them within seconds");
        }
    }
}

/// Renews those that are on `lo`: this process may have removed others a moment ago, before it ends.
fn renew(all: &Weak<Mutex<BTreeSet<IpAddr>>>) {
    while let Some(all) = all.upgrade() {
        {
            let all = lock(&all);
            let there = if all.is_empty() { Vec::new() } else { netlink::added_to_loopback().unwrap_or_default() };
            for ip in there.iter().filter(|ip| all.contains(*ip)) {
                if let Err(error) = netlink::lease_on_loopback(*ip, LEASE_S) {
                    tracing::error!(%ip, %error, "cannot keep the address on lo for its flows");
                }
            }
        }
        drop(all);
        std::thread::sleep(RENEW_EVERY);
    }
}

fn lock(all: &Mutex<BTreeSet<IpAddr>>) -> MutexGuard<'_, BTreeSet<IpAddr>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
