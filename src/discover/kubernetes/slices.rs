//! EndpointSlices (discovery.k8s.io/v1), as an apiserver lists and watches them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::client::{WatchFault, watch_event};
use crate::addr::BackendAddr;
use crate::model::discover::AddressSet;

/// The slices of one service, with the version of the last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slices {
    by_name: BTreeMap<String, AddressSet>,
    version: String,
}

/// Limit for the slices of the service: each is for one family and set of ports.
const SLICES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceList {
    kind: String,
    api_version: String,
    metadata: SliceMeta,
    items: Option<Vec<EndpointSlice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointSlice {
    metadata: SliceMeta,
    #[serde(default)]
    address_type: String,
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<SlicePort>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SliceMeta {
    name: String,
    resource_version: String,
}

#[derive(Deserialize)]
struct SliceEndpoint {
    #[serde(default)]
    addresses: Vec<String>,
    conditions: Option<SliceConditions>,
}

#[derive(Deserialize)]
struct SliceConditions {
    ready: Option<bool>,
}

#[derive(Deserialize)]
struct SlicePort {
    name: Option<String>,
    port: Option<u16>,
}

impl Slices {
    /// # Errors
    /// The bytes are no list of slices.
    pub(super) fn of_list(bytes: &[u8]) -> Result<Self, String> {
        let list: SliceList = serde_json::from_slice(bytes).map_err(|error| format!("no list of slices: {error}"))?;
        if list.kind != "EndpointSliceList" || list.api_version != "discovery.k8s.io/v1" {
            return Err(format!("a list of another kind: {} of {}", list.kind, list.api_version));
        }
        let items = list.items.unwrap_or_default();
        if items.len() > SLICES_MAX {
            return Err(format!("it lists {} slices, and the limit is {SLICES_MAX}", items.len()));
        }
        let by_name = items.into_iter().map(|slice| (slice.metadata.name.clone(), slice.addresses())).collect();
        Ok(Self { by_name, version: list.metadata.resource_version })
    }

    /// Where a watch goes on.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// All addresses of all slices.
    pub(super) fn addresses(&self) -> AddressSet {
        self.by_name.values().flatten().copied().collect()
    }

    /// Takes one event of a watch. Returns whether the addresses have changed.
    pub(super) fn apply(&mut self, line: &[u8]) -> Result<bool, WatchFault> {
        let Some((kind, slice)) = watch_event::<EndpointSlice>(line)? else { return Ok(false) };
        let (name, before) = (slice.metadata.name.clone(), self.addresses());
        self.version.clone_from(&slice.metadata.resource_version);
        match &*kind {
            "ADDED" | "MODIFIED" => drop(self.by_name.insert(name, slice.addresses())),
            "DELETED" => drop(self.by_name.remove(&name)),
            "BOOKMARK" => {}
            other => return Err(WatchFault::Broken(format!("an event of the unknown type {other:?}"))),
        }
        if self.by_name.len() > SLICES_MAX {
            return Err(WatchFault::Broken(format!("more than {SLICES_MAX} slices")));
        }
        Ok(self.addresses() != before)
    }
}

impl EndpointSlice {
    /// The addresses of endpoints that are ready, or may be (an absent condition), with the port called "https", or the only one.
    fn addresses(&self) -> AddressSet {
        let ports = self.ports.as_deref().unwrap_or_default();
        let https = ports.iter().find(|port| port.name.as_deref() == Some("https"));
        let Some(port) = https.or(ports.first().filter(|_| ports.len() == 1)).and_then(|port| port.port) else {
            return AddressSet::new();
        };
        if !matches!(&*self.address_type, "IPv4" | "IPv6") {
            return AddressSet::new();
        }
        let is_ready = |it: &&SliceEndpoint| it.conditions.as_ref().and_then(|it| it.ready).unwrap_or(true);
        let endpoints = self.endpoints.as_deref().unwrap_or_default().iter().filter(is_ready);
        let ips = endpoints.flat_map(|it| &it.addresses).filter_map(|it| it.parse::<IpAddr>().ok());
        ips.filter_map(|ip| BackendAddr::reachable(SocketAddr::new(ip, port))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::message;
    use super::*;

    fn slice(name: &str, version: u32, ips: &[&str]) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "default", "resourceVersion": version.to_string()},
            "endpoints": ips.iter().map(|ip| serde_json::json!({"addresses": [ip], "conditions": {"ready": true}})).collect::<Vec<_>>(),
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]
        })
    }

    fn list(version: u32, items: &[serde_json::Value]) -> Vec<u8> {
        serde_json::to_vec(&serde_json::json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
            "metadata": {"resourceVersion": version.to_string()}, "items": items
        }))
        .unwrap()
    }

    fn event(kind: &str, object: serde_json::Value) -> Vec<u8> {
        serde_json::to_vec(&serde_json::json!({"type": kind, "object": object})).unwrap()
    }

    fn shown(slices: &Slices) -> Vec<String> {
        slices.addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn events_change_a_list_and_a_bookmark_only_its_version() {
        let mut slices = Slices::of_list(&list(7, &[slice("kubernetes", 5, &["10.0.0.1", "10.0.0.2"])])).unwrap();
        assert_eq!((shown(&slices), slices.version()), (vec!["10.0.0.1:6443".into(), "10.0.0.2:6443".into()], "7"));
        assert_eq!(slices.apply(&event("MODIFIED", slice("kubernetes", 8, &["10.0.0.2", "10.0.0.3"]))), Ok(true));
        assert_eq!((shown(&slices), slices.version()), (vec!["10.0.0.2:6443".into(), "10.0.0.3:6443".into()], "8"));
        let bookmark = serde_json::json!({
            "kind": "EndpointSlice", "metadata": {"resourceVersion": "12", "creationTimestamp": null}, "endpoints": null,
            "ports": null, "addressType": ""
        });
        assert_eq!((slices.apply(&event("BOOKMARK", bookmark)), slices.version()), (Ok(false), "12"));
        let mut v6 = slice("kubernetes-v6", 13, &["2001:db8::1"]);
        v6["addressType"] = "IPv6".into();
        assert_eq!(slices.apply(&event("ADDED", v6.clone())), Ok(true));
        assert_eq!(slices.addresses().len(), 3);
        assert_eq!(slices.apply(&event("DELETED", v6)), Ok(true));
        assert_eq!(slices.addresses().len(), 2);
        assert_eq!(slices.apply(b"\n"), Ok(false));
    }

    #[test]
    fn a_version_that_is_too_old_asks_for_a_list_and_another_error_for_another_backend() {
        let mut slices = Slices::of_list(&list(7, &[])).unwrap();
        let status = |code: u16| serde_json::json!({"kind": "Status", "code": code, "message": "too old resource version: 7 (9)"});
        assert_eq!(slices.apply(&event("ERROR", status(410))), Err(WatchFault::Expired));
        assert!(matches!(slices.apply(&event("ERROR", status(500))), Err(WatchFault::Broken(_))));
        for bad in [&b"{"[..], b"{}", &event("RENAMED", slice("a", 1, &[])), &event("ADDED", serde_json::Value::Null)] {
            assert!(matches!(slices.apply(bad), Err(WatchFault::Broken(_))), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn only_endpoints_that_may_serve_count_and_only_a_list_of_slices_is_one() {
        let mut one = slice("kubernetes", 1, &["10.0.0.1", "10.0.0.2", "ten", "0.0.0.0"]);
        one["endpoints"][1]["conditions"]["ready"] = false.into();
        one["endpoints"][0].as_object_mut().unwrap().remove("conditions");
        assert_eq!(shown(&Slices::of_list(&list(1, &[one.clone()])).unwrap()), ["10.0.0.1:6443"]);
        one["ports"] = serde_json::json!([{"name": "http", "port": 80}, {"name": "https", "port": 443}]);
        assert_eq!(shown(&Slices::of_list(&list(1, &[one.clone()])).unwrap()), ["10.0.0.1:443"]);
        one["addressType"] = "FQDN".into();
        assert_eq!(shown(&Slices::of_list(&list(1, &[one])).unwrap()), [""; 0]);
        let many: Vec<_> = (0..=SLICES_MAX).map(|number| slice(&number.to_string(), 1, &[])).collect();
        let other = String::from_utf8(list(1, &[])).unwrap().replace("SliceList", "Endpoints").into_bytes();
        for bad in [list(1, &many), b"{}".to_vec(), b"<html>".to_vec(), other] {
            assert!(Slices::of_list(&bad).is_err(), "{}", String::from_utf8_lossy(&bad));
        }
        assert_eq!(message(br#"{"kind":"Status","message":"forbidden","code":403}"#), ": forbidden");
    }
}
