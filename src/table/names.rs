//! The names of clients, from each source that has some.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::model::names::NameMap;

/// Written by those who follow a source, read for each flow that is shown.
#[derive(Debug, Default)]
pub struct ClientNames {
    sources: Mutex<BTreeMap<NameSource, NameMap>>,
    all: ArcSwap<NameMap>,
}

/// In the order of their weight: what an operator writes counts more than what the cluster says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameSource {
    /// The nodes of the cluster that has the backends of this frontend.
    Nodes(Arc<str>),
    File,
}

impl ClientNames {
    pub(crate) fn of(&self, client: IpAddr) -> Option<Arc<str>> {
        self.all.load().get(&client.to_canonical()).cloned()
    }

    /// All names of now.
    pub(crate) fn all(&self) -> Arc<NameMap> {
        self.all.load_full()
    }

    /// The source has these names from now on, and no others. Returns whether anything has changed.
    pub(crate) fn set(&self, source: NameSource, names: NameMap) -> bool {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if sources.get(&source).map_or(names.is_empty(), |before| *before == names) {
            return false;
        }
        sources.insert(source, names);
        let all = sources.values().flatten().map(|(ip, name)| (*ip, name.clone())).collect();
        self.all.store(Arc::new(all));
        true
    }

    /// How many the source has.
    pub(crate) fn count(&self, source: &NameSource) -> usize {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.get(source).map_or(0, NameMap::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_counts_more_than_the_cluster_and_a_source_that_ends_takes_its_names_with_it() {
        let names = ClientNames::default();
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let of = |all: &[(u8, &str)]| all.iter().map(|(last, name)| (ip(*last), Arc::from(*name))).collect::<NameMap>();
        let nodes = NameSource::Nodes("apiserver".into());
        assert!(names.set(NameSource::File, of(&[(7, "rack-3")])));
        assert!(names.set(nodes.clone(), of(&[(7, "worker-7"), (8, "worker-8")])));
        assert!(!names.set(nodes.clone(), of(&[(8, "worker-8"), (7, "worker-7")])), "nothing has changed");
        let name = |last| names.of(ip(last)).map(|name| name.to_string());
        assert_eq!([name(7), name(8)], [Some("rack-3".to_owned()), Some("worker-8".to_owned())]);
        assert_eq!(names.of("::ffff:10.0.0.8".parse().unwrap()).as_deref(), Some("worker-8"));
        names.set(NameSource::File, NameMap::new());
        assert_eq!((name(7).as_deref(), names.count(&nodes)), (Some("worker-7"), 2));
        names.set(nodes, NameMap::new());
        assert_eq!(name(8), None);
    }
}
