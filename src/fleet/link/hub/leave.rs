//! Leaving the fleet, for another process of this host or for good, and coming back.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::{Hub, HubOrder, Input, Lines, LiveLink, PeerHub};
use crate::config::PublicKey;
use crate::fleet::link::credentials::{Credentials, Proof};
use crate::model::fleet::{Epoch, Farewell, InstanceName, Message, SavedFleet, SavedPeer};
use crate::sys::clock::{now_ns, unix_ns};

/// How long the farewell to all peers may take.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

impl PeerHub {
    /// Says farewell to all peers, ends all links and stops listening. Own flows are still recorded. Returns what was known of the peers
    /// then, if another process goes on.
    pub(crate) async fn leave(&self, farewell: Farewell) -> Vec<SavedPeer> {
        let (done, left) = oneshot::channel();
        match self.orders.send(HubOrder::Leave { farewell, done }).await {
            Ok(()) => timeout(2 * FAREWELL_MAX, left).await.ok().and_then(Result::ok).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Links up again after [`PeerHub::leave`].
    pub(crate) async fn come_back(&self) {
        let _ = self.orders.send(HubOrder::Return).await;
    }
}

/// What the peers have proven to the process before this one. Whoever did it by a key that is no longer the peer's is not `saved`: what it
/// has told counts no more, nor do its beats, as after a reload.
pub(super) fn restore_proofs(saved: &mut SavedFleet, credentials: &Credentials) -> HashMap<InstanceName, Proof> {
    let mut proven = HashMap::new();
    saved.peers.retain(|peer| {
        let Some(key) = peer.public_key else { return true };
        let proof = credentials.proof_of(&PublicKey(key)).filter(|proof| proof.name() == Some(&peer.name));
        let is_known = proof.is_some();
        proven.extend(proof.map(|proof| (peer.name.clone(), proof)));
        is_known
    });
    proven
}

impl Hub {
    pub(super) async fn leave(&mut self, farewell: Farewell, inputs: &mut mpsc::Receiver<Input>) -> Vec<SavedPeer> {
        self.take_locals();
        // What has come must not be lost: its sender may not live to tell it again.
        while let Ok(input) = inputs.try_recv() {
            self.take_input(input);
        }
        self.take_beats(now_ns());
        let mut saved = match farewell {
            Farewell::Succeeded => self.exchange.save(now_ns()),
            Farewell::Stopped => Vec::new(),
        };
        for peer in &mut saved {
            if let Some(Proof::Own { peer: key, .. }) = self.proven.get(&peer.name) {
                peer.public_key = Some(key.0);
            }
        }
        self.away = true;
        (self.beats, self.former_beats) = (None, None);
        self.lines.shut();
        self.exchange.farewell(farewell);
        let now_ns = now_ns();
        for (peer, link) in std::mem::take(&mut self.links) {
            let goodbye = async {
                while let Ok(permit) = link.messages.reserve().await {
                    match self.exchange.poll_message(&peer, now_ns) {
                        Some(message @ Message::Farewell(_)) => {
                            permit.send(message);
                            break;
                        }
                        Some(message) => permit.send(message),
                        None => break,
                    }
                }
            };
            let _ = timeout(FAREWELL_MAX, goodbye).await;
            let LiveLink { messages, ended, .. } = link;
            drop(messages);
            // The link sends its last messages, then ends by itself.
            tokio::spawn(async move {
                sleep(FAREWELL_MAX).await;
                drop(ended);
            });
            self.exchange.handle_loss(&peer, "this process is being replaced or stopped", now_ns);
        }
        saved
    }

    pub(super) fn come_back(&mut self) {
        if !std::mem::take(&mut self.away) {
            return;
        }
        self.exchange.begin_again(Epoch(unix_ns()), now_ns());
        self.site.hello = self.exchange.hello();
        self.lines = Lines::open(&self.site, &self.settings);
    }
}
