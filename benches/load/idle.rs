//! Flows that were used once and are idle since: their cost in memory and in CPU.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Common;
use crate::net;
use crate::script::{Act, HEAD, Head};
use crate::usage;
use crate::window::sleep_until;
use baton::sys::clock::now_ns;

/// Time for a proxy to finish deferred work.
const SETTLE: Duration = Duration::from_millis(2500);

pub fn run(common: &Common, flows: usize) -> io::Result<Value> {
    // The proxy's own work: probes, timers.
    sleep_for(SETTLE);
    let without_percent = cpu_percent(common);
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
    sleep_for(SETTLE);
    let with_percent = cpu_percent(common);
    let end = usage::of(&common.pids);
    let grown = end.rss_bytes.saturating_sub(before.rss_bytes);
    let alive = open.iter_mut().filter_map(|stream| answers(stream, head).ok()).count();
    Ok(json!({
        "flows": flows,
        "alive": alive,
        "rss_before_bytes": before.rss_bytes,
        "rss_bytes": end.rss_bytes,
        "rss_per_flow_bytes": grown as f64 / flows as f64,
        "cpu_percent": with_percent,
        "cpu_without_percent": without_percent,
    }))
}

/// CPU time of the proxy over the measured time, in percent of a core.
fn cpu_percent(common: &Common) -> f64 {
    let (before, began_ns) = (usage::of(&common.pids), now_ns());
    sleep_for(Duration::from_secs_f64(common.seconds));
    let quiet_s = (now_ns() - began_ns) as f64 / 1e9;
    usage::of(&common.pids).cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e7 / quiet_s
}

fn sleep_for(time: Duration) {
    sleep_until(now_ns() + time.as_nanos() as u64);
}

fn answers(stream: &mut std::net::TcpStream, head: Head) -> io::Result<()> {
    stream.write_all(&head.encode())?;
    stream.read_exact(&mut [0; HEAD])
}
