//! Listeners on every address of their family.

use super::*;

/// Regression: an address was on two hosts as long as any flow existed that had come by a wildcard, because Baton did
/// not know which address such a flow needs.
#[test]
fn a_flow_of_a_wildcard_listener_is_of_the_address_that_its_client_asked_for() {
    let test = "a_flow_of_a_wildcard_listener";
    let listen = || vec![format!("{VIP}:6443"), "0.0.0.0:6443".into(), "[::]:6443".into()];
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config.frontend("listen", listen())) else { return };
    let fleet = fleet.with_owner();
    let owner = fleet.owner();
    let asked = [owner.host.v4(6443), owner.host.v6(6443)];
    let mut conns = asked.map(|address| fleet.scene.lab.client.connect(address));
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    fleet.wait_known(2, 0);
    fleet.remove_vip(owner);
    fleet.take(fleet.heir());
    owner.baton.wait_log(&["has left this host"]);
    assert!(!owner.host.has_on_lo(VIP), "no flow needs it");
    let flows = owner.baton.flows();
    let mut listed: Vec<SocketAddr> = flows.iter().map(|flow| flow["vip"].as_str().unwrap().parse().unwrap()).collect();
    listed.sort();
    assert_eq!(listed, asked);
    conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
}
