//! Connections of the load.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::script::{Act, HEAD, Head, Outcome};

/// Nothing that a blocking thread waits for may take longer.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A blocking connection on which `head` was sent.
pub fn open(target: SocketAddr, head: Head) -> io::Result<TcpStream> {
    let mut stream = connect(target)?;
    stream.write_all(&head.encode())?;
    Ok(stream)
}

/// A blocking connection.
pub fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A backend's state of connection `id`.
pub fn ask(witness: SocketAddr, id: u64) -> io::Result<Outcome> {
    let mut stream = open(witness, Head { act: Act::Tell, bytes: 0, id })?;
    let mut answer = [0; HEAD];
    stream.read_exact(&mut answer)?;
    Ok(Outcome::decode(answer))
}

/// A number that no other connection of this machine has.
pub fn new_id() -> u64 {
    fastrand::u64(1..)
}

/// Latencies in µs, to 1 minute.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000, 3).expect("the bounds are sound")
}

/// Percentiles in µs.
pub fn percentiles(latency: &Histogram<u64>) -> Value {
    let at = |quantile| latency.value_at_quantile(quantile);
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": latency.max() })
}

/// A blocking call waited for longer than [`PATIENCE`].
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
