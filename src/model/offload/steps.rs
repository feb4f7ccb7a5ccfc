//! One flow on its way out of its sockets, as a machine without socket, map or clock.
//!
//! ```text
//!            entered, bytes in flight written        every CPU knows it         acknowledged
//!   (worker) ───────────────────▶ Entered ────────────────▶ Filling ────────────▶ Alone
//!                                    │                         │                    │
//!                                    └─────────────┬───────────┴────────────────────┤
//!                                           by order, or an error            FIN both ways, or RST
//!                                                  ▼                                ▼
//!                                              Resetting ──▶ removed            Over ──▶ removed
//! ```
//! What a kill of the process leaves behind, and what the next one makes of it:
//! ```text
//!   before Entered      two sockets, which the kernel closes: both ends see FIN or RST
//!   Entered, Filling    the same, and entries without the mark: both ends are reset once more, the entries removed
//!   Alone               entries with the mark: recovered. Until they have it: both ends are reset
//!   Resetting           entries that answer RST: both ends are reset once more
//!   Over                entries with the mark and FIN or RST: found to be over at the first look
//! ```
//! - Sockets leave a flow that has entries in two ways only: closed in silence, once all that went through them has arrived, or reset.
//!   They go back to the worker only before there is an entry.
//! - **The mark** comes after the sockets are gone: a process that dies has the kernel close its sockets, and an entry with the mark
//!   would carry on a flow whose ends have been told that it is over.
//! - An end is challenged twice, and once more if it has said nothing since.
//!
//! Whoever holds a flow's step carries out what it asks for, in order, and answers as the actions say.

#[cfg(test)]
mod tests;

use crate::model::end_reason::EndReason;

/// How often both ends are challenged, whatever they say.
const ROUNDS: u8 = 2;

/// The same, with the challenge of those that have said nothing since.
const SILENT_ROUNDS: u8 = ROUNDS + 1;

/// How far the offload of one flow has come. `L` is whatever there is only for as long as the flow has sockets.
#[derive(Debug)]
pub enum OffloadStep<L> {
    /// Packets may still be on their way into the sockets.
    Entered { lent: L, since_ns: u64 },
    /// No packet can reach the sockets any more, but what went through them has not been acknowledged.
    Filling { lent: L, since_ns: u64 },
    /// The sockets are gone.
    Alone,
    /// Both ends are being reset; so many times so far. Who has said something since then is.
    Resetting { rounds: u8, since_ns: u64 },
    /// It has ended by itself; its entries serve what is still on its way.
    Over,
}

/// What the owner of a flow with sockets must do.
#[derive(Debug, PartialEq, Eq)]
pub enum SettleAction<L> {
    /// Pass on what was held and what has come into the sockets. If a leg breaks, leave what is asked for behind this, and call
    /// [`OffloadStep::handle_broken`].
    Pass,
    /// Call [`OffloadStep::handle_barrier_over`] after an RCU barrier that begins from now on.
    AwaitBarrier,
    /// Call [`OffloadStep::handle_look`] with what the entries show.
    Look,
    /// Tell the sockets what their far ends would tell them, whose packets pass them by.
    TellSockets,
    /// As `Look`, at the next turn.
    LookAgain,
    /// Close both sockets, so that neither end hears of it.
    Close(L),
    /// Mark both entries, and call [`OffloadStep::handle_marked`].
    Mark,
    /// Tell the worker and the peers that the flow is offloaded, and look whether it has ended meanwhile.
    TellOffloaded,
    /// Tell the worker that the flow is over, and reset both ends: [`OffloadStep::handle_reset`].
    End(EndReason),
}

/// What the entries show of the bytes that went through a flow's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedOn {
    /// Both ends have acknowledged all of them.
    Arrived,
    /// Some are not acknowledged, or not written yet.
    Awaited { by_client_alone: bool },
    /// The entries could not be read. All may have been acknowledged long ago.
    Unread,
    /// Somebody has removed the entries: the sockets are all that is left of the flow.
    EntriesLost,
}

/// What is to be done with a flow whose packets say that it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Tell the worker, and reset both ends: an RST may be lost on its last way, and an idle end would never know.
    Reset,
    /// Tell the worker, and call [`OffloadStep::handle_over`].
    Fade,
}

/// What is to be done at a time that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueAction {
    Nothing,
    /// Challenge both ends.
    Challenge,
    /// Call [`OffloadStep::handle_silence`] with what the ends have said.
    HearEnds,
    /// Remove the entries, unless something still passes by them.
    RemoveIfQuiet,
}

/// What is to be done with ends that have said nothing since their flow is being reset. Of client and backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceAction {
    /// Challenge these once more; the others need their entries no longer.
    Challenge([bool; 2]),
    /// Remove the entries. These ends are told later, without any.
    Remove([bool; 2]),
}

/// What an entry of an earlier process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftEntry {
    pub committed: bool,
    /// It passes packets on, and answers none of them.
    pub splices: bool,
}

/// Whether a flow of an earlier process goes on; if not, both its ends are reset.
pub fn goes_on(up: Option<LeftEntry>, down: Option<LeftEntry>) -> bool {
    matches!((up, down), (Some(up), Some(down)) if up.committed && down.committed && up.splices)
}

impl<L> OffloadStep<L> {
    /// Both entries have been written, without the mark.
    pub fn enter(lent: L, now_ns: u64) -> (Self, Vec<SettleAction<L>>) {
        (Self::Entered { lent, since_ns: now_ns }, vec![SettleAction::Pass, SettleAction::AwaitBarrier])
    }

    /// No packet is under way that met the map without the entries.
    pub fn handle_barrier_over(&mut self) -> Vec<SettleAction<L>> {
        match std::mem::replace(self, Self::Over) {
            Self::Entered { lent, since_ns } => {
                *self = Self::Filling { lent, since_ns };
                // The last of what has slipped in.
                vec![SettleAction::Pass, SettleAction::Look]
            }
            // It was reset meanwhile.
            other => {
                *self = other;
                Vec::new()
            }
        }
    }

    /// What the entries show. A flow is given up once one of its ends has owed an acknowledgement for longer than `patience_ns`.
    pub fn handle_look(&mut self, passed_on: PassedOn, now_ns: u64, patience_ns: u64) -> Vec<SettleAction<L>> {
        let Self::Filling { since_ns, .. } = self else { return Vec::new() };
        let is_overdue = now_ns.saturating_sub(*since_ns) > patience_ns;
        match passed_on {
            PassedOn::Arrived => {
                let close = self.leave_for(Self::Alone).map(SettleAction::Close);
                close.into_iter().chain([SettleAction::Mark]).collect()
            }
            PassedOn::Awaited { by_client_alone: true } if is_overdue => {
                vec![SettleAction::End(EndReason::ClientTimedOut)]
            }
            PassedOn::Awaited { by_client_alone: false } if is_overdue => {
                vec![SettleAction::End(EndReason::BackendTimedOut)]
            }
            PassedOn::Awaited { .. } | PassedOn::Unread => {
                vec![SettleAction::TellSockets, SettleAction::Pass, SettleAction::LookAgain]
            }
            PassedOn::EntriesLost => vec![SettleAction::End(EndReason::Internal)],
        }
    }

    /// A leg broke after the entries were written: the flow cannot go on either way.
    pub fn handle_broken(&self, by_client: bool, timed_out: bool) -> Vec<SettleAction<L>> {
        vec![SettleAction::End(match (by_client, timed_out) {
            (true, true) => EndReason::ClientTimedOut,
            (false, true) => EndReason::BackendTimedOut,
            (true, false) => EndReason::ClientReset,
            (false, false) => EndReason::BackendReset,
        })]
    }

    /// Whether both entries have the mark now.
    pub fn handle_marked(&self, marked: bool) -> Vec<SettleAction<L>> {
        vec![if marked { SettleAction::TellOffloaded } else { SettleAction::End(EndReason::Internal) }]
    }

    /// Packets of the flow say that it has ended; finished: by FINs that have arrived on both sides.
    pub fn handle_ended(&self, is_finished: bool) -> Option<Ending> {
        match self {
            Self::Alone if is_finished => Some(Ending::Fade),
            // With sockets, it is looked at once more when they are gone.
            Self::Alone | Self::Entered { .. } | Self::Filling { .. } => (!is_finished).then_some(Ending::Reset),
            Self::Resetting { .. } | Self::Over => None,
        }
    }

    /// Both ends are to be reset. First turn the entries into ones that answer RST: what the ends say from now on must find them. Then
    /// reset the sockets that this returns, and challenge both ends.
    pub fn handle_reset(&mut self, now_ns: u64) -> Option<L> {
        self.leave_for(Self::Resetting { rounds: 1, since_ns: now_ns })
    }

    /// It has ended by itself, and has no sockets.
    pub fn handle_over(&mut self) {
        *self = Self::Over;
    }

    /// A time has come that was set for the flow, perhaps for an earlier step of it.
    pub fn handle_due(&mut self) -> DueAction {
        match self {
            Self::Resetting { rounds, .. } if *rounds < ROUNDS => {
                *rounds += 1;
                DueAction::Challenge
            }
            Self::Resetting { .. } => DueAction::HearEnds,
            Self::Over => DueAction::RemoveIfQuiet,
            Self::Entered { .. } | Self::Filling { .. } | Self::Alone => DueAction::Nothing,
        }
    }

    /// When client and backend last said something; `None`: whether this end is silent is of no interest.
    pub fn handle_silence(&mut self, last_ns: [Option<u64>; 2]) -> Option<SilenceAction> {
        let Self::Resetting { rounds, since_ns } = self else { return None };
        *rounds = rounds.saturating_add(1);
        let silent = last_ns.map(|last_ns| last_ns.is_some_and(|last_ns| last_ns < *since_ns));
        Some(match *rounds > SILENT_ROUNDS || silent == [false; 2] {
            true => SilenceAction::Remove(silent),
            false => SilenceAction::Challenge(silent),
        })
    }

    pub fn has_sockets(&self) -> bool {
        self.lent().is_some()
    }

    /// Whether its end was told of, or ordered.
    pub fn is_ending(&self) -> bool {
        matches!(self, Self::Over | Self::Resetting { .. })
    }

    pub fn lent(&self) -> Option<&L> {
        match self {
            Self::Entered { lent, .. } | Self::Filling { lent, .. } => Some(lent),
            Self::Alone | Self::Resetting { .. } | Self::Over => None,
        }
    }

    pub fn lent_mut(&mut self) -> Option<&mut L> {
        match self {
            Self::Entered { lent, .. } | Self::Filling { lent, .. } => Some(lent),
            Self::Alone | Self::Resetting { .. } | Self::Over => None,
        }
    }

    fn leave_for(&mut self, step: Self) -> Option<L> {
        match std::mem::replace(self, step) {
            Self::Entered { lent, .. } | Self::Filling { lent, .. } => Some(lent),
            Self::Alone | Self::Resetting { .. } | Self::Over => None,
        }
    }
}
