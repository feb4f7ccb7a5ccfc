//! The actions of clients during a fault, and their results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use super::*;

#[derive(Default)]
pub struct Load {
    pub over: AtomicBool,
    /// Only the bulk is to end.
    pub bulk_over: AtomicBool,
    pub connects: AtomicU64,
    pub round_trips: AtomicU64,
    pub bulk_bytes: AtomicU64,
    /// Streams amid a burst.
    bursts: AtomicU64,
    /// The longest time between two answers of one ping-pong, and the longest that a burst took.
    pause_ns: AtomicU64,
    burst_ns: AtomicU64,
}

/// The result of one connection of the load; `end`: how it ended against its will.
pub struct Talked {
    pub conn: Conn,
    pub end: Option<End>,
}

pub type Talking<'s> = ScopedJoinHandle<'s, Talked>;

/// They come back, and none has ended.
#[track_caller]
pub fn whole(talking: Vec<Talking>) -> Vec<Conn> {
    let talked = talking.into_iter().map(|talk| talk.join().unwrap());
    let alive = talked.map(|Talked { conn, end }| {
        assert_eq!(end, None, "{}", conn.local());
        conn
    });
    alive.collect()
}

/// Ends the load when it goes: a test that fails does not wait for its clients.
pub struct Until<'a>(pub &'a Load);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Relaxed);
        self.0.bulk_over.store(true, Relaxed);
    }
}

impl Load {
    /// Ping-pongs with a pause of a millisecond on these connections.
    pub fn ping_pongs<'s>(&'s self, scope: &'s Scope<'s, '_>, conns: Vec<Conn>) -> Vec<Talking<'s>> {
        let talk = |(number, mut conn): (usize, Conn)| {
            scope.spawn(move || {
                let mut answered = Stopwatch::start();
                for turn in 0.. {
                    if self.over.load(Relaxed) {
                        break;
                    }
                    if let Err(error) = conn.try_echo((number as u64) << 32 | turn, 64) {
                        return Talked { conn, end: Some(End::of_error(&error)) };
                    }
                    self.pause_ns.fetch_max(answered.elapsed().as_nanos() as u64, Relaxed);
                    answered = Stopwatch::start();
                    self.round_trips.fetch_add(1, Relaxed);
                    // The pause is what makes it ping-pong and not a stream.
                    std::thread::sleep(ms(1));
                }
                Talked { conn, end: None }
            })
        };
        conns.into_iter().enumerate().map(talk).collect()
    }

    /// Streams both ways of which each byte is compared, until the bulk is to end; then each is closed, and has its FIN.
    pub fn bulk<'s>(&'s self, scope: &'s Scope<'s, '_>, conns: Vec<Conn>) -> Vec<Talking<'s>> {
        let stream = |(number, mut conn): (usize, Conn)| {
            scope.spawn(move || {
                for turn in 0.. {
                    if self.bulk_over.load(Relaxed) {
                        break;
                    }
                    let burst = Stopwatch::start();
                    self.bursts.fetch_add(1, Relaxed);
                    let done = conn.try_echo((number as u64) << 32 | turn, 500_000);
                    self.bursts.fetch_sub(1, Relaxed);
                    if let Err(error) = done {
                        return Talked { conn, end: Some(End::of_error(&error)) };
                    }
                    self.burst_ns.fetch_max(burst.elapsed().as_nanos() as u64, Relaxed);
                    self.bulk_bytes.fetch_add(1_000_000, Relaxed);
                    // As a link of some 20 MB/s would, so that a busy machine is not the only cause of retransmissions.
                    std::thread::sleep(ms(20));
                }
                conn.half_close();
                let end = conn.end(LONG);
                Talked { conn, end: (end != End::Fin).then_some(end) }
            })
        };
        conns.into_iter().enumerate().map(stream).collect()
    }

    /// Clients that connect, ask once and go, one after the other.
    pub fn storm<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        client: &'s Host,
        to: SocketAddr,
        threads: u64,
    ) -> Vec<ScopedJoinHandle<'s, ()>> {
        let connect = |number: u64| {
            scope.spawn(move || {
                while !self.over.load(Relaxed) {
                    let mut conn = client.connect(to);
                    conn.echo(number, 100);
                    conn.half_close();
                    assert_eq!(conn.end(LONG), End::Fin);
                    self.connects.fetch_add(1, Relaxed);
                }
            })
        };
        (0..threads).map(connect).collect()
    }

    /// So many more of each have gone well; neither stands still meanwhile.
    #[track_caller]
    pub fn goes_on(&self, connects: u64, round_trips: u64) {
        each_grows("clients go on", [(&self.connects, connects), (&self.round_trips, round_trips)]);
    }

    /// So many more bytes have come back on streams.
    #[track_caller]
    pub fn streams_on(&self, bytes: u64) {
        each_grows("streams go on", [(&self.bulk_bytes, bytes)]);
    }

    /// So many streams are amid a burst.
    #[track_caller]
    pub fn wait_amid_bursts(&self, streams: u64) {
        eventually(LONG, "streams are amid a burst", || self.bursts.load(Relaxed) >= streams);
    }

    /// The longest pause of a ping-pong and the longest burst since this was last asked.
    pub fn longest(&self) -> (Duration, Duration) {
        let take = |longest: &AtomicU64| Duration::from_nanos(longest.swap(0, Relaxed));
        (take(&self.pause_ns), take(&self.burst_ns))
    }
}

/// Waits until each counter has grown by so much, however long a busy machine takes for that, as long as none stands still before.
#[track_caller]
fn each_grows<const N: usize>(what: &str, counters: [(&AtomicU64, u64); N]) {
    let goals = counters.map(|(counter, more)| (counter, counter.load(Relaxed) + more));
    let is_done = || goals.iter().all(|(counter, goal)| counter.load(Relaxed) >= *goal);
    while !is_done() {
        let before = goals.map(|(counter, _)| counter.load(Relaxed));
        eventually(LONG, what, || {
            goals.iter().zip(before).all(|((counter, goal), before)| {
                let now = counter.load(Relaxed);
                now > before || now >= *goal
            })
        });
    }
}

/// Segments that were sent more than once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resent {
    all: u64,
    in_vain: u64,
}

impl Resent {
    /// Without those that had come the first time.
    pub fn needed(self) -> u64 {
        self.all.saturating_sub(self.in_vain)
    }
}

impl std::ops::Sub for Resent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { all: self.all - before.all, in_vain: self.in_vain - before.in_vain }
    }
}

impl Fleet {
    /// Segments that a host here has sent more than once, and those of them that had arrived the first time: on a busy
    /// machine many do, too late.
    pub fn resent(&self) -> Resent {
        let lab = &self.scene.lab;
        let hosts = [&lab.client, &lab.b1, &lab.b2].into_iter().chain(self.all.iter().map(|it| &it.host));
        hosts.fold(Resent::default(), |sum, host| Resent {
            all: sum.all + host.counter("snmp", "Tcp:", "RetransSegs"),
            in_vain: sum.in_vain + host.counter("netstat", "TcpExt:", "TCPDSACKRecv"),
        })
    }

    /// Packets that the programs of all instances have dropped, to be sent again, and those that came to a host of theirs
    /// which had not got the address.
    pub fn lost(&self) -> u64 {
        let held_off = |it: &Instance, why| it.baton.metric("baton_offload_packets_total", &[why]) as u64;
        let misdirected = |it: &Instance| it.host.counter("snmp", "Ip:", "InAddrErrors");
        let of = |it: &Instance| held_off(it, "\"guarded\"") + held_off(it, "\"asked\"") + misdirected(it);
        self.all.iter().map(of).sum()
    }

    /// Connections of the client's kernel that RST has ended so far.
    pub fn clients_reset(&self) -> u64 {
        self.scene.lab.client.counter("snmp", "Tcp:", "EstabResets")
    }
}
