//! The source "file": an address a line.

use std::path::PathBuf;

use super::LookSender;
use crate::config::{FileWatch, read_list};
use crate::essential::aside;

/// Looks at the file, again each time it may have changed.
pub(super) async fn follow(path: PathBuf, looks: LookSender) {
    let mut watch = FileWatch::new(path.clone());
    loop {
        let path = path.clone();
        // `None`: the runtime is shutting down.
        let Some(found) = aside(move || read_list(&path)).await else { return };
        looks.send(found).await;
        watch.may_have_changed().await;
    }
}
