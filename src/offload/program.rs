//! The loaded program: one thread opens and uses it, and it outlives the process.

mod dismiss;
mod error;
mod flow_map;
mod installed;
mod links;
mod load;
mod pins;
mod reading;
mod status;
mod unknown;

pub(crate) use dismiss::dismiss;
pub use error::{InstallError, OpenError};
pub(crate) use installed::{InstalledFacts, InstalledProgram};
pub use links::Attachment;
pub(crate) use load::try_out;
pub(crate) use reading::Unread;
pub use status::{AttachedLink, ProgramStatus, Removal, remove, status};
pub use unknown::Owner;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::pins::LAYOUT;
use self::pins::{PinnedObjects, Pins};
use self::reading::FailedReads;
use super::counters::Counters;
use super::entry::{Action, ENTRY_SIZE, Ends, Entry, KEY_SIZE, Key, RawEntry, Splice};
use super::events::ProgramEvents;
use super::moved::Moved;
use super::probe::{self, EntryChange};
use super::settings::OffloadSettings;
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::fleet::{PortRange, Unknown};
use crate::model::ids::FlowId;
use crate::model::splice::{FlowDirection, LegState};
use crate::sys::bpf::{self, Map, Update};
use crate::sys::netdev;

/// The program on its interfaces, with its maps. Dropping it detaches nothing.
#[derive(Debug)]
pub struct Program {
    pins: Pins,
    attachment: Attachment,
    interfaces: Vec<String>,
    /// Indices of the interfaces.
    attached: Vec<u32>,
    #[allow(dead_code, reason = "for tests of the program")]
    origin: ProgramOrigin,
    flows: Map,
    counters: Map,
    backends: Map,
    notes: Map,
    services: Map,
    port_ranges: Map,
    foreign: Map,
    probe: OwnedFd,
    amend: OwnedFd,
    failed: FailedReads,
    objects: PinnedObjects,
    /// Interfaces and the programs before this one of which the log tells.
    ahead: Vec<(String, u32)>,
    /// What was repaired since the last [`Program::fix`].
    fixed: FixedProgram,
}

/// What [`Program::fix`] has repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FixedProgram {
    /// The program was attached to these again.
    pub interfaces: Vec<String>,
    /// Somebody had removed pins.
    pub unpinned: bool,
}

/// Where the program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramOrigin {
    /// Nothing was pinned.
    Fresh,
    /// It was pinned, with the flows in it.
    Recovered,
    /// As `Recovered`, but the program was another version's, and Baton replaced it from one packet to the next.
    Replaced,
}

/// A connected socket of this host, by its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegAddresses {
    local: SocketAddr,
    remote: SocketAddr,
}

/// Both entries of a removed flow, with their last counters. `None`: there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub up: Option<Entry>,
    pub down: Option<Entry>,
}

/// The position of a scan, and its buffers.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// The kernel's mark; `None`: at the beginning.
    mark: Option<u32>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

/// Whether a backend answers, over all its offloaded flows. Nanoseconds on the monotonic clock, exact to a tick of the
/// kernel (1 to 10 ms); 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The first packet since the backend's last one that demands an answer (data, FIN, a probe).
    pub asked_ns: u64,
    /// The backend's last packet, which its kernel may have sent by itself.
    pub answered_ns: u64,
    /// The backend's last packet with new bytes, which only its process sends.
    pub spoke_ns: u64,
    /// The first packet with bytes for the backend since the last one that acknowledged new bytes.
    pub given_ns: u64,
    /// The backend's last packet that acknowledged new bytes.
    pub taken_ns: u64,
}

/// `struct evidence` of bpf/entry.h.
const EVIDENCE_BYTES: usize = 40;

/// Data that user space keeps of a flow, in its own layout.
pub(crate) type UserNote = [u8; 32];

/// Limit for port ranges: each instance's, and the ports of peers' frontends. As in bpf/entry.h.
pub(crate) const PORT_RANGES: u32 = 16;

/// Limit for backends with evidence: slots are below.
pub(crate) const BACKEND_SLOTS: u16 = 4096;

impl Program {
    /// Loads the program, or recovers the pinned one, and attaches it to its interfaces in this thread's network
    /// namespace. The flows of a recovered program go on all the while.
    #[allow(dead_code, reason = "for tests of the program")]
    pub fn open(settings: &OffloadSettings) -> Result<Self, OpenError> {
        Self::open_by(settings, Attachment::of_kernel())
    }

    /// As [`Self::open`], attached in this way. What is attached in the other way is attached in this one.
    #[allow(dead_code, reason = "for tests of the program")]
    pub fn open_by(settings: &OffloadSettings, attachment: Attachment) -> Result<Self, OpenError> {
        Self::of(&settings.directory, InstalledProgram::install(settings, attachment)?)
    }

    /// Opens the program that was installed in `directory`, maybe by another process.
    pub(crate) fn of(directory: &Path, installed: InstalledProgram) -> Result<Self, OpenError> {
        let pins = Pins::at(directory);
        let InstalledProgram { facts: InstalledFacts { origin, attachment, interfaces }, tools: [probe, amend] } =
            installed;
        Ok(Self {
            flows: pins.map("flows")?,
            counters: pins.map("counters")?,
            backends: pins.map("backends")?,
            notes: pins.map("notes")?,
            services: pins.map("services")?,
            port_ranges: pins.map("port_ranges")?,
            foreign: pins.map("foreign")?,
            attached: links::indices(&pins, &interfaces)?,
            attachment,
            interfaces,
            origin,
            probe,
            amend,
            failed: FailedReads::default(),
            objects: pins.objects()?,
            ahead: Vec::new(),
            fixed: FixedProgram::default(),
            pins,
        })
    }

    #[allow(dead_code, reason = "for tests of the program")]
    pub fn origin(&self) -> ProgramOrigin {
        self.origin
    }

    /// How it is attached to its interfaces.
    pub(crate) fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Attaches the program again where somebody detached it or made the interface anew, and pins it again; returns what it did. An
    /// interface that is gone is left out until it is back.
    pub fn fix(&mut self) -> Result<FixedProgram, OpenError> {
        self.repair()?;
        Ok(std::mem::take(&mut self.fixed))
    }

    fn repair(&mut self) -> Result<(), OpenError> {
        let fail = |source| OpenError::Directory { path: self.pins.directory().to_owned(), source };
        self.fixed.unpinned |= self.pins.restore(&self.objects).map_err(fail)?;
        let _lock = self.pins.lock()?;
        links::follow_names(&self.pins, &mut self.interfaces)?;
        let there: Vec<_> = self.interfaces.iter().filter(|name| netdev::interface(name).is_ok()).cloned().collect();
        // A program that another one detaches keeps its pin.
        let was_there = |name: &&String| netdev::interface(name).is_ok_and(|it| self.attached.contains(&it.index));
        let is_unpinned = |name: &String| matches!(links::state(&self.pins, name), Ok(None));
        self.fixed.unpinned |= there.iter().filter(was_there).any(is_unpinned);
        let attached = links::ensure(&self.pins, &there, self.attachment)?;
        self.fixed.interfaces.extend(attached);
        self.attached = links::indices(&self.pins, &there)?;
        // It is attached all the same.
        let _ = self.say_who_is_ahead(&there);
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Path {
        self.pins.directory()
    }

    /// To be the first again Baton's program would have to be away for a moment, and most programs that come before it pass all packets on.
    fn say_who_is_ahead(&mut self, interfaces: &[String]) -> io::Result<()> {
        let own = bpf::program_id(self.objects.program())?;
        for interface in interfaces {
            let Some(program) = links::ahead(&self.pins, interface, own)? else { continue };
            if !self.ahead.contains(&(interface.clone(), program)) {
                tracing::warn!(
                    interface,
                    program,
                    "another BPF program sees packets before Baton's; unless it returns TCX_NEXT for those of offloaded flows, their ends wait \
                     (bpftool net show)"
                );
                self.ahead.push((interface.clone(), program));
            }
        }
        Ok(())
    }

    /// Whether no interface runs it any more; then it counts as attached to none. A state that cannot be read says nothing.
    pub(crate) fn notice_loss(&mut self) -> bool {
        let is_away = |name: &String| match links::state(&self.pins, name) {
            Ok(None) => true,
            Ok(Some(at)) => at.ifindex == 0,
            Err(_) => false,
        };
        let is_lost = self.interfaces.iter().all(is_away);
        if is_lost {
            self.attached.clear();
        }
        is_lost
    }

    /// Attaches the program to one more interface.
    pub fn attach(&mut self, index: u32) -> Result<(), OpenError> {
        if self.attached.contains(&index) {
            return Ok(());
        }
        let name = interface_name(index)?;
        if !self.interfaces.contains(&name) {
            self.interfaces.push(name.clone());
        }
        let failed = self.repair().err();
        self.fixed.interfaces.retain(|other| *other != name);
        if let Some(error) = failed {
            self.interfaces.retain(|other| *other != name);
            return Err(error);
        }
        Ok(())
    }

    /// Detaches the program from one interface.
    pub fn detach(&mut self, index: u32) -> Result<(), OpenError> {
        let name = interface_name(index)?;
        self.interfaces.retain(|other| *other != name);
        self.repair()
    }

    /// Indices of the interfaces that it was attached to at the last `open` or `fix`.
    pub fn attached(&self) -> &[u32] {
        &self.attached
    }

    /// The source of events. Only one may be open: two would each get a part of the events.
    pub fn events(&self) -> io::Result<ProgramEvents> {
        ProgramEvents::open(&self.pins.path("events"))
    }

    /// Keeps a note beside a flow's entries, and as long as these.
    pub(crate) fn keep_note(&self, flow: FlowId, note: &UserNote) -> io::Result<()> {
        self.notes.update(&flow.0.to_ne_bytes(), note, Update::Any)
    }

    pub(crate) fn drop_note(&self, flow: FlowId) -> io::Result<bool> {
        self.notes.delete(&flow.0.to_ne_bytes())
    }

    /// Limit for flows in the map.
    pub fn flows_max(&self) -> u32 {
        self.flows.max_entries() / 2
    }

    /// The kernel's state of each leg; `None`: there is no such socket in this thread's network namespace.
    pub fn probe(&self, legs: &[LegAddresses]) -> io::Result<Vec<Option<LegState>>> {
        let keys: Vec<_> = legs.iter().map(|leg| Key { from: leg.remote, to: leg.local }).collect();
        probe::probe(&self.probe, &keys)
    }

    /// Enters both directions, or neither. It never evicts or replaces an entry.
    #[allow(dead_code, reason = "for tests of the program")]
    pub fn install(&self, flow: &Splice) -> Result<(), InstallError> {
        self.enter(flow, FlowDirection::ToClient)?;
        self.enter(flow, FlowDirection::ToBackend).inspect_err(|_| {
            // This call entered it a moment ago; if it is gone already, nothing is left to do.
            let _ = self.flows.delete(&flow.ends.key(FlowDirection::ToClient).encode());
        })
    }

    /// Enters witness entries, which show the addresses of the flow's packets on the wire while it still has sockets:
    /// both directions or neither. They overwrite what an earlier process left for the same ends.
    /// `to_here`: the backend is on this host.
    pub fn witness(&self, id: FlowId, ends: &Ends, to_here: bool) -> Result<(), InstallError> {
        let enter = |direction| {
            let (key, raw) = (ends.key(direction).encode(), Entry::witness(id, ends, direction, to_here).encode());
            match self.flows.update(&key, &raw, Update::OnlyNew).map_err(InstallError::from) {
                Err(InstallError::Exists) => match self.entry(&ends.key(direction))? {
                    Some(there) if there.action == Action::Witness => Ok(self.flows.update(&key, &raw, Update::Any)?),
                    _ => Err(InstallError::Exists),
                },
                result => result,
            }
        };
        enter(FlowDirection::ToClient)?;
        enter(FlowDirection::ToBackend).inspect_err(|_| {
            let _ = self.flows.delete(&ends.key(FlowDirection::ToClient).encode());
        })
    }

    /// As [`Program::install`], in place of the flow's own witnesses.
    pub fn install_over(&self, flow: &Splice) -> io::Result<()> {
        for direction in [FlowDirection::ToClient, FlowDirection::ToBackend] {
            let raw = flow.entry(direction).encode();
            if let Err(error) = self.flows.update(&flow.ends.key(direction).encode(), &raw, Update::Any) {
                let _ = self.remove(&flow.ends);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the flow's witnesses, if the entries at its keys still are these.
    pub(crate) fn withdraw(&self, id: FlowId, ends: &Ends) -> Result<(), Unread> {
        for key in ends.keys() {
            if self.entry(&key)?.is_some_and(|entry| entry.is_witness_of(id)) {
                self.take_out(&key)?;
            }
        }
        Ok(())
    }

    /// Changes a flow's entries in place; returns how many there were. Another flow's entries at these keys stay as
    /// they are.
    pub fn change(&self, id: FlowId, keys: &[Key], change: EntryChange) -> io::Result<usize> {
        let entries: Vec<_> = keys.iter().map(|key| (id, *key)).collect();
        self.change_each(&entries, change)
    }

    /// As [`Self::change`], for entries of several flows.
    pub fn change_each(&self, entries: &[(FlowId, Key)], change: EntryChange) -> io::Result<usize> {
        probe::amend(&self.amend, entries, change)
    }

    /// Has the program report the next segments outside the windows of the entries at these keys, whichever flows these
    /// belong to.
    pub fn hear(&self, keys: &[Key]) -> io::Result<usize> {
        self.change(FlowId(0), keys, EntryChange::Hear)
    }

    /// Removes both directions; returns their last counters.
    pub fn remove(&self, flow: &Ends) -> Result<Removed, Unread> {
        let up = self.take_out(&flow.key(FlowDirection::ToBackend))?;
        let down = self.take_out(&flow.key(FlowDirection::ToClient))?;
        Ok(Removed { up, down })
    }

    /// Adds up to `most` entries (at least 256) to `out`. Returns false once it has seen all; then the cursor starts
    /// again. It may miss entries that come or go meanwhile, or see them twice.
    pub fn scan(&self, cursor: &mut Cursor, most: usize, out: &mut Vec<(Key, Entry)>) -> io::Result<bool> {
        scan(&self.flows, cursor, most, out).inspect_err(|error| {
            self.failed.note(error);
        })
    }

    pub fn counters(&self) -> io::Result<Counters> {
        Counters::read(&self.counters)
    }

    /// The marks of flows with new packets. Only one may be open.
    pub fn moved(&self) -> io::Result<Moved> {
        Moved::open(&self.pins.map("moved")?)
    }

    /// The evidence of the backend in `slot`, which is below [`BACKEND_SLOTS`].
    pub fn evidence(&self, slot: u16) -> io::Result<Evidence> {
        let mut raw = [0; EVIDENCE_BYTES];
        self.backends.look_up(&u32::from(slot).to_ne_bytes(), &mut raw)?;
        let word = |at: usize| u64::from_ne_bytes(raw[at..][..8].try_into().expect("eight bytes"));
        Ok(Evidence {
            asked_ns: word(0),
            answered_ns: word(8),
            spoke_ns: word(16),
            given_ns: word(24),
            taken_ns: word(32),
        })
    }

    /// Clears the evidence of a slot, for the next backend that gets it.
    pub(crate) fn forget_evidence(&self, slot: u16) -> io::Result<()> {
        self.backends.update(&u32::from(slot).to_ne_bytes(), &[0; EVIDENCE_BYTES], Update::Any)
    }

    /// Sets the rule for packets to `vip` that match no entry and no socket. Port 0: for all ports in port ranges
    /// without a rule of their own. `None`: they pass to the kernel, as those to all other ports do.
    pub fn set_unknown(&self, vip: VipAddr, unknown: Option<Unknown>) -> io::Result<()> {
        unknown::set(&self.pins, vip, unknown)
    }

    /// Lets the program report further packets to `vip`, whose rule is `unknown`: it reports a limited number between
    /// two calls.
    pub fn refill_asks(&self, vip: VipAddr, unknown: &Unknown) -> io::Result<()> {
        unknown::refill(&self.services, vip, unknown)
    }

    /// Has unknown packets to these ports sent to their owners. A range without an owner belongs to this instance, or
    /// to a dead one. At most [`PORT_RANGES`].
    pub fn set_port_ranges(&self, port_ranges: &[(PortRange, Vec<Owner>)]) -> io::Result<()> {
        let raw = port_ranges.iter().map(|(ports, owners)| unknown::port_range(*ports, owners));
        let all = raw.chain(std::iter::repeat([0; unknown::PORT_RANGE_SIZE]));
        let mut indices = 0..PORT_RANGES;
        all.zip(&mut indices)
            .try_for_each(|(raw, index)| self.port_ranges.update(&index.to_ne_bytes(), &raw, Update::Any))
    }

    /// Lets packets of `key` pass to the kernel until then, ns on the monotonic clock: its port is in a port range, but
    /// another program uses it.
    pub fn leave_alone(&self, key: &Key, until_ns: u64) -> io::Result<()> {
        self.foreign.update(&key.encode(), &unknown::foreign(until_ns), Update::Any)
    }

    /// Sends packets of `key` to the instance with their flow, and replaces what was entered for them before. `except_syn`:
    /// no record names a flow there, and a SYN passes to the kernel.
    pub fn forward(&self, key: &Key, owner: &Owner, except_syn: bool) -> Result<(), InstallError> {
        Ok(self.flows.update(&key.encode(), &unknown::forwarding(owner, except_syn), Update::Any)?)
    }

    /// Answers packets of `key` with RST, except a SYN, which begins another connection, and replaces what was entered for them before. RSTs
    /// go on to the instance that they were forwarded to.
    pub fn refuse(&self, key: &Key) -> Result<(), InstallError> {
        let mut before = [0; ENTRY_SIZE];
        let is_there = self.flows.look_up(&key.encode(), &mut before).map_err(|error| self.failed.note(&error))?;
        let raw = unknown::refusing(key, is_there.then_some(&before));
        Ok(self.flows.update(&key.encode(), &raw, Update::Any)?)
    }

    /// Enters one direction of another instance's flow, and replaces what was entered for its packets before.
    pub(crate) fn hold(&self, key: &Key, entry: &Entry) -> Result<(), InstallError> {
        Ok(self.flows.update(&key.encode(), &entry.encode(), Update::Any)?)
    }

    #[allow(dead_code, reason = "for tests of the program")]
    fn enter(&self, flow: &Splice, direction: FlowDirection) -> Result<(), InstallError> {
        let raw: RawEntry = flow.entry(direction).encode();
        Ok(self.flows.update(&flow.ends.key(direction).encode(), &raw, Update::OnlyNew)?)
    }
}

fn interface_name(index: u32) -> Result<String, OpenError> {
    netdev::name(index).map_err(|source| OpenError::Interface { interface: format!("number {index}"), source })
}

impl LegAddresses {
    /// The accepted socket.
    pub fn client(client: ClientAddr, vip: VipAddr) -> Self {
        Self { local: vip.socket_addr(), remote: client.socket_addr() }
    }

    /// The connected socket.
    pub fn backend(local: LocalAddr, backend: BackendAddr) -> Self {
        Self { local: local.socket_addr(), remote: backend.socket_addr() }
    }
}

/// As [`Program::scan`].
fn scan(flows: &Map, cursor: &mut Cursor, most: usize, out: &mut Vec<(Key, Entry)>) -> io::Result<bool> {
    let room = most.max(SCAN_MIN);
    cursor.keys.resize(room * KEY_SIZE, 0);
    cursor.values.resize(room * ENTRY_SIZE, 0);
    let (count, mark) = flows.look_up_batch(cursor.mark, &mut cursor.keys, &mut cursor.values)?;
    cursor.mark = mark;
    let keys = cursor.keys.as_chunks::<KEY_SIZE>().0;
    let values = cursor.values.as_chunks::<ENTRY_SIZE>().0;
    out.extend(keys.iter().zip(values).take(count).map(|(key, value)| (Key::decode(key), Entry::decode(value))));
    Ok(mark.is_some())
}

/// Far more than one bucket of the hash table ever holds, so that every call of a scan makes progress.
const SCAN_MIN: usize = 256;
