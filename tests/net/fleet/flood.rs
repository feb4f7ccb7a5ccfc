//! Floods of packets of no flow, with made-up sources, while instances live, and while one dies.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::baton::model::segment::{Flags, Segment};
use ::baton::sys::clock::now_ns;
use ::baton::sys::raw::RawSender;

use super::failover::{Fleet, Flows, VIP};
use super::*;
use super::{newborn, parted};

/// Three times as many as there are questions about packets that do not come again.
const PER_SECOND: u64 = 3_000;

/// TCP's first retransmission after 3 s comes after 6.2 s at the latest (0.2, 0.6, 1.4, 3.0, 6.2); one may be lost on a busy machine.
const DEAD_MAX: Duration = secs(15);

/// Whose packets a flood seems to be.
#[derive(Clone, Copy, Debug)]
enum Sources {
    /// Each comes once.
    Many,
    /// 1,000 connections of one network come again and again, as TCP's would.
    Network,
    /// As `Network`, of this one address.
    One(IpAddr),
}

/// What such packets are, and to which ports they go.
#[derive(Clone, Copy, Debug)]
struct Kind {
    sources: Sources,
    flags: Flags,
    ports: (u16, u16),
}

impl Kind {
    fn at_service(sources: Sources) -> Self {
        Self { sources, flags: Flags::Ack, ports: (6443, 6443) }
    }

    fn segment(self, vip: IpAddr, number: u64) -> Segment {
        let mixed = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let [a, b, c, d, e, f, ..] = mixed(match self.sources {
            Sources::Many => number,
            Sources::Network | Sources::One(_) => number % 1000,
        });
        let ip = match self.sources {
            Sources::Many => IpAddr::from([100, 64 + a % 64, b, c]),
            Sources::Network => IpAddr::from([100, 64, 0, c]),
            Sources::One(ip) => ip,
        };
        let (first, last) = self.ports;
        let to = first + (number % u64::from(last - first + 1)) as u16;
        Segment {
            from: (ip, 1024 + u16::from_be_bytes([d, e]) % 60_000).into(),
            to: (vip, to).into(),
            seq: u32::from(f),
            ack: 1,
            flags: self.flags,
            window: 0,
        }
    }
}

/// Sends from `host`, whichever `kind` it is at the time, until it is over; how many went out.
fn flood(host: &Host, vip: IpAddr, kinds: &[Kind], kind: &AtomicU64, over: &AtomicBool) -> u64 {
    let raw = host.enter(|| RawSender::marked(0)).expect("root");
    let (began_ns, mut sent) = (now_ns(), 0);
    while !over.load(Ordering::Relaxed) {
        let due = (now_ns() - began_ns) / 1000 * PER_SECOND / 1_000_000;
        // Packets that a busy machine had no time for are not sent later.
        for number in sent.max(due.saturating_sub(PER_SECOND / 20))..due {
            let segment = kinds[(kind.load(Ordering::Relaxed) as usize).min(kinds.len() - 1)].segment(vip, number);
            let _ = raw.send(&segment.packet().expect("of one family"), vip);
        }
        sent = due;
        // Paced by the clock above.
        std::thread::sleep(ms(1));
    }
    sent
}

/// Runs `body` during a flood from the lab's third backend; it may change to the next kind.
fn during_flood<T>(fleet: &Fleet, kinds: &[Kind], body: impl FnOnce(&dyn Fn()) -> T) -> T {
    let (over, kind) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        /// A test that fails must end the flood, or the scope waits for ever.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let end = Over(&over);
        let flooding = scope.spawn(|| flood(&fleet.scene.lab.b3, fleet.vip.ip(), kinds, &kind, &over));
        let result = body(&|| {
            let _ = kind.fetch_add(1, Ordering::Relaxed);
        });
        drop(end);
        println!("{} packets of the flood", flooding.join().unwrap());
        result
    })
}

/// Connections with the VIP that no instance has ever had: another host took them, and is gone.
fn of_nobody(fleet: &Fleet, count: usize) -> Vec<Conn> {
    let lab = &fleet.scene.lab;
    lab.b3.run(&format!("ip address add {VIP}/32 dev lo"));
    let server = lab.b3.serve_on(fleet.vip, Behaviour::Echo);
    lab.client.run(&format!("ip route replace {VIP}/32 via {}", lab.b3.v4));
    let mut conns: Vec<_> = (0..count).map(|_| lab.client.connect(fleet.vip)).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    // Its packets about their end are lost.
    lab.b3.drop_packets("output", &format!("ip saddr {VIP}"));
    drop(server);
    lab.b3.run(&format!("ip address del {VIP}/32 dev lo"));
    conns
}

fn packets(instance: &Instance, kind: &str) -> f64 {
    instance.baton.metric("baton_offload_packets_total", &[&format!("\"{kind}\"")])
}

/// How long the first packet of a flow that no instance knows waits for RST.
fn reset_after(mut dead: Conn) -> Duration {
    let watch = Stopwatch::start();
    dead.send(1, 100).expect("its kernel takes it");
    assert_eq!(dead.end(DEAD_MAX), End::Rst, "a flow that nobody knows");
    watch.elapsed()
}

/// At an instance behind a router, which always learns of another's new flows a moment later.
#[test]
fn a_flood_of_unknown_packets_resets_no_newborn_flow_of_another_instance() {
    let test = "a_flood_of_unknown_packets_resets_no_newborn_flow_of_another_instance";
    let Some(fleet) = newborn::behind_a_router(test, VIP, Flows::Kept) else { return };
    let lab = &fleet.scene.lab;
    newborn::route(&fleet, &lab.b3, 1);
    let client = IpAddr::V4(lab.client.v4);
    let floods = [Sources::Many, Sources::Network, Sources::One(client)];
    let dead = of_nobody(&fleet, floods.len());
    newborn::route(&fleet, &lab.client, 1);
    let mut all = Vec::new();
    during_flood(&fleet, &floods.map(Kind::at_service), |next| {
        for (sources, dead) in floods.into_iter().zip(dead) {
            let (before, cpu, began_ns) = (packets(&fleet.all[1], "asked"), fleet.all[1].baton.process.cpu(), now_ns());
            // For seconds after an address has come, its unknown packets go to the instance that had it, which answers none.
            eventually(LONG, "the flood is there, and no guard", || packets(&fleet.all[1], "asked") > before + 100.0);
            for batch in 0..if matches!(sources, Sources::Many) { 2 } else { 1 } {
                let mut conns = newborn::rehashed(&fleet, Flows::Kept, 0);
                let watch = Stopwatch::start();
                let lost: Vec<_> = std::thread::scope(|scope| {
                    let each: Vec<_> =
                        conns.iter_mut().map(|conn| scope.spawn(move || conn.try_echo(1, 500))).collect();
                    each.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
                });
                println!("{sources:?}, batch {batch}: the slowest went on after {:?}", watch.elapsed());
                assert!(lost.is_empty(), "{sources:?}, batch {batch}: {lost:?}");
                all.append(&mut conns);
            }
            println!("{sources:?}: a flow that nobody knows was reset after {:?}", reset_after(dead));
            let used = (fleet.all[1].baton.process.cpu() - cpu).as_secs_f64();
            println!("{sources:?}: {:.1} % of a core", used / ((now_ns() - began_ns) as f64 / 1e9) * 100.0);
            next();
        }
    });
    println!("{} were asked of, {} not", packets(&fleet.all[1], "asked"), packets(&fleet.all[1], "unasked"));
    all.iter_mut().for_each(|conn| conn.echo(2, 500));
}

#[test]
fn during_a_flood_the_flows_of_a_host_that_dies_are_reset_and_unknown_packets_too() {
    let test = "during_a_flood_the_flows_of_a_host_that_dies_are_reset_and_unknown_packets_too";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.spread();
    let lab = &fleet.scene.lab;
    newborn::route(&fleet, &lab.b3, 1);
    let mut conns = fleet.clients(100);
    fleet.wait_known(100, 0);
    let mut dead = of_nobody(&fleet, 3);
    fleet.route(&[0]);
    during_flood(&fleet, &[Kind::at_service(Sources::Many)], |_| {
        eventually(LONG, "the flood is there", || packets(fleet.heir(), "asked") > 100.0);
        fleet.owner().host.link_down();
        fleet.route(&[1]);
        println!("{} idle clients reset after {:?}", conns.len(), failover::all_reset(&mut conns));
        // No live peer can be asked.
        fleet.heir().wait_sees("lb-a", "liveness", "dead");
        wait::meets(secs(1), "a flow that nobody knows was reset after", || {
            reset_after(dead.pop().expect("one for each try"))
        });
        fleet.wait_served();
    });
}

/// Clients reach the VIP by one instance, and backends by the other, which knows the owner of a SYN-ACK only by its
/// port.
#[test]
fn a_flood_of_the_instances_source_ports_delays_no_new_connection() {
    let test = "a_flood_of_the_instances_source_ports_delays_no_new_connection";
    let Some((fleet, mut conns)) = parted::crossed(test, 2, Flows::Kept) else { return };
    newborn::route(&fleet, &fleet.scene.lab.b3, 1);
    let kind = |flags| Kind { sources: Sources::Many, flags, ports: (32768, 39000) };
    during_flood(&fleet, &[kind(Flags::SynAck), kind(Flags::Ack)], |next| {
        for _ in 0..2 {
            let before = packets(&fleet.all[1], "forwarded_by_port");
            eventually(LONG, "the flood is there", || packets(&fleet.all[1], "forwarded_by_port") > before + 300.0);
            parted::all_go_on(&fleet, &mut conns, 3);
            next();
        }
    });
    parted::all_go_on(&fleet, &mut conns, 4);
}
