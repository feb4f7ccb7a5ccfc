//! The fault matrix where a resource runs out or a client takes too much: rows 28 to 30.

use std::io::ErrorKind;

use crate::lab::*;

/// Regression: it started, was ready, and reset every client, because it keeps 512 descriptors for other things than flows.
#[test]
fn with_too_few_descriptors_for_any_client_baton_does_not_start_and_says_why() {
    let Some(lab) = Lab::new("few descriptors") else { return };
    let paths = config::Paths::below(lab.directory());
    std::fs::write(&paths.config, lab.config().text(&paths.socket)).unwrap();
    let baton = Baton::start_by(&["prlimit", "--nofile=600"], &lab.lb, lab.directory());
    eventually(LONG, "it has ended", || baton.process.exit_status().is_some());
    let log = baton.process.log_text();
    assert!(log.contains("it may open 600 files, and needs 1024 at least: set LimitNOFILE="), "{log}");
    let check = format!("{} check -c {} --host", baton::BINARY, paths.config.display());
    let says = |files: u64| lab.lb.run(&format!("prlimit --nofile={files} {check} 2>&1 | grep descriptors"));
    assert!(says(1023).starts_with("fault"), "{}", says(1023));
    assert!(says(1024).starts_with("ok"), "{}", says(1024));
}

#[test]
fn row28_out_of_file_descriptors_accepting_pauses_without_spinning_and_resumes_alone() {
    out_of_files(4);
}

/// Then accept(2) gets the last descriptor, and the backend leg none.
#[test]
fn row28_with_one_file_descriptor_left_accepting_pauses_too() {
    out_of_files(5);
}

fn out_of_files(left: u64) {
    let Some(lab) = Lab::new("row28") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().process("max_connections", 5000));
    let mut old: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    old.iter_mut().for_each(|conn| conn.echo(1, 10_000));

    baton.process.limit_files(baton.process.fds() as u64 + left);
    // Some are served, some wait, and some are reset: none is held for ever. The admin socket has no descriptors
    // either, so the log must tell.
    let waiting: Vec<_> = (0..40).map(|_| lab.client.try_connect(lab.lb.v4(6443), secs(1))).collect();
    baton.wait_log(&["pauses accepting"]);
    let (cpu, watch) = (baton.process.cpu(), Stopwatch::start());
    while watch.elapsed() < secs(2) {
        old.iter_mut().for_each(|conn| conn.echo(2, 1_000));
        std::thread::sleep(ms(100));
    }
    let used = baton.process.cpu() - cpu;
    println!("row 28: paused for 2 s, Baton used {used:?} of CPU time");
    assert!(used < ms(500), "it spins: {used:?}");

    baton.process.limit_files(4096);
    let recovered = eventually(LONG, "accepting goes on", || {
        let Ok(mut conn) = lab.client.try_connect(lab.lb.v4(6443), secs(1)) else { return false };
        conn.send(1, 1).is_ok() && conn.read_byte().is_ok()
    });
    println!("row 28: {recovered:?} after descriptors were there again a new flow was served");
    assert!(baton.metric("baton_accept_errors_total", &[]) >= 1.0);
    assert!(!baton.events_of("accept_paused").is_empty());
    let turned_away = baton.ended().get("out_of_files").copied().unwrap_or(0);
    println!("row 28: {turned_away} of 40 clients were turned away");
    eventually(LONG, "all workers accept again", || baton.metric("baton_accept_paused", &[]) == 0.0);
    assert!(!baton.events_of("accept_resumed").is_empty());
    assert_eq!(baton.events_of("backend_changed").len(), 3, "no backend is blamed for what Baton lacks");
    old.iter_mut().for_each(|conn| conn.echo(3, 100_000));
    drop((old, waiting));
    baton.rests();
}

#[test]
fn row29_out_of_local_ports_to_a_backend_the_others_are_used_then_the_refusal_is_clear() {
    let Some(lab) = Lab::new("row29") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    lab.lb.sysctl("net/ipv4/ip_local_port_range", "40000 40015");
    let mut served = Vec::new();
    let mut refused = 0;
    for seed in 0..80 {
        let conn = lab.client.try_connect(lab.lb.v4(6443), LONG);
        match conn.and_then(|mut conn| conn.try_echo(seed, 1000).map(|()| conn)) {
            Ok(conn) => served.push(conn),
            Err(error) => {
                assert_eq!(End::of_error(&error), End::Rst, "{error}");
                refused += 1;
            }
        }
    }
    println!("row 29: with 16 local ports {} flows were served by three backends, {refused} refused", served.len());
    assert!(served.len() > 32, "one backend's ports were used up, the others' not: {}", served.len());
    assert!(refused > 0, "more flows than there are ports");
    baton.wait_ended("out_of_ports", refused);
    let failures = ["b1", "b2", "b3"]
        .map(|name| baton.backend(name).unwrap()["connect_failures_total"]["out_of_ports"].as_u64().unwrap_or(0));
    assert!(failures.iter().sum::<u64>() > 0, "{failures:?}");
    wait::throughout(secs(3), "no backend is blamed", || {
        ["b1", "b2", "b3"].iter().all(|name| baton.health_state(name) == "ready")
    });
    served.iter_mut().for_each(|conn| conn.echo(1, 1000));

    lab.lb.sysctl("net/ipv4/ip_local_port_range", "32768 60999");
    lab.client.connect(lab.lb.v4(6443)).echo(2, 10_000);
    drop(served);
    baton.rests();
}

#[test]
fn row30_a_syn_flood_keeps_nobody_else_out() {
    let Some(lab) = Lab::new("row30") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().health("timeout", "1s"));
    let mut old = lab.client.connect(lab.lb.v4(6443));
    old.echo(1, 10_000);
    // Its kernel sends SYN and never the ACK that completes a handshake: half-open connections, as many as fit.
    lab.client2.drop_packets("output", "tcp flags & ack == ack");
    lab.client2.drop_packets("output", "tcp flags & rst == rst");
    let to = lab.lb.v4(6443);
    let flood = lab.client2.enter(|| {
        let connect = || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&to.into());
            socket
        };
        (0..4000).map(|_| connect()).collect::<Vec<_>>()
    });
    let mut slowest = ms(0);
    for seed in 0..20 {
        let watch = Stopwatch::start();
        lab.client.connect(to).echo(seed, 10_000);
        slowest = slowest.max(watch.unstalled());
    }
    println!("row 30: beside {} half-open connections the slowest of 20 connects took {slowest:?}", flood.len());
    assert!(slowest < ms(1500), "{slowest:?}");
    old.echo(2, 100_000);
    assert_eq!(baton.events_of("backend_changed").len(), 3, "ready at the start, and no change since");
    drop((flood, old));
    baton.rests();
}

#[test]
fn row30_a_flood_from_one_source_meets_its_cap_and_harms_nobody_else() {
    let Some(lab) = Lab::new("row30") else { return };
    let _servers = lab.echo_everywhere();
    // A whole second for a probe: the flood's own work must not be mistaken for a sick backend on a busy machine.
    let config = lab.config().frontend("max_connections_per_source", 50).health("timeout", "1s");
    let baton = lab.start(&config);
    let mut other = lab.client.connect(lab.lb.v4(6443));
    // Slow clients: they send a byte and then nothing.
    let mut flood: Vec<_> = (0..300).filter_map(|_| lab.client2.try_connect(lab.lb.v4(6443), LONG).ok()).collect();
    flood.iter_mut().for_each(|conn| drop(conn.send(1, 1)));
    baton.wait_ended("limit_source", 250);
    assert_eq!(baton.flow_count(), 51);
    // Baton counts an end a moment before its RST has arrived.
    let mut alive = || flood.iter_mut().map(|conn| conn.end(ms(1))).filter(|end| *end == End::Open).count();
    eventually(LONG, "all but 50 are reset", || alive() == 50);
    let watch = Stopwatch::start();
    for seed in 0..20 {
        lab.client.connect(lab.lb.v4(6443)).echo(seed, 10_000);
    }
    println!("row 30: beside a flood of 300, 20 connects of another source took {:?}", watch.elapsed());
    assert!(watch.unstalled() < secs(1), "{:?}", watch.elapsed());
    other.echo(2, 1_000_000);
    assert_eq!(baton.events_of("backend_changed").len(), 3, "ready at the start, and no change since");
    drop(flood);
    eventually(LONG, "the flood is gone", || baton.flow_count() == 1);
    lab.client2.connect(lab.lb.v4(6443)).echo(3, 10_000);
    drop(other);
    baton.rests();
}

#[test]
fn row30_a_storm_of_connects_from_one_source_meets_its_rate() {
    let Some(lab) = Lab::new("row30") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().frontend("accept_rate_per_source", 20));
    let watch = Stopwatch::start();
    let mut served = 0;
    for seed in 0..400 {
        match lab.client2.try_connect(lab.lb.v4(6443), LONG) {
            Ok(mut conn) => served += u64::from(conn.try_echo(seed, 100).is_ok()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    // Each worker may let a burst of its own through.
    let allowed = 20.0 * 2.0 + 20.0 * 2.0 * watch.elapsed().as_secs_f64() + 5.0;
    println!("row 30: of 400 connects in {:?} {served} were served", watch.elapsed());
    assert!((served as f64) < allowed && served >= 20, "{served}, allowed {allowed}");
    baton.wait_ended("rate_source", 400 - served);
    lab.client.connect(lab.lb.v4(6443)).echo(1, 10_000);
    baton.rests();
}
