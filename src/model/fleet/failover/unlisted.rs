//! What the offload engine keeps for others though nobody here lists it: a word was lost, or came in an order that nobody thought of. It
//! would stay in the map for good.

use std::collections::HashMap;
use std::hash::Hash;

use super::agenda::Agenda;
use super::flows::KnownFlows;
use super::unknown_packet::UnknownPackets;
use crate::model::ends::Key;
use crate::model::fleet::{FleetId, StandbyRequest};

/// Unlisted for so long, it is nobody's: a promise, and what is still refused after a burial, last half as long (`PROMISED_NS`,
/// `REFUSED_NS`).
const UNLISTED_NS: u64 = 60_000_000_000;

/// Of which nothing was said again for so long, it is gone: a full map takes some minutes to be gone through.
const GONE_NS: u64 = 3600 * 1_000_000_000;

/// Unlisted flows and keys, when that was first said and when last.
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
    /// The offload engine has these; what has been unlisted for too long it is to take out.
    pub(super) fn see_kept(
        &mut self,
        now_ns: u64,
        (flows, keys): (Vec<FleetId>, Vec<Key>),
        known: &KnownFlows,
        unknown: &UnknownPackets,
        agenda: &mut Agenda,
    ) {
        let flows = over(&mut self.flows, now_ns, flows, |id| known.held(id).is_some());
        let keys = over(&mut self.keys, now_ns, keys, |key| known.has_packets(key) || unknown.is_lent(key));
        if !flows.is_empty() {
            agenda.path(StandbyRequest::Drop(flows));
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
