//! deploy/grafana and the recording rules of deploy/prometheus: each query of each board, and each recorded series, returns series of a
//! real fleet in a real Prometheus, and what a query returns has the labels that the panel's legend names.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::alerts::{Histograms, Prometheus};
use crate::fleet::Scene;
use crate::lab::*;
use crate::nodes;

const RECORDED: &str = include_str!("../../deploy/prometheus/baton.recording.yml");

const BOARDS: [(&str, &str); 3] = [
    ("fleet", include_str!("../../deploy/grafana/fleet.json")),
    ("instance", include_str!("../../deploy/grafana/instance.json")),
    ("nodes", include_str!("../../deploy/grafana/nodes.json")),
];

/// A query, its panel, and the labels of its legend.
struct Query {
    panel: String,
    expr: String,
    legend: BTreeSet<String>,
}

fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for (board, text) in BOARDS {
        let board_json: Value = serde_json::from_str(text).expect("JSON");
        for panel in board_json["panels"].as_array().expect("panels") {
            let title = panel["title"].as_str().expect("a title");
            for target in panel["targets"].as_array().into_iter().flatten() {
                let legend = target["legendFormat"].as_str().expect("a legend");
                queries.push(Query {
                    panel: format!("{board}: {title}"),
                    expr: target["expr"].as_str().expect("a query").to_owned(),
                    legend: legend
                        .split("{{")
                        .skip(1)
                        .filter_map(|it| Some(it.split_once("}}")?.0.to_owned()))
                        .collect(),
                });
            }
        }
    }
    let recorded = RECORDED.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    queries.extend(recorded.map(|name| {
        // The labels that are left are the first part of the name.
        let (labels, _) = name.split_once(':').expect("labels, metric and operation");
        let legend = labels.split('_').map(str::to_owned).collect();
        Query { panel: "recorded".to_owned(), expr: name.to_owned(), legend }
    }));
    queries
}

/// For a URL.
fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        write!(encoded, "%{byte:02X}").expect("a string takes everything");
        encoded
    })
}

/// The labels of the first series that `expr` returns, once it returns any.
fn labels_of(prometheus: &Prometheus<'_>, expr: &str) -> Option<BTreeSet<String>> {
    // As Grafana fills them in for "All".
    let expr = expr.replace("$__rate_interval", "30s").replace("$instance", ".*").replace("$frontend", ".*");
    let answer = prometheus.ask(&format!("query?query={}", percent(&expr)))?;
    assert_eq!(answer["status"], "success", "{expr}: {answer}");
    let series = answer["data"]["result"].as_array()?.first()?["metric"].as_object()?;
    Some(series.keys().cloned().collect())
}

#[test]
fn each_query_of_the_boards_returns_series_of_a_real_fleet() {
    let Some(scene) = Scene::new("boards", 2) else { return };
    let _servers = scene.serve();
    let Some(pinned) = Pinned::unused("boards") else { return };
    let listen = vec!["10.77.0.100:6443", "10.77.0.101:6443"];
    let doors = |config: Config| config.admin("metrics", "0.0.0.0:9472");
    let vip = |config: Config| config.vip("addresses", vec!["10.77.0.101/32"]).vip("interface", "eth0");
    let names = [("worker-1", &scene.lab.client), ("worker-2", &scene.lab.client2)];
    let named = |config: Config| nodes::naming(&scene.lab, config, &names);
    let config = scene
        .config(0)
        .offloading(&pinned.directory)
        .offload("after_round_trips", 1000)
        .frontend("listen", listen.clone());
    let other = scene.config(1).frontend("listen", listen);
    let instances = [scene.launch(0, &vip(doors(named(config)))), scene.launch(1, &vip(doors(named(other))))];
    instances.iter().for_each(|it| it.baton.wait_until_ready());
    instances[0].wait_synced("lb-b");
    let host = &instances[0].host;
    let targets = instances.each_ref().map(|it| it.host.v4(9472).to_string());
    let scrapers = [Histograms::Classic, Histograms::Native];
    let scrapers = scrapers.map(|it| Prometheus::start(host, scene.lab.directory(), &targets, it));
    eventually(secs(30), "each Prometheus knows both", || {
        let asked = scrapers.each_ref().map(|it| it.ask("query?query=sum(baton_build_info)"));
        asked.iter().flatten().filter(|it| it["data"]["result"][0]["value"][1] == "2").count() == 2
    });
    // A node that has had a connection, and has none any more.
    let holder = "10.77.0.101:6443".parse().expect("an address");
    let mut silent = None;
    eventually(LONG, "the node is served", || {
        let mut conn = scene.lab.client2.try_connect(holder, secs(1)).ok();
        let answered = conn.as_mut().is_some_and(|conn| conn.try_echo(1, 100).is_ok());
        silent = conn.filter(|_| answered);
        silent.is_some()
    });
    eventually(LONG, "the node is seen", || {
        instances.iter().any(|it| it.baton.order(&["nodes"]).contains("worker-2  connected"))
    });
    drop(silent);
    let queries = queries();
    assert!(queries.len() > 30, "{}", queries.len());
    for Query { panel, expr, legend } in &queries {
        let mut found = None;
        eventually(secs(30), &format!("{panel}: {expr}"), || {
            // What counts connections has some to count.
            if let Ok(mut conn) = scene.lab.client.try_connect(holder, secs(1)) {
                let _ = conn.try_echo(1, 100);
            }
            let each = scrapers.each_ref().map(|it| labels_of(it, expr));
            found = each.into_iter().collect::<Option<Vec<_>>>();
            found.is_some()
        });
        for found in found.expect("just seen") {
            assert!(legend.is_subset(&found), "{panel}: the legend names {legend:?}, and the series have {found:?}");
        }
    }
    // Beside the other, which has the histograms with bounds alone, this one has them with native buckets alone.
    let [classic, native] = &scrapers;
    for name in ["connect_duration", "probe_duration", "event_loop_turn"] {
        assert!(labels_of(classic, &format!("baton_{name}_seconds_bucket")).is_some(), "{name}");
        assert_eq!(labels_of(classic, &format!("histogram_count(baton_{name}_seconds)")), None, "{name}");
        assert_eq!(labels_of(native, &format!("baton_{name}_seconds_bucket")), None, "{name}");
        let differ = format!("histogram_count(baton_{name}_seconds) > 0");
        assert!(labels_of(native, &differ).is_some(), "{name}");
    }
    let recorded = queries.iter().filter(|it| it.panel == "recorded").count();
    assert!(recorded > 5, "{recorded}");
    println!(
        "boards: {} queries return series of classic and of native histograms, {recorded} of them recorded",
        queries.len()
    );
}

#[test]
fn no_two_boards_share_an_id_and_each_asks_the_chosen_data_source() {
    let mut ids = BTreeSet::new();
    for (board, text) in BOARDS {
        let json: Value = serde_json::from_str(text).expect("JSON");
        assert!(ids.insert(json["uid"].as_str().expect("a uid").to_owned()), "{board}");
        for panel in json["panels"].as_array().expect("panels").iter().filter(|panel| panel["type"] != "row") {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{board}: {}", panel["title"]);
        }
    }
}
