//! The settings that decide about backends and flows, as the recorder's files and the admin socket tell them.

use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Config, ProbeKind, RebalanceWhen, reset_after_silence};
use crate::sys::clock::unix_ms;

/// The process that wrote a file, and the settings that its decisions follow from here on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FileOwner {
    pub version: String,
    pub pid: u32,
    /// About when it began, ms since 1970; 0: an earlier version wrote it. Each process of a container may have the pid 1.
    pub began_unix_ms: u64,
    /// Among its peers; `None`: it has no name.
    pub instance: Option<String>,
    pub host: String,
    pub reset_within_ms: u64,
    pub lease_renew_ms: u64,
    /// A node that renews nothing for longer is NotReady; 0: an earlier release recorded it.
    pub node_grace_ms: u64,
    pub frontends: Vec<FrontendSettings>,
}

/// The settings of a frontend that decide about backends and flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FrontendSettings {
    pub name: String,
    /// As the file has it: `tcp`, `https`.
    pub probe: String,
    pub interval_ms: u64,
    pub fast_interval_ms: u64,
    pub timeout_ms: u64,
    pub rise: u32,
    pub fall: u32,
    pub reset_fall: u32,
    pub connect_timeout_ms: u64,
    pub drain_timeout_ms: u64,
    /// `None`: no such limit.
    pub idle_timeout_ms: Option<u64>,
    /// The longest time from a backend's silence to the last RST to its clients.
    pub reset_after_silence_ms: u64,
    /// As the file has it: `after_outage`.
    pub rebalance_when: String,
    /// `None`: no such limit.
    pub max_connections: Option<u32>,
    pub max_connections_per_source: Option<u32>,
    /// For which a client's PROXY header may take. `None`: an earlier release recorded it.
    pub proxy_header_timeout_ms: Option<u64>,
}

/// Of this process's first configuration.
static BEGAN_UNIX_MS: LazyLock<u64> = LazyLock::new(unix_ms);

impl FileOwner {
    /// Whether both may be of one instance: another one may have the same directory.
    pub(crate) fn is_same_instance(&self, other: &Self) -> bool {
        match (&self.instance, &other.instance) {
            (Some(own), Some(its)) => own == its,
            _ => true,
        }
    }

    /// Whether the same process wrote both, with whatever settings.
    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        (self.pid, self.began_unix_ms, &self.host) == (other.pid, other.began_unix_ms, &other.host)
    }

    /// This process, with its present configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let ms = |duration: Duration| duration.as_millis() as u64;
        let frontends = config.frontends.iter().map(|it| FrontendSettings {
            name: it.name.to_string(),
            probe: match it.health.kind {
                ProbeKind::Tcp => "tcp",
                ProbeKind::Tls => "tls",
                ProbeKind::Http => "http",
                ProbeKind::Https => "https",
            }
            .to_owned(),
            interval_ms: ms(it.health.interval),
            fast_interval_ms: ms(it.health.fast_interval),
            timeout_ms: ms(it.health.timeout),
            rise: it.health.rise,
            fall: it.health.fall,
            reset_fall: it.health.reset_fall,
            connect_timeout_ms: ms(it.connect_timeout),
            drain_timeout_ms: ms(it.drain_timeout),
            idle_timeout_ms: it.idle_timeout.map(ms),
            reset_after_silence_ms: ms(reset_after_silence(&it.health, config.process.reset_within)),
            rebalance_when: match it.rebalance.when {
                RebalanceWhen::AfterOutage => "after_outage",
                RebalanceWhen::Always => "always",
                RebalanceWhen::Ordered => "ordered",
            }
            .to_owned(),
            max_connections: it.limits.max_connections,
            max_connections_per_source: it.limits.max_connections_per_source,
            proxy_header_timeout_ms: Some(ms(it.proxy_protocol.header_timeout)),
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            began_unix_ms: *BEGAN_UNIX_MS,
            instance: config.name().map(ToString::to_string),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            reset_within_ms: ms(config.process.reset_within),
            lease_renew_ms: ms(config.cluster.lease_renew),
            node_grace_ms: ms(config.cluster.node_monitor_grace_period),
            frontends: frontends.collect(),
        }
    }
}
