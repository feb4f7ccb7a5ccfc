//! Requests and answers of one size on health state connections.
//!
//! Closed loop: each connection sends its next request when the last was answered. Open loop: requests are due at fixed
//! times, whatever became of earlier ones, and their latency counts from then, so that a stall of the proxy is seen
//! by all requests that it delayed.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use baton::sys::clock::now_ns;
use baton::sys::epoll::{Epoll, Events};
use baton::sys::socket;
use hdrhistogram::Histogram;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde_json::{Value, json};

use crate::Common;
use crate::net;
use crate::script::{Act, Head};
use crate::window::{Bounds, sleep_until};

const TICK: u64 = u64::MAX;
const SECOND_NS: u64 = 1_000_000_000;
const LOOK_UP: Duration = Duration::from_millis(20);

/// How finely the longest latencies are told apart.
const GRAIN_NS: u64 = 10_000_000;

/// The measurements of one thread.
pub struct Seen {
    latency: Histogram<u64>,
    /// The same, by second of the window.
    pub by_second: Vec<Histogram<u64>>,
    /// The longest in µs, by [`GRAIN_NS`] of the window in which the requests were due.
    longest_us: Vec<u64>,
    /// Connections that broke; each was made anew.
    pub broken: u64,
    /// Requests at a fixed rate that were due for longer than 0.1 s at the end.
    pub late: u64,
}

pub fn run(common: &Common, connections: usize, bytes: usize, rate: Option<f64>) -> io::Result<Value> {
    let window = common.window();
    let threads = common.threads.min(connections);
    let share = |number: usize| connections / threads + usize::from(number < connections % threads);
    let each = rate.map(|rate| rate / threads as f64);
    let (seen, spent) = window.run(
        threads,
        |number| Caller::connect(common.target, share(number), bytes),
        |caller, bounds| caller.serve(bounds, each),
    )?;
    let mut latency = net::latencies();
    let mut by_second = vec![net::latencies(); window.seconds().ceil() as usize];
    let mut longest_us = Vec::new();
    let (mut broken, mut late) = (0, 0);
    for seen in seen {
        latency.add(&seen.latency).expect("the bounds are the same");
        for (all, one) in by_second.iter_mut().zip(&seen.by_second) {
            all.add(one).expect("the bounds are the same");
        }
        longest_us.resize(seen.longest_us.len(), 0);
        for (all, one) in longest_us.iter_mut().zip(&seen.longest_us) {
            *all = (*all).max(*one);
        }
        broken += seen.broken;
        late += seen.late;
    }
    let mut report = json!({
        "requests": latency.len(),
        "per_second": latency.len() as f64 / window.seconds(),
        "latency_us": net::percentiles(&latency),
        "p99_us_by_second": by_second.iter().map(|second| second.value_at_quantile(0.99)).collect::<Vec<_>>(),
        "broken": broken,
        "unanswered": late,
    });
    if rate.is_some() {
        report["begins_ns"] = json!(window.begins_ns());
        report["longest_us_by_10_ms"] = json!(longest_us);
    }
    spent.describe(&mut report, latency.len() as f64);
    Ok(report)
}

/// The connections of one thread.
pub struct Caller {
    target: SocketAddr,
    epoll: Epoll,
    connections: Vec<Connection>,
    message: Vec<u8>,
    buffer: Vec<u8>,
}

struct Connection {
    socket: OwnedFd,
    /// When the requests that wait for an answer were due.
    due_ns: VecDeque<u64>,
    /// Bytes of requests that the kernel has not taken.
    unsent: usize,
    /// Bytes of the answer that has begun.
    received: usize,
    broken: bool,
}

impl Caller {
    pub fn connect(target: SocketAddr, count: usize, bytes: usize) -> io::Result<Self> {
        let mut message = vec![b'.'; bytes];
        let head = Head { act: Act::Echo, bytes, id: 0 }.encode();
        message[..head.len()].copy_from_slice(&head);
        let epoll = Epoll::new()?;
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            connections.push(Connection::open(target, &epoll, index)?);
        }
        Ok(Self { target, epoll, connections, message, buffer: vec![0; 64 * 1024] })
    }

    /// Sends and receives until the window ends, at `rate` a second or as fast as answers come.
    pub fn serve(mut self, (begins_ns, ends_ns): Bounds, rate: Option<f64>) -> io::Result<Seen> {
        let seconds = ends_ns.saturating_sub(begins_ns).div_ceil(SECOND_NS) as usize;
        let by_second = vec![net::latencies(); seconds];
        let longest_us = vec![0; ends_ns.saturating_sub(begins_ns).div_ceil(GRAIN_NS) as usize];
        let mut seen = Seen { latency: net::latencies(), by_second, longest_us, broken: 0, late: 0 };
        let mut events = Events::default();
        let mut pace = rate.map(|rate| Pace { next_ns: now_ns() as f64, interval_ns: 1e9 / rate, next: 0 });
        let ticker = pace.as_ref().map(|pace| ticker(&self.epoll, pace.interval_ns)).transpose()?;
        if pace.is_none() {
            (0..self.connections.len()).for_each(|index| self.send(index, now_ns()));
        }
        loop {
            let count = self.epoll.wait(&mut events, Some(LOOK_UP))?;
            let now_ns = now_ns();
            if now_ns >= ends_ns {
                break;
            }
            while let Some(pace) = &mut pace
                && pace.next_ns <= now_ns as f64
            {
                let (index, due_ns) = (pace.next, pace.next_ns as u64);
                pace.next = (index + 1) % self.connections.len();
                pace.next_ns += pace.interval_ns;
                self.send(index, due_ns);
            }
            for event in 0..count {
                let ready = events.event(event);
                if ready.token == TICK {
                    // Until it is read, the next one does not come.
                    ticker.as_ref().map(|timer| rustix::io::read(timer, &mut [0; 8])).transpose()?;
                    continue;
                }
                let index = ready.token as usize;
                if ready.writable() && self.connections[index].unsent > 0 {
                    self.flush(index);
                }
                if ready.readable() {
                    self.receive(index, begins_ns, pace.is_none(), &mut seen);
                }
                if self.connections[index].broken {
                    self.reopen(index, pace.is_none(), &mut seen)?;
                }
            }
        }
        // With a fixed rate, a request that is still due after so long counts as answered now.
        if pace.is_some() {
            let now_ns = now_ns();
            for due_ns in self.connections.iter().flat_map(|connection| &connection.due_ns) {
                let waited_us = now_ns.saturating_sub(*due_ns) / 1000;
                if waited_us > 100_000 {
                    seen.late += 1;
                    seen.latency.saturating_record(waited_us);
                    seen.note(*due_ns, begins_ns, waited_us);
                }
            }
        }
        Ok(seen)
    }

    /// Replaces a broken connection. Its due request stays due.
    fn reopen(&mut self, index: usize, closed_loop: bool, seen: &mut Seen) -> io::Result<()> {
        seen.broken += 1;
        let due_ns = std::mem::take(&mut self.connections[index].due_ns);
        let opened = Connection::open(self.target, &self.epoll, index);
        // Half a second of refusals is an outage, which the caller of this program must learn of.
        self.connections[index] = opened.or_else(|_| {
            sleep_until(now_ns() + SECOND_NS / 2);
            Connection::open(self.target, &self.epoll, index)
        })?;
        let due_ns = if closed_loop { VecDeque::from([now_ns()]) } else { due_ns };
        due_ns.into_iter().for_each(|due_ns| self.send(index, due_ns));
        Ok(())
    }

    fn send(&mut self, index: usize, due_ns: u64) {
        let connection = &mut self.connections[index];
        if connection.broken {
            return;
        }
        connection.due_ns.push_back(due_ns);
        connection.unsent += self.message.len();
        if connection.unsent == self.message.len() {
            self.flush(index);
        }
    }

    fn flush(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        while connection.unsent > 0 {
            let length = self.message.len();
            let offset = (length - connection.unsent % length) % length;
            match socket::write(&connection.socket, &self.message[offset..]) {
                Ok(written) => connection.unsent -= written,
                Err(error) => {
                    connection.broken = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    fn receive(&mut self, index: usize, begins_ns: u64, closed_loop: bool, seen: &mut Seen) {
        loop {
            let connection = &mut self.connections[index];
            let count = match socket::read(&connection.socket, &mut self.buffer) {
                Ok(0) => return connection.broken = true,
                Ok(count) => count,
                Err(error) => return connection.broken |= error.kind() != io::ErrorKind::WouldBlock,
            };
            connection.received += count;
            while connection.received >= self.message.len() {
                connection.received -= self.message.len();
                let Some(due_ns) = connection.due_ns.pop_front() else { return connection.broken = true };
                let now_ns = now_ns();
                if due_ns >= begins_ns || (closed_loop && now_ns >= begins_ns) {
                    let latency_us = now_ns.saturating_sub(due_ns) / 1000;
                    seen.latency.saturating_record(latency_us);
                    seen.note(due_ns, begins_ns, latency_us);
                    let second = now_ns.saturating_sub(begins_ns) / SECOND_NS;
                    if let Some(second) = seen.by_second.get_mut(second as usize) {
                        second.saturating_record(latency_us);
                    }
                }
                if closed_loop {
                    self.send(index, now_ns);
                    break;
                }
            }
            if count < self.buffer.len() {
                return;
            }
        }
    }
}

impl Seen {
    fn note(&mut self, due_ns: u64, begins_ns: u64, took_us: u64) {
        let grain = due_ns.saturating_sub(begins_ns) / GRAIN_NS;
        if let Some(longest_us) = self.longest_us.get_mut(grain as usize) {
            *longest_us = took_us.max(*longest_us);
        }
    }
}

impl Connection {
    fn open(target: SocketAddr, epoll: &Epoll, index: usize) -> io::Result<Self> {
        let stream = net::connect(target)?;
        stream.set_nonblocking(true)?;
        let socket = OwnedFd::from(stream);
        epoll.watch_flow(&socket, index as u64)?;
        Ok(Self { socket, due_ns: VecDeque::new(), unsent: 0, received: 0, broken: false })
    }
}

/// When requests are due, and on which connection.
struct Pace {
    next_ns: f64,
    interval_ns: f64,
    next: usize,
}

/// A timer that wakes `epoll` at each interval.
fn ticker(epoll: &Epoll, interval_ns: f64) -> io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let every = Timespec { tv_sec: 0, tv_nsec: (interval_ns as i64).clamp(1, 999_999_999) as _ };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: every, it_value: every })?;
    epoll.watch_flow(&timer, TICK)?;
    Ok(timer)
}
