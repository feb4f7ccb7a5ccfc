//! Ending every flow in the map before it is taken away: without its entries each would hang until its next packet, and
//! an idle client for as long as it is idle.

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

/// Kernels hold back answers to segments out of place for half a second (tcp_invalid_ratelimit), so a second round comes
/// after that; and what the ends answer to the last one finds the entries for a moment more.
const ROUNDS: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(300)];

/// Entries of one call.
const STEP: usize = 4096;

/// Resets both ends of every flow that is pinned in `directory`, from this thread's network namespace; returns how many
/// directions there were. It takes a second if there is any. What is of another layout cannot be read, and is left.
pub fn dismiss(directory: &Path) -> io::Result<usize> {
    let pins = Pins::at(directory);
    if pins.meta()?.is_none_or(|meta| meta.layout != LAYOUT) {
        return Ok(0);
    }
    let flows = pins.map("flows")?;
    let entries = || -> io::Result<Vec<(Key, Entry)>> {
        let (mut cursor, mut all) = (Cursor::default(), Vec::new());
        while scan(&flows, &mut cursor, STEP, &mut all)? {}
        // What is forwarded is another instance's flow; what is only watched has its sockets.
        all.retain(|(_, entry)| !matches!(entry.action, Action::Forward | Action::Witness));
        Ok(all)
    };
    let all: Vec<_> = entries()?.into_iter().map(|(key, entry)| (entry.id, key)).collect();
    if all.is_empty() {
        return Ok(0);
    }
    let [_, amender] = load::tools(&pins).map_err(io::Error::other)?;
    let raw = RawSender::open()?;
    // First the entries: what the ends answer must find them.
    amend(&amender, &all, EntryChange::Reset)?;
    for pause in ROUNDS {
        for (key, entry) in entries()? {
            challenge(&raw, key, &entry);
        }
        std::thread::sleep(pause);
    }
    Ok(all.len())
}

/// Makes the sender of what comes by `entry` take an RST: one with the number that it last acknowledged, and an ACK below
/// that, which it answers.
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
