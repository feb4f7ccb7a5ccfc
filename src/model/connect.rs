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
//! - **Start** is a request that stands until [`ConnectMachine::handle_start`] answers it: the owner, who knows the loads,
//!   chooses the backend and reserves its place.
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
pub(crate) use failure::{ConnectFailure, FailedConnect};
use under_way::{Attempts, UnderWay};

/// The machine tells the peers of a flow that has waited longer for a backend. Most flows have one within a
/// millisecond, and are told of only once.
const TELL_AFTER_NS: u64 = 20_000_000;

/// The settings of connecting at the time of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectPolicy {
    pub attempts_max: u32,
    pub timeout_ns: u64,
    /// `None`: no second attempt beside a slow one.
    pub hedge_after_ns: Option<u64>,
    /// Whether there are peers, which must know of flows that wait.
    pub has_peers: bool,
}

/// The actions for the owner of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectAction {
    /// Begin attempt `number` at a backend that was not tried, and report the result. `hedges`: beside a slow attempt.
    Start { number: u8, hedges: bool },
    /// Reset attempt `number`; `failed`: the failure to count for its backend, if it failed.
    Reset { number: u8, failed: Option<FailedConnect> },
    /// Attempt `number` becomes the backend leg. Reset the other: the machine is done.
    Establish { number: u8, started_at_ns: u64 },
    /// Tell the peers the ends of the flow, and then call [`ConnectMachine::handle_told`].
    TellPeers,
    /// Call [`ConnectMachine::handle_deadline`] at this time.
    SetTimer { at_ns: u64 },
    /// Leave clients in the backlog: no descriptor was free, as this errno says. This flow's own descriptor is about to
    /// be freed; without a pause, the next client would take it, and be reset in the same way.
    PauseAccepting { errno: i32 },
    /// End the flow, with the errno of the call that reported it, or 0, and reset open attempts: the machine is done.
    End(EndReason, i32),
}

/// The result of a request to start an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAnswer {
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

/// Events of the client's socket that were not acted upon. Its kernel keeps the bytes until a backend is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientSeen {
    pub readable: bool,
    pub ends: bool,
}

/// A flow between accept and its backend's answer. Times are monotonic nanoseconds and never go back.
#[derive(Debug)]
pub(crate) struct ConnectMachine {
    started_at_ns: u64,
    under_way: Attempts,
    /// Number of attempts begun so far; also the next one's number.
    begun: u8,
    tried: Vec<BackendId>,
    last_failure: Option<FailedConnect>,
    client_seen: ClientSeen,
    /// Whether the peers know of the flow.
    told: bool,
    /// Whether the last search for a backend failed because all suitable ones were at their cap.
    all_full: bool,
    /// An action to return before all others.
    next: Option<ConnectAction>,
    start: Option<StartWish>,
    look: DeadlineLook,
    timer_wanted: bool,
}

/// A request to start an attempt.
#[derive(Clone, Copy, Debug)]
struct StartWish {
    hedges: bool,
    /// Whether a backend had no place left since this request was made.
    full_meanwhile: bool,
}

/// The checks that were made at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadlineLook {
    Late,
    Hedge,
    Peers,
    Done,
}

impl ConnectMachine {
    /// Requests the first attempt.
    pub(crate) fn begin(now_ns: u64, client_seen: ClientSeen) -> Self {
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
    pub(crate) fn handle_start(&mut self, policy: &ConnectPolicy, now_ns: u64, answer: StartAnswer) {
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

    /// The backend of attempt `number` has accepted; `preference`: its present one.
    pub(crate) fn handle_answered(&mut self, number: u8, preference: Preference) {
        let Some(attempt) = self.under_way.take(number) else { return };
        self.next = Some(match preference {
            // The backend was found dead meanwhile: the client would be reset a moment later.
            Preference::Never => {
                self.start_another(false);
                ConnectAction::Reset { number, failed: None }
            }
            _ => ConnectAction::Establish { number, started_at_ns: attempt.started_at_ns },
        });
    }

    /// Attempt `number` was refused, or failed in another way.
    pub(crate) fn handle_failed(&mut self, number: u8, failed: FailedConnect) {
        if self.under_way.take(number).is_some() {
            self.next = Some(self.after_failure(number, failed));
        }
    }

    /// The backend was ejected: an attempt there is useless.
    pub(crate) fn handle_ejected(&mut self, backend: BackendId) {
        let Some(attempt) = self.under_way.take_at(backend) else { return };
        self.next = Some(ConnectAction::Reset { number: attempt.number, failed: None });
        match self.under_way.is_empty() {
            true => self.start_another(false),
            // The other attempt may be hedged sooner than the timer for both says.
            false => self.timer_wanted = true,
        }
    }

    /// A time that [`ConnectAction::SetTimer`] asked for has come, perhaps long ago.
    pub(crate) fn handle_deadline(&mut self) {
        self.look = DeadlineLook::Late;
    }

    /// An event of the client's socket.
    pub(crate) fn handle_client(&mut self, seen: ClientSeen) {
        self.client_seen.readable |= seen.readable;
        self.client_seen.ends |= seen.ends;
    }

    /// The client's connection is over, with this errno or 0.
    pub(crate) fn handle_client_left(&mut self, errno: i32) {
        self.next = Some(ConnectAction::End(EndReason::ClientLeft, errno));
    }

    /// The peers were told. Do not call it if there was nothing to tell: then a later deadline asks again.
    pub(crate) fn handle_told(&mut self) {
        self.told = true;
    }

    /// The next action.
    pub(crate) fn poll(&mut self, policy: &ConnectPolicy, now_ns: u64) -> Option<ConnectAction> {
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

    /// The time when connecting began.
    pub(crate) fn started_at_ns(&self) -> u64 {
        self.started_at_ns
    }

    /// Backends that this flow has tried.
    pub(crate) fn tried(&self) -> &[BackendId] {
        &self.tried
    }

    /// The events of the client's socket so far.
    pub(crate) fn client_seen(&self) -> ClientSeen {
        self.client_seen
    }

    /// Whether the peers know of the flow.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }

    fn start_another(&mut self, hedges: bool) {
        self.start = Some(StartWish { hedges, full_meanwhile: false });
        self.all_full = false;
    }

    /// Attempt `number`, which is not open any more, has failed.
    fn after_failure(&mut self, number: u8, failed: FailedConnect) -> ConnectAction {
        self.last_failure = Some(failed);
        self.start_another(false);
        ConnectAction::Reset { number, failed: Some(failed) }
    }

    /// No backend accepted the flow.
    fn give_up(&self) -> ConnectAction {
        match self.last_failure {
            Some(failed) => ConnectAction::End(failed.failure.end_reason(), failed.errno),
            None if self.all_full => ConnectAction::End(EndReason::BackendsFull, 0),
            None => ConnectAction::End(EndReason::NoBackend, 0),
        }
    }

    /// The time of the next useful deadline.
    fn timer_at_ns(&self, policy: &ConnectPolicy, now_ns: u64) -> Option<u64> {
        // An action that failed when it was due is not repeated at once.
        let sooner = [self.hedge_at_ns(policy), self.tell_at_ns(policy)].into_iter().flatten();
        sooner.filter(|at_ns| *at_ns > now_ns).chain(self.under_way.first_deadline_ns()).min()
    }

    /// When the only open attempt becomes slow.
    fn hedge_at_ns(&self, policy: &ConnectPolicy) -> Option<u64> {
        Some(self.under_way.only()?.started_at_ns.saturating_add(policy.hedge_after_ns?))
    }

    /// When the peers must know of the flow, unless they do already.
    fn tell_at_ns(&self, policy: &ConnectPolicy) -> Option<u64> {
        (policy.has_peers && !self.told).then_some(self.started_at_ns.saturating_add(TELL_AFTER_NS))
    }

    /// Checks the invariants after every event.
    fn check(&self) {
        debug_assert!(self.under_way.iter().all(|attempt| attempt.number < self.begun), "{self:?}");
        debug_assert!(self.under_way.iter().all(|attempt| self.tried.contains(&attempt.backend)), "{self:?}");
        debug_assert!(usize::from(self.begun) <= self.tried.len(), "{self:?}");
    }
}
