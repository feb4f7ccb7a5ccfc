//! Frames of the upgrade as they are on the wire, read and written without the code that is tested.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use baton::sys::fd_passing;
use baton::upgrade::message::Kind;
use serde_json::Value;

const HEADER: usize = 20;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub descriptors: usize,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn new(kind: Kind, body: impl Into<Vec<u8>>, descriptors: usize) -> Self {
        Self { kind, descriptors, body: body.into() }
    }

    pub fn json(kind: Kind, body: &Value, descriptors: usize) -> Self {
        Self::new(kind, body.to_string(), descriptors)
    }

    pub fn parse(bytes: &[u8]) -> Self {
        let (header, body) = bytes.split_at(HEADER);
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        assert_eq!((&header[..4], short(4)), (&b"BTNH"[..], 1), "the first frame version");
        let frame = Self::new(Kind::from_number(short(6)).unwrap(), body, short(12).into());
        assert_eq!(frame.bytes(), bytes);
        frame
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"BTNH".to_vec();
        bytes.extend(1u16.to_le_bytes());
        bytes.extend((self.kind as u16).to_le_bytes());
        bytes.extend((self.body.len() as u32).to_le_bytes());
        bytes.extend((self.descriptors as u16).to_le_bytes());
        bytes.extend([0; 2]);
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&bytes);
        checksum.update(&self.body);
        bytes.extend(checksum.finalize().to_le_bytes());
        bytes.extend(&self.body);
        bytes
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn send(&self, to: &UnixStream, fds: &[BorrowedFd<'_>]) {
        let bytes = self.bytes();
        assert_eq!(self.descriptors, fds.len());
        let sent = fd_passing::send(to, &bytes, fds).unwrap();
        (&*to).write_all(&bytes[sent..]).unwrap();
    }

    /// The next one; `None`: the other end has closed.
    pub fn receive(from: &UnixStream) -> Option<(Self, Vec<OwnedFd>)> {
        let mut bytes = vec![0; HEADER];
        let mut fds = Vec::new();
        fd_passing::wait_readable(from, super::instance::DEADLINE).unwrap();
        let count = fd_passing::receive(from, &mut bytes, &mut fds).ok().filter(|count| *count > 0)?;
        (&*from).read_exact(&mut bytes[count..]).unwrap();
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        bytes.resize(HEADER + length, 0);
        (&*from).read_exact(&mut bytes[HEADER..]).unwrap();
        Some((Self::parse(&bytes), fds))
    }

    /// The next one, which is a `kind`.
    pub fn expect(from: &UnixStream, kind: Kind) -> (Self, Vec<OwnedFd>) {
        let (frame, fds) = Self::receive(from).unwrap_or_else(|| panic!("the end instead of {}", kind.name()));
        assert_eq!(frame.kind, kind, "{}", String::from_utf8_lossy(&frame.body));
        (frame, fds)
    }
}

/// The recorded messages of a conversation, in order.
pub fn recorded(directory: &Path) -> Vec<(String, Frame)> {
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, Frame::parse(&std::fs::read(path).unwrap()))
    };
    files.iter().map(|path| read(path)).collect()
}

/// Passes on what either end says, and writes it down, until one has closed. Whatever is called `hold` stays away for so
/// long that the other end gives up.
pub fn record(old: &UnixStream, new: &UnixStream, directory: &Path, hold: Option<Kind>) {
    let mut number = 0;
    loop {
        for (from, to, name) in [(old, new, "old"), (new, old, "new")] {
            if !fd_passing::wait_readable(from, std::time::Duration::from_millis(1)).unwrap() {
                continue;
            }
            let Some((frame, fds)) = Frame::receive(from) else { return };
            number += 1;
            let file = directory.join(format!("{number:02}-{name}-{}", frame.kind.name()));
            std::fs::write(file, frame.bytes()).unwrap();
            if hold == Some(frame.kind) {
                fd_passing::wait_readable(to, super::instance::DEADLINE).unwrap();
            }
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            frame.send(to, &fds);
        }
    }
}
