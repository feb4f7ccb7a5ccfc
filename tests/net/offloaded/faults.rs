//! The fault matrix with offloaded flows: rows 2, 4, 7, 8, 12 to 14 and 34.

use super::Scene;
use crate::faults_backend::hears_nobody;
use crate::lab::bytes::Tally;
use crate::lab::*;

/// As for proxied flows: the promise is 2.5 s at the defaults, the rest is room for a machine under load.
const SILENT_BACKEND: std::time::Duration = secs(4);

/// A connection that has been offloaded.
fn offloaded(scene: &Scene, baton: &Baton, backend: &str) -> Conn {
    let mut conn = baton.connect_to(&scene.lab.client, backend);
    for round in 0..4 {
        conn.echo(round, 100);
    }
    // Those that went to another backend are over.
    eventually(LONG, "there is no other flow", || baton.flow_count() == 1);
    baton.wait_offloaded(1);
    conn
}

/// Regression: Baton drained a hung apiserver instead of ejecting it as long as its kubelets sent bytes. It took the
/// acknowledgements of the apiserver's kernel for bytes of its process.
#[test]
fn row02_a_hung_server_is_ejected_although_its_kernel_acknowledges_what_clients_send() {
    let Some(scene) = Scene::new("row02") else { return };
    let lab = &scene.lab;
    let certificates = Certificates::make(lab);
    let hung = StandIn::start(lab, &certificates, &lab.b1);
    let _b2 = StandIn::start(lab, &certificates, &lab.b2);
    let baton = lab.start(&scene.config().only(&["b1", "b2"]).https(&certificates.ca()));
    let mut conn = baton.connect_to(&lab.client, "b1");
    // The server waits for the rest of a record of 16 KiB, and says nothing.
    conn.send_bytes(&[0x16, 3, 1, 0x40, 0]).unwrap();
    baton.wait_offloaded(1);
    hung.process.stop();
    let watch = Stopwatch::start();
    let error = loop {
        if let Err(error) = conn.send_bytes(&[0]) {
            break error;
        }
        assert!(watch.elapsed() < LONG, "b1 is {} after {:?}", baton.health_state("b1"), watch.elapsed());
        std::thread::sleep(ms(10));
    };
    println!("row 2: a client that speaks to a hung server saw its end after {:?}", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    assert_eq!(End::of_error(&error), End::Rst);
    baton.wait_ended("backend_ejected", 1);
    assert_eq!(baton.states("b1").last().map(String::as_str), Some("ejected"));
    drop(conn);
    baton.rests();
}

#[test]
fn row04_clients_of_a_backend_host_that_died_see_rst_idle_or_not() {
    let Some(scene) = Scene::new("row04") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().only(&["b1", "b2"]));
    let mut idle = baton.connect_to(&lab.client, "b1");
    let mut busy = baton.connect_to(&lab.client, "b1");
    for round in 0..4 {
        idle.echo(round, 100);
        busy.echo(round, 100);
    }
    baton.wait_offloaded(2);
    lab.b1.link_down();
    let watch = Stopwatch::start();
    busy.send(9, 1000).unwrap();
    assert_eq!(busy.end(LONG), End::Rst);
    println!("row 4: the client of a dead backend saw RST after {:?}", watch.elapsed());
    assert_eq!(idle.end(LONG), End::Rst);
    println!("row 4: an idle client of a dead backend saw RST after {:?}", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    baton.wait_ended("backend_ejected", 2);
    drop((idle, busy));
    baton.rests();
}

#[test]
fn row07_one_way_loss_towards_the_backend_is_detected_and_both_sides_are_reset() {
    let Some(scene) = Scene::new("row07") else { return };
    let lab = &scene.lab;
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&["b1"]));
    let mut conn = offloaded(&scene, &baton, "b1");
    lab.b1.drop_packets("input", "tcp dport 6443");
    let watch = Stopwatch::start();
    conn.send(1, 1000).unwrap();
    assert_eq!(conn.end(LONG), End::Rst);
    println!("row 7: the client saw RST after {:?}", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    lab.b1.nft_clear();
    eventually(LONG, "the backend is rid of it", || server.open() == 0);
    drop(conn);
    baton.rests();
}

/// Regression: Baton drained a backend as "slow, not dead" while the backend repeated bytes that no client could
/// acknowledge.
#[test]
fn row07_a_backend_that_hears_nobody_is_ejected_though_it_sends_again_and_again() {
    let Some(scene) = Scene::new("row07") else { return };
    let server = scene.lab.b1.serve(Behaviour::Echo);
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    hears_nobody(&scene.lab, &baton, &server, 41);
}

#[test]
fn row08_a_fifth_of_the_packets_lost_corrupts_nothing_and_ejects_nobody() {
    let Some(scene) = Scene::new("row08") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    // A byte that is lost six times comes after 12.6 s.
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443)).patient(4 * LONG)).collect();
    // Each has its backend before anything is lost.
    conns.iter().for_each(|conn| drop(baton.serving(conn)));
    for host in lab.backends() {
        host.drop_packets("input", "numgen random mod 100 < 20");
    }
    std::thread::scope(|scope| {
        for (seed, conn) in conns.iter_mut().enumerate() {
            scope.spawn(move || (0..10).for_each(|round| conn.echo(seed as u64 * 100 + round, 8_000)));
        }
    });
    // Long enough for a dozen probes of each backend to lose a packet.
    wait::throughout(secs(6), "no flow was reset", || baton.ended().is_empty());
    for backend in ["b1", "b2", "b3"] {
        let states = baton.states(backend);
        assert!(!states.iter().any(|health_state| health_state == "ejected"), "{backend}: {states:?}");
        // Ready at the start is one change.
        assert!(states.len() <= 3, "{backend} flaps: {states:?}");
    }
    lab.backends().iter().for_each(|host| host.nft_clear());
    baton.wait_offloaded(6);
    assert!(baton.ended().is_empty(), "{:?}", baton.ended());
    drop(conns);
    baton.rests();
}

#[test]
fn row12_a_client_s_rst_reaches_the_backend() {
    let Some(scene) = Scene::new("row12") else { return };
    let server = scene.lab.b1.serve(Behaviour::Echo);
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    let conn = offloaded(&scene, &baton, "b1");
    conn.reset();
    let seen = || server.ended().iter().any(|served| served.received.bytes == 400 && served.end == End::Rst);
    eventually(LONG, "the backend saw RST", seen);
    baton.wait_ended("client_reset", 1);
    baton.rests();
}

#[test]
fn row12_a_backend_s_rst_reaches_the_client() {
    let Some(scene) = Scene::new("row12") else { return };
    let _server = scene.lab.b1.serve(Behaviour::ReadThenReset { bytes: 1000 });
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    let mut conn = scene.lab.client.connect(scene.lab.lb.v4(6443));
    baton.wait_offloaded(1);
    conn.send(1, 1000).unwrap();
    assert_eq!(conn.end(LONG), End::Rst);
    baton.wait_ended("backend_reset", 1);
    baton.rests();
}

#[test]
fn row13_a_backend_that_half_closes_still_gets_the_whole_upload() {
    let Some(scene) = Scene::new("row13") else { return };
    let server = scene.lab.b1.serve(Behaviour::Stall { bytes: 100 });
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    let mut conn = scene.lab.client.connect(scene.lab.lb.v4(6443));
    baton.wait_offloaded(1);
    conn.send(32, 100).unwrap();
    server.resume();
    conn.send(33, 3_000_000).unwrap();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    eventually(LONG, "the backend got every byte", || {
        server.ended().iter().any(|served| served.received.bytes == 3_000_100)
    });
    baton.wait_ended("client_closed", 1);
    drop(conn);
    baton.rests();
}

#[test]
fn row14_a_client_that_vanished_amid_a_download_is_reaped_and_its_backend_leg_freed() {
    let Some(scene) = Scene::new("row14") else { return };
    let lab = &scene.lab;
    let server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 5, bytes: u64::MAX });
    let config = scene.config().only(&["b1"]).frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s");
    let baton = lab.start(&config.frontend("keepalive_count", 2).frontend("user_timeout", "2s"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    baton.wait_offloaded(1);
    conn.half_close();
    conn.read_tally(1_000_000).unwrap();
    assert_eq!(conn.received_pattern(5), 1_000_000);
    lab.client.link_down();
    let watch = Stopwatch::start();
    eventually(LONG, "the backend saw RST", || server.ended().iter().any(|s| s.sent > 1_000_000 && s.end == End::Rst));
    println!("row 14: a client that vanished amid a download was reaped after {:?}", watch.elapsed());
    assert!(watch.unstalled() < secs(8), "{:?}", watch.elapsed());
    baton.wait_ended("client_timed_out", 1);
    baton.rests();
}

/// Regression: downloads never ended if the client's window had closed before it vanished, because the backend's probes
/// then have no payload.
#[test]
fn row14_a_client_that_vanished_during_a_pause_is_reaped_and_one_that_pauses_is_not() {
    let Some(scene) = Scene::new("row14") else { return };
    let lab = &scene.lab;
    let server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 5, bytes: u64::MAX });
    let config = scene.config().only(&["b1"]).frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s");
    let baton = lab.start(&config.frontend("keepalive_count", 2).frontend("user_timeout", "2s"));
    let mut conns = [lab.client.connect(lab.lb.v4(6443)), lab.client2.connect(lab.lb.v4(6443))];
    baton.wait_offloaded(2);
    for conn in &mut conns {
        conn.half_close();
        conn.read_tally(1_000_000).unwrap();
    }
    let [gone, mut paused] = conns;
    // Nothing comes any more once the windows are closed.
    let received = || baton.flows().iter().map(|flow| flow["bytes_to_client"].as_u64().unwrap()).collect::<Vec<_>>();
    let mut before = (received(), Stopwatch::start());
    eventually(LONG, "both windows are closed", || {
        if received() != before.0 {
            before = (received(), Stopwatch::start());
        }
        before.1.elapsed() > ms(1500)
    });
    lab.client.link_down();
    let watch = Stopwatch::start();
    eventually(LONG, "the backend saw RST", || server.ended().iter().any(|s| s.sent > 1_000_000 && s.end == End::Rst));
    println!("row 14: a client that vanished during a pause was reaped after {:?}", watch.elapsed());
    baton.wait_ended("client_timed_out", 1);
    // As long again: the other's window is closed for all that time, and its kernel answers.
    eventually(LONG, "more than the patience has gone by", || watch.elapsed() > secs(7));
    assert_eq!(baton.flows().len(), 1, "{:?}", baton.ended());
    paused.read_tally(3_000_000).unwrap();
    assert_eq!(paused.received_pattern(5), 4_000_000);
    drop((gone, paused));
    baton.rests();
}

#[test]
fn row34_a_full_map_keeps_flows_proxied_and_says_so() {
    let Some(scene) = Scene::new("row34") else { return };
    let lab = &scene.lab;
    let _server = lab.b1.serve(Behaviour::Echo);
    // The map is made by the first that opens it, for so many.
    drop(::baton::offload::program::remove(&scene.pinned.directory));
    let baton = lab.start(&scene.config().only(&["b1"]).offload("max_flows", 2));
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    eventually(LONG, "some say why they stay", || baton.flows().iter().any(|flow| flow["stays"] == "map_full"));
    let offloaded = || baton.status()["totals"]["flows"]["offloaded"].as_u64().unwrap();
    eventually(LONG, "others have been offloaded", || (1..6).contains(&offloaded()));
    for (seed, conn) in conns.iter_mut().enumerate() {
        conn.echo(seed as u64, 100_000);
    }
    assert!(baton.metric("baton_flows_stayed_total", &["reason=\"map_full\""]) >= 1.0);
    drop(conns);
    baton.rests();
}

#[test]
fn row34_a_program_that_was_detached_by_somebody_is_attached_again() {
    let Some(scene) = Scene::new("row34") else { return };
    let lab = &scene.lab;
    let _server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&["b1"]));
    let mut conn = offloaded(&scene, &baton, "b1");
    // The last ACK must not come while it is away: the kernel would answer with RST.
    eventually(LONG, "nothing is on its way", || baton.flows()[0]["idle_ms"].as_u64() > Some(500));
    // As `bpftool link detach` does.
    std::fs::remove_file(scene.pinned.directory.join("link-eth0")).unwrap();
    eventually(LONG, "it is attached again", || !baton.events_of("program_reattached").is_empty());
    conn.echo(7, 1000);
    drop(conn);
    baton.rests();
}

#[test]
fn an_operator_kills_drains_and_ejects_offloaded_flows() {
    let Some(scene) = Scene::new("kill") else { return };
    let lab = &scene.lab;
    let servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("drain_timeout", "1s"));
    let mut conn = offloaded(&scene, &baton, "b1");
    let id = baton.flows()[0]["id"].as_str().expect("an id").to_owned();
    baton.order(&["kill", &id]);
    assert_eq!(conn.end(LONG), End::Rst);
    baton.wait_ended("killed", 1);
    eventually(LONG, "its backend is rid of it", || servers[0].open() == 0);

    let mut conn = offloaded(&scene, &baton, "b2");
    baton.order(&["drain", "b2"]);
    assert_eq!(conn.end(LONG), End::Rst);
    baton.wait_ended("drain_deadline", 1);

    let mut conn = offloaded(&scene, &baton, "b3");
    baton.order(&["eject", "b3"]);
    assert_eq!(conn.end(LONG), End::Rst);
    baton.wait_ended("ejected_by_operator", 1);
    baton.rests();
}

#[test]
fn an_offloaded_flow_that_is_idle_for_too_long_is_reset_and_one_that_is_not_lives() {
    let Some(scene) = Scene::new("idle") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("idle_timeout", "4s"));
    let mut idle = offloaded(&scene, &baton, "b1");
    let mut busy = lab.client.connect(lab.lb.v4(6443));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                busy.echo(1, 100);
                std::thread::sleep(ms(100));
            }
        });
        assert_eq!(idle.end(LONG), End::Rst);
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    baton.wait_ended("idle_timeout", 1);
    busy.echo(2, 1000);
    assert_eq!(Tally::of_pattern(1, 0), Tally::default());
    drop(busy);
}

/// Regression: such a flow waited for its ends' own timeouts, up to 15 minutes. Each answer to a challenge was taken for a sign of life.
#[test]
fn a_flow_whose_large_packets_are_lost_ends_once_their_sender_has_tried_for_long_enough() {
    for (to_backend, reason) in [(true, "backend_timed_out"), (false, "client_timed_out")] {
        let Some(scene) = Scene::new("large-lost") else { return };
        let lab = &scene.lab;
        let _server = lab.b1.serve(Behaviour::Echo);
        let baton = lab.start(&scene.config().only(&["b1"]).frontend("user_timeout", "2s"));
        let mut conn = offloaded(&scene, &baton, "b1");
        let (host, port) = if to_backend { (&lab.b1, "dport") } else { (&lab.client, "sport") };
        host.drop_packets("input", &format!("tcp {port} 6443 meta length > 500"));
        conn.send(9, 20_000).unwrap();
        let watch = Stopwatch::start();
        assert_eq!(conn.end(LONG), End::Rst, "to the backend: {to_backend}");
        println!("to the backend: {to_backend}; the client was told after {:?}", watch.elapsed());
        baton.wait_ended(reason, 1);
        drop(conn);
        baton.rests();
    }
}

/// Regression: as above; the backend repeats what nobody has acknowledged.
#[test]
fn a_flow_of_which_one_direction_is_lost_ends_though_its_backend_goes_on_sending() {
    let Some(scene) = Scene::new("one-way") else { return };
    let lab = &scene.lab;
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&["b1"]).frontend("user_timeout", "2s"));
    let mut conn = offloaded(&scene, &baton, "b1");
    let source = baton.flows()[0]["source"].as_str().unwrap().to_owned();
    let port = source.rsplit(':').next().unwrap();
    lab.b1.drop_packets("input", &format!("tcp dport 6443 tcp sport {port}"));
    conn.send(9, 1000).unwrap();
    let watch = Stopwatch::start();
    eventually(LONG, "the client is told", || {
        server.say(3, 100);
        conn.end(ms(200)) == End::Rst
    });
    println!("the client was told after {:?}", watch.elapsed());
    baton.wait_ended("backend_timed_out", 1);
    drop(conn);
    baton.rests();
}
