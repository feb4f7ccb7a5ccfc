//! Either process is killed or stopped at every message of the conversation.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::Signal;

use super::backend::{self, ECHO, request};
use super::instance::{BINARY, Instance, lives, signal, wait_for};
use super::relay::{self, MESSAGES, Plan, Victim};

/// At least three batches.
const FLOWS: usize = 150;
/// Flows of the first batch, which is whole when the messages of the second are met.
const BATCH: usize = 64;
/// Most of the time they wait.
const AT_ONCE: usize = 5;

/// What was seen after one plan.
struct Seen {
    plan: Plan,
    upgraded: bool,
    whole: usize,
    reset: usize,
    /// EOF: the kernel closes so what a killed process had.
    closed: usize,
    wrong: Vec<String>,
}

#[test]
fn a_process_killed_at_any_step_leaves_each_flow_whole_or_ended() {
    let plans =
        MESSAGES.iter().flat_map(|at| [Victim::Old, Victim::New].map(|victim| Plan { at, victim, stop: false }));
    for seen in all(plans.collect(), Duration::ZERO) {
        let position = MESSAGES.iter().position(|at| *at == seen.plan.at).unwrap();
        let batch = MESSAGES.iter().position(|at| *at == "batch").unwrap();
        // A process takes with it what it had; what was not committed to it goes on.
        match seen.plan.victim {
            Victim::New if position < batch => assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan),
            Victim::New if position == batch => assert_eq!(seen.whole, FLOWS - BATCH, "{:?}", seen.plan),
            Victim::Old if position >= batch => assert!(seen.whole >= BATCH, "{:?}: {}", seen.plan, seen.whole),
            _ => {}
        }
        if seen.plan.victim == Victim::Old && ["done", "finished"].contains(&seen.plan.at) {
            assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan);
        }
    }
}

#[test]
fn a_process_stopped_at_any_step_costs_no_flow() {
    let plans = MESSAGES.iter().flat_map(|at| [Victim::Old, Victim::New].map(|victim| Plan { at, victim, stop: true }));
    for seen in all(plans.collect(), Duration::from_millis(500)) {
        assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan);
    }
}

/// Longer than the other one waits, which goes on without it, until it wakes up and finds that it is too late.
#[test]
fn a_process_that_hangs_for_too_long_costs_no_flow() {
    let plan = |at, victim| Plan { at, victim, stop: true };
    let new = ["begin", "serving", "batch", "received", "commit", "adopted", "done"].map(|at| plan(at, Victim::New));
    // On a busy machine a stop may be felt so late that the upgrade is over by then; a flow is lost in neither case.
    let seen = all(new.to_vec(), Duration::from_secs(5));
    assert!(seen.iter().any(|seen| !seen.upgraded), "no upgrade was given up");
    for seen in seen {
        assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan);
    }
    let old = ["batch", "received", "commit", "adopted"].map(|at| plan(at, Victim::Old));
    let seen = all(old.to_vec(), Duration::from_secs(17));
    assert!(seen.iter().any(|seen| !seen.upgraded), "no upgrade was given up");
    for seen in seen {
        assert_eq!(seen.whole, FLOWS, "{:?}", seen.plan);
    }
}

/// Carries out the plans, some at a time, and prints the table.
fn all(plans: Vec<Plan>, pause: Duration) -> Vec<Seen> {
    baton::sys::process::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let backends: Vec<SocketAddr> = (0..2).map(|_| runtime.block_on(backend::serve())).collect();
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Relaxed)) {
                    let seen = carry_out(*plan, &backends, pause);
                    all.lock().unwrap().push(seen);
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_by_key(|seen| (MESSAGES.iter().position(|at| *at == seen.plan.at), seen.plan.victim == Victim::New));
    println!("at        victim  what     upgraded  whole  reset  closed  wrong");
    for Seen { plan, upgraded, whole, reset, closed, wrong } in &all {
        let what = if plan.stop { "SIGSTOP" } else { "SIGKILL" };
        let victim = format!("{:?}", plan.victim);
        println!(
            "{:<9} {victim:<6}  {what}  {upgraded:<8}  {whole:>5}  {reset:>5}  {closed:>6}  {}",
            plan.at,
            wrong.len()
        );
    }
    let wrong: Vec<_> = all.iter().flat_map(|seen| seen.wrong.iter().map(|wrong| (seen.plan, wrong))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    all
}

fn carry_out(plan: Plan, backends: &[SocketAddr], pause: Duration) -> Seen {
    let mut instance = Instance::start(backends, 2);
    let directory = instance.directory.path().to_owned();
    let mut flows: Vec<_> = (0..FLOWS).map(|_| open(instance.frontend).unwrap()).collect();
    let old = instance.first_pid();
    let mut asking = ask(&directory, relay::script(&directory, plan));
    wait_for("the strike", || relay::has_struck(&directory));
    let new = relay::new_pid(&directory).unwrap();
    if plan.stop {
        // Long enough for the other to notice; then it goes on where it was.
        std::thread::sleep(pause);
        let victim = if plan.victim == Victim::Old { old } else { new };
        signal(victim, Signal::CONT);
    }
    let upgraded = asking.wait().unwrap().success();
    let mut seen = Seen { plan, upgraded, whole: 0, reset: 0, closed: 0, wrong: Vec::new() };
    // One of the two serves newcomers, and soon. But a successor without the listeners cannot, nor one that dies with
    // its last word: the supervisor's turn.
    let may_be_orphaned = match plan.victim {
        Victim::Old => ["hello", "welcome", "doors"].contains(&plan.at),
        Victim::New => plan.at == "finished",
    };
    wait_for(&format!("an instance that serves after {plan:?}, {upgraded}, old {old}, new {new}"), || {
        instance.reap();
        let served = open(instance.frontend).and_then(|mut stream| echo(&mut stream, b"new")).is_ok();
        served || !plan.stop && may_be_orphaned && !lives(new)
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
    if !plan.stop {
        let victim = if plan.victim == Victim::Old { old } else { new };
        wait_for("the victim's end", || {
            instance.reap();
            !lives(victim)
        });
    }
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
        .stderr(Stdio::null())
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
