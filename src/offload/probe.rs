//! Lists for the programs of `bpf/tools.c`, which user space runs directly: they read the kernel's state of sockets,
//! and change entries in place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::entry::{Key, RawKey};
use crate::model::ids::FlowId;
use crate::model::splice::{Ecn, LegState, SocketState, Timestamps};
use crate::sys::bpf::{self, Context};

/// A change of an entry in place, while packets go on passing: no counter is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// The sockets are closed.
    Commit,
    /// Packets leave through the interface with this index.
    Interface(u32),
    /// Packets go to a socket of this host.
    Local,
    /// The program answers every packet with RST.
    Reset,
    /// Packets pass to the kernel.
    #[allow(dead_code, reason = "for tests of the program")]
    Pass,
    /// Another instance owns the flow.
    Hold,
    /// This instance owns the flow.
    Own,
    /// The end has sent bytes up to this position that the program has not seen.
    Sent(u32),
    /// As `Sent`, and the last of it was a FIN.
    Fin(u32),
    /// The program must report the next segment outside the windows again, whichever flow the entry belongs to.
    Hear,
    /// The positions are as old as a peer's report may be: the program must take those of the next segment.
    Take,
    /// As `Take`, but only from a segment within the windows.
    TakeNear,
}

/// Asks for the socket of each key, which is the key of the packets that the socket receives.
pub(super) fn probe(program: &OwnedFd, keys: &[Key]) -> io::Result<Vec<Option<LegState>>> {
    let mut states = Vec::with_capacity(keys.len());
    for keys in keys.chunks(LEGS_MAX) {
        let mut list = vec![0; LIST + keys.len() * LEG_SIZE];
        for (key, leg) in keys.iter().zip(list[LIST..].chunks_mut(LEG_SIZE)) {
            leg[..KEY_SIZE].copy_from_slice(&key.encode());
        }
        let mut answers = vec![0; list.len()];
        run(program, &list, &mut answers, keys.len())?;
        let legs = keys.iter().zip(answers[LIST..].chunks(LEG_SIZE));
        states.extend(legs.map(|(key, leg)| decode(&leg[KEY_SIZE..], key.from.is_ipv6())));
    }
    Ok(states)
}

/// Changes these flows' entries at these keys; returns how many there were. An entry of another flow stays as it is.
pub(super) fn amend(program: &OwnedFd, entries: &[(FlowId, Key)], change: EntryChange) -> io::Result<usize> {
    let (operation, number) = match change {
        EntryChange::Commit => (1, 0),
        EntryChange::Interface(index) => (2, index),
        EntryChange::Local => (3, 0),
        EntryChange::Reset => (4, 0),
        EntryChange::Pass => (5, 0),
        EntryChange::Hold => (6, 0),
        EntryChange::Own => (7, 0),
        EntryChange::Sent(position) => (8, position),
        EntryChange::Fin(position) => (9, position),
        EntryChange::Hear => (10, 0),
        EntryChange::Take => (11, 0),
        EntryChange::TakeNear => (12, 0),
    };
    let mut found = 0;
    for entries in entries.chunks(CHANGES_MAX) {
        let mut list = vec![0; LIST];
        for (id, key) in entries {
            list.extend_from_slice(&key.encode());
            list.extend_from_slice(&id.0.to_ne_bytes());
            list.extend_from_slice(&u32::to_ne_bytes(operation));
            list.extend_from_slice(&number.to_ne_bytes());
        }
        let mut same = vec![0; list.len()];
        let verdict = bpf::test_run(program.as_fd(), &list, &mut same, Context::default(), 1)?.verdict;
        found += usize::try_from(verdict).map_err(|_| io::ErrorKind::InvalidData)?;
    }
    Ok(found)
}

/// Runs a program over a list; returns how many elements it processed.
fn run(program: &OwnedFd, list: &[u8], answers: &mut [u8], length: usize) -> io::Result<()> {
    let run = bpf::test_run(program.as_fd(), list, answers, Context::default(), 1)?;
    if run.verdict as usize == length { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// `struct leg` of `bpf/tools.c`, behind its key.
fn decode(leg: &[u8], ipv6: bool) -> Option<LegState> {
    let word = |index: usize| u32::from_ne_bytes(leg[index * 4..][..4].try_into().expect("four bytes"));
    let half = |at: usize| u16::from_ne_bytes(leg[at..][..2].try_into().expect("two bytes"));
    let state = match word(0) {
        0 => return None,
        TCP_ESTABLISHED => SocketState::Established,
        other => SocketState::Other(other as u8),
    };
    let per_second = word(14);
    let [peer_window_scale, own_window_scale, sack, ecn, out_of_order, urgent] = leg[68..74].try_into().expect("six");
    Some(LegState {
        state,
        ipv6,
        snd_una: word(1),
        snd_nxt: word(2),
        write_seq: word(3),
        rcv_nxt: word(4),
        copied_seq: word(5),
        snd_wnd: word(6),
        cwnd: word(7),
        in_flight: word(8),
        mss: word(9),
        peer_mss: half(40),
        own_mss: half(42),
        path_mtu: word(11),
        peer_window_scale,
        own_window_scale,
        sack: sack != 0,
        ecn: match ecn {
            0 => Ecn::Off,
            ECN_CLASSIC => Ecn::Classic,
            _ => Ecn::Accurate,
        },
        timestamps: (per_second > 0).then(|| Timestamps { own: word(12), recent: word(13), per_second }),
        out_of_order: out_of_order != 0,
        urgent: urgent != 0,
        interface: Some(word(15)).filter(|index| *index != 0),
        receives_by: Some(word(16)).filter(|index| *index != 0),
    })
}

/// Length of what precedes the list: an Ethernet header.
const LIST: usize = 14;
const KEY_SIZE: usize = size_of::<RawKey>();
const LEG_SIZE: usize = KEY_SIZE + 76;
const LEGS_MAX: usize = 28;
const CHANGES_MAX: usize = 64;
const TCP_ESTABLISHED: u32 = 1;
const ECN_CLASSIC: u8 = 1;
