//! A host reboots, and its map of flows is empty.

use std::collections::BTreeSet;

use super::failover::{Fleet, Flows};
use super::*;

/// Every flow that an instance lists: its id, and the client's address.
fn listed(fleet: &Fleet) -> Vec<(String, SocketAddr)> {
    let flows = fleet.all.iter().flat_map(|it| it.baton.flows());
    let flow = |flow: Value| (flow["id"].to_string(), flow["client"].as_str().unwrap().parse().unwrap());
    flows.map(flow).collect()
}

/// Each is listed by exactly one instance, by an id of its own.
#[track_caller]
pub fn each_is_listed_once(fleet: &Fleet, conns: &[Conn]) {
    let clients: BTreeSet<_> = conns.iter().map(Conn::local).collect();
    // One listing for both: instances are asked one after another, and a flow that moves meanwhile is in neither answer.
    let (all, _) = eventually_some(LONG, "every flow is listed once", || {
        let all = listed(fleet);
        let once =
            all.len() == conns.len() && all.iter().map(|(_, client)| *client).collect::<BTreeSet<_>>() == clients;
        once.then_some(all)
    });
    assert_eq!(all.iter().map(|(id, _)| id).collect::<BTreeSet<_>>().len(), conns.len(), "{all:?}");
}

#[test]
fn a_host_that_reboots_with_an_empty_map_gives_no_id_again_and_every_flow_is_listed_once() {
    let test = "a_host_that_reboots_with_an_empty_map_gives_no_id_again_and_every_flow_is_listed_once";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    fleet = fleet.with_owner();
    const EACH: u64 = 12;
    let mut conns = fleet.offloaded_clients(EACH);
    fleet.wait_known(EACH, EACH);
    let before: BTreeSet<_> = listed(&fleet).into_iter().map(|(id, _)| id).collect();

    // Its power fails: the heir takes its flows.
    let (host, directory) = (fleet.owner().host.clone(), fleet.owner().directory.clone());
    host.link_down();
    fleet.all[0].baton.process.kill();
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.echo(7, 300));
    fleet.heir().baton.wait_offloaded(EACH);
    fleet.empty_map(0);
    fleet.remove_vip(fleet.owner());
    host.link_up();
    fleet.all[0].baton = Baton::start_with(&host, &directory);
    fleet.owner().baton.wait_until_ready();
    fleet.owner().wait_synced("lb-b");
    fleet.heir().wait_synced("lb-a");
    fleet.remove_vip(fleet.heir());
    fleet.take(fleet.owner());

    // Those of before are idle, and still the heir's; as many new ones are offloaded.
    fleet.wait_served();
    let mut new = fleet.clients(EACH);
    for round in 0..5 {
        new.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    let clients: BTreeSet<_> = new.iter().map(|conn| conn.local().to_string()).collect();
    eventually(LONG, "the new ones are offloaded", || {
        let flows = fleet.owner().baton.flows();
        let is_one = |flow: &&Value| flow["client"].as_str().is_some_and(|client| clients.contains(client));
        flows.iter().filter(is_one).filter(|flow| flow["state"] == "offloaded").count() as u64 == EACH
    });
    // Those of before are its as well once their ends are asked whether they live, and their answers come here.
    eventually(LONG, "the heir knows it", || fleet.heir().sees("lb-a")["offloaded"].as_u64() >= Some(EACH));
    let given: BTreeSet<_> = listed(&fleet).into_iter().map(|(id, _)| id).collect();
    assert_eq!(given.difference(&before).count() as u64, EACH, "{before:?} {given:?}");
    conns.append(&mut new);
    each_is_listed_once(&fleet, &conns);
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
    // On their way from one to the other they are listed by neither for a moment.
    eventually(LONG, "all are the owner's", || fleet.owner().baton.flow_count() == 2 * EACH);
    each_is_listed_once(&fleet, &conns);

    // Every listed flow is also watched: row 4 for all of them.
    let of_b1 = |flow: &Value| flow["backend"].as_str().is_some_and(|backend| backend.ends_with("b1"));
    let flows = fleet.all.iter().flat_map(|it| it.baton.flows()).filter(of_b1);
    let doomed: BTreeSet<SocketAddr> = flows.map(|flow| flow["client"].as_str().unwrap().parse().unwrap()).collect();
    let (mut doomed, others): (Vec<_>, Vec<_>) = conns.into_iter().partition(|conn| doomed.contains(&conn.local()));
    assert!(!doomed.is_empty() && !others.is_empty());
    fleet.scene.lab.b1.link_down();
    println!("row 41: {} flows of a dead backend reset after {:?}", doomed.len(), failover::all_reset(&mut doomed));
    each_is_listed_once(&fleet, &others);
}
