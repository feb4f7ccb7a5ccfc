//! The results of probes.

use std::fmt;

use crate::model::health::Cause;

/// How one probe ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    Passed,
    /// It answered with this status.
    NotReady {
        status: u16,
    },
    Failed(Cause),
    /// This host could not probe (no descriptor, no port): it says nothing of the backend.
    Inconclusive {
        error: String,
    },
}

impl ProbeOutcome {
    /// The `outcome` label of metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::NotReady { .. } => "not_ready",
            Self::Failed(cause) => cause.label(),
            Self::Inconclusive { .. } => "inconclusive",
        }
    }
}

impl fmt::Display for ProbeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => write!(f, "passed"),
            Self::NotReady { status } => write!(f, "answered {status}"),
            Self::Failed(cause) => write!(f, "{cause}"),
            Self::Inconclusive { error } => write!(f, "this host cannot probe: {error}"),
        }
    }
}
