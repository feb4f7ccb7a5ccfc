//! One client that asks for everything and reads nothing: the bytes that were taken from the backend stay somewhere.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use baton::sys::clock::now_ns;
use serde_json::{Value, json};

use crate::Common;
use crate::net;
use crate::script::{Act, Head};
use crate::usage;
use crate::window::sleep_until;

pub fn run(common: &Common, witness: SocketAddr) -> io::Result<Value> {
    let before = usage::of(&common.pids);
    let id = net::new_id();
    let _stalled = net::open(common.target, Head { act: Act::Source, bytes: 0, id })?;
    let began_ns = now_ns();
    let ends_ns = began_ns + (common.seconds * 1e9) as u64;
    let mut taken = Vec::new();
    while now_ns() < ends_ns {
        sleep_until(now_ns() + Duration::from_millis(250).as_nanos() as u64);
        taken.push(net::ask(witness, id)?.bytes);
    }
    let last = taken.last().copied().unwrap_or(0);
    let half_way = taken[taken.len() / 2];
    let grown = usage::of(&common.pids).rss_bytes.saturating_sub(before.rss_bytes);
    Ok(json!({
        "taken_bytes": last,
        "still_grows": last > half_way,
        "rss_grown_bytes": grown,
    }))
}
