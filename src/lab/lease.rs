//! The few JSON bodies of the Kubernetes API for heartbeats and watches.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The path of the nodes' leases, without a trailing slash.
pub(crate) const LEASES_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// The namespace of the leases of nodes.
pub(crate) const NODES_NAMESPACE: &str = "kube-node-lease";
/// The label of a drill's own leases; it never overwrites another lease.
pub(crate) const DRILL_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "baton-drill");
/// The path that a kubelet-like client watches.
pub(crate) const WATCH_PATH: &str = "/api/v1/nodes?watch=true&allowWatchBookmarks=true";
/// The response header with a stand-in's name.
pub(crate) const NAME_HEADER: &str = "x-stand-in";

/// coordination.k8s.io/v1 Lease: the fields that a node's heartbeat needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lease {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub name: String,
    pub namespace: String,
    /// Opaque to clients; a stand-in counts renewals in it.
    pub resource_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaseSpec {
    pub holder_identity: String,
    pub lease_duration_seconds: u32,
    /// RFC 3339 with microseconds, UTC.
    pub renew_time: String,
}

impl Lease {
    /// The lease of `node`, renewed now.
    pub(crate) fn renewed_now(node: &str) -> Self {
        Self {
            api_version: "coordination.k8s.io/v1".to_owned(),
            kind: "Lease".to_owned(),
            metadata: Metadata { name: node.to_owned(), namespace: NODES_NAMESPACE.to_owned(), ..Metadata::default() },
            spec: LeaseSpec {
                holder_identity: node.to_owned(),
                lease_duration_seconds: 40,
                renew_time: micro_time(SystemTime::now()),
            },
        }
    }

    /// The lease that a drill keeps for `node` in `namespace`, renewed now, with its last `version` (empty: it does not
    /// exist yet).
    pub(crate) fn of_drill(node: &str, namespace: &str, version: &str) -> Self {
        let mut lease = Self::renewed_now(node);
        lease.metadata.namespace = namespace.to_owned();
        lease.metadata.resource_version = version.to_owned();
        lease.metadata.labels = [DRILL_LABEL].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        lease
    }

    pub(crate) fn is_a_drill_s(&self) -> bool {
        self.metadata.labels.get(DRILL_LABEL.0).is_some_and(|value| value == DRILL_LABEL.1)
    }
}

/// The path of the leases in `namespace`, without a trailing slash.
pub(crate) fn leases_path(namespace: &str) -> String {
    LEASES_PATH.replace(NODES_NAMESPACE, namespace)
}

/// RFC 3339 with microseconds in UTC, the API's `MicroTime`: 2026-01-31T10:00:00.000000Z.
pub(crate) fn micro_time(at: SystemTime) -> String {
    let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_1970.as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_1970.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
fn civil_date(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let leap = |year: u64| u64::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)));
    while days >= 365 + leap(year) {
        days -= 365 + leap(year);
        year += 1;
    }
    let lengths = [31, 28 + leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_the_api_writes_them() {
        let text = |seconds, micros: u32| micro_time(UNIX_EPOCH + Duration::new(seconds, micros * 1000));
        assert_eq!(text(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(951_782_400 + 3661, 7), "2000-02-29T01:01:01.000007Z");
        assert_eq!(text(1_798_761_599, 999_999), "2026-12-31T23:59:59.999999Z");
        assert_eq!(text(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    }
}
