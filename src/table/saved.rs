//! Counters of limits and balancing that pass to another process.
//!
//! Names replace ids, which differ between processes. Times are monotonic nanoseconds of the same host.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The state of the data plane besides its flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedCounters {
    pub frontends: Vec<FrontendLoad>,
    pub sources: Vec<SavedSource>,
    /// Number of sources that are left out, because there are too many.
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

/// A source network's counts towards its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSource {
    pub frontend: String,
    /// Its lowest address.
    pub network: IpAddr,
    pub flows: u32,
    /// The bucket of its accepts; `None`: it is full.
    pub bucket: Option<SavedBucket>,
}

/// The level of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBucket {
    /// In billionths of a token.
    pub level: u64,
    pub at_ns: u64,
}

/// The state of the rotation in one worker, for one frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTurns {
    pub worker: usize,
    pub frontend: String,
    /// By the backend's name.
    pub credits: Vec<(String, i64)>,
}
