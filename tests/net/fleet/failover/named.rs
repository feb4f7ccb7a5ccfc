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

/// Regression: nothing was known of a flow that a peer has, nor which peer has it.
#[test]
fn who_and_explain_name_the_peer_that_has_a_flow() {
    let test = "who_and_explain_name_the_peer_that_has_a_flow";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let _conns = fleet.offloaded_clients(1);
    fleet.wait_known(1, 1);
    let (owner, heir) = (fleet.owner(), fleet.heir());
    eventually(LONG, "its source is known", || owner.baton.flows()[0]["source"].is_string());
    let flow = owner.baton.flows()[0].clone();
    let [id, source, client] = ["id", "source", "client"].map(|key| flow[key].as_str().expect("text"));
    for arguments in [&["who", source][..], &["who", source, "--at", "1s"]] {
        assert!(owner.baton.order(arguments).starts_with(client), "{arguments:?}");
    }
    let said = |arguments: &[&str]| String::from_utf8(heir.baton.cli(arguments).stderr).expect("UTF-8");
    let told = said(&["who", source]);
    assert!(told.contains("lb-a begins its connections from this port: ask there"), "{told}");
    let told = said(&["explain", id]);
    assert!(told.contains("it began at lb-a: ask there"), "{told}");
    // It is said of a flow that came from a peer, and of no other.
    assert!(!owner.baton.order(&["flows"]).contains('≥'));
    fleet.remove_vip(owner);
    fleet.take(heir);
    owner.baton.process.kill();
    heir.baton.wait_offloaded(1);
    assert!(heir.baton.order(&["flows"]).contains("≥: it began at another instance"));
    assert!(heir.baton.order(&["who", source]).starts_with(client));
    assert!(heir.baton.order(&["explain", client]).starts_with(&format!("Flow {id} of ")));
}

fn headed(fleet: &Fleet, number: u16) -> Conn {
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    let header = format!("PROXY TCP4 203.0.113.9 198.51.100.1 {} 443\r\n", 5000 + number);
    conn.send_bytes(header.as_bytes()).unwrap();
    conn.echo(1, 100);
    conn
}
