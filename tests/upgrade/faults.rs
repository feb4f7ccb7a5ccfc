//! Either process is killed or stopped at every message of the conversation.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use baton::upgrade::message::Kind;
use rustix::process::Signal;

use super::backend::{self, ECHO, request};
use super::instance::{BINARY, Instance, flow_sockets_of, lives, signal, wait_for};
use super::relay::{self, Plan, Victim};

/// Three batches: two of [`BATCH`] and a rest.
const FLOWS: usize = 150;
/// Flows of the first batch, which is whole when the messages of the second are met, and of the second.
const BATCH: usize = 64;

/// How long a process that was stopped stays so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    None,
    /// Long enough for the other to notice.
    Moment,
    /// Until the other waits no longer.
    TooLong,
}

/// The observations after one plan.
struct Seen {
    plan: Plan,
    upgraded: bool,
    /// The answer to the upgrade's requester, if the upgrade failed.
    told: String,
    whole: usize,
    reset: usize,
    /// EOF: the kernel closes a killed process's sockets in this way.
    closed: usize,
    wrong: Vec<String>,
}

#[test]
fn a_process_killed_at_any_step_leaves_each_flow_whole_or_ended() {
    for seen in all(Plan::all(false), 5, Pause::None) {
        assert!(survivors(seen.plan).contains(&seen.whole), "{:?}: {} are whole", seen.plan, seen.whole);
    }
}

#[test]
fn a_process_killed_at_any_moment_leaves_no_flow_to_hang() {
    let mut random = fastrand::Rng::new();
    let mut plan = |_| {
        let victim = if random.bool() { Victim::Old } else { Victim::New };
        let later = Duration::from_micros(random.u64(1..150_000));
        Plan { at: Kind::Hello, victim, stop: false, later }
    };
    all((0..30).map(&mut plan).collect(), 5, Pause::None);
}

#[test]
fn a_process_stopped_at_any_step_costs_no_flow() {
    for seen in all(Plan::all(true), 5, Pause::Moment) {
        assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan);
    }
}

/// Longer than the other one waits, which goes on without it, until it wakes up and finds that it is too late.
#[test]
fn a_process_that_hangs_for_too_long_costs_no_flow() {
    for seen in all(Plan::all(true), 13, Pause::TooLong) {
        assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan);
        let over = match seen.plan.victim {
            Victim::New => seen.plan.at == Kind::Finished,
            Victim::Old => matches!(seen.plan.at, Kind::Done | Kind::Finished),
        };
        assert_eq!(seen.upgraded, over, "{:?}: {}", seen.plan, seen.told);
    }
}

/// The number of flows that go on after a kill: the killed process takes its own flows with it, and those that it was
/// being given.
fn survivors(plan: Plan) -> RangeInclusive<usize> {
    let (one, two) = (BATCH, 2 * BATCH);
    match (plan.victim, plan.at) {
        (Victim::New, Kind::Batch) => FLOWS - one..=FLOWS - one,
        // The old process may commit before it learns that the new one is dead.
        (Victim::New, Kind::Received) => FLOWS - two..=FLOWS - one,
        (Victim::New, Kind::Commit | Kind::Imported) => FLOWS - two..=FLOWS - two,
        (Victim::New, Kind::Done | Kind::Finished) => 0..=0,
        (Victim::New, _) => FLOWS..=FLOWS,
        // The new process serves the flows that it has received: no other process will.
        (Victim::Old, Kind::Batch | Kind::Received | Kind::Commit | Kind::Imported) => two..=two,
        (Victim::Old, Kind::Done | Kind::Finished) => FLOWS..=FLOWS,
        (Victim::Old, _) => 0..=0,
    }
}

/// Carries out the plans, some at a time, and prints the table.
fn all(plans: Vec<Plan>, at_once: usize, pause: Pause) -> Vec<Seen> {
    baton::sys::process::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let backends: Vec<SocketAddr> = (0..2).map(|_| runtime.block_on(backend::serve())).collect();
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Relaxed)) {
                    let seen = carry_out(*plan, &backends, pause);
                    all.lock().unwrap().push(seen);
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_by_key(|seen| (seen.plan.at as u16, seen.plan.victim == Victim::New, seen.plan.later));
    println!("at        said by  victim  what      after      upgraded  whole  reset  closed  wrong  told");
    for Seen { plan, upgraded, told, whole, reset, closed, wrong } in &all {
        let what = if plan.stop { "SIGSTOP" } else { "SIGKILL" };
        let by = if plan.at.is_said_by_the_old() { "Old" } else { "New" };
        let (at, victim, later) = (plan.at.name(), format!("{:?}", plan.victim), plan.later.as_micros());
        let (wrong, told) = (wrong.len(), told.chars().take(120).collect::<String>());
        println!(
            "{at:<9} {by:<7}  {victim:<6}  {what}  {later:>6} µs  {upgraded:<8}  {whole:>5}  {reset:>5}  {closed:>6}  {wrong:>5}  {told}"
        );
    }
    let wrong: Vec<_> = all.iter().flat_map(|seen| seen.wrong.iter().map(|wrong| (seen.plan, wrong))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    all
}

fn carry_out(plan: Plan, backends: &[SocketAddr], pause: Pause) -> Seen {
    // One worker, so that the batches do not vary; then two, so that flows are spread again.
    let mut instance = Instance::start(backends, 1);
    instance.configure(backends, 2, "");
    let directory = instance.directory.path().to_owned();
    let mut flows: Vec<_> = (0..FLOWS).map(|_| open(instance.frontend).unwrap()).collect();
    let old = instance.first_pid();
    let mut asking = ask(&directory, relay::script(&directory, plan));
    wait_for("the strike", || relay::has_struck(&directory));
    let new = relay::new_pid(&directory).unwrap();
    if plan.stop {
        match (pause, plan.victim) {
            (Pause::None, _) => {}
            (Pause::Moment, _) => std::thread::sleep(Duration::from_millis(500)),
            (Pause::TooLong, Victim::Old) => {
                wait_for(&format!("an end of patience, {plan:?}"), || relay::is_over(&directory));
            }
            // The old process answers the requester.
            (Pause::TooLong, Victim::New) => {
                wait_for(&format!("an answer, {plan:?}"), || asking.try_wait().unwrap().is_some());
            }
        }
        // It goes on where it was.
        let victim = if plan.victim == Victim::Old { old } else { new };
        signal(victim, Signal::CONT);
    }
    let asked = asking.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&asked.stderr).trim().replace('\n', " / ");
    let upgraded = asked.status.success();
    let mut seen = Seen { plan, upgraded, told, whole: 0, reset: 0, closed: 0, wrong: Vec::new() };
    // One of the two serves new clients, and soon. But a successor without the listeners cannot, nor one that dies with
    // its last word: the supervisor's turn.
    let may_be_orphaned = match plan.victim {
        _ if !plan.later.is_zero() => true,
        Victim::Old => [Kind::Hello, Kind::Welcome, Kind::Doors].contains(&plan.at),
        Victim::New => plan.at == Kind::Finished,
    };
    wait_for(&format!("an instance that serves after {plan:?}, {upgraded}, old {old}, new {new}"), || {
        instance.reap();
        let served = open(instance.frontend).and_then(|mut stream| echo(&mut stream, b"new")).is_ok();
        served || !plan.stop && may_be_orphaned && !lives(new) && !lives(old)
    });
    for (number, flow) in flows.iter_mut().enumerate() {
        match echo(flow, &number.to_le_bytes()) {
            Ok(true) => seen.whole += 1,
            Ok(false) => seen.wrong.push(format!("flow {number} answers with something else")),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => seen.reset += 1,
                ErrorKind::UnexpectedEof => seen.closed += 1,
                _ => seen.wrong.push(format!("flow {number} hangs: {error}")),
            },
        }
    }
    wait_for(&format!("an end of flows that two processes have, after {plan:?}"), || {
        instance.reap();
        flow_sockets_of(old).is_disjoint(&flow_sockets_of(new))
    });
    seen
}

fn ask(directory: &Path, successor: impl AsRef<Path>) -> Child {
    Command::new(BINARY)
        .arg("--socket")
        .arg(directory.join("admin.sock"))
        .args(["upgrade", "--binary"])
        .arg(successor.as_ref())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn open(to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&request(ECHO, 0, 0))?;
    echo(&mut stream, b"hi")?;
    Ok(stream)
}

fn echo(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<bool> {
    stream.write_all(word)?;
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back)?;
    Ok(back == word)
}
