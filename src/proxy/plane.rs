//! One version of the configuration for the workers: its settings joined with the running backends.

use std::sync::Arc;

use crate::addr::VipAddr;
use crate::config::{self, Config, Frontend, Keepalive, OffloadMode, Target};
use crate::model::offload::OffloadPolicy;
use crate::sys::liveness::SocketTimeouts;
use crate::sys::process::{FILES_PER_FLOW, RESERVED_FILES, file_limit};
use crate::table::backend::{FrontendEntry, NamedBackend, Registry};

/// All frontends of one configuration, and the limits for all of them together.
#[derive(Debug)]
pub(super) struct Plane {
    pub frontends: Vec<Arc<FrontendPlane>>,
    /// Grows with each reconfiguration.
    pub version: u64,
    /// Limit for flows at a time, all frontends together. `None`: no cap.
    pub max_connections: Option<usize>,
    /// Limit for proxied flows at a time: the process has descriptors for so many.
    pub max_proxied: usize,
    /// `None`: every flow stays proxied.
    pub leave: Option<OffloadPolicy>,
}

/// One frontend's settings and backends.
#[derive(Debug)]
pub(super) struct FrontendPlane {
    pub entry: Arc<FrontendEntry>,
    pub settings: Arc<Frontend>,
    pub backends: Vec<Arc<NamedBackend>>,
    pub timeouts: SocketTimeouts,
}

impl Plane {
    /// Joins `config` with the entries of `registry`: makes new entries, and sets weights and caps of all.
    pub(super) fn new(config: &Config, registry: &Registry, version: u64) -> Self {
        let max_proxied = (file_limit().saturating_sub(RESERVED_FILES) / FILES_PER_FLOW) as usize;
        let max_connections = config.process.max_connections.map(|max| max as usize);
        let frontends = config.frontends.iter().map(|settings| {
            let entry = registry.frontend(&settings.name);
            let backends = settings.backends.iter().map(|backend| {
                if let Target::Address(address) = backend.address {
                    // New flows go there from here on; flows at other addresses stay there.
                    registry.lead(&registry.backend_at(&entry, &backend.name, address));
                }
                let named = registry.named(&entry, &backend.name);
                named.current().configure(backend.weight, backend.max_connections);
                named
            });
            Arc::new(FrontendPlane {
                backends: backends.collect(),
                timeouts: timeouts(&settings.keepalive),
                settings: settings.clone(),
                entry,
            })
        });
        let leave = (config.offload.mode != OffloadMode::Off).then_some(OffloadPolicy {
            round_trips: config.offload.after_round_trips,
            after_ns: config.offload.after.as_nanos() as u64,
        });
        Self { frontends: frontends.collect(), version, max_connections, max_proxied, leave }
    }

    /// The frontend that listens on `address`.
    pub(super) fn listening_on(&self, address: VipAddr) -> Option<&Arc<FrontendPlane>> {
        self.frontends.iter().find(|frontend| frontend.settings.listen.contains(&address))
    }

    /// The frontend whose clients connect to `address`, also by a wildcard.
    pub(super) fn serving(&self, address: VipAddr) -> Option<&Arc<FrontendPlane>> {
        let (ip, port) = (address.ip(), address.port());
        let any = |it: &VipAddr| it.ip().is_unspecified() && it.ip().is_ipv4() == ip.is_ipv4() && it.port() == port;
        let by_wildcard = || self.frontends.iter().find(|frontend| frontend.settings.listen.iter().any(any));
        self.listening_on(address).or_else(by_wildcard)
    }
}

impl FrontendPlane {
    /// A frontend that the configuration no longer has: for its last flows.
    pub(super) fn gone(entry: Arc<FrontendEntry>) -> Self {
        let settings = Arc::new(config::frontend_by_default(&entry.name));
        Self { entry, timeouts: timeouts(&settings.keepalive), settings, backends: Vec::new() }
    }
}

/// The tcp(7) options of a configuration.
pub(super) fn timeouts(keepalive: &Keepalive) -> SocketTimeouts {
    SocketTimeouts {
        keepalive_idle: keepalive.idle,
        keepalive_interval: keepalive.interval,
        user_timeout: keepalive.user_timeout,
    }
}
