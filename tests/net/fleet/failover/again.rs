//! Clients that hear nothing of the end of their flows: one switch served them and the host that died, for one, or their
//! address is elsewhere when they are back.

use super::*;

/// What it takes at most from the end of an outage to the next word.
const NEXT: std::time::Duration = secs(12);

#[test]
fn clients_that_were_cut_off_when_their_flows_timed_out_are_reset_by_whoever_has_the_vip_when_they_are_back() {
    let test = "clients_that_were_cut_off_when_their_flows_timed_out";
    let impatient = |config: Config| {
        let config = config.frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s");
        config.frontend("keepalive_count", 2).frontend("user_timeout", "2s")
    };
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, impatient) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.clients(3);
    fleet.wait_known(3, 0);
    let client = &fleet.scene.lab.client;
    client.link_down();
    fleet.owner().baton.wait_ended("client_timed_out", 3);
    fleet.heir().wait_sees("lb-a", "flows", 0);
    fleet.let_go(fleet.owner());
    fleet.take(fleet.heir());
    eventually(LONG, "it has come", || !fleet.heir().baton.events_of("address_came").is_empty());
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(10)));
    client.link_up();
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(NEXT), End::Rst));
    println!("reset {:?} after the client was back", watch.elapsed());
}

#[test]
fn idle_clients_that_were_cut_off_when_their_host_died_are_reset_when_they_are_back() {
    let test = "idle_clients_that_were_cut_off_when_their_host_died";
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.clients(3);
    fleet.wait_known(3, 0);
    let client = &fleet.scene.lab.client;
    client.link_down();
    fleet.owner().host.link_down();
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    fleet.take(fleet.heir());
    eventually(LONG, "none has answered", || {
        let told = fleet.heir().baton.events_of("clients_told");
        told.iter().any(|event| event["answered"] == 0 && event["silent"] == 3)
    });
    // Else what the heir's kernel still keeps for who does not answer ARP would wake them.
    let known = || fleet.heir().host.run(&format!("ip neigh show {}", client.v4));
    eventually(LONG, "the heir's kernel has given them up", || known().contains("FAILED"));
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(10)));
    client.link_up();
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(NEXT), End::Rst));
    println!("reset {:?} after the client was back", watch.elapsed());
}
