//! What this instance says of itself once a second, for the recorder.

use super::{Admin, status, words};
use crate::table::standing::InstanceStanding;

/// Reasons that are recorded.
const REASONS: usize = 3;

pub(super) fn take(admin: &Admin, now_ns: u64) -> InstanceStanding {
    let (registry, config) = (&admin.table.registry, admin.config.load());
    let mut frontends = registry.frontends();
    frontends.retain(|it| config.frontends.iter().any(|frontend| frontend.name == it.name));
    let services: Vec<_> = frontends.iter().map(|it| (&*it.name, registry.service(it, now_ns).0)).collect();
    let (not_live, not_ready) = (admin.not_live(now_ns), admin.not_ready());
    let condition = words::condition(&not_live, &not_ready, admin.phase.phase().label());
    let (weight, headline) = words::headline_of(condition, words::shortfall_of(&services));
    let nodes = status::nodes(admin, now_ns);
    InstanceStanding {
        headline,
        weight: weight.label().to_owned(),
        reasons: not_live.into_iter().chain(not_ready).take(REASONS).collect(),
        silent_nodes: nodes.silent_total,
        silence: words::silence(&nodes).map(|(_, sentence)| sentence).unwrap_or_default(),
    }
}
