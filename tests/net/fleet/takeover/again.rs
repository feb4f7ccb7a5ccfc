//! Clients that hear nothing of the end of their flows, and whose address is elsewhere when they are back.

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
