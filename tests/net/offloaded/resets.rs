//! What resets flows because they are offloaded: it stops after a few, and the others live. And what resets them for other reasons
//! stops nothing.

use super::Scene;
use crate::lab::*;

/// A middlebox that resets connections: packets of Baton's sockets arrive with a time to live of 64, packets that the
/// program forwards with one less.
const OFFENDED: &str = "table inet n { chain in { type filter hook input priority 0; \
                        ip ttl 63 tcp dport 6443 reject with tcp reset; }\n}";

fn stopped(baton: &Baton) -> bool {
    baton.metric("baton_offload_stopped", &[]) == 1.0
}

#[test]
fn row37_flows_that_are_reset_because_they_are_offloaded_stop_that_and_the_others_live() {
    let Some(scene) = Scene::new("resets") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let offended =
        |on: bool| lab.backends().iter().for_each(|host| if on { host.nft(OFFENDED) } else { host.nft_clear() });
    offended(true);
    let baton = lab.start(&scene.config().offload("after", "100ms"));
    let (mut conns, mut dead, watch) = (Vec::new(), 0, Stopwatch::start());
    let mut seed = 0;
    let mut speak = |conns: &mut Vec<Conn>| {
        let before = conns.len();
        seed += 1;
        conns.retain_mut(|conn| conn.try_echo(seed, 100).is_ok());
        before - conns.len()
    };
    while !stopped(&baton) {
        assert!(watch.elapsed() < LONG, "offload goes on, and {dead} flows are dead");
        if conns.len() < 60 {
            conns.push(lab.client.connect(lab.lb.v4(6443)));
        }
        dead += speak(&mut conns);
    }
    println!("row 37: offload stopped after {:?} and {dead} flows, {} live", watch.elapsed(), conns.len());
    assert!((5..50).contains(&dead), "{dead}");
    // Those that were about to.
    speak(&mut conns);
    conns.extend((0..10).map(|_| lab.client.connect(lab.lb.v4(6443))));
    let watch = Stopwatch::start();
    while watch.elapsed() < ms(1500) {
        assert_eq!(speak(&mut conns), 0, "no flow ends any more");
    }
    let all = conns.len();
    eventually(LONG, "they say why they stay", || {
        baton.flows().iter().filter(|flow| flow["state"] == "proxied" && flow["stays"] == "resets").count() == all
    });
    assert_eq!(baton.events_of("offload_stopped").len(), 1);
    assert_eq!(baton.status()["offload"]["stopped"], true);
    let text = String::from_utf8(baton.cli(&["status"]).stdout).unwrap();
    assert!(text.contains("flows were reset right after Baton had offloaded them"), "{text}");
    assert!(baton.http("/").unwrap().1.contains("Offload has stopped"));
    // Baton tries it with one flow after a reload.
    baton.order(&["reload"]);
    conns.push(lab.client.connect(lab.lb.v4(6443)));
    let mut died = 0;
    eventually(2 * LONG, "one is tried", || {
        // They pause in between: a flow that is never quiet is tried only once a second, perhaps in vain for long.
        std::thread::sleep(ms(300));
        died += speak(&mut conns);
        died > 0
    });
    let watch = Stopwatch::start();
    while watch.elapsed() < ms(500) {
        died += speak(&mut conns);
    }
    assert_eq!(died, 1, "and no other");
    offended(false);
    baton.order(&["reload"]);
    let mut new: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    eventually(2 * LONG, "it is over", || {
        std::thread::sleep(ms(300));
        assert_eq!(speak(&mut new), 0);
        !stopped(&baton)
    });
    println!("row 37: it was over after {:?}", watch.elapsed());
    new.extend((0..5).map(|_| lab.client.connect(lab.lb.v4(6443))));
    assert_eq!(speak(&mut new), 0);
    eventually(2 * LONG, "new flows are offloaded", || {
        baton.flows().iter().filter(|flow| flow["state"] == "offloaded").count() >= 6
    });
    assert_eq!(baton.events_of("offload_resumed").len(), 1);
    drop((conns, new));
    baton.rests();
}

#[test]
fn row37_clients_that_reset_their_flows_and_a_backend_that_is_killed_stop_no_offload() {
    let Some(scene) = Scene::new("resets-own") else { return };
    let lab = &scene.lab;
    let mut servers = lab.echo_everywhere().map(Some);
    let baton = lab.start(&scene.config().offload("after", "100ms"));
    // A load test whose clients all leave by RST, some soon and some late.
    let mut late = Vec::new();
    for seed in 0..150 {
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        (0..4).for_each(|round| conn.echo(seed * 4 + round, 100));
        match seed % 3 {
            0 => late.push(conn),
            _ => conn.reset(),
        }
    }
    let watch = Stopwatch::start();
    while watch.elapsed() < ms(1500) {
        late.iter_mut().for_each(|conn| conn.echo(1, 100));
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        (0..4).for_each(|round| conn.echo(round, 100));
        conn.reset();
    }
    late.into_iter().for_each(Conn::reset);
    eventually(LONG, "they are gone", || baton.flow_count() == 0);
    assert_eq!((stopped(&baton), baton.events_of("offload_stopped").len()), (false, 0));
    // Of flows that rest a third is reset at once, each at its next word: the backend's process is gone, and its host says so.
    let mut conns: Vec<_> = (0..90).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| (0..4).for_each(|round| conn.echo(round, 100)));
    eventually(LONG, "many have been offloaded", || {
        baton.status()["totals"]["flows"]["offloaded"].as_u64() >= Some(60)
    });
    lab.b1
        .nft("table inet n { chain in { type filter hook input priority 0; tcp dport 6443 reject with tcp reset; }\n}");
    drop(servers[0].take());
    let before = conns.len();
    conns.retain_mut(|conn| conn.try_echo(9, 100).is_ok());
    assert!((10..60).contains(&(before - conns.len())), "{} of {before} live", conns.len());
    baton.wait_health("b1", "ejected", LONG);
    let watch = Stopwatch::start();
    conns.extend((0..10).map(|_| lab.client.connect(lab.lb.v4(6443))));
    let all = conns.len() as u64;
    conns.iter_mut().for_each(|conn| (0..4).for_each(|round| conn.echo(round, 100)));
    eventually(2 * LONG, "all are offloaded again", || baton.status()["totals"]["flows"]["offloaded"] == all);
    println!("row 37: after a backend's death all had been offloaded after {:?}", watch.elapsed());
    assert_eq!((stopped(&baton), baton.events_of("offload_stopped").len()), (false, 0));
    drop((conns, servers));
    baton.rests();
}
