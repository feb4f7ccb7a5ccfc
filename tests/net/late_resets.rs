//! A host that was cut off for longer than the kernel waits learns of its connections' end when it is back, though it
//! sends nothing: no kernel sends RST for a connection that has timed out.

use ::baton::sys::bpf::Map;

use crate::lab::*;
use crate::offloaded::Scene;

fn impatient(config: Config) -> Config {
    let config = config.frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s");
    config.frontend("keepalive_count", 2).frontend("user_timeout", "2s")
}

/// The state of a host that is back: it has received nothing meanwhile, and sends nothing.
const BACK: std::time::Duration = secs(5);

#[test]
fn a_client_that_was_cut_off_for_too_long_is_reset_when_it_is_back() {
    let Some(lab) = Lab::new("a_client_that_was_cut_off_for_too_long") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&impatient(lab.config().only(&["b1"])));
    for vip in [lab.lb.v4(6443), lab.lb.v6(6443)] {
        let [mut idle, mut waiting] = [1, 2].map(|seed| {
            let mut conn = lab.client.connect(vip);
            conn.echo(seed, 4321);
            conn
        });
        let before = baton.ended().get("client_timed_out").copied().unwrap_or(0);
        lab.client.link_down();
        // One has nothing under way, to the other bytes are.
        server.say(7, 50_000);
        baton.wait_ended("client_timed_out", before + 2);
        idle.stays_open(ms(10));
        lab.client.link_up();
        let watch = Stopwatch::start();
        for conn in [&mut idle, &mut waiting] {
            assert_eq!(conn.end(BACK), End::Rst, "{vip}");
        }
        println!("{vip}: reset {:?} after it was back", watch.elapsed());
    }
    baton.rests();
}

#[test]
fn a_client_that_begins_anew_by_the_same_port_is_left_alone() {
    let Some(lab) = Lab::new("a_client_that_begins_anew_by_the_same_port") else { return };
    let _server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&impatient(lab.config().only(&["b1"])));
    let vip = lab.lb.v4(6443);
    let mut conn = lab.client.connect(vip);
    conn.echo(1, 100);
    let from = conn.local();
    lab.client.link_down();
    baton.wait_ended("client_timed_out", 1);
    // It has lost its memory meanwhile.
    conn.reset();
    lab.client.link_up();
    let mut anew = lab.client.connect_by(from, vip, LONG).expect("the port is free");
    anew.echo(2, 100);
    let late = || lab.client.counter("snmp", "Tcp:", "EstabResets");
    let before = late();
    anew.stays_open(secs(3));
    assert_eq!(late(), before);
    anew.echo(3, 100);
}

#[test]
fn a_backend_that_was_cut_off_for_too_long_is_reset_when_it_is_back() {
    let Some(lab) = Lab::new("a_backend_that_was_cut_off_for_too_long") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let config = impatient(lab.config().only(&["b1"])).health("interval", "60s").health("timeout", "50s");
    let baton = lab.start(&config);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 4321);
    lab.b1.link_down();
    baton.wait_ended("backend_timed_out", 1);
    assert_eq!(conn.end(LONG), End::Rst);
    assert!(!server.ended().iter().any(|served| served.received.bytes == 4321), "it hears nothing");
    lab.b1.link_up();
    let of_flow = || server.ended().into_iter().find(|served| served.received.bytes == 4321);
    let (served, after) = eventually_some(BACK, "the backend hears of the end", of_flow);
    assert_eq!(served.end, End::Rst);
    println!("reset {after:?} after it was back");
}

/// Whatever the cause of the end: the offload engine sends resets for some seconds, and a host that is back only after
/// that gets one, too.
#[test]
fn a_client_that_was_cut_off_when_its_offloaded_flow_was_killed_is_reset_long_after_the_engine_has_forgotten_it() {
    let Some(scene) = Scene::new("late-offloaded") else { return };
    let lab = &scene.lab;
    let _server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&["b1"]));
    let mut conns: Vec<_> = [1, 2].map(|_| lab.client.connect(lab.lb.v4(6443))).into();
    conns.iter_mut().for_each(|conn| (0..5).for_each(|round| conn.echo(round, 200)));
    baton.wait_offloaded(2);
    lab.client.link_down();
    assert!(baton.cli(&["kill", "--all", "--yes"]).status.success());
    let map = Map::open(&scene.pinned.directory.join("flows")).expect("it is pinned");
    let room = map.max_entries() as usize;
    let (mut keys, mut values) = (vec![0; room * map.key_size()], vec![0; room * map.value_size()]);
    eventually(LONG, "the offload engine has forgotten them", || {
        map.look_up_batch(None, &mut keys, &mut values).is_ok_and(|(count, _)| count == 0)
    });
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(10)));
    lab.client.link_up();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(BACK), End::Rst));
    baton.rests();
}
