//! `baton what-if` before a death, against what the death then does.

use std::time::Duration;

use super::*;

fn what_if(baton: &Baton, words: &[&str]) -> Value {
    let said = baton.order(&[&["--json", "what-if"], words].concat());
    serde_json::from_str(&said).expect("JSON")
}

#[track_caller]
fn case<'a>(report: &'a Value, fault: &str) -> &'a Value {
    let cases = report["cases"].as_array().expect("a list");
    cases.iter().find(|case| case["fault"] == fault).unwrap_or_else(|| panic!("no {fault:?} in {report}"))
}

fn fates(case: &Value) -> [u64; 4] {
    ["kept", "moved", "reset", "waiting"].map(|key| case[key].as_u64().expect("a number"))
}

/// The part of the gap that the fault adds to a renewal's interval.
fn until_told(case: &Value) -> Duration {
    Duration::from_millis(case["gap"]["decided"][1]["lasts_ms"].as_u64().expect("a number"))
}

/// What a loaded machine may add to a time that Baton states.
const LOADED: Duration = secs(3);

/// With 12 offloaded flows and 5 proxied ones.
fn with_flows_of_both_kinds(test: &str) -> Option<(Fleet, Vec<Conn>, Vec<Conn>)> {
    let fleet = Fleet::new(test, 2, Flows::Offload, |config| {
        let config = config.offload("after_round_trips", 4).offload("after", "1h");
        config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0")
    })?;
    let fleet = fleet.with_holder_first();
    let offloaded = fleet.offloaded_clients(12);
    let proxied = fleet.clients(5);
    fleet.wait_known(17, 12);
    Some((fleet, offloaded, proxied))
}

#[test]
fn what_if_says_which_flows_the_death_of_a_host_then_moves_and_resets() {
    let test = "what_if_says_which_flows_the_death_of_a_host_then_moves_and_resets";
    let Some((fleet, mut offloaded, mut proxied)) = with_flows_of_both_kinds(test) else { return };
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let reports = [owner, heir].map(|asked| what_if(&asked.baton, &[owner.name, "dies"]));
    for report in &reports {
        assert_eq!(fates(case(report, "Baton's host gone")), [0, 12, 5, 0], "{report}");
    }
    let none = what_if(&owner.baton, &[heir.name, "dies"]);
    assert_eq!(fates(case(&none, "Baton's host gone")), [0; 4], "the other has no flows: {none}");

    let said = until_told(case(&reports[0], "Baton's host gone"));
    let watch = Stopwatch::start();
    owner.host.link_down();
    all_reset(&mut proxied);
    fleet.wait_served();
    let took = watch.unstalled();
    println!("what-if says {said:?} until the last client is served again; it was after {took:?}");
    assert!(took < said + LOADED, "{took:?}");
    offloaded.iter_mut().for_each(|conn| conn.echo(9, 2000));
    heir.baton.wait_offloaded(12);
}

#[test]
fn what_if_says_which_flows_a_killed_process_then_moves_and_resets() {
    let test = "what_if_says_which_flows_a_killed_process_then_moves_and_resets";
    let Some((fleet, mut offloaded, mut proxied)) = with_flows_of_both_kinds(test) else { return };
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let report = what_if(&owner.baton, &["this", "is", "killed"]);
    assert_eq!(fates(case(&report, "Baton killed")), [0, 12, 5, 0], "{report}");
    owner.baton.process.kill();
    proxied.iter_mut().for_each(|conn| assert_ne!(conn.end(LONG), End::Open));
    offloaded.iter_mut().for_each(|conn| conn.echo(9, 2000));
    fleet.wait_served();
    heir.baton.wait_offloaded(12);
    offloaded.iter_mut().for_each(|conn| conn.echo(9, 2000));
}

/// Regression: the only peer would carry the flows on, it was said, though its host was evacuated and takes no VIP.
#[test]
fn what_if_says_that_nobody_takes_the_vip_while_the_only_peer_is_evacuated() {
    let test = "what_if_says_that_nobody_takes_the_vip_while_the_only_peer_is_evacuated";
    let Some((fleet, mut offloaded, _proxied)) = with_flows_of_both_kinds(test) else { return };
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let host_gone = |asked: &Instance| what_if(&asked.baton, &[owner.name, "dies"]);
    let waits = |fates_expected: [u64; 4]| {
        for asked in [owner, heir] {
            eventually(LONG, "what-if follows the evacuation", || {
                fates(case(&host_gone(asked), "Baton's host gone")) == fates_expected
            });
        }
    };
    waits([0, 12, 5, 0]);
    heir.baton.order(&["evacuate"]);
    waits([0, 0, 0, 17]);
    for asked in [owner, heir] {
        eventually(LONG, "the order that lets it have the VIP is named", || {
            let words = asked.baton.order(&["what-if", owner.name, "dies"]);
            words.contains("no instance would take the VIP") && words.contains("baton evacuate --cancel")
        });
    }
    heir.baton.order(&["evacuate", "--cancel"]);
    waits([0, 12, 5, 0]);
    owner.host.link_down();
    fleet.wait_served();
    offloaded.iter_mut().for_each(|conn| conn.echo(9, 2000));
}

/// Regression: of a peer that hung, or whose link was cut, it was said what its death would do as if all were known.
#[test]
fn what_if_says_when_a_peer_was_last_heard_and_both_outcomes_where_nobody_knows_whether_it_lives() {
    let test = "what_if_says_when_a_peer_was_last_heard";
    let Some((fleet, _offloaded, _proxied)) = with_flows_of_both_kinds(test) else { return };
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let said = |words: &[&str]| owner.baton.order(&[&["what-if"], words].concat());
    // Only TCP of the link.
    heir.host.drop_packets("input", &format!("ip saddr {} meta l4proto tcp", owner.host.v4));
    owner.host.drop_packets("input", &format!("ip saddr {} meta l4proto tcp", heir.host.v4));
    owner.wait_sees(heir.name, "liveness", "unlinked");
    for words in [&[heir.name, "dies"][..], &["this", "dies"]] {
        let told = said(words);
        assert!(told.contains("s ago by its link") && told.contains("ago by a beat"), "{told}");
    }
    [owner, heir].iter().for_each(|it| it.host.nft_clear());
    owner.wait_synced(heir.name);
    heir.wait_synced(owner.name);

    heir.baton.process.stop();
    owner.wait_sees(heir.name, "liveness", "dead");
    let told = said(&[heir.name, "dies"]);
    assert!(told.contains(&format!("{} dead already", heir.name)), "{told}");
    assert!(told.contains(&format!("{} alive", heir.name)) && told.contains("ago by its link"), "{told}");
    assert!(told.contains("cannot be known whether it is dead or only cut off"), "{told}");
    let report = what_if(&owner.baton, &[heir.name, "dies"]);
    assert_eq!(report["cases"][1].get("moved"), None, "not known: {report}");
    let told = said(&["this", "dies"]);
    assert!(told.contains(&format!("{} is not heard (last ", heir.name)), "{told}");
    heir.baton.process.go_on();
}

#[test]
fn what_if_says_which_flows_the_death_of_a_backend_then_resets_and_how_late() {
    let Some(lab) = Lab::new("what_if_says_which_flows_the_death_of_a_backend_then_resets") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conns: Vec<_> = (0..30).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let report = what_if(&baton, &["b1", "dies"]);
    let gone = case(&report, "apiserver's host gone");
    // Workers that choose at once do not see each other's choice.
    let dying = baton.flows_of("b1");
    assert!((5..=15).contains(&dying), "{dying}");
    assert_eq!((fates(gone), &report["clients"]), ([30 - dying, 0, dying, 0], &1.into()), "{report}");
    let words = baton.order(&["what-if", "apiserver/b1", "goes down"]);
    assert!(
        words.contains(&format!("{dying} of 30 flows, of 1 client")) && words.contains("connect again to b2, b3"),
        "{words}"
    );

    let (mut dead, mut alive): (Vec<_>, Vec<_>) = conns.into_iter().partition(|conn| baton.serving(conn) == "b1");
    lab.b1.link_down();
    let took = {
        let watch = Stopwatch::start();
        all_reset(&mut dead);
        watch.unstalled()
    };
    println!("what-if says {:?} until the last RST; it came after {took:?}", until_told(gone));
    assert!(took < until_told(gone) + LOADED, "{took:?}");
    baton.wait_ended("backend_ejected", dying);
    alive.iter_mut().for_each(|conn| conn.echo(2, 1000));
    lab.b1.link_up();
    drop((dead, alive));
    baton.rests();
}
