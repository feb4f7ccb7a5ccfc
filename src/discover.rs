//! Finds the backends of frontends that name a source for them: a task per frontend, whose results go to `app`.
//!
//! ```text
//!   [frontend.discover] ──▶ run ──▶ follow (one per frontend) ── a look: addresses, or an error ──▶ app
//!                                   first: what is known before the first look ◀── the last set, on disk
//! ```
//! A look decides nothing: `model::discover` says what it changes.

mod cache;
mod dns;
mod file;
mod kubernetes;
pub(crate) mod names;
pub(crate) mod reverse;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

pub(crate) use cache::write as write_cache;

use crate::config::{Config, Discover, DiscoverSource, read_list};
use crate::essential::{Tasks, aside};
use crate::model::discover::{AddressSet, valid};
use crate::model::names::NameMap;
use crate::part::Part;
use crate::table::backend::Registry;
use crate::table::journal::Journal;
use crate::table::names::{ClientNames, NameSource};
use names::NameFollower;

/// The result of one look at a frontend's source.
#[derive(Debug)]
pub(crate) struct SourceLook {
    pub frontend: Arc<str>,
    /// The source's name for events.
    pub source: String,
    pub found: Result<AddressSet, String>,
    /// Why changes of a list that is valid come late: it cannot be watched.
    pub unwatched: Option<String>,
}

/// The end of a task's channel.
#[derive(Clone, Debug)]
struct LookSender {
    frontend: Arc<str>,
    source: String,
    looks: mpsc::Sender<SourceLook>,
}

/// Reads `bytes` as a list of EndpointSlices or of nodes, and then as events of its watch, a line each.
#[cfg(fuzzing)]
pub(crate) fn read_any(bytes: &[u8]) {
    kubernetes::read_any(bytes);
}

/// Reads `bytes` as a message of DNS (RFC 1035, section 4).
#[cfg(fuzzing)]
pub(crate) fn read_any_answer(bytes: &[u8]) {
    dns::read_any(bytes);
}

impl LookSender {
    async fn send(&self, found: Result<AddressSet, String>) {
        self.send_unwatched(found, None).await;
    }

    async fn send_unwatched(&self, found: Result<AddressSet, String>, unwatched: Option<String>) {
        let (frontend, source) = (self.frontend.clone(), self.source.clone());
        // An error means that the instance ends.
        let _ = self.looks.send(SourceLook { frontend, source, found, unwatched }).await;
    }
}

/// The parts of the table that discovery may touch.
#[derive(Clone, Debug)]
pub(crate) struct DiscoverParts {
    /// To find an apiserver to ask.
    pub registry: Part<Registry>,
    pub names: Part<ClientNames>,
    pub journal: Part<Journal>,
}

/// Looks at the source of each frontend of `config`, now and after each reload, until it is dropped.
pub(crate) async fn run(
    parts: DiscoverParts,
    mut config: watch::Receiver<Arc<Config>>,
    looks: mpsc::Sender<SourceLook>,
) {
    let mut running: HashMap<Arc<str>, (DiscoverSource, Tasks)> = HashMap::new();
    loop {
        let now = config.borrow_and_update().clone();
        let sources = now.frontends.iter().filter_map(|it| Some((&it.name, &it.discover.as_ref()?.source)));
        let sources: HashMap<_, _> = sources.collect();
        running.retain(|name, (source, _)| {
            let stays = sources.get(name).is_some_and(|wanted| *wanted == source);
            if !stays {
                parts.names.set(NameSource::Nodes(name.clone()), NameMap::new());
            }
            stays
        });
        for (name, source) in sources {
            if running.contains_key(name) {
                continue;
            }
            let sender = LookSender { frontend: name.clone(), source: source.label(), looks: looks.clone() };
            let tasks = Tasks::default();
            if let DiscoverSource::Kubernetes(source) = source {
                let DiscoverParts { registry, names, journal } = parts.clone();
                let follower = NameFollower::new(names, journal, NameSource::Nodes(name.clone()));
                let nodes = kubernetes::follow_nodes(source.clone(), registry, name.clone(), follower);
                tasks.spawn("names of nodes", nodes);
            }
            tasks.spawn("discovery", follow(source.clone(), parts.registry.clone(), sender));
            running.insert(name.clone(), (source.clone(), tasks));
        }
        if config.changed().await.is_err() {
            return;
        }
    }
}

async fn follow(source: DiscoverSource, registry: Part<Registry>, looks: LookSender) {
    match source {
        DiscoverSource::File { path } => file::follow(path, looks).await,
        DiscoverSource::Dns(source) => dns::follow(source, looks).await,
        DiscoverSource::Kubernetes(source) => kubernetes::follow(source, registry, looks).await,
    }
}

/// The set that a frontend begins with: that of the source if it answers at once, else the last one that was kept.
pub(crate) async fn first(discover: &Discover) -> Option<AddressSet> {
    let (source, cache_file) = (discover.source.clone(), discover.cache_file.clone());
    let known = move || {
        let listed = match &source {
            DiscoverSource::File { path } => read_list(path).and_then(valid).ok(),
            DiscoverSource::Dns(_) | DiscoverSource::Kubernetes(_) => None,
        };
        listed.or_else(|| cache::read(&cache_file, &source.label()))
    };
    match (aside(known).await.flatten(), &discover.source) {
        (None, DiscoverSource::Dns(source)) => dns::first(source).await,
        (known, _) => known,
    }
}
