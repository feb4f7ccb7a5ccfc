//! The names of clients, from each source that has some.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::model::names::NameMap;

/// Written by those who follow a source, read for each flow that is shown.
#[derive(Debug, Default)]
pub struct ClientNames {
    sources: Mutex<BTreeMap<NameSource, NameMap>>,
    all: ArcSwap<NameMap>,
    nodes: ArcSwap<ListedNodes>,
}

/// The nodes of the cluster, as far as a source lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedNodes {
    /// Of each of their addresses.
    pub by_address: NameMap,
    /// `None`: no source lists nodes.
    pub source: Option<NodeListSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeListSource {
    Cluster,
    /// The file of `[names]`, if the cluster lists none.
    File,
}

impl NodeListSource {
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Cluster => "the cluster's list",
            Self::File => "the file of [names]",
        }
    }
}

/// In the order of their weight: what an operator writes counts more than what the cluster says, and that more than reverse DNS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameSource {
    ReverseDns,
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

    /// The nodes of now.
    pub(crate) fn nodes(&self) -> Arc<ListedNodes> {
        self.nodes.load_full()
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
        self.nodes.store(Arc::new(ListedNodes::of(&sources)));
        true
    }

    /// How many the source has.
    pub(crate) fn count(&self, source: &NameSource) -> usize {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.get(source).map_or(0, NameMap::len)
    }
}

impl ListedNodes {
    fn of(sources: &BTreeMap<NameSource, NameMap>) -> Self {
        let of_source = |which: fn(&NameSource) -> bool| -> NameMap {
            let all = sources.iter().filter(|(source, _)| which(source)).flat_map(|(_, names)| names);
            all.map(|(ip, name)| (*ip, name.clone())).collect()
        };
        let listed = of_source(|source| matches!(source, NameSource::Nodes(_)));
        if !listed.is_empty() {
            return Self { by_address: listed, source: Some(NodeListSource::Cluster) };
        }
        let named = of_source(|source| *source == NameSource::File);
        let source = (!named.is_empty()).then_some(NodeListSource::File);
        Self { by_address: named, source }
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
        names.set(NameSource::ReverseDns, of(&[(7, "dns-7"), (8, "dns-8")]));
        assert_eq!([name(7), name(8)], [Some("worker-7".to_owned()), Some("worker-8".to_owned())]);
        names.set(nodes, NameMap::new());
        assert_eq!(name(8).as_deref(), Some("dns-8"));
        assert!(names.nodes().source.is_none(), "it lists no nodes");
        names.set(NameSource::ReverseDns, NameMap::new());
        assert_eq!(name(8), None);
    }

    #[test]
    fn the_nodes_are_the_cluster_s_or_those_of_the_file_and_the_file_renames_none_of_them() {
        let names = ClientNames::default();
        let of = |ip: [u8; 4], name: &str| NameMap::from([(IpAddr::from(ip), Arc::from(name))]);
        let listed = || {
            let list = names.nodes();
            let mut all: Vec<_> = list.by_address.values().map(|name| name.to_string()).collect();
            all.sort();
            (list.source, all.join(" "))
        };
        assert_eq!(listed(), (None, String::new()));
        names.set(NameSource::File, of([10, 0, 0, 7], "rack-3"));
        assert_eq!(listed(), (Some(NodeListSource::File), "rack-3".to_owned()));
        let cluster = |frontend: &str| NameSource::Nodes(frontend.into());
        names.set(cluster("a"), of([10, 0, 0, 7], "worker-7"));
        names.set(cluster("b"), of([10, 0, 1, 7], "other-7"));
        assert_eq!(listed(), (Some(NodeListSource::Cluster), "other-7 worker-7".to_owned()));
        assert!(["a", "b"].iter().all(|frontend| names.set(cluster(frontend), NameMap::new())));
        assert_eq!(listed(), (Some(NodeListSource::File), "rack-3".to_owned()));
    }
}
