//! The steps of one flow from its sockets to the BPF program, as a machine without socket, map or clock.
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
//! The state that a kill of the process leaves behind, and how the next process handles it:
//! ```text
//!   before Entered      two sockets, which the kernel closes: both ends see FIN or RST
//!   Entered, Filling    the same, and entries without the mark: both ends are reset once more, the entries removed
//!   Alone               entries with the mark: recovered. Until they have it: both ends are reset
//!   Resetting           entries that answer RST: both ends are reset once more
//!   Over                entries with the mark and FIN or RST: found to be over at the first look
//! ```
//! - A flow with entries leaves its sockets in two ways only: they are closed without a segment once all their bytes
//!   have arrived, or reset. They go back to the worker only while there is no entry.
//! - **The mark** follows after the sockets are closed. If a process dies before, the kernel closes its sockets, and a
//!   marked entry would carry on a flow whose ends have learned that it is over.
//! - Each end is challenged twice, and a third time if it has sent nothing since.
//!
//! The owner of a flow's step carries out its actions, in order, and reports the results as the actions say.

#[cfg(test)]
mod tests;

use crate::model::end_reason::EndReason;

/// Number of challenges of both ends, whatever they answer.
const ROUNDS: u8 = 2;

/// The same, with the challenge of the ends that have sent nothing since.
const SILENT_ROUNDS: u8 = ROUNDS + 1;

/// The step of one flow's offload. `L`: data that exists only while the flow has sockets.
#[derive(Debug)]
pub(crate) enum OffloadStep<L> {
    /// Packets may still be on their way into the sockets.
    Entered { closing: L, since_ns: u64 },
    /// No packet can reach the sockets any more, but their bytes are not all acknowledged.
    Filling { closing: L, since_ns: u64 },
    /// The sockets are closed.
    Alone,
    /// Both ends are being reset: the number of challenges so far. An end that has sent a packet since is reset.
    Resetting { rounds: u8, since_ns: u64 },
    /// It has ended by itself; its entries stay for packets that are still on their way.
    Over,
}

/// The actions for the owner of a flow with sockets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SettleAction<L> {
    /// Pass on the held bytes and those in the sockets. If a leg breaks, drop the actions after this one, and call
    /// [`OffloadStep::handle_broken`].
    Pass,
    /// Call [`OffloadStep::handle_barrier_over`] after an RCU barrier that begins from now on.
    AwaitBarrier,
    /// Call [`OffloadStep::handle_look`] with the state of the entries.
    Look,
    /// Give the sockets the acknowledgements of their far ends, whose packets no longer reach them.
    TellSockets,
    /// As `Look`, at the next turn.
    LookAgain,
    /// Close both sockets without a segment to either end.
    Close(L),
    /// Mark both entries, and call [`OffloadStep::handle_marked`].
    Mark,
    /// Tell the worker and the peers that the flow is offloaded, and check whether it has ended meanwhile.
    TellOffloaded,
    /// Tell the worker that the flow is over, and reset both ends: [`OffloadStep::handle_reset`].
    End(EndReason),
}

/// The entries' view of the bytes that went through a flow's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedOn {
    /// Both ends have acknowledged all bytes.
    Arrived,
    /// Not all bytes are acknowledged, or not all are written.
    Awaited { by_client_alone: bool },
    /// The entries could not be read. All bytes may have been acknowledged long ago.
    Unread,
    /// Somebody has removed the entries: the flow has only its sockets.
    EntriesLost,
}

/// The action for a flow whose packets show that it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Tell the worker, and reset both ends: an RST may be lost behind this host, and an idle end would never know.
    Reset,
    /// Tell the worker, and call [`OffloadStep::handle_over`].
    Fade,
}

/// The action at a time that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueAction {
    Nothing,
    /// Challenge both ends.
    Challenge,
    /// Call [`OffloadStep::handle_silence`] with the times of the ends' last packets.
    HearEnds,
    /// Remove the entries, unless packets still pass them.
    RemoveIfQuiet,
}

/// The action for ends that have sent nothing since the reset of their flow began. For client and backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SilenceAction {
    /// Challenge these once more; the others no longer need their entries.
    Challenge([bool; 2]),
    /// Remove the entries. These ends are told later, without entries.
    Remove([bool; 2]),
}

/// The content of an entry of an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftEntry {
    pub committed: bool,
    /// Whether it forwards packets, and answers none of them.
    pub splices: bool,
}

/// Whether a flow of an earlier process goes on; if not, both its ends are reset.
pub(crate) fn goes_on(up: Option<LeftEntry>, down: Option<LeftEntry>) -> bool {
    matches!((up, down), (Some(up), Some(down)) if up.committed && down.committed && up.splices)
}

impl<L> OffloadStep<L> {
    /// Both entries have been written, without the mark.
    pub(crate) fn enter(closing: L, now_ns: u64) -> (Self, Vec<SettleAction<L>>) {
        (Self::Entered { closing, since_ns: now_ns }, vec![SettleAction::Pass, SettleAction::AwaitBarrier])
    }

    /// No packet is left that read the map before the entries were made.
    pub(crate) fn handle_barrier_over(&mut self) -> Vec<SettleAction<L>> {
        match std::mem::replace(self, Self::Over) {
            Self::Entered { closing, since_ns } => {
                *self = Self::Filling { closing, since_ns };
                // The last late bytes.
                vec![SettleAction::Pass, SettleAction::Look]
            }
            // It was reset meanwhile.
            other => {
                *self = other;
                Vec::new()
            }
        }
    }

    /// The state of the entries. The flow is given up once one of its ends has owed an acknowledgement for longer than
    /// `patience_ns`.
    pub(crate) fn handle_look(&mut self, passed_on: PassedOn, now_ns: u64, patience_ns: u64) -> Vec<SettleAction<L>> {
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
    pub(crate) fn handle_broken(&self, by_client: bool, timed_out: bool) -> Vec<SettleAction<L>> {
        vec![SettleAction::End(match (by_client, timed_out) {
            (true, true) => EndReason::ClientTimedOut,
            (false, true) => EndReason::BackendTimedOut,
            (true, false) => EndReason::ClientReset,
            (false, false) => EndReason::BackendReset,
        })]
    }

    /// Whether both entries have the mark now.
    pub(crate) fn handle_marked(&self, marked: bool) -> Vec<SettleAction<L>> {
        vec![if marked { SettleAction::TellOffloaded } else { SettleAction::End(EndReason::Internal) }]
    }

    /// Packets of the flow show that it has ended; `is_finished`: by FINs that have arrived on both sides.
    pub(crate) fn handle_ended(&self, is_finished: bool) -> Option<Ending> {
        match self {
            Self::Alone if is_finished => Some(Ending::Fade),
            // A flow with sockets is checked again when they are closed.
            Self::Alone | Self::Entered { .. } | Self::Filling { .. } => (!is_finished).then_some(Ending::Reset),
            Self::Resetting { .. } | Self::Over => None,
        }
    }

    /// Both ends must be reset. First make the entries answer RST: the ends' further packets must find these. Then
    /// reset the sockets that this returns, and challenge both ends.
    pub(crate) fn handle_reset(&mut self, now_ns: u64) -> Option<L> {
        self.leave_for(Self::Resetting { rounds: 1, since_ns: now_ns })
    }

    /// It has ended by itself, and has no sockets.
    pub(crate) fn handle_over(&mut self) {
        *self = Self::Over;
    }

    /// A time that was set for the flow has come, perhaps for an earlier step.
    pub(crate) fn handle_due(&mut self) -> DueAction {
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

    /// The times of the last packets of client and backend; `None`: a silence of this end does not matter.
    pub(crate) fn handle_silence(&mut self, last_ns: [Option<u64>; 2]) -> Option<SilenceAction> {
        let Self::Resetting { rounds, since_ns } = self else { return None };
        *rounds = rounds.saturating_add(1);
        let silent = last_ns.map(|last_ns| last_ns.is_some_and(|last_ns| last_ns < *since_ns));
        Some(match *rounds > SILENT_ROUNDS || silent == [false; 2] {
            true => SilenceAction::Remove(silent),
            false => SilenceAction::Challenge(silent),
        })
    }

    pub(crate) fn has_sockets(&self) -> bool {
        self.closing().is_some()
    }

    /// Whether its end was reported or ordered.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self, Self::Over | Self::Resetting { .. })
    }

    pub(crate) fn closing(&self) -> Option<&L> {
        match self {
            Self::Entered { closing, .. } | Self::Filling { closing, .. } => Some(closing),
            Self::Alone | Self::Resetting { .. } | Self::Over => None,
        }
    }

    pub(crate) fn closing_mut(&mut self) -> Option<&mut L> {
        match self {
            Self::Entered { closing, .. } | Self::Filling { closing, .. } => Some(closing),
            Self::Alone | Self::Resetting { .. } | Self::Over => None,
        }
    }

    fn leave_for(&mut self, step: Self) -> Option<L> {
        match std::mem::replace(self, step) {
            Self::Entered { closing, .. } | Self::Filling { closing, .. } => Some(closing),
            Self::Alone | Self::Resetting { .. } | Self::Over => None,
        }
    }
}
