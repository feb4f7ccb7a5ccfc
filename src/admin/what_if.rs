//! Questions and answers of `baton what-if`.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::what_if::{FlowFates, Happening};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhatIfRequest {
    /// An instance, a backend, or all backends; see [`WhatIfFailed::Unknown`].
    pub subject: String,
    pub happens: Happening,
}

/// What would happen. Only flows of the instance that would die are counted; of a backend, those of the instance that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfReport {
    /// `apiserver/cp2`, `lb-a`, `all 3 backends`.
    pub subject: String,
    pub happens: Happening,
    /// The flows that are counted.
    pub flows: u64,
    /// Those of the subject.
    pub of_subject: u64,
    /// Number of addresses that these come from. `None`: they are a peer's, and not known.
    pub clients: Option<u64>,
    /// Until a node is NotReady.
    pub grace_period_ms: u64,
    /// One for each way in which it may happen.
    pub cases: Vec<WhatIfCase>,
    /// What else one should know, one sentence each.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfCase {
    /// As `baton check` calls it.
    pub fault: String,
    /// `None`: the flows are not known.
    #[serde(flatten)]
    pub fates: Option<FlowFates>,
    /// Time until the last of the resets has had its turn; 0: all at once.
    pub resets_over_ms: u64,
    pub gap: ExpectedGap,
}

/// The longest time without a heartbeat that a node can see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedGap {
    /// Their sum.
    Decided(Vec<GapSetting>),
    /// For this reason.
    Unknown(String),
}

/// A part of the gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapSetting {
    pub lasts_ms: u64,
    /// The setting that decides it, or in words what is fixed.
    pub setting: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum WhatIfFailed {
    #[error("there is no backend and no instance {asked:?}; allowed: {}", .allowed.join(", "))]
    Unknown { asked: String, allowed: Vec<String> },
    #[error("{asked:?} is not one thing only; say one of {}", .matches.join(", "))]
    Ambiguous { asked: String, matches: Vec<String> },
    #[error(
        "what-if {subject} restarts: Baton keeps flows when an instance restarts by baton upgrade; allowed: what-if {subject} dies"
    )]
    InstanceRestarts { subject: String },
}

impl ExpectedGap {
    /// `None`: not known.
    pub(crate) fn lasts_ms(&self) -> Option<u64> {
        match self {
            Self::Decided(parts) => Some(parts.iter().map(|part| part.lasts_ms).sum()),
            Self::Unknown(_) => None,
        }
    }
}
