//! The cluster's nodes by their connections: which of them is silent, and where nothing can be said.

use serde_json::Value;

use crate::alerts::{Histograms, Prometheus};
use crate::fleet::Scene;
use crate::lab::*;

/// Of each node of the list.
fn nodes(baton: &Baton) -> Value {
    serde_json::from_str(&baton.order(&["--json", "nodes"])).expect("JSON")
}

/// Null: it is not listed.
fn node(baton: &Baton, name: &str) -> Value {
    let report = nodes(baton);
    let all = report["nodes"].as_array().expect("a list");
    all.iter().find(|it| it["node"] == name).cloned().unwrap_or_default()
}

fn state(baton: &Baton, name: &str) -> Value {
    node(baton, name)["state"]["is"].clone()
}

/// The config of a lab with these names, of a cluster whose kubelets renew each second.
pub fn naming(lab: &Lab, config: Config, names: &[(&str, &Host)]) -> Config {
    let file = lab.directory().join("nodes");
    let text: String = names.iter().map(|(name, host)| format!("{} {name}\n", host.v4)).collect();
    std::fs::write(&file, text).expect("a file");
    config.names(&file).cluster("lease_renew", "1s").cluster("node_monitor_grace_period", "30s")
}

#[test]
fn a_node_whose_connection_is_cut_is_silent_until_it_returns_and_the_others_are_not() {
    let Some(lab) = Lab::new("silent nodes") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().only(&["b1"]));
    let how = baton.order(&["nodes"]);
    assert!(how.contains("[names]\nfile = ") && !baton.metrics().contains("baton_nodes_silent"), "{how}");

    let names = [("worker-1", &lab.client), ("worker-2", &lab.client2), ("cp1", &lab.b3)];
    baton.write_config(&naming(&lab, lab.config().only(&["b1"]), &names));
    baton.order(&["reload"]);
    let mut all = [&lab.client, &lab.client, &lab.client2].map(|host| host.connect(lab.lb.v4(6443)));
    all.iter_mut().for_each(|conn| conn.echo(1, 1000));
    eventually(LONG, "both nodes are connected", || {
        nodes(&baton)["nodes"].as_array().is_some_and(|all| all.len() == 3)
            && ["worker-1", "worker-2"].iter().all(|name| state(&baton, name) == "connected")
    });
    let first = node(&baton, "worker-1");
    assert_eq!(
        (&first["connections"], &first["backend"], &first["peers"]),
        (&2.into(), &"b1".into(), &Value::from([0; 0]))
    );
    let [age, last_byte, budget] = ["age_ms", "last_byte_ms", "budget_ms"].map(|key| first[key].as_u64().unwrap());
    assert!(last_byte <= age && budget <= 30_000 - last_byte && budget > 20_000, "{first}");

    let [one, two, mut other] = all;
    drop((one, two));
    eventually(LONG, "the node is silent", || state(&baton, "worker-1") == "silent");
    assert_eq!(node(&baton, "worker-1")["state"]["why"], "no_connection");
    eventually(LONG, "the metrics say so", || baton.metrics().contains("\nbaton_nodes_silent 1\n"));
    let labels = ["node=\"worker-1\"", "reason=\"no_connection\""];
    assert!(baton.metric("baton_node_silent_seconds", &labels) >= 1.0);
    assert!(!baton.metrics().contains("baton_node_silent_seconds{node=\"worker-2\""));
    let said = baton.order(&["nodes", "--silent"]);
    assert!(said.contains("worker-1  no connection for ") && !said.contains("worker-2"), "{said}");
    assert!(said.ends_with("3 nodes by the file of [names], 1 silent\n"), "{said}");
    assert_eq!((state(&baton, "worker-2"), state(&baton, "cp1")), ("connected".into(), "never_seen".into()));
    let told = baton.events_of("nodes_silent");
    assert_eq!((told.len(), &told[0]["nodes"]), (1, &Value::from(["worker-1"])));

    let silent_ms = || node(&baton, "worker-1")["state"]["for_ms"].as_u64().unwrap_or(0);
    let before_ms = silent_ms();
    baton.order(&["upgrade"]);
    eventually(LONG, "the next process says so", || state(&baton, "worker-1") == "silent");
    assert!(silent_ms() >= before_ms, "{before_ms} ms before the upgrade, {} ms after it", silent_ms());
    assert_eq!((state(&baton, "worker-2"), state(&baton, "cp1")), ("connected".into(), "never_seen".into()));
    assert_eq!(baton.events_of("nodes_silent").len(), 0, "it is not told again");

    let _conn = lab.client.connect(lab.lb.v4(6443));
    eventually(LONG, "it is back", || state(&baton, "worker-1") == "connected");
    eventually(LONG, "an event says so", || baton.events_of("nodes_back").len() == 1);
    eventually(LONG, "the metrics say so", || baton.metrics().contains("\nbaton_nodes_silent 0\n"));
    assert!(!baton.metrics().contains("baton_node_silent_seconds{"));
    other.echo(2, 1000);
    // One that the list no longer has is forgotten.
    baton.write_config(&naming(&lab, lab.config().only(&["b1"]), &names[1..]));
    eventually(LONG, "it is forgotten", || nodes(&baton)["nodes"].as_array().is_some_and(|all| all.len() == 2));
}

#[test]
fn a_kubelet_that_falls_silent_on_its_connection_is_told_and_an_idle_client_is_not() {
    let Some(lab) = Lab::new("silent kubelets") else { return };
    let _servers = lab.echo_everywhere();
    let names = [("worker-1", &lab.client), ("worker-2", &lab.client2)];
    let baton = lab.start(&naming(&lab, lab.config(), &names));
    let [mut kubelet, mut idle] = [&lab.client, &lab.client2].map(|host| host.connect(lab.lb.v4(6443)));
    idle.echo(1, 10);
    // As a kubelet that renews each second, and that a busy machine delays: if that machine stands still for a second, the node has to
    // show its rhythm again.
    let is_silent = (0..3).any(|_| {
        for _ in 0..30 {
            kubelet.echo(1, 10);
            std::thread::sleep(ms(300));
        }
        assert_eq!(baton.events_of("nodes_silent").len(), 0);
        let waited = Stopwatch::start();
        while waited.elapsed() < secs(8) && state(&baton, "worker-1") != "silent" {
            std::thread::sleep(ms(100));
        }
        state(&baton, "worker-1") == "silent"
    });
    assert!(is_silent, "{}", node(&baton, "worker-1"));
    assert_eq!(
        (node(&baton, "worker-1")["state"]["why"].clone(), state(&baton, "worker-2")),
        ("no_byte".into(), "connected".into())
    );
    kubelet.echo(2, 10);
    eventually(LONG, "it is back", || state(&baton, "worker-1") == "connected");
    eventually(LONG, "an event says so", || baton.events_of("nodes_back").len() == 1);
}

#[test]
fn a_node_whose_connection_is_at_a_peer_is_silent_at_neither_until_it_ends() {
    let Some(scene) = Scene::new("nodes of a fleet", 2) else { return };
    let _servers = scene.serve();
    let names = [("worker-1", &scene.lab.client)];
    let all = [0, 1].map(|number| scene.launch(number, &naming(&scene.lab, scene.config(number), &names)));
    all[0].wait_synced("lb-b");
    all[1].wait_synced("lb-a");
    let [owner, standby] = [&all[0].baton, &all[1].baton];
    let mut conn = scene.lab.client.connect(all[0].listens_at());
    conn.echo(1, 10);
    eventually(LONG, "the standby has its node at the peer", || {
        node(standby, "worker-1")["peers"] == Value::from(["lb-a"])
    });
    let shown = node(standby, "worker-1");
    assert_eq!((&shown["last_byte_ms"], &shown["budget_ms"]), (&Value::Null, &Value::Null), "{shown}");
    conn.stays_open(secs(4));
    assert_eq!(state(owner, "worker-1"), "connected");
    assert!(standby.order(&["nodes"]).contains("worker-1  at lb-a"));
    for baton in [owner, standby] {
        // There is no such metric while a peer is silent, for 0.25 s on a busy machine.
        eventually(LONG, "no node is silent", || baton.metrics().contains("\nbaton_nodes_silent 0\n"));
        assert!(baton.events_of("nodes_silent").is_empty());
    }
    drop(conn);
    for baton in [owner, standby] {
        eventually(LONG, "both say that it is silent", || state(baton, "worker-1") == "silent");
    }

    // A standby that hears no peer's link knows nothing of nodes that come and go there.
    all[1].host.drop_packets("input", "tcp dport 9471");
    eventually(LONG, "the link is gone", || all[1].sees("lb-a")["liveness"] == "unlinked");
    eventually(LONG, "nothing can be said", || state(standby, "worker-1") == "unknown");
    assert!(standby.order(&["nodes"]).contains("no node without a connection counts as silent: lb-a is unlinked"));
    eventually(LONG, "there is no metric", || !standby.metrics().contains("baton_nodes_silent"));
    all[1].host.nft_clear();
    eventually(LONG, "it is known again", || state(standby, "worker-1") == "silent");
    assert_eq!(standby.events_of("nodes_silent").len(), 1, "and is not told again");
}

#[test]
fn an_instance_that_the_vip_has_left_does_not_raise_an_alarm_for_its_nodes() {
    let Some(lab) = Lab::new("nodes without a VIP") else { return };
    let _servers = lab.echo_everywhere();
    let vip = "10.77.0.100";
    let config = lab.config().frontend("listen", vec![format!("{vip}:6443")]);
    let baton = lab.start(&naming(&lab, config, &[("worker-1", &lab.client)]));
    lab.lb.run(&format!("ip address add {vip}/32 dev eth0"));
    let mut conn = lab.client.connect(format!("{vip}:6443").parse().unwrap());
    conn.echo(1, 10);
    eventually(LONG, "the node is connected", || state(&baton, "worker-1") == "connected");
    lab.lb.run(&format!("ip address del {vip}/32 dev eth0"));
    eventually(LONG, "it has seen that", || nodes(&baton)["sees_not_all"].is_string());
    let id = baton.flows()[0]["id"].as_str().expect("an id").to_owned();
    baton.cli(&["kill", &id]);
    eventually(LONG, "nothing is known of the node", || state(&baton, "worker-1") == "unknown");
    assert!(!baton.metrics().contains("baton_nodes_silent"));
    lab.lb.run(&format!("ip address add {vip}/32 dev eth0"));
    eventually(LONG, "it is silent", || state(&baton, "worker-1") == "silent");
}

#[test]
fn a_real_prometheus_names_the_node_that_has_no_connection() {
    let Some(lab) = Lab::new("alert of a node") else { return };
    let _servers = lab.echo_everywhere();
    let names = [("worker-17", &lab.client), ("worker-18", &lab.client2)];
    let baton = lab.start(&naming(&lab, lab.config(), &names));
    let mut all = [&lab.client, &lab.client2].map(|host| host.connect(lab.lb.v4(6443)));
    all.iter_mut().for_each(|conn| conn.echo(1, 10));
    eventually(LONG, "both are connected", || {
        ["worker-17", "worker-18"].iter().all(|name| state(&baton, name) == "connected")
    });
    let prometheus = Prometheus::start(&lab.lb, lab.directory(), &["127.0.0.1:9470".to_owned()], Histograms::Classic);
    let summaries = || -> Option<Vec<String>> {
        let answer = prometheus.ask("alerts")?;
        // This one fires at once. Others are pending if a scrape takes long on a busy machine.
        let alerts = answer["data"]["alerts"].as_array()?.iter().filter(|it| it["state"] == "firing");
        Some(alerts.filter_map(|it| Some(it["annotations"]["summary"].as_str()?.to_owned())).collect())
    };
    eventually(secs(30), "Prometheus has looked and found nothing", || summaries().is_some_and(|it| it.is_empty()));
    let [gone, _stays] = all;
    drop(gone);
    let (found, _) = eventually_some(secs(60), "the alert fires", || summaries().filter(|it| !it.is_empty()));
    let rest = found[0].strip_prefix("worker-17 has had no connection for ").unwrap_or_else(|| panic!("{found:?}"));
    let seconds: u64 = rest.strip_suffix(" s").unwrap_or_else(|| panic!("{found:?}")).parse().expect("a number");
    assert!((20..60).contains(&seconds) && found.len() == 1, "{found:?}");
    let _again = lab.client.connect(lab.lb.v4(6443));
    eventually(secs(30), "it is taken back", || summaries().is_some_and(|it| it.is_empty()));
}
