//! Starts the link to the peers, and takes it through upgrade and stop.

use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::model::fleet::{Command, Farewell, Remote};
use crate::peer;
use crate::table::Table;

/// Events for the takeover on their way, and its commands.
const REMOTES_MAX: usize = 16_384;
const COMMANDS_MAX: usize = 1024;

/// The link of this instance, if it has peers.
#[derive(Debug, Default)]
pub struct Peers {
    running: OnceLock<peer::Peers>,
}

/// The takeover's ends of the channels to the link.
#[derive(Debug)]
pub struct Ends {
    pub remotes: mpsc::Receiver<Remote>,
    pub commands: mpsc::Sender<Command>,
}

impl Peers {
    /// Has own flows noted from now on, if there are peers to be told. Call it before the first flow.
    pub fn expect(config: &Config, table: &Table) {
        table.fleet.set_enabled(config.peers.is_some());
    }

    /// Listens and connects. `None`: there are no peers. Needs a tokio runtime.
    pub fn start(&self, table: &Arc<Table>, config: watch::Receiver<Arc<Config>>) -> Option<Ends> {
        let (remotes_sender, remotes) = mpsc::channel(REMOTES_MAX);
        let (commands, commands_receiver) = mpsc::channel(COMMANDS_MAX);
        let running = peer::start(table.clone(), config, remotes_sender, commands_receiver)?;
        let _ = self.running.set(running);
        Some(Ends { remotes, commands })
    }

    /// Says goodbye: returns when all peers have been told, or soon after.
    pub async fn leave(&self, farewell: Farewell) {
        if let Some(running) = self.running.get() {
            running.leave(farewell).await;
        }
    }

    /// Goes on after [`Peers::leave`].
    pub async fn come_back(&self) {
        if let Some(running) = self.running.get() {
            running.come_back().await;
        }
    }
}

/// Takes note of nothing: what the peers tell is kept by the link itself only.
pub async fn listen_only(ends: Ends) {
    let Ends { mut remotes, commands: _commands } = ends;
    while remotes.recv().await.is_some() {}
}
