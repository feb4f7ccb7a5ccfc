//! The names of the cluster's nodes, by list and watch of /api/v1/nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::client::{Answered, ApiClient, RETRY, WatchFault, shown, watch_event};
use crate::addr::BackendAddr;
use crate::discover::names::NameFollower;
use crate::model::names::{NameMap, node_name};

const NODES: &str = "/api/v1/nodes";

/// Nodes of one answer: each has some ten kB, most of it images.
const PAGE: usize = 100;
const PAGE_BYTES_MAX: usize = 16 << 20;
const LIST_MAX: Duration = Duration::from_secs(60);

/// As many as Kubernetes supports, and more.
const NODES_MAX: usize = 20_000;

/// Without the right to list or to watch them, rights are not tried again and again: the list of a large cluster has tens of MB.
const FORBIDDEN_RETRY: Duration = Duration::from_secs(300);
/// The right that is missing if they can be listed only (docs/discovery.md).
const ROLE: &str = "the ClusterRole needs the verb watch for nodes: verbs: [list, watch]";

/// Reads `list` as a page of nodes, and `events` as lines of its watch.
#[cfg(fuzzing)]
pub(super) fn read_any(list: &[u8], events: &[u8]) {
    let mut nodes = Nodes::default();
    if nodes.add_page(list).is_err() {
        return;
    }
    for line in events.split(|byte| *byte == b'\n') {
        let before = nodes.by_name.clone();
        match nodes.apply(line) {
            Ok(has_changed) => assert_eq!(has_changed, nodes.by_name != before),
            Err(_) => assert_eq!(nodes.by_name, before),
        }
    }
    for (ip, name) in nodes.names() {
        assert!(ip == ip.to_canonical() && node_name(&name).is_some(), "{ip} {name:?}");
    }
}

/// Lists and watches until it is dropped.
pub(super) async fn follow(client: ApiClient, mut follower: NameFollower) {
    loop {
        let mut errors = Vec::new();
        let (mut has_listed, mut is_forbidden) = (false, false);
        for server in client.servers(0) {
            match list(&client, server).await {
                Ok(nodes) => {
                    has_listed = true;
                    if let WatchFault::Forbidden(error) = follow_at(&client, server, nodes, &mut follower).await {
                        follower.take(Err(format!("{error}; {ROLE}")));
                        is_forbidden = true;
                    }
                    break;
                }
                Err(error) => errors.push(error),
            }
        }
        if !has_listed && !errors.is_empty() {
            is_forbidden = errors.iter().all(|error| error.starts_with("403 "));
            errors.sort();
            errors.dedup();
            follower.take(Err(errors.join("; ")));
        }
        sleep(if is_forbidden { FORBIDDEN_RETRY } else { RETRY }).await;
    }
}

async fn list(client: &ApiClient, server: BackendAddr) -> Result<Nodes, String> {
    let listed = async {
        let (mut nodes, mut after) = (Nodes::default(), String::new());
        loop {
            let Answered { response, _connection } =
                client.get(server, &format!("{NODES}?limit={PAGE}{after}")).await?;
            let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
            match nodes.add_page(&body.map_err(|error| error.to_string())?.to_bytes())? {
                Some(rest) => after = format!("&continue={rest}"),
                None => return Ok(nodes),
            }
        }
    };
    timeout(LIST_MAX, listed).await.unwrap_or_else(|_| Err("it did not list the nodes in time".to_owned()))
}

/// Follows `server` for as long as it can be watched. Returns why it no longer can.
async fn follow_at(
    client: &ApiClient,
    server: BackendAddr,
    mut nodes: Nodes,
    follower: &mut NameFollower,
) -> WatchFault {
    follower.learn(nodes.names());
    loop {
        let mut watch = match client.watch(server, &format!("{NODES}?"), &nodes.version).await {
            Ok(watch) => watch,
            Err(fault) => {
                tracing::debug!(%server, ?fault, "the nodes cannot be watched");
                return fault;
            }
        };
        follower.take(Ok(nodes.names()));
        loop {
            let applied = match watch.next_line().await {
                Ok(Some(line)) => nodes.apply(&line),
                Ok(None) => break,
                Err(fault) => Err(fault),
            };
            match applied {
                Ok(true) => follower.take(Ok(nodes.names())),
                Ok(false) => {}
                // Listed again, here or at another backend.
                Err(fault) => {
                    tracing::debug!(%server, ?fault, "the watch of the nodes has ended");
                    return fault;
                }
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Nodes {
    by_name: BTreeMap<Arc<str>, Vec<IpAddr>>,
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeList {
    kind: String,
    metadata: ListMeta,
    items: Option<Vec<ClusterNode>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    rest: String,
}

#[derive(Deserialize)]
struct ClusterNode {
    metadata: NodeMeta,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeMeta {
    name: String,
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    addresses: Option<Vec<NodeAddress>>,
}

#[derive(Deserialize)]
struct NodeAddress {
    address: String,
}

impl Nodes {
    /// Adds a page of a list. Returns where the next one begins.
    fn add_page(&mut self, bytes: &[u8]) -> Result<Option<String>, String> {
        let list: NodeList = serde_json::from_slice(bytes).map_err(|error| format!("no list of nodes: {error}"))?;
        if list.kind != "NodeList" {
            return Err(format!("a list of another kind: {}", shown(&list.kind)));
        }
        self.by_name.extend(list.items.unwrap_or_default().into_iter().filter_map(ClusterNode::entry));
        if self.by_name.len() > NODES_MAX {
            return Err(format!("it lists more than {NODES_MAX} nodes"));
        }
        self.version = list.metadata.resource_version;
        Ok(Some(list.metadata.rest).filter(|rest| !rest.is_empty()))
    }

    /// Takes one event of a watch. Returns whether the addresses have changed: a node's status changes all the time.
    fn apply(&mut self, line: &[u8]) -> Result<bool, WatchFault> {
        let Some((kind, node)) = watch_event::<ClusterNode>(line)? else { return Ok(false) };
        self.version.clone_from(&node.metadata.resource_version);
        let Some((name, addresses)) = node.entry().filter(|_| kind != "BOOKMARK") else { return Ok(false) };
        if kind == "DELETED" {
            return Ok(self.by_name.remove(&name).is_some());
        }
        if self.by_name.len() >= NODES_MAX && !self.by_name.contains_key(&name) {
            return Err(WatchFault::Broken(format!("more than {NODES_MAX} nodes")));
        }
        let before = self.by_name.insert(name, addresses.clone());
        Ok(before != Some(addresses))
    }

    fn names(&self) -> NameMap {
        let each = self.by_name.iter().flat_map(|(name, all)| all.iter().map(|ip| (ip.to_canonical(), name.clone())));
        each.collect()
    }
}

impl ClusterNode {
    /// Its name and its addresses; other entries of its addresses are names.
    fn entry(self) -> Option<(Arc<str>, Vec<IpAddr>)> {
        let all = self.status.addresses.unwrap_or_default();
        Some((node_name(&self.metadata.name)?, all.iter().filter_map(|it| it.address.parse().ok()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, version: u64, addresses: &[&str]) -> String {
        let all: Vec<_> =
            addresses.iter().map(|it| format!("{{\"type\":\"InternalIP\",\"address\":{it:?}}}")).collect();
        format!(
            "{{\"metadata\":{{\"name\":{name:?},\"resourceVersion\":\"{version}\"}},\"status\":{{\"images\":[],\"addresses\":[{}]}}}}",
            all.join(",")
        )
    }

    #[test]
    fn pages_and_events_of_nodes_become_names_of_addresses() {
        let page = |items: &[String], rest: &str| {
            let items = items.join(",");
            format!(
                "{{\"kind\":\"NodeList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"9\",\"continue\":{rest:?}}},\"items\":[{items}]}}"
            )
        };
        let mut nodes = Nodes::default();
        let first = page(&[node("worker-7", 1, &["10.0.0.7", "fd00::7", "worker-7"])], "more");
        assert_eq!(nodes.add_page(first.as_bytes()), Ok(Some("more".to_owned())));
        assert_eq!(nodes.add_page(page(&[node("worker-8", 2, &["10.0.0.8"])], "").as_bytes()), Ok(None));
        let names = |nodes: &Nodes| {
            let mut all: Vec<_> = nodes.names().into_iter().map(|(ip, name)| format!("{ip} {name}")).collect();
            all.sort();
            all
        };
        assert_eq!(names(&nodes), ["10.0.0.7 worker-7", "10.0.0.8 worker-8", "fd00::7 worker-7"]);
        let event = |kind: &str, node: String| format!("{{\"type\":{kind:?},\"object\":{node}}}\n");
        let mut apply = |kind: &str, node: String| nodes.apply(event(kind, node).as_bytes());
        assert_eq!(apply("MODIFIED", node("worker-8", 10, &["10.0.0.8"])), Ok(false), "its status alone");
        assert_eq!(apply("MODIFIED", node("worker-8", 11, &["10.0.0.18"])), Ok(true));
        assert_eq!(apply("DELETED", node("worker-7", 12, &["10.0.0.7", "fd00::7"])), Ok(true));
        assert_eq!(apply("BOOKMARK", node("", 13, &[])), Ok(false));
        let expired = event("ERROR", "{\"code\":410,\"message\":\"too old\"}".to_owned());
        assert_eq!((nodes.apply(expired.as_bytes()), &*nodes.version), (Err(WatchFault::Expired), "13"));
        assert_eq!(names(&nodes), ["10.0.0.18 worker-8"]);
        assert!(nodes.add_page(b"{\"kind\":\"PodList\",\"metadata\":{}}").is_err());
    }
}
