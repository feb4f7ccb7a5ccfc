//! Network address translation on the balancer's own host: a flow's addresses on the wire differ from those of its
//! sockets.

use std::net::SocketAddr;

use super::Scene;
use crate::lab::*;

/// One kind of translation: rules of nft(8) on the balancer's host, or (`iptables ...`) a command, and the port that clients
/// connect to.
struct Kind {
    name: &'static str,
    rules: &'static str,
    port: u16,
}

/// Towards backends as a gateway, a VPN or Docker would do it; towards the VIP as for another port. Baton itself listens
/// to 6443 only.
const KINDS: [Kind; 11] = [
    Kind {
        name: "masquerade",
        rules: "table inet n { chain out { type nat hook postrouting priority srcnat; \
                oifname eth0 meta l4proto tcp th dport 6443 masquerade fully-random; } }",
        port: 6443,
    },
    Kind {
        name: "snat",
        rules: "table inet n { chain out { type nat hook postrouting priority srcnat; \
                oifname eth0 meta nfproto ipv4 tcp dport 6443 snat ip to 10.77.0.4; \
                oifname eth0 meta nfproto ipv6 tcp dport 6443 snat ip6 to fd77::4; } }",
        port: 6443,
    },
    Kind {
        name: "dnat",
        rules: "table inet n { chain in { type nat hook prerouting priority dstnat; \
                ip daddr 10.77.0.2 tcp dport 443 dnat ip to 10.77.0.2:6443; \
                ip6 daddr fd77::2 tcp dport 443 dnat ip6 to [fd77::2]:6443; } }",
        port: 443,
    },
    Kind {
        name: "dnat-of-another-address",
        rules: "table inet n { chain in { type nat hook prerouting priority dstnat; \
                ip daddr 10.77.0.3 tcp dport 6443 dnat ip to 10.77.0.2; \
                ip6 daddr fd77::3 tcp dport 6443 dnat ip6 to fd77::2; } }",
        port: 6443,
    },
    Kind {
        name: "redirect",
        rules: "table inet n { chain in { type nat hook prerouting priority dstnat; tcp dport 443 redirect to :6443; } }",
        port: 443,
    },
    Kind {
        name: "snat-towards-the-socket",
        rules: "table inet n { chain in { type nat hook input priority 100; \
                ip daddr 10.77.0.2 tcp dport 6443 snat ip to 10.77.0.77; \
                ip6 daddr fd77::2 tcp dport 6443 snat ip6 to fd77::77; } }",
        port: 6443,
    },
    Kind {
        name: "without-state",
        rules: "table inet n { \
                chain in { type filter hook prerouting priority raw; \
                ip daddr 10.77.0.3 tcp dport 6443 notrack ip daddr set 10.77.0.2; \
                ip6 daddr fd77::3 tcp dport 6443 notrack ip6 daddr set fd77::2; } \
                chain out { type filter hook output priority raw; \
                ip saddr 10.77.0.2 tcp sport 6443 notrack ip saddr set 10.77.0.3; \
                ip6 saddr fd77::2 tcp sport 6443 notrack ip6 saddr set fd77::3; } }",
        port: 6443,
    },
    Kind {
        name: "at-the-interface",
        rules: "table netdev n { \
                chain in { type filter hook ingress device eth0 priority 0; \
                ip daddr 10.77.0.3 tcp dport 6443 ip daddr set 10.77.0.2; \
                ip6 daddr fd77::3 tcp dport 6443 ip6 daddr set fd77::2; } \
                chain out { type filter hook egress device eth0 priority 0; \
                ip saddr 10.77.0.2 tcp sport 6443 ip saddr set 10.77.0.3; \
                ip6 saddr fd77::2 tcp sport 6443 ip6 saddr set fd77::3; } }",
        port: 6443,
    },
    Kind {
        name: "masquerade-by-iptables",
        rules: "iptables -t nat -A POSTROUTING -o eth0 -p tcp --dport 6443 -j MASQUERADE --random-fully; \
                ip6tables -t nat -A POSTROUTING -o eth0 -p tcp --dport 6443 -j MASQUERADE --random-fully",
        port: 6443,
    },
    Kind {
        name: "dnat-by-iptables",
        rules: "iptables -t nat -A PREROUTING -d 10.77.0.2 -p tcp --dport 443 -j DNAT --to-destination 10.77.0.2:6443; \
                ip6tables -t nat -A PREROUTING -d fd77::2 -p tcp --dport 443 -j DNAT --to-destination [fd77::2]:6443",
        port: 443,
    },
    Kind {
        name: "redirect-by-iptables",
        rules: "iptables -t nat -A PREROUTING -p tcp --dport 443 -j REDIRECT --to-ports 6443; \
                ip6tables -t nat -A PREROUTING -p tcp --dport 443 -j REDIRECT --to-ports 6443",
        port: 443,
    },
];

impl Kind {
    /// Where clients go: some of the kinds are about another address of this host's.
    fn address(&self, lab: &Lab, ipv6: bool) -> SocketAddr {
        let other = ["dnat-of-another-address", "without-state", "at-the-interface"].contains(&self.name);
        match (ipv6, other) {
            (false, false) => lab.lb.v4(self.port),
            (true, false) => lab.lb.v6(self.port),
            (false, true) => ([10, 77, 0, 3], self.port).into(),
            (true, true) => SocketAddr::new("fd77::3".parse().unwrap(), self.port),
        }
    }
}

/// Rules of other programs that are on many hosts, and touch no flow of these.
const OTHERS: &str = "table ip docker { \
    chain PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local jump DOCKER; } \
    chain OUTPUT { type nat hook output priority -100; ip daddr != 127.0.0.0/8 fib daddr type local jump DOCKER; } \
    chain POSTROUTING { type nat hook postrouting priority srcnat; \
        ip saddr 172.17.0.0/16 oifname != docker0 masquerade; ip saddr 172.17.0.2 ip daddr 172.17.0.2 tcp dport 80 masquerade; } \
    chain DOCKER { iifname docker0 return; iifname != docker0 tcp dport 8080 dnat to 172.17.0.2:80; } } \
    table ip kube { \
    chain out { type nat hook postrouting priority srcnat; mark and 0x4000 == 0 return; masquerade fully-random; } }";

/// nft(8) wants a line's end behind each brace.
fn load(host: &Host, rules: &str) {
    host.nft(&rules.replace('}', "\n}\n"));
}

fn flows_stay_unharmed(ipv6: bool) {
    let test = if ipv6 { "nat6" } else { "nat4" };
    let Some(scene) = Scene::new(test) else { return };
    let lab = &scene.lab;
    // Not such as the kernel would choose itself, be it as a source or for a redirect.
    lab.lb.run("for at in 10.77.0.3/32 10.77.0.4/32 fd77::3/128 fd77::4/128; do ip address add $at dev lo; done");
    let via_lb = "ip -4 route add 10.77.0.3 via 10.77.0.2; ip -4 route add 10.77.0.4 via 10.77.0.2; \
                  ip -6 route add fd77::3 via fd77::2; ip -6 route add fd77::4 via fd77::2";
    for host in [&lab.client, &lab.b1, &lab.b2, &lab.b3] {
        host.run(via_lb);
    }
    let backends = lab.backends();
    let at = |host: &Host| if ipv6 { host.v6(6443) } else { host.v4(6443) };
    let _servers = backends.map(|host| host.serve_on(at(host), Behaviour::Echo));
    let config = backends.iter().fold(scene.config().only(&[]), |config, host| config.backend(host.name, at(host)));
    let baton = lab.start(&config.offload("after", "200ms"));
    for (round, kind) in KINDS.iter().enumerate() {
        println!("{test}: {}", kind.name);
        match kind.rules.starts_with("iptables") {
            true => drop(lab.lb.run(kind.rules)),
            false => load(&lab.lb, kind.rules),
        }
        let to = kind.address(lab, ipv6);
        // Some that go on without a rest, some that say a word, some that say none.
        let mut conns: Vec<_> = (0..10).map(|_| lab.client.connect(to)).collect();
        let watch = Stopwatch::start();
        while watch.elapsed() < ms(500) {
            conns[..4].iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 3000));
        }
        conns[4..7].iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 16));
        let stay = || baton.flows().iter().filter(|flow| flow["state"] == "proxied" && flow["stays"] == "nat").count();
        eventually(LONG, &format!("{}: all flows stay and say why", kind.name), || stay() == 10);
        let tried = || baton.metric("baton_flows_stayed_total", &["reason=\"nat\""]);
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 100_000));
        conns.iter_mut().for_each(|conn| assert_eq!(conn.end(ms(10)), End::Open, "{}", kind.name));
        let once = 10 * (round + 1);
        assert_eq!((tried(), stay()), (once as f64, 10), "{}: they are not tried again", kind.name);
        assert_eq!(entries(&scene), 0, "{}: nothing is left in the map", kind.name);
        drop(conns);
        baton.rests();
        lab.lb.nft_clear();
    }
    let ended = baton.ended();
    assert_eq!(ended.keys().collect::<Vec<_>>(), ["client_closed"], "{ended:?}");
}

/// Directions in the map.
fn entries(scene: &Scene) -> u32 {
    let status = ::baton::offload::program::status(&scene.pinned.directory).expect("it is pinned");
    status.and_then(|status| status.entries).expect("of this layout")
}

#[test]
fn row37_nat_on_the_balancer_s_own_host_resets_no_flow() {
    flows_stay_unharmed(false);
}

#[test]
fn row37_nat_of_ipv6_on_the_balancer_s_own_host_resets_no_flow() {
    flows_stay_unharmed(true);
}

#[test]
fn row37_rules_of_others_keep_no_flow_proxied_and_an_idle_one_is_offloaded_within_a_second() {
    let Some(scene) = Scene::new("nat-others") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    load(&lab.lb, OTHERS);
    let baton = lab.start(&scene.config().offload("after", "200ms"));
    let mut idle = Vec::new();
    wait::meets(ms(1200), "row 37: 10 idle flows, old enough after 200 ms, were offloaded after", || {
        idle.extend((0..10).map(|_| lab.client.connect(lab.lb.v4(6443))));
        let watch = Stopwatch::start();
        baton.wait_offloaded(idle.len() as u64);
        watch.unstalled()
    });
    let all = idle.len() as u64 + 1;
    let mut busy = lab.client.connect(lab.lb.v4(6443));
    let watch = Stopwatch::start();
    let mut slowest = ms(0);
    while baton.status()["totals"]["flows"]["offloaded"] != all {
        assert!(watch.elapsed() < LONG, "a busy flow is offloaded");
        for round in 0..20 {
            let request = Stopwatch::start();
            busy.echo(round, 100);
            slowest = slowest.max(request.elapsed());
        }
    }
    println!("row 37: a busy flow was offloaded within {:?}, its slowest request took {slowest:?}", watch.elapsed());
    drop((idle, busy));
    baton.rests();
}

/// An address that only its sockets see, of a service that is translated on the way out.
#[test]
fn row37_a_backend_that_is_an_address_of_a_service_stays_proxied_unharmed() {
    let Some(scene) = Scene::new("nat-service") else { return };
    let lab = &scene.lab;
    let _server = lab.b1.serve(Behaviour::Echo);
    let rules = "table ip n { chain out { type nat hook output priority -100; \
                 ip daddr 10.96.0.1 tcp dport 443 dnat to 10.77.0.21:6443; } }";
    load(&lab.lb, rules);
    lab.lb.run("ip route add 10.96.0.0/16 dev eth0");
    let baton = lab.start(&scene.config().only(&[]).backend("service", "10.96.0.1:443".parse().unwrap()));
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for round in 0..10 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 1000));
    }
    eventually(LONG, "all flows stay", || baton.flows().iter().filter(|flow| flow["stays"] == "nat").count() == 5);
    conns.iter_mut().for_each(|conn| conn.echo(11, 100_000));
    drop(conns);
    baton.rests();
}

/// The addresses on the wire are those of the sockets, the numbers are not.
#[test]
fn row37_a_synproxy_on_the_balancer_s_own_host_resets_no_flow() {
    let Some(scene) = Scene::new("nat-synproxy") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    lab.lb.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
    load(
        &lab.lb,
        "table ip n { chain pre { type filter hook prerouting priority raw; tcp dport 6443 tcp flags syn notrack; } \
         chain in { type filter hook input priority 0; \
         tcp dport 6443 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm; \
         tcp dport 6443 ct state invalid drop; } }",
    );
    let baton = lab.start(&scene.config().offload("after", "300ms"));
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for round in 0..10 {
        conns[..3].iter_mut().for_each(|conn| conn.echo(round, 1000));
    }
    eventually(LONG, "all flows stay", || baton.flows().iter().filter(|flow| flow["stays"] == "nat").count() == 5);
    conns.iter_mut().for_each(|conn| conn.echo(11, 100_000));
    drop(conns);
    baton.rests();
}

/// The process dies while the offload engine looks at flows that may soon be offloaded, and has not let them go yet.
#[test]
fn row37_a_kill_while_flows_show_themselves_leaves_none_hanging_and_nothing_behind() {
    let Some(scene) = Scene::new("nat-kill") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().offload("after_round_trips", 3).offload("after", "60s");
    let baton = lab.start(&config);
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| (0..3).for_each(|round| conn.echo(round, 100)));
    eventually(LONG, "all flows are looked at", || entries(&scene) == 40);
    assert_eq!(baton.status()["totals"]["flows"]["proxied"], 20);
    baton.process.kill();
    for conn in &mut conns {
        let (end, _, took) = conn.read_end(secs(5));
        assert!([End::Fin, End::Rst].contains(&end), "{end:?}");
        assert!(took < secs(2), "{took:?}");
    }
    let next = lab.start(&config.offload("after", "200ms"));
    eventually(LONG, "nothing is left of them", || entries(&scene) == 0);
    assert_eq!(next.status()["offload"]["recovered_total"], 0);
    let mut again: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    again.iter_mut().for_each(|conn| conn.echo(7, 100));
    next.wait_offloaded(20);
    again.iter_mut().for_each(|conn| conn.echo(8, 100));
    drop((conns, again));
    next.rests();
}
