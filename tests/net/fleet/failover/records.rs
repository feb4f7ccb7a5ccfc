//! What stands in the maps of two instances while flows are offloaded at one of them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ::baton::model::ids::FlowId;
use ::baton::offload::entry::{Action, ENTRY_SIZE, Entry, KEY_SIZE, Key};
use ::baton::sys::bpf::Map;

use super::*;

const FLOWS: u64 = 60;

/// A record that takes longer was not sent at once. On a busy machine most of this time is the machine's; benches/peers
/// measures Baton's part.
const AT_MOST: std::time::Duration = secs(5);

/// Flows in a map of which both entries are `wanted`: their four addresses.
fn flows(map: &Map, wanted: impl Fn(&Entry) -> bool) -> HashMap<FlowId, Vec<SocketAddr>> {
    let room = map.max_entries() as usize;
    let (mut keys, mut values) = (vec![0; room * KEY_SIZE], vec![0; room * ENTRY_SIZE]);
    let (count, _) = map.look_up_batch(None, &mut keys, &mut values).unwrap();
    let keys = keys.as_chunks::<KEY_SIZE>().0.iter().take(count).map(Key::decode);
    let entries = keys.zip(values.as_chunks::<ENTRY_SIZE>().0.iter().map(Entry::decode));
    let mut found: HashMap<_, Vec<_>> = HashMap::new();
    for (key, entry) in entries.filter(|(_, entry)| entry.action == Action::Splice && wanted(entry)) {
        found.entry(entry.id).or_default().extend([key.from, key.to]);
    }
    found.retain(|_, ends| ends.len() == 4);
    found
}

/// As /proc/net/tcp writes it.
fn in_proc(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED),
    };
    format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port())
}

#[test]
fn the_record_of_a_flow_reaches_a_peer_once_its_owner_has_closed_its_sockets_and_no_sooner() {
    let test = "the_record_of_a_flow_reaches_a_peer_once_its_owner_has_closed_its_sockets_and_no_sooner";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config).map(Fleet::with_owner) else { return };
    let [at_owner, at_peer] = [0, 1].map(|number| Map::open(&fleet.pinned[number].directory.join("flows")).unwrap());
    let (mut whole_at, mut held_at) = (HashMap::new(), HashMap::new());
    let mut under_way = HashSet::new();
    let watch = Stopwatch::start();
    let conns = std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let one = |_| {
                let mut conn = fleet.scene.lab.client.connect(fleet.vip);
                (0..5).for_each(|round| conn.echo(round, 200));
                conn
            };
            (0..FLOWS).map(one).collect::<Vec<_>>()
        });
        eventually(secs(30), "the peer has all", || {
            // In this order, so that a record that comes before its offload is noticed.
            let held = flows(&at_peer, |entry| entry.held);
            let sockets = fleet.owner().host.tcp_sockets();
            let looked_at = watch.elapsed();
            for ends in held.values() {
                for (local, remote) in [(ends[1], ends[0]), (ends[3], ends[2])] {
                    let socket = format!("{} {} ", in_proc(local), in_proc(remote));
                    let left = sockets.iter().find(|it| it.starts_with(&socket));
                    assert_eq!(left, None, "its peer has the record of a flow that still has a socket");
                }
            }
            let entered = flows(&at_owner, |entry| !entry.held);
            let whole = flows(&at_owner, |entry| entry.committed && !entry.held);
            under_way.extend(entered.into_keys().filter(|id| !whole.contains_key(id)));
            for id in whole.into_keys() {
                whole_at.entry(id).or_insert(looked_at);
            }
            for id in held.into_keys() {
                held_at.entry(id).or_insert(looked_at);
            }
            whole_at.keys().filter(|id| held_at.contains_key(id)).count() as u64 >= FLOWS
        });
        clients.join().unwrap()
    });
    let took = |id| held_at.get(id).map(|held: &std::time::Duration| held.saturating_sub(whole_at[id]));
    let longest = whole_at.keys().filter_map(took).max().unwrap();
    println!("the last record came {longest:?} after its flow was whole; {} were seen half-way", under_way.len());
    assert!(longest < AT_MOST, "{longest:?}");
    assert_eq!(conns.len() as u64, FLOWS);
}
