//! The table as evidence: a backend whose kernel acknowledges nothing is reported long before its next probe.
//!
//! Only flows that sent something and heard nothing back are looked at, so an idle flow costs nothing.

use std::time::Duration;

use crate::proxy::flow::Phase;
use crate::proxy::timers::Due;
use crate::proxy::token::FlowRef;
use crate::proxy::worker::Worker;
use crate::sys::tcp_info::peer_signs;
use crate::table::backend::Suspicion;

/// How often waiting flows are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An answer may take this long before the kernel is asked.
const PATIENCE: Duration = Duration::from_millis(300);

/// Retransmission timeouts in a row that make a backend suspect; one alone is ordinary loss.
const SUSPECT_BACKOFF: u8 = 2;

/// Flows asked about at a time.
const LOOKS: usize = 256;

impl Worker {
    /// Adds a flow that waits for an answer.
    pub(in crate::proxy) fn watch_unanswered(&mut self, at: FlowRef) {
        if self.unanswered.is_empty() {
            self.timers.set(self.now_ns + LOOK_EVERY.as_nanos() as u64, Due::Evidence);
        }
        self.unanswered.push(at);
    }

    /// Lets go of flows that were answered or acknowledged; reports backends that acknowledge nothing.
    pub(in crate::proxy) fn look_at_unanswered(&mut self) {
        let waiting = std::mem::take(&mut self.unanswered);
        let mut looks = 0;
        for at in waiting {
            if self.still_waits(at, &mut looks) {
                self.unanswered.push(at);
            }
        }
        if !self.unanswered.is_empty() {
            // Those at the front were looked at; next time it is the others' turn.
            let turn = looks.min(self.unanswered.len());
            self.unanswered.rotate_left(turn);
            self.timers.set(self.now_ns + LOOK_EVERY.as_nanos() as u64, Due::Evidence);
        }
    }

    fn still_waits(&mut self, at: FlowRef, looks: &mut usize) -> bool {
        let Some(place) = self.places.get_mut(at.index as usize) else { return false };
        if FlowRef::new(at.key(), place.generation) != at {
            return false;
        }
        let Some(Phase::Relaying(relaying)) = place.flow.as_deref_mut().map(|flow| &mut flow.phase) else {
            return false;
        };
        let since_ns = relaying.unanswered_since_ns;
        if since_ns == 0 {
            relaying.watched = false;
            return false;
        }
        if self.now_ns.saturating_sub(since_ns) < PATIENCE.as_nanos() as u64 || *looks == LOOKS {
            return true;
        }
        *looks += 1;
        match peer_signs(&relaying.backend) {
            Ok(signs) if signs.unacked > 0 => {
                if signs.backoff >= SUSPECT_BACKOFF {
                    relaying.place.0.suspicion.raise(Suspicion::SEGMENTS_UNACKED);
                }
                true
            }
            // All was acknowledged: the host lives, and its process may take its time.
            _ => {
                relaying.unanswered_since_ns = 0;
                relaying.watched = false;
                false
            }
        }
    }
}
