//! An IPv6 address that two hosts have.

use super::*;
use crate::fleet::failover::{Fleet, Flows, all_reset};

const VIP6: &str = "fd77::100";

/// Baton on a host, with a frontend at [`VIP6`], which need not be there.
fn start(lab: &Lab, host: &Host) -> Baton {
    let directory = lab.directory().join(host.name);
    std::fs::create_dir(&directory).unwrap();
    let baton = Baton::start(host, &directory, &lab.config().frontend("listen", vec![format!("[{VIP6}]:6443")]));
    baton.wait_until_ready();
    baton
}

fn add(host: &Host) {
    host.run(&format!("ip address add {VIP6}/128 dev eth0 nodad"));
}

fn remove(host: &Host) {
    host.run(&format!("ip address del {VIP6}/128 dev eth0"));
}

#[track_caller]
fn wait_event(baton: &Baton, kind: &str, count: usize) {
    let about = |event: &serde_json::Value| event["address"] == VIP6;
    eventually(secs(30), kind, || baton.events_of(kind).iter().filter(|event| about(event)).count() == count);
}

#[test]
fn an_ipv6_address_that_two_hosts_have_is_noticed_by_both_and_when_it_is_over() {
    let Some(lab) = Lab::new("vip6") else { return };
    let hosts = [&lab.lb, &lab.client2];
    let batons = hosts.map(|host| start(&lab, host));
    add(hosts[0]);
    let shown = |baton: &Baton| baton.metric("baton_vip_duplicate", &[VIP6]);
    let looks = format!("baton_vip_duplicate{{address=\"{VIP6}\"}} 0");
    eventually(LONG, "the address is looked after", || batons[0].metrics().contains(&looks));
    for round in 1..=2 {
        add(hosts[1]);
        let watch = Stopwatch::start();
        for baton in &batons {
            wait_event(baton, "vip_shared", round);
            assert_eq!(shown(baton), 1.0);
        }
        println!("vip6: both say that {VIP6} has two owners {:?} later", watch.elapsed());
        let events = batons[0].events_of("vip_shared");
        assert_eq!(events.last().unwrap()["by"], hosts[1].mac(), "{events:?}");
        // From one side or the other.
        remove(hosts[round % 2]);
        wait_event(&batons[0], "vip_alone", round);
        wait_event(&batons[1], "vip_alone", round);
        assert!(batons.iter().all(|baton| shown(baton) == 0.0));
        if round == 1 {
            remove(hosts[0]);
            add(hosts[0]);
        }
    }
}

#[test]
fn asking_who_else_has_an_ipv6_address_harms_neither_its_moves_nor_its_clients() {
    let Some(lab) = Lab::new("vip6 moves") else { return };
    let _servers = [&lab.b1, &lab.b2, &lab.b3].map(|host| host.serve(Behaviour::Echo));
    let hosts = [&lab.lb, &lab.client2];
    // Labs go without the kernel's own search for duplicates; here it is what could be harmed.
    hosts.iter().for_each(|host| {
        host.sysctl("net/ipv6/conf/eth0/accept_dad", "1");
        host.sysctl("net/ipv6/conf/eth0/dad_transmits", "3");
    });
    let batons = hosts.map(|host| start(&lab, host));
    for round in 0..6 {
        let (from, to) = (hosts[(round + 1) % 2], hosts[round % 2]);
        if round > 0 {
            remove(from);
        }
        // It lasts three or four seconds, and gives the address up at a word of another host.
        let state = || to.run(&format!("ip -6 address show dev eth0 to {VIP6}"));
        let begun = to.run(&format!("ip address add {VIP6}/128 dev eth0; ip -6 address show dev eth0 to {VIP6}"));
        assert!(begun.contains("tentative"), "{begun}");
        eventually(LONG, "it is taken", || !state().contains("tentative"));
        assert!(!state().contains("dadfailed"), "{}", state());
        // Nothing announces the move here.
        lab.client.run("ip -6 neigh flush dev eth0");
        let vip: SocketAddr = (VIP6.parse::<IpAddr>().unwrap(), 6443).into();
        eventually(LONG, "it is served", || {
            lab.client.try_connect(vip, secs(1)).is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok())
        });
    }
    assert!(batons.iter().all(|baton| baton.events_of("vip_shared").is_empty()), "at no time did two hosts have it");
}

/// Two hosts that ask for one address at the same time must hear of each other, or both take it.
#[test]
fn a_host_hears_who_else_asks_for_an_ipv6_address_that_nobody_has() {
    use ::baton::model::neighbour;
    use ::baton::sys::arp::Overheard;
    use ::baton::sys::ndisc::NdSocket;
    let Some(lab) = Lab::new("vip6 questions") else { return };
    let vip = VIP6.parse().unwrap();
    let [hears, asks] = [&lab.lb, &lab.client].map(|host| host.enter(|| NdSocket::open("eth0").unwrap()));
    hears.hear_questions(vip).unwrap();
    asks.send(&neighbour::question(vip, asks.mac())).unwrap();
    let (heard, _) = eventually_some(LONG, "the question is heard", || {
        std::iter::from_fn(|| hears.overheard()).find_map(|heard| match heard {
            Overheard::Question(question) if question.address == vip => Some(question.mac),
            _ => None,
        })
    });
    assert_eq!(heard, asks.mac());
    assert!(
        std::iter::from_fn(|| asks.overheard()).all(|it| !matches!(it, Overheard::Question(_))),
        "its own question"
    );
}

/// One leg is of IPv4 and the other of IPv6: a packet of one cannot go on as a packet of the other, so no peer can carry such a flow on.
#[test]
fn idle_clients_of_an_ipv6_vip_with_ipv4_backends_are_reset_at_once_when_its_host_is_emptied_or_dies() {
    let config = |config: Config| {
        let config = config.frontend("listen", vec![format!("{VIP}:6443"), format!("[{VIP6}]:6443")]);
        config.vip("addresses", vec![format!("{VIP}/32"), format!("{VIP6}/128")]).vip("interface", "eth0")
    };
    let Some(fleet) = Fleet::new("vip6 to v4", 3, Flows::Offload, config) else { return };
    let scene = &fleet.scene;
    built_in::served_after(scene, &Stopwatch::start());
    for fault in ["is emptied", "dies"] {
        let had = built_in::owner(&fleet.all);
        let owner = &fleet.all[had];
        let [vip4, vip6] = built_in::places();
        let mut conns: Vec<_> = (0..20).map(|_| scene.lab.client.connect(vip6)).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, 100));
        let stay = || owner.baton.flows().iter().filter(|flow| flow["stays"] == "families").count();
        eventually(LONG, "each says why it stays", || stay() == conns.len());
        for other in fleet.all.iter().filter(|other| other.name != owner.name) {
            other.wait_synced(owner.name);
            other.wait_sees(owner.name, "flows", conns.len());
        }
        let watch = Stopwatch::start();
        match fault {
            "dies" => owner.host.link_down(),
            _ => {
                let evacuated = owner.baton.cli(&["evacuate", "--deadline", "2s"]);
                let report = String::from_utf8_lossy(&evacuated.stdout).into_owned();
                assert!(report.contains("not cleanly") && report.contains("20  flows were reset"), "{evacuated:?}");
            }
        }
        let took = all_reset(&mut conns);
        println!("vip6 to v4: {fault}: {} idle clients were reset {took:?} later", conns.len());
        assert!(watch.unstalled() < secs(8), "{fault}: {took:?}");
        eventually(LONG, "both are served", || {
            [vip4, vip6].iter().all(|vip| {
                scene.lab.client.try_connect(*vip, secs(1)).is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok())
            })
        });
    }
}
