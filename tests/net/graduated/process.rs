//! Graduated flows and the process: killed, stopped, started again, replaced.

use super::Scene;
use crate::lab::*;

#[test]
fn row33_graduated_flows_do_not_notice_a_kill_and_the_next_process_adopts_them() {
    let Some(scene) = Scene::new("row33") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config();
    let mut baton = lab.start(&config);
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_graduated(20);
    let before: Vec<_> = baton.flows().iter().map(|flow| (flow["id"].as_u64(), flow["backend"].to_string())).collect();
    for _ in 0..2 {
        baton.process.kill();
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 10_000));
        baton = lab.start(&config);
        baton.wait_graduated(20);
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 10_000));
    }
    let mut after: Vec<_> =
        baton.flows().iter().map(|flow| (flow["id"].as_u64(), flow["backend"].to_string())).collect();
    let mut before = before;
    before.sort();
    after.sort();
    assert_eq!(before, after);
    eventually(LONG, "all of their bytes are counted", || {
        baton.flows().iter().all(|flow| flow["bytes_up"] == 40_400 && flow["bytes_down"] == 40_400)
    });
    // New flows beside them, and an order for an adopted one.
    lab.client.connect(lab.lb.v4(6443)).echo(1, 1000);
    let id =
        baton.flows().iter().find(|flow| flow["client"] == conns[0].local().to_string()).unwrap()["id"].to_string();
    baton.order(&["kill", &id]);
    assert_eq!(conns[0].end(LONG), End::Rst);
    drop(conns);
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
}

#[test]
fn a_stop_leaves_graduated_flows_alone_and_ends_at_once() {
    let Some(scene) = Scene::new("stop") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config();
    let baton = lab.start(&config);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_graduated(1);
    let watch = Stopwatch::start();
    baton.process.signal(rustix::process::Signal::TERM);
    eventually(LONG, "it has stopped", || baton.process.exit_status().is_some());
    assert!(watch.unstalled() < secs(5), "a stop waits for flows that need no process: {:?}", watch.elapsed());
    conn.echo(9, 100_000);
    let baton = lab.start(&config);
    baton.wait_graduated(1);
    conn.echo(10, 100_000);
}

#[test]
fn an_upgrade_takes_graduated_flows_along_without_a_touch() {
    let Some(scene) = Scene::new("upgrade") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_graduated(20);
    let ids = || {
        let mut ids: Vec<_> = baton.flows().iter().map(|flow| flow["id"].as_u64()).collect();
        ids.sort();
        ids
    };
    let before = ids();
    for _ in 0..2 {
        baton.order(&["upgrade"]);
        eventually(LONG, "the new process has them", || {
            baton.http("/readyz").is_some_and(|(status, _)| status == 200) && ids() == before
        });
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 20_000));
    }
    baton.wait_graduated(20);
    lab.client.connect(lab.lb.v4(6443)).echo(1, 1000);
    // It is nobody's child any more.
    let pid = baton.status()["instance"]["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn taking_the_path_away_resets_its_flows_though_nobody_sends_a_byte() {
    let Some(scene) = Scene::new("remove") else { return };
    let lab = &scene.lab;
    let servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_graduated(20);
    baton.process.kill();
    conns[0].echo(7, 100);
    let pins = scene.pinned.directory.to_str().unwrap();
    let told = lab.lb.run(&format!("{} path --pins {pins} remove --yes", crate::lab::baton::BINARY));
    assert!(told.contains("20 flows in it"), "{told}");
    for conn in &mut conns {
        assert_eq!(conn.end(LONG), End::Rst);
    }
    eventually(LONG, "the backends are rid of them", || servers.iter().all(|server| server.open() == 0));
}
