//! Clients that hear nothing of the end of their flows: one switch served them and the host that died, for one, or their
//! address is at another host when they are back.

use super::*;

/// The longest time from the end of an outage to the next reset.
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
    fleet.remove_vip(fleet.owner());
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
    // Otherwise packets that the heir's kernel still keeps for a host that does not answer ARP would reset them.
    let known = || fleet.heir().host.run(&format!("ip neigh show {}", client.v4));
    eventually(LONG, "the heir's kernel has given them up", || known().contains("FAILED"));
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(10)));
    client.link_up();
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(NEXT), End::Rst));
    println!("reset {:?} after the client was back", watch.elapsed());
}

/// Found in a soak: connects went unanswered while their host was cut off, and when it was back another one had the VIP.
#[test]
fn clients_whose_connects_timed_out_while_their_host_was_cut_off_are_reset_by_the_next_owner() {
    let test = "clients_whose_connects_timed_out_while_their_host";
    let change =
        |config: Config| config.frontend("connect_timeout", "1s").health("interval", "60s").health("timeout", "50s");
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, change) else { return };
    let fleet = fleet.with_owner();
    let (owner, lab) = (fleet.owner(), &fleet.scene.lab);
    // The next owner learns of no flow that begins now.
    fleet.all.iter().for_each(|instance| instance.host.drop_packets("input", "tcp dport 9471"));
    fleet.heir().wait_sees("lb-a", "liveness", "unlinked");
    for host in [&lab.b1, &lab.b2] {
        host.drop_packets("input", "tcp dport 6443 tcp flags & (syn|ack) == syn");
    }
    // The RST of one that times out before all of its packets are dropped.
    owner.host.drop_packets("output", "tcp sport 6443 tcp flags & rst == rst");
    let mut conns: Vec<_> = (0..3).map(|_| lab.client.connect(fleet.vip)).collect();
    conns.iter_mut().for_each(|conn| conn.send(1, 100).unwrap());
    eventually(LONG, "all is acknowledged", || lab.client.tcp_queued().0 == 0);
    // With its link down, its kernel would keep each RST until a host answers ARP.
    owner.host.drop_packets("output", &format!("ip daddr {}", lab.client.v4));
    owner.baton.wait_ended("connect_timed_out", 3);
    fleet.remove_vip(owner);
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(10)));
    fleet.all.iter().for_each(|instance| instance.host.nft_clear());
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(NEXT), End::Rst));
    println!("reset {:?} after the host was back", watch.elapsed());
}

/// The FIN of one end may pass at one host and that of the other end at the other host, so that neither sees the end.
#[test]
fn flows_that_end_while_the_vip_moves_to_and_fro_within_a_second_are_not_listed_for_ever() {
    let test = "flows_that_end_while_the_vip_moves_to_and_fro_within_a_second";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(200);
    fleet.wait_known(200, 200);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (at, mut conn) in conns.drain(..).enumerate() {
                if at % 3 == 0 {
                    // It may be lost while the address is on no host.
                    let _ = conn.try_echo(3, 200);
                }
                drop(conn);
                std::thread::sleep(ms(5));
            }
        });
        for round in 0..16 {
            let (from, to) = if round % 2 == 0 { (fleet.owner(), fleet.heir()) } else { (fleet.heir(), fleet.owner()) };
            fleet.remove_vip(from);
            fleet.take(to);
            std::thread::sleep(ms(50 + 20 * (round % 4)));
        }
    });
    let watch = Stopwatch::start();
    let listed = || fleet.all.iter().map(|it| it.baton.flow_count()).sum::<u64>();
    eventually(secs(90), "no instance lists a flow whose ends have gone", || listed() == 0);
    println!("no flow was listed after {:?}", watch.elapsed());
}
