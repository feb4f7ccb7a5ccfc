//! Short connections: connect, send 64 bytes, read 64 bytes, close.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use baton::addr::BackendAddr;
use baton::sys::clock::now_ns;
use baton::sys::epoll::{Epoll, Events};
use baton::sys::socket;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::Common;
use crate::malformed::{HEADER, Malformed};
use crate::net;
use crate::script::{Act, Head};
use crate::window::Bounds;

const BYTES: usize = 64;
const LOOK_UP: Duration = Duration::from_millis(20);

/// How connections are begun.
#[derive(clap::Args)]
pub struct Manner {
    /// At most so many a second, of all together.
    #[arg(long)]
    rate: Option<f64>,
    /// A PROXY header comes first.
    #[arg(long)]
    header: bool,
    /// One connection of so many is malformed, each in another way.
    #[arg(long)]
    malformed: Option<u64>,
}

/// The measurements of one thread.
struct Seen {
    latency: Histogram<u64>,
    /// Ended well, by second of the window.
    by_second: Vec<u64>,
    malformed: u64,
    failed: u64,
}

pub fn run(common: &Common, connections: usize, manner: &Manner) -> io::Result<Value> {
    let window = common.window();
    let threads = common.threads.min(connections);
    let share = |number: usize| connections / threads + usize::from(number < connections % threads);
    let (seen, spent) = window.run(
        threads,
        |number| Client::new(common.target, share(number), manner),
        |client, bounds| client.serve(bounds, window.seconds(), manner.rate.map(|rate| rate / threads as f64)),
    )?;
    let mut latency = net::latencies();
    let mut by_second = vec![0; window.seconds().ceil() as usize];
    let (mut failed, mut malformed) = (0, 0);
    for seen in seen {
        latency.add(&seen.latency).expect("the bounds are the same");
        by_second.iter_mut().zip(&seen.by_second).for_each(|(all, one)| *all += one);
        failed += seen.failed;
        malformed += seen.malformed;
    }
    let mut report = json!({
        "connections": latency.len(),
        "per_second": latency.len() as f64 / window.seconds(),
        "by_second": by_second,
        "latency_us": net::percentiles(&latency),
        "failed": failed,
        "malformed": malformed,
    });
    spent.describe(&mut report, latency.len() as f64);
    Ok(report)
}

/// The connections of one thread; each place makes one after another.
struct Client {
    target: SocketAddr,
    epoll: Epoll,
    places: Vec<Place>,
    message: Vec<u8>,
    malformed: Option<u64>,
    begun: u64,
}

#[derive(Default)]
struct Place {
    /// `None`: the last attempt failed at once, and the next waits for its turn.
    socket: Option<OwnedFd>,
    /// Tells events of this connection from those of the one before.
    generation: u32,
    began_ns: u64,
    sent: bool,
    received: usize,
    malformed: Option<Malformed>,
}

impl Client {
    fn new(target: SocketAddr, count: usize, manner: &Manner) -> io::Result<Self> {
        let mut message = if manner.header { HEADER.to_vec() } else { Vec::new() };
        let until = message.len() + BYTES;
        message.extend(Head { act: Act::Echo, bytes: BYTES, id: 0 }.encode());
        message.resize(until, b'.');
        let places = std::iter::repeat_with(Place::default).take(count).collect();
        Ok(Self { target, epoll: Epoll::new()?, places, message, malformed: manner.malformed, begun: 0 })
    }

    fn serve(mut self, (begins_ns, ends_ns): Bounds, seconds: f64, rate: Option<f64>) -> io::Result<Seen> {
        let by_second = vec![0; seconds.ceil() as usize];
        let mut seen = Seen { latency: net::latencies(), by_second, malformed: 0, failed: 0 };
        let mut events = Events::default();
        let (first_ns, mut begun) = (now_ns(), 0.0);
        loop {
            for index in 0..self.places.len() {
                let due = rate.is_none_or(|rate| begun < (now_ns() - first_ns) as f64 * 1e-9 * rate);
                if due && self.places[index].socket.is_none() {
                    begun += 1.0;
                    seen.failed += u64::from(self.begin(index).is_err());
                }
            }
            let count = self.epoll.wait(&mut events, Some(LOOK_UP))?;
            for event in 0..count {
                let ready = events.event(event);
                let (index, generation) = (ready.token as u32 as usize, (ready.token >> 32) as u32);
                if self.places[index].generation != generation {
                    continue;
                }
                let is_malformed = self.places[index].malformed.is_some();
                match self.advance(index, ready.writable(), ready.readable()) {
                    Ok(false) => continue,
                    _ if is_malformed => seen.malformed += u64::from((begins_ns..ends_ns).contains(&now_ns())),
                    Ok(true) => {
                        let now_ns = now_ns();
                        if (begins_ns..ends_ns).contains(&now_ns) {
                            let place = &self.places[index];
                            seen.latency.saturating_record(now_ns.saturating_sub(place.began_ns) / 1000);
                            seen.by_second[((now_ns - begins_ns) / 1_000_000_000) as usize] += 1;
                        }
                    }
                    Err(_) => seen.failed += 1,
                }
                self.places[index].socket = None;
                if rate.is_none() {
                    seen.failed += u64::from(self.begin(index).is_err());
                }
            }
            if now_ns() >= ends_ns {
                return Ok(seen);
            }
        }
    }

    fn begin(&mut self, index: usize) -> io::Result<()> {
        let place = &mut self.places[index];
        let generation = place.generation.wrapping_add(1);
        self.begun += 1;
        let due = self.malformed.filter(|one_in| self.begun.is_multiple_of(*one_in));
        let malformed = due.map(|one_in| Malformed::of(self.begun / one_in));
        *place = Place { generation, began_ns: now_ns(), malformed, ..Place::default() };
        let socket = socket::connect(BackendAddr::new(self.target))?;
        self.epoll.watch_flow(&socket, u64::from(generation) << 32 | index as u64)?;
        place.socket = Some(socket);
        Ok(())
    }

    /// True once the answer is whole.
    fn advance(&mut self, index: usize, writable: bool, readable: bool) -> io::Result<bool> {
        let place = &mut self.places[index];
        let Some(socket) = &place.socket else { return Ok(false) };
        if let Some(malformed) = place.malformed.filter(|_| writable && !place.sent) {
            place.sent = true;
            place.socket = place.socket.take().and_then(|socket| malformed.act(socket));
            return Ok(place.socket.is_none());
        }
        if writable && !place.sent {
            socket::write(socket, &self.message)?;
            place.sent = true;
            return Ok(false);
        }
        if readable {
            match socket::read(socket, &mut [0; BYTES]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => place.received += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(place.received >= BYTES)
    }
}
