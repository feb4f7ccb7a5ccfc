//! An operator's orders: kill, drain, eject, stop; and the timers that end flows.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lab::*;

#[test]
fn kill_resets_one_flow_or_those_of_a_backend_or_of_a_network() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    let mut of_the_other = lab.client2.connect(lab.lb.v6(6443));
    conns.iter_mut().for_each(|conn| conn.echo(1, 10_000));
    of_the_other.echo(1, 10_000);

    let mut one = conns.pop().unwrap();
    let local = one.local().to_string();
    let id = baton.flows().into_iter().find(|flow| flow["client"] == *local).unwrap()["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    baton.order(&["kill", &id]);
    assert_eq!(one.end(LONG), End::Rst);
    baton.wait_ended("killed", 1);
    assert!(!baton.cli(&["kill", &id]).status.success(), "there is no such flow any more");

    let of_b1 = baton.flows_of("b1");
    assert!(of_b1 >= 1);
    baton.order(&["kill", "--backend", "b1"]);
    baton.wait_ended("killed", 1 + of_b1);
    assert_eq!(baton.flows_of("b1"), 0);

    // Ours are IPv4, the other's is IPv6; it survives unless it was one of b1's.
    let rest = baton.flows();
    let of_network = rest.iter().filter(|flow| flow["client"].as_str().unwrap().starts_with("10.77.0.")).count() as u64;
    assert!(of_network >= 1);
    baton.order(&["kill", "--client", "10.77.0.0/24"]);
    baton.wait_ended("killed", 1 + of_b1 + of_network);
    assert_eq!(baton.flow_count(), rest.len() as u64 - of_network);
    for conn in &mut conns {
        assert_eq!(conn.end(LONG), End::Rst);
    }
    let mut last = lab.client2.connect(lab.lb.v6(6443));
    last.echo(2, 10_000);
    assert!(!baton.cli(&["kill", "--all"]).status.success(), "not without --yes");
    last.echo(3, 10_000);
    baton.order(&["kill", "--all", "--yes"]);
    assert_eq!(last.end(LONG), End::Rst);
    drop(last);
    drop((one, conns, of_the_other));
    baton.rests();
}

#[test]
fn a_killed_flow_is_reset_on_both_sides_also_while_bytes_are_in_flight() {
    let Some(lab) = Lab::new("operator") else { return };
    let server = lab.b1.serve(Behaviour::Source { seed: 6, bytes: u64::MAX });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.read_tally(1_000_000).unwrap();
    let id = baton.flows()[0]["id"].as_str().expect("an id").to_owned();
    baton.order(&["kill", &id]);
    assert_eq!(conn.end(LONG), End::Rst);
    conn.received_pattern(6);
    let reset = || server.ended().iter().any(|served| served.sent > 1_000_000 && served.end == End::Rst);
    eventually(LONG, "the backend saw RST", reset);
    drop(conn);
    baton.wait_ended("killed", 1);
    baton.rests();
}

#[test]
fn a_drained_backend_keeps_its_flows_takes_no_new_ones_and_comes_back() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut old = baton.connect_to(&lab.client, "b1");
    let said = baton.order(&["drain", "b1"]);
    println!("baton drain b1 says: {said}");
    assert!(said.contains('1'), "how many flows there are: {said}");
    assert_eq!(baton.health_state("b1"), "draining");
    assert_eq!(baton.backend("b1").unwrap()["cause"]["kind"], "ordered_drain");
    let new: Vec<_> = (0..10).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    assert!(new.iter().all(|conn| baton.serving(conn) != "b1"));
    old.echo(1, 100_000);
    assert_eq!(baton.flows_of("b1"), 1);

    baton.order(&["undrain", "b1"]);
    baton.wait_health("b1", "ready", LONG);
    assert_eq!(baton.serving(&baton.connect_to(&lab.client, "b1")), "b1");
    old.echo(2, 100_000);
    assert!(!baton.cli(&["drain", "nobody"]).status.success(), "an unknown backend is an error");
    drop((old, new));
    baton.rests();
}

#[test]
fn the_log_has_one_line_for_each_event_of_an_order() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().log("format", "json"));
    let (of_b1, of_b2) = (baton.connect_to(&lab.client, "b1"), baton.connect_to(&lab.client, "b2"));
    // A reload after an order is logged after all lines of the order.
    let log = || {
        let lines =
            baton.process.log_text().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        let others = lines.into_iter().filter(|line| line["target"] != "baton::flow");
        let told = others.map(|line| line["message"].as_str().unwrap().to_owned());
        // Each reload warns of the lab's own file.
        told.filter(|line| !line.contains("has no effect")).collect::<Vec<_>>()
    };
    let reloaded = "Baton reloaded the configuration: nothing changed";
    let logged = |order: &[&str]| {
        let before = log().len();
        baton.order(order);
        baton.order(&["reload"]);
        eventually(LONG, "the reload is logged", || log()[before..].iter().any(|line| line == reloaded));
        let mut said = log().split_off(before);
        assert_eq!(said.pop().as_deref(), Some(reloaded));
        // Each order stands first, with the user and the process that gave it.
        let (first, last) = (said.remove(0), said.pop().expect("the order to reload"));
        for (line, order) in [(first, order.join(" ").replace(" --yes", "")), (last, "reload".to_owned())] {
            let user = format!("uid {} (process ", rustix::process::geteuid().as_raw());
            assert!(line.starts_with(&user) && line.ends_with(&format!(") orders: baton {order}")), "{line}");
        }
        said
    };
    assert_eq!(logged(&["drain", "b3"]), ["apiserver/b3: ready → draining: drained by an operator"]);
    assert_eq!(logged(&["drain", "b3"]), [""; 0], "it is drained already");
    assert_eq!(logged(&["undrain", "b3"]), ["apiserver/b3: draining → ready: probes pass"]);
    assert_eq!(logged(&["eject", "b3"]), ["apiserver/b3: ready → ejected: ejected by an operator"]);
    assert_eq!(logged(&["undrain", "b3"]), ["apiserver/b3: ejected → ready: probes pass"]);
    eventually(LONG, "only the two flows are left", || baton.flow_count() == 2);
    let ends = "apiserver/b1: Baton ends 1 flow because an operator gave the order";
    assert_eq!(logged(&["kill", "--all", "--yes"]), [ends, &ends.replace("b1", "b2")]);
    let of_b1 = (of_b1, baton.connect_to(&lab.client, "b1"));
    eventually(LONG, "only the flow of b1 is left", || baton.flow_count() == 1);
    // The order has two effects, and each is an event.
    let (changes, ends) =
        ("ready → ejected: ejected by an operator", "Baton ends 1 flow because an operator ejected this backend");
    assert_eq!(logged(&["eject", "b1"]), [format!("apiserver/b1: {changes}"), format!("apiserver/b1: {ends}")]);
    drop((of_b1, of_b2));
    baton.rests();
}

#[test]
fn an_ejected_backend_s_flows_are_reset_and_undrain_brings_it_back() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut of_b1 = baton.connect_to(&lab.client, "b1");
    let mut of_b2 = baton.connect_to(&lab.client, "b2");
    let watch = Stopwatch::start();
    baton.order(&["eject", "b1"]);
    assert_eq!(of_b1.end(LONG), End::Rst);
    println!("an ejected backend's client saw RST after {:?}", watch.elapsed());
    assert!(watch.unstalled() < ms(1500), "{:?}", watch.elapsed());
    baton.wait_ended("ejected_by_operator", 1);
    of_b2.echo(1, 100_000);
    wait::throughout(secs(2), "good probes do not overrule the order", || baton.health_state("b1") == "ejected");
    baton.order(&["undrain", "b1"]);
    baton.wait_health("b1", "ready", LONG);
    drop((of_b1, of_b2));
    baton.rests();
}

#[test]
fn sigterm_fails_readiness_first_waits_for_flows_and_a_second_signal_shortens_it() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().process("stop_timeout", "60s"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 100_000);
    baton.process.signal(Signal::TERM);
    eventually(LONG, "readiness fails", || baton.http("/readyz").is_some_and(|(status, _)| status == 503));
    eventually(LONG, "new flows are turned away", || match lab.client.try_connect(lab.lb.v4(6443), LONG) {
        Ok(mut new) => new.end(ms(500)) == End::Rst,
        Err(error) => {
            matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::ConnectionReset)
        }
    });
    conn.echo(2, 1_000_000);
    assert!(baton.process.exit_status().is_none(), "it waits for the flow");

    let watch = Stopwatch::start();
    baton.process.signal(Signal::TERM);
    assert_eq!(conn.end(LONG), End::Rst);
    let status = baton.process.wait(LONG);
    println!("after the second signal it was gone after {:?}", watch.elapsed());
    assert!(status.success(), "{status}");
    assert!(watch.unstalled() < secs(3), "{:?}", watch.elapsed());
    assert!(!baton.paths.socket.exists(), "the admin socket is removed");
    baton.wait_log(&["shutdown"]);
    baseline::no_sockets_left(&lab.lb);
}

#[test]
fn sigterm_ends_at_once_when_the_last_flow_has_ended() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    baton.process.signal(Signal::TERM);
    eventually(LONG, "readiness fails", || baton.http("/readyz").is_none_or(|(status, _)| status == 503));
    conn.echo(1, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    assert!(baton.process.wait(LONG).success());
}

#[test]
fn sigterm_resets_what_is_left_at_the_deadline() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().process("stop_timeout", "2s"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    let watch = Stopwatch::start();
    baton.process.signal(Signal::TERM);
    assert_eq!(conn.end(LONG), End::Rst);
    println!("with a stop timeout of 2 s the last flow was reset after {:?}", watch.elapsed());
    assert!(watch.elapsed() > ms(1500) && watch.unstalled() < secs(6), "{:?}", watch.elapsed());
    assert!(baton.process.wait(LONG).success());
}

#[test]
fn a_flow_without_a_byte_for_the_idle_timeout_is_reset_on_both_sides() {
    let Some(lab) = Lab::new("operator") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&lab.config().only(&["b1"]).frontend("idle_timeout", "4s"));
    let mut idle = lab.client.connect(lab.lb.v4(6443));
    let mut busy = lab.client.connect(lab.lb.v4(6443));
    idle.echo(1, 5555);
    let (end, _) = eventually_some(LONG, "the idle one ends", || {
        busy.echo(2, 100);
        Some(idle.end(ms(100))).filter(|end| *end != End::Open)
    });
    assert_eq!(end, End::Rst);
    baton.wait_ended("idle_timeout", 1);
    let reset = || server.ended().iter().any(|served| served.received.bytes == 5555 && served.end == End::Rst);
    eventually(LONG, "the backend saw RST", reset);
    busy.echo(3, 100_000);
    drop((idle, busy));
    baton.rests();
}

#[test]
fn each_ended_flow_has_a_line_an_event_and_a_count_that_agree() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().log("format", "json"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 54_321);
    let client = conn.local().to_string();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    baton.wait_ended("client_closed", 1);
    let (event, _) = eventually_some(LONG, "an event says so", || baton.events_of("flow_ended").pop());
    assert_eq!((&event["client"], &event["reason"]), (&json!(client), &json!("client_closed")));
    assert_eq!((&event["bytes_to_backend"], &event["bytes_to_client"]), (&json!(54_321), &json!(54_321)));
    let line = baton.wait_log(&["client_closed", &client, "54321"]);
    let line: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
    println!("{line}");
    assert_eq!(baton.metric("baton_flows_ended_total", &["reason=\"client_closed\""]), 1.0);
    drop(conn);
    baton.rests();
}

#[test]
fn the_metrics_page_pleases_promtool() {
    let Some(lab) = Lab::new("operator") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    lab.client.connect(lab.lb.v4(6443)).echo(1, 100_000);
    let page = baton.metrics();
    let said = namespace::feed(std::process::Command::new("promtool").args(["check", "metrics"]), &page);
    assert_eq!(said, "");
    assert!(!page.contains(&lab.client.v4.to_string()), "no client's address is a label");
}
