//! A backend dies with thousands of flows: how long their clients wait for the reset, and the effect on other flows.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use baton::sys::clock::now_ns;
use baton::sys::epoll::{Epoll, Events};
use baton::sys::socket;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::net;
use crate::requests::Caller;
use crate::script::{Act, HEAD, Head};
use crate::window::sleep_until;
use crate::{Common, Death};

/// Other flows, and how many requests a second they make together.
const OTHERS: usize = 64;
const OTHERS_PER_S: f64 = 2000.0;
const OTHERS_BYTES: usize = 64;

/// How long the effect on other flows is measured, before the death and after it.
const SPAN: Duration = Duration::from_secs(1);
/// Longer than this no client waits.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_UP: Duration = Duration::from_millis(20);

/// How the flows ended: when in ns after the death, and how many by reset rather than by FIN.
#[derive(Default)]
struct Ends {
    after_ns: Vec<u64>,
    resets: usize,
}

pub fn run(common: &Common, death: &Death) -> io::Result<Value> {
    let victim = Pid::from_raw(death.victim).ok_or(io::ErrorKind::InvalidInput)?;
    let act = if death.unread { Act::Hold } else { Act::Echo };
    let mut flows = Vec::with_capacity(death.flows);
    for _ in 0..death.flows {
        flows.push(open(common.target, act)?);
    }
    let epoll = Epoll::new()?;
    for (index, flow) in flows.iter().enumerate() {
        epoll.watch_flow(flow, index as u64)?;
    }
    let others = Caller::connect(death.others, OTHERS, OTHERS_BYTES)?;
    let dies_ns = now_ns() + 2 * SPAN.as_nanos() as u64;
    let bounds = (dies_ns - SPAN.as_nanos() as u64, dies_ns + SPAN.as_nanos() as u64);
    thread::scope(|scope| {
        let others = scope.spawn(move || others.serve(bounds, Some(OTHERS_PER_S)));
        sleep_until(dies_ns);
        let died_ns = now_ns();
        kill_process(victim, Signal::KILL)?;
        let ends = hear(&epoll, flows, died_ns)?;
        let others = others.join().expect("the thread of the other flows panicked")?;
        let p99_us = |second: usize| others.by_second[second].value_at_quantile(0.99);
        let mut report = report(ends, death.flows);
        report["p99_before_us"] = json!(p99_us(0));
        report["p99_meanwhile_us"] = json!(p99_us(1));
        report["slowest_meanwhile_us"] = json!(others.by_second[1].max());
        report["broken"] = json!(others.broken);
        report["unanswered"] = json!(others.late);
        Ok(report)
    })
}

fn open(target: SocketAddr, act: Act) -> io::Result<TcpStream> {
    let mut stream = net::open(target, Head { act, bytes: HEAD, id: 0 })?;
    let mut answer = [0; HEAD];
    stream.read_exact(if act == Act::Hold { &mut answer[..1] } else { &mut answer })?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Closes each flow when its client has got the end; until all are closed, or for [`PATIENCE`].
fn hear(epoll: &Epoll, flows: Vec<TcpStream>, died_ns: u64) -> io::Result<Ends> {
    let mut ends = Ends::default();
    let mut open = flows.len();
    let mut flows: Vec<_> = flows.into_iter().map(Some).collect();
    let mut events = Events::default();
    while open > 0 && now_ns() - died_ns < PATIENCE.as_nanos() as u64 {
        for event in 0..epoll.wait(&mut events, Some(LOOK_UP))? {
            let place = &mut flows[events.event(event).token as usize];
            let Some(flow) = place else { continue };
            let reset = match socket::read(&*flow, &mut [0; HEAD]) {
                Ok(0) => false,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => true,
                _ => continue,
            };
            ends.after_ns.push(now_ns() - died_ns);
            ends.resets += usize::from(reset);
            open -= 1;
            *place = None;
        }
    }
    Ok(ends)
}

fn report(mut ends: Ends, flows: usize) -> Value {
    ends.after_ns.sort_unstable();
    let told = ends.after_ns.len();
    let half = ends.after_ns.get(told / 2).copied().unwrap_or_default();
    // A client that was not told at all waits at least as long as was looked.
    let last =
        if told == flows { ends.after_ns.last().copied().unwrap_or_default() } else { PATIENCE.as_nanos() as u64 };
    json!({
        "flows": flows,
        "told": told,
        "untold": flows - told,
        "resets": ends.resets,
        "half_told_ms": half as f64 / 1e6,
        "last_told_ms": last as f64 / 1e6,
    })
}
