//! A name that resolves to another address: that address begins as a new backend and is probed, then it gets the new
//! flows; the old address drains, and is still watched.

use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::watch;

use super::watcher::{Beginning, KnownBefore, Spec, WatcherCommand};
use super::{Roster, SharedHealth};
use crate::addr::BackendAddr;
use crate::config::{Config, Target};
use crate::model::health::machine::Arrival;
use crate::model::health::{Dismissal, Order};
use crate::sys::clock::now_ns;
use crate::table::backend::BackendEntry;

/// How long a new address may take for its first probe before flows go there; the same as after a reload.
const FIRST_PROBE_MAX: Duration = Duration::from_secs(2);

/// Limit for old addresses of one name that are still draining. With one more, the flows of the oldest are reset: a
/// name that changes all the time must not create more and more backends to probe.
const FORMERS_MAX: usize = 8;

/// The address that a watcher's name resolves to, if it is another than the watcher's.
#[derive(Default)]
pub(super) struct NameSuccession {
    successor: Option<Successor>,
}

struct Successor {
    entry: Arc<BackendEntry>,
    first_probed: watch::Receiver<bool>,
    /// At this time it gets the flows in any case.
    until_ns: u64,
}

impl NameSuccession {
    /// Returns once the successor has been probed; never if there is none.
    pub(super) async fn probed(&mut self) {
        match &mut self.successor {
            // An error means that it was removed meanwhile.
            Some(successor) => drop(successor.first_probed.wait_for(|probed| *probed).await),
            None => std::future::pending().await,
        }
    }

    /// When the successor gets the flows in any case.
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.successor.as_ref().map(|it| it.until_ns)
    }

    /// The name of `old` now resolves to `address`; `None`: to its own.
    pub(super) fn succeed_by(
        &mut self,
        address: Option<BackendAddr>,
        shared: &Arc<SharedHealth>,
        old: &Arc<BackendEntry>,
        spec: &Spec,
    ) {
        if address.is_some() && self.successor.as_ref().and_then(|it| it.entry.address()) == address {
            return;
        }
        if let Some(before) = self.successor.take() {
            shared.dismiss_former(&before.entry);
        }
        self.successor = address.and_then(|address| {
            let (entry, first_probed) = shared.begin_successor(old, spec, address)?;
            Some(Successor { entry, first_probed, until_ns: now_ns() + FIRST_PROBE_MAX.as_nanos() as u64 })
        });
    }

    /// Gives the flows to the successor from here on, if there is one.
    pub(super) fn step_down(&mut self, shared: &SharedHealth, old: &Arc<BackendEntry>, spec: &Spec) {
        if let Some(successor) = self.successor.take() {
            shared.step_down(old, &successor.entry, spec);
        }
    }
}

impl SharedHealth {
    /// Watches `address`, to which the name of `old` now resolves. `None`: a reload has just decided otherwise.
    fn begin_successor(
        self: &Arc<Self>,
        old: &Arc<BackendEntry>,
        spec: &Spec,
        address: BackendAddr,
    ) -> Option<(Arc<BackendEntry>, watch::Receiver<bool>)> {
        let mut roster = self.roster();
        if old.is_former() || roster.watched.get(&old.id).is_none_or(|it| it.removed.is_some()) {
            return None;
        }
        let entry = self.table.registry.backend_at(&old.frontend, &old.name, address);
        entry.configure(old.weight(), old.max_connections());
        let spec = spec.at(address);
        match roster.watched.get_mut(&entry.id) {
            Some(watched) => {
                watched.removed = None;
                let _ = watched.commands.send(WatcherCommand::Configure(Box::new(spec)));
            }
            None => {
                let beginning =
                    Beginning { order: order_for(old), ..Beginning::new(KnownBefore::Nothing(Arrival::ByReload)) };
                self.watch(&mut roster, entry.clone(), spec, beginning);
            }
        }
        let first_probed = roster.watched.get(&entry.id)?.first_probed.clone();
        Some((entry, first_probed))
    }

    /// Gives the flows and the name's lookups to `new` from here on.
    fn step_down(&self, old: &Arc<BackendEntry>, new: &Arc<BackendEntry>, spec: &Spec) {
        let mut roster = self.roster();
        if old.is_former() || roster.watched.get(&old.id).is_none_or(|it| it.removed.is_some()) {
            return;
        }
        let Some(watched) = roster.watched.get_mut(&new.id) else { return };
        watched.removed = None;
        let _ = watched.commands.send(WatcherCommand::Lead(Box::new(spec.clone())));
        self.lead(new);
        roster.dismiss(old, Dismissal::Address);
        self.expire_oldest(&roster, new);
    }

    /// Limits the number of old addresses of the name of `current`.
    pub(super) fn expire_oldest(&self, roster: &Roster, current: &BackendEntry) {
        let mut formers = self.table.registry.formers_of(current);
        // An address that has just become an old one has no deadline yet, so it sorts last.
        formers.sort_by_key(|it| it.health().drain_deadline_ns.unwrap_or(u64::MAX));
        let too_many = formers.len().saturating_sub(FORMERS_MAX);
        for one in &formers[..too_many] {
            if let Some(watched) = roster.watched.get(&one.id) {
                let _ = watched.commands.send(WatcherCommand::Expire);
            }
        }
    }

    /// Makes `entry` the current entry of its name.
    pub(super) fn lead(&self, entry: &Arc<BackendEntry>) {
        self.table.registry.lead(entry);
        self.table.probes.forget(&entry.frontend.name, &entry.former_label());
    }

    /// `entry` should have become current, and shall not any more.
    fn dismiss_former(&self, entry: &Arc<BackendEntry>) {
        if entry.is_former() {
            self.roster().dismiss(entry, Dismissal::Address);
        }
    }

    /// Watches entries that were made for flows without a known backend: flows of an earlier process, or of other
    /// instances.
    pub(super) async fn watch_strangers(self: Arc<Self>) {
        loop {
            self.table.registry.strangers.came().await;
            for entry in self.table.registry.strangers.take() {
                self.watch_stranger(entry);
            }
        }
    }

    fn watch_stranger(self: &Arc<Self>, entry: Arc<BackendEntry>) {
        let mut roster = self.roster();
        let Some(address) = entry.address().filter(|_| !roster.watched.contains_key(&entry.id)) else { return };
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let spec = Spec::gone(&config, &entry.frontend.name, &entry.name, address, None);
        let dismissal = dismissal_of(&entry, &config).unwrap_or(Dismissal::Address);
        let label = entry.label();
        tracing::info!(
            frontend = &*entry.frontend.name,
            backend = &*label,
            "an earlier process or another instance left flows at an address that is not in the file; Baton drains them"
        );
        // It counts as alive until its first probe, which comes at once; in any case it drains.
        let beginning =
            Beginning { dismissed: Some(dismissal), ..Beginning::new(KnownBefore::Nothing(Arrival::AtStart)) };
        self.watch(&mut roster, entry.clone(), spec, beginning);
        roster.watched.entry(entry.id).and_modify(|it| it.removed = Some(dismissal));
        if dismissal == Dismissal::Address {
            let current = self.table.registry.backend(&entry.frontend, &entry.name);
            if let Some(watched) = roster.watched.get(&current.id) {
                let _ = watched.commands.send(WatcherCommand::Prefer(address));
            }
        }
    }
}

/// Why `config` gives no flows to `entry`; `None`: it does.
pub(super) fn dismissal_of(entry: &BackendEntry, config: &Config) -> Option<Dismissal> {
    let Some(frontend) = config.frontends.iter().find(|it| it.name == entry.frontend.name) else {
        return Some(Dismissal::Frontend);
    };
    let Some(_) = frontend.backends.iter().find(|it| it.name == entry.name) else { return Some(Dismissal::Backend) };
    entry.is_former().then_some(Dismissal::Address)
}

/// Why a backend would get no flows for good if a reload applied `config`. `None`: it stays, as far as is known before its name is
/// resolved.
pub(crate) fn dismissal_after(entry: &BackendEntry, config: &Config) -> Option<Dismissal> {
    dismissal_of(entry, config).or_else(|| {
        let frontend = config.frontends.iter().find(|it| it.name == entry.frontend.name)?;
        let address = fixed(&frontend.backends.iter().find(|it| it.name == entry.name)?.address)?;
        entry.address().is_some_and(|own| own != address).then_some(Dismissal::Address)
    })
}

/// The fixed address of a backend.
pub(super) fn fixed(target: &Target) -> Option<BackendAddr> {
    match target {
        Target::Address(address) => Some(*address),
        Target::Name { .. } => None,
    }
}

/// The operator's order to the name, if one is in force.
pub(super) fn order_for(current: &BackendEntry) -> Option<Order> {
    match current.health().order {
        Some("drain") => Some(Order::Drain),
        Some("eject") => Some(Order::Eject),
        _ => None,
    }
}
