//! The clients that may connect, how many, and the clients that a PROXY header names.

use std::net::{IpAddr, Ipv4Addr};

use crate::lab::*;

/// `End::Rst` if the flow is turned away, `End::Open` if it is served.
#[track_caller]
fn outcome(conn: std::io::Result<Conn>) -> End {
    match conn {
        Ok(mut conn) => match conn.try_echo(1, 1000) {
            Ok(()) => End::Open,
            Err(error) => End::of_error(&error),
        },
        Err(error) => End::of_error(&error),
    }
}

#[test]
fn caps_of_the_process_the_frontend_and_a_backend_hold() {
    for (level, reason) in [("process", "limit_total"), ("frontend", "limit_frontend"), ("backend", "backends_full")] {
        let Some(lab) = Lab::new("admission") else { return };
        let _servers = lab.echo_everywhere();
        let config = match level {
            "process" => lab.config().process("max_connections", 6),
            "frontend" => lab.config().frontend("max_connections", 6),
            _ => ["b1", "b2", "b3"]
                .iter()
                .fold(lab.config(), |config, name| config.of_backend(name, "max_connections", 2)),
        };
        let baton = lab.start(&config);
        let mut held: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
        held.iter_mut().for_each(|conn| conn.echo(1, 1000));
        for _ in 0..4 {
            assert_eq!(outcome(lab.client.try_connect(lab.lb.v4(6443), LONG)), End::Rst, "{level}");
        }
        baton.wait_ended(reason, 4);
        eventually(LONG, "an event says so", || !baton.events_of("refusals_begun").is_empty());
        let begun = &baton.events_of("refusals_begun")[0];
        assert_eq!(
            (begun["frontend"].as_str(), begun["reason"].as_str()),
            (Some("apiserver"), Some(reason)),
            "{begun}"
        );
        held.iter_mut().for_each(|conn| conn.echo(2, 1000));
        held.truncate(5);
        eventually(LONG, "there is room again", || baton.flow_count() == 5);
        assert_eq!(outcome(lab.client.try_connect(lab.lb.v4(6443), LONG)), End::Open, "{level}");
        drop(held);
        baton.rests();
    }
}

/// Without a limit, all clients of a cluster shake hands with it at once.
#[test]
fn row31_the_first_backend_that_returns_gets_a_thousand_flows_and_the_second_lets_the_others_in() {
    let Some(lab) = Lab::new("row31 first") else { return };
    let (b1, b2) = (lab.b1.serve(Behaviour::Echo), lab.b2.serve(Behaviour::Echo));
    let config = lab.config().only(&["b1", "b2"]).health("slow_start", "30s").rebalance("when", "ordered");
    // Two workers may take the last flow below the limit in the same moment.
    let baton = lab.start(&config.process("workers", 1));
    drop((b1, b2));
    for name in ["b1", "b2"] {
        baton.wait_health(name, "ejected", LONG);
    }

    let _b1 = lab.b1.serve(Behaviour::Echo);
    baton.wait_health("b1", "ready", LONG);
    let watch = Stopwatch::start();
    let connect = || lab.client.try_connect(lab.lb.v4(6443), LONG);
    let mut held: Vec<_> = (0..1100).map(|_| connect()).collect();
    eventually(LONG, "no connection is without its outcome", || {
        let turned_away = baton.ended().get("backends_full").copied().unwrap_or(0);
        baton.flows_of("b1") + turned_away == 1100
    });
    let took = watch.elapsed();
    if took < secs(4) {
        assert_eq!(baton.flows_of("b1"), 1000);
        assert!(said_full(&baton), "{:?}", baton.status());
    } else {
        println!("row 31: 1,100 connections took {took:?}: too slow a machine for the limit of 5 s");
    }
    let _b2 = lab.b2.serve(Behaviour::Echo);
    baton.wait_health("b2", "ready", LONG);
    assert_eq!(outcome(connect()), End::Open, "a second backend is back");
    held.clear();
    baton.rests();
}

/// Whether the status says that new connections are reset.
fn said_full(baton: &Baton) -> bool {
    baton.status()["frontends"][0]["service"]["state"] == "full"
}

#[test]
fn sources_are_allowed_and_denied_by_network_in_both_families() {
    let Some(lab) = Lab::new("admission") else { return };
    let _servers = lab.echo_everywhere();
    for number in 100..110u8 {
        lab.client.add_address(IpAddr::V4(Ipv4Addr::new(10, 77, 0, number)));
    }
    let config = lab.config().frontend("allow", vec!["10.77.0.0/24", "fd77::/64"]);
    let baton = lab.start(&config.frontend("deny", vec!["10.77.0.104/30", "fd77::b/128"]));
    let to = lab.lb.v4(6443);
    let mut denied = 0;
    for number in 100..110u8 {
        let source = IpAddr::V4(Ipv4Addr::new(10, 77, 0, number));
        let expected = if (104..108).contains(&number) { End::Rst } else { End::Open };
        denied += u64::from(expected == End::Rst);
        assert_eq!(outcome(lab.client.connect_from(source, to)), expected, "{source}");
    }
    assert_eq!(outcome(lab.client.try_connect(lab.lb.v6(6443), LONG)), End::Open);
    assert_eq!(outcome(lab.client2.try_connect(lab.lb.v6(6443), LONG)), End::Rst, "fd77::b is denied");
    baton.wait_ended("denied", denied + 1);
    baton.rests();
}

#[test]
fn an_ipv6_source_counts_by_its_prefix() {
    let Some(lab) = Lab::new("admission") else { return };
    let _servers = lab.echo_everywhere();
    let more: Vec<IpAddr> = (0..4).map(|n| format!("fd77::a{n}").parse().unwrap()).collect();
    more.iter().for_each(|ip| lab.client.add_address(*ip));
    let baton = lab.start(&lab.config().frontend("max_connections_per_source", 3));
    let mut held: Vec<_> = more[..3].iter().map(|ip| lab.client.connect_from(*ip, lab.lb.v6(6443)).unwrap()).collect();
    held.iter_mut().for_each(|conn| conn.echo(1, 1000));
    assert_eq!(outcome(lab.client.connect_from(more[3], lab.lb.v6(6443))), End::Rst, "the same /64");
    assert_eq!(outcome(lab.client.try_connect(lab.lb.v4(6443), LONG)), End::Open, "another family, another source");
    baton.wait_ended("limit_source", 1);
    drop(held);
    baton.rests();
}

#[test]
fn a_proxy_header_from_a_trusted_source_names_the_client_and_an_untrusted_one_s_is_payload() {
    let Some(lab) = Lab::new("admission") else { return };
    let _servers = lab.echo_everywhere();
    let trusted = vec![format!("{}/32", lab.client.v4)];
    let config = lab.config().frontend("accept_proxy_from", trusted).frontend("deny", vec!["192.0.2.66/32"]);
    let baton = lab.start(&config.frontend("proxy_header_timeout", "500ms"));

    let mut v1 = lab.client.connect(lab.lb.v4(6443));
    v1.send_bytes(b"PROXY TCP4 192.0.2.1 198.51.100.1 1234 6443\r\n").unwrap();
    v1.echo(1, 100_000);
    let mut v2 = lab.client.connect(lab.lb.v4(6443));
    v2.send_bytes(&v2_header([192, 0, 2, 2], 4321)).unwrap();
    v2.echo(2, 100_000);
    let clients: Vec<_> = baton.flows().iter().map(|flow| flow["client"].as_str().unwrap().to_owned()).collect();
    assert!(clients.contains(&"192.0.2.1:1234".to_owned()), "{clients:?}");
    assert!(clients.contains(&"192.0.2.2:4321".to_owned()), "{clients:?}");

    let mut denied = lab.client.connect(lab.lb.v4(6443));
    denied.send_bytes(b"PROXY TCP4 192.0.2.66 198.51.100.1 1 6443\r\n").unwrap();
    assert_eq!(denied.end(LONG), End::Rst, "lists mean the client, not the proxy before it");
    baton.wait_ended("denied", 1);

    let mut garbage = lab.client.connect(lab.lb.v4(6443));
    garbage.send_bytes(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(garbage.end(LONG), End::Rst);
    let mut silent = lab.client.connect(lab.lb.v4(6443));
    assert_eq!(silent.end(LONG), End::Rst, "no header in time");
    baton.wait_ended("bad_proxy_header", 2);

    let mut untrusted = lab.client2.connect(lab.lb.v4(6443));
    let header = b"PROXY TCP4 192.0.2.1 198.51.100.1 1234 6443\r\n";
    untrusted.send_bytes(header).unwrap();
    assert_eq!(untrusted.read_tally(header.len() as u64).unwrap().bytes, header.len() as u64, "it is echoed");
    drop((v1, v2, denied, garbage, silent, untrusted));
    baton.rests();
}

#[test]
fn a_v2_header_tells_the_backend_who_the_client_is() {
    let Some(lab) = Lab::new("admission") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().frontend("send_proxy_v2", true));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.send_bytes(b"payload").unwrap();
    // The echo server sends back the bytes that it got: the header, then the payload.
    let got: Vec<u8> = (0..28 + 7).map(|_| conn.read_byte().unwrap()).collect();
    assert_eq!(&got[..12], b"\r\n\r\n\0\r\nQUIT\n");
    assert_eq!(got[12..16], [0x21, 0x11, 0, 12], "version 2, PROXY, TCP over IPv4, 12 bytes of addresses");
    assert_eq!(got[16..20], lab.client.v4.octets());
    assert_eq!(got[20..24], lab.lb.v4.octets());
    assert_eq!(got[24..26], conn.local().port().to_be_bytes());
    assert_eq!(got[26..28], 6443u16.to_be_bytes());
    assert_eq!(&got[28..], b"payload");

    let mut v6 = lab.client.connect(lab.lb.v6(6443));
    v6.send_bytes(b"x").unwrap();
    let got: Vec<u8> = (0..52 + 1).map(|_| v6.read_byte().unwrap()).collect();
    assert_eq!(got[12..16], [0x21, 0x21, 0, 36]);
    assert_eq!(got[16..32], lab.client.v6.octets());
    drop((conn, v6));
    baton.rests();
}

/// A version 2 header for a client at `ip`:`port`, with a TLV that a reader must skip (section 2.2).
fn v2_header(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([0x21, 0x11, 0, 12 + 3 + 5]);
    header.extend(ip);
    header.extend([198, 51, 100, 1]);
    header.extend(port.to_be_bytes());
    header.extend(6443u16.to_be_bytes());
    header.extend([0x05, 0, 5]);
    header.extend(*b"id-17");
    header
}
