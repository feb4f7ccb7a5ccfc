//! Clients of all kinds, each of which checks every byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use baton::sys::clock::now_ns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::backend::{DOWN, DRIP, ECHO, FINE, UP, piece, request};
use super::instance::DEADLINE;

/// What all clients look at.
#[derive(Default)]
pub struct Shared {
    /// Talkers and slow ones finish when it is set.
    pub over: AtomicBool,
    /// The longest round trip of a talker since it was last taken, in µs.
    pub longest_us: AtomicU64,
    pub round_trips: AtomicU64,
    /// Flows that have done their first round.
    pub begun: AtomicU64,
}

pub type Outcome = Result<(), String>;

/// Silent between its first word and its last.
pub async fn idle(to: SocketAddr, shared: Arc<Shared>) -> Outcome {
    let mut stream = open(to, ECHO, 0, 0).await?;
    echo(&mut stream, b"first").await?;
    shared.begun.fetch_add(1, Relaxed);
    until_over(&shared).await;
    echo(&mut stream, b"last").await
}

/// A round trip every millisecond.
pub async fn talker(to: SocketAddr, shared: Arc<Shared>) -> Outcome {
    let mut stream = open(to, ECHO, 0, 0).await?;
    let mut number = 0u64;
    while !shared.over.load(Relaxed) {
        let began_ns = now_ns();
        echo(&mut stream, &number.to_le_bytes()).await?;
        shared.longest_us.fetch_max((now_ns() - began_ns) / 1000, Relaxed);
        shared.round_trips.fetch_add(1, Relaxed);
        if number == 0 {
            shared.begun.fetch_add(1, Relaxed);
        }
        number += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Takes `length` bytes, slowly until it is over: all buffers on the way are full.
pub async fn slow_reader(to: SocketAddr, shared: Arc<Shared>, seed: u32, length: u64) -> Outcome {
    let mut stream = open(to, DOWN, seed, length).await?;
    shared.begun.fetch_add(1, Relaxed);
    let mut buffer = vec![0; 64 * 1024];
    let mut at = 0;
    loop {
        let slow = !shared.over.load(Relaxed);
        let most = if slow { 1024 } else { buffer.len() };
        match timed("reading slowly", stream.read(&mut buffer[..most])).await? {
            0 if at == length => return Ok(()),
            0 => return Err(format!("EOF after {at} of {length} bytes")),
            count if buffer[..count] != piece(seed, at, count) => return Err(format!("wrong bytes after {at}")),
            count => at += count as u64,
        }
        if slow {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Sends until it is over, then FIN, and hears whether all came.
pub async fn uploader(to: SocketAddr, shared: Arc<Shared>, seed: u32, length: u64) -> Outcome {
    let mut stream = open(to, UP, seed, length).await?;
    shared.begun.fetch_add(1, Relaxed);
    let mut at = 0;
    while at < length {
        let count = (length - at).min(32 * 1024) as usize;
        timed("sending", stream.write_all(&piece(seed, at, count))).await?;
        at += count as u64;
        if !shared.over.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    stream.shutdown().await.map_err(|error| format!("shutting down: {error}"))?;
    let mut verdict = Vec::new();
    timed("the verdict", stream.read_to_end(&mut verdict)).await?;
    if verdict == FINE { Ok(()) } else { Err(format!("the server says {:?}", String::from_utf8_lossy(&verdict))) }
}

/// Bulk both ways at once.
pub async fn both_ways(to: SocketAddr, shared: Arc<Shared>, seed: u32, length: u64) -> Outcome {
    let (mut reader, mut writer) = open(to, ECHO, 0, 0).await?.into_split();
    shared.begun.fetch_add(1, Relaxed);
    let pace = shared.clone();
    let sending = tokio::spawn(async move {
        let mut at = 0;
        while at < length {
            let count = (length - at).min(32 * 1024) as usize;
            timed("sending", writer.write_all(&piece(seed, at, count))).await?;
            at += count as u64;
            if !pace.over.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        writer.shutdown().await.map_err(|error| error.to_string())
    });
    let mut buffer = vec![0; 64 * 1024];
    let mut at = 0;
    loop {
        match timed("the echo", reader.read(&mut buffer)).await? {
            0 if at == length => break,
            0 => return Err(format!("EOF after {at} of {length} bytes")),
            count if buffer[..count] != piece(seed, at, count) => return Err(format!("wrong bytes after {at}")),
            count => at += count as u64,
        }
    }
    sending.await.unwrap()
}

/// Has sent FIN long ago, and still receives.
pub async fn half_closed(to: SocketAddr, shared: Arc<Shared>, seed: u32, length: u64) -> Outcome {
    let mut stream = open(to, DRIP, seed, length).await?;
    stream.shutdown().await.map_err(|error| format!("shutting down: {error}"))?;
    shared.begun.fetch_add(1, Relaxed);
    let mut all = Vec::new();
    timed("the rest", stream.read_to_end(&mut all)).await?;
    if all == piece(seed, 0, length as usize) { Ok(()) } else { Err(format!("{} of {length} bytes", all.len())) }
}

/// One new connection after the other; returns how many there were.
pub async fn storm(to: SocketAddr, shared: Arc<Shared>) -> Result<u64, String> {
    let mut served = 0;
    while !shared.over.load(Relaxed) {
        let mut stream = open(to, ECHO, 0, 0).await.map_err(|error| format!("after {served}: {error}"))?;
        echo(&mut stream, b"hello").await.map_err(|error| format!("after {served}: {error}"))?;
        served += 1;
    }
    Ok(served)
}

async fn until_over(shared: &Shared) {
    while !shared.over.load(Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn open(to: SocketAddr, kind: u8, seed: u32, length: u64) -> Result<TcpStream, String> {
    let mut stream = timed("connecting", TcpStream::connect(to)).await?;
    stream.set_nodelay(true).unwrap();
    timed("asking", stream.write_all(&request(kind, seed, length))).await?;
    Ok(stream)
}

async fn echo(stream: &mut TcpStream, word: &[u8]) -> Outcome {
    timed("sending", stream.write_all(word)).await?;
    let mut back = vec![0; word.len()];
    timed("the echo", stream.read_exact(&mut back)).await?;
    if back == word { Ok(()) } else { Err("the echo is wrong".to_owned()) }
}

async fn timed<T>(what: &str, work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match timeout(2 * DEADLINE, work).await {
        Ok(done) => done.map_err(|error| format!("{what}: {error}")),
        Err(_) => Err(format!("{what}: nothing for a minute")),
    }
}
