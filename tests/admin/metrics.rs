//! docs/metrics.md lists what the page has, by name, type, labels and meaning.
//!
//! After a change: `UPDATE_DOCS=1 cargo nextest run --test admin the_list_of_metrics` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use baton::metrics::{AddressLabels, FrontendLabels};
use baton::sys::clock::now_ns;
use baton::table::nodes::{SilenceKind, SilentNode};
use baton::table::offload::OffloadView;

use crate::fake::{FakeInstance, a_peer};
use crate::http::get;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");

const HEAD: &str = "# Metrics

`/metrics` of the HTTP servers (`admin.http`, `admin.metrics`) has these, in the text format of Prometheus, or in OpenMetrics or \
protobuf on request. Histograms have `_bucket`,
`_sum` and `_count`, and native buckets for a Prometheus that asks for them (`scrape_native_histograms: true`, or \
`--enable-feature=native-histograms` before Prometheus 3.8): each is 9 % wider than the one before it, so that a quantile is right within 5 %. \
The boards and the recording rules take either. There are no exemplars: Baton sees no trace, and [`baton who`](operate.md) names the flow. The rules in [deploy/prometheus](../deploy/prometheus/baton.rules.yml) use them; no label holds a client's address.

| metric | type | labels | meaning |
|---|---|---|---|
";

const CONNTRACK: &str = "baton_conntrack_entries";

/// One family of the page.
#[derive(Debug, Default)]
struct Listed {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    has_series: bool,
}

#[tokio::test]
async fn the_list_of_metrics_is_that_of_the_page() {
    let families = read(&get(&everything(), "/metrics").await.body);
    assert!(families.len() > 40, "{}", families.len());
    let empty: Vec<_> = families.iter().filter(|(_, it)| !it.has_series).map(|(name, _)| name).collect();
    assert!(empty.is_empty(), "give these a series, so that their labels are known: {empty:?}");
    let mut text = HEAD.to_owned();
    for (name, Listed { kind, help, labels, .. }) in &families {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(text, "| `{name}` | {kind} | {} | {} |", labels.join(", "), help.trim_end_matches('.')).unwrap();
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let mut listed = std::fs::read_to_string(FILE).unwrap();
    if !families.contains_key(CONNTRACK) {
        // Not on a host that tracks no connections.
        listed = listed.lines().filter(|line| !line.contains(CONNTRACK)).flat_map(|line| [line, "\n"]).collect();
    }
    assert_eq!(listed, text, "UPDATE_DOCS=1 writes it anew");
}

/// An instance of which each family has a series.
fn everything() -> FakeInstance {
    let instance = FakeInstance::start();
    let metrics = &instance.admin.metrics;
    instance.table.probes.record("apiserver", "cp1", "passed", Duration::from_millis(3));
    let labels = FrontendLabels { frontend: "apiserver".to_owned() };
    for family in [&metrics.discovery.failing, &metrics.discovery.backends] {
        family.get_or_create(&labels).set(0);
    }
    for family in [&metrics.vip_duplicate, &metrics.vip_held, &metrics.vip_left_behind] {
        drop(family.get_or_create(&AddressLabels { address: "10.0.0.100".into() }));
    }
    instance.backend("cp1").configure(1, Some(1000));
    let view = OffloadView { packets: vec![("spliced", 0)], ..OffloadView::default() };
    instance.table.offload.show(view);
    instance.ports.fleet.set_enabled(true);
    instance.table.fleet.show_members(vec![a_peer()], now_ns());
    let node =
        SilentNode { name: "worker-17".into(), since_ns: now_ns(), kind: SilenceKind::NoConnection, refused: None };
    instance.table.nodes.show(Some(vec![node]));
    instance
        .table
        .nodes
        .show_counts(Some(["connected", "silent", "lost", "unknown", "never_seen"].map(|state| (state, 1))));
    instance
}

/// The families of a page.
fn read(page: &str) -> BTreeMap<String, Listed> {
    let mut families = BTreeMap::<String, Listed>::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
            current = name.to_owned();
        } else if !line.starts_with('#') {
            let family = families.get_mut(&current).expect("its type comes first");
            family.has_series = true;
            let labels = line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap());
            let names = labels.split("\",").filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned());
            family.labels.extend(names.filter(|name| name != "le"));
        }
    }
    families
}
