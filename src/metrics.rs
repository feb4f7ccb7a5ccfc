//! Instruments for control work. The data plane's own counters are in the table, and are read at the scrape.

mod exposition;
mod process;

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_protobuf::{EncodeError, encode_to_vec};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use process::ProcessCollector;

pub use exposition::Exposition;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UpgradeLabels {
    /// `finished` or `imported` by this process, `failed` from this process.
    pub outcome: &'static str,
}

/// Upgrades. The old process has exited before a scrape can ask it, so the new one reports them.
#[derive(Debug, Default)]
pub struct Upgrades {
    pub outcomes: Family<UpgradeLabels, Counter>,
    pub flows_imported: Counter,
    pub flows_not_moved: Counter,
    pub held_bytes: Counter,
    pub longest_pause_seconds: Gauge<f64, AtomicU64>,
    pub duration_seconds: Gauge<f64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReloadLabels {
    /// `success` or `failure`.
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AddressLabels {
    pub address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FrontendLabels {
    pub frontend: String,
}

/// The sources of discovered backends; only frontends with one have series.
#[derive(Debug, Default)]
pub struct DiscoveryGauges {
    /// 1 while the last look at the source has failed.
    pub failing: Family<FrontendLabels, Gauge>,
    pub backends: Family<FrontendLabels, Gauge>,
}

/// All instruments, and the registry that renders them.
#[derive(Debug)]
pub struct Metrics {
    pub reloads: Family<ReloadLabels, Counter>,
    pub last_reload_successful: Gauge,
    /// Unix seconds.
    pub last_reload_success_time: Gauge,
    pub upgrades: Upgrades,
    pub discovery: DiscoveryGauges,
    /// 1 while Baton has this address of the VIP on this host.
    pub vip_held: Family<AddressLabels, Gauge>,
    /// Counts the times that this host got the VIP.
    pub vip_gains: Counter,
    /// 1 while another host also has this address.
    pub vip_duplicate: Family<AddressLabels, Gauge>,
    /// 1 while this address is on this host but keepalived, which added it, has ended.
    pub vip_left_behind: Family<AddressLabels, Gauge>,
    registry: Mutex<Registry>,
    /// For names without Baton's prefix.
    unprefixed: Registry,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut unprefixed = Registry::default();
        unprefixed.register_collector(Box::new(ProcessCollector::default()));
        let metrics = Self {
            reloads: Family::default(),
            last_reload_successful: Gauge::default(),
            last_reload_success_time: Gauge::default(),
            upgrades: Upgrades::default(),
            discovery: DiscoveryGauges::default(),
            vip_held: Family::default(),
            vip_gains: Counter::default(),
            vip_duplicate: Family::default(),
            vip_left_behind: Family::default(),
            registry: Mutex::new(Registry::with_prefix("baton")),
            unprefixed,
        };
        // Shown as 0 before the first one: an alert does not see an increase from a missing series.
        drop(metrics.reloads.get_or_create(&ReloadLabels { outcome: "failure" }));
        drop(metrics.upgrades.outcomes.get_or_create(&UpgradeLabels { outcome: "failed" }));
        metrics.with_registry(|registry| {
            registry.register("config_reloads", "Reloads of the configuration, by outcome", metrics.reloads.clone());
            let last = metrics.last_reload_successful.clone();
            registry.register("config_last_reload_successful", "1 if the last reload succeeded, else 0", last);
            let time = metrics.last_reload_success_time.clone();
            registry.register_with_unit(
                "config_last_reload_success_timestamp",
                "Time at which Baton loaded the running configuration, in seconds since 1970",
                Unit::Seconds,
                time,
            );
            metrics.upgrades.register(registry);
            metrics.discovery.register(registry);
            let (held, gains) = (metrics.vip_held.clone(), metrics.vip_gains.clone());
            registry.register("vip_held", "1 while Baton has this address of the built-in VIP on this host", held);
            registry.register("vip_gains", "Times that this host has got the built-in VIP", gains);
            let (duplicate, left) = (metrics.vip_duplicate.clone(), metrics.vip_left_behind.clone());
            registry.register("vip_duplicate", "1 while another host has this address as well", duplicate);
            let help = "1 while this host has the address although the keepalived that added it has ended";
            registry.register("vip_left_behind", help, left);
        });
        metrics
    }
}

impl DiscoveryGauges {
    fn register(&self, registry: &mut Registry) {
        let help = "1 while the source of the frontend's backends fails, and the last valid list stays in force, or while it cannot be watched";
        registry.register("discovery_failing", help, self.failing.clone());
        let help = "Addresses in the last valid list of the frontend's source";
        registry.register("discovery_backends", help, self.backends.clone());
    }
}

impl Upgrades {
    fn register(&self, registry: &mut Registry) {
        registry.register("upgrades", "Upgrades of this process, or to it, by outcome", self.outcomes.clone());
        let imported = self.flows_imported.clone();
        registry.register("upgrade_flows_imported", "Flows imported from the old process in an upgrade", imported);
        let not_moved = self.flows_not_moved.clone();
        registry.register("upgrade_flows_not_moved", "Flows that an upgrade could not move", not_moved);
        let held = self.held_bytes.clone();
        registry.register_with_unit("upgrade_undelivered", "Undelivered bytes imported with flows", Unit::Bytes, held);
        let pause = self.longest_pause_seconds.clone();
        let help = "Longest time in the last upgrade to this process for which neither process served a flow";
        registry.register_with_unit("upgrade_longest_pause", help, Unit::Seconds, pause);
        let took = self.duration_seconds.clone();
        registry.register_with_unit(
            "upgrade_duration",
            "Duration of the last upgrade to this process",
            Unit::Seconds,
            took,
        );
    }
}

impl Metrics {
    /// Lets `use_registry` add collectors or encode.
    pub(crate) fn with_registry<T>(&self, use_registry: impl FnOnce(&mut Registry) -> T) -> T {
        use_registry(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics in a format. It may take as long as the slowest collector.
    pub fn encode(&self, exposition: Exposition) -> Result<Vec<u8>, EncodeError> {
        match exposition {
            Exposition::OpenMetrics => Ok(self.openmetrics()?.into_bytes()),
            Exposition::Text => Ok(exposition::to_prometheus(&self.openmetrics()?).into_bytes()),
            Exposition::Protobuf => {
                let mut messages = self.with_registry(|registry| encode_to_vec(registry))?;
                messages.extend(encode_to_vec(&self.unprefixed)?);
                Ok(messages)
            }
        }
    }

    fn openmetrics(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        self.with_registry(|registry| encode_registry(&mut text, registry))?;
        encode_registry(&mut text, &self.unprefixed)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}
