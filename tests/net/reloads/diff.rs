//! `baton diff` against an instance: what it announces is what a reload then does.

use serde_json::Value;

use super::Running;
use crate::lab::*;

/// The exit code, and both outputs, of `baton diff` with the file `config`, which the instance does not run.
fn diff(it: &Running, config: &Config, json: bool) -> (i32, String, String) {
    let path = it.lab.directory().join("new.toml");
    std::fs::write(&path, config.text(&it.baton.paths.socket)).unwrap();
    let file = path.to_str().unwrap();
    let arguments: Vec<_> = ["diff"].into_iter().chain(json.then_some("--json")).chain([file]).collect();
    let ran = it.baton.cli(&arguments);
    let [out, error] = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap());
    (ran.status.code().unwrap(), out, error)
}

fn affected(it: &Running, config: &Config) -> Vec<(String, u64, String, u64)> {
    let (code, out, error) = diff(it, config, true);
    assert_eq!(code, 1, "{out}{error}");
    let told: Value = serde_json::from_str(&out).unwrap();
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        (text("backend"), row["flows"].as_u64().unwrap(), text("reason"), row["within_ms"].as_u64().unwrap())
    };
    told["affected"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn the_difference_names_keys_and_the_flows_that_end_and_changes_nothing() {
    let adjust = |config: Config| config.frontend("drain_timeout", "2s");
    let Some(it) = Running::with("diff", adjust) else { return };
    let (code, out, _) = diff(&it, &it.config, false);
    assert_eq!((code, out.starts_with("no difference: ")), (0, true), "{out}");

    let mut leaving = it.baton.connect_to(&it.lab.client, "b1");
    let mut staying = it.baton.connect_to(&it.lab.client, "b2");
    leaving.echo(1, 1000);
    staying.echo(1, 1000);
    assert_eq!(it.baton.flows_of("b1"), 1);
    let before = it.baton.reloads();
    let new = it.config.clone().without_backend("b1").frontend("balance", "round_robin");
    let (code, out, _) = diff(&it, &new, false);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains(": balance least_conn becomes round_robin\n"), "{out}");
    assert!(out.contains("/b1 removed: its flows drain\n"), "{out}");
    assert!(out.contains("go on; reset after 2.0 s (drain_deadline)"), "{out}");
    assert_eq!(affected(&it, &new), [("b1".to_owned(), 1, "drain_deadline".to_owned(), 2000)]);
    // It has changed nothing.
    assert_eq!((it.baton.reloads(), &*it.baton.health_state("b1")), (before, "ready"));
    leaving.echo(2, 1000);

    let watch = Stopwatch::start();
    it.reload(&new);
    assert_eq!(leaving.end(LONG), End::Rst);
    println!("announced within 2 s, and reset after {:?}", watch.elapsed());
    assert!(watch.elapsed() > secs(2), "{:?}", watch.elapsed());
    it.baton.wait_ended("drain_deadline", 1);
    staying.echo(3, 1000);
    drop(staying);
    it.baton.rests();
}

#[test]
fn a_shorter_idle_timeout_and_a_new_address_are_announced() {
    let Some(it) = Running::start("diff idle") else { return };
    let mut conn = it.baton.connect_to(&it.lab.client, "b1");
    conn.echo(1, 1000);
    let shorter = it.config.clone().frontend("idle_timeout", "1s");
    eventually(LONG, "the flow has been idle for a second", || !affected(&it, &shorter).is_empty());
    let idle = affected(&it, &shorter);
    assert_eq!((&*idle[0].0, &*idle[0].2, idle[0].3), ("b1", "idle_timeout", 125));
    assert_eq!(affected(&it, &it.config.clone().frontend("idle_timeout", "1h")), []);
    let moved = affected(&it, &it.config.clone().of_backend("b1", "address", "192.0.2.1:6443"));
    assert_eq!((moved.len(), &*moved[0].0, &*moved[0].2, moved[0].3), (1, "b1", "drain_deadline", 150_000));
    drop(conn);
    it.baton.rests();
}

#[test]
fn a_bad_file_and_a_change_that_needs_more_than_a_reload_are_told() {
    let Some(it) = Running::start("diff bad") else { return };
    let (code, _, error) = diff(&it, &it.config.clone().frontend("balance", "least"), false);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("balance = \"least\"") && error.contains("least_conn"), "{error}");
    let (code, out, _) = diff(&it, &it.config.clone().process("workers", 7), false);
    assert_eq!(code, 1, "{out}");
    assert!(out.starts_with("[process] workers none becomes 7\n"), "{out}");
    assert!(out.contains("a reload cannot change process.workers: `baton upgrade`"), "{out}");
    it.baton.rests();
}
