//! A wait that may have no end.

use std::time::Duration;

/// Ends after `time`; without one, never.
pub(crate) async fn pause(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
