//! The old process's side.
//!
//! After [`give`] has returned `Ok`, the new process has every flow that has not ended, and this process has nothing
//! left to do. After an error it serves its listeners as before, and all flows that the new process has not imported.
//!
//! A batch when the new process fails during it:
//! ```text
//!   before Commit was sent    put back: the new one must not touch it without Commit, and is told Abort first,
//!                             or killed if it cannot be told
//!   after Commit, it died     reset: it may have read bytes that died with it
//!   after Commit, it left     put back: it says Imported before Left, if it has imported anything
//!   after Commit, it hangs    forgotten: they are its flows; it is told Abort, and killed if it does not answer
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::channel::{Channel, ChannelError};
use super::message::{
    Batch, BatchNumber, Door, Hello, Imported, LastWord, Message, PROTOCOL, Refused, SINCE_PEERS, State, Welcome,
};
use crate::model::fleet::SavedFleet;
use crate::sys::clock::now_ns;
use crate::sys::fd_passing::FDS_MAX;
use crate::table::flow_transfer::FlowTransfer;

/// The actions of the old process; `app` implements them.
pub(crate) trait OldProcess {
    type MovingFlow: Load;

    /// Every listening socket, with those of the admin servers.
    fn doors(&self) -> io::Result<Vec<(Door, OwnedFd)>>;

    /// Why the process that sent `hello` cannot replace this one; `None`: it can. Called when the doors are sent.
    fn obstacle(&self, hello: &Hello) -> Option<String>;

    fn state(&self) -> Result<State, String>;

    /// Takes some flows out of service.
    fn take(&mut self) -> Result<TakenFlows<Self::MovingFlow>, String>;

    /// Serves flows again.
    fn put_back(&mut self, moving: Vec<Self::MovingFlow>);

    /// Forgets flows that the new process serves.
    fn forget_moved(&mut self, moving: Vec<Self::MovingFlow>);

    /// Resets flows that no process can serve.
    fn end(&mut self, moving: Vec<Self::MovingFlow>);

    /// Stops accepting, with the backlogs served, or begins again.
    fn park(&mut self, parked: bool) -> Result<(), String>;

    /// Flows that are still here.
    fn left(&self) -> usize;

    /// Ends the flows that are left and cannot be taken.
    fn end_the_rest(&mut self);

    /// Ceases to hear the peers; returns what this process knows of them.
    fn leave_fleet(&mut self) -> SavedFleet;

    /// The last word, to which the upgrade adds its own numbers.
    fn last_word(&self) -> LastWord;

    /// Closes the admin sockets without removing their files, or opens them again.
    fn shut_doors(&mut self, shut: bool);

    /// Makes sure that the new process no longer runs.
    fn kill_other(&mut self);

    fn progress(&mut self, progress: &SourceProgress);
}

/// A flow that was taken out of service.
pub(crate) trait Load {
    fn transfer(&self) -> &FlowTransfer;

    /// In the order that the transfer states.
    fn sockets(&self) -> Vec<BorrowedFd<'_>>;
}

#[derive(Debug)]
pub(crate) struct TakenFlows<P> {
    pub moving: Vec<P>,
    /// Whether all flows have been looked at once.
    pub whole_round: bool,
}

/// Limits for the duration of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// From the start of the new process until it has read its configuration and sends Hello.
    pub hello: Duration,
    /// Until it has built everything.
    pub ready: Duration,
    /// Any answer after that.
    pub answer: Duration,
    /// Until flows with an order to end have ended.
    pub last_flows: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let (hello, ready) = (Duration::from_secs(10), Duration::from_secs(10));
        Self { hello, ready, answer: Duration::from_secs(3), last_flows: Duration::from_secs(1) }
    }
}

/// The progress of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceProgress {
    pub step: SourceStep,
    /// Number of flows at the beginning, or more if more have moved.
    pub flows: u64,
    pub moved: u64,
    /// Bytes that moved undelivered.
    pub held_bytes: u64,
    pub batches: u64,
    /// The longest time for which a flow was with neither process.
    pub longest_pause: Duration,
    /// Flows that the new process could not serve.
    pub refused: Vec<Refused>,
    /// The new process's release.
    pub version: String,
    /// From the new process's Hello to the last word.
    pub took: Duration,
}

/// The present step of the old process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceStep {
    Hello,
    Doors,
    State,
    Ready,
    Begin,
    Serving,
    Batch,
    Received,
    Commit,
    Imported,
    Park,
    Done,
    Finished,
}

impl SourceStep {
    /// As a clause: "the upgrade failed while ...".
    pub fn label(self) -> &'static str {
        match self {
            Self::Hello => "waiting for the new process to read its file",
            Self::Doors => "giving the listeners",
            Self::State => "giving the state",
            Self::Ready => "waiting for the new process to be ready",
            Self::Begin => "asking the new process to accept",
            Self::Serving => "waiting for the new process to accept",
            Self::Batch => "giving flows",
            Self::Received => "waiting for the new process to receive flows",
            Self::Commit => "committing flows",
            Self::Imported => "waiting for the new process to import flows",
            Self::Park => "ceasing to accept connections",
            Self::Done => "sending the last message",
            Self::Finished => "waiting for the new process's last message",
        }
    }
}

/// Why an upgrade failed, or succeeded only in part.
#[derive(Debug, thiserror::Error)]
#[error("failed while {}: {why}", step.label())]
pub(crate) struct UpgradeFailure {
    pub step: SourceStep,
    pub why: Why,
    pub progress: SourceProgress,
    pub other: Other,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Why {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it refused: {}", .0.join("; "))]
    Refused(Vec<String>),
    #[error("it speaks versions {min} to {max} of the upgrade, and this release {} to {}", PROTOCOL.0, PROTOCOL.1)]
    Protocol { version: String, min: u32, max: u32 },
    #[error("it gave up; it goes on with {0} flows until they end")]
    Left(u64),
    #[error("it said {said} instead of {expected}")]
    OutOfTurn { said: &'static str, expected: &'static str },
    #[error("{0}")]
    Here(String),
}

/// The state of the new process after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// It no longer runs.
    Dead,
    /// It serves so many flows until their end, and then exits.
    Serves(u64),
    /// It may have flows and does not answer: it should be killed before its clients give up.
    Silent,
}

/// Gives everything to the new process. Blocks; call it on a thread of its own.
pub(crate) fn give<G: OldProcess>(
    channel: &Channel,
    old_process: &mut G,
    deadlines: &Deadlines,
) -> Result<SourceProgress, Box<UpgradeFailure>> {
    let progress = SourceProgress {
        step: SourceStep::Hello,
        flows: old_process.left() as u64,
        moved: 0,
        held_bytes: 0,
        batches: 0,
        longest_pause: Duration::ZERO,
        refused: Vec::new(),
        version: String::new(),
        took: Duration::ZERO,
    };
    let (begun, parked, shut, dead, told) = (false, false, false, false, None);
    let mut source = Source {
        channel,
        old_process,
        deadlines,
        protocol: PROTOCOL.0,
        progress,
        begun,
        parked,
        shut,
        dead,
        told,
        welcomed_at_ns: now_ns(),
    };
    match source.run() {
        Ok(()) => Ok(source.progress),
        Err(why) => Err(source.fail(why)),
    }
}

struct Source<'a, G> {
    channel: &'a Channel,
    old_process: &'a mut G,
    deadlines: &'a Deadlines,
    /// The version that both processes speak.
    protocol: u32,
    progress: SourceProgress,
    /// Whether the new process accepts, and so may have flows.
    begun: bool,
    parked: bool,
    shut: bool,
    /// Whether the new process was killed, or found dead.
    dead: bool,
    /// Whether an Abort is sure to arrive; `None`: none was sent.
    told: Option<bool>,
    welcomed_at_ns: u64,
}

impl<G: OldProcess> Source<'_, G> {
    fn run(&mut self) -> Result<(), Why> {
        self.introduce()?;
        self.at(SourceStep::Ready);
        self.expect(self.deadlines.ready, "ready", |message| matches!(message, Message::Ready).then_some(()))?;
        self.at(SourceStep::Begin);
        self.begun = true;
        self.send(&Message::Begin, &[])?;
        self.at(SourceStep::Serving);
        self.expect(self.deadlines.answer, "serving", |message| matches!(message, Message::Serving).then_some(()))?;

        // Both processes accept, so that no connection waits if the new process hangs.
        while !self.move_some()? {}
        self.at(SourceStep::Park);
        self.parked = true;
        self.old_process.park(true).map_err(Why::Here)?;
        self.move_the_rest()?;

        self.at(SourceStep::Done);
        self.shut = true;
        self.old_process.shut_doors(true);
        let fleet = self.old_process.leave_fleet();
        if self.protocol >= SINCE_PEERS {
            self.give_peers(fleet)?;
        }
        let last = self.last_word();
        self.send(&Message::Done(Box::new(last)), &[])?;
        self.at(SourceStep::Finished);
        self.expect(self.deadlines.answer, "finished", |message| matches!(message, Message::Finished).then_some(()))
    }

    /// A peer may die before the new process is linked with it. No peer hears this host meanwhile, so there is a limit for the time.
    fn give_peers(&mut self, fleet: SavedFleet) -> Result<(), Why> {
        if fleet.peers.is_empty() {
            return Ok(());
        }
        self.send(&Message::Peers(fleet.peers), &[])?;
        let until_ns = now_ns() + PEER_FLOWS_MAX.as_nanos() as u64;
        let mut parts = fleet.flows.into_iter();
        while let Some(part) = parts.next() {
            if now_ns() >= until_ns {
                let flows = part.flows.len() + parts.map(|part| part.flows.len()).sum::<usize>();
                tracing::warn!(flows, "the new process learns of these flows of peers only by its links");
                break;
            }
            self.send(&Message::PeerFlows(part), &[])?;
        }
        Ok(())
    }

    fn last_word(&mut self) -> LastWord {
        let progress = &mut self.progress;
        progress.took = Duration::from_nanos(now_ns().saturating_sub(self.welcomed_at_ns));
        LastWord {
            flows: progress.moved,
            held_bytes: progress.held_bytes,
            refused: progress.refused.len() as u64,
            longest_pause_us: progress.longest_pause.as_micros() as u64,
            took_us: progress.took.as_micros() as u64,
            ..self.old_process.last_word()
        }
    }

    fn introduce(&mut self) -> Result<(), Why> {
        self.at(SourceStep::Hello);
        let hello = self.expect(self.deadlines.hello, "hello", |message| match message {
            Message::Hello(hello) => Some(hello.clone()),
            _ => None,
        })?;
        self.progress.version.clone_from(&hello.version);
        let Some(protocol) = hello.common_protocol() else {
            let Hello { version, protocol_min: min, protocol_max: max, .. } = hello;
            return Err(Why::Protocol { version, min, max });
        };
        self.protocol = protocol;
        self.welcomed_at_ns = now_ns();
        self.at(SourceStep::Doors);
        let doors =
            self.old_process.doors().map_err(|error| Why::Here(format!("cannot pass on the listeners: {error}")))?;
        if let Some(why) = self.old_process.obstacle(&hello) {
            return Err(Why::Here(why));
        }
        let Hello { version, pid, .. } = Hello::here();
        self.send(&Message::Welcome(Welcome { version, protocol, pid, doors: doors.len() }), &[])?;
        for some in doors.chunks(FDS_MAX) {
            let names = some.iter().map(|(door, _)| door.clone()).collect();
            let fds: Vec<_> = some.iter().map(|(_, socket)| socket.as_fd()).collect();
            self.send(&Message::Doors(names), &fds)?;
        }
        self.at(SourceStep::State);
        let state = Box::new(self.old_process.state().map_err(Why::Here)?);
        self.send(&Message::State(state), &[])
    }

    /// Moves one batch; returns whether all flows have been looked at.
    fn move_some(&mut self) -> Result<bool, Why> {
        self.progress.step = SourceStep::Batch;
        let taken_at_ns = now_ns();
        let TakenFlows { moving, whole_round } = self.old_process.take().map_err(Why::Here)?;
        if moving.is_empty() {
            return Ok(whole_round);
        }
        let number = BatchNumber(self.progress.batches + 1);
        let flows: Vec<_> = moving.iter().map(|moving_flow| moving_flow.transfer().clone()).collect();
        let held_bytes = flows.iter().map(|flow| flow.held_bytes() as u64).sum::<u64>();
        if let Err(why) = self.offer(number, flows, &moving) {
            return Err(self.keep(moving, why));
        }
        self.progress.step = SourceStep::Commit;
        if let Err(why) = self.send(&Message::Commit(number), &[]) {
            // The Commit was not sent, not even in part: it is short, and the new process had read everything before
            // it.
            return Err(self.keep(moving, why));
        }
        self.progress.step = SourceStep::Imported;
        let imported = self.expect(self.deadlines.answer, "imported", |message| match message {
            Message::Imported(imported) if imported.number == number => Some(imported.clone()),
            _ => None,
        });
        match imported {
            Ok(Imported { refused, .. }) => self.settle(moving, refused),
            Err(why) => {
                match why {
                    Why::Left(_) => self.old_process.put_back(moving),
                    Why::Channel(ChannelError::Closed | ChannelError::Cut) => {
                        self.kill();
                        self.old_process.end(moving);
                    }
                    _ => {
                        self.progress.moved += moving.len() as u64;
                        self.old_process.forget_moved(moving);
                    }
                }
                return Err(why);
            }
        }
        self.progress.batches += 1;
        self.progress.held_bytes += held_bytes;
        let pause = Duration::from_nanos(now_ns().saturating_sub(taken_at_ns));
        self.progress.longest_pause = self.progress.longest_pause.max(pause);
        self.at(SourceStep::Batch);
        Ok(whole_round)
    }

    fn offer(&mut self, number: BatchNumber, flows: Vec<FlowTransfer>, moving: &[G::MovingFlow]) -> Result<(), Why> {
        let sockets: Vec<_> = moving.iter().flat_map(Load::sockets).collect();
        self.send(&Message::Batch(Batch { number, flows }), &sockets)?;
        self.progress.step = SourceStep::Received;
        self.expect(self.deadlines.answer, "received", |message| match message {
            Message::Received(received) if *received == number => Some(()),
            _ => None,
        })
    }

    /// The new process has the flows, except those that it `refused`.
    fn settle(&mut self, moving: Vec<G::MovingFlow>, refused: Vec<Refused>) {
        let is_refused =
            |moving_flow: &G::MovingFlow| refused.iter().any(|refused| refused.flow == moving_flow.transfer().id);
        let (unwanted, imported): (Vec<_>, Vec<_>) = moving.into_iter().partition(is_refused);
        self.progress.moved += imported.len() as u64;
        self.old_process.forget_moved(imported);
        self.old_process.end(unwanted);
        self.progress.refused.extend(refused);
    }

    /// Serves the flows of an uncommitted batch again.
    fn keep(&mut self, moving: Vec<G::MovingFlow>, why: Why) -> Why {
        // Before a byte of these flows moves here again, the Abort must be on its way, or the new process dead.
        if !matches!(why, Why::Left(_)) && !self.abort(&why) {
            self.kill();
        }
        self.old_process.put_back(moving);
        why
    }

    /// Returns whether the new process will receive it.
    fn abort(&mut self, why: &Why) -> bool {
        *self.told.get_or_insert_with(|| self.channel.abort(&why.to_string()))
    }

    fn kill(&mut self) {
        if !std::mem::replace(&mut self.dead, true) {
            self.old_process.kill_other();
        }
    }

    fn move_the_rest(&mut self) -> Result<(), Why> {
        let deadline_ns = now_ns() + self.deadlines.last_flows.as_nanos() as u64;
        let mut ending = false;
        loop {
            while !self.move_some()? {}
            let left = self.old_process.left();
            if left == 0 {
                return Ok(());
            }
            if now_ns() >= deadline_ns && !ending {
                // Flows with an order to end that are still here end early.
                ending = true;
                self.old_process.end_the_rest();
            } else if now_ns() >= deadline_ns + self.deadlines.answer.as_nanos() as u64 {
                return Err(Why::Here(format!("{left} flows have not ended in time")));
            }
            // Workers release flows in their own time, without a notification.
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Continues as if there had been no upgrade.
    fn fail(&mut self, why: Why) -> Box<UpgradeFailure> {
        let step = self.progress.step;
        let other = match &why {
            Why::Left(flows) => Other::Serves(*flows),
            // Its end of the connection closes only when it dies, unless it has sent Left.
            Why::Channel(ChannelError::Closed | ChannelError::Cut) => Other::Dead,
            _ if self.dead || !self.begun => Other::Dead,
            _ => {
                self.abort(&why);
                Other::Silent
            }
        };
        if other == Other::Dead {
            self.kill();
        }
        if self.parked
            && let Err(error) = self.old_process.park(false)
        {
            tracing::error!(%error, "a worker cannot resume accepting after a failed upgrade");
        }
        if self.shut {
            self.old_process.shut_doors(false);
        }
        Box::new(UpgradeFailure { step, why, progress: self.progress.clone(), other })
    }

    fn at(&mut self, step: SourceStep) {
        self.progress.step = step;
        self.progress.flows = self.progress.flows.max(self.progress.moved);
        self.old_process.progress(&self.progress);
    }

    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Why> {
        match self.channel.send(message, fds, self.deadlines.answer) {
            Ok(()) => Ok(()),
            // It may have closed its end because it left, and sent Left before.
            Err(ChannelError::Closed) => match farewell(self.channel, Duration::ZERO) {
                Other::Serves(flows) => Err(Why::Left(flows)),
                Other::Dead | Other::Silent => Err(ChannelError::Closed.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn expect<T>(
        &self,
        limit: Duration,
        expected: &'static str,
        wanted: impl Fn(&Message) -> Option<T>,
    ) -> Result<T, Why> {
        let (message, _) = self.channel.receive(limit)?;
        match (wanted(&message), message) {
            (Some(found), _) => Ok(found),
            (None, Message::Refuse(reasons)) => Err(Why::Refused(reasons.0)),
            (None, Message::Left(left)) => Err(Why::Left(left.flows)),
            (None, other) => Err(Why::OutOfTurn { said: other.name(), expected }),
        }
    }
}

/// Waits for the new process's Left after a failure that left it with flows.
pub(crate) fn farewell(channel: &Channel, limit: Duration) -> Other {
    let deadline_ns = now_ns() + limit.as_nanos() as u64;
    loop {
        let left_ns = deadline_ns.saturating_sub(now_ns());
        match channel.receive(Duration::from_nanos(left_ns)) {
            Ok((Message::Left(left), _)) => return Other::Serves(left.flows),
            // Late answers.
            Ok(_) => {}
            Err(ChannelError::Closed | ChannelError::Cut) => return Other::Dead,
            Err(_) => return Other::Silent,
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Limit for giving the peers' flows.
const PEER_FLOWS_MAX: Duration = Duration::from_secs(2);
