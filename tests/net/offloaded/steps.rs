//! kill -9 between any two system calls of an offload, of a reset and of an end: the process is stopped there by a
//! tracer and then killed. Whatever the step, the flow goes on whole or ends, at once and on both sides.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::Scene;
use crate::lab::*;

/// The step of a flow's offload or end at which its process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    Probed,
    OneEntry,
    Entered,
    InFlightWritten,
    Filling,
    Acknowledged,
    OneSocketSilent,
    OneSocketClosed,
    BothSocketsSilent,
    ClosedButUnmarked,
    Alone,
    Ordered,
    Resetting,
    Over,
    OneEntryGone,
    BothEntriesGone,
}

/// The fate of a flow whose process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Every byte came, and it goes on.
    WentOn,
    Fin,
    Rst,
}

/// How a flow stands when it is to be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// A request was read and is held.
    Request,
    /// The same, and another one comes between the step and the kill.
    Requests,
    /// Nothing has moved for a while.
    Quiet,
}

/// The call of an offload before which its process is killed.
#[derive(Clone, Copy, Debug)]
enum StopAt {
    Call(usize),
    /// The first one that is made after a step, however many came before.
    After(Done),
}

const THREADS: &[&str] = &["offload", RCU];

/// Waits for all CPUs while the engine does other things.
const RCU: &str = "offload-rcu";

/// Follows the calls of a thread that offloads one flow.
struct Steps {
    done: Option<Done>,
    /// Calls of this offload that have been seen.
    seen: usize,
    stop_at: StopAt,
    stopped_after: Arc<Mutex<Option<Done>>>,
    finished: Arc<AtomicBool>,
}

/// Of `enum bpf_cmd` (include/uapi/linux/bpf.h).
const BPF_UPDATE: u64 = 2;
const BPF_DELETE: u64 = 3;
const BPF_TEST_RUN: u64 = 10;
const BPF_TAKE_OUT: u64 = 21;

impl Steps {
    fn new(stop_at: StopAt) -> Self {
        Self { done: None, seen: 0, stop_at, stopped_after: Arc::default(), finished: Arc::default() }
    }

    /// The step that is done once `call` is made, if the call matters.
    fn after(&self, call: &Call) -> Option<Done> {
        use Done::*;
        if call.thread == RCU && call.number != libc::SYS_membarrier {
            // It wakes the engine after its wait, perhaps only after the engine has gone on by itself: so such a call
            // shows nothing about the engine's step.
            return None;
        }
        let socket = call.descriptor.starts_with("socket:");
        let bpf = (call.number == libc::SYS_bpf).then_some(call.arguments[0]);
        let repair = call.number == libc::SYS_setsockopt && call.arguments[2] == libc::TCP_REPAIR as u64;
        Some(match (self.done, bpf) {
            (None | Some(Probed), Some(BPF_TEST_RUN)) => Probed,
            (Some(Probed), Some(BPF_UPDATE)) => OneEntry,
            (Some(OneEntry), Some(BPF_UPDATE)) => Entered,
            (Some(BothSocketsSilent | ClosedButUnmarked), Some(BPF_TEST_RUN)) => Alone,
            (Some(Entered), _) if socket && call.number == libc::SYS_sendto => InFlightWritten,
            (Some(Entered | InFlightWritten), _) if call.number == libc::SYS_membarrier => Filling,
            (Some(Filling), _) if socket && repair => OneSocketSilent,
            (Some(OneSocketSilent), _) if socket && call.number == libc::SYS_close => OneSocketClosed,
            (Some(OneSocketClosed), _) if socket && repair => BothSocketsSilent,
            (Some(BothSocketsSilent), _) if socket && call.number == libc::SYS_close => ClosedButUnmarked,
            (Some(Alone), _) if call.number == libc::SYS_write => Alone,
            (Some(done), _) if socket && [libc::SYS_sendto, libc::SYS_recvfrom].contains(&call.number) => done,
            _ => return None,
        })
    }

    fn stop_here(&mut self, call: &Call) -> bool {
        let Some(after) = self.after(call) else { return false };
        if after == Done::Probed {
            // It is tried until its packets have shown themselves: only the calls of the last try count.
            (self.seen, self.done) = (0, Some(after));
            return false;
        }
        // The call with which sockets begin to vanish is made when all is acknowledged.
        let done = if after == Done::OneSocketSilent { Some(Done::Acknowledged) } else { self.done };
        let stops = done.is_some()
            && match self.stop_at {
                StopAt::Call(call) => self.seen == call,
                StopAt::After(step) => done == Some(step),
            };
        if stops {
            *self.stopped_after.lock().unwrap() = done;
        }
        self.seen += usize::from(self.done.is_some());
        self.finished.store(self.done == Some(Done::Alone) && !stops, SeqCst);
        self.done = Some(after);
        stops
    }
}

/// A flow that has been offloaded under an earlier process, and which no kill may touch.
fn bystander(lab: &Lab, config: &Config) -> Conn {
    let baton = lab.start(config);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_offloaded(1);
    baton.process.kill();
    conn
}

/// Waits for the fate of `conn`, on which `sent` patterns were sent and must come back.
fn outcome(conn: &mut Conn, sent: &[(u64, u64)]) -> Outcome {
    for (seed, bytes) in sent {
        match conn.read_tally(*bytes) {
            Ok(tally) => assert_eq!(tally, crate::lab::bytes::Tally::of_pattern(*seed, *bytes), "wrong bytes came"),
            Err(error) => return ended(&error),
        }
    }
    // A reset may be on its way yet, and comes without being asked for.
    match conn.end(secs(2)) {
        End::Open => conn.try_echo(99, 5000).map_or_else(|error| ended(&error), |()| Outcome::WentOn),
        End::Fin => Outcome::Fin,
        End::Rst => Outcome::Rst,
        other => panic!("it ended strangely: {other:?}"),
    }
}

fn ended(error: &std::io::Error) -> Outcome {
    match End::of_error(error) {
        End::Rst => Outcome::Rst,
        End::Other(std::io::ErrorKind::UnexpectedEof) => Outcome::Fin,
        other => panic!("the flow hangs: {other:?}"),
    }
}

type Table = BTreeMap<Done, BTreeMap<Outcome, u32>>;

/// Each offload has these steps; the bytes in flight determine the others.
const MET: [Done; 7] = [
    Done::Probed,
    Done::OneEntry,
    Done::Entered,
    Done::Filling,
    Done::Acknowledged,
    Done::ClosedButUnmarked,
    Done::Alone,
];

/// One kill after another, each a call further than the last, until the flow is offloaded before its kill; then those steps
/// which were missed, since no two offloads make as many calls while bytes are on their way.
fn kill_at_each_call(moment: Moment) {
    let Some(scene) = Scene::new("steps") else { return };
    let lab = &scene.lab;
    let server = lab.b1.serve(Behaviour::Echo);
    let config = scene.config().only(&["b1"]).offload("after", "1h");
    // A quiet one is announced by its second request, and offloaded when a reload lowers the age.
    let before = if moment == Moment::Quiet { 2 } else { 1 };
    let config = config.offload("after_round_trips", before);
    let mut other = bystander(lab, &config.clone().offload("after_round_trips", 1));
    let mut table = Table::new();
    let (mut call, mut all_calls_met) = (0, false);
    loop {
        assert!(call < 100, "an offload does not take so many calls");
        let missed = MET.into_iter().find(|step| !table.contains_key(step));
        let stop_at = match missed {
            _ if !all_calls_met => StopAt::Call(call),
            Some(step) => StopAt::After(step),
            None => break,
        };
        call += 1;
        let baton = lab.start(&config);
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        let steps = Steps::new(stop_at);
        let (stopped_after, finished) = (steps.stopped_after.clone(), steps.finished.clone());
        let mut steps = steps;
        let mut sent = Vec::new();
        (0..before).for_each(|_| conn.echo(1, 300));
        let tracer = Tracer::start(baton.process.pid(), THREADS, move |call| steps.stop_here(call));
        match moment {
            // A busy machine may take longer than any age to attach the tracer.
            Moment::Quiet => {
                baton.write_config(&config.clone().offload("after", "1ms"));
                baton.order(&["reload"]);
            }
            _ => {
                conn.send(3, 700).unwrap();
                sent.push((3, 700));
            }
        }
        let frozen = eventually_some(LONG, "it is offloaded, or its process stops", || {
            let frozen = tracer.is_frozen(ms(1));
            (frozen || finished.load(SeqCst)).then_some(frozen)
        });
        if !frozen.0 {
            baton.process.kill();
            assert_eq!(outcome(&mut conn, &sent), Outcome::WentOn);
            assert!(!all_calls_met, "{stop_at:?} was never met: {table:?}");
            all_calls_met = true;
            // The bystander goes on; the next process is to have it alone.
            drop(conn);
            continue;
        }
        let done = stopped_after.lock().unwrap().expect("it says where");
        if moment == Moment::Requests {
            conn.send(4, 900).unwrap();
            sent.push((4, 900));
        }
        baton.process.kill();
        other.echo(5, 2000);
        let baton = lab.start(&config);
        let became = outcome(&mut conn, &sent);
        *table.entry(done).or_default().entry(became).or_default() += 1;
        other.echo(6, 2000);
        let alive = 1 + usize::from(became == Outcome::WentOn);
        eventually(LONG, "the backend is rid of what has ended", || server.open() == alive);
        drop(conn);
        eventually(LONG, "only the bystander is left", || baton.flow_count() == 1);
        baton.process.kill();
    }
    show(&format!("a kill in the offload of a flow, {moment:?}"), &table);
    assert_eq!(table[&Done::Alone].keys().collect::<Vec<_>>(), [&Outcome::WentOn], "a marked flow must go on");
}

fn show(what: &str, table: &Table) {
    for (done, outcomes) in table {
        println!("row 33: {what}: {done:?}: {outcomes:?}");
    }
}

#[test]
fn row33_a_kill_at_each_call_of_an_offload_with_a_request_held_hangs_no_flow() {
    kill_at_each_call(Moment::Request);
}

#[test]
fn row33_a_kill_at_each_call_of_an_offload_while_more_comes_hangs_no_flow() {
    kill_at_each_call(Moment::Requests);
}

#[test]
fn row33_a_kill_at_each_call_of_an_offload_at_rest_hangs_no_flow() {
    kill_at_each_call(Moment::Quiet);
}

/// Kills the process at each call with which it ends an offloaded flow after `end`, which is what makes it end.
fn kill_at_each_call_of_the_end(what: &str, by_order: bool) -> Table {
    let Some(scene) = Scene::new("steps") else { return Table::new() };
    let lab = &scene.lab;
    let server = lab.b1.serve(Behaviour::Echo);
    let config = scene.config().only(&["b1"]).offload("after_round_trips", 1);
    let mut other = bystander(lab, &config);
    let mut table = Table::new();
    for stop_at in 0.. {
        assert!(stop_at < 50, "an end does not take so many calls");
        let baton = lab.start(&config);
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        (0..3).for_each(|round| conn.echo(round, 300));
        baton.wait_offloaded(2);
        let local = conn.local().to_string();
        let id = baton.flows().into_iter().find(|flow| flow["client"] == local).expect("it is listed")["id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let mut seen = 0;
        let mut done = if by_order { Done::Ordered } else { Done::Over };
        let stopped_after = Arc::new(Mutex::new(None));
        let stops_after = stopped_after.clone();
        let tracer = Tracer::start(baton.process.pid(), THREADS, move |call| {
            let bpf = (call.number == libc::SYS_bpf).then_some(call.arguments[0]);
            let after = match (done, bpf) {
                (Done::Ordered, Some(BPF_TEST_RUN)) => Done::Resetting,
                (Done::Resetting | Done::Over, Some(BPF_TAKE_OUT)) => Done::OneEntryGone,
                (Done::OneEntryGone, Some(BPF_TAKE_OUT)) => Done::BothEntriesGone,
                (Done::BothEntriesGone, Some(BPF_DELETE)) => Done::BothEntriesGone,
                (Done::Resetting, None) if call.number == libc::SYS_sendto => Done::Resetting,
                _ => return false,
            };
            let stops = seen == stop_at;
            if stops {
                *stops_after.lock().unwrap() = Some(done);
            }
            (seen, done) = (seen + 1, after);
            stops
        });
        let (mut told, mut ordering) = (None, None);
        match by_order {
            // It waits for what cannot come while the process hangs.
            true => ordering = Some(begin_order(&baton, &id)),
            false => {
                conn.half_close();
                told = Some(conn.end(LONG));
            }
        }
        let gone = || baton.flow_count() == 1 && entries(&scene) == 2;
        let (frozen, _) = eventually_some(LONG, "it ends, or its process stops", || {
            let frozen = tracer.is_frozen(ms(5));
            (frozen || gone()).then_some(frozen)
        });
        // The last call may be on its way.
        if !frozen && !tracer.is_frozen(ms(100)) {
            baton.process.kill();
            break;
        }
        let done = stopped_after.lock().unwrap().expect("it says where");
        baton.process.kill();
        ordering.map(|mut order| order.wait().expect("it ends with Baton"));
        other.echo(5, 2000);
        let baton = lab.start(&config);
        let became = match told {
            Some(End::Fin) => Outcome::Fin,
            Some(other) => panic!("it ended strangely: {other:?}"),
            None => outcome(&mut conn, &[]),
        };
        *table.entry(done).or_default().entry(became).or_default() += 1;
        other.echo(6, 2000);
        let alive = 1 + usize::from(became == Outcome::WentOn);
        eventually(LONG, "the backend is rid of what has ended", || server.open() == alive);
        drop(conn);
        eventually(LONG, "only the bystander is left", || baton.flow_count() == 1 && entries(&scene) == 2);
        baton.process.kill();
    }
    show(what, &table);
    table
}

fn begin_order(baton: &Baton, id: &str) -> Child {
    let socket = baton.paths.socket.to_str().expect("UTF-8");
    let mut order = Command::new(crate::lab::baton::BINARY);
    order.args(["kill", "--socket", socket, id]).stdout(Stdio::null()).stderr(Stdio::null());
    order.spawn().expect("the binary runs")
}

/// Directions in the map.
fn entries(scene: &Scene) -> u32 {
    let status = ::baton::offload::program::status(&scene.pinned.directory).expect("it is pinned");
    status.and_then(|status| status.entries).expect("of this layout")
}

#[test]
fn row33_a_kill_at_each_call_of_a_reset_hangs_no_flow() {
    let table = kill_at_each_call_of_the_end("a kill in the reset of a flow", true);
    for (done, outcomes) in &table {
        let goes_on = outcomes.contains_key(&Outcome::WentOn);
        assert!(!goes_on || *done == Done::Ordered, "{done:?}: {outcomes:?}: its entries say that it is over");
    }
}

#[test]
fn row33_a_kill_at_each_call_after_the_end_of_a_flow_leaves_nothing_behind() {
    kill_at_each_call_of_the_end("a kill after the end of a flow", false);
}
