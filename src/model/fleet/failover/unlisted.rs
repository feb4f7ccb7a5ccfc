//! Entries that the offload engine keeps for other instances though no list here names them: a message was lost, or
//! messages came in an unexpected order. Without this module they would stay in the map for good.

use std::collections::HashMap;
use std::hash::Hash;

use super::agenda::Agenda;
use super::flows::KnownFlows;
use super::unknown_packet::UnknownPackets;
use crate::model::ends::Key;
use crate::model::fleet::{FleetId, StandbyRequest};

/// An entry that was unlisted for so long belongs to nobody. Promises, and entries that are still refused after a
/// peer's death, last half as long (`PROMISED_NS`, `REFUSED_NS`).
const UNLISTED_NS: u64 = 60_000_000_000;

/// An entry that the engine has not reported for so long is gone: the engine needs minutes to go through a full map.
const GONE_NS: u64 = 3600 * 1_000_000_000;

/// Unlisted flows and keys, with the time of the first and of the last report.
#[derive(Debug, Default)]
pub(super) struct Unlisted {
    flows: HashMap<FleetId, UnlistedFor>,
    keys: HashMap<Key, UnlistedFor>,
}

#[derive(Clone, Copy, Debug)]
struct UnlistedFor {
    since_ns: u64,
    last_ns: u64,
}

impl Unlisted {
    /// The offload engine reports these entries. Those that were unlisted for too long it must remove.
    pub(super) fn see_kept(
        &mut self,
        now_ns: u64,
        (flows, keys): (Vec<FleetId>, Vec<Key>),
        known: &KnownFlows,
        unknown: &UnknownPackets,
        agenda: &mut Agenda,
    ) {
        let flows = over(&mut self.flows, now_ns, flows, |id| known.held(id).is_some());
        let keys = over(&mut self.keys, now_ns, keys, |key| known.has_packets(key) || unknown.is_forwarded(key));
        if !flows.is_empty() {
            agenda.standby(StandbyRequest::Drop(flows));
        }
        agenda.forget(keys);
    }
}

fn over<T: Copy + Eq + Hash>(
    seen: &mut HashMap<T, UnlistedFor>,
    now_ns: u64,
    all: Vec<T>,
    is_listed: impl Fn(&T) -> bool,
) -> Vec<T> {
    seen.retain(|it, at| now_ns.saturating_sub(at.last_ns) < GONE_NS && !is_listed(it));
    let mut over = Vec::new();
    for it in all.into_iter().filter(|it| !is_listed(it)) {
        let at = seen.entry(it).or_insert(UnlistedFor { since_ns: now_ns, last_ns: now_ns });
        at.last_ns = now_ns;
        if now_ns.saturating_sub(at.since_ns) >= UNLISTED_NS {
            seen.remove(&it);
            over.push(it);
        }
    }
    over
}
