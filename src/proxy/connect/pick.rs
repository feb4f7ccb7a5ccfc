//! Picks a backend for a flow, and keeps the state of the rotation.

use std::collections::HashMap;

use crate::model::balance::{self, Balance, Draw, NoPick, PickCandidate, Preference, Turns};
use crate::model::ids::FrontendId;
use crate::proxy::context::WorkerContext;
use crate::proxy::flow::{Flow, Phase};
use crate::proxy::plane::Plane;
use crate::table::saved::SavedTurns;

/// One worker's state of the rotation.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Picker {
    /// Scratch space of each pick.
    candidates: Vec<PickCandidate>,
    turns: HashMap<FrontendId, Turns>,
    random: fastrand::Rng,
}

impl Picker {
    /// The index of a backend of the flow's frontend that was not tried yet.
    pub(super) fn pick(&mut self, cx: &WorkerContext, flow: &Flow) -> Result<usize, NoPick> {
        let Phase::Connecting(connecting) = &flow.phase else { return Err(NoPick::None) };
        let now_ns = cx.now_ns();
        self.candidates.clear();
        self.candidates.extend(flow.frontend.backends.iter().map(|named| {
            let entry = named.current();
            let active = entry.load();
            PickCandidate {
                preference: entry.preference_now(),
                weight: entry.weight().saturating_mul(entry.share(now_ns)),
                active,
                full: entry.max_connections().is_some_and(|max| active >= max),
                tried: connecting.machine.tried().contains(&entry.id),
                hash_key: entry.hash_key,
            }
        }));
        self.spare_the_first_back(flow, now_ns);
        let policy = flow.frontend.settings.balance;
        let draw = Draw { random: self.random.u64(..), source_hash: balance::hash_ip(flow.client_addr.ip()) };
        let mut none = Turns::default();
        let turns = match policy {
            Balance::RoundRobin => self.turns.entry(flow.frontend.entry.id).or_default(),
            _ => &mut none,
        };
        balance::pick(policy, &self.candidates, turns, draw)
    }

    /// While one backend alone of several can take flows, and has just come back.
    fn spare_the_first_back(&mut self, flow: &Flow, now_ns: u64) {
        let weighty = || self.candidates.iter().enumerate().filter(|(_, it)| it.weight > 0);
        let mut usable = weighty().filter(|(_, it)| it.preference != Preference::Never);
        if let (Some((first, _)), None) = (usable.next(), usable.next())
            && weighty().nth(1).is_some()
        {
            let is_full = flow.frontend.backends[first].current().is_full_as_first(now_ns);
            self.candidates[first].full |= is_full;
        }
    }

    /// The state of the rotation for another process.
    pub(in crate::proxy) fn save_turns(&self, worker: usize, plane: &Plane) -> Vec<SavedTurns> {
        let frontends = plane.frontends.iter().filter_map(|frontend| {
            let turns = self.turns.get(&frontend.entry.id)?;
            let names = frontend.backends.iter().map(|backend| backend.name.to_string());
            let credits = names.zip(turns.credits().iter().copied()).collect();
            Some(SavedTurns { worker, frontend: frontend.entry.name.to_string(), credits })
        });
        frontends.collect()
    }

    /// Adds up the states of several workers: any sum of fair rotations is fair.
    pub(in crate::proxy) fn restore_turns(&mut self, plane: &Plane, saved: &[SavedTurns]) {
        for frontend in &plane.frontends {
            let own: Vec<_> = saved.iter().filter(|turns| *turns.frontend == *frontend.entry.name).collect();
            if own.is_empty() || frontend.settings.balance != Balance::RoundRobin {
                continue;
            }
            let credit = |name: &str| -> i64 {
                let credits = own.iter().flat_map(|turns| &turns.credits);
                credits.filter(|(backend, _)| backend == name).fold(0, |sum, (_, credit)| sum.saturating_add(*credit))
            };
            let credits = frontend.backends.iter().map(|backend| credit(&backend.name)).collect();
            self.turns.insert(frontend.entry.id, Turns::resumed(credits));
        }
    }
}
