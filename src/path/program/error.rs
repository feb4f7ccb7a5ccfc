//! Why the path cannot be opened, or a flow not be entered.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no path. Each says what mends it; without a path every flow stays proxied.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("this build has no program for the path")]
    NotSupported,
    #[error("{path}: {source}", path = .path.display())]
    Directory { path: PathBuf, source: io::Error },
}

/// Why a flow was not entered; it stays proxied.
#[derive(Debug, Error)]
pub enum InstallError {
    /// Neither direction was entered.
    #[error("the map of graduated flows is full")]
    Full,
    /// An older flow with these addresses has not been removed yet.
    #[error("an entry with these addresses is still there")]
    Exists,
    #[error("entering a flow: {0}")]
    Io(#[from] io::Error),
}
