//! A backend's name and the addresses that it has had. Flows belong to an address, not to a name.
//!
//! ```text
//!   name ──▶ the current entry: gets new flows
//!       └──▶ former entries: keep their flows, are watched and drained, and are forgotten after the last of them
//! ```

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::{BackendEntry, FrontendEntry, Registry};
use crate::addr::BackendAddr;
use crate::model::balance;
use crate::model::ids::FrontendId;

/// A backend under the name that the configuration gives it, at its present address.
#[derive(Debug)]
pub(crate) struct NamedBackend {
    pub name: Arc<str>,
    frontend: FrontendId,
    current: ArcSwap<BackendEntry>,
}

impl NamedBackend {
    /// The entry for new flows.
    pub(crate) fn current(&self) -> Guard<Arc<BackendEntry>> {
        self.current.load()
    }
}

impl BackendEntry {
    /// Whether it is not its name's current entry, or not yet: then it gets no new flows.
    pub(crate) fn is_former(&self) -> bool {
        self.former.load(Relaxed)
    }

    /// The label for status and metrics. No two entries of a frontend have the same.
    pub(crate) fn label(&self) -> Cow<'_, str> {
        match self.is_former() {
            false => Cow::Borrowed(&*self.name),
            true => Cow::Owned(self.former_label()),
        }
    }

    /// [`BackendEntry::label`] while it is a former one.
    pub(crate) fn former_label(&self) -> String {
        match self.address() {
            Some(address) => format!("{} ({address})", self.name),
            None => format!("{} (no address)", self.name),
        }
    }

    fn is_called(&self, frontend: FrontendId, name: &str) -> bool {
        self.frontend.id == frontend && *self.name == *name
    }
}

impl Registry {
    /// The backend called `name` of `frontend`; if needed it makes one, untrusted and without address.
    pub(crate) fn named(&self, frontend: &Arc<FrontendEntry>, name: &Arc<str>) -> Arc<NamedBackend> {
        let mut next_id = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known_by_name(frontend.id, name) {
            return known;
        }
        let entry = self.make(&mut next_id, frontend, name, balance::hash_name(&frontend.name, name));
        self.give_name(&entry)
    }

    /// The entry for new flows to the backend called `name`; see [`Registry::named`].
    pub fn backend(&self, frontend: &Arc<FrontendEntry>, name: &Arc<str>) -> Arc<BackendEntry> {
        self.named(frontend, name).current.load_full()
    }

    /// The entry of the backend called `name` at `address`; makes it if needed. It becomes current at once if the name
    /// has no current entry, otherwise only with [`Registry::lead`].
    pub(crate) fn backend_at(
        &self,
        frontend: &Arc<FrontendEntry>,
        name: &Arc<str>,
        address: BackendAddr,
    ) -> Arc<BackendEntry> {
        let mut next_id = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known_at(frontend, name, address) {
            return known;
        }
        let entry = self.make(&mut next_id, frontend, name, balance::hash_name(&frontend.name, name));
        entry.set_address(Some(address));
        match self.known_by_name(frontend.id, name) {
            Some(_) => entry.former.store(true, Relaxed),
            None => drop(self.give_name(&entry)),
        }
        entry
    }

    /// The same for a flow that exists already, which is counted in. `key`: the [`BackendEntry::hash_key`] of a new
    /// entry, which is then also added to [`Registry::strangers`], so that the health checker watches it.
    pub(crate) fn hold_at(
        &self,
        frontend: &Arc<FrontendEntry>,
        name: &Arc<str>,
        key: u64,
        address: BackendAddr,
    ) -> Arc<BackendEntry> {
        let mut next_id = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known_at(frontend, name, address) {
            known.count_in();
            return known;
        }
        let entry = self.make(&mut next_id, frontend, name, key);
        entry.set_address(Some(address));
        entry.former.store(true, Relaxed);
        entry.count_in();
        self.strangers.come(entry.clone());
        entry
    }

    /// Makes `entry` the current one of its name; the entry that was current becomes a former one.
    pub(crate) fn lead(&self, entry: &Arc<BackendEntry>) {
        let _guard = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        match self.known_by_name(entry.frontend.id, &entry.name) {
            Some(named) => {
                let before = named.current.load_full();
                if before.id != entry.id {
                    // Two entries that are former for a moment have different labels; two that are not would have the
                    // same.
                    before.former.store(true, Relaxed);
                    named.current.store(entry.clone());
                }
            }
            None => drop(self.give_name(entry)),
        }
        entry.former.store(false, Relaxed);
    }

    /// The former entries of the name of `entry`.
    pub(crate) fn formers_of(&self, entry: &BackendEntry) -> Vec<Arc<BackendEntry>> {
        let is_one = |it: &Arc<BackendEntry>| it.is_former() && it.is_called(entry.frontend.id, &entry.name);
        self.backends().into_iter().filter(is_one).collect()
    }

    pub(super) fn known_by_name(&self, frontend: FrontendId, name: &str) -> Option<Arc<NamedBackend>> {
        let lists = self.lists.load();
        lists.named.iter().find(|it| it.frontend == frontend && *it.name == *name).cloned()
    }

    /// Gives this address to an entry that has had none yet.
    fn known_at(&self, frontend: &FrontendEntry, name: &str, address: BackendAddr) -> Option<Arc<BackendEntry>> {
        let all = self.backends();
        let mut same = all.iter().filter(|it| it.is_called(frontend.id, name));
        if let Some(known) = same.find(|it| it.address() == Some(address)) {
            return Some(known.clone());
        }
        let current = self.known_by_name(frontend.id, name)?.current.load_full();
        current.address().is_none().then(|| {
            current.set_address(Some(address));
            current
        })
    }

    fn give_name(&self, entry: &Arc<BackendEntry>) -> Arc<NamedBackend> {
        let (name, frontend) = (entry.name.clone(), entry.frontend.id);
        let named = Arc::new(NamedBackend { name, frontend, current: ArcSwap::new(entry.clone()) });
        self.update(|lists| lists.named.push(named.clone()));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> BackendAddr {
        BackendAddr::new(text.parse().unwrap())
    }

    #[test]
    fn an_address_is_an_entry_and_one_that_comes_back_is_the_same_entry() {
        let registry = Registry::new(1);
        let frontend = registry.frontend(&"apiserver".into());
        let name = "cp1".into();
        let (a, b) = (addr("10.0.0.11:6443"), addr("10.0.0.12:6443"));
        let first = registry.backend(&frontend, &name);
        assert_eq!(first.address(), None);
        assert_eq!(registry.backend_at(&frontend, &name, a).id, first.id, "one without an address gets it");
        first.lanes[0].bytes_to_backend.add(7);

        let second = registry.backend_at(&frontend, &name, b);
        assert_eq!(registry.backend(&frontend, &name).id, first.id, "it does not lead yet");
        assert_eq!([first.label(), second.label()], ["cp1", "cp1 (10.0.0.12:6443)"]);
        registry.lead(&second);
        assert_eq!(registry.backend(&frontend, &name).id, second.id);
        assert_eq!([first.label(), second.label()], ["cp1 (10.0.0.11:6443)", "cp1"]);
        assert_eq!(second.lanes[0].bytes_to_backend.value(), 7, "what is counted is the name's");
        assert_eq!(second.hash_key, first.hash_key);

        registry.lead(&registry.backend_at(&frontend, &name, a));
        assert_eq!(registry.backend(&frontend, &name).id, first.id);
        assert_eq!(registry.backends().len(), 2);
        assert!(registry.forget_backend(second.id));
        assert_eq!(registry.formers_of(&first).len(), 0);
    }

    #[test]
    fn a_flow_of_an_unknown_address_makes_an_entry_that_somebody_must_watch_and_that_is_not_forgotten_under_it() {
        let registry = Registry::new(1);
        let frontend = registry.frontend(&"apiserver".into());
        let name: Arc<str> = "cp1".into();
        let (a, b) = (addr("10.0.0.11:6443"), addr("10.0.0.12:6443"));
        let first = registry.backend_at(&frontend, &name, a);
        assert_eq!(registry.hold_at(&frontend, &name, 1, a).id, first.id);
        assert!(registry.strangers.take().is_empty());
        let held = registry.hold_at(&frontend, &name, 1, b);
        assert_eq!(registry.hold_at(&frontend, &name, 1, b).id, held.id);
        assert_eq!(registry.strangers.take().len(), 1);
        assert!(held.is_former() && held.load() == 2);
        assert!(!registry.forget_backend(held.id), "it has flows");
        (0..2).for_each(|_| held.release());
        assert!(registry.forget_backend(held.id));
    }
}
