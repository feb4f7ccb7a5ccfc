//! A process that hangs while its kernel goes on: clients' handshakes are completed and their requests acknowledged, the address
//! leaves, and then it takes these connections, of which no other instance has ever heard.

use std::net::IpAddr;

use super::failover::{Fleet, Flows, VIP, VIP6};
use super::*;

const CLIENTS: u64 = 20;
const REQUEST: u64 = 100;

/// They were acknowledged by a host that then lost the address: they say nothing more, and wait.
fn clients_of_a_hung_owner(fleet: &Fleet, from: IpAddr) -> Vec<Conn> {
    let conns = clients_of_one_that_hangs(fleet, from);
    fleet.owner().baton.process.go_on();
    conns
}

/// As [`clients_of_a_hung_owner`], but it hangs still.
fn clients_of_one_that_hangs(fleet: &Fleet, from: IpAddr) -> Vec<Conn> {
    let (owner, lab) = (fleet.owner(), &fleet.scene.lab);
    eventually(LONG, "none is in a socket", || owner.baton.status()["totals"]["flows"]["proxied"] == 0);
    owner.baton.process.stop();
    let mut conns: Vec<_> = (0..CLIENTS).map(|_| lab.client.connect_from(from, fleet.vip).unwrap()).collect();
    conns.iter_mut().for_each(|conn| conn.send(7, REQUEST).unwrap());
    eventually(LONG, "all is acknowledged", || lab.client.tcp_queued().0 == 0);
    fleet.remove_vip(owner);
    fleet.take(fleet.heir());
    fleet.wait_served();
    conns
}

fn all_are_reset(conns: Vec<Conn>) {
    let watch = Stopwatch::start();
    let mut open = 0;
    for mut conn in conns {
        match conn.end(secs(10).saturating_sub(watch.elapsed()).max(ms(1))) {
            End::Rst => {}
            End::Open => open += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(open, 0, "clients that wait for ever");
    println!("all reset after {:?}", watch.elapsed());
}

/// The owner has room for two flows, and has given them away.
fn with_limit(test: &str) -> Option<(Fleet, Vec<Conn>)> {
    let limit = |number, config: Config| if number == 0 { config.process("max_connections", 2) } else { config };
    let fleet = Fleet::within(Scene::new(test, 2)?, VIP, test, 2, Flows::Offload, limit)?.with_owner();
    eventually(LONG, "nobody else counts", || fleet.owner().baton.flow_count() == 0);
    let held = fleet.offloaded_clients(2);
    fleet.wait_known(2, 2);
    Some((fleet, held))
}

#[test]
fn clients_that_a_hung_owner_refuses_when_its_address_has_moved_are_reset() {
    let test = "clients_that_a_hung_owner_refuses_when_its_address_has_moved";
    let Some((fleet, mut held)) = with_limit(test) else { return };
    all_are_reset(clients_of_a_hung_owner(&fleet, fleet.scene.lab.client.v4.into()));
    held.iter_mut().for_each(|conn| conn.echo(8, 100));
}

/// Networks there are that let no host speak by an address that is another's.
#[test]
fn clients_that_a_hung_owner_refuses_are_reset_by_the_new_one_when_their_link_is_back() {
    let test = "clients_that_a_hung_owner_refuses_are_reset_by_the_new_one";
    let Some((fleet, _held)) = with_limit(test) else { return };
    let (owner, client) = (fleet.owner(), &fleet.scene.lab.client);
    let mut conns = clients_of_one_that_hangs(&fleet, client.v4.into());
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    client.drop_packets("input", &format!("ether saddr {} ip saddr {VIP}", owner.host.mac()));
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(1)));
    owner.baton.process.go_on();
    all_are_reset(conns);
}

#[test]
fn clients_that_a_hung_owner_ends_before_they_have_a_backend_are_reset_when_its_address_has_moved() {
    let test = "clients_that_a_hung_owner_ends_before_they_have_a_backend";
    let headed: IpAddr = "10.77.0.70".parse().unwrap();
    let change = |config: Config| config.frontend("accept_proxy_from", vec![format!("{headed}/32")]);
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, change) else { return };
    let fleet = fleet.with_owner();
    fleet.scene.lab.client.add_address(headed);
    // Their first bytes are not a header.
    all_are_reset(clients_of_a_hung_owner(&fleet, headed));
}

/// Their flows begin after the address has left, `halted`: and after that was seen.
fn all_are_served(vip: &str, halted: bool) {
    let test = "clients_that_a_hung_owner_takes_when_its_address_has_moved";
    let Some(fleet) = Fleet::at(vip, test, 2, Flows::Proxied, |config| config.process("workers", 2)) else { return };
    let fleet = fleet.with_owner();
    let client = &fleet.scene.lab.client;
    let from = if fleet.vip.is_ipv6() { client.v6.into() } else { client.v4.into() };
    let conns = match halted {
        false => clients_of_a_hung_owner(&fleet, from),
        true => {
            let owner = fleet.owner();
            let conns = clients_of_one_that_hangs(&fleet, from);
            let halted = Halted::start(owner.baton.process.pid(), &["worker-0", "worker-1"]);
            owner.baton.process.go_on();
            owner.baton.wait_log(&["has left this host"]);
            drop(halted);
            conns
        }
    };
    let watch = Stopwatch::start();
    let (mut answered, mut reset) = (0, 0);
    for mut conn in conns {
        match conn.read_tally(REQUEST) {
            Ok(_) => answered += 1,
            Err(error) => {
                assert_eq!(End::of_error(&error), End::Rst, "a client that waits, after {:?}", watch.elapsed());
                reset += 1;
            }
        }
    }
    println!("{vip}: {answered} answered, {reset} reset after {:?}", watch.elapsed());
    assert!(watch.elapsed() < secs(10), "{:?}", watch.elapsed());
}

#[test]
fn clients_that_a_hung_owner_takes_when_its_address_has_moved_are_served_or_reset() {
    all_are_served(VIP, false);
}

#[test]
fn clients_that_a_hung_owner_takes_when_its_address_has_moved_are_served_or_reset_by_ipv6() {
    all_are_served(VIP6, false);
}

#[test]
fn clients_that_a_hung_owner_takes_when_it_has_seen_its_address_leave_are_served_or_reset() {
    [VIP, VIP6].into_iter().for_each(|vip| all_are_served(vip, true));
}
