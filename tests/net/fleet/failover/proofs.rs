//! How long it takes until the last idle client knows that its balancer died: with keepalived at its usual pace, and behind a
//! firewall that tracks connections. The figures are printed, and stand in docs/.

use super::*;

/// Idle clients. Each takes a descriptor here, and its echo server another.
const CLIENTS: u64 = 5000;

#[test]
fn thousands_of_idle_clients_are_reset_within_three_adverts_of_a_second_and_the_skew() {
    let test = "thousands_of_idle_clients_are_reset_within_three_adverts_of_a_second_and_the_skew";
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config) else { return };
    // Its heir waits for three intervals and (256 - 190) / 256 of one (RFC 9568 section 6.1).
    let _keepalived = fleet.kept_alive_by(200, "1");
    let mut conns = fleet.clients(CLIENTS);
    fleet.wait_known(CLIENTS, 0);
    let heir = fleet.heir().host.clone();
    let (came, all) = std::thread::scope(|scope| {
        let watch = Stopwatch::start();
        fleet.owner().host.link_down();
        let came = scope.spawn(move || {
            eventually(secs(30), "the VIP has come", || heir.has_address(VIP));
            watch.elapsed()
        });
        all_reset(&mut conns);
        let all = watch.elapsed();
        (came.join().expect("no panic"), all)
    });
    println!("proof: adverts of 1 s: VIP there after {came:?}, the last of {CLIENTS} idle clients reset after {all:?}");
    // 3.6 s at most where nothing else wants the CPUs; here they may all be taken.
    assert!(all < secs(10), "{all:?}");
}

/// A router between the clients' host and everything else.
fn route_clients(scene: &Scene) {
    let (router, client) = (&scene.lab.b3, &scene.lab.client);
    router.run(&format!("ip link add inner type veth peer name outer netns {}", client.namespace()));
    router.run("ip address add 192.0.2.1/24 dev inner; ip link set inner up");
    router.sysctl("net/ipv4/ip_forward", "1");
    client.run("ip link set eth0 down; ip address add 192.0.2.10/24 dev outer; ip link set outer up");
    client.run("ip route add default via 192.0.2.1");
    for host in [&scene.lab.lb, &scene.lab.client2, &scene.lab.b1, &scene.lab.b2] {
        host.run(&format!("ip route add 192.0.2.0/24 via {}", router.v4));
    }
}

/// Lets in nothing that is not of a connection that it has seen begin from `inside`.
fn strict(hook: &str, inside: &str) -> String {
    format!(
        "table inet strict {{ chain {hook} {{ type filter hook {hook} priority 0; policy drop;\n\
         ct state invalid counter drop\nct state established,related accept\niifname {inside} accept\n}}; \
         chain out {{ type filter hook output priority 0; ct state new accept; }}; }}"
    )
}

#[test]
fn idle_clients_behind_firewalls_that_track_are_reset_at_once() {
    const BEHIND: u64 = 500;
    let test = "idle_clients_behind_firewalls_that_track_are_reset_at_once";
    for place in ["the client's own host", "a router"] {
        let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config) else { return };
        let firewall = match place {
            "a router" => {
                route_clients(&fleet.scene);
                fleet.scene.lab.b3.nft(&strict("forward", "inner"));
                fleet.scene.lab.b3.clone()
            }
            _ => {
                fleet.scene.lab.client.nft(&strict("input", "lo"));
                fleet.scene.lab.client.clone()
            }
        };
        let fleet = fleet.with_owner();
        let mut conns = fleet.clients(BEHIND);
        fleet.wait_known(BEHIND, 0);
        let heir = fleet.heir();
        fleet.owner().host.link_down();
        heir.wait_sees("lb-a", "liveness", "dead");
        fleet.take(heir);
        let after = all_reset(&mut conns);
        let dropped = firewall.run("nft list table inet strict | grep -o 'packets [0-9]*' | head -1");
        println!(
            "proof: a firewall on {place}: {BEHIND} idle clients reset after {after:?}; {} invalid",
            dropped.trim()
        );
    }
}
