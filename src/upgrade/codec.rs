//! Frames: the wire format of a message.
//!
//! ```text
//!   0        4          6       8         12             14          16        20
//!   | "BTNH" | frame 1  | kind  | length  | descriptors  | reserved  | CRC-32  | body ...
//! ```
//! Little-endian. The checksum covers the first 16 bytes and the body. Bodies are JSON, so that a release may add a key
//! without a new version. Flows are postcard, own ones and those of peers, because there are many; another layout of theirs is
//! another version of the protocol. Nothing is allocated before the length was checked against [`BODY_MAX`].

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::message::{Kind, Message};
use crate::sys::fd_passing::FDS_MAX;

pub const HEADER_BYTES: usize = 20;

/// Limit for the bytes of one body: a batch stops growing long before.
pub(crate) const BODY_MAX: usize = 8 << 20;

const MAGIC: [u8; 4] = *b"BTNH";
const FRAME: u16 = 1;

/// The header of a body, checked as far as that is possible without the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: Kind,
    length: usize,
    descriptors: usize,
    checksum: u32,
    checked: [u8; 16],
}

/// Why bytes could not be decoded as a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("it does not begin as an upgrade message does")]
    Magic,
    #[error("its frame has version {0}, and this release knows version {FRAME}")]
    Frame(u16),
    #[error("it is of a kind that this release does not know: {0}")]
    Kind(u16),
    #[error("its body has {0} bytes; at most {BODY_MAX} are allowed")]
    TooLong(usize),
    #[error("it announces {0} descriptors; at most {FDS_MAX} are allowed")]
    Descriptors(usize),
    #[error("its body has {got} bytes instead of {expected}")]
    Length { expected: usize, got: usize },
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its body does not fit its kind: {0}")]
    Body(String),
}

/// The message is longer than [`BODY_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {0} bytes; at most {BODY_MAX} are allowed")]
pub struct TooLong(pub usize);

impl Header {
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DecodeError> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err(DecodeError::Magic);
        }
        if number(4) != FRAME {
            return Err(DecodeError::Frame(number(4)));
        }
        let kind = Kind::from_number(number(6)).ok_or(DecodeError::Kind(number(6)))?;
        let (length, descriptors) = (long(8) as usize, usize::from(number(12)));
        if length > BODY_MAX {
            return Err(DecodeError::TooLong(length));
        }
        if descriptors > FDS_MAX {
            return Err(DecodeError::Descriptors(descriptors));
        }
        let mut checked = [0; 16];
        checked.copy_from_slice(&bytes[..16]);
        Ok(Self { kind, length, descriptors, checksum: long(16), checked })
    }

    /// Bytes of the body.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Number of descriptors that come with the body.
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }
}

/// The whole frame of `message`, which is sent with so many `descriptors`.
pub fn encode(message: &Message, descriptors: usize) -> Result<Vec<u8>, TooLong> {
    let mut frame = vec![0; HEADER_BYTES];
    write_body(message, &mut frame);
    let length = frame.len() - HEADER_BYTES;
    if length > BODY_MAX {
        return Err(TooLong(length));
    }
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..6].copy_from_slice(&FRAME.to_le_bytes());
    frame[6..8].copy_from_slice(&(message.kind() as u16).to_le_bytes());
    frame[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    frame[12..14].copy_from_slice(&(descriptors as u16).to_le_bytes());
    let checksum = checksum(&frame[..16], &frame[HEADER_BYTES..]);
    frame[16..20].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame)
}

/// Decodes the message of `header` and `body`.
pub fn decode(header: &Header, body: &[u8]) -> Result<Message, DecodeError> {
    if body.len() != header.length {
        return Err(DecodeError::Length { expected: header.length, got: body.len() });
    }
    if checksum(&header.checked, body) != header.checksum {
        return Err(DecodeError::Checksum);
    }
    Ok(match header.kind {
        Kind::Hello => Message::Hello(json(body)?),
        Kind::Welcome => Message::Welcome(json(body)?),
        Kind::Doors => Message::Doors(json(body)?),
        Kind::State => Message::State(json(body)?),
        Kind::Ready => Message::Ready,
        Kind::Begin => Message::Begin,
        Kind::Serving => Message::Serving,
        Kind::Batch => Message::Batch(postcard(body)?),
        Kind::Received => Message::Received(json(body)?),
        Kind::Commit => Message::Commit(json(body)?),
        Kind::Imported => Message::Imported(json(body)?),
        Kind::Done => Message::Done(json(body)?),
        Kind::Finished => Message::Finished,
        Kind::Refuse => Message::Refuse(json(body)?),
        Kind::Abort => Message::Abort(json(body)?),
        Kind::Left => Message::Left(json(body)?),
        Kind::Peers => Message::Peers(json(body)?),
        Kind::PeerFlows => Message::PeerFlows(postcard(body)?),
    })
}

fn write_body(message: &Message, frame: &mut Vec<u8>) {
    match message {
        Message::Hello(body) => put(frame, body),
        Message::Welcome(body) => put(frame, body),
        Message::Doors(body) => put(frame, body),
        Message::State(body) => put(frame, body),
        Message::Ready | Message::Begin | Message::Serving | Message::Finished => {}
        Message::Batch(batch) => put_postcard(frame, batch),
        Message::Received(body) => put(frame, body),
        Message::Commit(body) => put(frame, body),
        Message::Imported(body) => put(frame, body),
        Message::Done(body) => put(frame, body),
        Message::Refuse(body) => put(frame, body),
        Message::Abort(body) => put(frame, body),
        Message::Left(body) => put(frame, body),
        Message::Peers(body) => put(frame, body),
        Message::PeerFlows(body) => put_postcard(frame, body),
    }
}

fn put(frame: &mut Vec<u8>, body: &impl Serialize) {
    serde_json::to_writer(frame, body).expect("messages are plain data with string keys");
}

fn put_postcard(frame: &mut Vec<u8>, body: &impl Serialize) {
    *frame = postcard::to_extend(body, std::mem::take(frame)).expect("a vector takes everything");
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(body).map_err(|error| DecodeError::Body(error.to_string()))
}

fn postcard<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(DecodeError::Body(format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(DecodeError::Body(error.to_string())),
    }
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests;
