//! Whether bytes, FIN and RST get through as they are, both ways.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use baton::sys::clock::now_ns;
use baton::sys::socket;
use serde_json::{Value, json};

use crate::net::{self, PATIENCE, ask, new_id, open};
use crate::pattern;
use crate::script::{Act, Ended, Head, Outcome};
use crate::window::sleep_until;

/// For FIN: enough to be on its way still when FIN is sent.
const MESSAGE: usize = 8 << 20;

/// For content: enough that every way of moving bytes is used.
const CONTENT: usize = 256 << 20;

pub fn run(target: SocketAddr, witness: SocketAddr) -> Value {
    let proxied = |check: fn(SocketAddr, SocketAddr) -> io::Result<bool>| check(target, witness).unwrap_or(false);
    json!({
        "client_half_close": proxied(client_half_close),
        "backend_half_close": proxied(backend_half_close),
        "client_rst": proxied(client_rst),
        "backend_rst": proxied(backend_rst),
        "content_up": proxied(content_up),
        "content_down": proxied(content_down),
    })
}

/// The client sends FIN behind its bytes; the backend's answer comes after that, whole.
fn client_half_close(target: SocketAddr, _: SocketAddr) -> io::Result<bool> {
    let mut stream = open(target, Head { act: Act::ReplyAfterEof, bytes: MESSAGE, id: new_id() })?;
    write_pattern(&mut stream, MESSAGE)?;
    stream.shutdown(Shutdown::Write)?;
    Ok(read_pattern(&mut stream)? == MESSAGE as u64)
}

/// The backend sends FIN after its bytes; bytes that the client sends after that arrive, all of them.
fn backend_half_close(target: SocketAddr, witness: SocketAddr) -> io::Result<bool> {
    let id = new_id();
    let mut stream = open(target, Head { act: Act::ReadAfterFin, bytes: MESSAGE, id })?;
    if read_pattern(&mut stream)? != MESSAGE as u64 {
        return Ok(false);
    }
    write_pattern(&mut stream, MESSAGE)?;
    stream.shutdown(Shutdown::Write)?;
    Ok(outcome(witness, id)? == Outcome { ended: Ended::Eof, bytes: MESSAGE as u64 })
}

/// The client resets; the backend sees a reset, not an EOF.
fn client_rst(target: SocketAddr, witness: SocketAddr) -> io::Result<bool> {
    let id = new_id();
    let mut stream = open(target, Head { act: Act::Watch, bytes: 0, id })?;
    stream.read_exact(&mut [0])?;
    socket::reset(OwnedFd::from(stream));
    Ok(outcome(witness, id)?.ended == Ended::Reset)
}

/// The backend resets; the client sees a reset, not an EOF.
fn backend_rst(target: SocketAddr, _: SocketAddr) -> io::Result<bool> {
    let mut stream = open(target, Head { act: Act::Reset, bytes: 0, id: new_id() })?;
    let mut buffer = [0; 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Ok(error.kind() == io::ErrorKind::ConnectionReset),
        }
    }
}

fn content_up(target: SocketAddr, witness: SocketAddr) -> io::Result<bool> {
    let id = new_id();
    let mut stream = open(target, Head { act: Act::Watch, bytes: 0, id })?;
    stream.read_exact(&mut [0])?;
    write_pattern(&mut stream, CONTENT)?;
    stream.shutdown(Shutdown::Write)?;
    Ok(outcome(witness, id)? == Outcome { ended: Ended::Eof, bytes: CONTENT as u64 })
}

fn content_down(target: SocketAddr, _: SocketAddr) -> io::Result<bool> {
    let mut stream = open(target, Head { act: Act::ReadAfterFin, bytes: CONTENT, id: new_id() })?;
    Ok(read_pattern(&mut stream)? == CONTENT as u64)
}

/// Asks until the connection has ended there.
fn outcome(witness: SocketAddr, id: u64) -> io::Result<Outcome> {
    let ends_ns = now_ns() + PATIENCE.as_nanos() as u64;
    loop {
        let outcome = ask(witness, id)?;
        if outcome.ended != Ended::NotYet || now_ns() >= ends_ns {
            return Ok(outcome);
        }
        sleep_until(now_ns() + Duration::from_millis(20).as_nanos() as u64);
    }
}

/// Writes `length` bytes of the pattern in pieces of random size.
pub fn write_pattern(stream: &mut TcpStream, length: usize) -> io::Result<()> {
    let mut offset = 0;
    while offset < length {
        let piece = fastrand::usize(1..=128 * 1024).min(length - offset);
        let bytes = pattern::at(offset as u64, piece);
        stream.write_all(bytes)?;
        offset += bytes.len();
    }
    Ok(())
}

/// Reads until EOF; how many bytes came, or an error if they are not the pattern.
pub fn read_pattern(stream: &mut TcpStream) -> io::Result<u64> {
    let mut buffer = vec![0; 256 * 1024];
    let mut offset = 0;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(offset);
        }
        if !pattern::matches(offset, &buffer[..count]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        offset += count as u64;
    }
}

/// The same for a connection whose end is what counts.
pub fn watch(stream: &mut TcpStream) -> Outcome {
    let mut buffer = vec![0; 256 * 1024];
    let mut bytes = 0;
    let ended = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break Ended::Eof,
            Ok(count) if !pattern::matches(bytes, &buffer[..count]) => break Ended::WrongBytes,
            Ok(count) => bytes += count as u64,
            Err(error) if net::is_timeout(&error) => break Ended::NotYet,
            Err(_) => break Ended::Reset,
        }
    };
    Outcome { ended, bytes }
}
