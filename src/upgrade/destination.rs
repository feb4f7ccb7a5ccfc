//! The new process's side.
//!
//! It uses nothing before Begin, Commit or Done allows it; the old process sends each of these once and does not revoke
//! it. The rest depends on whether the old process gave up or died:
//! ```text
//!   Abort, or the old process lives and is silent   steps back: accepts no more, serves its flows, exits after the last
//!   the connection ends and the old process with it  takes everything: nobody else will
//! ```
//! In the first case the new process drops a batch that it has received without a Commit; in the second it imports it.
//! The old process serves such flows again only after it has sent Abort, which arrives before the end of the
//! connection.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::channel::{Channel, ChannelError};
use super::message::{
    Batch, Door, Hello, Imported, LastWord, Left, Message, PROTOCOL, Reasons, Refused, State, Welcome,
};
use crate::model::fleet::{SavedPeer, SavedPeerFlows};
use crate::table::flow_transfer::FlowTransfer;

/// The actions of the new process; `app` implements them.
pub(crate) trait NewProcess {
    /// Accepts from now on.
    fn begin(&mut self);

    /// Serves flows from now on; returns those that it cannot serve, unchanged.
    fn import(&mut self, flows: Vec<Arrived>) -> Vec<Refused>;

    /// The old process's peers, as it knew them.
    fn see_peers(&mut self, peers: Vec<SavedPeer>);

    /// Flows of one of these.
    fn see_peer_flows(&mut self, flows: SavedPeerFlows);

    /// The old process is done: opens the admin sockets and is the instance. `None`: the old process died without a
    /// last word.
    fn finish(&mut self, last: Option<&LastWord>);

    /// Accepts no more, and shuts the admin sockets if they are open; returns how many flows it still serves.
    fn step_back(&mut self) -> u64;

    /// Whether the old process has ended, or is about to.
    fn other_has_ended(&mut self) -> bool;
}

/// A flow and its sockets.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub transfer: FlowTransfer,
    pub sockets: Vec<OwnedFd>,
}

/// The offer of the old process.
#[derive(Debug)]
pub(crate) struct Offer {
    pub welcome: Welcome,
    pub doors: Vec<(Door, OwnedFd)>,
    pub state: State,
}

/// Why there was no offer. The old process continues.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoOffer {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("the old process gave up: {}", .0.join("; "))]
    Aborted(Vec<String>),
    #[error("the old process said {said} instead of {expected}")]
    OutOfTurn { said: &'static str, expected: &'static str },
    #[error("the old process chose version {chosen} of the upgrade, and this release speaks {} to {}", PROTOCOL.0, PROTOCOL.1)]
    Protocol { chosen: u32 },
}

/// The result of the upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The old process has given everything and is gone.
    Complete,
    /// The old process died during the upgrade: this process is the instance, with the flows that it was given.
    Imported,
    /// The old process continues.
    SteppedBack { why: String, flows: u64 },
}

/// Sends Hello and receives the old process's offer. Serves nothing yet.
pub(crate) fn meet(channel: &Channel, hello: Hello, limit: Duration) -> Result<Offer, NoOffer> {
    channel.send(&Message::Hello(hello), &[], limit)?;
    let welcome = match next(channel, limit)? {
        (Message::Welcome(welcome), _) => welcome,
        (other, _) => return Err(out_of_turn(&other, "welcome")),
    };
    if !(PROTOCOL.0..=PROTOCOL.1).contains(&welcome.protocol) {
        return Err(NoOffer::Protocol { chosen: welcome.protocol });
    }
    let mut doors = Vec::new();
    while doors.len() < welcome.doors {
        match next(channel, limit)? {
            (Message::Doors(names), sockets) if !names.is_empty() && names.len() == sockets.len() => {
                doors.extend(names.into_iter().zip(sockets));
            }
            (other, _) => return Err(out_of_turn(&other, "doors")),
        }
    }
    match next(channel, limit)? {
        (Message::State(state), _) => Ok(Offer { welcome, doors, state: *state }),
        (other, _) => Err(out_of_turn(&other, "state")),
    }
}

/// Tells the old process why this process cannot replace it.
pub(crate) fn refuse(channel: &Channel, reasons: Vec<String>, limit: Duration) {
    // The old process also notices when this process ends.
    let _ = channel.send(&Message::Refuse(Reasons(reasons)), &[], limit);
}

/// Runs the upgrade from Ready to its end. The old process may be silent for `patience`. Blocks; call it on a thread of
/// its own.
pub(crate) fn take<T: NewProcess>(channel: &Channel, new_process: &mut T, patience: Duration) -> Outcome {
    let mut destination = Destination { channel, new_process, patience, staged: None, begun: false, finished: false };
    destination.say(&Message::Ready);
    loop {
        if let Some(outcome) = destination.step() {
            return outcome;
        }
    }
}

struct Destination<'a, T> {
    channel: &'a Channel,
    new_process: &'a mut T,
    patience: Duration,
    /// A batch that was received without a Commit.
    staged: Option<(Batch, Vec<OwnedFd>)>,
    begun: bool,
    finished: bool,
}

impl<T: NewProcess> Destination<'_, T> {
    fn step(&mut self) -> Option<Outcome> {
        match self.channel.receive(self.patience) {
            Ok((message, sockets)) => self.handle(message, sockets),
            Err(_) if self.finished => Some(Outcome::Complete),
            Err(ChannelError::Closed | ChannelError::Cut) if self.new_process.other_has_ended() => {
                Some(self.go_on_alone())
            }
            Err(error) => Some(self.step_back(error.to_string())),
        }
    }

    fn handle(&mut self, message: Message, sockets: Vec<OwnedFd>) -> Option<Outcome> {
        match message {
            Message::Begin if !self.begun => {
                self.begin();
                self.say(&Message::Serving);
            }
            Message::Batch(batch) if self.begun && self.staged.is_none() => {
                let number = batch.number;
                self.staged = Some((batch, sockets));
                self.say(&Message::Received(number));
            }
            Message::Commit(number) if self.staged.as_ref().is_some_and(|(batch, _)| batch.number == number) => {
                let refused = self.import_staged();
                self.say(&Message::Imported(Imported { number, refused }));
            }
            Message::Peers(peers) if self.begun && self.staged.is_none() && !self.finished => {
                self.new_process.see_peers(peers);
            }
            Message::PeerFlows(flows) if self.begun && self.staged.is_none() && !self.finished => {
                self.new_process.see_peer_flows(flows);
            }
            Message::Done(last) if self.begun && self.staged.is_none() && !self.finished => {
                self.finished = true;
                self.new_process.finish(Some(&last));
                self.say(&Message::Finished);
            }
            Message::Abort(Reasons(reasons)) => return Some(self.step_back(reasons.join("; "))),
            other => return Some(self.step_back(format!("the old process said {} out of turn", other.name()))),
        }
        None
    }

    fn begin(&mut self) {
        self.begun = true;
        self.new_process.begin();
    }

    fn import_staged(&mut self) -> Vec<Refused> {
        let Some((batch, sockets)) = self.staged.take() else { return Vec::new() };
        let mut sockets = sockets.into_iter();
        let arrived = batch.flows.into_iter().map(|transfer| {
            let own = sockets.by_ref().take(transfer.sockets()).collect();
            Arrived { transfer, sockets: own }
        });
        self.new_process.import(arrived.collect())
    }

    fn go_on_alone(&mut self) -> Outcome {
        if !self.begun {
            self.begin();
        }
        self.import_staged();
        self.new_process.finish(None);
        Outcome::Imported
    }

    fn step_back(&mut self, why: String) -> Outcome {
        self.staged = None;
        let flows = self.new_process.step_back();
        // Sent after all answers, so that the old process knows which flows were imported.
        self.say(&Message::Left(Left { flows }));
        Outcome::SteppedBack { why, flows }
    }

    /// Ignores a failure, which shows at the next receive: the messages that the old process sent before its end
    /// decide.
    fn say(&self, message: &Message) {
        let _ = self.channel.send(message, &[], self.patience);
    }
}

fn next(channel: &Channel, limit: Duration) -> Result<(Message, Vec<OwnedFd>), NoOffer> {
    match channel.receive(limit)? {
        (Message::Abort(reasons), _) => Err(NoOffer::Aborted(reasons.0)),
        message => Ok(message),
    }
}

fn out_of_turn(said: &Message, expected: &'static str) -> NoOffer {
    NoOffer::OutOfTurn { said: said.name(), expected }
}
