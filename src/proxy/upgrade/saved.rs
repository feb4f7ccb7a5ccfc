//! Counters of limits and balancing that pass from one process to the next.

use std::sync::atomic::Ordering::Relaxed;

use super::message::{Message, StuckWorker};
use crate::addr::ClientAddr;
use crate::config::{Config, Frontend};
use crate::model::pacing::TokenBucket;
use crate::proxy::workers::Proxy;
use crate::sys::clock::now_ns;
use crate::table::saved::{FrontendLoad, SavedCounters, SavedSource};

/// Limit for the reported sources: more would make the message too long. Sources nearest to a limit go first.
const SOURCES_MAX: usize = 30_000;

impl Proxy {
    /// The counters for the other process.
    pub fn save(&self) -> Result<SavedCounters, StuckWorker> {
        let (sources, sources_left_out) = self.save_sources();
        let mut turns = Vec::new();
        for worker in 0..self.workers() {
            turns.extend(self.ask(worker, |answer| Message::SaveTurns { answer })?);
        }
        let load = |entry: &crate::table::backend::FrontendEntry| FrontendLoad {
            name: entry.name.to_string(),
            flows: entry.active.load(Relaxed),
        };
        let frontends = self.table.registry.frontends().iter().map(|entry| load(entry)).collect();
        Ok(SavedCounters { frontends, sources, sources_left_out, turns })
    }

    /// The counters of the sources alone, at the very end.
    pub(crate) fn save_sources(&self) -> (Vec<SavedSource>, u64) {
        let name = |id| Some(self.table.registry.find_frontend(id)?.name.to_string());
        self.shared.sources.save(name, SOURCES_MAX, now_ns())
    }

    /// Continues the counters of another process, which still has its flows. Call it before any client is served.
    pub fn restore(&self, config: &Config, saved: &SavedCounters) {
        for entry in self.table.registry.frontends() {
            let loads = saved.frontends.iter().filter(|load| *load.name == *entry.name);
            loads.for_each(|load| entry.other_process.expect(load.flows));
        }
        self.restore_sources(config, &saved.sources, true);
        for worker in 0..self.workers() {
            let own = saved.turns.iter().filter(|turns| turns.worker % self.workers() == worker);
            self.tell(worker, Message::RestoreTurns(own.cloned().collect()));
        }
    }

    /// Continues another process's counters of sources. `expect`: that process will give their flows to this one.
    pub(crate) fn restore_sources(&self, config: &Config, saved: &[SavedSource], expect: bool) {
        for source in saved {
            let configured = config.frontends.iter().find(|frontend| *frontend.name == *source.frontend);
            let Some(frontend) = configured else { continue };
            self.restore_source(frontend, source, expect);
        }
    }

    /// The upgrade has succeeded or failed: no flow of the other process counts here any more.
    pub fn forget_other_process(&self) {
        self.table.registry.forget_other_process();
        self.shared.sources.forget_other_process();
    }

    fn restore_source(&self, frontend: &Frontend, saved: &SavedSource, expect: bool) {
        let limits = &frontend.limits;
        let id = self.table.registry.frontend(&frontend.name).id;
        // With another mask it may be part of a wider network.
        let network = limits.source_mask.network(ClientAddr::new((saved.network, 0).into()));
        let rate = limits.accept_rate_per_source;
        if let (Some(rate), Some(bucket)) = (rate, saved.bucket) {
            let bucket = TokenBucket::resumed(rate, rate, bucket.level, bucket.at_ns);
            self.shared.sources.restore(id, network, bucket, now_ns());
        }
        if expect && (rate.is_some() || limits.max_connections_per_source.is_some()) {
            self.shared.sources.expect(id, network, saved.flows);
        }
    }
}
