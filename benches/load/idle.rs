//! Flows that were used once and then do nothing: what they cost in memory and in CPU.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Common;
use crate::net;
use crate::script::{Act, HEAD, Head};
use crate::usage;
use crate::window::sleep_until;
use baton::sys::clock::now_ns;

pub fn run(common: &Common, flows: usize) -> io::Result<Value> {
    let before = usage::of(&common.pids);
    let head = Head { act: Act::Echo, bytes: HEAD, id: 0 };
    let mut open = Vec::with_capacity(flows);
    for _ in 0..flows {
        let mut stream = net::connect(common.target)?;
        stream.write_all(&head.encode())?;
        stream.read_exact(&mut [0; HEAD])?;
        open.push(stream);
    }
    // Work that a proxy puts off should be over before the quiet begins.
    sleep_until(now_ns() + Duration::from_millis(2500).as_nanos() as u64);
    let settled = usage::of(&common.pids);
    let began_ns = now_ns();
    sleep_until(began_ns + (common.seconds * 1e9) as u64);
    let end = usage::of(&common.pids);
    let quiet_s = (now_ns() - began_ns) as f64 / 1e9;
    let grown = end.rss_bytes.saturating_sub(before.rss_bytes);
    let alive = open.iter_mut().filter_map(|stream| answers(stream, head).ok()).count();
    Ok(json!({
        "flows": flows,
        "alive": alive,
        "rss_before_bytes": before.rss_bytes,
        "rss_bytes": end.rss_bytes,
        "rss_per_flow_bytes": grown as f64 / flows as f64,
        "cpu_percent": (end.cpu_ns - settled.cpu_ns) as f64 / 1e7 / quiet_s,
    }))
}

fn answers(stream: &mut std::net::TcpStream, head: Head) -> io::Result<()> {
    stream.write_all(&head.encode())?;
    stream.read_exact(&mut [0; HEAD])
}
