//! Flows whose client has named other ends than their connection has: a PROXY header of a balancer before this one.

use super::*;

/// Regression: clients waited for ever. The other instances knew a flow by the address in its header, and reset a
/// connection that does not exist.
#[test]
fn idle_clients_whose_header_names_another_address_are_reset_when_their_host_dies() {
    let test = "idle_clients_whose_header_names_another_address";
    for flows in [Flows::Proxied, Flows::Kept] {
        let trusted = |config: Config| config.frontend("accept_proxy_from", vec!["10.77.0.0/24"]);
        let Some(fleet) = Fleet::new(test, 2, flows, trusted) else { return };
        fleet.take(fleet.owner());
        let mut conns: Vec<_> = (0..20).map(|number| headed(&fleet, number)).collect();
        fleet.wait_known(20, 0);
        fleet.owner().host.link_down();
        fleet.heir().wait_sees("lb-a", "liveness", "dead");
        fleet.take(fleet.heir());
        println!("reset after {:?}", all_reset(&mut conns));
    }
}

fn headed(fleet: &Fleet, number: u16) -> Conn {
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    let header = format!("PROXY TCP4 203.0.113.9 198.51.100.1 {} 443\r\n", 5000 + number);
    conn.send_bytes(header.as_bytes()).unwrap();
    conn.echo(1, 100);
    conn
}
