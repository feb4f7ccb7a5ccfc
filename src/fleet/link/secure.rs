//! The handshake and the encryption: Noise (revision 34), by the keys of the instances or by one that they share.
//!
//! `IK`: each end has a key of its own, which the other end's file names. So nobody can speak for another instance.
//! `NNpsk0`: a secret that both ends share beforehand. In both, keys are fresh for each connection, so that a secret that
//! leaks later does not decrypt recorded traffic, and an end without a valid key fails at the first message.

use std::io;
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::credentials::{Credentials, Proof};
use super::wire::{self, FRAME_MAX, FrameError, FrameTooLong, PREAMBLE_BYTES, SEAL_BYTES, VERSIONS, Version, Versions};
use crate::config::{PeerKey, PrivateKey, PublicKey};
use crate::model::fleet::Message;

const BY_SHARED: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const BY_OWN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

/// Length of the first message of a handshake by a shared key: a public key and a seal.
const FIRST_BY_SHARED: usize = 48;
/// The same by own keys: a public key, another one that is sealed, and a seal.
const FIRST_BY_OWN: usize = 96;
/// Length of the answer, in both: a public key and a seal.
const ANSWER_BYTES: usize = 48;

/// Why a link failed or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it closed the connection")]
    Closed,
    #[error("it is silent")]
    TimedOut,
    #[error("the program at that address is not Baton")]
    NotAPeer,
    #[error(
        "it speaks {theirs} of the peer protocol, this instance {VERSIONS}; bring both to releases that have one in common"
    )]
    Version { theirs: Versions },
    #[error("its key differs from this instance's: peers.key_file must hold the same key on all instances")]
    Key,
    #[error(
        "it does not know this instance's key, or has another than {0}; public_key of each must be the one that \
         `baton genkey --identity FILE` prints at the other"
    )]
    Identity(PublicKey),
    #[error("its key {0} is that of no [[peers.peer]] here")]
    Unknown(PublicKey),
    #[error("it offers a shared key, and this instance knows its peers by their own: set private_key_file there")]
    NoShared,
    #[error("it offers a key of its own, and this instance has no private_key_file")]
    NoOwn,
    #[error("cannot decrypt a frame: it was altered on the way")]
    Seal,
    #[error("cannot read a message: {0}")]
    Decode(#[from] FrameError),
    #[error(transparent)]
    FrameTooLong(#[from] FrameTooLong),
    #[error("it sent a message before its hello")]
    NoHello,
    #[error("{0} answers there")]
    Name(String),
    /// This instance refused the link.
    #[error("{0}")]
    Refused(String),
    #[error("it refuses: {0}")]
    RefusedByIt(String),
    #[error("this instance closed the link")]
    Dropped,
}

impl LinkError {
    /// Whether the other end has closed or reset the connection.
    pub(crate) fn is_hangup(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Io(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}

/// Encrypts and writes messages.
pub(crate) struct Sealer {
    version: Version,
    state: Arc<StatelessTransportState>,
    nonce: u64,
}

/// Reads and decrypts messages.
pub(crate) struct Opener {
    version: Version,
    state: Arc<StatelessTransportState>,
    nonce: u64,
    plain: Vec<u8>,
}

/// Both halves of a connection on which the other end has proven that it has the key.
pub(crate) type Secured = (Sealer, Opener);

/// The handshake of the end that made the connection, by `proof`.
pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
    proof: &Proof,
) -> Result<Secured, LinkError> {
    stream.write_all(&VERSIONS.preamble()).await?;
    let (theirs, version) = preamble(stream).await?;
    let prologue = [VERSIONS.preamble(), theirs.preamble()].concat();
    let (mut handshake, refused) = match proof {
        Proof::Shared(key) => (by_shared(key, &prologue, true)?, LinkError::Key),
        Proof::Own { peer, .. } => {
            let own = credentials.own.as_ref().ok_or(LinkError::NoOwn)?;
            (by_own(own, Some(peer), &prologue)?, LinkError::Identity(peer.clone()))
        }
    };
    let mut message = [0; FIRST_BY_OWN];
    let length = handshake.write_message(&[], &mut message).map_err(|_| LinkError::Seal)?;
    send(stream, &message[..length]).await?;
    match receive(stream, &[ANSWER_BYTES]).await? {
        Some(answer) if handshake.read_message(&answer, &mut []).is_ok() => secured(handshake, version),
        _ => Err(refused),
    }
}

/// The handshake of the end that accepted the connection. Returns what the other end has proven.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
) -> Result<(Secured, Proof), LinkError> {
    // Sent first, so that a peer of another version learns which versions this instance supports.
    stream.write_all(&VERSIONS.preamble()).await?;
    let (theirs, version) = preamble(stream).await?;
    let prologue = [theirs.preamble(), VERSIONS.preamble()].concat();
    let first = receive(stream, &[FIRST_BY_SHARED, FIRST_BY_OWN]).await?.ok_or(LinkError::Key)?;
    let known = match first.len() {
        FIRST_BY_SHARED => know_shared(credentials, &prologue, &first),
        _ => know_own(credentials, &prologue, &first),
    };
    match known {
        Ok((mut handshake, proof)) => {
            let mut answer = [0; ANSWER_BYTES];
            handshake.write_message(&[], &mut answer).map_err(|_| LinkError::Seal)?;
            send(stream, &answer).await?;
            Ok((secured(handshake, version)?, proof))
        }
        Err(why) => {
            stream.write_all(&[0, 0]).await?;
            Err(why)
        }
    }
}

/// By which of the shared keys the other end began.
fn know_shared(credentials: &Credentials, prologue: &[u8], first: &[u8]) -> Result<(HandshakeState, Proof), LinkError> {
    for key in &credentials.shared {
        let mut handshake = by_shared(key, prologue, false)?;
        if handshake.read_message(first, &mut []).is_ok() {
            return Ok((handshake, Proof::Shared(key.clone())));
        }
    }
    Err(if credentials.shared.is_empty() { LinkError::NoShared } else { LinkError::Key })
}

/// As which of the peers the other end began.
fn know_own(credentials: &Credentials, prologue: &[u8], first: &[u8]) -> Result<(HandshakeState, Proof), LinkError> {
    let own = credentials.own.as_ref().ok_or(LinkError::NoOwn)?;
    let mut handshake = by_own(own, None, prologue)?;
    // It was sealed for another key than this instance's, or altered.
    handshake.read_message(first, &mut []).map_err(|_| LinkError::Identity(own.public()))?;
    let peer = handshake.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
    let peer = peer.ok_or(LinkError::Seal)?;
    let proof = credentials.proof_of(&peer).ok_or(LinkError::Unknown(peer))?;
    Ok((handshake, proof))
}

/// Reads the other end's versions, and returns them with the version that both use.
async fn preamble<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(Versions, Version), LinkError> {
    let mut bytes = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut bytes).await.map_err(closed)?;
    let theirs = Versions::parse(&bytes).ok_or(LinkError::NotAPeer)?;
    let version = theirs.spoken().ok_or(LinkError::Version { theirs })?;
    Ok((theirs, version))
}

fn by_shared(key: &PeerKey, prologue: &[u8], makes: bool) -> Result<HandshakeState, LinkError> {
    let params = BY_SHARED.parse().map_err(|_| LinkError::Seal)?;
    let builder = Builder::new(params).psk(0, &key.0).and_then(|builder| builder.prologue(prologue));
    let built = builder.and_then(|builder| if makes { builder.build_initiator() } else { builder.build_responder() });
    built.map_err(|_| LinkError::Seal)
}

/// `peer`: whom to begin with. `None`: the other end begins.
fn by_own(own: &PrivateKey, peer: Option<&PublicKey>, prologue: &[u8]) -> Result<HandshakeState, LinkError> {
    let params = BY_OWN.parse().map_err(|_| LinkError::Seal)?;
    let builder = Builder::new(params).local_private_key(&own.0).and_then(|builder| builder.prologue(prologue));
    let built = builder.and_then(|builder| match peer {
        Some(peer) => builder.remote_public_key(&peer.0)?.build_initiator(),
        None => builder.build_responder(),
    });
    built.map_err(|_| LinkError::Seal)
}

fn secured(handshake: HandshakeState, version: Version) -> Result<Secured, LinkError> {
    let state = Arc::new(handshake.into_stateless_transport_mode().map_err(|_| LinkError::Seal)?);
    Ok((
        Sealer { version, state: state.clone(), nonce: 0 },
        Opener { version, state, nonce: 0, plain: vec![0; FRAME_MAX] },
    ))
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, message: &[u8]) -> Result<(), LinkError> {
    let length = u16::try_from(message.len()).map_err(|_| FrameTooLong(message.len()))?;
    Ok(stream.write_all(&[&length.to_be_bytes(), message].concat()).await?)
}

/// A message of one of these lengths. `None`: the other end refuses.
async fn receive<S: AsyncRead + Unpin>(stream: &mut S, lengths: &[usize]) -> Result<Option<Vec<u8>>, LinkError> {
    match usize::from(stream.read_u16().await.map_err(closed)?) {
        0 => Ok(None),
        length if lengths.contains(&length) => {
            let mut message = vec![0; length];
            stream.read_exact(&mut message).await.map_err(closed)?;
            Ok(Some(message))
        }
        _ => Err(LinkError::NotAPeer),
    }
}

/// An end of file is a regular end of the link, not a network error.
pub(crate) fn closed(error: io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => LinkError::Closed,
        _ => LinkError::Io(error),
    }
}

impl Sealer {
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Adds the frame of `message` to `out`.
    pub(crate) fn write(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<(), LinkError> {
        self.seal(&wire::encode(message, self.version)?, out)
    }

    /// Adds the frame of `plain` to `out`.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), LinkError> {
        let length = plain.len() + SEAL_BYTES;
        let short = u16::try_from(length).map_err(|_| FrameTooLong(plain.len()))?;
        out.extend(short.to_be_bytes());
        let start = out.len();
        out.resize(start + length, 0);
        self.state.write_message(self.nonce, plain, &mut out[start..]).map_err(|_| LinkError::Seal)?;
        self.nonce += 1;
        Ok(())
    }
}

impl Opener {
    /// Decrypts `frame`, which comes without its length, and returns its message.
    pub(crate) fn read(&mut self, frame: &[u8]) -> Result<Message, LinkError> {
        let version = self.version;
        Ok(wire::decode(self.open(frame)?, version)?)
    }

    /// Decrypts `frame`, which comes without its length.
    fn open(&mut self, frame: &[u8]) -> Result<&[u8], LinkError> {
        let length = self.state.read_message(self.nonce, frame, &mut self.plain).map_err(|_| LinkError::Seal)?;
        self.nonce += 1;
        Ok(&self.plain[..length])
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("nonce", &self.nonce).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("nonce", &self.nonce).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::InstanceName;
    use tokio::io::duplex;

    /// An instance that shares these keys with the others, and offers the first.
    fn sharing(bytes: &[u8]) -> Credentials {
        let shared = bytes.iter().map(|byte| PeerKey([*byte; 32])).collect();
        Credentials { shared, own: None, pinned: Vec::new() }
    }

    /// An instance with a key of its own that knows others by theirs.
    fn knowing(own: u8, others: &[(u8, &str)]) -> Credentials {
        let pinned = others.iter().map(|(byte, name)| (PrivateKey([*byte; 32]).public(), InstanceName((*name).into())));
        Credentials { shared: Vec::new(), own: Some(PrivateKey([own; 32])), pinned: pinned.collect() }
    }

    /// Both ends of a handshake in which `near` takes its first way to prove itself to lb-b.
    async fn meet(near: &Credentials, far: &Credentials) -> (Result<Secured, LinkError>, Result<Proof, LinkError>) {
        let (mut one, mut other) = duplex(4096);
        let proof = near.toward(&InstanceName("lb-b".into())).remove(0);
        let (made, taken) = tokio::join!(connect(&mut one, near, &proof), accept(&mut other, far));
        (made, taken.map(|(_, proof)| proof))
    }

    #[tokio::test]
    async fn what_is_sealed_at_one_end_opens_at_the_other_in_its_order_only() {
        let (mut near, mut far) = duplex(4096);
        let (key, proof) = (sharing(&[1]), Proof::Shared(PeerKey([1; 32])));
        let (made, taken) = tokio::join!(connect(&mut near, &key, &proof), accept(&mut far, &key));
        let ((mut seals, mut own_opens), ((mut far_seals, mut opens), _)) = (made.unwrap(), taken.unwrap());
        let mut frames = Vec::new();
        for text in [&b"one"[..], b"", &[7; 60_000]] {
            let mut frame = Vec::new();
            seals.seal(text, &mut frame).unwrap();
            frames.push((text, frame));
        }
        assert!(opens.open(&frames[1].1[2..]).is_err(), "another place in the order");
        for (text, frame) in &frames {
            assert_eq!(opens.open(&frame[2..]).unwrap(), *text);
        }
        let mut frame = Vec::new();
        far_seals.seal(b"back", &mut frame).unwrap();
        assert!(opens.open(&frame[2..]).is_err(), "its own direction");
        frame[5] ^= 1;
        assert!(own_opens.open(&frame[2..]).is_err(), "altered");
        assert!(seals.seal(&[0; FRAME_MAX - SEAL_BYTES + 1], &mut Vec::new()).is_err());
    }

    #[tokio::test]
    async fn a_wrong_key_is_said_to_both_ends() {
        let (made, taken) = meet(&sharing(&[1]), &sharing(&[2, 3])).await;
        for error in [made.unwrap_err(), taken.unwrap_err()] {
            assert!(matches!(error, LinkError::Key), "{error}");
        }
    }

    #[tokio::test]
    async fn each_of_the_keys_of_the_end_that_accepts_makes_a_link() {
        for byte in [1, 2] {
            let (made, taken) = meet(&sharing(&[byte]), &sharing(&[1, 2])).await;
            assert!(made.is_ok());
            assert_eq!(taken.unwrap(), Proof::Shared(PeerKey([byte; 32])));
        }
    }

    #[tokio::test]
    async fn an_end_is_known_by_its_own_key_and_by_no_other() {
        let (made, taken) = meet(&knowing(1, &[(2, "lb-b")]), &knowing(2, &[(1, "lb-a"), (3, "lb-c")])).await;
        assert!(made.is_ok());
        assert_eq!(taken.unwrap().name(), Some(&InstanceName("lb-a".into())));
        // Whom nobody has pinned, who calls a key that is not this instance's, and who has no key of its own.
        let unknown = meet(&knowing(4, &[(2, "lb-b")]), &knowing(2, &[(1, "lb-a")])).await;
        assert!(matches!(&unknown, (Err(LinkError::Identity(_)), Err(LinkError::Unknown(_)))), "{unknown:?}");
        let misaddressed = meet(&knowing(1, &[(5, "lb-b")]), &knowing(2, &[(1, "lb-a")])).await;
        assert!(
            matches!(&misaddressed, (Err(LinkError::Identity(_)), Err(LinkError::Identity(_)))),
            "{misaddressed:?}"
        );
        let shared = meet(&sharing(&[1]), &knowing(2, &[(1, "lb-a")])).await;
        assert!(matches!(&shared, (Err(LinkError::Key), Err(LinkError::NoShared))), "{shared:?}");
        let own = meet(&knowing(1, &[(2, "lb-b")]), &sharing(&[1])).await;
        assert!(matches!(&own, (Err(LinkError::Identity(_)), Err(LinkError::NoOwn))), "{own:?}");
    }

    /// Otherwise a recorded first message would make a link: only the answer shows that the end has its key now.
    #[tokio::test]
    async fn a_repeated_first_message_opens_nothing() {
        let (near, far) = (knowing(1, &[(2, "lb-b")]), knowing(2, &[(1, "lb-a")]));
        let prologue = [VERSIONS.preamble(), VERSIONS.preamble()].concat();
        let peer = PrivateKey([2; 32]).public();
        let mut first = [0; FIRST_BY_OWN];
        by_own(near.own.as_ref().unwrap(), Some(&peer), &prologue).unwrap().write_message(&[], &mut first).unwrap();
        for _ in 0..2 {
            let (mut stranger, mut end) = duplex(4096);
            stranger.write_all(&VERSIONS.preamble()).await.unwrap();
            send(&mut stranger, &first).await.unwrap();
            let ((_, mut opens), _) = accept(&mut end, &far).await.unwrap();
            // What he has recorded of the first link, or makes up.
            assert!(opens.open(&[7; 64]).is_err());
        }
    }

    #[tokio::test]
    async fn a_peer_of_another_version_is_refused_and_both_can_say_so() {
        for connects in [true, false] {
            let (mut near, mut far) = duplex(4096);
            let later = Versions { lowest: 7, highest: 9 };
            far.write_all(&later.preamble()).await.unwrap();
            let (key, proof) = (sharing(&[1]), Proof::Shared(PeerKey([1; 32])));
            let made = match connects {
                true => connect(&mut near, &key, &proof).await,
                false => accept(&mut near, &key).await.map(|(secured, _)| secured),
            };
            let said = made.unwrap_err().to_string();
            assert!(
                said.contains("speaks versions 7 to 9 of the peer protocol, this instance versions 1 to 3"),
                "{said}"
            );
            let mut heard = [0; PREAMBLE_BYTES];
            far.read_exact(&mut heard).await.unwrap();
            assert_eq!(Versions::parse(&heard), Some(VERSIONS));
        }
    }

    /// As in the middle of an upgrade of the fleet.
    #[tokio::test]
    async fn a_release_that_has_version_1_alone_gets_no_summary() {
        for connects in [true, false] {
            let (mut near, mut far) = duplex(64 * 1024);
            let (key, credentials) = (PeerKey([1; 32]), sharing(&[1]));
            let earlier = Versions { lowest: 1, highest: 1 }.preamble();
            let other = async {
                far.write_all(&earlier).await.unwrap();
                let mut theirs = [0; PREAMBLE_BYTES];
                far.read_exact(&mut theirs).await.unwrap();
                let mut message = [0; ANSWER_BYTES];
                let (maker, taker) = if connects { (theirs, earlier) } else { (earlier, theirs) };
                let mut handshake = by_shared(&key, &[maker, taker].concat(), !connects).unwrap();
                if connects {
                    let first = receive(&mut far, &[FIRST_BY_SHARED]).await.unwrap().unwrap();
                    handshake.read_message(&first, &mut []).unwrap();
                }
                handshake.write_message(&[], &mut message).unwrap();
                send(&mut far, &message).await.unwrap();
                if !connects {
                    let answer = receive(&mut far, &[ANSWER_BYTES]).await.unwrap().unwrap();
                    handshake.read_message(&answer, &mut []).unwrap();
                }
                secured(handshake, Version::One).unwrap()
            };
            let this = async {
                match connects {
                    true => connect(&mut near, &credentials, &Proof::Shared(key.clone())).await.unwrap(),
                    false => accept(&mut near, &credentials).await.unwrap().0,
                }
            };
            let ((mut seals, mut opens), (mut its_seals, mut its_opens)) = tokio::join!(this, other);
            assert!(!seals.version().has_summaries());
            let mut frame = Vec::new();
            seals.write(&Message::Whole, &mut frame).unwrap();
            assert_eq!(its_opens.read(&frame[2..]).unwrap(), Message::Whole);
            // A summary cannot come by such a link either.
            let summary = wire::encode(&Message::Summary(Box::default()), Version::Two).unwrap();
            frame.clear();
            its_seals.seal(&summary, &mut frame).unwrap();
            assert!(matches!(opens.read(&frame[2..]), Err(LinkError::Decode(FrameError::Later))));
        }
    }

    #[tokio::test]
    async fn strangers_do_not_get_past_the_first_bytes() {
        let mut long = VERSIONS.preamble().to_vec();
        long.extend([0xff, 0xff, 1, 2, 3]);
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &long] {
            let (mut near, mut far) = duplex(4096);
            far.write_all(bytes).await.unwrap();
            assert!(matches!(accept(&mut near, &sharing(&[1])).await, Err(LinkError::NotAPeer)));
        }
        let (mut near, mut far) = duplex(4096);
        far.write_all(b"BTN").await.unwrap();
        drop(far);
        assert!(accept(&mut near, &sharing(&[1])).await.is_err());
    }
}
