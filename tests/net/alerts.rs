//! deploy/prometheus: the rules are well-formed, each of them is played, they ask for nothing that /metrics does not have, and a
//! real Prometheus raises them for real faults.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::fleet::Scene;
use crate::lab::baton::BINARY;
use crate::lab::*;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus");
const RULES: &str = include_str!("../../deploy/prometheus/baton.rules.yml");
const PLAYED: &str = include_str!("../../deploy/prometheus/baton.rules.test.yml");

/// One rule, as far as these tests look at it.
#[derive(Debug, Default)]
struct Rule {
    name: String,
    expr: String,
    keys: BTreeSet<String>,
    command: String,
}

/// The rules in their file. It is read line by line: the file keeps to one key a line, and a text goes on below its key,
/// further in.
fn rules() -> Vec<Rule> {
    let mut rules = Vec::<Rule>::new();
    let mut key = String::new();
    for line in RULES.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let words = line.trim_start();
        let (depth, words) = match words.strip_prefix("- alert: ") {
            Some(name) => {
                rules.push(Rule { name: name.to_owned(), ..Rule::default() });
                continue;
            }
            None => (line.len() - words.len(), words),
        };
        let Some(rule) = rules.last_mut() else { continue };
        let value = match words.split_once(": ").or_else(|| words.strip_suffix(':').map(|key| (key, ""))) {
            Some((found, value)) if depth <= 10 => {
                key = found.to_owned();
                rule.keys.insert(key.clone());
                value
            }
            _ => words,
        };
        match key.as_str() {
            "expr" => rule.expr += &format!(" {value}"),
            "command" => rule.command += value,
            _ => {}
        }
    }
    rules
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).current_dir(DIRECTORY).output();
    let output = output.expect("promtool (Debian package prometheus)");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// Names of metrics in an expression, each with the labels that are asked of it by `=`.
fn asked(expr: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(start) = ["baton_", "process_"].iter().filter_map(|prefix| rest.find(prefix)).min() {
        rest = &rest[start..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let labels = after.strip_prefix('{').and_then(|after| after.split_once('}')).map_or("", |(labels, _)| labels);
        let labels = labels.split(',').map(str::trim).filter(|label| !label.is_empty() && !label.contains("=~"));
        found.push((name.to_owned(), labels.map(str::to_owned).collect()));
        rest = after;
    }
    found
}

#[test]
fn each_alert_is_played_and_says_what_it_means_and_what_to_type_first() {
    promtool(&["check", "rules", "baton.rules.yml", "baton.recording.yml"]);
    promtool(&["test", "rules", "baton.rules.test.yml"]);
    let rules = rules();
    assert_eq!(rules.len(), RULES.matches("alert: ").count());
    for Rule { name, keys, command, .. } in &rules {
        let plays = PLAYED.split("promql_expr_test:").filter(|play| play.contains(&format!("alertname=\"{name}\"")));
        let (quiet, fires): (Vec<_>, Vec<_>) = plays.partition(|play| play.contains("exp_samples: []"));
        assert!(!fires.is_empty() && !quiet.is_empty(), "{name}: {} plays fire, {} do not", fires.len(), quiet.len());
        for key in ["expr", "severity", "summary", "description", "command"] {
            let there = keys.contains(key) || (key == "severity" && keys.contains("labels"));
            assert!(there, "{name} has no {key}: {keys:?}");
        }
        // It need not succeed without an instance; it must be one.
        if let Some(arguments) = command.strip_prefix("baton ") {
            let output = Command::new(BINARY).args(arguments.split(' ')).arg("--help").output().expect("the binary");
            assert!(output.status.success(), "{name}: {command}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn the_alerts_ask_for_nothing_that_the_metrics_page_of_a_fleet_lacks() {
    let Some(scene) = Scene::new("alerts", 2) else { return };
    let _servers = scene.serve();
    let Some(pinned) = Pinned::unused("alerts") else { return };
    let listen = vec!["10.77.0.100:6443", "10.77.0.101:6443"];
    let config =
        scene.config(0).offloading(&pinned.directory).frontend("max_connections", 500).frontend("listen", listen);
    let config = config.vip("addresses", vec!["10.77.0.101/32"]).vip("interface", "eth0");
    let config = config.process("max_connections", 1000).of_backend("b1", "max_connections", 400);
    let nodes = scene.lab.directory().join("nodes");
    std::fs::write(&nodes, format!("{} worker-17\n", scene.lab.client.v4)).unwrap();
    let config = config.names(&nodes).cluster("lease_renew", "1s");
    ::baton::offload::program::remove(&pinned.directory).unwrap();
    let instances = [scene.launch(0, &config), scene.launch(1, &scene.config(1))];
    instances.iter().for_each(|it| it.baton.wait_until_ready());
    instances[0].wait_synced("lb-b");
    let baton = &instances[0].baton;
    // The metric covers every watched address: of addresses left behind, those that a keepalived could have added.
    let vip = "10.77.0.100";
    let mover = scene.lab.directory().join("keepalived");
    std::fs::copy("/bin/sleep", &mover).unwrap();
    let _mover = instances[0].host.spawn(&[mover.to_str().unwrap(), "300"], &scene.lab.directory().join("mover.log"));
    instances[0].host.run(&format!("ip address add {vip}/32 dev eth0"));
    eventually(LONG, "its addresses are looked after", || {
        let page = baton.metrics();
        ["duplicate", "left_behind"].iter().all(|it| page.contains(&format!("baton_vip_{it}{{address=\"{vip}\"}} 0")))
    });
    let node = scene.lab.client.connect(format!("{vip}:6443").parse().unwrap());
    eventually(LONG, "the node is seen", || baton.order(&["nodes"]).contains("worker-17  connected"));
    drop(node);
    eventually(LONG, "a node whose connection has ended is silent", || {
        baton.metrics().contains("baton_node_silent_seconds{node=\"worker-17\",reason=\"no_connection\"}")
    });
    let page = baton.metrics();
    let has = |name: &str, labels: &[String]| {
        page.lines().any(|line| {
            let (series, _) = line.rsplit_once(' ').unwrap_or_default();
            let (found, set) = series.split_once('{').unwrap_or((series, ""));
            found == name && labels.iter().all(|label| set.contains(label.as_str()))
        })
    };
    let mut names = BTreeSet::new();
    for Rule { name: alert, expr, .. } in rules() {
        for (name, labels) in asked(&expr) {
            assert!(has(&name, &labels), "{alert}: {name} with {labels:?} is not on the page:\n{page}");
            names.insert(name);
        }
    }
    println!("alerts: {} metrics are asked for, and all are there", names.len());
    assert!(names.len() > 20 && !has("baton_no_such_thing", &[]), "{names:?}");
}

/// A real Prometheus, with the rules, which asks its targets once a second.
#[derive(Debug)]
pub struct Prometheus<'h> {
    host: &'h Host,
    address: SocketAddr,
    _process: process::Process,
}

/// The histograms that a Prometheus asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Histograms {
    /// With bounds, in the text format: what it does by default.
    Classic,
    /// With native buckets, in the protobuf format.
    Native,
}

impl<'h> Prometheus<'h> {
    pub fn start(host: &'h Host, directory: &Path, targets: &[String], histograms: Histograms) -> Self {
        let (name, port) = match histograms {
            Histograms::Classic => ("prometheus", 9090),
            Histograms::Native => ("prometheus-native", 9091),
        };
        let file = |suffix: &str| format!("{}{suffix}", directory.join(name).to_str().expect("UTF-8"));
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{DIRECTORY}/baton.rules.yml, {DIRECTORY}/baton.recording.yml]\n\
             scrape_configs: [{{ job_name: baton, static_configs: [{{ targets: {targets:?} }}] }}]\n"
        );
        std::fs::write(file(".yml"), text).unwrap();
        let config = format!("--config.file={}", file(".yml"));
        let storage = format!("--storage.tsdb.path={}", file(""));
        let listen = format!("--web.listen-address=127.0.0.1:{port}");
        let mut command = vec!["prometheus", &config, &storage, &listen, "--log.level=warn"];
        if histograms == Histograms::Native {
            command.push("--enable-feature=native-histograms");
        }
        let process = host.spawn(&command, Path::new(&file(".log")));
        Self { host, address: ([127, 0, 0, 1], port).into(), _process: process }
    }

    /// What its HTTP interface answers.
    pub fn ask(&self, path: &str) -> Option<serde_json::Value> {
        let mut stream = self.host.enter(|| TcpStream::connect_timeout(&self.address, secs(1))).ok()?;
        stream.set_read_timeout(Some(LONG)).ok()?;
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }
}

/// Alerts that fire.
fn firing(prometheus: &Prometheus<'_>) -> Option<BTreeSet<String>> {
    let answer = prometheus.ask("alerts")?;
    let alerts = answer["data"]["alerts"].as_array()?.iter().filter(|alert| alert["state"] == "firing");
    Some(alerts.filter_map(|alert| Some(alert["labels"]["alertname"].as_str()?.to_owned())).collect())
}

#[test]
fn a_real_prometheus_raises_the_alerts_of_real_faults_and_takes_them_back() {
    let Some(lab) = Lab::new("alerts of prometheus") else { return };
    let servers = lab.echo_everywhere();
    // Nobody makes the directory around that of the recorder.
    let config = lab.config().process("max_connections", 10);
    let unrecorded = lab.config().recording(&lab.directory().join("nowhere/recorder"));
    let baton = lab.start(&config);
    let prometheus = Prometheus::start(&lab.lb, lab.directory(), &["127.0.0.1:9470".to_owned()], Histograms::Classic);
    eventually(secs(30), "Prometheus has looked and found nothing", || {
        let looked = prometheus.ask("query?query=baton_build_info");
        looked.is_some_and(|it| it["data"]["result"] != serde_json::json!([]))
            && firing(&prometheus).is_some_and(|it| it.is_empty())
    });
    let raised = |name: &str| firing(&prometheus).is_some_and(|it| it.contains(name));
    let refused = lab.config().frontend("balance", "by_weather");
    baton.write_config(&refused);
    baton.cli(&["reload"]);
    let mut conns: Vec<_> = (0..10).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 10));
    let beyond = lab.client.try_connect(lab.lb.v4(6443), secs(1)).and_then(|mut conn| conn.try_echo(1, 10));
    assert!(beyond.is_err(), "the eleventh is turned away");
    eventually(secs(30), "the refused file is told", || raised("BatonReloadFailed"));
    eventually(secs(30), "who was turned away is told", || raised("BatonTurnsConnectionsAway"));
    drop((conns, servers));
    eventually(secs(30), "that no backend is left is told", || raised("BatonNoEligibleBackend"));
    let _servers = lab.echo_everywhere();
    baton.write_config(&config);
    baton.order(&["reload"]);
    eventually(secs(30), "both are taken back", || !raised("BatonReloadFailed") && !raised("BatonNoEligibleBackend"));
    assert!(!raised("BatonRecorderLosesEvents"));
    baton.write_config(&unrecorded);
    baton.order(&["reload"]);
    eventually(secs(30), "the recorder that keeps nothing is told", || raised("BatonRecorderLosesEvents"));
    assert!(baton.order(&["status"]).contains("The recorder keeps nothing: No such file"));
}
