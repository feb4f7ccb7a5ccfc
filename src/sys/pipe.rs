//! splice(2): bytes from socket to socket without a copy through user space.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, SpliceFlags, splice};

/// Requested size of a pipe: each doubling from 64 KiB up to this makes bulk data cheaper. It is also the default limit
/// of the kernel (pipe(7), /proc/sys/fs/pipe-max-size).
const PIPE_BYTES: usize = 1024 * 1024;

/// Requested size if that is refused: an unprivileged user may have 64 MiB of pipes in all (pipe-user-pages-soft).
const SECOND_BEST: usize = 256 * 1024;

/// A pipe with a count of its bytes.
#[derive(Debug)]
pub(crate) struct Pipe {
    read_end: OwnedFd,
    write_end: OwnedFd,
    held: usize,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe works as well, only with more turns.
        let _ = rustix::pipe::fcntl_setpipe_size(&write_end, PIPE_BYTES)
            .or_else(|_| rustix::pipe::fcntl_setpipe_size(&write_end, SECOND_BEST));
        Ok(Self { read_end, write_end, held: 0 })
    }

    /// Bytes that were taken from one socket and not yet given to the other.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Takes the bytes of `socket`. `Ok(0)` is its EOF. Call it only while the pipe is empty, so that `WouldBlock` can
    /// only mean that the socket is empty.
    pub(crate) fn fill_from(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let taken = retry_on_intr(|| splice(&socket, None, &self.write_end, None, PIPE_BYTES, flags()))?;
        self.held += taken;
        Ok(taken)
    }

    /// Gives `socket` as many bytes as it accepts, one at least: whoever asks again and again until it accepts no more would else never
    /// return. Call it only while the pipe holds bytes.
    pub(crate) fn drain_to(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let given = retry_on_intr(|| splice(&self.read_end, None, &socket, None, self.held, flags()))?;
        self.held -= given;
        if given == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(given) }
    }

    /// Takes out all bytes.
    pub(crate) fn read_out(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.held];
        let mut read = 0;
        while self.held > 0 {
            let count = retry_on_intr(|| rustix::io::read(&self.read_end, &mut bytes[read..]))?;
            read += count;
            self.held -= count;
        }
        Ok(bytes)
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}
