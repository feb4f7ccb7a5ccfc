//! By what an instance proves itself to its peers, and by what it knows them.

use crate::config::{self, PeerKey, PrivateKey, PublicKey};
use crate::model::fleet::InstanceName;

/// What this instance may prove itself by, and whom it believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// All valid shared keys, first the one that this instance offers.
    pub shared: Vec<PeerKey>,
    pub own: Option<PrivateKey>,
    /// Each peer's keys, first its present one.
    pub pinned: Vec<(PublicKey, InstanceName)>,
}

/// What the two ends of a link have proven to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Both have this key, which any instance of the fleet may have.
    Shared(PeerKey),
    /// Each has its own.
    Own { own: PublicKey, peer: PublicKey, name: InstanceName },
}

impl Credentials {
    pub(crate) fn of(settings: &config::Peers) -> Self {
        let shared = settings.shared.iter().map(|shared| &shared.key).chain(&settings.shared_previous);
        let pinned = settings.peers.iter().flat_map(|peer| peer.public_keys.iter().map(|key| (key, &peer.name)));
        Self {
            shared: shared.cloned().collect(),
            own: settings.own_key.as_ref().map(|own| own.key.clone()),
            pinned: pinned.map(|(key, name)| (key.clone(), name.clone())).collect(),
        }
    }

    /// The ways to prove itself to `peer`, the best one first: the peer may not know all of them yet.
    pub(crate) fn toward(&self, peer: &InstanceName) -> Vec<Proof> {
        let own = self.pinned.iter().filter(|(_, name)| name == peer).filter_map(|(key, _)| self.proof_of(key));
        own.chain(self.shared.iter().cloned().map(Proof::Shared)).collect()
    }

    /// What an end with the key `peer` has proven. `None`: no instance has it, or this one has no key of its own.
    pub(crate) fn proof_of(&self, peer: &PublicKey) -> Option<Proof> {
        let (_, name) = self.pinned.iter().find(|(key, _)| key == peer)?;
        Some(Proof::Own { own: self.own.as_ref()?.public(), peer: peer.clone(), name: name.clone() })
    }

    /// Whether `proof` is by a key of which the file says no longer that it is this peer's: it may have been stolen. Another
    /// shared key disowns nobody, because whoever changes it changes it for all.
    pub(crate) fn disown(&self, proof: &Proof) -> bool {
        match proof {
            Proof::Shared(_) => false,
            Proof::Own { peer, name, .. } => !self.pinned.iter().any(|(key, of)| (key, of) == (peer, name)),
        }
    }

    /// Why a link with `name` is one by a shared key though its own is known. `None`: it is not.
    pub(crate) fn why_shared(&self, proof: &Proof, name: &InstanceName) -> Option<String> {
        let by_shared = matches!(proof, Proof::Shared(_)) && self.own.is_some();
        let is_pinned = by_shared && self.pinned.iter().any(|(_, of)| of == name);
        is_pinned.then(|| {
            format!(
                "{name} and this instance know each other by the shared key alone: without it there would be no link. Compare the \
                 public_key in both files with what `baton genkey --identity FILE` prints at the other"
            )
        })
    }

    /// Whether a link that began by `proof` may go on.
    pub(crate) fn still_hold(&self, proof: &Proof) -> bool {
        match proof {
            Proof::Shared(key) => self.shared.contains(key),
            Proof::Own { peer, .. } => self.proof_of(peer).as_ref() == Some(proof),
        }
    }
}

impl Proof {
    /// Whose it is. `None`: that of any instance.
    pub(crate) fn name(&self) -> Option<&InstanceName> {
        match self {
            Self::Shared(_) => None,
            Self::Own { name, .. } => Some(name),
        }
    }
}
