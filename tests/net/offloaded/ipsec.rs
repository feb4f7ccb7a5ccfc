//! Hosts with IPsec: the program bypasses IPsec, so flows that a policy covers must stay proxied.

use super::Scene;
use crate::lab::*;

/// Requires what goes to `to` to be encrypted; no key for it is ever made, so that nothing gets through.
fn require(host: &Host, to: &str) {
    host.run(&format!(
        "ip xfrm policy add dir out src 0.0.0.0/0 dst {to} priority 10 tmpl src 0.0.0.0 dst 0.0.0.0 proto esp mode transport"
    ));
}

fn knows(test: &str, host: &Host) -> bool {
    let knows = host.run("ip xfrm policy count >/dev/null 2>&1 && echo yes || true").contains("yes");
    if !knows {
        network::skip(test, "this kernel has no IPsec");
    }
    knows
}

/// A policy of a level that lets packets go as they are while there is no key: the flow works, and its policy wants more.
#[test]
fn flows_that_an_ipsec_policy_covers_stay_proxied_and_work() {
    let Some(scene) = Scene::new("ipsec") else { return };
    let lab = &scene.lab;
    if !knows("ipsec", &lab.lb) {
        return;
    }
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let optional = |direction: &str, far: &str, near: &str| {
        let ends = if direction == "out" { format!("src {near} dst {far}") } else { format!("src {far} dst {near}") };
        lab.lb.run(&format!("ip xfrm policy add dir {direction} {ends} priority 10 tmpl src {} dst {} proto esp mode transport level use",
            if direction == "out" { near.trim_end_matches("/32") } else { far.trim_end_matches("/32") },
            if direction == "out" { far.trim_end_matches("/32") } else { near.trim_end_matches("/32") }));
    };
    for (direction, far) in [("out", "10.77.0.10/32"), ("in", "10.77.0.10/32")] {
        optional(direction, far, "10.77.0.2/32");
        let mut covered = lab.client.connect(lab.lb.v4(6443));
        let mut other = lab.client2.connect(lab.lb.v4(6443));
        covered.echo(1, 1000);
        other.echo(2, 1000);
        baton.wait_offloaded(1);
        let of = covered.local().to_string();
        let stays = || baton.flows().into_iter().any(|flow| flow["client"] == *of && flow["stays"] == "ipsec");
        eventually(LONG, "the flow says why it stays", stays);
        covered.echo(3, 100_000);
        other.echo(4, 100_000);
        lab.lb.run("ip xfrm policy flush");
        drop((covered, other));
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
        // Without the policy such flows are offloaded.
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.echo(5, 1000);
        baton.wait_offloaded(1);
        drop(conn);
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
    }
    baton.rests();
}

#[test]
fn offloaded_flows_are_reset_when_an_ipsec_policy_comes_to_cover_them() {
    let Some(scene) = Scene::new("ipsec, later") else { return };
    let lab = &scene.lab;
    if !knows("ipsec, later", &lab.lb) {
        return;
    }
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..3).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    let mut others: Vec<_> = (0..3).map(|_| lab.client2.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().chain(&mut others).for_each(|conn| conn.echo(1, 100));
    baton.wait_offloaded(6);
    require(&lab.lb, "10.77.0.10/32");
    baton.wait_ended("ipsec", 3);
    // The policy holds back packets that this host sends itself; the program answers any packet.
    conns.iter_mut().for_each(|conn| {
        let _ = conn.send(2, 10);
        assert_eq!(conn.end(secs(5)), End::Rst);
    });
    others.iter_mut().for_each(|conn| conn.echo(3, 1000));
    drop((conns, others));
    baton.rests();
}
