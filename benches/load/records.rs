//! How soon the map of another instance holds an offloaded flow, read from the two maps themselves.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton::model::ids::FlowId;
use baton::offload::entry::{Action, ENTRY_SIZE, Entry, KEY_SIZE};
use baton::sys::bpf::Map;
use baton::sys::clock::now_ns;
use serde_json::{Value, json};

#[derive(clap::Args)]
pub struct Records {
    /// Where the instance pins that flows are offloaded at.
    #[arg(long)]
    owner: PathBuf,
    /// Where the one pins that is told of them.
    #[arg(long)]
    peer: PathBuf,
    /// Flows that are waited for.
    #[arg(long)]
    flows: usize,
    /// At most so long, in s.
    #[arg(long)]
    within: f64,
}

/// Between two looks at both maps.
const PAUSE: Duration = Duration::from_micros(100);

/// When a flow came so far.
#[derive(Default)]
struct Times {
    /// Its sockets are closed: both entries at the owner are marked. At the earliest.
    whole_ns: Option<u64>,
    /// Both entries at the peer are another instance's. At the latest.
    held_ns: Option<u64>,
}

/// Looks at both maps in turns until all flows have come, then prints the time of each. The printed time is at most too
/// long by a look at each map and a pause.
pub fn run(asked: &Records) -> io::Result<Value> {
    let [mut owner, mut peer] = [View::open(&asked.owner)?, View::open(&asked.peer)?];
    let mut flows: HashMap<FlowId, Times> = HashMap::new();
    let until_ns = now_ns() + (asked.within * 1e9) as u64;
    let (mut done, mut looks, mut early) = (0, 0, 0);
    let began_ns = now_ns();
    while done < asked.flows {
        if now_ns() > until_ns {
            return Err(io::Error::other(format!("{done} flows of {} have come", asked.flows)));
        }
        // The peer first: a flow that is there must be complete at the owner afterwards.
        let held = peer.look(|entry| entry.held)?;
        let whole = owner.look(|entry| entry.committed && !entry.held)?;
        early += held.difference(&whole).filter(|id| flows.get(id).is_none_or(|times| times.held_ns.is_none())).count();
        for id in held {
            flows.entry(id).or_default().held_ns.get_or_insert(peer.ended_ns);
        }
        for id in whole {
            flows.entry(id).or_default().whole_ns.get_or_insert(owner.before_ns);
        }
        done = flows.values().filter(|times| times.whole_ns.is_some() && times.held_ns.is_some()).count();
        looks += 1;
        std::thread::sleep(PAUSE);
    }
    let between_ms = (now_ns() - began_ns) as f64 / 1e6 / f64::from(looks);
    let took = flows.values().filter_map(|times| Some(times.held_ns?.saturating_sub(times.whole_ns?) as f64 / 1e6));
    Ok(json!({ "took_ms": took.collect::<Vec<_>>(), "early": early, "between_looks_ms": between_ms }))
}

/// One map of flows.
struct View {
    map: Map,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// When the look before the last one began, the last one began, and ended.
    before_ns: u64,
    began_ns: u64,
    ended_ns: u64,
}

impl View {
    fn open(pins: &Path) -> io::Result<Self> {
        let map = Map::open(&pins.join("flows"))?;
        let room = map.max_entries() as usize;
        let (keys, values) = (vec![0; room * KEY_SIZE], vec![0; room * ENTRY_SIZE]);
        let now_ns = now_ns();
        Ok(Self { map, keys, values, before_ns: now_ns, began_ns: now_ns, ended_ns: now_ns })
    }

    /// Flows of which both entries are spliced, and as `wanted`.
    fn look(&mut self, wanted: impl Fn(&Entry) -> bool) -> io::Result<HashSet<FlowId>> {
        (self.before_ns, self.began_ns) = (self.began_ns, now_ns());
        let (count, _) = self.map.look_up_batch(None, &mut self.keys, &mut self.values)?;
        self.ended_ns = now_ns();
        let entries = self.values.as_chunks::<ENTRY_SIZE>().0.iter().take(count).map(Entry::decode);
        let (mut one, mut both) = (HashSet::new(), HashSet::new());
        for entry in entries.filter(|entry| entry.action == Action::Splice && wanted(entry)) {
            if !one.insert(entry.id) {
                both.insert(entry.id);
            }
        }
        Ok(both)
    }
}
