//! Connecting a flow to a backend, as a machine without clock or socket: try, retry, hedge, give up.
//!
//! ```text
//!   begin ──▶ Start ───────────── begun ───────────────▶ under way: one, or two while hedging
//!             ▲   │                                          │    │    │
//!             │   │ nothing left to start                    │    │    └ answered ──▶ Establish, the other is reset
//!             │   │                                          │    └ slow ──▶ Start, beside it
//!             └───┼──────── failed, timed out, ejected ──────┘
//!                 ▼
//!                End, unless another is under way
//! ```
//! - **Start** is a wish that stands until [`ConnectMachine::handle_start`] answers it: which backend gets the attempt, and whether
//!   it has a place for one more flow, is decided outside, where the loads are known.
//! - **slow**: one attempt alone is under way, for longer than `hedge_after`.
//! - **End** names the last failure. A flow for which no attempt failed ends because its backends are full, or because there is none.
//! - A lack of descriptors is this host's, so no other backend is tried; an attempt that is under way may still be answered.
//!
//! After each event carry out what [`ConnectMachine::poll`] asks for until it asks for nothing.

mod failure;
#[cfg(test)]
mod tests;
mod under_way;

use crate::model::balance::{NoPick, Preference};
use crate::model::end_reason::EndReason;
use crate::model::ids::BackendId;
pub use failure::{ConnectFailure, FailedConnect};
use under_way::{Attempts, UnderWay};

/// The peers are told of a flow that waits for a backend for longer. Most have one within a millisecond, and are told of once.
const TELL_AFTER_NS: u64 = 20_000_000;

/// The settings of connecting, as they are at an event.
#[derive(Clone, Copy, Debug)]
pub struct ConnectPolicy {
    pub attempts_max: u32,
    pub timeout_ns: u64,
    /// `None`: a slow attempt is waited for alone.
    pub hedge_after_ns: Option<u64>,
    /// There are peers who want to know of flows that wait.
    pub has_peers: bool,
}

/// What the owner of the machine must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectAction {
    /// Begin attempt `number` at a backend that was not tried, and tell what came of it. `hedges`: beside one that is slow.
    Start { number: u8, hedges: bool },
    /// Reset attempt `number`; with the failure that the backend is to be charged with, if it failed.
    Reset { number: u8, failed: Option<FailedConnect> },
    /// Attempt `number` becomes the backend leg. Reset the other: the machine has done its part.
    Establish { number: u8, started_at_ns: u64 },
    /// Tell the peers between which ends the flow waits, and then [`ConnectMachine::handle_told`].
    TellPeers,
    /// Have [`ConnectMachine::handle_deadline`] called at this time.
    SetTimer { at_ns: u64 },
    /// Leave clients in the backlog: there was no descriptor, as this errno says. This flow's own is about to be free again;
    /// without a pause the next client would be accepted with it, only to be reset as this one.
    PauseAccepting { errno: i32 },
    /// End the flow, with errno of the call that told, or 0, and reset what is under way: the machine has done its part.
    End(EndReason, i32),
}

/// What came of the wish to start an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAnswer {
    /// It is under way.
    Begun(BackendId),
    /// It failed before it was under way.
    Failed(BackendId, FailedConnect),
    /// The backend's last place was taken between the look at its load and the reservation.
    Full(BackendId),
    /// The backend's name is not resolved.
    Unresolved(BackendId),
    /// There is no backend to start one at.
    NoPick(NoPick),
}

/// What the client's socket has shown, and nobody has acted upon. Its kernel keeps the bytes until a backend is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientSeen {
    pub readable: bool,
    pub ends: bool,
}

/// A flow between accept and its backend's answer. Times are monotonic nanoseconds and never go back.
#[derive(Debug)]
pub struct ConnectMachine {
    started_at_ns: u64,
    under_way: Attempts,
    /// Attempts begun so far; also the next one's number.
    begun: u8,
    tried: Vec<BackendId>,
    last_failure: Option<FailedConnect>,
    client_seen: ClientSeen,
    /// The peers know of the flow.
    told: bool,
    /// The last search for a backend ended because those that would do were at their cap.
    all_full: bool,
    /// Asked for before all else.
    next: Option<ConnectAction>,
    start: Option<StartWish>,
    look: DeadlineLook,
    timer_wanted: bool,
}

/// An attempt is to be started.
#[derive(Clone, Copy, Debug)]
struct StartWish {
    hedges: bool,
    /// A backend had no place left since this wish stands.
    full_meanwhile: bool,
}

/// How much of what may be due at a deadline was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadlineLook {
    Late,
    Hedge,
    Peers,
    Done,
}

impl ConnectMachine {
    /// The first attempt is to be started.
    pub fn begin(now_ns: u64, client_seen: ClientSeen) -> Self {
        Self {
            started_at_ns: now_ns,
            under_way: Attempts::default(),
            begun: 0,
            tried: Vec::new(),
            last_failure: None,
            client_seen,
            told: false,
            all_full: false,
            next: None,
            start: Some(StartWish { hedges: false, full_meanwhile: false }),
            look: DeadlineLook::Done,
            timer_wanted: false,
        }
    }

    /// [`ConnectAction::Start`] was carried out.
    pub fn handle_start(&mut self, policy: &ConnectPolicy, now_ns: u64, answer: StartAnswer) {
        let Some(wish) = &mut self.start else { return };
        match answer {
            StartAnswer::Begun(backend) => {
                self.tried.push(backend);
                let deadline_ns = now_ns.saturating_add(policy.timeout_ns);
                self.under_way.add(UnderWay { number: self.begun, backend, started_at_ns: now_ns, deadline_ns });
                self.begun = self.begun.saturating_add(1);
                self.start = None;
                self.timer_wanted = true;
            }
            StartAnswer::Failed(backend, failed) => {
                self.tried.push(backend);
                self.begun = self.begun.saturating_add(1);
                self.last_failure = Some(failed);
                if failed.failure == ConnectFailure::OutOfFiles {
                    self.start = None;
                    self.next = Some(ConnectAction::PauseAccepting { errno: failed.errno });
                }
            }
            StartAnswer::Full(backend) => {
                self.tried.push(backend);
                wish.full_meanwhile = true;
            }
            StartAnswer::Unresolved(backend) => self.tried.push(backend),
            StartAnswer::NoPick(reason) => {
                self.all_full = wish.full_meanwhile || reason == NoPick::AllFull;
                self.start = None;
            }
        }
    }

    /// The backend of attempt `number` accepted, and is by now as welcome as this.
    pub fn handle_answered(&mut self, number: u8, preference: Preference) {
        let Some(attempt) = self.under_way.take(number) else { return };
        self.next = Some(match preference {
            // Found dead while it was answering: the client would only be reset a moment later.
            Preference::Never => {
                self.start_another(false);
                ConnectAction::Reset { number, failed: None }
            }
            _ => ConnectAction::Establish { number, started_at_ns: attempt.started_at_ns },
        });
    }

    /// Attempt `number` was refused, or ended otherwise.
    pub fn handle_failed(&mut self, number: u8, failed: FailedConnect) {
        if self.under_way.take(number).is_some() {
            self.next = Some(self.after_failure(number, failed));
        }
    }

    /// The backend was ejected: an attempt there is of no use.
    pub fn handle_ejected(&mut self, backend: BackendId) {
        let Some(attempt) = self.under_way.take_at(backend) else { return };
        self.next = Some(ConnectAction::Reset { number: attempt.number, failed: None });
        match self.under_way.is_empty() {
            true => self.start_another(false),
            // What is left may be hedged sooner than the timer for both would say.
            false => self.timer_wanted = true,
        }
    }

    /// A time has come that [`ConnectAction::SetTimer`] asked for, perhaps long ago.
    pub fn handle_deadline(&mut self) {
        self.look = DeadlineLook::Late;
    }

    /// The client's socket was ready.
    pub fn handle_client(&mut self, seen: ClientSeen) {
        self.client_seen.readable |= seen.readable;
        self.client_seen.ends |= seen.ends;
    }

    /// The client's connection is over, with this errno or 0.
    pub fn handle_client_left(&mut self, errno: i32) {
        self.next = Some(ConnectAction::End(EndReason::ClientLeft, errno));
    }

    /// The peers were told. Not if there was nothing to tell: they are to be at a later deadline.
    pub fn handle_told(&mut self) {
        self.told = true;
    }

    /// What is to be done next.
    pub fn poll(&mut self, policy: &ConnectPolicy, now_ns: u64) -> Option<ConnectAction> {
        self.check();
        if self.next.is_some() {
            return self.next.take();
        }
        loop {
            if let Some(wish) = self.start {
                if u32::from(self.begun) < policy.attempts_max {
                    return Some(ConnectAction::Start { number: self.begun, hedges: wish.hedges });
                }
                self.start = None;
            }
            if self.under_way.is_empty() {
                return Some(self.give_up());
            }
            match self.look {
                DeadlineLook::Late => match self.under_way.take_late(now_ns) {
                    Some(late) => return Some(self.after_failure(late.number, FailedConnect::TIMED_OUT)),
                    None => self.look = DeadlineLook::Hedge,
                },
                DeadlineLook::Hedge => {
                    self.look = DeadlineLook::Peers;
                    if self.hedge_at_ns(policy).is_some_and(|at_ns| at_ns <= now_ns) {
                        self.start_another(true);
                    }
                }
                DeadlineLook::Peers => {
                    self.look = DeadlineLook::Done;
                    self.timer_wanted = true;
                    if self.tell_at_ns(policy).is_some_and(|at_ns| at_ns <= now_ns) {
                        return Some(ConnectAction::TellPeers);
                    }
                }
                DeadlineLook::Done => break,
            }
        }
        let at_ns = self.timer_at_ns(policy, now_ns).filter(|_| self.timer_wanted)?;
        self.timer_wanted = false;
        Some(ConnectAction::SetTimer { at_ns })
    }

    /// When the flow began to be connected.
    pub fn started_at_ns(&self) -> u64 {
        self.started_at_ns
    }

    /// Backends that get no further attempt.
    pub fn tried(&self) -> &[BackendId] {
        &self.tried
    }

    /// What the client's socket has shown so far.
    pub fn client_seen(&self) -> ClientSeen {
        self.client_seen
    }

    /// Whether the peers know of the flow.
    pub fn is_told(&self) -> bool {
        self.told
    }

    fn start_another(&mut self, hedges: bool) {
        self.start = Some(StartWish { hedges, full_meanwhile: false });
        self.all_full = false;
    }

    /// Attempt `number`, which is no longer under way, failed.
    fn after_failure(&mut self, number: u8, failed: FailedConnect) -> ConnectAction {
        self.last_failure = Some(failed);
        self.start_another(false);
        ConnectAction::Reset { number, failed: Some(failed) }
    }

    /// No backend took the flow.
    fn give_up(&self) -> ConnectAction {
        match self.last_failure {
            Some(failed) => ConnectAction::End(failed.failure.end_reason(), failed.errno),
            None if self.all_full => ConnectAction::End(EndReason::BackendsFull, 0),
            None => ConnectAction::End(EndReason::NoBackend, 0),
        }
    }

    /// When a deadline may be of use again.
    fn timer_at_ns(&self, policy: &ConnectPolicy, now_ns: u64) -> Option<u64> {
        // What could not be done when it was due is not tried again and again.
        let sooner = [self.hedge_at_ns(policy), self.tell_at_ns(policy)].into_iter().flatten();
        sooner.filter(|at_ns| *at_ns > now_ns).chain(self.under_way.first_deadline_ns()).min()
    }

    /// When the only attempt under way is slow.
    fn hedge_at_ns(&self, policy: &ConnectPolicy) -> Option<u64> {
        Some(self.under_way.only()?.started_at_ns.saturating_add(policy.hedge_after_ns?))
    }

    /// When the peers are to know of the flow, if there are any who do not.
    fn tell_at_ns(&self, policy: &ConnectPolicy) -> Option<u64> {
        (policy.has_peers && !self.told).then_some(self.started_at_ns.saturating_add(TELL_AFTER_NS))
    }

    /// What holds after every event.
    fn check(&self) {
        debug_assert!(self.under_way.iter().all(|attempt| attempt.number < self.begun), "{self:?}");
        debug_assert!(self.under_way.iter().all(|attempt| self.tried.contains(&attempt.backend)), "{self:?}");
        debug_assert!(usize::from(self.begun) <= self.tried.len(), "{self:?}");
    }
}
