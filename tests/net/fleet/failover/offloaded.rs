//! Thousands of offloaded flows, each doing something else, when the host that carries them dies without a word, or is
//! emptied: they go on, and the pause is what moving the address takes, and the next retransmission. The figures are printed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Scope;
use std::time::Duration;

use super::load::{Load, Talking, Until, whole};
use super::*;

/// All flows, the silent watches among them. Each takes a descriptor here, and its server another.
const FLOWS: u64 = 2000;
const TALKING: u64 = 25;
const STREAMING: u64 = 6;

/// The actions of clients on a fleet, and the watches, still without any data.
struct Clients<'s> {
    talks: Vec<Talking<'s>>,
    streams: Vec<Talking<'s>>,
    watches: Vec<Conn>,
    ports: BTreeSet<u16>,
}

impl<'s> Clients<'s> {
    /// All have been offloaded by the time that this returns, while they talk and stream.
    fn start(fleet: &Fleet, scope: &'s Scope<'s, '_>, load: &'s Load) -> Self {
        let watches = fleet.offloaded_clients(FLOWS - TALKING - STREAMING);
        let (talking, streaming) = (fleet.clients(TALKING), fleet.clients(STREAMING));
        let ports = talking.iter().map(|conn| conn.local().port()).collect();
        let talks = load.ping_pongs(scope, talking);
        let streams = load.bulk(scope, streaming);
        // Who talks or streams is seldom quiet when it is tried, and seldomer on a busy machine.
        let offloaded = || fleet.owner().baton.status()["totals"]["flows"]["offloaded"] == FLOWS;
        eventually(secs(60), "all are offloaded", offloaded);
        load.goes_on(0, TALKING * 20);
        load.streams_on(STREAMING * 1_000_000);
        Self { talks, streams, watches, ports }
    }
}

/// A host that is gone for good, with everything that ran on it.
struct Death {
    /// From then until the heir's kernel had the VIP.
    outage: Duration,
    /// After which the client's kernel would send again what ping-pongs last said, when the VIP had come.
    timeout: Duration,
}

impl Death {
    fn of(fleet: &Fleet, keepalived: &[Process], load: &Load, ports: &BTreeSet<u16>) -> Self {
        load.wait_amid_bursts(STREAMING / 2);
        load.longest();
        let heir = &fleet.heir().host;
        std::thread::scope(|scope| {
            let watch = Stopwatch::start();
            fleet.owner().host.link_down();
            let came = scope.spawn(move || {
                eventually(secs(30), "the VIP has come", || heir.has_address(VIP));
                (watch.elapsed(), timeout_of(&fleet.scene.lab.client, ports))
            });
            keepalived[0].kill();
            fleet.owner().baton.process.kill();
            let (outage, timeout) = came.join().expect("no panic");
            Self { outage, timeout }
        })
    }
}

/// The longest retransmission timeout of connections of these ports, as ss(8) reads it from the kernel of `client`;
/// zero if all of them are gone: connections that no instance knows are gone by then.
fn timeout_of(client: &Host, ports: &BTreeSet<u16>) -> Duration {
    let listed = client.run(&format!("ss -tinOH state established dst {VIP}"));
    let of_line = |line: &str| -> Option<f64> {
        let port = line.split_whitespace().nth(2)?.rsplit(':').next()?.parse().ok()?;
        let timeout = line.split_whitespace().find_map(|word| word.strip_prefix("rto:"))?;
        ports.contains(&port).then(|| timeout.parse().ok())?
    };
    let longest = listed.lines().filter_map(of_line).reduce(f64::max);
    Duration::from_secs_f64(longest.unwrap_or(0.0) / 1000.0)
}

/// What backends had from flows that RST ended.
fn reset_at_backends(fleet: &Fleet) -> usize {
    let ended = fleet.servers.iter().flat_map(Server::ended);
    ended.filter(|served| served.end == End::Rst && served.received.bytes > 0).count()
}

/// Waits until `heir` counts both ways of so many streams. Its peer told of them each GiB: until the heir has caught up with a stream, its
/// program counts no FIN of it either, and an end's RST, when challenged, is the first that it learns of its end.
fn wait_caught_up(heir: &Baton, streams: u64) {
    let ways = || -> BTreeMap<String, [u64; 2]> {
        let bytes =
            |flow: &Value| ["bytes_to_backend", "bytes_to_client"].map(|way| flow[way].as_u64().expect("bytes"));
        heir.flows().iter().map(|flow| (flow["client"].to_string(), bytes(flow))).collect()
    };
    let before = ways();
    let grows = |client: &String, now: [u64; 2]| {
        let before = before.get(client).copied().unwrap_or_default();
        now.iter().zip(before).all(|(now, before)| *now >= before + 1_000_000)
    };
    eventually(LONG, "the heir counts the streams", || {
        ways().iter().filter(|(client, now)| grows(client, **now)).count() as u64 >= streams
    });
}

/// Backends speak first, unasked, and then clients.
pub fn watches_go_on(fleet: &Fleet, conns: &mut [Conn]) {
    const BYTES: u64 = 3000;
    fleet.servers.iter().for_each(|server| server.say(77, BYTES));
    let expected = Tally::of_pattern(77, BYTES);
    for conn in conns.iter_mut() {
        let said = conn.read_tally(BYTES).unwrap_or_else(|error| panic!("{}: {error}", conn.local()));
        assert_eq!(said, expected, "{}", conn.local());
    }
    conns.iter_mut().for_each(|conn| conn.echo(78, BYTES));
}

#[test]
fn a_host_that_dies_under_ping_pongs_streams_and_silent_watches_costs_the_outage_and_one_retransmission() {
    let test = "a_host_that_dies_under_ping_pongs_streams_and_silent_watches";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let keepalived = fleet.kept_alive();
    let (load, heir) = (Load::default(), &fleet.heir().baton);
    let reset_before = fleet.clients_reset();
    let (mut conns, death) = std::thread::scope(|scope| {
        let _until = Until(&load);
        let Clients { talks, streams, mut watches, ports } = Clients::start(&fleet, scope, &load);
        fleet.wait_known(FLOWS, FLOWS);
        let death = Death::of(&fleet, &keepalived, &load, &ports);
        load.goes_on(0, TALKING * 100);
        load.streams_on(STREAMING * 2_000_000);
        wait_caught_up(heir, STREAMING);
        load.bulk_over.store(true, Relaxed);
        whole(streams);
        load.over.store(true, Relaxed);
        watches.extend(whole(talks));
        (watches, death)
    });
    let (pause, burst) = load.longest();
    let Death { outage, timeout } = death;
    watches_go_on(&fleet, &mut conns);
    heir.wait_offloaded(FLOWS - STREAMING);
    let ended = heir.ended();
    assert!(ended.keys().all(|reason| reason == "client_closed"), "{ended:?}");
    let resets = (fleet.clients_reset() - reset_before, reset_at_backends(&fleet));
    assert_eq!(resets, (0, 0), "at clients, at backends");
    assert_eq!(heir.metric("baton_unknown_packets_total", &["reset"]), 0.0);
    drop(conns);
    heir.wait_ended("client_closed", FLOWS);
    let megabytes = load.bulk_bytes.load(Relaxed) / 1_000_000;
    println!(
        "proof: a host dies under {FLOWS} offloaded flows: {TALKING} ping-pongs at 1 ms, {STREAMING} streams both ways, \
         {} silent watches\n\
         \x20 |                                      | measured | to beat |\n\
         \x20 | flows reset                          | {:>8} | {FLOWS:>7} | (a proxy's sockets die with their host)\n\
         \x20 | MB of streams, each byte compared    | {megabytes:>8} |         |\n\
         \x20 | link down until another host has the VIP | {outage:>8.0?} |         |\n\
         \x20 | timeout of the client's kernel then  | {timeout:>8.0?} |         |\n\
         \x20 | longest pause of a ping-pong         | {pause:>8.0?} | {:>7.0?} | (the sum of the two)\n\
         \x20 | longest burst of a stream            | {burst:>8.0?} |         |",
        FLOWS - TALKING - STREAMING,
        resets.0,
        outage + timeout,
    );
    // The sum where nothing else wants the CPUs; here they may all be taken.
    assert!(pause < outage + timeout + secs(2), "{pause:?}, {outage:?} and {timeout:?}");
}

#[test]
fn without_peers_the_flows_of_a_host_that_dies_are_reset_or_wait_on() {
    let test = "without_peers_the_flows_of_a_host_that_dies_are_reset_or_wait_on";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, Config::alone) else { return };
    let keepalived = fleet.kept_alive();
    let load = Load::default();
    let reset_before = fleet.clients_reset();
    let (mut watches, ends, death) = std::thread::scope(|scope| {
        let _until = Until(&load);
        let Clients { talks, streams, watches, ports } = Clients::start(&fleet, scope, &load);
        let death = Death::of(&fleet, &keepalived, &load, &ports);
        let ends: Vec<_> = talks.into_iter().chain(streams).map(|talk| talk.join().unwrap().end).collect();
        (watches, ends, death)
    });
    let reset = || fleet.clients_reset() - reset_before;
    let of = |end| ends.iter().filter(|it| **it == Some(end)).count() as u64;
    // An end that had nothing left to repeat, and only waited for its answer, goes on waiting.
    let (told, waiting) = (of(End::Rst), of(End::Open));
    assert_eq!(told + waiting, TALKING + STREAMING, "{ends:?}");
    assert_eq!(reset(), told, "nobody who watches is told");
    watches[0].stays_open(secs(2));
    for watch in &mut watches {
        let error = watch.try_echo(1, 100).expect_err("nobody knows it");
        assert_eq!(End::of_error(&error), End::Rst);
    }
    println!(
        "control: without peers: VIP at another host after {:.0?}; of {} ping-pongs and streams {told} reset, {waiting} \
         without an answer for {LONG:?}; {} watches left in the dark until they spoke, then reset",
        death.outage,
        TALKING + STREAMING,
        watches.len()
    );
    assert_eq!(reset(), FLOWS - waiting);
}

/// The others are offloaded in an evacuation; these had long before.
#[test]
fn flows_that_had_offloaded_notice_nothing_when_their_host_is_emptied() {
    let test = "flows_that_had_offloaded_notice_nothing_when_their_host_is_emptied";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_track_file();
    let _keepalived = fleet.kept_alive();
    let (load, owner, heir) = (Load::default(), fleet.owner(), fleet.heir());
    let reset_before = fleet.clients_reset();
    let mut conns = std::thread::scope(|scope| {
        let _until = Until(&load);
        let Clients { talks, streams, mut watches, .. } = Clients::start(&fleet, scope, &load);
        fleet.wait_known(FLOWS, FLOWS);
        let all_go_on = || {
            load.goes_on(0, TALKING * 200);
            load.streams_on(STREAMING * 2_000_000);
        };
        // As long as the evacuation below, without one.
        load.longest();
        let before = fleet.resent();
        all_go_on();
        let (control, pause_before) = (fleet.resent() - before, load.longest());
        let (before, lost) = (fleet.resent(), fleet.lost());
        let output = owner.baton.cli(&["evacuate", "--to", "lb-b", "--deadline", "50s", "--json"]);
        all_go_on();
        let (resent, lost, pause) = (fleet.resent() - before, fleet.lost() - lost, load.longest());
        let report = Instance::report(&output);
        assert!(output.status.success(), "{report}");
        let flows = &report["flows"];
        let said = ["offloaded_before", "moved", "proxied_before", "reset"].map(|key| flows[key].as_u64());
        println!(
            "proof: a host is emptied of {FLOWS} flows that had been offloaded before, {TALKING} of them ping-pongs, {STREAMING} \
             streams: {report}\n\
             \x20 sent again and lost: {resent:?}, {lost}; without an evacuation {control:?}\n\
             \x20 longest pause of a ping-pong, longest burst: {pause:.0?}; without an evacuation {pause_before:.0?}"
        );
        assert_eq!(said[0], Some(FLOWS), "offloaded before");
        assert_eq!(said[2..], [Some(0), Some(0)], "{report}");
        assert_eq!(lost, 0);
        assert!(resent.needed() <= control.needed() + 3, "{resent:?}, without an evacuation {control:?}");
        // The host may be switched off.
        owner.host.link_down();
        all_go_on();
        load.bulk_over.store(true, Relaxed);
        whole(streams);
        load.over.store(true, Relaxed);
        watches.extend(whole(talks));
        watches
    });
    watches_go_on(&fleet, &mut conns);
    heir.baton.wait_offloaded(FLOWS - STREAMING);
    let ended = heir.baton.ended();
    assert!(ended.keys().all(|reason| reason == "client_closed"), "{ended:?}");
    assert_eq!((fleet.clients_reset() - reset_before, reset_at_backends(&fleet)), (0, 0), "at clients, at backends");
    assert_eq!(heir.baton.metric("baton_unknown_packets_total", &["reset"]), 0.0);
}
