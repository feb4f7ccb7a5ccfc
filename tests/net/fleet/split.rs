//! Two owners of one VIP, with real keepalived: the pair is parted, or keepalived itself fails.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use super::failover::{Fleet, Flows};
use super::*;
use crate::lab::process::Process;

/// Longer than this no client waits, whatever happens between the instances.
const HANG: std::time::Duration = secs(8);

const BOTH: [Flows; 2] = [Flows::Kept, Flows::Offload];

/// How it comes about that both have the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Only keepalived's advertisements are lost.
    AdvertsLost,
    /// Neither hears the other, and the second drops untracked packets.
    Parted,
    /// The first one's keepalived is killed, and leaves the VIP behind.
    Killed,
    /// It stands still.
    Stopped,
}

/// A pair with keepalived, the first of which has the VIP and so many clients.
struct Pair {
    fleet: Fleet,
    keepalived: Vec<Process>,
    conns: Vec<Conn>,
}

impl Pair {
    fn new(test: &str, flows: Flows, count: u64) -> Option<Self> {
        let fleet = Fleet::new(test, 2, flows, |config| config)?;
        let keepalived = fleet.kept_alive_slowly();
        let offloaded = if flows == Flows::Offload { count } else { 0 };
        let conns = match flows {
            Flows::Offload => fleet.offloaded_clients(count),
            _ => fleet.clients(count),
        };
        if flows != Flows::Alone {
            fleet.wait_known(count, offloaded);
        }
        Some(Self { fleet, keepalived, conns })
    }

    /// Until both have the VIP.
    #[track_caller]
    fn come_about(&mut self, cause: Cause) {
        match cause {
            Cause::AdvertsLost => self.hosts().iter().for_each(|host| host.drop_packets("input", "ip protocol 112")),
            Cause::Parted => {
                failover::drop_untracked(&self.fleet.heir().host);
                self.hosts().iter().for_each(|host| host.isolate(true));
            }
            Cause::Killed => {
                let [parent, child] = self.movers(0);
                // Stopped first: it would start another child, and give the VIP up.
                kill_process(parent, Signal::STOP).expect("it runs");
                kill_process(child, Signal::KILL).expect("it runs");
                self.keepalived[0].kill();
            }
            Cause::Stopped => self.signal_keepalived(0, Signal::STOP),
        }
        eventually(LONG, "both have the VIP", || self.has_vip(0) && self.has_vip(1));
    }

    fn hosts(&self) -> [Host; 2] {
        [0, 1].map(|number| self.fleet.all[number].host.clone())
    }

    fn has_vip(&self, number: usize) -> bool {
        self.fleet.all[number].host.has_address(failover::VIP)
    }

    /// The instance with the VIP, once only one has it.
    #[track_caller]
    fn wait_one(&self) -> &Instance {
        eventually(LONG, "one has the VIP", || self.has_vip(0) != self.has_vip(1));
        &self.fleet.all[usize::from(self.has_vip(1))]
    }

    /// Every flow goes on, or is reset at once; returns how many were reset. New ones are served.
    #[track_caller]
    fn nobody_hangs(&mut self) -> usize {
        let before = self.conns.len();
        let mut slowest = std::time::Duration::ZERO;
        let mut seed = 0;
        self.conns.retain_mut(|conn| {
            let watch = Stopwatch::start();
            seed += 1;
            let lives = match conn.try_echo(seed, 2000) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(End::of_error(&error), End::Rst, "after {:?}", watch.elapsed());
                    false
                }
            };
            slowest = slowest.max(watch.elapsed());
            lives
        });
        assert!(slowest < HANG, "one waited for {slowest:?}");
        self.fleet.scene.lab.client.connect(self.fleet.vip).echo(9, 3000);
        before - self.conns.len()
    }

    /// Exactly one instance owns each live flow, and each instance knows the other's flows.
    #[track_caller]
    fn wait_settled(&self) {
        let [a, b] = [&self.fleet.all[0], &self.fleet.all[1]];
        let counts = || {
            let (of_a, of_b) = (a.baton.flow_count(), b.baton.flow_count());
            (of_a, of_b, b.sees("lb-a")["flows"].as_u64(), a.sees("lb-b")["flows"].as_u64())
        };
        let live = self.conns.len() as u64;
        let watch = Stopwatch::start();
        loop {
            let (of_a, of_b, seen_of_a, seen_of_b) = counts();
            if of_a + of_b == live && seen_of_a == Some(of_a) && seen_of_b == Some(of_b) {
                return;
            }
            assert!(watch.elapsed() < secs(30), "{live} live: {:?}", counts());
            std::thread::sleep(ms(20));
        }
    }

    /// How long until the client sends to `owner`.
    #[track_caller]
    fn arp_is_right(&self, owner: &Instance) -> std::time::Duration {
        let client = &self.fleet.scene.lab.client;
        let mac = owner.host.mac();
        eventually(LONG, "the client sends to the owner", || {
            client.neighbour(self.fleet.vip.ip()).as_ref() == Some(&mac)
        })
    }

    fn movers(&self, number: usize) -> [Pid; 2] {
        let file: PathBuf = self.fleet.all[number].directory.join("vrrp.pid");
        let text = std::fs::read_to_string(file).expect("it runs");
        [self.keepalived[number].pid(), Pid::from_raw(text.trim().parse().expect("a number")).expect("a process")]
    }

    fn signal_keepalived(&self, number: usize, signal: Signal) {
        self.movers(number).into_iter().for_each(|pid| kill_process(pid, signal).expect("it runs"));
    }

    fn challenged(&self) -> f64 {
        self.fleet.all.iter().map(|it| it.baton.metric("baton_failover_challenged_total", &[])).sum()
    }
}

#[test]
fn two_owners_that_hear_each_other_reset_no_flow() {
    let test = "two_owners_that_hear_each_other_reset_no_flow";
    for flows in BOTH {
        let Some(mut pair) = Pair::new(test, flows, 40) else { return };
        pair.come_about(Cause::AdvertsLost);
        for _ in 0..5 {
            assert_eq!(pair.nobody_hangs(), 0);
        }
        pair.hosts().iter().for_each(|host| host.run("nft delete table inet lab").clear());
        let watch = Stopwatch::start();
        let owner = pair.wait_one();
        pair.arp_is_right(owner);
        println!("row 21: healed, the client's ARP is right after {:?}", watch.elapsed());
        assert_eq!(pair.nobody_hangs(), 0);
        assert_eq!((pair.challenged(), pair.fleet.resets()), (0.0, 0.0));
        pair.wait_settled();
    }
}

#[test]
fn a_pair_that_is_parted_leaves_no_client_waiting_and_agrees_when_it_is_whole_again() {
    let test = "a_pair_that_is_parted_leaves_no_client_waiting";
    for flows in BOTH {
        let Some(mut pair) = Pair::new(test, flows, 40) else { return };
        pair.come_about(Cause::Parted);
        let mut reset = 0;
        for _ in 0..3 {
            reset += pair.nobody_hangs();
        }
        // Neither hears the other: the second takes the first for dead.
        match flows {
            Flows::Offload => assert_eq!(reset, 0, "whoever gets its packets carries it"),
            _ => println!("{reset} proxied flows were reset"),
        }
        let mut young = pair.fleet.clients(10);
        pair.hosts().iter().for_each(|host| host.isolate(false));
        let watch = Stopwatch::start();
        let owner = pair.wait_one();
        pair.arp_is_right(owner);
        println!("row 21: healed, the client's ARP is right after {:?}", watch.elapsed());
        assert!(watch.elapsed() < secs(5), "nobody has said so at once");
        assert_eq!(pair.nobody_hangs(), 0, "reset because the pair is whole again");
        // The neighbours are the first to notice the end of the split: a packet of a proxied flow may reach an instance
        // that does not know yet that its owner lives.
        std::mem::swap(&mut pair.conns, &mut young);
        println!("row 21: {} of 10 proxied flows were reset by the end of the partition", pair.nobody_hangs());
        pair.conns.append(&mut young);
        pair.wait_settled();
        assert_eq!(pair.nobody_hangs(), 0);
    }
}

#[test]
fn clients_that_are_cut_off_from_the_owner_for_a_while_lose_no_flow() {
    let test = "clients_that_are_cut_off_from_the_owner_for_a_while_lose_no_flow";
    for flows in BOTH {
        let Some(mut pair) = Pair::new(test, flows, 20) else { return };
        let client = pair.fleet.scene.lab.client.clone();
        let owner = pair.fleet.owner().host.clone();
        [&client, &owner].iter().for_each(|host| host.isolate(true));
        // Half of them ask meanwhile, and are answered when the way is there again.
        let asking: Vec<_> = pair.conns.drain(10..).collect();
        let asking: Vec<_> = asking
            .into_iter()
            .map(|mut conn| std::thread::spawn(move || conn.try_echo(3, 500).map(|()| conn)))
            .collect();
        wait::throughout(secs(3), "the VIP stays", || pair.has_vip(0) && !pair.has_vip(1));
        [&client, &owner].iter().for_each(|host| host.isolate(false));
        pair.conns.extend(asking.into_iter().map(|thread| thread.join().unwrap().expect("it goes on")));
        assert_eq!(pair.nobody_hangs(), 0);
        assert_eq!((pair.challenged(), pair.fleet.resets()), (0.0, 0.0));
        pair.wait_settled();
    }
}

#[test]
fn a_killed_keepalived_costs_a_fleet_no_flow() {
    let test = "a_killed_keepalived_costs_a_fleet_no_flow";
    for flows in BOTH {
        let Some(mut pair) = Pair::new(test, flows, 40) else { return };
        pair.come_about(Cause::Killed);
        for _ in 0..5 {
            assert_eq!(pair.nobody_hangs(), 0);
        }
        // As the event `vip_left_behind` says how to.
        pair.fleet.owner().host.run(&format!("ip address del {}/32 dev eth0", failover::VIP));
        let owner = pair.wait_one();
        assert_eq!(owner.name, "lb-b");
        pair.arp_is_right(owner);
        for _ in 0..3 {
            assert_eq!(pair.nobody_hangs(), 0);
        }
        assert_eq!((pair.challenged(), pair.fleet.resets()), (0.0, 0.0));
        pair.wait_settled();
    }
}

#[test]
fn a_keepalived_that_stood_still_costs_a_fleet_no_flow() {
    let test = "a_keepalived_that_stood_still_costs_a_fleet_no_flow";
    for flows in BOTH {
        let Some(mut pair) = Pair::new(test, flows, 40) else { return };
        pair.come_about(Cause::Stopped);
        for _ in 0..3 {
            assert_eq!(pair.nobody_hangs(), 0);
        }
        pair.signal_keepalived(0, Signal::CONT);
        let owner = pair.wait_one();
        pair.arp_is_right(owner);
        for _ in 0..3 {
            assert_eq!(pair.nobody_hangs(), 0);
        }
        assert_eq!((pair.challenged(), pair.fleet.resets()), (0.0, 0.0));
        pair.wait_settled();
    }
}

#[test]
fn without_peers_flows_are_lost_as_soon_as_two_have_the_vip() {
    let test = "without_peers_flows_are_lost_as_soon_as_two_have_the_vip";
    for cause in [Cause::AdvertsLost, Cause::Parted, Cause::Killed, Cause::Stopped] {
        let Some(mut pair) = Pair::new(test, Flows::Alone, 5) else { return };
        pair.come_about(cause);
        let lost = failover::wait_lost(&mut pair.conns);
        // The firewall makes a black hole of it.
        assert_eq!(lost, if cause == Cause::Parted { End::Open } else { End::Rst }, "{cause:?}");
    }
}
