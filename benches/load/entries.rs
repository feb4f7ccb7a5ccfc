//! Entries without any flow: a map as full as that of a large site, to measure how Baton handles it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use baton::model::balance::hash_name;
use baton::model::ids::FlowId;
use baton::model::splice::Terms;
use baton::offload::entry::{Egress, Ends, Identity, Splice, Start};
use baton::offload::probe::EntryChange;
use baton::offload::program::{Cursor, Program};
use baton::offload::settings::OffloadSettings;
use baton::sys::clock::now_ns;
use serde_json::{Value, json};

#[derive(clap::Args)]
pub struct Entries {
    /// Where the program is pinned, or is to be.
    #[arg(long)]
    pins: PathBuf,
    #[arg(long)]
    flows: u32,
    #[arg(long)]
    vip: SocketAddr,
    /// The frontend's name.
    #[arg(long)]
    frontend: String,
    /// NAME=ADDRESS of each backend.
    #[arg(long, value_delimiter = ',', value_parser = backend)]
    backends: Vec<(String, SocketAddr)>,
}

fn backend(word: &str) -> Result<(String, SocketAddr), String> {
    let (name, address) = word.split_once('=').ok_or("NAME=ADDRESS")?;
    Ok((name.to_owned(), address.parse().map_err(|error| format!("{error}"))?))
}

/// Enters the flows and marks them as whole.
pub fn run(asked: &Entries) -> io::Result<Value> {
    let settings = OffloadSettings {
        directory: asked.pins.clone(),
        interfaces: Vec::new(),
        flows_max: asked.flows + asked.flows / 4,
    };
    let program = Program::open(&settings).map_err(io::Error::other)?;
    let began_ns = now_ns();
    for number in 0..asked.flows {
        program.install(&flow(asked, number)).map_err(io::Error::other)?;
    }
    let entered = now_ns() - began_ns;
    let began_ns = now_ns();
    for first in (0..asked.flows).step_by(MARKED_AT_ONCE) {
        let some = (first..asked.flows).take(MARKED_AT_ONCE).map(|number| flow(asked, number));
        let entries: Vec<_> = some.flat_map(|flow| flow.ends.keys().map(|key| (flow.identity.id, key))).collect();
        program.change_each(&entries, EntryChange::Commit)?;
    }
    let marked = now_ns() - began_ns;
    let (mut cursor, mut seen, mut count, mut longest) = (Cursor::default(), Vec::new(), 0, 0);
    let began_ns = now_ns();
    loop {
        let batch_ns = now_ns();
        seen.clear();
        let more = program.scan(&mut cursor, SCAN, &mut seen)?;
        longest = longest.max(now_ns() - batch_ns);
        count += seen.len();
        if !more {
            break;
        }
    }
    let scanned = now_ns() - began_ns;
    Ok(json!({
        "entries": count,
        "entered_us_each": entered as f64 / 1e3 / f64::from(asked.flows),
        "marked_us_each": marked as f64 / 1e3 / f64::from(asked.flows),
        "scan_s": scanned as f64 / 1e9,
        "scan_batch": SCAN,
        "scan_longest_ms": Duration::from_nanos(longest).as_secs_f64() * 1e3,
    }))
}

const MARKED_AT_ONCE: usize = 4096;
const SCAN: usize = 4096;

/// Clients and source ports are as many as need be; the backends take turns.
fn flow(asked: &Entries, number: u32) -> Splice {
    let at = |net: u8| {
        let [_, high, middle, port] = number.to_be_bytes();
        SocketAddr::new(Ipv4Addr::new(10, net, high, middle).into(), 20_000 + u16::from(port))
    };
    let (name, address) = &asked.backends[number as usize % asked.backends.len()];
    let start = Start { egress: Egress::Interface(2), bytes_before: 1000, position: 1 };
    Splice {
        ends: Ends {
            client: ClientAddr::new(at(200)),
            vip: VipAddr::new(asked.vip),
            local: LocalAddr::new(at(201)),
            backend: BackendAddr::new(*address),
        },
        terms: Terms::default(),
        identity: Identity {
            id: FlowId(u64::from(number) + 1),
            accepted_at_ns: now_ns(),
            connect_us: 100,
            backend_key: hash_name(&asked.frontend, name),
        },
        up: start,
        down: start,
        backend_slot: 0,
    }
}
