//! What the process may use.

use std::num::NonZero;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of file descriptors to the hard limit and returns it.
pub fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    file_limit()
}

/// The soft limit of file descriptors now.
pub fn file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Cores that the process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
