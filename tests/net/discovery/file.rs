//! The source "file".

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A list of port 6443 of `hosts`.
fn list(hosts: &[&Host]) -> String {
    hosts.iter().map(|host| format!("{}\n", host.v4(6443))).collect()
}

fn start(test: &str) -> Option<(Discovering, PathBuf)> {
    let it = Discovering::new(test, "file")?;
    let path = it.path("backends");
    let config = it.config.clone().discover("path", path.display().to_string());
    Some((Discovering { config, ..it }, path))
}

#[test]
fn a_list_adds_backends_at_once_and_one_that_it_loses_drains() {
    let Some((it, path)) = start("a list of backends") else { return };
    let lab = &it.lab;
    fs::write(&path, list(&[&lab.b1])).unwrap();
    let baton = lab.baton(&it.config.clone().frontend("drain_timeout", "4s"));
    wait_for(&baton, &[&lab.b1]);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);

    let watch = Stopwatch::start();
    fs::write(&path, list(&[&lab.b1, &lab.b2, &lab.b3])).unwrap();
    wait_for(&baton, &[&lab.b1, &lab.b2, &lab.b3]);
    assert!(watch.unstalled() < secs(5), "{:?}", watch.elapsed());
    assert_eq!(baton.metric("baton_discovery_backends", &["frontend=\"apiserver\""]), 3.0);
    conn.echo(2, 1000);
    let other = baton.connect_to(&lab.client, &name_of(&lab.b3));

    // As an editor does: another file takes the name.
    fs::write(it.path("new"), list(&[&lab.b2, &lab.b3])).unwrap();
    let watch = Stopwatch::start();
    fs::rename(it.path("new"), &path).unwrap();
    baton.wait_health(&name_of(&lab.b1), "draining", LONG);
    conn.echo(3, 1000);
    let drained: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).map(|it| baton.serving(&it)).collect();
    assert!(!drained.contains(&name_of(&lab.b1)), "{drained:?}");
    assert_eq!(conn.end(LONG), End::Rst, "after drain_timeout");
    assert!(watch.elapsed() > secs(4), "it drains: {:?}", watch.elapsed());
    baton.wait_ended("drain_deadline", 1);
    wait_for(&baton, &[&lab.b2, &lab.b3]);
    let said = baton.events_of("backends_discovered");
    assert_eq!(said.last().unwrap()["removed"][0], lab.b1.v4(6443).to_string(), "{said:?}");
    drop(other);
}

/// Regression: a host that had no list yet said that it should have the VIP, beside others that serve.
#[test]
fn a_host_without_any_list_is_not_ready_until_one_comes() {
    let Some((it, path)) = start("no list of backends") else { return };
    let baton = Baton::start(&it.lab.lb, it.lab.directory(), &it.config);
    let ready = || baton.cli(&["ready"]);
    eventually(LONG, "it says why", || {
        String::from_utf8_lossy(&ready().stdout).contains("not ready: no list of backends has come yet for apiserver")
    });
    fs::write(&path, list(&[&it.lab.b1])).unwrap();
    eventually(LONG, "it is ready", || ready().status.success());
}

#[test]
fn a_list_that_is_wrong_half_written_empty_or_gone_changes_nothing() {
    let Some((it, path)) = start("a wrong list of backends") else { return };
    let lab = &it.lab;
    let good = list(&[&lab.b1, &lab.b2]);
    fs::write(&path, &good).unwrap();
    let baton = lab.baton(&it.config);
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    let wrong = [
        (format!("{}cp3:6443\n", list(&[&lab.b1])), ":2: expected an address"),
        // Also cut off here, it is an address.
        (good[..good.len() - 2].to_owned(), ":2: the last line does not end with a newline"),
        (String::new(), "it has no address"),
        (format!("{}\n", lab.lb.v4(6443)), "it has no address but this load balancer's own"),
    ];
    for (number, (text, error)) in wrong.iter().enumerate() {
        fs::write(&path, text).unwrap();
        eventually(LONG, &format!("an event says {error}"), || failures(&baton).1.contains(error));
        assert_eq!(failures(&baton).0, number + 1, "said once");
        assert_eq!(baton.metric("baton_discovery_failing", &["frontend=\"apiserver\""]), 1.0);
        wait_for(&baton, &[&lab.b1, &lab.b2]);
        conn.echo(2, 1000);
    }
    fs::remove_file(&path).unwrap();
    eventually(LONG, "the missing file is said", || failures(&baton).1.contains("no such file"));
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    assert!(baton.events_of("backend_removed").is_empty());

    fs::write(&path, list(&[&lab.b1, &lab.b2, &lab.b3])).unwrap();
    wait_for(&baton, &[&lab.b1, &lab.b2, &lab.b3]);
    assert_eq!(baton.metric("baton_discovery_failing", &["frontend=\"apiserver\""]), 0.0);
    assert_eq!(baton.events_of("discovery_recovered").len(), 1);
    conn.echo(3, 1000);
    drop(conn);
}

#[test]
fn discovered_backends_outlive_a_reload_an_upgrade_and_a_restart_without_their_source() {
    let Some((it, path)) = start("discovered backends that stay") else { return };
    let lab = &it.lab;
    fs::write(&path, list(&[&lab.b1, &lab.b2])).unwrap();
    let baton = lab.baton(&it.config);
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    let mut conn = baton.connect_to(&lab.client, &name_of(&lab.b1));
    conn.echo(1, 1000);

    // A reload: the file's own backend is added to them, and goes again.
    baton.write_config(&it.config.clone().backend("own", lab.b3.v4(6443)));
    baton.order(&["reload"]);
    baton.wait_health("own", "ready", LONG);
    assert_eq!(["own", &name_of(&lab.b1), &name_of(&lab.b2)].map(|name| baton.health_state(name)), ["ready"; 3]);
    baton.write_config(&it.config);
    baton.order(&["reload"]);
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    // Another source: its list is in force with the reload.
    let other = it.path("others");
    fs::write(&other, list(&[&lab.b1, &lab.b2, &lab.b3])).unwrap();
    let moved = it.config.clone().discover("path", other.display().to_string());
    baton.write_config(&moved);
    baton.order(&["reload"]);
    wait_for(&baton, &[&lab.b1, &lab.b2, &lab.b3]);
    let cache = it.path("another cache");
    baton.write_config(&moved.discover("cache_file", cache.display().to_string()));
    baton.order(&["reload"]);
    assert!(baton.events_of("backend_removed").iter().all(|event| event["backend"] == "own"));
    conn.echo(2, 1000);

    // An upgrade, and the new process follows the list.
    fs::write(&other, list(&[&lab.b1, &lab.b3])).unwrap();
    wait_for(&baton, &[&lab.b1, &lab.b3]);
    eventually(LONG, "the last list is kept", || {
        fs::read_to_string(&cache).is_ok_and(|text| text.lines().count() == 3)
    });
    fs::remove_file(&other).unwrap();
    baton.order(&["upgrade"]);
    wait_for(&baton, &[&lab.b1, &lab.b3]);
    conn.echo(3, 1000);
    fs::write(&other, list(&[&lab.b1, &lab.b2, &lab.b3])).unwrap();
    wait_for(&baton, &[&lab.b1, &lab.b2, &lab.b3]);
    eventually(LONG, "the last list is kept", || {
        fs::read_to_string(&cache).is_ok_and(|text| text.lines().count() == 4)
    });
    conn.echo(4, 1000);

    // A start without the list begins with the last one.
    fs::remove_file(&other).unwrap();
    drop(conn);
    let pid = baton.status()["instance"]["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("its pid");
    kill_process(pid, Signal::KILL).unwrap();
    eventually(LONG, "Baton has ended", || lab.client.try_connect(lab.lb.v4(6443), secs(1)).is_err());
    drop(baton);
    let baton = Baton::start_with(&lab.lb, lab.directory());
    baton.wait_until_ready();
    wait_for(&baton, &[&lab.b1, &lab.b2, &lab.b3]);
    lab.client.connect(lab.lb.v4(6443)).echo(5, 1000);
}
