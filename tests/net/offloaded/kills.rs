//! kill -9 at random under load, again and again: each flow goes on whole, or ends; none hangs, none gets a wrong byte.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use super::Scene;
use crate::lab::*;

/// Of one flow over one kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    WentOn,
    Fin,
    Rst,
}

const CLIENTS: usize = 12;

/// A flow that is older than its client's connection by more than this is that of an earlier connection by the same port. Each refused
/// connect takes a port, so all have their turn within seconds.
const EARLIER: Duration = Duration::from_millis(200);

/// The state that the clients and the killer share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    outcomes: Mutex<BTreeMap<Outcome, u64>>,
    /// When the last connection from each of the clients' addresses began.
    began: Mutex<HashMap<String, SystemTime>>,
    /// Clients' addresses of flows that were offloaded right before some kill.
    offloaded: Mutex<HashSet<String>>,
    /// Those of them that have ended all the same, how, and when.
    noticed: Mutex<Vec<(String, Outcome, SystemTime)>>,
}

impl Shared {
    /// Panics with what all processes so far have logged of the first flow that noticed a kill.
    #[track_caller]
    fn none_noticed(&self, baton: &Baton) {
        let noticed = self.noticed.lock().unwrap().clone();
        let Some((client, how, at)) = noticed.first() else { return };
        let log = baton.process.log_text();
        let tells = |line: &&str| ["WARN", "ERROR", "recovered", client].iter().any(|part| line.contains(part));
        let lines = log.lines().filter(tells).collect::<Vec<_>>().join("\n");
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        panic!("{client} was offloaded and noticed a kill: {how:?} at {at:.3}; of {} so\n{lines}", noticed.len());
    }
}

/// A client that sends requests and checks the answers until told to stop, and reports the end of each connection. A
/// request that is unanswered for longer than any outage shows a hung flow, and fails the test.
fn client(lab: &Lab, number: u64, shared: &Shared) {
    let Shared { stop, outcomes, began, offloaded, noticed } = shared;
    let note = |outcome| *outcomes.lock().unwrap().entry(outcome).or_default() += 1;
    let mut seed = number * 1_000_000;
    while !stop.load(SeqCst) {
        let Ok(mut conn) = lab.client.try_connect(lab.lb.v4(6443), secs(1)) else { continue };
        let local = conn.local().to_string();
        // An earlier connection may have had the port, and its flow may still be listed.
        began.lock().unwrap().insert(local.clone(), SystemTime::now());
        offloaded.lock().unwrap().remove(&local);
        let ended = loop {
            seed += 1;
            // Sizes vary, so that kills meet requests at rest and in the middle.
            match conn.try_echo(seed, 1 + seed * 7919 % 3000) {
                Ok(()) if stop.load(SeqCst) => break Outcome::WentOn,
                // Some connections are young at every kill.
                Ok(()) if seed % 400 == number => break Outcome::WentOn,
                Ok(()) => {}
                Err(error) => match End::of_error(&error) {
                    End::Rst => break Outcome::Rst,
                    End::Other(std::io::ErrorKind::UnexpectedEof) => break Outcome::Fin,
                    other => panic!("client {number}: a flow hangs: {other:?}"),
                },
            }
        };
        let was_offloaded = offloaded.lock().unwrap().contains(&local);
        if ended != Outcome::WentOn && was_offloaded {
            noticed.lock().unwrap().push((local, ended, SystemTime::now()));
        }
        note(ended);
    }
}

fn kill_at_random(kills: u32) {
    let Some(scene) = Scene::new("kills") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    // Their packets go by lo, where Baton's own sockets get theirs, too.
    let _here = lab.lb.serve_on(lab.lb.v4(7443), Behaviour::Echo);
    let config = scene.config().offload("after_round_trips", 1).backend("here", lab.lb.v4(7443));
    let baton = lab.baton(&config);
    let shared = Shared::default();
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("row 33: the seed is {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut recovered, mut watched) = (0, 0);
    let baton = std::thread::scope(|scope| {
        for number in 0..CLIENTS as u64 {
            let shared = &shared;
            scope.spawn(move || client(lab, number, shared));
        }
        let _stops = Stops(&shared.stop);
        let mut baton = baton;
        for _ in 0..kills {
            // The moment of the kill is the point of the test, not a wait for anything.
            std::thread::sleep(ms(random.u64(0..120)));
            recovered += baton.status()["offload"]["recovered_total"].as_u64().unwrap();
            let flows = baton.flows();
            let now = SystemTime::now();
            let began = shared.began.lock().unwrap().clone();
            let offloaded = flows.iter().filter(|flow| flow["state"] == "offloaded").filter_map(|flow| {
                let (client, age_ms) = (flow["client"].as_str()?, flow["age_ms"].as_u64()?);
                let accepted = now - ms(age_ms);
                (accepted + EARLIER >= *began.get(client)?).then(|| client.to_owned())
            });
            let offloaded: Vec<_> = offloaded.collect();
            watched += offloaded.len() as u64;
            shared.offloaded.lock().unwrap().extend(offloaded);
            baton.process.kill();
            baton = lab.baton(&config);
            shared.none_noticed(&baton);
        }
        shared.stop.store(true, SeqCst);
        baton
    });
    shared.none_noticed(&baton);
    println!("row 33: {kills} kills: {:?}; {recovered} flows were recovered", shared.outcomes.lock().unwrap());
    assert!(recovered > u64::from(kills), "{recovered} flows recovered over {kills} kills");
    assert!(watched > u64::from(kills), "of {watched} flows it was known before a kill that they were offloaded");
}

/// Lets the clients end also when the test panics.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn row33_thirty_kills_at_random_leave_no_flow_hanging() {
    kill_at_random(30);
}

#[test]
#[ignore = "takes minutes"]
fn row33_five_hundred_kills_at_random_leave_no_flow_hanging() {
    kill_at_random(500);
}
