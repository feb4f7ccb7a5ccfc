//! The health of one backend: its words here, its rules in [`machine`].

mod damping;
pub mod doubt;
pub mod machine;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::BackendAddr;

/// What a backend is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Takes new flows.
    Ready,
    /// Takes none while another is ready, keeps what it has until the drain deadline.
    Draining,
    /// Takes none; its flows are reset.
    Ejected,
}

impl HealthState {
    pub const ALL: [HealthState; 3] = [Self::Ready, Self::Draining, Self::Ejected];

    pub fn label(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
        }
    }
}

/// What an operator may order for one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Take no new flows, keep the old ones until the drain deadline.
    Drain,
    /// Back to what the probes say.
    Undrain,
    /// Take no new flows and reset the old ones.
    Eject,
}

/// What one process tells another of a backend's health. Times are monotonic nanoseconds, of the same host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedBackend {
    pub frontend: String,
    pub backend: String,
    /// Where it was when this was learnt.
    pub address: Option<BackendAddr>,
    pub machine: machine::Saved,
    pub ramp_start_ns: u64,
    pub ramp_ns: u64,
    pub last_probe: Option<String>,
    pub last_probe_us: u64,
    /// Flows that it has. `None`: an earlier release does not say.
    #[serde(default)]
    pub flows: Option<u32>,
    /// How long its flows may live on while it drains. `None`: an earlier release does not say.
    #[serde(default)]
    pub drain_timeout_ns: Option<u64>,
    /// Its name has another address by now.
    #[serde(default)]
    pub former: bool,
}

/// Why a backend gets no flows for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// The configuration has it no more.
    Backend,
    /// Nor its frontend.
    Frontend,
    /// It has another address.
    Address,
}

/// Why a backend has the health state it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// No probe has ended yet.
    NotProbed,
    /// Enough probes in a row passed.
    Passed,
    /// The probe was answered with this status: the process lives and says that it is not ready.
    NotReady {
        status: u16,
    },
    /// Probes time out while its flows still move bytes: slow, not dead.
    Slow,
    Refused,
    Reset,
    Unreachable {
        error: String,
    },
    TimedOut {
        after_ms: u64,
    },
    /// It speaks TLS, but the handshake failed; the text names the certificate's fault if there is one.
    Tls {
        error: String,
    },
    /// What came back is not what the probe speaks: not TLS, not HTTP, or nothing before a FIN.
    Protocol {
        error: String,
    },
    /// Its name does not resolve.
    Unresolved {
        error: String,
    },
    /// It flaps and is held back.
    Damped,
    OrderedDrain,
    OrderedEject,
    /// A reload removed it from the configuration.
    Removed,
    /// Its name has another address.
    Readdressed,
}

impl Cause {
    /// The name in the `outcome` label of probe metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotProbed => "not_probed",
            Self::Passed => "passed",
            Self::NotReady { .. } => "not_ready",
            Self::Slow => "slow",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Unreachable { .. } => "unreachable",
            Self::TimedOut { .. } => "timed_out",
            Self::Tls { .. } => "tls",
            Self::Protocol { .. } => "protocol",
            Self::Unresolved { .. } => "unresolved",
            Self::Damped => "damped",
            Self::OrderedDrain => "ordered_drain",
            Self::OrderedEject => "ordered_eject",
            Self::Removed => "removed",
            Self::Readdressed => "readdressed",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotProbed => write!(f, "not probed yet"),
            Self::Passed => write!(f, "probes pass"),
            Self::NotReady { status } => write!(f, "probe answered {status}"),
            Self::Slow => write!(f, "probes time out, yet its flows move bytes: slow, not dead"),
            Self::Refused => write!(f, "connection refused"),
            Self::Reset => write!(f, "connection reset"),
            Self::Unreachable { error } => write!(f, "unreachable: {error}"),
            Self::TimedOut { after_ms } => write!(f, "no answer within {after_ms} ms"),
            Self::Tls { error } => write!(f, "TLS: {error}"),
            Self::Protocol { error } => write!(f, "wrong protocol: {error}"),
            Self::Unresolved { error } => write!(f, "name does not resolve: {error}"),
            Self::Damped => write!(f, "flapping: held back until it has been stable"),
            Self::OrderedDrain => write!(f, "drained by an operator"),
            Self::OrderedEject => write!(f, "ejected by an operator"),
            Self::Removed => write!(f, "removed from the configuration"),
            Self::Readdressed => write!(f, "removed: the backend has another address now"),
        }
    }
}
