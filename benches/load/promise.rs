//! Clients that say how long they waited, and for what: for a connect, an answer, a beat, or the end of a connection. They do
//! what kubelets and kubectl do: requests, watches, silence, uploads with half-close, and connections one after another.
//!
//! A JSON object a line, times in s on CLOCK_MONOTONIC:
//! ```text
//!   {"wait": kind, "for": what, "from": s, "until": s, "ended": how, "at": address, "port": own}     longer than TOLD
//!   {"waiting": kind, "for": what, "from": s, "at": address, "port": own}  for longer than ALARM, and still
//!   {"lost": kind, "at": address, "when": s, "how": how, "idle": s}       a connection that its client did not end
//!   {"wrong": kind, "at": address, "when": s, "since": s, "what": words}  bytes that are not what was sent
//!   {"second": s, "answers": n, "connects": n, "lost": n, "p99_us": n}
//! ```

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use baton::sys::clock::now_ns;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::net;
use crate::pattern;
use crate::script::{Act, Head};
use crate::window::sleep_until;

/// Waits that are shorter are everyday's.
const TOLD: Duration = Duration::from_millis(250);

/// A client that has waited for so long gives up, and says that it hung.
const HUNG: Duration = Duration::from_secs(150);

/// A client that has waited so long reports it, so that somebody can look at its connection.
const ALARM: Duration = Duration::from_secs(20);

/// How long a blocking call may go on before the client looks at the time.
const LOOK: Duration = Duration::from_millis(100);

const MESSAGE: usize = 64;

/// Between two beats of a watch.
const BEAT: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub struct Promise {
    /// Where clients connect: each kind of them at each address.
    #[arg(long, value_delimiter = ',')]
    targets: Vec<SocketAddr>,
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Clients of each kind at each address.
    #[arg(long, default_value_t = 8)]
    each: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The repeated action of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Requests on one connection, for up to two minutes.
    Talker,
    /// A watch: it sends once, and hears a beat every [`BEAT`].
    Watcher,
    /// One request, long silence, another request.
    Idler,
    /// Sends, closes its half, and expects all of it back, and then FIN.
    Uploader,
    /// The backend sends and closes its half first.
    Downloader,
    /// A new connection for each request.
    NewClient,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Talker, "talker"),
    (Kind::Watcher, "watcher"),
    (Kind::Idler, "idler"),
    (Kind::Uploader, "uploader"),
    (Kind::Downloader, "downloader"),
    (Kind::NewClient, "new client"),
];

/// Of the running second.
struct Counts {
    answers: AtomicU64,
    connects: AtomicU64,
    lost: AtomicU64,
    latency: Mutex<Histogram<u64>>,
}

struct Client<'a> {
    kind: Kind,
    name: &'static str,
    target: SocketAddr,
    random: fastrand::Rng,
    ends_ns: u64,
    counts: &'a Counts,
    /// When the last wait began that was said while it lasted.
    alarmed_ns: Cell<u64>,
}

/// How a wait ended that was in vain.
enum End {
    /// RST, or a refusal, or an unreachable network.
    Lost(io::ErrorKind),
    Eof,
    Hung,
    /// The time is over, and nothing was being waited for.
    Over,
    Wrong(&'static str),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.kind())
    }
}

pub fn run(asked: &Promise) -> io::Result<Value> {
    let counts = Counts {
        answers: AtomicU64::new(0),
        connects: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        latency: Mutex::new(net::latencies()),
    };
    let ends_ns = now_ns() + (asked.seconds * 1e9) as u64;
    thread::scope(|scope| -> io::Result<()> {
        let mut seed = asked.seed;
        for target in &asked.targets {
            for (kind, name) in KINDS {
                for _ in 0..asked.each {
                    seed += 1;
                    let random = fastrand::Rng::with_seed(seed);
                    let client = Client {
                        kind,
                        name,
                        target: *target,
                        random,
                        ends_ns,
                        counts: &counts,
                        alarmed_ns: Cell::new(0),
                    };
                    thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, move || client.live())?;
                }
            }
        }
        let mut second_ns = now_ns();
        while second_ns < ends_ns {
            second_ns += 1_000_000_000;
            sleep_until(second_ns);
            counts.tell(second_ns);
        }
        Ok(())
    })?;
    Ok(json!({ "over": true }))
}

impl Counts {
    fn tell(&self, at_ns: u64) {
        let mut latency = self.latency.lock().expect("nobody panics with it");
        let p99_us = latency.value_at_quantile(0.99);
        latency.reset();
        drop(latency);
        say(&json!({
            "second": seconds(at_ns),
            "answers": self.answers.swap(0, Relaxed),
            "connects": self.connects.swap(0, Relaxed),
            "lost": self.lost.swap(0, Relaxed),
            "p99_us": p99_us,
        }));
    }
}

impl Client<'_> {
    fn live(mut self) {
        // Not all at once.
        self.pause(Duration::from_secs(2));
        while now_ns() < self.ends_ns {
            match self.connection() {
                Ok(()) | Err(End::Over) => {}
                // Said when it happened.
                Err(End::Hung | End::Wrong(_) | End::Lost(_) | End::Eof) => self.pause(Duration::from_millis(100)),
            }
        }
    }

    /// One connection from its beginning to its end.
    fn connection(&mut self) -> Result<(), End> {
        let mut link = self.connect()?;
        let began_ns = now_ns();
        let done = match self.kind {
            Kind::Talker => self.talk(&mut link),
            Kind::Watcher => self.watch(&mut link),
            Kind::Idler => self.idle(&mut link),
            Kind::Uploader => self.upload(&mut link),
            Kind::Downloader => self.download(&mut link),
            Kind::NewClient => self.new_client(&mut link),
        };
        let at = self.target.to_string();
        match &done {
            Err(End::Lost(_) | End::Eof) => {
                self.counts.lost.fetch_add(1, Relaxed);
                let idle = seconds(now_ns() - link.sent_ns.max(link.heard_ns));
                say(&json!({ "lost": self.name, "at": at, "when": seconds(now_ns()), "idle": idle,
                             "how": done.as_ref().err().map(End::name), "port": link.born.port }));
            }
            Err(End::Wrong(what)) => {
                say(&json!({ "wrong": self.name, "at": at, "when": seconds(now_ns()), "since": seconds(began_ns),
                             "what": what, "port": link.born.port }));
            }
            _ => {}
        }
        done
    }

    fn connect(&mut self) -> Result<Link, End> {
        let from_ns = now_ns();
        // The kernel gives up at some time, after retransmissions of the SYN; that is a wait like any other.
        let connected = TcpStream::connect_timeout(&self.target, HUNG);
        let ended = match &connected {
            Ok(_) => "connected",
            Err(error) if net::is_timeout(error) => "hung",
            Err(_) => "refused",
        };
        let port = connected.as_ref().ok().and_then(|stream| stream.local_addr().ok()).map_or(0, |own| own.port());
        self.waited("connect", from_ns, ended, &Born { port, at_ns: from_ns });
        let stream = connected?;
        self.counts.connects.fetch_add(1, Relaxed);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(LOOK))?;
        let born = Born { port, at_ns: now_ns() };
        Ok(Link { stream, born, sent_ns: from_ns, heard_ns: born.at_ns })
    }

    fn talk(&mut self, link: &mut Link) -> Result<(), End> {
        let until_ns = now_ns() + self.between(5, 120);
        while now_ns() < until_ns.min(self.ends_ns) {
            self.exchange(link, "answer")?;
            let pause = Duration::from_millis(self.random.u64(20..1000));
            self.rest(link, pause)?;
        }
        Ok(())
    }

    fn new_client(&mut self, link: &mut Link) -> Result<(), End> {
        self.exchange(link, "answer")?;
        self.pause(Duration::from_millis(400));
        Ok(())
    }

    fn idle(&mut self, link: &mut Link) -> Result<(), End> {
        self.exchange(link, "answer")?;
        for _ in 0..self.random.u32(1..4) {
            let silence = Duration::from_nanos(self.between(3, 40));
            self.rest(link, silence)?;
            self.exchange(link, "answer after silence")?;
        }
        Ok(())
    }

    fn watch(&mut self, link: &mut Link) -> Result<(), End> {
        let head = Head { act: Act::Tick, bytes: BEAT.as_millis() as usize, id: 0 };
        self.send(link, &head.encode(), "watch")?;
        let until_ns = now_ns() + self.between(20, 180);
        while now_ns() < until_ns.min(self.ends_ns) {
            let due_ns = now_ns() + BEAT.as_nanos() as u64;
            self.receive(link, &mut [0], "beat", due_ns)?;
        }
        Ok(())
    }

    /// Paced, so that what happens to the network happens in its middle.
    fn upload(&mut self, link: &mut Link) -> Result<(), End> {
        let bytes = [20_000, 300_000, 3_000_000][self.random.usize(..3)];
        self.send(link, &Head { act: Act::ReplyAfterEof, bytes, id: 0 }.encode(), "upload")?;
        self.give(link, bytes)?;
        self.pause(Duration::from_millis(1500));
        link.stream.shutdown(Shutdown::Write)?;
        self.take(link, bytes)
    }

    fn download(&mut self, link: &mut Link) -> Result<(), End> {
        let bytes = [20_000, 300_000, 3_000_000][self.random.usize(..3)];
        self.send(link, &Head { act: Act::ReadAfterFin, bytes, id: 0 }.encode(), "download")?;
        self.take(link, bytes)?;
        self.pause(Duration::from_millis(1500));
        self.give(link, bytes)?;
        link.stream.shutdown(Shutdown::Write)?;
        Ok(())
    }

    /// One request and its answer.
    fn exchange(&mut self, link: &mut Link, what: &'static str) -> Result<(), End> {
        let mut message = [b'.'; MESSAGE];
        let head = Head { act: Act::Echo, bytes: MESSAGE, id: 0 }.encode();
        message[..head.len()].copy_from_slice(&head);
        let from_ns = now_ns();
        self.send(link, &message, what)?;
        let mut answer = [0; MESSAGE];
        self.receive(link, &mut answer, what, from_ns)?;
        if answer != [b'+'; MESSAGE] {
            return Err(End::Wrong("an answer that nobody sent"));
        }
        self.counts.answers.fetch_add(1, Relaxed);
        let mut latency = self.counts.latency.lock().expect("nobody panics with it");
        latency.saturating_record((now_ns() - from_ns) / 1000);
        Ok(())
    }

    fn give(&mut self, link: &mut Link, bytes: usize) -> Result<(), End> {
        let mut given = 0;
        while given < bytes {
            let part = pattern::at(given as u64, (bytes - given).min(64 * 1024));
            self.send(link, part, "room to send")?;
            given += part.len();
            self.pause(Duration::from_millis(60));
        }
        Ok(())
    }

    /// The pattern, of `bytes`, and FIN behind it.
    fn take(&mut self, link: &mut Link, bytes: usize) -> Result<(), End> {
        let (mut taken, mut buffer) = (0, vec![0; 64 * 1024]);
        loop {
            let count = match self.receive_some(link, &mut buffer, "bytes", now_ns()) {
                Err(End::Eof) if taken == bytes => return Ok(()),
                Err(End::Eof) => return Err(End::Wrong("FIN before the last byte")),
                other => other?,
            };
            if !pattern::matches(taken as u64, &buffer[..count]) {
                return Err(End::Wrong("other bytes than were sent"));
            }
            taken += count;
            if taken > bytes {
                return Err(End::Wrong("more bytes than were sent"));
            }
        }
    }

    fn send(&mut self, link: &mut Link, mut bytes: &[u8], what: &'static str) -> Result<(), End> {
        let mut from_ns = now_ns();
        link.sent_ns = from_ns;
        while !bytes.is_empty() {
            match link.stream.write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.waited(what, from_ns, "progress", &link.born);
                    from_ns = now_ns();
                }
                Err(error) if net::is_timeout(&error) => self.give_up(what, from_ns, &link.born)?,
                Err(error) => {
                    self.waited(what, from_ns, "reset", &link.born);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, link: &mut Link, buffer: &mut [u8], what: &'static str, due_ns: u64) -> Result<(), End> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.receive_some(link, &mut buffer[filled..], what, due_ns)?;
        }
        Ok(())
    }

    fn receive_some(&self, link: &mut Link, buffer: &mut [u8], what: &'static str, due_ns: u64) -> Result<usize, End> {
        loop {
            match link.stream.read(buffer) {
                Ok(0) => {
                    self.waited(what, due_ns, "eof", &link.born);
                    return Err(End::Eof);
                }
                Ok(count) => {
                    self.waited(what, due_ns, "answer", &link.born);
                    link.heard_ns = now_ns();
                    return Ok(count);
                }
                Err(error) if net::is_timeout(&error) => self.give_up(what, due_ns, &link.born)?,
                Err(error) => {
                    self.waited(what, due_ns, "reset", &link.born);
                    return Err(error.into());
                }
            }
        }
    }

    /// Does nothing for `time`, but for hearing whether the connection ends.
    fn rest(&self, link: &mut Link, time: Duration) -> Result<(), End> {
        let until_ns = (now_ns() + time.as_nanos() as u64).min(self.ends_ns);
        while now_ns() < until_ns {
            match link.stream.read(&mut [0]) {
                Ok(0) => return Err(End::Eof),
                Ok(_) => return Err(End::Wrong("a byte that was not asked for")),
                Err(error) if net::is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if now_ns() < self.ends_ns { Ok(()) } else { Err(End::Over) }
    }

    fn give_up(&self, what: &'static str, from_ns: u64, born: &Born) -> Result<(), End> {
        let waited_ns = now_ns().saturating_sub(from_ns);
        if waited_ns > ALARM.as_nanos() as u64 && self.alarmed_ns.replace(from_ns) != from_ns {
            say(
                &json!({ "waiting": self.name, "for": what, "from": seconds(from_ns), "at": self.target.to_string(), "port": born.port }),
            );
        }
        if waited_ns < HUNG.as_nanos() as u64 {
            return Ok(());
        }
        self.waited(what, from_ns, "hung", born);
        Err(End::Hung)
    }

    fn waited(&self, what: &'static str, from_ns: u64, ended: &'static str, born: &Born) {
        let until_ns = now_ns();
        if until_ns.saturating_sub(from_ns) > TOLD.as_nanos() as u64 {
            let age = seconds(from_ns.saturating_sub(born.at_ns));
            say(
                &json!({ "wait": self.name, "for": what, "from": seconds(from_ns), "until": seconds(until_ns), "age": age,
                         "ended": ended, "at": self.target.to_string(), "port": born.port }),
            );
        }
    }

    fn pause(&mut self, most: Duration) {
        thread::sleep(Duration::from_nanos(self.random.u64(..most.as_nanos() as u64)));
    }

    /// So many seconds, in ns.
    fn between(&mut self, least_s: u64, most_s: u64) -> u64 {
        self.random.u64(least_s * 1_000_000_000..most_s * 1_000_000_000)
    }
}

struct Link {
    stream: TcpStream,
    born: Born,
    sent_ns: u64,
    heard_ns: u64,
}

/// One connection among many.
#[derive(Clone, Copy)]
struct Born {
    port: u16,
    at_ns: u64,
}

impl End {
    fn name(&self) -> &'static str {
        match self {
            Self::Lost(io::ErrorKind::ConnectionReset) => "reset",
            Self::Lost(_) => "error",
            Self::Eof => "eof",
            Self::Hung => "hung",
            Self::Over => "over",
            Self::Wrong(_) => "wrong",
        }
    }
}

fn seconds(ns: u64) -> f64 {
    (ns / 1000) as f64 / 1e6
}

fn say(line: &Value) {
    println!("{line}");
}
