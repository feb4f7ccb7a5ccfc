//! What a client asks of a backend: the first 16 bytes of each connection.
//!
//! ```text
//!   0 act   1..4 zero   4..8 bytes, u32 little-endian   8..16 id, u64 little-endian
//! ```
//! The id names a connection when the witness (any backend: they are one process) is asked later what became of it.

/// Length of the head.
pub const HEAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Act {
    /// Answer each message of `bytes` with one of the same length. The head is part of the first.
    Echo = b'E',
    /// Read until EOF.
    Sink = b'S',
    /// Write until the connection breaks.
    Source = b'O',
    /// Read the pattern until EOF, then answer with `bytes` of it and FIN.
    ReplyAfterEof = b'F',
    /// Write `bytes` of the pattern and FIN, then read the pattern until EOF.
    ReadAfterFin = b'B',
    /// Answer one byte, then reset.
    Reset = b'R',
    /// Answer one byte, then wait for how the connection ends.
    Watch = b'W',
    /// Answer one byte and read nothing, ever: the end of the process then resets the connection.
    Hold = b'H',
    /// Answer with the outcome of connection `id`, 16 bytes.
    Tell = b'T',
    /// Write one byte every `bytes` milliseconds until the connection breaks.
    Tick = b'K',
}

/// A backend's state of a connection: 0 how it ended, 1 the bytes that were read correctly, or sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub ended: Ended,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ended {
    #[default]
    NotYet = 0,
    Eof = 1,
    Reset = 2,
    WrongBytes = 3,
}

#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub act: Act,
    pub bytes: usize,
    pub id: u64,
}

impl Head {
    pub fn encode(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[0] = self.act as u8;
        head[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        head[8..].copy_from_slice(&self.id.to_le_bytes());
        head
    }

    pub fn decode(head: [u8; HEAD]) -> Option<Self> {
        use Act::*;
        let acts = [Echo, Sink, Source, ReplyAfterEof, ReadAfterFin, Reset, Watch, Hold, Tell, Tick];
        let act = acts.into_iter().find(|act| *act as u8 == head[0])?;
        let bytes = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
        Some(Self { act, bytes, id: u64::from_le_bytes(head[8..].try_into().ok()?) })
    }
}

impl Outcome {
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0] = self.ended as u8;
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: [u8; 16]) -> Self {
        let ended = match bytes[0] {
            1 => Ended::Eof,
            2 => Ended::Reset,
            3 => Ended::WrongBytes,
            _ => Ended::NotYet,
        };
        Self { ended, bytes: u64::from_le_bytes(bytes[8..].try_into().unwrap_or_default()) }
    }
}
