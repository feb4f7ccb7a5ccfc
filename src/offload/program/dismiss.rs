//! Resets every flow in the map before the map is removed: otherwise each flow would hang until its next packet, and an
//! idle client as long as it is idle.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::Cursor;
use super::load;
use super::pins::{LAYOUT, Pins};
use super::scan;
use crate::model::segment::{Flags, Segment};
use crate::offload::entry::{Action, Entry, Key};
use crate::offload::probe::{EntryChange, amend};
use crate::sys::raw::RawSender;

/// Kernels limit their answers to segments out of place to one in half a second (tcp_invalid_ratelimit), so a second
/// round follows after that. The ends' answers to the last round find the entries for a moment more.
const ROUNDS: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(300)];

/// Entries of one call.
const STEP: usize = 4096;

/// Resets both ends of every flow pinned in `directory`, from this thread's network namespace; returns the number of
/// directions. It takes a second if there are any. Entries of another layout cannot be read, and stay.
pub(crate) fn dismiss(directory: &Path) -> io::Result<usize> {
    let pins = Pins::at(directory);
    if pins.meta()?.is_none_or(|meta| meta.layout != LAYOUT) {
        return Ok(0);
    }
    let flows = pins.map("flows")?;
    let entries = || -> io::Result<Vec<(Key, Entry)>> {
        let (mut cursor, mut all) = (Cursor::default(), Vec::new());
        while scan(&flows, &mut cursor, STEP, &mut all)? {}
        // Forwarded flows belong to another instance; witnessed flows have their sockets.
        all.retain(|(_, entry)| !matches!(entry.action, Action::Forward | Action::Witness));
        Ok(all)
    };
    let all: Vec<_> = entries()?.into_iter().map(|(key, entry)| (entry.id, key)).collect();
    if all.is_empty() {
        return Ok(0);
    }
    let [_, amender] = load::tools(&pins).map_err(io::Error::other)?;
    let raw = RawSender::open()?;
    // Entries first: the ends' answers must find them.
    amend(&amender, &all, EntryChange::Reset)?;
    for pause in ROUNDS {
        for (key, entry) in entries()? {
            challenge(&raw, key, &entry);
        }
        std::thread::sleep(pause);
    }
    Ok(all.len())
}

/// Makes the sender of the packets at `entry` accept an RST: sends one with the number that it last acknowledged, and
/// an ACK below that, which it answers.
fn challenge(raw: &RawSender, key: Key, entry: &Entry) {
    let (from, to) = (key.to, key.from);
    let (seq, ack) = (entry.seen.acked as u32, entry.seen.sent as u32);
    let exact = Segment { from, to, seq, ack, flags: Flags::RstAck, window: 0 };
    let below = Segment { seq: seq.wrapping_sub(1), flags: Flags::Ack, ..exact };
    for packet in [exact, below].iter().filter_map(Segment::packet) {
        // A host that cannot be reached needs no RST.
        let _ = raw.send(&packet, to.ip());
    }
}
