//! As many bytes as go, from the clients or to them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use baton::sys::clock::now_ns;
use serde_json::{Value, json};

use crate::Common;
use crate::net;
use crate::pattern;
use crate::script::{Act, HEAD, Head};
use crate::window::{Bounds, sleep_until};

const CHUNK: usize = 256 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Client to backend.
    Up,
    /// Backend to client.
    Down,
}

/// Moves as much as goes, or at most `rate` bytes a second on each flow; `settle` seconds after all are connected.
pub fn run(common: &Common, flows: usize, way: Way, rate: Option<f64>, settle: f64) -> io::Result<Value> {
    let window = common.window();
    let act = if way == Way::Up { Act::Sink } else { Act::Source };
    let head = || Head { act, bytes: 0, id: net::new_id() };
    let (moved, spent) = window.run(
        flows,
        |_| net::connect(common.target),
        |mut stream, bounds| {
            // In parts: a connection with hardly any bytes has not shown its kernel yet which interface it receives on.
            for part in head().encode().chunks(HEAD / 4) {
                stream.write_all(part)?;
                thread::sleep(Duration::from_secs_f64(settle / 4.0));
            }
            move_bytes(stream, way, bounds, rate)
        },
    )?;
    let bytes = moved.into_iter().sum::<u64>();
    let mut report = json!({
        "bytes": bytes,
        "gbit_per_second": bytes as f64 * 8e-9 / window.seconds(),
    });
    spent.describe(&mut report, bytes as f64);
    report["cpu_s_per_gb"] = json!(spent.cpu_ns as f64 / (bytes as f64).max(1.0));
    Ok(report)
}

/// Bytes moved in the window.
fn move_bytes(mut stream: TcpStream, way: Way, (begins_ns, ends_ns): Bounds, rate: Option<f64>) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    buffer.copy_from_slice(&pattern::at(0, CHUNK)[..CHUNK]);
    let mut counted = 0;
    let (first_ns, mut moved) = (now_ns(), 0.0);
    loop {
        if let Some(rate) = rate {
            sleep_until(first_ns + (moved / rate * 1e9) as u64);
        }
        let count = match way {
            Way::Up => stream.write(&buffer)?,
            Way::Down => stream.read(&mut buffer)?,
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        moved += count as f64;
        let now_ns = now_ns();
        if now_ns >= ends_ns {
            return Ok(counted);
        }
        if now_ns >= begins_ns {
            counted += count as u64;
        }
    }
}
