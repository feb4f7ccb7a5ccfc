//! The health of one backend: its types here, its rules in [`machine`].

pub(crate) mod doubt;
pub(crate) mod machine;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::BackendAddr;
use crate::model::humane::duration_ms;

/// The health state of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Takes new flows.
    Ready,
    /// Gets no new flows while another is ready, and keeps its flows until the drain deadline.
    Draining,
    /// Gets no new flows; its flows are reset.
    Ejected,
}

impl HealthState {
    pub(crate) const ALL: [HealthState; 3] = [Self::Ready, Self::Draining, Self::Ejected];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
        }
    }
}

/// An operator's order for one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No new flows; the existing ones stay until the drain deadline.
    Drain,
    /// The probes decide again.
    Undrain,
    /// No new flows; the existing ones are reset.
    Eject,
}

/// The state of a backend's health that passes to another process. Times are monotonic nanoseconds of the same host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedBackend {
    pub frontend: String,
    pub backend: String,
    /// Its address when the state was learnt.
    pub address: Option<BackendAddr>,
    pub machine: machine::Saved,
    pub ramp_start_ns: u64,
    pub ramp_ns: u64,
    pub last_probe: Option<String>,
    pub last_probe_us: u64,
    /// Number of its flows. `None`: an earlier release does not send it.
    #[serde(default)]
    pub flows: Option<u32>,
    /// How long its flows may go on while it drains. `None`: an earlier release does not send it.
    #[serde(default)]
    pub drain_timeout_ns: Option<u64>,
    /// Whether its name has another address by now.
    #[serde(default)]
    pub former: bool,
}

/// Why a backend gets no flows for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dismissal {
    /// The configuration no longer has it.
    Backend,
    /// Nor does it have its frontend.
    Frontend,
    /// Its name has another address.
    Address,
}

/// The cause of a backend's health state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// No probe has ended yet.
    NotProbed,
    /// Enough probes in a row passed.
    Passed,
    /// The probe was answered with this status: the process runs but is not ready.
    NotReady {
        status: u16,
    },
    /// Probes time out while its flows still move bytes: the backend is slow, not dead.
    Slow,
    /// As slow, or refused, though its flows have moved bytes since the refusal before; and neither a probe nor a flow got a connection: something
    /// drops or rejects what begins one, and new flows fail.
    NoConnection,
    Refused,
    Reset,
    Unreachable {
        error: String,
    },
    TimedOut {
        after_ms: u64,
    },
    /// The TLS handshake failed; the text names the certificate's fault if there is one.
    Tls {
        error: String,
    },
    /// The answer is not of the probe's protocol: not TLS, not HTTP, or nothing before a FIN.
    Protocol {
        error: String,
    },
    /// Its name does not resolve.
    Unresolved {
        error: String,
    },
    /// It flaps, so it is not ready yet.
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
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::NotProbed => "not_probed",
            Self::Passed => "passed",
            Self::NotReady { .. } => "not_ready",
            Self::Slow => "slow",
            Self::NoConnection => "no_connection",
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
            Self::NoConnection => {
                write!(f, "its flows move bytes, yet neither a probe nor a new flow gets a connection to it from here")
            }
            Self::Refused => write!(f, "connection refused"),
            Self::Reset => write!(f, "connection reset"),
            Self::Unreachable { error } => write!(f, "unreachable: {error}"),
            Self::TimedOut { after_ms } => write!(f, "no answer within {}", duration_ms(*after_ms)),
            Self::Tls { error } => write!(f, "TLS: {error}"),
            Self::Protocol { error } => write!(f, "wrong protocol: {error}"),
            Self::Unresolved { error } => write!(f, "name does not resolve: {error}"),
            Self::Damped => write!(f, "flapping: held back until it has been stable"),
            Self::OrderedDrain => write!(f, "drained by an operator"),
            Self::OrderedEject => write!(f, "ejected by an operator"),
            Self::Removed => write!(f, "neither the configuration nor a source lists it any more"),
            Self::Readdressed => write!(f, "removed: the backend has another address now"),
        }
    }
}
