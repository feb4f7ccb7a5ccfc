//! What limits and balancing remember, on its way to another process.
//!
//! Names stand for ids, which are each process's own. Times are monotonic nanoseconds, of the same host.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What the data plane knows besides its flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CarriedCounters {
    pub frontends: Vec<FrontendLoad>,
    pub sources: Vec<SavedSource>,
    /// Sources that are not among them, for there are too many.
    pub sources_left_out: u64,
    pub turns: Vec<SavedTurns>,
}

/// How many flows a frontend has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontendLoad {
    pub name: String,
    pub flows: u32,
}

/// How near to its limits one source network is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSource {
    pub frontend: String,
    /// Its lowest address.
    pub network: IpAddr,
    pub flows: u32,
    /// Of accepts; `None`: it is full.
    pub bucket: Option<SavedBucket>,
}

/// How full a token bucket was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBucket {
    /// In billionths of a token.
    pub level: u64,
    pub at_ns: u64,
}

/// Whose turn it is, in one worker and for one frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTurns {
    pub worker: usize,
    pub frontend: String,
    /// By the backend's name.
    pub credits: Vec<(String, i64)>,
}
