//! What can happen to keepalived itself, and between the two hosts.

use super::*;

/// Both hosts, the first of which has the VIP.
fn pair<'a>(lab: &'a Lab, left_out: &[&str]) -> [Node<'a>; 2] {
    let node = |host, peer, priority| Node::start_without(lab, host, peer, priority, left_out);
    let a = node(&lab.lb, &lab.client2, 100);
    eventually(LONG, "the first has the VIP", || a.has_vip());
    let b = node(&lab.client2, &lab.lb, 90);
    await_service(lab);
    assert!(a.has_vip() && !b.has_vip());
    [a, b]
}

fn vip() -> SocketAddr {
    (VIP.parse::<IpAddr>().unwrap(), 6443).into()
}

/// New connections to the VIP are served or refused for `time`, and until some are served; none is left waiting.
#[track_caller]
fn nobody_waits(lab: &Lab, time: std::time::Duration) {
    let watch = Stopwatch::start();
    let (mut served, mut reset) = (0, 0);
    while watch.elapsed() < time || (served <= 10 && watch.elapsed() < LONG) {
        // A reset may come before the client has seen that it was connected.
        match lab.client.try_connect(vip(), secs(5)).and_then(|mut conn| conn.try_echo(1, 1000)) {
            Ok(()) => served += 1,
            Err(error) => {
                assert!(matches!(End::of_error(&error), End::Rst | End::Fin), "left waiting: {error}");
                reset += 1;
            }
        }
    }
    println!("vip: {served} connections served, {reset} reset in {time:?} with two owners");
    assert!(served > 10, "{served} served, {reset} reset");
}

#[test]
fn a_killed_keepalived_leaves_the_vip_behind_and_that_is_noticed_and_fixed() {
    let Some(lab) = Lab::new("keepalived killed") else { return };
    let _servers = lab.echo_everywhere();
    let [a, b] = pair(&lab, &[]);
    // Its keepalived must have been seen here before it can be missed.
    let seen = format!("baton_vip_left_behind{{address=\"{VIP}\"}} 0");
    eventually(LONG, "keepalived was seen", || a.baton.metrics().contains(&seen));
    assert_eq!(a.baton.metric("baton_vip_duplicate", &[VIP]), 0.0);
    let watch = Stopwatch::start();
    a.kill_keepalived();
    eventually(LONG, "the other has the VIP as well", || b.has_vip());
    assert!(a.has_vip(), "nobody has taken it away");
    for node in [&a, &b] {
        node.wait_event("vip_shared");
        assert_eq!(node.baton.metric("baton_vip_duplicate", &[VIP]), 1.0, "{}", node.baton.metrics());
    }
    println!("row 22: keepalived killed: both instances say that the VIP has two owners {:?} later", watch.elapsed());
    a.wait_event("vip_left_behind");
    assert_eq!(a.baton.metric("baton_vip_left_behind", &[VIP]), 1.0);
    nobody_waits(&lab, secs(2));
    let check = format!(
        "{BINARY} --json check -c {} --host --keepalived {} 2>&1 | sed -n '/^\\[/,$p'",
        a.baton.paths.config.display(),
        a.directory.join("keepalived.conf").display()
    );
    let findings: Vec<serde_json::Value> = serde_json::from_str(&a.host.run(&check)).unwrap();
    let left = findings.iter().find(|finding| finding["read"].as_str().unwrap().contains("keepalived does not run"));
    let fix = left.unwrap_or_else(|| panic!("keepalived is not missed"))["fix"].as_str().unwrap();
    let (_, give_up) = fix.split_once("remove the VIP: ").unwrap();
    a.host.run(give_up);
    b.wait_event("vip_alone");
    assert_eq!(b.baton.metric("baton_vip_duplicate", &[VIP]), 0.0);
    await_service(&lab);
}

#[test]
fn a_keepalived_that_stood_still_is_noticed_and_one_owner_is_left_when_it_goes_on() {
    let Some(lab) = Lab::new("keepalived stopped") else { return };
    let _servers = lab.echo_everywhere();
    let [a, b] = pair(&lab, &[]);
    a.signal_keepalived(Signal::STOP);
    eventually(LONG, "the other has the VIP as well", || b.has_vip());
    b.wait_event("vip_shared");
    nobody_waits(&lab, secs(2));
    let watch = Stopwatch::start();
    a.signal_keepalived(Signal::CONT);
    eventually(LONG, "one owner is left", || a.has_vip() != b.has_vip());
    let who = if a.has_vip() { "the old owner has it back, nopreempt or not" } else { "the new owner keeps it" };
    println!("row 22: keepalived stopped and continued: one owner after {:?}; {who}", watch.elapsed());
    b.wait_event("vip_alone");
    await_service(&lab);
    wait::throughout(secs(2), "it stays with that owner", || a.has_vip() != b.has_vip());
}

/// Clients would ask anew by themselves only after 20 s at least (neigh/default: base_reachable_time, delay_first_probe_time).
const ARP_LIMIT: std::time::Duration = secs(8);

/// A partition of the pair, with both reaching the clients for `held`; how long after its end the client's ARP entry is right, if it is
/// within [`ARP_LIMIT`] of the end of the second ownership.
fn arp_after_a_partition(lab: &Lab, [a, b]: &[Node<'_>; 2], held: std::time::Duration) -> Option<std::time::Duration> {
    let vip: IpAddr = VIP.parse().unwrap();
    [a.host, b.host].iter().for_each(|host| host.isolate(true));
    eventually(LONG, "both have the VIP", || a.has_vip() && b.has_vip());
    // It came last, so that its announcement is what clients know.
    eventually(LONG, "the client has learnt the second owner", || lab.client.neighbour(vip) == Some(b.host.mac()));
    nobody_waits(lab, held);
    let watch = Stopwatch::start();
    [a.host, b.host].iter().for_each(|host| host.isolate(false));
    eventually(LONG, "one has the VIP", || a.has_vip() != b.has_vip());
    let settled = Stopwatch::start();
    while settled.elapsed() < ARP_LIMIT {
        let owner = if a.has_vip() { a } else { b };
        if lab.client.neighbour(vip) == Some(owner.host.mac()) {
            let right = watch.elapsed();
            nobody_waits(lab, ms(300));
            return Some(right);
        }
        std::thread::sleep(ms(5));
    }
    None
}

/// The host says nothing in VRRP before it has heard somebody: of two owners it is then the second one that hears the other first.
fn speaks_when_spoken_to(host: &Host) {
    host.nft(
        "table ip order {
            set heard { type ipv4_addr; flags dynamic; timeout 250ms; }
            chain input { type filter hook input priority 0; ip protocol 112 update @heard { ip saddr }; }
            chain output { type filter hook output priority 0; ip protocol 112 ip daddr != @heard drop; }
        }\n",
    );
}

#[test]
fn after_a_partition_the_arp_is_right_without_waiting() {
    let Some(lab) = Lab::new("partition") else { return };
    let _servers = lab.echo_everywhere();
    let pair = pair(&lab, &[]);
    // More than once: it is a matter of chance which of the two hears the other first.
    for round in 0..6 {
        if round == 3 {
            speaks_when_spoken_to(pair[1].host);
        }
        let right = arp_after_a_partition(&lab, &pair, ms(1000 + round * 37));
        println!("row 21: the pair partitioned and healed: the client's ARP is right {right:?} after");
        assert!(right.is_some(), "still wrong after {ARP_LIMIT:?}");
    }
}

#[test]
fn without_the_healing_lines_the_arp_stays_wrong_if_the_second_owner_hears_the_first_one_before() {
    let lines = ["vrrp_higher_prio_send_advert", "vrrp_garp_lower_prio_repeat", "vrrp_garp_master_refresh"];
    let Some(lab) = Lab::new("partition control") else { return };
    let _servers = lab.echo_everywhere();
    let pair = pair(&lab, &lines);
    speaks_when_spoken_to(pair[1].host);
    // It may be about to speak at the moment in which it hears.
    for _ in 0..5 {
        let right = arp_after_a_partition(&lab, &pair, ms(300));
        println!("row 21, control: without these lines the client's ARP is right after {right:?}");
        if right.is_none() {
            return;
        }
    }
    panic!("it was right each time: the lines are not what does it");
}

#[test]
fn a_word_in_the_file_moves_the_vip_at_once_and_taking_it_back_moves_nothing() {
    let Some(lab) = Lab::new("vip given up") else { return };
    let _servers = lab.echo_everywhere();
    let [a, b] = pair(&lab, &[]);
    let watch = Stopwatch::start();
    std::fs::write(a.directory.join("away"), "1\n").unwrap();
    eventually(LONG, "the other has the VIP", || b.has_vip() && !a.has_vip());
    await_service(&lab);
    println!("vip: given up by a file: served by the other after {:?}", watch.elapsed());
    std::fs::write(a.directory.join("away"), "0\n").unwrap();
    wait::throughout(secs(2), "it stays", || b.has_vip() && !a.has_vip());
    assert!(b.baton.events_of("vip_shared").is_empty(), "at no time did two hosts have it");
}
