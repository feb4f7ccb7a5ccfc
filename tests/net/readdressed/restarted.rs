//! By another file that the next process reads.

use super::*;

/// Flows that offloaded, the process killed, and one that has b1 at another address.
fn restarted(scene: &Scene, config: &Config, changed: &Config) -> (Baton, Vec<Conn>) {
    let mut baton = scene.lab.start(config);
    let mut conns = at_b1(&scene.lab, &baton, 3, true);
    baton.process.kill();
    conns.iter_mut().for_each(|conn| conn.echo(8, 1000));
    baton = scene.lab.start(changed);
    baton.wait_offloaded(3);
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
    (baton, conns)
}

#[test]
fn clients_of_an_old_address_are_reset_when_its_host_dies_after_a_crash() {
    let Some(scene) = Scene::new("readdressed crash") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().only(&["b1", "b2"]);
    let changed = config.clone().of_backend("b1", "address", lab.b3.v4(6443).to_string());
    let (baton, mut conns) = restarted(&scene, &config, &changed);
    lab.b1.link_down();
    all_are_reset(&mut conns, Stopwatch::start());
    baton.wait_ended("backend_ejected", 3);
    drop(conns);
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
    eventually(LONG, "the old address is forgotten", || baton.backend(&old_b1(lab)).is_none());
}

#[test]
fn flows_of_an_old_address_go_on_after_a_crash_although_the_new_one_is_dead_and_are_drained() {
    let Some(scene) = Scene::new("readdressed crash") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().only(&["b1", "b2"]).frontend("drain_timeout", "12s");
    let changed = config.clone().of_backend("b1", "address", "10.77.0.99:6443");
    let mut baton = lab.start(&config);
    let mut conns = at_b1(lab, &baton, 3, true);
    baton.process.kill();
    baton = Baton::start(&lab.lb, lab.directory(), &changed);
    baton.wait_until_ready();
    baton.wait_offloaded(3);
    throughout(secs(4), "nobody is reset", || baton.ended().is_empty());
    assert_eq!((baton.flows_of("b1"), baton.flows_of(&old_b1(lab))), (0, 3));
    assert_eq!(baton.health_state(&old_b1(lab)), "draining");
    conns.iter_mut().for_each(|conn| conn.echo(10, 1000));
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
    baton.wait_ended("drain_deadline", 3);
}

#[test]
fn flows_of_a_removed_backend_are_watched_and_drained_after_a_crash() {
    let Some(scene) = Scene::new("readdressed crash") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().only(&["b1", "b2"]);
    let (baton, mut conns) = restarted(&scene, &config, &config.clone().without_backend("b1"));
    let gone = format!("removed ({})", lab.b1.v4(6443));
    assert_eq!((baton.flows_of(&gone), baton.health_state(&gone)), (3, "draining".to_owned()));
    assert!(baton.backend(&gone).unwrap()["drain_deadline_in_ms"].as_u64().is_some());
    lab.b1.link_down();
    all_are_reset(&mut conns, Stopwatch::start());
    baton.wait_ended("backend_ejected", 3);
}

/// Those that have sockets, too.
#[test]
fn clients_of_an_old_address_are_reset_when_its_host_dies_after_an_upgrade() {
    let Some(lab) = Lab::new("readdressed upgrade") else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().only(&["b1", "b2"]);
    let baton = lab.start(&config);
    let mut conns = at_b1(&lab, &baton, 3, false);
    baton.write_config(&config.of_backend("b1", "address", lab.b3.v4(6443).to_string()));
    let before = baton.status()["instance"]["pid"].clone();
    baton.order(&["upgrade"]);
    let _successor = Successor(&baton);
    eventually(LONG, "the new process has them", || {
        baton.http("/readyz").is_some_and(|(status, _)| status == 200)
            && baton.status()["instance"]["pid"] != before
            && baton.flow_count() == 3
    });
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
    lab.b1.link_down();
    all_are_reset(&mut conns, Stopwatch::start());
    baton.wait_ended("backend_ejected", 3);
}

/// The instance that serves now, which is no child of the test after an upgrade; killed with this.
struct Successor<'a>(&'a Baton);

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        let pid =
            self.0.status()["instance"]["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
