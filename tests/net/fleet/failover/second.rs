//! A second fault within moments of the first, while Baton itself moves the VIP: nobody waits for the time that one of them alone would give.

use super::evacuate::clients_that_stay;
use super::*;

/// A death and the move of the VIP take less than half of it, and a busy machine has the rest.
const SOON: std::time::Duration = secs(4);

fn has_vip(instance: &Instance) -> bool {
    instance.host.has_address(VIP)
}

/// Each of them is answered or reset within [`SOON`]; returns how many were reset.
#[track_caller]
fn nobody_waits(conns: Vec<Conn>) -> usize {
    let watch = Stopwatch::start();
    let tells = |mut conn: Conn| conn.try_echo(7, 500).map_err(|error| End::of_error(&error));
    let told: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = conns.into_iter().map(|conn| scope.spawn(move || tells(conn))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let took = watch.unstalled();
    assert!(took < SOON && told.iter().all(|it| matches!(it, Ok(()) | Err(End::Rst))), "after {took:?}: {told:?}");
    told.iter().filter(|it| it.is_err()).count()
}

/// Regression: an instance that had just begun waited ten seconds for the flows of the VIP's owner, which was dead, and nobody had the VIP.
#[test]
fn the_built_in_vip_is_served_when_its_owner_dies_before_the_other_instance_has_heard_it() {
    let test = "the_built_in_vip_is_served_when_its_owner_dies_before_the_other";
    let slow = |config: Config| config.peers("sync_deadline", "30s");
    let Some(mut fleet) = Fleet::with_built_in_vips(test, 2, Flows::Offload, slow) else { return };
    let conns = fleet.offloaded_clients(20);
    fleet.wait_known(20, 20);
    fleet.heir().baton.process.kill();
    fleet.owner().host.link_down();
    let watch = Stopwatch::start();
    let (host, directory) = (fleet.heir().host.clone(), fleet.heir().directory.clone());
    fleet.all[1].baton = Baton::start_with(&host, &directory);
    eventually(LONG, "the other has the VIP", || has_vip(fleet.heir()));
    println!("it has the VIP {:?} after its start", watch.unstalled());
    assert!(watch.unstalled() < SOON);
    // Its kernel has kept what it was told of these flows.
    assert_eq!(nobody_waits(conns), 0);
    nobody_waits(fleet.clients(5));
}

/// Regression: the host that was being emptied had the VIP back three to five seconds after the death of the one that had taken it.
#[test]
fn a_host_that_is_emptied_has_the_built_in_vip_again_soon_after_its_heir_has_died() {
    for is_away in [false, true] {
        let test = "a_host_that_is_emptied_has_the_built_in_vip_again";
        let Some(fleet) = Fleet::with_built_in_vips(test, 2, Flows::Kept, |config| config) else { return };
        let conns = if is_away { fleet.clients(20) } else { clients_that_stay(&fleet, 20) };
        fleet.heir().wait_sees(fleet.owner().name, "flows", 20);
        std::thread::scope(|scope| {
            let evacuation = scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--json"]));
            eventually(LONG, "the heir has the VIP", || has_vip(fleet.heir()) && !has_vip(fleet.owner()));
            if is_away {
                eventually(LONG, "the host is empty", || evacuation.is_finished());
            }
            fleet.heir().host.link_down();
            let watch = Stopwatch::start();
            eventually(LONG, "the emptied host has the VIP", || has_vip(fleet.owner()));
            println!("away {is_away}: it has the VIP again after {:?}", watch.unstalled());
            assert!(watch.unstalled() < secs(3));
            nobody_waits(conns);
            let code = evacuation.join().unwrap().status.code();
            assert_eq!(code, Some(i32::from(!is_away)));
        });
        nobody_waits(fleet.clients(5));
    }
}

/// Regression: nothing ended a process that hung with a VIP that an evacuation had just given it, and its kernel went on accepting for it.
#[test]
fn clients_that_the_kernel_of_a_hung_heir_has_accepted_during_an_evacuation_are_told() {
    let test = "clients_that_the_kernel_of_a_hung_heir_has_accepted_during_an_evacuation";
    let Some(fleet) = Fleet::with_built_in_vips(test, 2, Flows::Kept, |config| config) else { return };
    let _kept = clients_that_stay(&fleet, 5);
    std::thread::scope(|scope| {
        scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--json"]));
        eventually(LONG, "the heir has the VIP", || has_vip(fleet.heir()) && !has_vip(fleet.owner()));
        fleet.wait_served();
        fleet.heir().baton.process.stop();
        let watch = Stopwatch::start();
        let accepted = (0..3).map(|_| {
            let mut conn = fleet.scene.lab.client.connect(fleet.vip);
            conn.send(1, 100).unwrap();
            conn
        });
        let ends: Vec<_> =
            accepted.collect::<Vec<_>>().into_iter().map(|mut conn| (conn.end(LONG), watch.unstalled())).collect();
        println!("clients of the hung heir's kernel: {ends:?}");
        assert!(ends.iter().all(|(end, after)| *end != End::Open && *after < SOON), "{ends:?}");
        eventually(LONG, "the emptied host has the VIP", || has_vip(fleet.owner()));
        fleet.wait_served();
    });
}

/// Regression: without a BPF program at the next owner nothing forwards packets of what stays proxied, and clients that only read waited ten
/// seconds for a keepalive.
#[test]
fn proxied_clients_of_an_emptied_host_are_reset_at_once_where_no_program_forwards_their_packets() {
    let test = "proxied_clients_of_an_emptied_host_are_reset_at_once_where_no_program";
    let Some(fleet) = Fleet::with_built_in_vips(test, 2, Flows::Proxied, |config| config) else { return };
    let (mut idle, mut asking) = (fleet.clients(30), fleet.clients(10));
    fleet.heir().wait_sees(fleet.owner().name, "flows", 40);
    eventually(LONG, "the owner knows that the heir forwards nothing", || {
        fleet.owner().sees(fleet.heir().name)["summary"]["offload"] == "off"
    });
    std::thread::scope(|scope| {
        let evacuation = scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--deadline", "60s", "--json"]));
        eventually(LONG, "the heir has the VIP", || has_vip(fleet.heir()) && !has_vip(fleet.owner()));
        let watch = Stopwatch::start();
        asking.iter_mut().for_each(|conn| drop(conn.try_echo(7, 500)));
        idle.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
        println!("the last one was reset {:?} after the VIP had moved", watch.unstalled());
        assert!(watch.unstalled() < SOON);
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        assert_eq!(report["outcome"], "away", "{report}");
    });
    nobody_waits(fleet.clients(5));
}

/// Regression: the VIP went to another host whose kernel knew none of the connections, and the former owner lived: clients that only read waited ten
/// seconds for its keepalive. Seen where a link had gone down and come back twice.
#[test]
fn proxied_clients_of_a_living_host_are_reset_when_its_address_moves_and_no_program_forwards_their_packets() {
    let test = "proxied_clients_of_a_living_host_are_reset_when_its_address_moves";
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut idle = fleet.clients(50);
    fleet.wait_known(50, 0);
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    let took = all_reset(&mut idle);
    println!("50 clients that only read were reset within {took:?}");
    assert!(took < SOON);
    let stuck = fleet.heir().baton.events_of("flows_stuck");
    assert!(stuck.iter().any(|it| it["flows"] == 50 && it["unforwarded"] == true), "{stuck:?}");
    nobody_waits(fleet.clients(5));
}
