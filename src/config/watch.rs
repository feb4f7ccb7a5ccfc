//! Notices that a file that an operator named has changed, also when it is reached through symbolic links that are swapped, as Kubernetes
//! does with mounted ConfigMaps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// The file is read when it has not changed for so long: editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// But no later than this: other files in its folder may change all the time.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(2);

/// The file is compared this often even without a notification: a watch is lost with its folder.
const COMPARE_EVERY: Duration = Duration::from_secs(10);

/// Watches one file.
#[derive(Debug)]
pub(crate) struct FileWatch {
    path: PathBuf,
    changed: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
}

impl FileWatch {
    pub(crate) fn new(path: PathBuf) -> Self {
        let mut watch = Self { path, changed: Arc::default(), watcher: None };
        watch.watch();
        watch
    }

    /// Returns when the file may have changed and is no longer being written, and at intervals in any case: the caller compares it.
    pub(crate) async fn may_have_changed(&mut self) {
        // Made anew each time, because a swapped link leads to another folder.
        self.watch();
        let _ = tokio::time::timeout(COMPARE_EVERY, self.changed.notified()).await;
        let quiet = async { while tokio::time::timeout(QUIET, self.changed.notified()).await.is_ok() {} };
        let _ = tokio::time::timeout(QUIET_WAIT_MAX, quiet).await;
    }

    fn watch(&mut self) {
        self.watcher = match watch_folders(&self.path, self.changed.clone()) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot watch the file with inotify; Baton compares its contents at intervals instead");
                None
            }
        };
    }
}

/// Watches the folder of every link on the way from `path` to the file.
fn watch_folders(path: &Path, changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if event.is_err() || event.is_ok_and(|event| may_change(event.kind)) {
            changed.notify_one();
        }
    })?;
    let mut step = path.to_owned();
    for number in 0..LINKS_MAX {
        if let Some(folder) = step.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                // A link may lead to where nothing is for now.
                Err(error) if number > 0 => {
                    tracing::debug!(folder = %folder.display(), %error, "cannot watch a folder")
                }
                watched => watched?,
            }
        }
        match std::fs::read_link(&step) {
            Ok(target) => step = step.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => break,
        }
    }
    if let Some(folder) = std::fs::canonicalize(path).ok().as_deref().and_then(Path::parent) {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

/// Whether the event can mean a change. Comparing the file reads it: if reads counted as changes, each would cause the
/// next comparison.
fn may_change(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(AccessKind::Close(AccessMode::Write))) || !kind.is_access()
}

/// As the kernel's own bound on links in a path (path_resolution(7)).
const LINKS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: an idle instance read its configuration, and made a watch, three times a second.
    #[tokio::test]
    async fn reading_the_file_is_not_a_change_and_writing_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baton.toml");
        std::fs::write(&path, "a").unwrap();
        let changed = Arc::new(Notify::new());
        let _watch = watch_folders(&path, changed.clone()).unwrap();
        std::fs::read(&path).unwrap();
        assert!(tokio::time::timeout(QUIET, changed.notified()).await.is_err());
        std::fs::write(&path, "b").unwrap();
        tokio::time::timeout(COMPARE_EVERY, changed.notified()).await.unwrap();
    }

    /// Regression: a link to a folder that was gone for a moment made each later change wait for ten seconds.
    #[tokio::test]
    async fn a_link_that_leads_nowhere_is_watched_where_it_stands() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        std::os::unix::fs::symlink(folder.path().join("gone/list"), &path).unwrap();
        let changed = Arc::new(Notify::new());
        let _watch = watch_folders(&path, changed.clone()).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a").unwrap();
        tokio::time::timeout(COMPARE_EVERY, changed.notified()).await.unwrap();
    }
}
