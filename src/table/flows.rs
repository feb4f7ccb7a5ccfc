//! The flow table: every flow from accept to end.
//!
//! Each worker owns a shard: rows of slots that grow and are reused but never freed while the table exists. Insert and
//! remove change only the owner's free list and one slot; readers walk all shards and block nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

use serde::{Deserialize, Serialize};

use super::slot::{Copied, IDENTITY_WORDS, LIVE_WORDS, Slot};
use crate::addr::{ClientAddr, VipAddr};
pub use crate::model::flow::{FlowKey, FlowOrigin, Ticket};
use crate::model::ids::{BackendId, FlowId, FrontendId};
use crate::model::leg::LegKey;
use crate::model::stays::Stays;

const ROW: usize = 1024;
/// Rows of one shard: four million flows.
const ROWS: usize = 4096;
/// Workers take ids in blocks, so that accepting touches no shared cache line.
const ID_BLOCK: u64 = 1024;

/// The blocks of ids that a process gives out. During an upgrade each of the two processes gives out every other block,
/// so that no id is given twice, and few are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum IdShare {
    All,
    Even,
    Odd,
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Its PROXY header has not come yet.
    Accepted,
    /// A backend is being connected.
    Connecting,
    /// Both legs are established.
    Proxied,
    /// Both legs are established, and the BPF program carries its packets.
    Offloaded,
}

impl FlowState {
    pub(crate) const ALL: [FlowState; 4] = [Self::Accepted, Self::Connecting, Self::Proxied, Self::Offloaded];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Connecting => "connecting",
            Self::Proxied => "proxied",
            Self::Offloaded => "offloaded",
        }
    }

    /// Both legs are established.
    pub(crate) fn is_served(self) -> bool {
        matches!(self, Self::Proxied | Self::Offloaded)
    }
}

/// A counter or state word of a flow; the owner sets it, all others may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Field {
    /// [`FlowPlace`], packed.
    Place,
    /// Bytes from client to backend.
    BytesToBackend,
    /// Bytes from backend to client.
    BytesToClient,
    /// Monotonic ns of the last byte from the client.
    LastToBackendNs,
    /// Monotonic ns of the last byte from the backend.
    LastToClientNs,
    /// Duration of the connect, in µs.
    ConnectUs,
    /// Baton's end of the backend leg, as [`LegKey`]; 0 until the flow is a moment old.
    LocalEnd,
    /// Why the last try to offload it failed; see [`Stays::pack`].
    Stays,
}

/// A copy of one flow's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowView {
    pub id: FlowId,
    pub origin: FlowOrigin,
    pub worker: usize,
    pub key: FlowKey,
    pub state: FlowState,
    /// Whether it has an order to end, and waits for its time.
    pub ending: bool,
    /// Whether it is offloaded and ends with this host all the same, because its backend is here.
    pub stays_here: bool,
    /// `None` until one is picked.
    pub backend: Option<BackendId>,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub last_to_backend_ns: u64,
    pub last_to_client_ns: u64,
    pub connect_us: u64,
    /// Baton's end of the backend leg.
    pub leg: LegKey,
    /// Why the last try to offload it failed.
    pub stays: Option<Stays>,
}

impl FlowView {
    pub fn ticket(&self) -> Ticket {
        Ticket { worker: self.worker, key: self.key, id: self.id }
    }

    /// Monotonic ns of the last byte in either direction, or of the accept.
    pub fn last_byte_ns(&self) -> u64 {
        self.last_to_backend_ns.max(self.last_to_client_ns).max(self.origin.accepted_at_ns)
    }
}

/// All flows of an instance.
#[derive(Debug)]
pub struct FlowTable {
    shards: Box<[Shard]>,
    /// The beginning of the next block of ids.
    next_id: AtomicU64,
    /// No id below this one is given out any more, not even from a block that was begun.
    floor: AtomicU64,
    /// An [`IdShare`].
    share: AtomicU8,
    /// Part of every id that this instance gives out.
    tag: AtomicU16,
}

#[derive(Debug)]
struct Shard {
    rows: Box<[OnceLock<Box<[Slot]>>]>,
    live: AtomicU32,
}

/// The owner's end of one shard. Exactly one may exist per worker.
#[derive(Debug)]
pub struct ShardWriter {
    worker: usize,
    free: Vec<u32>,
    grown: u32,
    ids: std::ops::Range<u64>,
}

impl FlowTable {
    pub fn new(workers: usize) -> Self {
        let shard = || Shard { rows: (0..ROWS).map(|_| OnceLock::new()).collect(), live: AtomicU32::new(0) };
        let shards = (0..workers).map(|_| shard()).collect();
        Self {
            shards,
            next_id: AtomicU64::new(1),
            floor: AtomicU64::new(0),
            share: AtomicU8::new(IdShare::All as u8),
            tag: AtomicU16::new(0),
        }
    }

    /// The writer of `worker`'s shard. Call it once per worker.
    pub fn writer(&self, worker: usize) -> ShardWriter {
        assert!(worker < self.shards.len(), "there is no worker {worker}");
        ShardWriter { worker, free: Vec::new(), grown: 0, ids: 0..0 }
    }

    /// The first id that was not given out yet.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.load(SeqCst)
    }

    /// The upper 16 bits of every id from now on: they identify this instance among its peers.
    pub(crate) fn set_tag(&self, tag: u16) {
        self.tag.store(tag, Relaxed);
    }

    pub(crate) fn tag(&self) -> u16 {
        self.tag.load(Relaxed)
    }

    /// From now on gives out no id below `first`: those belong to another process.
    pub(crate) fn begin_ids_at(&self, first: u64) {
        let blocks = first.saturating_sub(1).div_ceil(ID_BLOCK);
        self.next_id.fetch_max(1 + blocks * ID_BLOCK, SeqCst);
    }

    /// As [`FlowTable::begin_ids_at`], for ids that other instances hold and this one has forgotten: workers also drop
    /// the rest of blocks that they began below it.
    pub(crate) fn keep_ids_above(&self, highest: u64) {
        if self.floor.load(Relaxed) <= highest && self.floor.fetch_max(highest + 1, SeqCst) <= highest {
            self.begin_ids_at(highest + 1);
        }
    }

    /// Gives out only ids of `share`, beginning at [`FlowTable::next_id`], which must be read after this call.
    pub(crate) fn share_ids(&self, share: IdShare) {
        self.share.store(share as u8, SeqCst);
    }

    /// A worker that takes a block after `next_id` was read sees the share that was set before: all accesses are
    /// SeqCst.
    fn take_block(&self) -> std::ops::Range<u64> {
        loop {
            let first = self.next_id.fetch_add(ID_BLOCK, SeqCst);
            let is_even = (first / ID_BLOCK).is_multiple_of(2);
            let share = self.share.load(SeqCst);
            if share == IdShare::All as u8 || is_even == (share == IdShare::Even as u8) {
                return first..first + ID_BLOCK;
            }
        }
    }

    /// An id for a flow of another process or instance that cannot keep its own.
    pub(crate) fn single_id(&self) -> FlowId {
        FlowId::of(self.tag(), self.take_block().start)
    }

    /// Present number of flows.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.live.load(Relaxed) as usize).sum()
    }

    #[allow(dead_code, reason = "clippy asks for it beside len()")]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every flow that exists during the whole walk, once; flows that begin or end meanwhile may be missing.
    pub fn iter(&self) -> impl Iterator<Item = FlowView> + '_ {
        self.shards.iter().enumerate().flat_map(|(worker, shard)| {
            shard
                .rows
                .iter()
                .map_while(|row| row.get())
                .flat_map(|row| row.iter())
                .enumerate()
                .filter_map(move |(index, slot)| Some(view(worker, FlowKey::new(index as u32), &slot.copy()?)))
        })
    }

    /// The flow `id`, if it exists.
    #[cfg(test)]
    pub(crate) fn find(&self, id: FlowId) -> Option<FlowView> {
        self.iter().find(|flow| flow.id == id)
    }

    /// Whether `flow` still exists; costs one look at its slot.
    pub(crate) fn lives(&self, flow: &FlowView) -> bool {
        let (row, place) = (flow.key.index() as usize / ROW, flow.key.index() as usize % ROW);
        let row = self.shards[flow.worker].rows[row].get();
        row.and_then(|row| row[place].copy()).is_some_and(|copied| copied.identity[0] == flow.id.0)
    }

    /// The id of the flow in the owner's slot for `key`.
    pub(crate) fn id_at(&self, writer: &ShardWriter, key: FlowKey) -> Option<FlowId> {
        self.slot(writer, key).copy().map(|copied| FlowId(copied.identity[0]))
    }

    /// The owner's slot for `key`.
    pub fn slot(&self, writer: &ShardWriter, key: FlowKey) -> &Slot {
        let (row, place) = (key.index() as usize / ROW, key.index() as usize % ROW);
        &self.shards[writer.worker].rows[row].get().expect("a key is made only after its row")[place]
    }
}

impl ShardWriter {
    /// Enters a flow, or returns `None` when the shard holds four million already.
    pub fn insert(&mut self, table: &FlowTable, origin: &FlowOrigin) -> Option<(FlowId, FlowKey)> {
        let index = self.take_index(table)?;
        let id = self.take_id(table);
        Some((id, self.occupy(table, index, id, origin)))
    }

    /// Enters a flow of another process under its own id, or returns `None` as [`ShardWriter::insert`] does.
    pub(crate) fn insert_known(&mut self, table: &FlowTable, id: FlowId, origin: &FlowOrigin) -> Option<FlowKey> {
        let index = self.take_index(table)?;
        Some(self.occupy(table, index, id, origin))
    }

    fn take_index(&mut self, table: &FlowTable) -> Option<u32> {
        match self.free.pop() {
            Some(index) => Some(index),
            None => self.grow(table),
        }
    }

    fn occupy(&mut self, table: &FlowTable, index: u32, id: FlowId, origin: &FlowOrigin) -> FlowKey {
        let key = FlowKey::new(index);
        table.slot(self, key).occupy(&identity(id, origin), &[0; LIVE_WORDS]);
        let live = &table.shards[self.worker].live;
        live.store(live.load(Relaxed) + 1, Relaxed);
        key
    }

    /// Gives a flow another origin: that of its PROXY header.
    pub(crate) fn rename(&mut self, table: &FlowTable, key: FlowKey, id: FlowId, origin: &FlowOrigin) {
        let slot = table.slot(self, key);
        let live = std::array::from_fn(|word| slot.word(word));
        slot.vacate();
        slot.occupy(&identity(id, origin), &live);
    }

    /// Removes a flow. The key is invalid afterwards.
    pub fn remove(&mut self, table: &FlowTable, key: FlowKey) {
        table.slot(self, key).vacate();
        self.free.push(key.index());
        let live = &table.shards[self.worker].live;
        live.store(live.load(Relaxed) - 1, Relaxed);
    }

    fn grow(&mut self, table: &FlowTable) -> Option<u32> {
        let first = self.grown;
        let row = table.shards[self.worker].rows.get(first as usize / ROW)?;
        row.get_or_init(|| (0..ROW).map(|_| Slot::default()).collect());
        self.grown += ROW as u32;
        // The lowest index is popped first, which keeps a small table in few pages.
        self.free.extend((first + 1..first + ROW as u32).rev());
        Some(first)
    }

    /// An id for a connection that never becomes a flow.
    pub(crate) fn take_id(&mut self, table: &FlowTable) -> FlowId {
        if self.ids.is_empty() || self.ids.start < table.floor.load(Relaxed) {
            self.ids = table.take_block();
        }
        FlowId::of(table.tag(), self.ids.next().expect("the block was just refilled"))
    }
}

/// The content of [`Field::Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPlace {
    pub state: FlowState,
    pub ending: bool,
    pub stays_here: bool,
    pub backend: Option<BackendId>,
}

impl FlowPlace {
    const ENDING: u64 = 0x80;
    const STAYS_HERE: u64 = 0x40;

    /// Of a flow without an order to end.
    pub fn new(state: FlowState, backend: Option<BackendId>) -> Self {
        Self { state, ending: false, stays_here: false, backend }
    }

    pub fn pack(self) -> u64 {
        let backend = self.backend.map_or(0, |id| u64::from(id.0) + 1);
        let ending = if self.ending { Self::ENDING } else { 0 };
        let stays_here = if self.stays_here { Self::STAYS_HERE } else { 0 };
        backend << 8 | ending | stays_here | self.state as u64
    }

    fn unpack(word: u64) -> Self {
        Self {
            state: FlowState::ALL[(word & 0x3f) as usize],
            ending: word & Self::ENDING != 0,
            stays_here: word & Self::STAYS_HERE != 0,
            backend: (word >> 8).checked_sub(1).map(|id| BackendId(id as u32)),
        }
    }
}

fn identity(id: FlowId, origin: &FlowOrigin) -> [u64; IDENTITY_WORDS] {
    let [client_high, client_low] = ip_words(origin.client.ip());
    let [vip_high, vip_low] = ip_words(origin.vip.ip());
    let ports = u64::from(origin.client.port()) << 16 | u64::from(origin.vip.port());
    let frontend = u64::from(origin.frontend.0);
    [id.0, origin.accepted_at_ns, client_high, client_low, vip_high, vip_low, ports, frontend]
}

fn view(worker: usize, key: FlowKey, copied: &Copied) -> FlowView {
    let [id, accepted_at_ns, client_high, client_low, vip_high, vip_low, ports, frontend] = copied.identity;
    let word = |field: Field| copied.live[field as usize];
    let FlowPlace { state, ending, stays_here, backend } = FlowPlace::unpack(word(Field::Place));
    let origin = FlowOrigin {
        accepted_at_ns,
        client: ClientAddr::new(SocketAddr::new(words_ip(client_high, client_low), (ports >> 16) as u16)),
        vip: VipAddr::new(SocketAddr::new(words_ip(vip_high, vip_low), ports as u16)),
        frontend: FrontendId(frontend as u32),
    };
    FlowView {
        id: FlowId(id),
        origin,
        worker,
        key,
        state,
        ending,
        stays_here,
        backend,
        bytes_to_backend: word(Field::BytesToBackend),
        bytes_to_client: word(Field::BytesToClient),
        last_to_backend_ns: word(Field::LastToBackendNs),
        last_to_client_ns: word(Field::LastToClientNs),
        connect_us: word(Field::ConnectUs),
        leg: LegKey(word(Field::LocalEnd)),
        stays: Stays::unpack(word(Field::Stays)),
    }
}

/// IPv4 travels as its mapped IPv6 form.
fn ip_words(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn words_ip(high: u64, low: u64) -> IpAddr {
    let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), |ip: Ipv4Addr| IpAddr::V4(ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn an_order_to_end_a_flow_does_not_hide_where_it_is() {
        for state in FlowState::ALL {
            for (ending, backend) in
                [(false, None), (true, None), (false, Some(BackendId(0))), (true, Some(BackendId(7)))]
            {
                let place = FlowPlace { state, ending, stays_here: !ending, backend };
                assert_eq!(FlowPlace::unpack(place.pack()), place);
            }
        }
    }

    fn origin(port: u16) -> FlowOrigin {
        FlowOrigin {
            accepted_at_ns: u64::from(port),
            client: ClientAddr::new(SocketAddr::new("2001:db8::5".parse().unwrap(), port)),
            vip: VipAddr::new("10.0.0.100:6443".parse().unwrap()),
            frontend: FrontendId(7),
        }
    }

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let table = FlowTable::new(2);
        let mut writer = table.writer(1);
        let (id, key) = writer.insert(&table, &origin(99)).unwrap();
        let slot = table.slot(&writer, key);
        slot.set(Field::Place as usize, FlowPlace::new(FlowState::Proxied, Some(BackendId(0))).pack());
        slot.add(Field::BytesToBackend as usize, 10);
        let seen = table.find(id).unwrap();
        assert_eq!(seen.origin, origin(99));
        assert_eq!((seen.worker, seen.state, seen.backend), (1, FlowState::Proxied, Some(BackendId(0))));
        assert_eq!(seen.bytes_to_backend, 10);
        writer.remove(&table, key);
        assert!(table.find(id).is_none() && table.is_empty());
    }

    #[test]
    fn two_processes_that_share_ids_give_none_twice_and_leave_hardly_one_out() {
        let (old, new) = (FlowTable::new(1), FlowTable::new(1));
        let (mut of_old, mut of_new) = (old.writer(0), new.writer(0));
        let mut given: Vec<_> = (0..1500).map(|_| of_old.take_id(&old)).collect();
        old.share_ids(IdShare::Even);
        new.begin_ids_at(old.next_id());
        new.share_ids(IdShare::Odd);
        for _ in 0..5000 {
            given.push(of_old.take_id(&old));
            given.push(of_new.take_id(&new));
        }
        new.begin_ids_at(old.next_id());
        new.share_ids(IdShare::All);
        given.extend((0..5000).map(|_| of_new.take_id(&new)));
        let highest = given.iter().max().unwrap().0;
        let count = given.len() as u64;
        assert_eq!(given.into_iter().collect::<std::collections::HashSet<_>>().len() as u64, count);
        assert!(highest < count + 4 * ID_BLOCK, "{highest} after {count} ids");
    }

    #[test]
    fn a_flow_from_another_process_keeps_its_id_and_no_other_flow_gets_it() {
        let table = FlowTable::new(1);
        table.begin_ids_at(5000);
        let mut writer = table.writer(0);
        writer.insert_known(&table, FlowId(4999), &origin(1)).unwrap();
        let (id, _) = writer.insert(&table, &origin(2)).unwrap();
        assert_eq!((id.0 >= 5000, table.len()), (true, 2));
        assert_eq!(table.find(FlowId(4999)).unwrap().origin, origin(1));
    }

    #[test]
    fn an_id_that_a_peer_holds_is_not_given_again_though_its_block_was_begun() {
        let table = FlowTable::new(2);
        let mut writers = [0, 1].map(|worker| table.writer(worker));
        for writer in &mut writers {
            writer.take_id(&table);
        }
        table.keep_ids_above(1500);
        table.keep_ids_above(700);
        let ids = writers.iter_mut().flat_map(|writer| [writer.take_id(&table).0, writer.take_id(&table).0]);
        assert_eq!(ids.collect::<Vec<_>>(), [2049, 2050, 3073, 3074]);
    }

    #[test]
    fn a_reused_slot_forgets_the_flow_before() {
        let table = FlowTable::new(1);
        let mut writer = table.writer(0);
        let (first, key) = writer.insert(&table, &origin(1)).unwrap();
        table.slot(&writer, key).add(Field::BytesToClient as usize, 5);
        writer.remove(&table, key);
        let (second, again) = writer.insert(&table, &origin(2)).unwrap();
        assert_eq!(key, again);
        assert_ne!(first, second);
        assert_eq!(table.find(second).unwrap().bytes_to_client, 0);
    }

    proptest::proptest! {
        /// Compared with a map, through growth and reuse: a walk sees exactly the flows that were inserted and not
        /// removed.
        #[test]
        fn a_walk_sees_exactly_the_live_flows(removals in proptest::collection::vec(0usize..4096, 0..3000)) {
            let table = FlowTable::new(1);
            let mut writer = table.writer(0);
            let mut expected = HashMap::new();
            let mut keys = Vec::new();
            for port in 0..2500u16 {
                let (id, key) = writer.insert(&table, &origin(port)).unwrap();
                expected.insert(id, port);
                keys.push((id, key));
            }
            for pick in removals {
                if keys.is_empty() { break; }
                let (id, key) = keys.swap_remove(pick % keys.len());
                writer.remove(&table, key);
                expected.remove(&id);
            }
            let seen: HashMap<_, _> = table.iter().map(|flow| (flow.id, flow.origin.client.port())).collect();
            assert_eq!(table.len(), expected.len());
            assert_eq!(seen, expected);
        }
    }
}
