//! Packets that nobody here knows, though somebody may.

use super::{Action, Asked, Command, HeldRequest, InstanceName, Key, Peer, Stray, Takeover, Timer};

/// A packet that the others were asked of, or that was dropped because its entry is on its way.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    stray: Stray,
    since_ns: u64,
    asked: bool,
}

/// The link answers sooner; this is for when it does not at all.
const ASK_WITHIN_NS: u64 = 1_500_000_000;

/// A flow that is forwarded and whose packets come back from its owner for so long is nobody's.
const LOOPS_NS: u64 = 1_000_000_000;

/// A record of a flow that a peer says is somebody's must come within this.
const LENT_NS: u64 = 10_000_000_000;

impl Takeover {
    pub(super) fn stray(&mut self, now_ns: u64, stray: Stray) {
        let key = stray.key;
        if let Some(before) = self.asked.get(&key).copied() {
            if !before.asked && now_ns.saturating_sub(before.since_ns) > LOOPS_NS {
                self.asked.remove(&key);
                self.actions.push_back(Action::Answer(stray));
            }
            return;
        }
        let knows = self.by_key.contains_key(&key);
        if !knows && !self.peers.values().any(Peer::can_be_asked) {
            return self.answer(now_ns, stray);
        }
        self.asked.insert(key, Waiting { stray, since_ns: now_ns, asked: !knows });
        if knows {
            // Dropped, it comes again, and finds its entry; or its owner sends it back, for its address is just moving.
            self.timers.set(now_ns + 2 * LOOPS_NS, Timer::Asked(key));
        } else {
            self.actions.push_back(Action::Send(Command::Ask(Asked { from: key.from, to: key.to })));
            self.timers.set(now_ns + ASK_WITHIN_NS, Timer::Asked(key));
        }
    }

    pub(super) fn stray_answered(&mut self, now_ns: u64, ends: Asked, owner: Option<InstanceName>) {
        let key = Key { from: ends.from, to: ends.to };
        let Some(waiting) = self.asked.remove(&key).filter(|waiting| waiting.asked) else { return };
        let hop = owner.and_then(|owner| self.hop(&owner, key.to.ip()));
        match hop {
            // Its record has come meanwhile, or is about to.
            _ if self.by_key.contains_key(&key) => {}
            Some(to) => {
                self.actions.push_back(Action::Path(HeldRequest::Forward { keys: vec![key], to }));
                self.actions.push_back(Action::Note(super::Note::Forwarded(1)));
                self.timers.set(now_ns + LENT_NS, Timer::Lent(key));
            }
            None => self.answer(now_ns, waiting.stray),
        }
    }

    pub(super) fn ask_expired(&mut self, now_ns: u64, key: Key) {
        if let Some(waiting) = self.asked.remove(&key).filter(|waiting| waiting.asked) {
            self.answer(now_ns, waiting.stray);
        }
    }

    /// Nobody knows it. While records are on their way that says nothing, and it will come again.
    fn answer(&mut self, now_ns: u64, stray: Stray) {
        if now_ns >= self.guard_until_ns {
            self.actions.push_back(Action::Answer(stray));
        }
    }

    pub(super) fn lent_over(&mut self, key: Key) {
        if !self.by_key.contains_key(&key) {
            self.actions.push_back(Action::Path(HeldRequest::Forget(vec![key])));
        }
    }
}
