//! Bytes, states and ends of offloaded flows without any fault.

use super::Scene;
use crate::lab::bytes::Tally;
use crate::lab::*;

#[test]
fn a_flow_is_offloaded_and_its_bytes_go_on_unharmed() {
    let Some(scene) = Scene::new("offloaded") else { return };
    let _servers = scene.lab.echo_everywhere();
    let baton = scene.lab.start(&scene.config());
    let mut conn = scene.lab.client.connect(scene.lab.lb.v4(6443));
    for round in 0..10 {
        conn.echo(round, 100);
    }
    baton.wait_offloaded(1);
    conn.echo(50, 3_000_000);
    conn.echo(51, 1);
    let total = 10 * 100 + 3_000_000 + 1;
    eventually(LONG, "its bytes are counted", || {
        let flow = &baton.flows()[0];
        flow["bytes_to_backend"] == total && flow["bytes_to_client"] == total
    });
    drop(conn);
    baton.wait_ended("client_closed", 1);
    baton.rests();
}

/// Regression: the FIN of a client that answers within a tick of the kernel's clock counted as the first one: of a backend that was killed,
/// nine of ten flows were said to have been closed by their clients.
#[test]
fn the_end_that_closes_first_is_named_although_the_other_one_answers_at_once() {
    let Some(scene) = Scene::new("offloaded") else { return };
    let server = scene.lab.b1.serve(Behaviour::Echo);
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    let mut conns: Vec<_> = (0..20).map(|_| scene.lab.client.connect(scene.lab.lb.v4(6443))).collect();
    conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 100));
    baton.wait_offloaded(20);
    std::thread::scope(|scope| {
        for mut conn in conns {
            // Dropped as soon as its end has come.
            scope.spawn(move || assert_eq!(conn.end(LONG), End::Fin));
        }
        drop(server);
    });
    baton.wait_ended("backend_closed", 20);
    let ended = |reason| baton.metric("baton_flows_ended_total", &[&format!("reason=\"{reason}\"")]);
    assert_eq!((ended("backend_closed"), ended("client_closed")), (20.0, 0.0));
}

#[test]
fn an_answer_to_a_half_closed_client_comes_by_the_path() {
    let Some(scene) = Scene::new("offloaded") else { return };
    let server = scene.lab.b1.serve(Behaviour::AnswerAfterFin { seed: 31, bytes: 5_000_000 });
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    let mut conn = scene.lab.client.connect(scene.lab.lb.v4(6443));
    conn.send(30, 500).unwrap();
    baton.wait_offloaded(1);
    conn.send(33, 1_000_000).unwrap();
    conn.half_close();
    let (end, tally, _) = conn.read_end(LONG);
    assert_eq!((end, tally), (End::Fin, Tally::of_pattern(31, 5_000_000)));
    eventually(LONG, "the server got it all", || server.ended().iter().any(|s| s.received.bytes == 1_000_500));
    baton.wait_ended("client_closed", 1);
    drop(conn);
    baton.rests();
}

/// Regression: flows were tried again each second for all their lives. After a single packet an accepted socket does
/// not know yet which interface it receives on.
#[test]
fn flows_that_say_a_word_or_none_and_then_rest_are_offloaded_all_of_them() {
    let Some(scene) = Scene::new("offloaded") else { return };
    let lab = &scene.lab;
    let backends = lab.backends();
    let _v4 = lab.echo_everywhere();
    let _v6 = backends.map(|host| host.serve_on(host.v6(6443), Behaviour::Echo));
    for ipv6 in [false, true] {
        let at = |host: &Host| if ipv6 { host.v6(6443) } else { host.v4(6443) };
        let config = backends.iter().fold(scene.config().only(&[]), |config, host| config.backend(host.name, at(host)));
        let baton = lab.start(&config);
        let silent: Vec<_> = (0..10).map(|_| lab.client.connect(at(&lab.lb))).collect();
        let mut brief: Vec<_> = (0..100).map(|_| lab.client.connect(at(&lab.lb))).collect();
        brief.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 16));
        baton.wait_offloaded(110);
        brief.iter_mut().chain(&mut { silent }).enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 1600));
        drop(brief);
        baton.rests();
    }
}

#[test]
fn an_upload_that_its_backend_only_acknowledges_is_offloaded_in_its_first_pause() {
    let Some(scene) = Scene::new("offloaded") else { return };
    let server = scene.lab.b1.serve(Behaviour::Sink);
    let baton = scene.lab.start(&scene.config().only(&["b1"]));
    let probes = server.accepted();
    let mut conn = scene.lab.client.connect(scene.lab.lb.v4(6443));
    conn.send(1, 16).unwrap();
    baton.wait_offloaded(1);
    conn.send(2, 2_000_000).unwrap();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    let whole =
        || server.ended().iter().skip(probes.saturating_sub(1)).any(|served| served.received.bytes == 2_000_016);
    eventually(LONG, "the backend got every byte", whole);
    drop(conn);
    baton.rests();
}
