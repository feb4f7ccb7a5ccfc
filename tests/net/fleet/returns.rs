//! A dead host returns with its state from before its death: with real keepalived, in three ways.

use super::failover::{Fleet, Flows, VIP};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Only its link was down.
    Alive,
    /// Another process finds the pinned objects.
    Restarted,
    /// For a while the kernel's part is all there is of it.
    WithoutProcess,
    /// No pinned object is left.
    Rebooted,
}

const FLOWS: u16 = 30;
const PORTS: u16 = 41_000;

/// A client with this source port, as soon as nothing is left of the one before it.
fn connect(fleet: &Fleet, port: u16) -> Conn {
    let client = &fleet.scene.lab.client;
    let (conn, _) = eventually_some(LONG, "it is let in", || client.connect_by(client.v4(port), fleet.vip, LONG).ok());
    conn
}

fn has_vip(instance: &Instance) -> bool {
    instance.host.has_address(VIP)
}

fn returns(way: Way) {
    let test = "a_dead_host_returns_with_an_old_map";
    let Some(mut fleet) =
        Fleet::new(test, 2, Flows::Offload, |config| config.offload("after_round_trips", 3).offload("after", "1h"))
    else {
        return;
    };
    let _keepalived = fleet.kept_alive_slowly();
    let mut conns: Vec<_> = (0..FLOWS).map(|number| connect(&fleet, PORTS + number)).collect();
    for round in 0..5 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    fleet.owner().baton.wait_offloaded(FLOWS.into());
    fleet.wait_known(FLOWS.into(), FLOWS.into());

    fleet.owner().host.link_down();
    conns.iter_mut().for_each(|conn| conn.echo(6, 300));
    fleet.heir().baton.wait_offloaded(FLOWS.into());
    // What ends meanwhile, the dead host knows nothing of; the same clients come again by the same ports.
    conns.drain(..20).for_each(Conn::reset);
    fleet.heir().baton.wait_ended("client_reset", 20);
    let mut again: Vec<_> = (0..20).map(|number| connect(&fleet, PORTS + number)).collect();
    // Some of them stay in their sockets.
    again.iter_mut().for_each(|conn| conn.echo(7, 100));
    for round in 0..5 {
        again[..10].iter_mut().for_each(|conn| conn.echo(round, 100));
    }
    fleet.heir().baton.wait_offloaded(20);
    conns.append(&mut again);

    if way != Way::Alive {
        fleet.owner().baton.process.kill();
    }
    if way == Way::Rebooted {
        fleet.empty_map(0);
    }
    fleet.owner().host.link_up();
    if way == Way::WithoutProcess {
        wait::throughout(secs(1), "nobody but the heir has the VIP", || {
            conns.iter_mut().for_each(|conn| conn.echo(8, 100));
            has_vip(fleet.heir()) && !has_vip(fleet.owner())
        });
    }
    if way != Way::Alive {
        let (host, directory) = (fleet.owner().host.clone(), fleet.owner().directory.clone());
        fleet.all[0].baton = Baton::start_with(&host, &directory);
    }
    let fleet = fleet;
    // It must not have the VIP before it knows the fate of its flows.
    eventually(LONG, "both know each other", || {
        // The VIP first: it may come between the two looks.
        let has_it = has_vip(fleet.owner());
        let knows = fleet.owner().sees("lb-b")["synced"] == true && fleet.heir().sees("lb-a")["synced"] == true;
        assert!(knows || !has_it, "it has the VIP before it is synced");
        knows
    });
    for round in 0..3 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 1000));
    }
    let listed = u64::from(FLOWS);
    eventually(LONG, "the old owner lists none", || fleet.owner().baton.flow_count() == 0);
    fleet.owner().wait_sees("lb-b", "flows", listed);
    fleet.heir().wait_sees("lb-a", "flows", 0);
    assert_eq!(fleet.heir().baton.flow_count(), listed);

    // And back to it, on purpose.
    std::fs::write(fleet.heir().directory.join("away"), "1\n").unwrap();
    eventually(LONG, "the old owner has the VIP again", || has_vip(fleet.owner()) && !has_vip(fleet.heir()));
    // The first ten have run for all of this, ten have come by the ports of others, and ten of these are in sockets.
    for round in 0..5 {
        let lost: Vec<_> =
            (0..).zip(&mut conns).filter_map(|(at, conn)| conn.try_echo(round, 5000).err().map(|_| at)).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
    println!("row 36, {way:?}: {FLOWS} flows went on, {} of them of ports that the old map knew", 20);
    reboot::each_is_listed_once(&fleet, &conns);
}

#[test]
fn a_host_that_was_cut_off_returns_and_misdirects_no_flow_though_ports_have_been_used_again() {
    returns(Way::Alive);
}

#[test]
fn a_host_whose_process_is_another_returns_and_misdirects_no_flow_though_ports_have_been_used_again() {
    returns(Way::Restarted);
}

#[test]
fn a_host_that_has_rebooted_returns_and_misdirects_no_flow_though_ports_have_been_used_again() {
    returns(Way::Rebooted);
}

#[test]
fn a_host_without_a_process_returns_and_misdirects_no_flow_though_ports_have_been_used_again() {
    returns(Way::WithoutProcess);
}

/// Regression: a peer claims each flow that a restarted process has recovered and tells of, and each claim was an event of its own.
#[test]
fn a_restarted_instance_tells_of_the_many_flows_that_a_peer_has_claimed_in_few_events() {
    const MANY: u64 = 200;
    let test = "a_restarted_instance_tells_of_the_many_flows_that_a_peer_has_claimed_in_few_events";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let mut fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(MANY);
    fleet.wait_known(MANY, MANY);
    fleet.all[0].baton.process.kill();
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    fleet.heir().baton.wait_offloaded(MANY);
    fleet.all[0].baton = Baton::start_with(&fleet.owner().host, &fleet.owner().directory);
    fleet.owner().baton.wait_until_ready();
    fleet.owner().wait_synced("lb-b");
    eventually(LONG, "the old owner lists none", || fleet.owner().baton.flow_count() == 0);
    let released = || fleet.owner().baton.events_of("flows_released");
    let flows = |events: &[Value]| events.iter().filter_map(|event| event["flows"].as_u64()).sum::<u64>();
    eventually(LONG, "it has told of all", || flows(&released()) >= MANY);
    let events = released();
    println!("{} flows in {} events", flows(&events), events.len());
    assert!(events.len() <= 4, "{} events", events.len());
    assert_eq!(flows(&events), MANY);
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
}

/// It learns of their end while its workers claim them, from its own entries, from the peer, or from its probes.
#[test]
fn a_restarted_instance_counts_none_of_the_flows_that_a_peer_has_reset_as_its_own_fault() {
    const EACH: u64 = 100;
    let test = "a_restarted_instance_counts_none_of_the_flows_that_a_peer_has_reset";
    for (killed, is_gone, forgotten) in [(true, true, true), (true, false, false), (false, true, false)] {
        let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
        let mut fleet = fleet.with_owner();
        let mut conns = fleet.offloaded_clients(EACH);
        fleet.wait_known(EACH, EACH);
        match killed {
            true => fleet.all[0].baton.process.kill(),
            false => fleet.all[0].baton.process.stop(),
        }
        fleet.heir().wait_sees("lb-a", "liveness", "dead");
        fleet.remove_vip(fleet.owner());
        fleet.take(fleet.heir());
        fleet.heir().baton.wait_offloaded(EACH);
        let lost = fleet.heir().baton.flows_of("b1");
        let b1 = &fleet.scene.lab.b1;
        match is_gone {
            true => b1.link_down(),
            false => drop(std::mem::replace(&mut fleet.servers[0], b1.serve_on(b1.v4(7443), Behaviour::Echo))),
        }
        fleet.heir().baton.wait_health("b1", "ejected", LONG);
        eventually(LONG, "the flows of b1 end", || fleet.heir().baton.flows_of("b1") == 0);
        if forgotten {
            let of_b1 = |fleet: &Fleet| fleet.entries(1).len() as u64 > 2 * (EACH - lost);
            eventually(LONG, "the peer has forgotten them", || !of_b1(&fleet));
        }
        match killed {
            true => fleet.all[0].baton = Baton::start_with(&fleet.owner().host, &fleet.owner().directory),
            false => fleet.all[0].baton.process.go_on(),
        }
        fleet.owner().baton.wait_until_ready();
        fleet.owner().wait_synced("lb-b");
        eventually(LONG, "the old owner lists none", || fleet.owner().baton.flow_count() == 0);
        let ended = fleet.owner().baton.ended();
        println!("killed {killed}, host gone {is_gone}, forgotten {forgotten}: {lost} flows were lost: {ended:?}");
        assert!(!ended.contains_key("internal"), "{ended:?}");
        conns.retain_mut(|conn| conn.try_echo(9, 1000).is_ok());
        assert_eq!(conns.len() as u64, EACH - lost);
    }
}
