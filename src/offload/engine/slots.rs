//! The evidence slot of each backend. Entries name slots, so a backend's slot must outlive the process as the entries
//! do.

use std::collections::HashMap;

use crate::addr::BackendAddr;
use crate::offload::program::BACKEND_SLOTS;

#[derive(Debug, Default)]
pub(super) struct Slots {
    by_backend: HashMap<BackendAddr, u16>,
    taken: HashMap<u16, BackendAddr>,
}

impl Slots {
    /// The slot of `backend`, and whether it is new. When all are taken, backends share the last one.
    pub(super) fn of(&mut self, backend: BackendAddr) -> (u16, bool) {
        if let Some(slot) = self.by_backend.get(&backend) {
            return (*slot, false);
        }
        let free = (0..BACKEND_SLOTS - 1).find(|slot| !self.taken.contains_key(slot));
        let slot = free.unwrap_or(BACKEND_SLOTS - 1);
        self.keep(slot, backend);
        (slot, true)
    }

    /// An earlier process gave `slot` to `backend`.
    pub(super) fn keep(&mut self, slot: u16, backend: BackendAddr) {
        self.by_backend.insert(backend, slot);
        self.taken.insert(slot, backend);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, BackendAddr)> + '_ {
        self.taken.iter().map(|(slot, backend)| (*slot, *backend))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_keeps_its_slot_and_no_other_gets_it() {
        let backend = |number: u8| BackendAddr::new(([10, 0, 0, number], 6443).into());
        let mut slots = Slots::default();
        slots.keep(0, backend(7));
        assert_eq!(slots.of(backend(7)), (0, false));
        assert_eq!((slots.of(backend(8)), slots.of(backend(8))), ((1, true), (1, false)));
    }
}
