//! Names of clients, from the file of `[names]`, and what is said of a source that fails.

use std::sync::Arc;

use tokio::sync::watch;

use crate::config::{Config, FileWatch, NamesInFile, read_names};
use crate::essential::aside;
use crate::model::names::NameMap;
use crate::part::Part;
use crate::table::journal::{Journal, What};
use crate::table::names::{ClientNames, NameSource};

/// Follows one source: passes its names on, and says once that it fails, and once that it works again.
#[derive(Debug)]
pub(super) struct NameFollower {
    names: Part<ClientNames>,
    journal: Part<Journal>,
    source: NameSource,
    /// What was wrong at the last look.
    fault: Option<String>,
}

impl NameFollower {
    pub(super) fn new(names: Part<ClientNames>, journal: Part<Journal>, source: NameSource) -> Self {
        Self { names, journal, source, fault: None }
    }

    /// The source gives these names. It may fail all the same: it cannot tell of changes.
    pub(super) fn learn(&mut self, found: NameMap) {
        self.names.set(self.source.clone(), found);
    }

    /// After an error the last names stay.
    pub(super) fn take(&mut self, found: Result<NameMap, String>) {
        self.take_file(found.map(|names| NamesInFile { names, skipped: None }));
    }

    /// Of a file with lines that are no names, the others count. What is wrong is said once, and so is that nothing is any more.
    fn take_file(&mut self, found: Result<NamesInFile, String>) {
        let fault = match found {
            Ok(NamesInFile { names, skipped }) => {
                self.learn(names);
                skipped
            }
            Err(error) => Some(error),
        };
        if self.fault == fault {
            return;
        }
        let source = match &self.source {
            NameSource::File => "the file of [names]".to_owned(),
            NameSource::ReverseDns => "reverse DNS".to_owned(),
            NameSource::Nodes(frontend) => format!("the nodes of {frontend}'s cluster"),
        };
        self.fault = fault.clone();
        let names = self.names.count(&self.source);
        self.journal.record(match fault {
            Some(error) => What::NamesFailed { source, error, kept: names },
            None => What::NamesRecovered { source, names },
        });
    }
}

/// Follows the file that the configuration names, until it is dropped.
pub(crate) async fn run(names: Part<ClientNames>, journal: Part<Journal>, mut config: watch::Receiver<Arc<Config>>) {
    let mut follower = NameFollower::new(names, journal, NameSource::File);
    loop {
        let path = config.borrow_and_update().names.file.clone();
        let Some(path) = path else {
            follower.take(Ok(NameMap::new()));
            if config.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut watch = FileWatch::new(path.clone());
        loop {
            let read = path.clone();
            // `None`: the runtime is shutting down.
            let Some(found) = aside(move || read_names(&read)).await else { return };
            follower.take_file(found);
            tokio::select! {
                () = watch.may_have_changed() => {}
                changed = config.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if config.borrow_and_update().names.file.as_ref() != Some(&path) {
                        break;
                    }
                }
            }
        }
    }
}
