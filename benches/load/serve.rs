//! The backends. Echo is served by a few threads with epoll, everything else by a thread for each connection.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use baton::addr::VipAddr;
use baton::sys::epoll::{Epoll, Events};
use baton::sys::liveness::SocketTimeouts;
use baton::sys::socket;

use crate::behave;
use crate::pattern;
use crate::script::{Act, Ended, HEAD, Head, Outcome};

const CHUNK: usize = 256 * 1024;

/// Longer than any outage that clients are put through: it is for them to say that they waited.
const PATIENCE: Duration = Duration::from_secs(150);

/// A token below this is a listener.
const FLOWS_FROM: u64 = 1 << 16;

const TIMEOUTS: SocketTimeouts = SocketTimeouts {
    keepalive_idle: Duration::from_secs(60),
    keepalive_interval: Duration::from_secs(10),
    user_timeout: Duration::from_secs(60),
};

/// The known connections with an id: how they ended, and how many bytes they have moved.
static OUTCOMES: LazyLock<Mutex<HashMap<u64, Arc<Record>>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Record {
    ended: AtomicU64,
    bytes: AtomicU64,
}

/// Serves on all of `listen` until killed. Prints a line once it listens.
pub fn run(listen: &[SocketAddr], threads: usize) -> io::Result<()> {
    let mut servers = Vec::new();
    for _ in 0..threads {
        servers.push(Server::new(listen)?);
    }
    println!("listening");
    thread::scope(|scope| {
        let running: Vec<_> = servers.into_iter().map(|server| scope.spawn(move || server.serve())).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a server thread panicked"))
    })
}

struct Server {
    epoll: Epoll,
    listeners: Vec<OwnedFd>,
    flows: Vec<Option<Echo>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
    answer: Vec<u8>,
}

/// A connection whose head is not complete yet, or that echoes.
struct Echo {
    socket: OwnedFd,
    /// Length of a message; 0 until the head is there.
    length: usize,
    received: usize,
    unsent: usize,
    /// Nothing more is read.
    held: bool,
}

enum Next {
    Keep,
    Close,
    /// Somebody else serves it.
    Leave(Head),
}

impl Server {
    fn new(listen: &[SocketAddr]) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let mut listeners = Vec::new();
        for (index, address) in listen.iter().enumerate() {
            let listener = socket::listen(VipAddr::new(*address), &TIMEOUTS)?;
            epoll.watch_level(&listener, index as u64)?;
            listeners.push(listener);
        }
        let (flows, free) = (Vec::new(), Vec::new());
        Ok(Self { epoll, listeners, flows, free, buffer: vec![0; 64 * 1024], answer: vec![b'+'; 64 * 1024] })
    }

    fn serve(mut self) -> io::Result<()> {
        let mut events = Events::default();
        loop {
            let count = self.epoll.wait(&mut events, None)?;
            for event in 0..count {
                let ready = events.event(event);
                if ready.token < FLOWS_FROM {
                    self.accept(ready.token as usize);
                    continue;
                }
                let place = (ready.token - FLOWS_FROM) as usize;
                // Events of a closed socket do not outlive it; one batch may hold an earlier one of the same place.
                let Some(flow) = &mut self.flows[place] else { continue };
                match flow.ready(ready.readable(), &mut self.buffer, &self.answer) {
                    Next::Keep => {}
                    Next::Close => self.vacate(place, None),
                    Next::Leave(head) => self.vacate(place, Some(head)),
                }
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        while let Ok((socket, _)) = socket::accept(&self.listeners[listener]) {
            let place = self.free.pop().unwrap_or_else(|| {
                self.flows.push(None);
                self.flows.len() - 1
            });
            if self.epoll.watch_flow(&socket, FLOWS_FROM + place as u64).is_ok() {
                self.flows[place] = Some(Echo { socket, length: 0, received: 0, unsent: 0, held: false });
            }
        }
    }

    fn vacate(&mut self, place: usize, head: Option<Head>) {
        let Some(flow) = self.flows[place].take() else { return };
        self.free.push(place);
        if let Some(head) = head {
            let _ = self.epoll.forget(&flow.socket);
            let _ = thread::Builder::new().stack_size(256 * 1024).spawn(move || act(flow.socket, head));
        }
    }
}

impl Echo {
    fn ready(&mut self, readable: bool, buffer: &mut [u8], answer: &[u8]) -> Next {
        if self.held {
            return Next::Keep;
        }
        if self.length == 0 {
            let mut head = [0; HEAD];
            match socket::peek(&self.socket, &mut head) {
                Ok(HEAD) => {}
                Ok(1..) => return Next::Keep,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Keep,
                Ok(0) | Err(_) => return Next::Close,
            }
            match Head::decode(head) {
                Some(Head { act: Act::Echo, bytes, .. }) if bytes >= HEAD => self.length = bytes,
                Some(Head { act: Act::Hold, .. }) => {
                    self.held = true;
                    return if socket::write(&self.socket, b"!").is_ok() { Next::Keep } else { Next::Close };
                }
                Some(other) => return Next::Leave(other),
                None => {
                    // A probe.
                    if head.starts_with(b"GET ") {
                        let _ = socket::write(
                            &self.socket,
                            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
                        );
                        let _ = socket::read(&self.socket, buffer);
                    }
                    return Next::Close;
                }
            }
        }
        if readable {
            loop {
                match socket::read(&self.socket, buffer) {
                    Ok(0) => return Next::Close,
                    Ok(count) => {
                        self.received += count;
                        if count < buffer.len() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => return Next::Close,
                }
            }
            self.unsent += self.received / self.length * self.length;
            self.received %= self.length;
        }
        while self.unsent > 0 {
            match socket::write(&self.socket, &answer[..self.unsent.min(answer.len())]) {
                Ok(count) => self.unsent -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Next::Close,
            }
        }
        Next::Keep
    }
}

/// Does what `head` asks for, blocking.
fn act(socket: OwnedFd, head: Head) {
    let mut stream = TcpStream::from(socket);
    let _ = stream.set_nonblocking(false);
    let _ = perform(&mut stream, head);
}

fn perform(stream: &mut TcpStream, head: Head) -> io::Result<()> {
    stream.read_exact(&mut [0; HEAD])?;
    let record = if head.act == Act::Tell { Arc::default() } else { record(head.id) };
    match head.act {
        Act::Echo | Act::Hold => Ok(()),
        Act::Sink => {
            let mut buffer = vec![0; CHUNK];
            while stream.read(&mut buffer)? > 0 {}
            Ok(())
        }
        Act::Source => loop {
            let written = stream.write(&pattern::at(0, CHUNK)[..CHUNK])?;
            record.bytes.fetch_add(written as u64, Relaxed);
        },
        Act::ReplyAfterEof => {
            stream.set_read_timeout(Some(PATIENCE))?;
            behave::read_pattern(stream)?;
            behave::write_pattern(stream, head.bytes)
        }
        Act::ReadAfterFin => {
            stream.set_read_timeout(Some(PATIENCE))?;
            behave::write_pattern(stream, head.bytes)?;
            stream.shutdown(Shutdown::Write)?;
            record.note(behave::watch(stream));
            Ok(())
        }
        Act::Reset => {
            stream.write_all(b"!")?;
            socket::reset(stream.as_fd().try_clone_to_owned()?);
            Ok(())
        }
        Act::Watch => {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"!")?;
            record.note(behave::watch(stream));
            Ok(())
        }
        Act::Tell => stream.write_all(&told(head.id).encode()),
        Act::Tick => loop {
            stream.write_all(b"!")?;
            thread::sleep(Duration::from_millis(head.bytes as u64));
        },
    }
}

fn record(id: u64) -> Arc<Record> {
    OUTCOMES.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default().clone()
}

fn told(id: u64) -> Outcome {
    let record = record(id);
    let ended = [Ended::Eof, Ended::Reset, Ended::WrongBytes];
    let ended = ended.into_iter().find(|ended| *ended as u64 == record.ended.load(Relaxed)).unwrap_or_default();
    Outcome { ended, bytes: record.bytes.load(Relaxed) }
}

impl Record {
    fn note(&self, outcome: Outcome) {
        self.bytes.store(outcome.bytes, Relaxed);
        self.ended.store(outcome.ended as u64, Relaxed);
    }
}
