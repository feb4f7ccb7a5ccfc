//! The handshake and the encryption: Noise (revision 34) with a secret that both ends share beforehand.
//!
//! `NNpsk0`: fresh keys for each connection. So a secret that leaks later does not decrypt recorded traffic, and an end
//! without the secret fails at the first message.

use std::io;
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::wire::{self, FRAME_MAX, FrameError, FrameTooLong, PREAMBLE_BYTES, SEAL_BYTES, VERSIONS, Version, Versions};
use crate::config::PeerKey;
use crate::model::fleet::Message;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Length of a handshake message of this pattern: a public key and a seal.
const HANDSHAKE_BYTES: usize = 48;

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

/// The handshake of the end that made the connection.
pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    key: &PeerKey,
) -> Result<Secured, LinkError> {
    stream.write_all(&VERSIONS.preamble()).await?;
    let (theirs, version) = preamble(stream).await?;
    let mut handshake = handshake(key, VERSIONS.preamble(), theirs.preamble(), true)?;
    let mut message = [0; HANDSHAKE_BYTES];
    handshake.write_message(&[], &mut message).map_err(|_| LinkError::Seal)?;
    send(stream, &message).await?;
    handshake.read_message(&receive(stream).await?, &mut []).map_err(|_| LinkError::Key)?;
    secured(handshake, version)
}

/// The handshake of the end that accepted the connection, with that of `keys` which the other end has.
pub(crate) async fn accept<'a, S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    keys: &'a [PeerKey],
) -> Result<(Secured, &'a PeerKey), LinkError> {
    // Sent first, so that a peer of another version learns which versions this instance supports.
    stream.write_all(&VERSIONS.preamble()).await?;
    let (theirs, version) = preamble(stream).await?;
    let first = receive(stream).await?;
    for key in keys {
        let mut handshake = handshake(key, theirs.preamble(), VERSIONS.preamble(), false)?;
        if handshake.read_message(&first, &mut []).is_ok() {
            let mut message = [0; HANDSHAKE_BYTES];
            handshake.write_message(&[], &mut message).map_err(|_| LinkError::Seal)?;
            send(stream, &message).await?;
            return Ok((secured(handshake, version)?, key));
        }
    }
    stream.write_all(&[0, 0]).await?;
    Err(LinkError::Key)
}

/// Reads the other end's versions, and returns them with the version that both use.
async fn preamble<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(Versions, Version), LinkError> {
    let mut bytes = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut bytes).await.map_err(closed)?;
    let theirs = Versions::parse(&bytes).ok_or(LinkError::NotAPeer)?;
    let version = theirs.spoken().ok_or(LinkError::Version { theirs })?;
    Ok((theirs, version))
}

fn handshake(
    key: &PeerKey,
    maker: [u8; PREAMBLE_BYTES],
    new_process: [u8; PREAMBLE_BYTES],
    makes: bool,
) -> Result<HandshakeState, LinkError> {
    let prologue = [maker, new_process].concat();
    let params = PATTERN.parse().map_err(|_| LinkError::Seal)?;
    let builder = Builder::new(params).psk(0, &key.0).and_then(|builder| builder.prologue(&prologue));
    let built = builder.and_then(|builder| if makes { builder.build_initiator() } else { builder.build_responder() });
    built.map_err(|_| LinkError::Seal)
}

fn secured(handshake: HandshakeState, version: Version) -> Result<Secured, LinkError> {
    let state = Arc::new(handshake.into_stateless_transport_mode().map_err(|_| LinkError::Seal)?);
    Ok((
        Sealer { version, state: state.clone(), nonce: 0 },
        Opener { version, state, nonce: 0, plain: vec![0; FRAME_MAX] },
    ))
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, message: &[u8; HANDSHAKE_BYTES]) -> Result<(), LinkError> {
    let mut frame = (HANDSHAKE_BYTES as u16).to_be_bytes().to_vec();
    frame.extend(message);
    Ok(stream.write_all(&frame).await?)
}

async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<[u8; HANDSHAKE_BYTES], LinkError> {
    match usize::from(stream.read_u16().await.map_err(closed)?) {
        0 => Err(LinkError::Key),
        HANDSHAKE_BYTES => {
            let mut message = [0; HANDSHAKE_BYTES];
            stream.read_exact(&mut message).await.map_err(closed)?;
            Ok(message)
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
    use tokio::io::duplex;

    fn key(byte: u8) -> PeerKey {
        PeerKey([byte; 32])
    }

    #[tokio::test]
    async fn what_is_sealed_at_one_end_opens_at_the_other_in_its_order_only() {
        let (mut near, mut far) = duplex(4096);
        let (key_1, key_2) = (key(1), [key(1)]);
        let (made, taken) = tokio::join!(connect(&mut near, &key_1), accept(&mut far, &key_2));
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
        let (mut near, mut far) = duplex(4096);
        let (ours, theirs) = (key(1), [key(2), key(3)]);
        let (made, taken) = tokio::join!(connect(&mut near, &ours), accept(&mut far, &theirs));
        for error in [made.unwrap_err(), taken.unwrap_err()] {
            assert!(matches!(error, LinkError::Key), "{error}");
        }
    }

    #[tokio::test]
    async fn each_of_the_keys_of_the_end_that_accepts_makes_a_link() {
        for byte in [1, 2] {
            let (mut near, mut far) = duplex(4096);
            let (ours, theirs) = (key(byte), [key(1), key(2)]);
            let (made, taken) = tokio::join!(connect(&mut near, &ours), accept(&mut far, &theirs));
            assert!(made.is_ok());
            assert_eq!(taken.unwrap().1, &ours);
        }
    }

    #[tokio::test]
    async fn a_peer_of_another_version_is_refused_and_both_can_say_so() {
        for connects in [true, false] {
            let (mut near, mut far) = duplex(4096);
            let later = Versions { lowest: 7, highest: 9 };
            far.write_all(&later.preamble()).await.unwrap();
            let key = key(1);
            let made = match connects {
                true => connect(&mut near, &key).await,
                false => accept(&mut near, &[key]).await.map(|(secured, _)| secured),
            };
            let said = made.unwrap_err().to_string();
            assert!(
                said.contains("speaks versions 7 to 9 of the peer protocol, this instance versions 1 to 2"),
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
            let (key, keys) = (key(1), [key(1)]);
            let earlier = Versions { lowest: 1, highest: 1 }.preamble();
            let other = async {
                far.write_all(&earlier).await.unwrap();
                let mut theirs = [0; PREAMBLE_BYTES];
                far.read_exact(&mut theirs).await.unwrap();
                let (mut message, mut first) = ([0; HANDSHAKE_BYTES], [0; HANDSHAKE_BYTES]);
                let (maker, taker) = if connects { (theirs, earlier) } else { (earlier, theirs) };
                let mut handshake = handshake(&key, maker, taker, !connects).unwrap();
                if connects {
                    first.copy_from_slice(&receive(&mut far).await.unwrap());
                    handshake.read_message(&first, &mut []).unwrap();
                }
                handshake.write_message(&[], &mut message).unwrap();
                send(&mut far, &message).await.unwrap();
                if !connects {
                    handshake.read_message(&receive(&mut far).await.unwrap(), &mut []).unwrap();
                }
                secured(handshake, Version::One).unwrap()
            };
            let this = async {
                match connects {
                    true => connect(&mut near, &key).await.unwrap(),
                    false => accept(&mut near, &keys).await.unwrap().0,
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
            assert!(matches!(accept(&mut near, &[key(1)]).await, Err(LinkError::NotAPeer)));
        }
        let (mut near, mut far) = duplex(4096);
        far.write_all(b"BTN").await.unwrap();
        drop(far);
        assert!(accept(&mut near, &[key(1)]).await.is_err());
    }
}
