//! Clients of all kinds, each of which checks every byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton::sys::clock::now_ns;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::backend::{DOWN, DRIP, ECHO, PIECE_MAX, UP, piece, request, verdict};
use super::instance::DEADLINE;

/// The bytes that a slow reader's kernel accepts for it.
const RECEIVE_BUFFER: u32 = 32 * 1024;

/// Bytes of one step of a bulk transfer, up or both ways.
const STEP: usize = 16 * 1024;

/// Bytes that a slow reader takes at a time.
const SIP: usize = 4 * 1024;

/// A pause between two connections of a storm: the ports of closed ones are many, but not without end.
const STORM_PAUSE: Duration = Duration::from_millis(4);

/// A round trip is counted as this at most.
const LONGEST_US: u64 = 600_000_000;

/// What all clients look at.
pub struct Shared {
    /// Everyone finishes when it is true.
    pub over: watch::Sender<bool>,
    /// Flows that have done their first round.
    pub begun: AtomicU64,
    /// Connections of the storm that were served.
    pub served: AtomicU64,
    /// Bytes that were compared, up and down.
    pub compared: [AtomicU64; 2],
    /// Round trips in µs since they were last looked at.
    pub round_trips: Mutex<Histogram<u64>>,
    /// Between two steps of a bulk transfer.
    pub pace: Duration,
}

pub type Outcome = Result<(), String>;

impl Shared {
    /// For so many flows: what their bulk transfers move a second does not depend on it.
    pub fn new(flows: usize) -> Arc<Self> {
        Arc::new(Self {
            over: watch::Sender::new(false),
            begun: AtomicU64::default(),
            served: AtomicU64::default(),
            compared: Default::default(),
            round_trips: Mutex::new(Histogram::new_with_max(LONGEST_US, 3).unwrap()),
            pace: Duration::from_micros(40 * flows as u64).max(Duration::from_millis(10)),
        })
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    async fn until_over(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    async fn pause(&self) {
        if !self.is_over() {
            sleep(self.pace).await;
        }
    }
}

/// Silent between its first word and its last, and hears nothing meanwhile.
pub async fn idle(to: SocketAddr, shared: Arc<Shared>) -> Outcome {
    let mut stream = open(to, ECHO, 0, 0).await?;
    echo(&mut stream, b"first").await?;
    shared.begun.fetch_add(1, Relaxed);
    let mut unasked = [0; 8];
    tokio::select! {
        () = shared.until_over() => {}
        came = stream.read(&mut unasked) => return Err(format!("idle, and yet: {came:?}")),
    }
    echo(&mut stream, b"last").await
}

/// A round trip every millisecond.
pub async fn talker(to: SocketAddr, shared: Arc<Shared>) -> Outcome {
    let mut stream = open(to, ECHO, 0, 0).await?;
    for number in 0u64.. {
        let began_ns = now_ns();
        echo(&mut stream, &number.to_le_bytes()).await?;
        let took_us = (now_ns() - began_ns) / 1000;
        shared.round_trips.lock().unwrap().saturating_record(took_us);
        if number == 0 {
            shared.begun.fetch_add(1, Relaxed);
        }
        if shared.is_over() {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Takes `length` bytes, slowly until it is over: all buffers on the way are full.
pub async fn slow_reader(to: SocketAddr, shared: Arc<Shared>, seed: u32, length: u64) -> Outcome {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
    let mut stream = timed("connecting", socket.connect(to)).await?;
    timed("asking", stream.write_all(&request(DOWN, seed, length))).await?;
    timed("the first byte", stream.readable()).await?;
    shared.begun.fetch_add(1, Relaxed);
    let mut buffer = vec![0; SIP];
    let mut at = 0;
    loop {
        match timed("reading slowly", stream.read(&mut buffer)).await? {
            0 if at == length => return Ok(()),
            0 => return Err(format!("EOF after {at} of {length} bytes")),
            count if buffer[..count] != *piece(seed, at, count) => return Err(format!("wrong bytes after {at}")),
            count => at += count as u64,
        }
        shared.compared[1].fetch_add(SIP as u64, Relaxed);
        if shared.is_over() && buffer.len() < PIECE_MAX {
            buffer.resize(PIECE_MAX, 0);
            // A window below one segment would be filled by the kernel's probes only.
            socket2::SockRef::from(&stream).set_recv_buffer_size(16 * PIECE_MAX).unwrap();
        }
        shared.pause().await;
    }
}

/// Sends until it is over, then FIN, and hears whether all came.
pub async fn uploader(to: SocketAddr, shared: Arc<Shared>, seed: u32) -> Outcome {
    let mut stream = open(to, UP, seed, 0).await?;
    shared.begun.fetch_add(1, Relaxed);
    let mut at = 0;
    while !shared.is_over() {
        timed("sending", stream.write_all(piece(seed, at, STEP))).await?;
        at += STEP as u64;
        shared.pause().await;
    }
    stream.shutdown().await.map_err(|error| format!("shutting down: {error}"))?;
    let mut said = Vec::new();
    timed("the verdict", stream.read_to_end(&mut said)).await?;
    shared.compared[0].fetch_add(at, Relaxed);
    if said == verdict(true, at) { Ok(()) } else { Err(format!("after {at} bytes the server says {said:?}")) }
}

/// Bulk both ways at once, until it is over.
pub async fn both_ways(to: SocketAddr, shared: Arc<Shared>, seed: u32) -> Outcome {
    let (mut reader, mut writer) = open(to, ECHO, 0, 0).await?.into_split();
    shared.begun.fetch_add(1, Relaxed);
    let pace = shared.clone();
    let sending = tokio::spawn(async move {
        let mut at = 0;
        while !pace.is_over() {
            timed("sending", writer.write_all(piece(seed, at, STEP))).await?;
            at += STEP as u64;
            pace.pause().await;
        }
        writer.shutdown().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(at)
    });
    let mut buffer = vec![0; PIECE_MAX];
    let mut at = 0;
    loop {
        match timed("the echo", reader.read(&mut buffer)).await? {
            0 => break,
            count if buffer[..count] != *piece(seed, at, count) => return Err(format!("wrong bytes after {at}")),
            count => at += count as u64,
        }
    }
    let sent = sending.await.unwrap()?;
    shared.compared.iter().for_each(|compared| {
        compared.fetch_add(at, Relaxed);
    });
    if at == sent { Ok(()) } else { Err(format!("EOF after {at} of {sent} bytes")) }
}

/// Has sent FIN long ago, and still receives.
pub async fn half_closed(to: SocketAddr, shared: Arc<Shared>, seed: u32, length: u64) -> Outcome {
    let mut stream = open(to, DRIP, seed, length).await?;
    stream.shutdown().await.map_err(|error| format!("shutting down: {error}"))?;
    timed("the first byte", stream.readable()).await?;
    shared.begun.fetch_add(1, Relaxed);
    let mut all = Vec::new();
    let mut buffer = [0; 64];
    loop {
        match timed("the rest", stream.read(&mut buffer)).await? {
            0 => break,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
    if all == piece(seed, 0, length as usize) { Ok(()) } else { Err(format!("{} of {length} bytes", all.len())) }
}

/// One new connection after the other, until it is over.
pub async fn storm(to: SocketAddr, shared: Arc<Shared>) -> Outcome {
    while !shared.is_over() {
        let after = |error| format!("after {}: {error}", shared.served.load(Relaxed));
        let mut stream = open(to, ECHO, 0, 0).await.map_err(after)?;
        echo(&mut stream, b"hello").await.map_err(after)?;
        shared.served.fetch_add(1, Relaxed);
        sleep(STORM_PAUSE).await;
    }
    Ok(())
}

async fn open(to: SocketAddr, kind: u8, seed: u32, length: u64) -> Result<TcpStream, String> {
    let mut stream = timed("connecting", TcpStream::connect(to)).await?;
    stream.set_nodelay(true).unwrap();
    timed("asking", stream.write_all(&request(kind, seed, length))).await?;
    Ok(stream)
}

async fn echo(stream: &mut TcpStream, word: &[u8]) -> Outcome {
    timed("sending", stream.write_all(word)).await?;
    let mut back = [0; 16];
    let back = &mut back[..word.len()];
    timed("the echo", stream.read_exact(back)).await?;
    if back == word { Ok(()) } else { Err("the echo is wrong".to_owned()) }
}

async fn timed<T>(what: &str, work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match timeout(2 * DEADLINE, work).await {
        Ok(done) => done.map_err(|error| format!("{what}: {error}")),
        Err(_) => Err(format!("{what}: nothing for a minute")),
    }
}
