//! The relay's promises, through the real binary: bytes, addresses, connects.

use crate::lab::bytes::Tally;
use crate::lab::*;

#[test]
fn bytes_pass_unharmed_in_every_size_and_both_directions_at_once() {
    let Some(lab) = Lab::new("relay") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    let mut sent = 0;
    for bytes in [1, 2, 1000, 65_535, 65_536, 65_537, 262_144, 1_000_000, 40_000_000, 3, 131_072, 1] {
        conn.echo(bytes, bytes);
        sent += bytes;
    }
    // A worker may be stopped between the last write and its count.
    eventually(LONG, "each byte is counted once", || {
        let flow = &baton.flows()[0];
        (&flow["bytes_to_backend"], &flow["bytes_to_client"]) == (&sent.into(), &sent.into())
    });
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    baton.wait_ended("client_closed", 1);
    baton.rests();
}

#[test]
fn ipv6_and_ipv4_meet_in_any_combination() {
    let Some(lab) = Lab::new("relay") else { return };
    let _b1 = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve_on(lab.b2.v6(6443), Behaviour::Echo);
    let config = lab.config().only(&["b1"]).backend("b2", lab.b2.v6(6443)).frontend("balance", "round_robin");
    let baton = lab.start(&config);
    let mut seen = std::collections::BTreeSet::new();
    // Each worker takes turns of its own, so a few more flows than combinations may be needed.
    for round in 0..40 {
        let to = if round % 5 < 2 { lab.lb.v4(6443) } else { lab.lb.v6(6443) };
        let mut conn = lab.client.connect(to);
        conn.echo(round, 300_000);
        seen.insert((to.is_ipv6(), baton.serving(&conn)));
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    baton.rests();
}

#[test]
fn bytes_sent_before_a_backend_is_found_are_not_lost() {
    let Some(lab) = Lab::new("relay") else { return };
    let _servers = lab.echo_everywhere();
    let _probed = [&lab.b1, &lab.b2].map(|host| host.serve_on(host.v4(6444), Behaviour::Echo));
    let config = lab.config().frontend("balance", "round_robin").frontend("connect_timeout", "300ms");
    let config = ["b1", "b2"]
        .iter()
        .zip([&lab.b1, &lab.b2])
        .fold(config, |config, (name, host)| config.of_backend(name, "health_address", host.v4(6444).to_string()));
    let baton = lab.start(&config.frontend("hedge_after", "100ms"));
    // One drops the SYN, one refuses it: the flow goes to the third, with the bytes that the client sent meanwhile.
    lab.b1.drop_packets("input", "tcp dport 6443");
    lab.b2.nft(
        "table inet lab {\nchain input {\ntype filter hook input priority 0;\n\
         tcp dport 6443 reject with tcp reset\n}\n}\n",
    );
    for seed in 0..9 {
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.send(seed, 100_000).unwrap();
        assert_eq!(conn.read_tally(100_000).unwrap(), Tally::of_pattern(seed, 100_000));
        assert_eq!(baton.serving(&conn), "b3");
    }
    // A client that sends FIN before anything is connected gets its whole answer too.
    for seed in 0..3 {
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.send(seed, 1000).unwrap();
        conn.half_close();
        let (end, tally, _) = conn.read_end(LONG);
        assert_eq!((end, tally), (End::Fin, Tally::of_pattern(seed, 1000)));
    }
    baton.rests();
}

#[test]
fn the_loser_of_a_hedged_connect_is_closed_with_rst_and_serves_nobody() {
    let Some(lab) = Lab::new("relay") else { return };
    let slow = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let _probed = lab.b1.serve_on(lab.b1.v4(6444), Behaviour::Echo);
    let config = lab.config().only(&["b1", "b2"]).frontend("balance", "round_robin");
    let config = config.of_backend("b1", "health_address", lab.b1.v4(6444).to_string());
    let baton = lab.start(&config.frontend("connect_timeout", "5s"));
    // Its SYN+ACK is lost, so that its kernel holds a connection that Baton gives up.
    lab.b1.drop_packets("output", "tcp sport 6443 tcp flags & syn == syn");
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        conn.echo(seed as u64, 10_000);
        assert_eq!(baton.serving(conn), "b2");
    }
    lab.b1.nft_clear();
    baseline::no_sockets_left(&lab.b1);
    assert_eq!(slow.accepted(), 0, "no handshake was completed");
    drop(conns);
    baton.rests();
}

#[test]
fn a_client_that_leaves_while_a_backend_is_sought_leaves_nothing_behind() {
    let Some(lab) = Lab::new("relay") else { return };
    let _probed = lab.b1.serve_on(lab.b1.v4(6444), Behaviour::Echo);
    let config = lab.config().only(&["b1"]).of_backend("b1", "health_address", lab.b1.v4(6444).to_string());
    let baton = lab.start(&config.frontend("connect_timeout", "10s"));
    lab.b1.drop_packets("input", "tcp dport 6443");
    let conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    eventually(LONG, "they wait", || baton.flow_count() == 5);
    let watch = Stopwatch::start();
    conns.into_iter().for_each(Conn::reset);
    baton.wait_ended("client_left", 5);
    println!("5 clients that left while a backend was sought were noticed after {:?}", watch.elapsed());
    assert!(watch.unstalled() < secs(1));
    baton.rests();
}

#[test]
fn a_vip_that_comes_later_is_served_at_once() {
    let Some(lab) = Lab::new("relay") else { return };
    let _servers = lab.echo_everywhere();
    let vips = ["10.77.0.100".parse().unwrap(), "fd77::100".parse().unwrap()];
    let listen = vips.map(|ip: std::net::IpAddr| std::net::SocketAddr::new(ip, 6443));
    let listen_on: Vec<_> = listen.iter().map(ToString::to_string).collect();
    let baton = lab.start(&lab.config().frontend("listen", listen_on));
    assert!(lab.client.try_connect(listen[0], ms(200)).is_err(), "nobody has it yet");
    for (ip, address) in vips.into_iter().zip(listen) {
        lab.lb.add_address(ip);
        eventually(LONG, "the address answers", || lab.client.try_connect(address, ms(500)).is_ok());
        lab.client.connect(address).echo(1, 1_000_000);
    }
    baton.rests();
}

#[test]
fn many_flows_at_once_each_keep_their_own_bytes() {
    let Some(lab) = Lab::new("relay") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conns: Vec<_> = (0..400).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    eventually(LONG, "400 flows", || baton.flow_count() == 400);
    std::thread::scope(|scope| {
        for (part, conns) in conns.chunks_mut(100).enumerate() {
            scope.spawn(move || {
                for (seed, conn) in conns.iter_mut().enumerate() {
                    conn.send((part * 1000 + seed) as u64, 3000).unwrap();
                }
                for (seed, conn) in conns.iter_mut().enumerate() {
                    let expected = Tally::of_pattern((part * 1000 + seed) as u64, 3000);
                    assert_eq!(conn.read_tally(3000).unwrap(), expected);
                }
            });
        }
    });
    let spread = ["b1", "b2", "b3"].map(|name| baton.flows_of(name));
    assert!(spread.iter().all(|flows| (130..=137).contains(flows)), "{spread:?}");
    drop(conns);
    baton.rests();
}
