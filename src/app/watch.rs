//! Reloads the configuration file when its content changes.

use std::path::PathBuf;
use std::sync::Arc;

use super::reload::Reloader;
use crate::config::FileWatch;
use crate::drain::{DrainWatch, LifePhase};

/// Reloads when the bytes behind `path` change, until the instance drains.
pub(super) async fn run(reloader: Arc<Reloader>, path: PathBuf, mut phase: DrainWatch) {
    let mut file = FileWatch::new(path);
    loop {
        tokio::select! {
            () = file.may_have_changed() => {}
            () = phase.reached(LifePhase::Draining) => return,
        }
        reloader.reload_if_changed().await;
    }
}
