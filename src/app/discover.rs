//! From a look at a source to a changed instance: discovered backends come and go as by a reload, and the file's stay.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Core;
use super::reload::Reloader;
use crate::addr::BackendAddr;
use crate::config::{Config, Discover};
use crate::discover::{self, DiscoverParts, SourceLook};
use crate::drain::LifePhase;
use crate::essential::{Tasks, aside};
use crate::metrics::{FrontendLabels, Metrics};
use crate::model::discover::{AddressSet, DiscoveredSet, backend_name};
use crate::model::health::SavedBackend;
use crate::table::journal::What;

/// The sets of frontends, by name.
pub(super) type FoundSets = HashMap<Arc<str>, AddressSet>;

/// Looks that may wait.
const LOOKS_MAX: usize = 16;

/// How long a change waits for the end of an upgrade before it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The last valid set of each frontend.
#[derive(Debug, Default)]
pub(super) struct Discoveries(Mutex<HashMap<Arc<str>, DiscoveredSet>>);

impl Discoveries {
    /// The present sets.
    pub(super) fn sets(&self) -> FoundSets {
        self.all().iter().map(|(name, set)| (name.clone(), set.addresses().clone())).collect()
    }

    /// The sets for a configuration of a file, with a first look for each frontend that has had none; changes nothing.
    pub(super) async fn sets_for(&self, file: &Config) -> FoundSets {
        let mut sets = self.sets();
        for (name, discover) in discovering(file) {
            if !sets.contains_key(name)
                && let Some(found) = discover::first(discover).await
            {
                sets.insert(name.clone(), found);
            }
        }
        sets
    }

    /// Begins with these sets, where there are none yet, and forgets those of frontends that no longer have a source.
    pub(super) fn begin(&self, file: &Config, sets: FoundSets) {
        let mut all = self.all();
        for (name, set) in sets {
            all.entry(name).or_insert_with(|| DiscoveredSet::new(set));
        }
        all.retain(|name, _| discovering(file).any(|(other, _)| other == name));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, DiscoveredSet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the backends that the old process of an upgrade had found, for frontends of `file` without a known set.
pub(super) fn found_before(file: &Config, saved: &[SavedBackend], sets: &mut FoundSets) {
    for (name, _) in discovering(file).filter(|(name, _)| !sets.contains_key(*name)).collect::<Vec<_>>() {
        let of_frontend = saved.iter().filter(|it| *it.frontend == **name && !it.former);
        let found = of_frontend.filter_map(|it| it.address.filter(|address| backend_name(*address) == it.backend));
        let found: AddressSet = found.collect();
        if !found.is_empty() {
            sets.insert(name.clone(), found);
        }
    }
}

fn discovering(config: &Config) -> impl Iterator<Item = (&Arc<str>, &Discover)> {
    config.frontends.iter().filter_map(|it| Some((&it.name, it.discover.as_ref()?)))
}

/// Follows the sources of all frontends until the instance drains.
pub(super) async fn run(core: Arc<Core>, reloader: Arc<Reloader>, metrics: Arc<Metrics>) {
    let (sender, mut looks) = mpsc::channel(LOOKS_MAX);
    let tasks = Tasks::default();
    let parts = DiscoverParts { registry: core.table.part(), names: core.table.part(), journal: core.table.part() };
    let clients = discover::names::run(core.table.part(), core.table.part(), core.latest.subscribe());
    tasks.spawn("names", clients);
    let by_dns = discover::reverse::run(core.table.part(), core.table.part(), core.latest.subscribe());
    tasks.spawn("reverse DNS", by_dns);
    tasks.spawn("discovery", discover::run(parts, core.latest.subscribe(), sender));
    let (mut phase, mut config) = (core.drain.watch(), core.latest.subscribe());
    let mut follower = LookFollower { core, metrics, written: HashMap::new(), shown: Vec::new() };
    let mut is_behind = false;
    loop {
        tokio::select! {
            Some(look) = looks.recv() => is_behind |= follower.take(look).await,
            Ok(()) = config.changed() => follower.forget_gone(),
            () = tokio::time::sleep(RETRY), if is_behind => {}
            () = phase.reached(LifePhase::Draining) => return,
        }
        if is_behind {
            // During an upgrade the new process follows the source; if that fails, this one does.
            is_behind = reloader.follow_discovered().await.is_err();
        }
    }
}

struct LookFollower {
    core: Arc<Core>,
    metrics: Arc<Metrics>,
    /// What the disk has of each frontend.
    written: HashMap<Arc<str>, (PathBuf, AddressSet)>,
    /// Frontends with metrics.
    shown: Vec<Arc<str>>,
}

impl LookFollower {
    /// Returns whether the set has changed.
    async fn take(&mut self, look: SourceLook) -> bool {
        let SourceLook { frontend, source, found, unwatched } = look;
        let config = self.core.latest.borrow().clone();
        let Some((name, discover)) = discovering(&config).find(|(name, _)| **name == frontend) else { return false };
        let found = found.and_then(|found| without_own(found, &config));
        let (news, set) = {
            let mut all = self.core.discovered.all();
            let set = all.entry(name.clone()).or_default();
            let is_valid = found.is_ok();
            let mut news = set.settle(found);
            if is_valid {
                set.settle_watch(unwatched, &mut news);
            }
            (news, set.clone())
        };
        let addresses = |all: &[BackendAddr]| all.iter().map(|it| it.socket_addr()).collect::<Vec<_>>();
        let journal = &self.core.table.journal;
        let (frontend, kept) = (name.to_string(), set.addresses().len());
        if let Some(error) = news.failed.clone() {
            let (frontend, source) = (frontend.clone(), source.clone());
            journal.record(What::DiscoveryFailed { frontend, source, error, kept });
        }
        if news.recovered {
            journal.record(What::DiscoveryRecovered { frontend: frontend.clone(), source: source.clone() });
        }
        if let Some(error) = news.unwatched.clone() {
            let (frontend, source) = (frontend.clone(), source.clone());
            journal.record(What::DiscoveryUnwatched { frontend, source, error });
        }
        if news.watched {
            journal.record(What::DiscoveryWatched { frontend: frontend.clone(), source: source.clone() });
        }
        let has_changed = !news.added.is_empty() || !news.removed.is_empty();
        if has_changed {
            let (added, removed) = (addresses(&news.added), addresses(&news.removed));
            journal.record(What::BackendsDiscovered {
                frontend: frontend.clone(),
                source: source.clone(),
                added,
                removed,
            });
        }
        self.show(name, &set);
        let kept = (discover.cache_file.clone(), set.addresses().clone());
        if !set.is_failing() && self.written.get(name) != Some(&kept) {
            self.written.insert(name.clone(), kept.clone());
            let (path, set) = kept;
            let written = aside(move || discover::write_cache(&path, &source, &set)).await;
            if let Some(Err(error)) = written {
                let path = discover.cache_file.display();
                tracing::warn!(frontend, %path, %error, "cannot keep the discovered backends on disk: a start while their source is out of reach begins without them");
            }
        }
        has_changed
    }

    fn show(&mut self, name: &Arc<str>, set: &DiscoveredSet) {
        let labels = FrontendLabels { frontend: name.to_string() };
        let metrics = &self.metrics.discovery;
        metrics.failing.get_or_create(&labels).set(i64::from(set.is_failing() || set.is_unwatched()));
        metrics.backends.get_or_create(&labels).set(set.addresses().len() as i64);
        if !self.shown.contains(name) {
            self.shown.push(name.clone());
        }
    }

    fn forget_gone(&mut self) {
        let config = self.core.latest.borrow().clone();
        let is_there = |name: &Arc<str>| discovering(&config).any(|(other, _)| other == name);
        let (shown, gone) = self.shown.drain(..).partition(is_there);
        self.shown = shown;
        for name in gone as Vec<Arc<str>> {
            self.written.remove(&name);
            let labels = FrontendLabels { frontend: name.to_string() };
            self.metrics.discovery.failing.remove(&labels);
            self.metrics.discovery.backends.remove(&labels);
        }
    }
}

/// A source that names the VIP would have Baton connect to itself.
fn without_own(found: AddressSet, config: &Config) -> Result<AddressSet, String> {
    let (own, others): (AddressSet, AddressSet) = found.into_iter().partition(|address| config.is_own(*address));
    match own.first().filter(|_| others.is_empty()) {
        Some(address) => Err(format!("it has no address but this load balancer's own, such as {address}")),
        None => Ok(others),
    }
}
