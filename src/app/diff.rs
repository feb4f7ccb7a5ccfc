//! What a reload of a file would change, and the flows that it would end. It judges by the code of the reload itself, and changes nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::reload::{ReloadError, compared};
use crate::admin::diff::{AffectedFlows, FlowEffect, ReloadDiff};
use crate::config::{self, Config, Frontend};
use crate::essential;
use crate::health::dismissal_after;
use crate::model::end_reason::EndReason;
use crate::model::health::Dismissal;
use crate::model::ids::{BackendId, FrontendId};
use crate::proxy::idle_walk_pause;
use crate::sys::clock::now_ns;
use crate::table::backend::BackendEntry;

/// Compares the file at `path` with the running configuration.
///
/// # Errors
/// [`ReloadError::Invalid`] and [`ReloadError::Unread`], and [`ReloadError::Stopping`] while the instance ends.
pub(super) async fn diff(core: Arc<Core>, path: PathBuf) -> Result<ReloadDiff, ReloadError> {
    // It reads the certificate files.
    let read = {
        let path = path.clone();
        essential::aside(move || config::check(&path, config::read_file(&path))).await
    };
    let loaded = read.ok_or(ReloadError::Stopping)?;
    let file = loaded?.config;
    let new = file.with_found(&core.discovered.sets_for(&file).await);
    // It looks at every flow.
    let work = move || {
        let old = core.config.load_full();
        let compared = compared(&core, &old, &new);
        let affected = affected(&core, &old, &new);
        Ok(ReloadDiff { path, changes: compared.changes, refused: compared.refused, affected })
    };
    essential::aside(work).await.unwrap_or(Err(ReloadError::Stopping))
}

fn affected(core: &Core, old: &Config, new: &Config) -> Vec<AffectedFlows> {
    let now_ns = now_ns();
    let flows = CountedFlows::of(core, old, new, now_ns);
    let backends = core.table.registry.backends();
    let mut affected: Vec<_> = backends.iter().flat_map(|entry| of_backend(entry, old, new, &flows, now_ns)).collect();
    affected.retain(|it| it.flows > 0);
    affected.sort_by(|one, other| (&one.frontend, &one.backend).cmp(&(&other.frontend, &other.backend)));
    affected
}

fn of_backend(
    entry: &BackendEntry,
    old: &Config,
    new: &Config,
    flows: &CountedFlows,
    now_ns: u64,
) -> Vec<AffectedFlows> {
    let (frontend, backend) = entry.full_name();
    let of = |flows: u64, effect, within: Duration, reason: EndReason, why: &str| AffectedFlows {
        frontend: frontend.clone(),
        backend: backend.clone(),
        flows,
        effect,
        within_ms: within.as_millis() as u64,
        reason: reason.label().to_owned(),
        why: why.to_owned(),
    };
    let Some(before) = find(old, entry) else { return Vec::new() };
    let all = flows.all.get(&entry.id).copied().unwrap_or_default();
    let until_ns = entry.health().drain_deadline_ns;
    let left = |until_ns: u64| Duration::from_nanos(until_ns.saturating_sub(now_ns));
    if let Some(dismissal) = dismissal_after(entry, new) {
        // One that an earlier reload removed, or whose address has changed, has its time already.
        if entry.is_former() || dismissal_after(entry, old).is_some() {
            return Vec::new();
        }
        let (reason, why) = match dismissal {
            Dismissal::Frontend => (EndReason::FrontendRemoved, "the file has no such frontend"),
            Dismissal::Backend => (EndReason::DrainDeadline, "the file has no such backend"),
            Dismissal::Address => (EndReason::DrainDeadline, "its address changes"),
        };
        // What drains keeps the time at which its drain began, and a removed one keeps its drain_timeout.
        let within = until_ns.map_or(before.drain_timeout, left);
        let effect = if within.is_zero() { FlowEffect::Reset } else { FlowEffect::Drain };
        return vec![of(all, effect, within, reason, why)];
    }
    let Some(after) = find(new, entry) else { return Vec::new() };
    let mut affected = Vec::new();
    if let Some(until_ns) = until_ns
        && let Some(sooner) = before.drain_timeout.checked_sub(after.drain_timeout).filter(|it| !it.is_zero())
    {
        let within = left(until_ns.saturating_sub(sooner.as_nanos() as u64));
        let effect = if within.is_zero() { FlowEffect::Reset } else { FlowEffect::Drain };
        affected.push(of(
            all,
            effect,
            within,
            EndReason::DrainDeadline,
            "it drains, and drain_timeout becomes shorter",
        ));
    }
    let idle = flows.idle.get(&entry.id).copied().unwrap_or_default();
    if let Some(limit) = after.idle_timeout {
        let within = idle_walk_pause(limit);
        affected.push(of(
            idle,
            FlowEffect::Reset,
            within,
            EndReason::IdleTimeout,
            "they have been idle for longer than the new idle_timeout",
        ));
    }
    affected
}

/// The instance's flows by their backend.
#[derive(Debug, Default)]
struct CountedFlows {
    all: HashMap<BackendId, u64>,
    /// Those that a new or shorter idle_timeout ends.
    idle: HashMap<BackendId, u64>,
}

impl CountedFlows {
    fn of(core: &Core, old: &Config, new: &Config, now_ns: u64) -> Self {
        let limits: HashMap<FrontendId, Duration> = core
            .table
            .registry
            .frontends()
            .iter()
            .filter_map(|entry| {
                let before = named(old, &entry.name)?.idle_timeout;
                let after = named(new, &entry.name)?.idle_timeout?;
                before.is_none_or(|before| after < before).then_some((entry.id, after))
            })
            .collect();
        let mut counts = Self::default();
        for flow in core.table.flows.iter() {
            let Some(backend) = flow.backend else { continue };
            *counts.all.entry(backend).or_default() += 1;
            let idle = Duration::from_nanos(now_ns.saturating_sub(flow.last_byte_ns()));
            if limits.get(&flow.origin.frontend).is_some_and(|limit| idle >= *limit) {
                *counts.idle.entry(backend).or_default() += 1;
            }
        }
        counts
    }
}

fn find<'c>(config: &'c Config, entry: &BackendEntry) -> Option<&'c Arc<Frontend>> {
    named(config, &entry.frontend.name)
}

fn named<'c>(config: &'c Config, name: &str) -> Option<&'c Arc<Frontend>> {
    config.frontends.iter().find(|frontend| *frontend.name == *name)
}
